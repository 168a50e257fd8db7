"""The broker's resident memory with 1,000 partitions of one record each and no client: the maximum
of all rounds. Each round starts a new broker on the same data, the first one on none.
"""

import time

from bench.measure import Bench, Outcome, say
from bench.millrace_broker import running_millrace
from bench.processes import status_bytes
from bench.settings import MILLRACE_TOPIC

from millrace.client import SyncProducer

PARTITIONS = 1000
TOPIC = "idle"


def measure(bench: Bench) -> Outcome:
    """Start a broker, let it idle, and read its memory; several times."""
    data = bench.directory / "millrace"
    resident_mb = []
    for number in range(bench.rounds):
        with running_millrace(data) as millrace:
            if number == 0:
                millrace.create_topic(TOPIC, PARTITIONS, MILLRACE_TOPIC["replicated"])
            with SyncProducer(millrace.address) as producer:
                for partition in range(PARTITIONS):
                    producer.send(TOPIC, b"a record", partition=partition)
            time.sleep(bench.seconds)
            resident_mb.append(status_bytes(millrace.pid, "VmRSS") / 1e6)
            say(f"round {number + 1}/{bench.rounds} {resident_mb[-1]:.1f} MB")
    return Outcome(
        values={"MB resident": max(resident_mb)},
        detail={"first_start": resident_mb[0], "rounds": resident_mb},
    )
