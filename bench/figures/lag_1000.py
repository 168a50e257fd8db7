"""The lag of a group in 1,000 partitions, in one call: milliseconds, the median.

One broker with default settings, a hundred records in each partition, of which the group has read
half. The call returns records, bytes and time for each partition.
"""

import time
from statistics import median

from bench.measure import Bench, Outcome, say
from bench.millrace_broker import running_millrace
from bench.processes import LoadFailedError
from bench.settings import MILLRACE_TOPIC

from millrace.client import Lag, Position, SyncAdmin, SyncProducer

PARTITIONS = 1000
RECORDS = 100
CALLS = 20


def measure(bench: Bench) -> Outcome:
    """Ask again and again, and check each answer."""
    rounds: list[float] = []
    with running_millrace(bench.directory / "millrace") as millrace:
        millrace.create_topic("t", PARTITIONS, MILLRACE_TOPIC["replicated"])
        with SyncProducer(millrace.address) as producer:
            for number in range(PARTITIONS):
                producer.send_batch("t", [b"x" * 100] * RECORDS, partition=number)
            producer.flush()
        with SyncAdmin(millrace.address) as admin:
            places = [("t", number) for number in range(PARTITIONS)]
            admin.commit_positions("g", dict.fromkeys(places, Position(RECORDS // 2)))
            group = admin.describe_group("g")
            if group is None:
                raise LoadFailedError("the group is not there")
            for number in range(bench.rounds):
                times = []
                for _ in range(CALLS):
                    began_at = time.perf_counter()
                    lags = admin.describe_lags(group.positions)
                    times.append((time.perf_counter() - began_at) * 1000)
                    found = [lag for lag in lags.values() if isinstance(lag, Lag)]
                    if [lag.records for lag in found] != [RECORDS // 2] * PARTITIONS:
                        raise LoadFailedError("a lag is wrong")
                rounds.append(median(times))
                say(f"round {number + 1}/{bench.rounds} {rounds[-1]:.1f} ms")
    return Outcome(
        values={"ms for the lag in 1,000 partitions": median(rounds)},
        detail={"rounds": rounds, "calls_per_round": CALLS},
    )
