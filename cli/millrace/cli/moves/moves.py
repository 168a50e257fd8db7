"""The progress of moving leaderships and replicas, from the cluster's descriptions."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from millrace.core.topics import PartitionName

if TYPE_CHECKING:
    from millrace.client import (
        LogDescription,
        PartitionDescription,
        SyncAdmin,
        TopicDescription,
    )

_LOOK_SECONDS: Final = 0.2
_REST: Final = 2
"""Pause between two looks, as a multiple of the duration of a look."""


def wait_options(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--timeout` and `--no-wait` to a command for moves."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        no_wait = click.option(
            "--no-wait", is_flag=True, help="End as soon as it has begun, not when it is done."
        )
        timeout = click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(0),
            default=seconds,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait at the most.",
        )
        return timeout(no_wait(command))

    return add


def wait_until(look: Callable[[], bool], timeout_s: float) -> bool:
    """Look until `look` returns true, at most for `timeout_s`; return whether it did.

    A look at thousands of partitions burdens the cluster: then looks are rarer.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if look():
            return True
        now = time.monotonic()
        if now >= deadline:
            return False
        time.sleep(min(max(_LOOK_SECONDS, _REST * (now - began)), deadline - now))


def partitions_of(
    topics: "Iterable[TopicDescription]",
) -> "Iterator[tuple[PartitionName, PartitionDescription]]":
    """Yield every partition with its name."""
    for topic in topics:
        for partition in topic.partitions:
            yield (topic.name, partition.partition), partition


@dataclass(slots=True, frozen=True)
class Handover:
    """The partitions that a drained broker still leads."""

    awaited: Mapping[PartitionName, Sequence[int]]
    """Partitions that others could lead once in sync, with the brokers in sync now."""
    alone: list[PartitionName]
    """Partitions that no other broker holds: waiting is no use."""

    @staticmethod
    def of(topics: "Iterable[TopicDescription]", broker_id: int) -> "Handover":
        """Return the partitions left to hand over."""
        awaited: dict[PartitionName, Sequence[int]] = {}
        alone = []
        for place, partition in partitions_of(topics):
            if partition.leader == broker_id:
                if set(partition.replicas) == {broker_id}:
                    alone.append(place)
                else:
                    awaited[place] = partition.isr
        return Handover(awaited, alone)

    @property
    def count(self) -> int:
        """Return how many partitions it leads."""
        return len(self.awaited) + len(self.alone)


def yet_to_return(topics: "Iterable[TopicDescription]", broker_id: int) -> list[PartitionName]:
    """Return the partitions that a broker should lead by preference, and does not."""
    return [
        place
        for place, partition in partitions_of(topics)
        if partition.preferred_leader == broker_id != partition.leader
    ]


@dataclass(slots=True, frozen=True)
class Copy:
    """One replica that a reassignment adds."""

    place: PartitionName
    broker_id: int
    copied: int
    """Records of the leader's log that it has."""
    total: int
    """Records of the leader's log."""
    is_in_sync: bool

    @property
    def share(self) -> float:
        """Return how much it has, from 0 to 1; 1 only when it is in sync."""
        if self.is_in_sync:
            return 1.0
        return min(self.copied / self.total, 0.999) if self.total else 0.0


def under_way(
    admin: "SyncAdmin", topics: "Iterable[TopicDescription]", *, with_progress: bool
) -> dict[PartitionName, list[Copy]]:
    """Return the reassignments under way, each with the replicas that it adds.

    Args:
        topics: all there are.
        with_progress: ask the leaders how far each is; else all are at 0.
    """
    topics = list(topics)
    moving = {topic for (topic, _), found in partitions_of(topics) if found.is_reassigning}
    names = sorted(moving) if with_progress else []
    return copies(topics, [log for name in names for log in admin.describe_logs(name)])


def copies(
    topics: "Iterable[TopicDescription]", logs: "Iterable[LogDescription]"
) -> dict[PartitionName, list[Copy]]:
    """Return the reassignments under way, each with the replicas that it adds.

    A leader that did not describe its log leaves the progress at 0.
    """
    leaders = {(log.topic, log.partition): log for log in logs if log.leads}
    return {
        place: [_copy(place, partition, broker, leaders) for broker in partition.adding_replicas]
        for place, partition in partitions_of(topics)
        if partition.is_reassigning
    }


def _copy(
    place: PartitionName,
    partition: "PartitionDescription",
    broker_id: int,
    leaders: "Mapping[PartitionName, LogDescription]",
) -> Copy:
    is_in_sync = broker_id in partition.isr
    log = leaders.get(place)
    if log is None:
        return Copy(place, broker_id, 0, 0, is_in_sync)
    total = log.log_end_offset - log.log_start_offset
    end = next(
        (follower.log_end_offset for follower in log.followers if follower.broker_id == broker_id),
        -1,
    )
    copied = min(max(end - log.log_start_offset, 0), total)
    return Copy(place, broker_id, copied, total, is_in_sync)
