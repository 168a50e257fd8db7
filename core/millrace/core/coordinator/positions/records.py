"""The records of `__positions`: each stores or deletes one position, by its key.

The key, little-endian:

| offset | size | field     | meaning                                             |
|-------:|-----:|-----------|-----------------------------------------------------|
|      0 |    1 | kind      | 1: an initial position, 2: a committed one          |
|      1 |   16 | topic id  | of the topic: a recreated topic has another id      |
|     17 |    4 | partition | its number                                          |
|     21 |      | name      | under which it is kept, UTF-8, 1 to 255 bytes       |

The value; null: the position is forgotten:

| offset | size | field        | meaning                                          |
|-------:|-----:|--------------|--------------------------------------------------|
|      0 |    1 | version      | 1, or 2 with the number of a member's commit     |
|      1 |    8 | offset       | of the record that is to be read next            |
|      9 |    4 | leader epoch | of the last record before it; -1: unknown        |
|     13 |      | metadata     | a text of the reader's own, UTF-8                |

Version 2 has these fields before the metadata:

| offset | size | field        | meaning                                          |
|-------:|-----:|--------------|--------------------------------------------------|
|     13 |    8 | number       | of the commit, as its member counts them         |
|     21 |    2 | length       | of the member id                                 |
|     23 |      | member id    | of the member that committed, UTF-8              |

**A pending position** (P56) waits for the end of a transaction. Its key:

| offset | size | field       | meaning                                           |
|-------:|-----:|-------------|---------------------------------------------------|
|      0 |    1 | kind        | 7                                                 |
|      1 |   16 | topic id    | as above                                          |
|     17 |    4 | partition   | likewise                                          |
|     21 |    8 | producer id | of the transaction                                |
|     29 |      | name        | under which it is to be kept, UTF-8               |

The value; null: it is resolved, or dropped:

| offset | size | field        | meaning                                          |
|-------:|-----:|--------------|--------------------------------------------------|
|      0 |    1 | version      | 1                                                |
|      1 |    2 | epoch        | of the producer in this transaction              |
|      3 |    4 | coordinator  | the epoch of the coordinator that let it join    |
|      7 |    8 | order        | among the pending ones of the name and partition |
|     15 |    8 | offset       | as above                                         |
|     23 |    4 | leader epoch | likewise                                         |
|     27 |    8 | number       | of the member's commit; 0: no member's           |
|     35 |    2 | length       | of the member id                                 |
|     37 |      | member id    | UTF-8                                            |
|        |      | metadata     | the rest, UTF-8                                  |

The record's timestamp says when the position was stored. A partition's state is the result of its
records in order, from the log's start.
"""

import struct
from typing import Final, NamedTuple

from millrace.core.coordinator.positions.position import CommitNumber, Kind, Position, PositionKey
from millrace.core.errors import UnsupportedFormatError
from millrace.core.ids import (
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)

VERSION: Final = 1
NUMBERED_VERSION: Final = 2
PENDING: Final = 7
"""The kind of a pending position's key; those of groups are 3 to 6."""
_KEY: Final = struct.Struct("<B16sI")
_PENDING_KEY: Final = struct.Struct("<B16sIq")
_PENDING_VALUE: Final = struct.Struct("<BhiQqiQH")
_VALUE: Final = struct.Struct("<Bqi")
_NUMBER: Final = struct.Struct("<QH")


class PositionRecord(NamedTuple):
    """One record.

    Attributes:
        position: None: the position under the key is deleted.
        timestamp: when it was stored.
        commit: the commit of a group's member that stored it; None: no member did, or it does not
            number its commits.
    """

    key: PositionKey
    position: Position | None
    timestamp: WallMs
    commit: CommitNumber | None = None

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.position is None


class PendingKey(NamedTuple):
    """The key of a pending position."""

    name: str
    topic_partition: TopicPartition
    producer_id: ProducerId


class Pending(NamedTuple):
    """A position that waits for the end of a transaction.

    Attributes:
        epoch: of the producer in this transaction.
        coordinator_epoch: of the coordinator that let it join: the end of an earlier one is not of
            this transaction (P46).
        order: among the pending ones of the name and partition; a later one is higher.
        position: what is committed with it.
        commit: as in `PositionRecord`.
    """

    epoch: ProducerEpoch
    coordinator_epoch: LeaderEpoch
    order: int
    position: Position
    commit: CommitNumber | None = None


