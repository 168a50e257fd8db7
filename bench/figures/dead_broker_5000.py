"""A broker that leads 5,000 partitions dies by kill -9: seconds until other leaders serve all.

Three brokers, three replicas of each partition, one SQLite file; then the same with an API server.
The broker that dies is not the controller, and stays dead until the end. The time ends when every
partition has answered a fetch in its new leader epoch, and 100 of them have acknowledged a write
that was sent after the kill. The value is the slowest round, and includes the detection.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from bench.comparisons.either_store import measure_with_either_store
from bench.loads.spec import Load, Moved, command_line
from bench.measure import Bench, Outcome
from bench.millrace_cluster import MillraceCluster
from bench.processes import LoadFailedError, last_json, start, stop, until

from millrace.client import MillraceError, SyncProducer, TopicDescription

PARTITIONS = 5000
SAMPLED = 100
CHANGED_AT_ONCE = 1000
TIMEOUT_S = 120


def measure(bench: Bench) -> Outcome:
    """Let one broker lead all partitions, and kill it, once a round, with either store."""

    def take_over(cluster: MillraceCluster, topics: list[str]) -> dict[str, float]:
        controller = cluster.controller()
        victim = next(broker_id for broker_id in sorted(cluster.names) if broker_id != controller)
        _lead_by(cluster, victim, topics)
        time.sleep(bench.seconds)
        return _die(cluster, victim, topics, bench.directory / "watcher.log")

    return measure_with_either_store(
        bench,
        take_over,
        what="take-over",
        counts=("all_served", "writes"),
        partitions=PARTITIONS,
    )


def _lead_by(cluster: MillraceCluster, broker_id: int, topics: list[str]) -> None:
    """Make a broker the preferred leader of all partitions, and their leader."""
    wanted = [
        (key, [broker_id, *(replica for replica in partition.replicas if replica != broker_id)])
        for key, partition in cluster.partitions(topics).items()
    ]
    for first in range(0, len(wanted), CHANGED_AT_ONCE):
        changes = dict(wanted[first : first + CHANGED_AT_ONCE])
        _check(cluster.admin.reassign_partitions(changes))
    cluster.wait_until_in_sync(topics)
    _check(cluster.admin.elect_leaders())
    until(
        lambda: (
            {partition.leader for partition in cluster.partitions(topics).values()} == {broker_id}
            or None
        ),
        f"broker {broker_id} as leader of everything",
        TIMEOUT_S,
    )
    cluster.wait_until_in_sync(topics)


def _check(outcomes: Mapping[tuple[str, int], MillraceError | None]) -> None:
    refused = [error for error in outcomes.values() if error is not None]
    if refused:
        raise LoadFailedError(f"{len(refused)} partitions were refused: {refused[0]}")


def _die(cluster: MillraceCluster, victim: int, topics: list[str], log: Path) -> dict[str, float]:
    """Kill a broker; return the time of each step, in seconds since then."""
    described = list(cluster.admin.describe_topics(topics).values())
    living = {
        broker_id: cluster.address_of(broker_id)
        for broker_id in cluster.names
        if broker_id != victim
    }
    load = Load(
        address=cluster.address,
        topic="",
        partitions=0,
        seconds=TIMEOUT_S,
        settings={"topics": topics, "addresses": living},
    )
    log.unlink(missing_ok=True)
    with SyncProducer(cluster.address, linger_ms=0) as producer, cluster.without_restarts():
        sampled = _sample(described)
        _write(producer, sampled)  # Connected, and known to the leader.
        watching = start(command_line("take_over", load), log)
        try:
            until(lambda: log.read_text() or None, "the watcher", TIMEOUT_S)
            killed_at = cluster.kill(victim)
            _write(producer, sampled)
            written_at = time.monotonic()
            until(watching.poll, "every partition's new leader", TIMEOUT_S)
        finally:
            stop(watching)
    if watching.returncode:
        raise LoadFailedError(log.read_text(errors="replace")[-4000:])
    moments = {**Moved(**last_json(log.read_text())).detail, "writes": written_at}
    return {what: at - killed_at for what, at in moments.items()}


def _sample(topics: list[TopicDescription]) -> list[tuple[str, int]]:
    every = [
        (topic.name, partition.partition) for topic in topics for partition in topic.partitions
    ]
    return every[:: max(1, len(every) // SAMPLED)][:SAMPLED]


def _write(producer: SyncProducer, sampled: list[tuple[str, int]]) -> None:
    handles = [
        producer.send(topic, b"a record", partition=partition) for topic, partition in sampled
    ]
    for handle in handles:
        handle.result(TIMEOUT_S)
