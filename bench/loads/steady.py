"""Single records at a steady rate to all partitions in turn, until SIGTERM, with their times.

`settings`: `output`, the file for the times (`bench.acknowledgements`), and under `producer` the
client's settings. The system's client comes in as arguments of `write`.
"""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bench import acknowledgements
from bench.loads.spec import Load, Moved

RECORD = b"0123456789" * 100
TICK_S = 0.001

OnDone = Callable[[bool], None]
"""Called with the outcome: whether the record was acknowledged."""
Send = Callable[[int, bytes, OnDone], None]
"""Takes partition, value, and the callback."""


def write(
    load: Load, send: Send, wait: Callable[[float], None], flush: Callable[[], None]
) -> Moved:
    """Write at the load's rate until SIGTERM, and save the times.

    Args:
        load: its `seconds` are ignored.
        send: sends one record and returns at once.
        wait: waits for some seconds, and processes outcomes.
        flush: returns once every outcome is known.
    """
    is_over = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    rows: list[tuple[int, int, int]] = []
    failed = 0

    def sent(partition: int, at: int) -> OnDone:
        def done(is_acknowledged: bool) -> None:
            nonlocal failed
            if is_acknowledged:
                rows.append((partition, at, time.monotonic_ns()))
            else:
                failed += 1
                rows.append((partition, at, acknowledgements.NEVER))

        return done

    started = time.monotonic()
    count = 0
    while not is_over:
        due = int((time.monotonic() - started) * load.rate)
        while count < due:
            partition = count % load.partitions
            send(partition, RECORD, sent(partition, time.monotonic_ns()))
            count += 1
        wait(TICK_S)
    flush()
    acknowledgements.save(Path(load.settings["output"]), rows)
    return Moved(
        records=count,
        bytes=count * len(RECORD),
        seconds=time.monotonic() - started,
        detail={"failed": failed, "seen": len(rows)},
    )
