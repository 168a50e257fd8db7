"""Positions that wait for the end of the transaction which commits them (P56).

They are records of their own beside the committed positions (T10): stored when the transaction
takes them in, and replaced by a committed position, or dropped, when its coordinator says how it
has ended.

Of two positions of a partition the one that was committed later counts, whenever the transaction of
the other one ends. So a commit drops the pending positions that are older than it. Pending ones
have an order, since their records may be written again.

Source: KIP-98, KIP-447; Kafka's OffsetMetadataManager compares offsets of the log instead.
"""

from collections.abc import Collection, Iterable, Iterator

from millrace.core.coordinator.positions.position import CommitNumber, Position
from millrace.core.coordinator.positions.records import Pending, PendingKey, PendingRecord
from millrace.core.ids import ProducerEpoch, ProducerId, TopicPartition, WallMs


class PendingPositions:
    """Those of all names of one partition of `__positions`."""

    def __init__(self) -> None:
        self._names: dict[str, dict[PendingKey, Pending]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def names(self) -> Collection[str]:
        """Return the names that have some."""
        return self._names.keys()

    def has(self, name: str) -> bool:
        """Whether a name has some."""
        return name in self._names

    def count(self, name: str) -> int:
        """Return how many a name has."""
        return len(self._names.get(name, ()))

    def get(self, key: PendingKey) -> Pending | None:
        """Return a pending position."""
        return self._names.get(key.name, {}).get(key)

    def partitions(self, name: str) -> set[TopicPartition]:
        """Return the partitions of a name whose position may change."""
        return {key.topic_partition for key in self._names.get(name, ())}

    def positions(self, name: str) -> dict[TopicPartition, Position]:
        """Return the latest one of each partition, in the order of topic ids and partitions."""
        latest: dict[TopicPartition, Pending] = {}
        for key, pending in self._names.get(name, {}).items():
            known = latest.get(key.topic_partition)
            if known is None or known.order < pending.order:
                latest[key.topic_partition] = pending
        return {where: latest[where].position for where in sorted(latest)}

    def next_order(self, name: str, topic_partition: TopicPartition) -> int:
        """Return the order of another one of a partition: it is the latest."""
        return 1 + max(
            (
                pending.order
                for key, pending in self._names.get(name, {}).items()
                if key.topic_partition == topic_partition
            ),
            default=0,
        )

    def of_producer(
        self, name: str, producer_id: ProducerId, before: ProducerEpoch
    ) -> list[tuple[PendingKey, Pending]]:
        """Return those of a producer whose epoch is below another one."""
        return [
            (key, pending)
            for key, pending in self._names.get(name, {}).items()
            if key.producer_id == producer_id and pending.epoch < before
        ]

    def dropped(
        self,
        name: str,
        partitions: Iterable[TopicPartition],
        now: WallMs,
        *,
        by: CommitNumber | None = None,
    ) -> Iterator[PendingRecord]:
        """Yield records that drop those of some partitions: a later commit replaces them.

        Args:
            name: whose.
            partitions: in which.
            now: the time.
            by: the commit, if its member counts them: what the member committed after it stays,
                as the commit is a late attempt, or that of an end at which the group begins (P62).
        """
        keys = self._names.get(name)
        if keys:
            gone = set(partitions)
            yield from (
                PendingRecord(key, None, now)
                for key, pending in keys.items()
                if key.topic_partition in gone and (by is None or not by.precedes(pending.commit))
            )

    def older(self, key: PendingKey, order: int, now: WallMs) -> Iterator[PendingRecord]:
        """Yield records that drop the ones of a partition that are older than one of them."""
        for other, pending in self._names.get(key.name, {}).items():
            if (
                other.topic_partition == key.topic_partition
                and other != key
                and pending.order < order
            ):
                yield PendingRecord(other, None, now)

    def is_late(self, key: PendingKey, commit: CommitNumber | None) -> bool:
        """Whether a commit comes after a later one of its member, for the same partition (P62)."""
        pending = self.get(key)
        return commit is not None and pending is not None and commit.precedes(pending.commit)

    def replay(self, record: PendingRecord) -> None:
        """Apply a record of the log."""
        key = record.key
        keys = self._names.setdefault(key.name, {})
        self._count -= len(keys)
        if record.pending is None:
            keys.pop(key, None)
        else:
            keys[key] = record.pending
        self._count += len(keys)
        if not keys:
            del self._names[key.name]
