"""Which partitions and groups take part in transactions, and what is owed to deleted topics.

A part of the coordinator's state that follows from its records. Partitions are bits of chunks (see
`records`). Participants of another producer or epoch than the transaction's are void: they are of
an earlier transaction, and count for nothing.

A transaction may also be written by several producers, its participants (see `shared`). Then each
of them has partitions and groups under its `participant_name`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from millrace.core.coordinator.transactions.records import (
    CHUNK_PARTITIONS,
    GroupRecord,
    OwedRecord,
    ParticipantRecord,
    PartitionsRecord,
    participant_name,
    participant_of,
)
from millrace.core.coordinator.transactions.transaction import Decision, Producer
from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, TopicPartition, WallMs
from millrace.core.records.markers import BUMPING

Chunk: TypeAlias = tuple[TopicId, int]

_OwnerT = TypeVar("_OwnerT")
_KeyT = TypeVar("_KeyT")
_RecordT = TypeVar("_RecordT", PartitionsRecord, GroupRecord, OwedRecord)


def owed_to_deleted(
    decision: Decision, deleted: Iterable[TopicPartition], now: WallMs
) -> Iterator[OwedRecord]:
    """Yield records of the markers that deleted partitions will get when they are back (T8)."""
    for (topic_id, chunk), bitmap in bitmaps(deleted).items():
        yield OwedRecord(
            topic_id,
            chunk,
            decision.producer,
            bitmap,
            decision.is_commit,
            decision.protocol,
            decision.transactional_id,
            now,
        )


class Participants:
    """Those of all transactional ids of one partition of `__transactions`."""

    def __init__(self) -> None:
        self._chunks: dict[str, dict[Chunk, PartitionsRecord]] = {}
        self._groups: dict[str, dict[str, GroupRecord]] = {}
        self._joined: dict[str, _Joined] = {}
        self._count = 0

    def __len__(self) -> int:
        """The number of records."""
        return self._count

    def replay(self, record: PartitionsRecord | GroupRecord | ParticipantRecord) -> None:
        """Apply a record of the log."""
        name = record.transactional_id
        if isinstance(record, ParticipantRecord):
            self._count += self._joined.setdefault(name, _Joined()).replay(record)
            self._drop_empty(name)
            return
        if isinstance(record, GroupRecord):
            self._count += _put(self._groups, name, record.group, record)
        else:
            chunk = record.topic_id, record.chunk
            self._count += _put(self._chunks, name, chunk, record)
        owner, producer_id = participant_of(name)
        if producer_id is not None:
            writing = self._joined.setdefault(owner, _Joined()).writing
            if name in self._chunks or name in self._groups:
                writing[producer_id] = None
            else:
                writing.pop(producer_id, None)
            self._drop_empty(owner)

    def _drop_empty(self, transactional_id: str) -> None:
        joined = self._joined[transactional_id]
        if not joined.records and not joined.writing:
            del self._joined[transactional_id]

    def partitions(self, transactional_id: str, writer: Producer) -> list[TopicPartition]:
        """Return the partitions of a transaction, ascending."""
        chunks = self._chunks.get(transactional_id, {})
        return sorted(
            partition
            for chunk, record in chunks.items()
            if record.writer == writer
            for partition in partitions_of(chunk, record.bitmap)
        )

    def groups(self, transactional_id: str, writer: Producer) -> list[str]:
        """Return the groups of a transaction, sorted."""
        groups = self._groups.get(transactional_id, {})
        return sorted(group for group, record in groups.items() if record.writer == writer)

    def count_partitions(self, transactional_id: str, writer: Producer) -> int:
        """Return how many partitions a transaction has."""
        chunks = self._chunks.get(transactional_id, {})
        return sum(
            record.bitmap.bit_count() for record in chunks.values() if record.writer == writer
        )

    def missing(
        self, transactional_id: str, writer: Producer, partitions: Collection[TopicPartition]
    ) -> dict[Chunk, int]:
        """Return the partitions that are not in a transaction yet, as bits by chunk."""
        chunks = self._chunks.get(transactional_id, {})
        missing: dict[Chunk, int] = {}
        for chunk, bitmap in bitmaps(partitions).items():
            record = chunks.get(chunk)
            there = record.bitmap if record is not None and record.writer == writer else 0
            if bitmap & ~there:
                missing[chunk] = bitmap & ~there
        return missing

    def missing_groups(
        self, transactional_id: str, writer: Producer, groups: Iterable[str]
    ) -> list[str]:
        """Return the groups that are not in a transaction yet."""
        there = self.groups(transactional_id, writer)
        return [group for group in dict.fromkeys(groups) if group not in there]

    def added(
        self,
        transactional_id: str,
        writer: Producer,
        missing: dict[Chunk, int],
        now: WallMs,
        *,
        is_first: bool,
    ) -> list[PartitionsRecord]:
        """Return records that take partitions into a transaction.

        Args:
            transactional_id: of the producer.
            writer: the producer, with its epoch in this transaction.
            missing: the partitions, as `missing` returns them.
            now: the time.
            is_first: the transaction has none yet; those that are kept are of the one before.
        """
        chunks = self._chunks.get(transactional_id, {})
        records = []
        for (topic_id, number), bitmap in missing.items():
            record = chunks.get((topic_id, number))
            is_there = record is not None and record.writer == writer and not is_first
            there = record.bitmap if record is not None and is_there else 0
            records.append(
                PartitionsRecord(transactional_id, topic_id, number, writer, there | bitmap, now)
            )
        return records

    # --- Of transactions that several producers write ----------------------------------------

    def joined(self, transactional_id: str) -> list[ParticipantRecord]:
        """Return the producers that have joined the last transactions of an id."""
        joined = self._joined.get(transactional_id)
        return [] if joined is None else list(joined.records.values())

    def has_joined(self, transactional_id: str) -> bool:
        """Whether any producer has joined a transaction of an id, and is kept."""
        joined = self._joined.get(transactional_id)
        return joined is not None and bool(joined.records)

    def find_joined(
        self, transactional_id: str, producer_id: ProducerId
    ) -> ParticipantRecord | None:
        """Return what is known of one of them; None: nothing."""
        joined = self._joined.get(transactional_id)
        return None if joined is None else joined.records.get(producer_id)

    def count_joined(self, transactional_id: str, number: int) -> int:
        """Return how many have joined a transaction, the last one."""
        joined = self._joined.get(transactional_id)
        return joined.count if joined is not None and joined.number == number else 0

    def idle(self, transactional_id: str, number: int) -> ParticipantRecord | None:
        """Return one that joined an earlier transaction than this one; None: there is none."""
        joined = self._joined.get(transactional_id)
        oldest = None if joined is None else next(iter(joined.records.values()), None)
        return oldest if oldest is not None and oldest.number != number else None

    def ended(
        self, transactional_id: str, number: int, now: WallMs
    ) -> Iterator[PartitionsRecord | GroupRecord | ParticipantRecord]:
        """Yield records that end a transaction.

        They forget what its producers have written to, and the producers that it did not need.
        """
        for record in self.joined(transactional_id):
            yield from self.forgotten(record.name, now)
            if record.number != number:
                yield record._replace(epoch=None, timestamp=now)

    def writing(self, transactional_id: str) -> list[ProducerId]:
        """Return the producers that partitions or groups know, in the last transaction."""
        joined = self._joined.get(transactional_id)
        return [] if joined is None else list(joined.writing)

    def forgotten(
        self, transactional_id: str, now: WallMs
    ) -> Iterator[PartitionsRecord | GroupRecord | ParticipantRecord]:
        """Yield records that forget all participants of an id."""
        for joined in self.joined(transactional_id):
            yield joined._replace(epoch=None, timestamp=now)
            yield from self.forgotten(participant_name(transactional_id, joined.producer_id), now)
        for topic_id, chunk in self._chunks.get(transactional_id, ()):
            yield PartitionsRecord(transactional_id, topic_id, chunk, None, 0, now)
        for group in self._groups.get(transactional_id, ()):
            yield GroupRecord(transactional_id, group, None, now)


class _Joined:
    """The producers that have joined the transactions of one id.

    Attributes:
        records: of each; those that joined last come last.
        number: of the last transaction that one has joined.
        count: of those that have joined it.
        writing: those of which partitions or groups know.
    """

    def __init__(self) -> None:
        self.records: dict[ProducerId, ParticipantRecord] = {}
        self.number = 0
        self.count = 0
        self.writing: dict[ProducerId, None] = {}

    def replay(self, record: ParticipantRecord) -> int:
        """Apply a record of the log; return by how many records there are more."""
        before = self.records.pop(record.producer_id, None)
        if before is not None and before.number == self.number:
            self.count -= 1
        if record.is_deletion:
            return 0 if before is None else -1
        if record.number > self.number:
            self.number, self.count = record.number, 0
        self.count += record.number == self.number
        self.records[record.producer_id] = record
        return int(before is None)


class OwedMarkers:
    """Markers that deleted topics will get when they are brought back (T8), by topic.

    Attributes:
        count: how many markers, one for each transaction and partition.
    """

    def __init__(self) -> None:
        self.count = 0
        self._by_topic: dict[TopicId, dict[tuple[int, Producer], OwedRecord]] = {}

    def replay(self, record: OwedRecord) -> None:
        """Apply a record of the log."""
        before = self.find(record)
        self.count -= 0 if before is None else before.bitmap.bit_count()
        self.count += 0 if record.is_deletion else record.bitmap.bit_count()
        _put(self._by_topic, record.topic_id, (record.chunk, record.producer), record)

    def topics(self) -> list[TopicId]:
        """Return the topics."""
        return list(self._by_topic)

    def of_topic(self, topic_id: TopicId) -> list[OwedRecord]:
        """Return what a topic gets."""
        return list(self._by_topic.get(topic_id, {}).values())

    def of_id(self, transactional_id: str, chunks: Mapping[Chunk, int]) -> TopicPartition | None:
        """Return one of some partitions that gets a marker of an id; None: none does."""
        for (topic_id, chunk), bitmap in chunks.items():
            for record in self.of_topic(topic_id):
                if record.transactional_id == transactional_id and record.chunk == chunk:
                    for place in partitions_of((topic_id, chunk), record.bitmap & bitmap):
                        return place
        return None

    def epochs_of(self, producer_id: ProducerId) -> list[ProducerEpoch]:
        """Return the epochs of a producer's transactions whose end is still owed, ascending."""
        return sorted(
            {
                _writer_of(record).epoch
                for records in self._by_topic.values()
                for record in records.values()
                if record.producer.producer_id == producer_id
            }
        )

    def find_writer(self, place: TopicPartition, writer: Producer) -> str | None:
        """Return the id whose transaction's end is owed to a partition; None: none is."""
        ((chunk, bit),) = bitmaps([place]).items()
        for record in self.of_topic(place.topic_id):
            is_there = (record.topic_id, record.chunk) == chunk and record.bitmap & bit
            if is_there and _writer_of(record) == writer:
                return record.transactional_id
        return None

    def find(self, record: OwedRecord) -> OwedRecord | None:
        """Return what is still owed of a record; None: nothing."""
        return self._by_topic.get(record.topic_id, {}).get((record.chunk, record.producer))