class PendingRecord(NamedTuple):
    """One record of a pending position.

    Attributes:
        pending: None: it is resolved, or dropped.
        timestamp: when it was stored.
    """

    key: PendingKey
    pending: Pending | None
    timestamp: WallMs

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.pending is None


def encode_pending(record: PendingRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record."""
    name, (topic_id, partition), producer_id = record.key
    key = _PENDING_KEY.pack(PENDING, topic_id, partition, producer_id) + name.encode()
    if record.pending is None:
        return key, None
    epoch, coordinator_epoch, order, position, commit = record.pending
    member_id = b"" if commit is None else commit.member_id.encode()
    number = 0 if commit is None else commit.number
    value = _PENDING_VALUE.pack(
        VERSION,
        epoch,
        coordinator_epoch,
        order,
        position.offset,
        position.leader_epoch,
        number,
        len(member_id),
    )
    return key, value + member_id + position.metadata.encode()


def decode_pending(key: bytes, value: bytes | None, timestamp: WallMs) -> PendingRecord:
    """Return a record.

    Raises:
        UnsupportedFormatError: this release does not know its format.
    """
    try:
        _, topic_id, partition, producer_id = _PENDING_KEY.unpack_from(key)
        where = TopicPartition(TopicId(topic_id), partition)
        name = key[_PENDING_KEY.size :].decode()
        record_key = PendingKey(name, where, ProducerId(producer_id))
        if value is None:
            return PendingRecord(record_key, None, timestamp)
        version, epoch, coordinator_epoch, order, offset, leader_epoch, number, length = (
            _PENDING_VALUE.unpack_from(value)
        )
        if version != VERSION:
            raise ValueError(f"version {version}")
        end = _PENDING_VALUE.size + length
        if len(value) < end:
            raise ValueError("a member id that is cut short")
        member_id = value[_PENDING_VALUE.size : end].decode()
        commit = CommitNumber(member_id, number) if member_id else None
        position = Position(offset, leader_epoch, value[end:].decode())
    except (struct.error, ValueError) as error:
        raise _unknown(error) from error
    pending = Pending(ProducerEpoch(epoch), LeaderEpoch(coordinator_epoch), order, position, commit)
    return PendingRecord(record_key, pending, timestamp)


def encode(record: PositionRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record."""
    kind, name, (topic_id, partition) = record.key
    commit = record.commit
    key = _KEY.pack(kind, topic_id, partition) + name.encode()
    position = record.position
    if position is None:
        return key, None
    version = VERSION if commit is None else NUMBERED_VERSION
    value = _VALUE.pack(version, position.offset, position.leader_epoch)
    if commit is not None:
        member_id = commit.member_id.encode()
        value += _NUMBER.pack(commit.number, len(member_id)) + member_id
    return key, value + position.metadata.encode()


def decode(key: bytes | None, value: bytes | None, timestamp: WallMs) -> PositionRecord:
    """Return a record.

    Raises:
        UnsupportedFormatError: this release does not know its format.
    """
    try:
        kind, topic_id, partition = _KEY.unpack_from(key or b"")
        name = (key or b"")[_KEY.size :].decode()
        where = TopicPartition(TopicId(topic_id), partition)
        record_key = PositionKey(Kind(kind), name, where)
        if value is None:
            return PositionRecord(record_key, None, timestamp)
        version, offset, leader_epoch = _VALUE.unpack_from(value)
        commit, rest = None, value[_VALUE.size :]
        if version == NUMBERED_VERSION:
            commit, rest = _commit(rest)
        elif version != VERSION:
            raise ValueError(f"version {version}")
        position = Position(offset, leader_epoch, rest.decode())
    except (struct.error, ValueError) as error:
        raise _unknown(error) from error
    return PositionRecord(record_key, position, timestamp, commit)


def _unknown(error: Exception) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"a record of __positions is none that this release knows ({error}): a later release has "
        "written it. Start that one again"
    )


def _commit(value: bytes) -> tuple[CommitNumber, bytes]:
    """Return the number of a commit, and what follows it."""
    number, length = _NUMBER.unpack_from(value)
    end = _NUMBER.size + length
    if len(value) < end:
        raise ValueError("a member id that is cut short")
    return CommitNumber(value[_NUMBER.size : end].decode(), number), value[end:]
