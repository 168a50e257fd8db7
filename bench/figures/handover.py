"""The longest time that a record waits during a planned move of leaderships, in ms.

Three brokers, three replicas, a steady load on all partitions. Each round drains a broker, which
hands over all its leaderships, and takes it back, and then it leads the same partitions again. A
stall is the time from `send()` to the acknowledgement of a record of a moved partition, from just
before the move until a second after it. The value is the longest of all rounds. In `detail`,
`beside_ms` is the longest stall of partitions that did not move: the machine's share.

The topic is `replicated`, to measure the move and not the disk; `fsync` is in `detail`.
"""

import time
from statistics import median
from typing import Any

import numpy
from bench.acknowledgements import longest_stall_ms
from bench.measure import Bench, Outcome, say
from bench.millrace_cluster import BROKERS, MillraceCluster, running_millrace_cluster
from bench.processes import until
from bench.settings import DURABILITIES, MILLRACE_TOPIC
from bench.steady_load import steady_load

TOPIC = "moved"
PARTITIONS = 6
RATE = 600
"""Records of 1 KB a second: one in 10 ms for each partition."""
AFTERWARDS_S = 1.0
MOVE_TIMEOUT_S = 30


def measure(bench: Bench) -> Outcome:
    """Move leaderships with both durabilities; the stalls of the first one count."""
    detail = {durability: _stalls(bench, durability) for durability in DURABILITIES}
    return Outcome(
        values={"longest stall in ms": detail[DURABILITIES[0]]["longest_ms"]},
        detail=detail,
    )


def _stalls(bench: Bench, durability: str) -> dict[str, Any]:
    directory = bench.directory / durability
    with (
        running_millrace_cluster(directory) as cluster,
        steady_load(
            directory,
            cluster.address,
            "steady_millrace",
            topic=TOPIC,
            partitions=PARTITIONS,
            rate=RATE,
        ) as load,
    ):
        cluster.create_topic(TOPIC, PARTITIONS, MILLRACE_TOPIC[durability])
        load.begin()
        moves = [
            move
            for number in range(bench.rounds)
            for move in (
                _move(cluster, number % BROKERS, bench.seconds / 2, back=back)
                for back in (False, True)
            )
        ]
        records = load.end()
    stalls = [longest_stall_ms(records, *move) for move in moves]
    beside = [
        longest_stall_ms(
            records,
            [partition for partition in range(PARTITIONS) if partition not in moved],
            *times,
        )
        for moved, *times in moves
    ]
    say(
        f"{durability}: {len(moves)} moves, the longest stall {max(stalls):.0f} ms, "
        f"beside them {max(beside):.0f}"
    )
    waited_ms = (records["acknowledged_ns"] - records["sent_ns"]) / 1e6
    return {
        "longest_ms": max(stalls),
        "median_ms": median(stalls),
        "each_ms": stalls,
        "beside_ms": beside,
        "all_records_ms": dict(
            zip(("p50", "p99"), numpy.percentile(waited_ms, [50, 99]).tolist(), strict=True)
        ),
    }


def _move(
    cluster: MillraceCluster, broker_id: int, seconds: float, *, back: bool
) -> tuple[list[int], float, float]:
    """Drain a broker or take it back, after some seconds of load.

    Returns:
        The moved partitions; the begin and the end of the time in which stalls count.
    """
    time.sleep(seconds)
    before = cluster.leaders(TOPIC)
    started = time.monotonic()
    if back:
        cluster.admin.undrain_broker(broker_id)
    else:
        cluster.admin.drain_broker(broker_id)
    until(
        lambda: (broker_id in cluster.leaders(TOPIC).values()) is back or None,
        "the move of leaderships",
        MOVE_TIMEOUT_S,
    )
    time.sleep(AFTERWARDS_S)
    after = cluster.leaders(TOPIC)
    moved = [number for number, leader in before.items() if after[number] != leader]
    return moved, started, time.monotonic()