def _writer_of(record: OwedRecord) -> Producer:
    """Return the producer of the records that a marker ends."""
    bumped = record.producer
    return bumped._replace(epoch=ProducerEpoch(bumped.epoch - (record.protocol == BUMPING)))


def bitmaps(partitions: Iterable[TopicPartition]) -> dict[Chunk, int]:
    """Return partitions as bits by chunk."""
    chunks: dict[Chunk, int] = {}
    for topic_id, partition in partitions:
        number, bit = divmod(partition, CHUNK_PARTITIONS)
        chunks[topic_id, number] = chunks.get((topic_id, number), 0) | 1 << bit
    return chunks


def partitions_of(chunk: Chunk, bitmap: int) -> Iterator[TopicPartition]:
    """Yield the partitions of a chunk, ascending."""
    topic_id, number = chunk
    while bitmap:
        lowest = bitmap & -bitmap
        yield TopicPartition(topic_id, CHUNK_PARTITIONS * number + lowest.bit_length() - 1)
        bitmap ^= lowest


def _put(
    kept: dict[_OwnerT, dict[_KeyT, _RecordT]], owner: _OwnerT, key: _KeyT, record: _RecordT
) -> int:
    """Store or delete a record; return by how many there are more."""
    records = kept.setdefault(owner, {})
    before = len(records)
    if record.is_deletion:
        records.pop(key, None)
    else:
        records[key] = record
    after = len(records)
    if not records:
        del kept[owner]
    return after - before
