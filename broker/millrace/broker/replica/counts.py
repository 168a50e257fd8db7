"""Looks at every replica of this broker, for its metrics; hanging transactions among them (P54)."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from millrace.broker.replica.partition import Partition
from millrace.broker.telemetry.replication import ReplicaCounts
from millrace.broker.telemetry.transactions import UndecidedCounts
from millrace.core.ids import MonotonicMs, WallMs
from millrace.core.replica.replication.follower import Phase
from millrace.core.replica.replication.leader import PartitionLeader

_AT_ONCE: Final = 200
"""Partitions to look at before the event loop serves others."""


async def count_replicas(
    partitions: Iterable[Partition],
    clock: Callable[[], MonotonicMs],
    wall_clock: Callable[[], WallMs],
    hanging_ms: int,
) -> ReplicaCounts:
    """Look at every replica; the event loop has others to serve between.

    Args:
        partitions: of this broker.
        clock: returns the time.
        wall_clock: likewise; producers are known by it.
        hanging_ms: after how long a transaction that is still open is hanging.
    """
    counts = ReplicaCounts()
    for number, partition in enumerate(partitions):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        follower, leader = partition.replica.follower, partition.replica.leader
        if follower is not None:
            counts.halted += follower.phase is Phase.HALTED
            counts.incomplete += partition.replica.lack() is not None
        elif leader is not None and not leader.is_resigned:
            _add_led(counts, partition, leader, clock())
            _add_undecided(counts.undecided, partition.topic, leader, wall_clock, hanging_ms)
    return counts


async def measure_sizes(partitions: Iterable[Partition]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes of all logs, by topic and by log directory.

    Segments of a tiered log count for the directory that holds them.
    """
    topics: dict[str, int] = {}
    directories: dict[str, int] = {}
    for number, partition in enumerate(partitions):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        log = partition.log
        size, tier_bytes = log.size_bytes, log.tier_bytes
        topics[partition.topic] = topics.get(partition.topic, 0) + size
        directories[log.log_dir] = directories.get(log.log_dir, 0) + size - tier_bytes
        if log.tier is not None:
            on_hdd = log.tier.log_dir
            directories[on_hdd] = directories.get(on_hdd, 0) + tier_bytes
    return topics, directories


def _add_led(
    counts: ReplicaCounts, partition: Partition, leader: PartitionLeader, now: MonotonicMs
) -> None:
    state = leader.state
    size, factor = len(state.isr), state.replication_factor
    fewest = partition.config.effective_min_insync_replicas(factor)
    counts.led += 1
    counts.under_replicated += size < len(state.replicas) and bool(state.missing)
    counts.under_min_isr += size < fewest
    counts.at_min_isr += size == fewest < factor
    counts.reassigning += bool(state.adding or state.removing)
    counts.isr_size[partition.topic] = min(size, counts.isr_size.get(partition.topic, size))
    end = leader.written_offset
    for follower in leader.in_sync.followers:
        # A follower without a report in this epoch counts from the log's start.
        behind = end - max(follower.progress.log_end_offset, partition.log.log_start_offset)
        since = now - follower.caught_up_at if behind > 0 else 0
        broker_id = follower.broker_id
        counts.lag_records[broker_id] = max(behind, counts.lag_records.get(broker_id, 0))
        counts.lag_ms[broker_id] = max(since, counts.lag_ms.get(broker_id, 0))


def _add_undecided(
    counts: UndecidedCounts,
    topic: str,
    leader: PartitionLeader,
    clock: Callable[[], WallMs],
    hanging_ms: int,
) -> None:
    behind = leader.high_watermark - leader.last_stable_offset
    counts.records[topic] = max(behind, counts.records.get(topic, 0))
    producers = leader.producers
    oldest = producers.transactions.oldest
    if oldest is None:
        return
    counts.open += len(producers.transactions)
    entry = producers.entry(oldest)
    open_ms = 0 if entry is None else clock() - entry.began_at
    counts.open_ms = max(open_ms, counts.open_ms)
    counts.hanging += open_ms > hanging_ms
