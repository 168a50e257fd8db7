"""Single records, each sent when the one before is acknowledged, and the waits of all threads.

A thread that waits in the kernel gives up its processor (a voluntary context switch), and has to be
woken: so the waits of the client's and the broker's threads are the wake-ups that a record costs.

`settings`: `pids`, the broker's processes, and under `producer` the client's settings.
"""

import os
import time
from collections.abc import Callable

from bench.loads.paced import RECORD_BYTES, percentiles
from bench.loads.spec import Load, Moved
from bench.processes import thread_waits

_RECORD = b"0123456789" * (RECORD_BYTES // 10)
_WARM_UP_SHARE = 0.2
_THREADS_LISTED = 8


def measure(load: Load, send_and_wait: Callable[[bytes], None]) -> Moved:
    """Send for the load's time, after a warm-up.

    Args:
        load: the load.
        send_and_wait: sends one record, and returns when it is acknowledged.
    """
    warm_until = time.monotonic() + load.seconds * _WARM_UP_SHARE
    while time.monotonic() < warm_until:
        send_and_wait(_RECORD)
    processes = {"client": [os.getpid()], "broker": load.settings["pids"]}
    before = {side: thread_waits(*pids) for side, pids in processes.items()}
    taken_ns = []
    begun = time.monotonic()
    while time.monotonic() - begun < load.seconds:
        sent = time.monotonic_ns()
        send_and_wait(_RECORD)
        taken_ns.append(time.monotonic_ns() - sent)
    seconds = time.monotonic() - begun
    count = len(taken_ns)
    detail = percentiles([taken / 1e6 for taken in taken_ns])
    for side, pids in processes.items():
        waits = [
            (waited - before[side].get(thread, 0)) / count
            for thread, waited in thread_waits(*pids).items()
        ]
        detail[f"{side}_waits"] = sum(waits)
        detail[f"{side}_waits_by_thread"] = sorted(waits, reverse=True)[:_THREADS_LISTED]
    return Moved(records=count, bytes=count * RECORD_BYTES, seconds=seconds, detail=detail)
