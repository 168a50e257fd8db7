"""The records of `__transactions`: each has a key, and the last one of a key counts.

Every key begins with a byte for its kind. All numbers are little-endian. A value of null deletes
its key. The record's timestamp says when it was made.

**Kind 1: a transactional id**, with the rest of the key its full name, UTF-8. The value:

| offset | size | field             | meaning                                                      |
|-------:|-----:|-------------------|--------------------------------------------------------------|
|      0 |    1 | version           | 1                                                            |
|      1 |    1 | state             | 1 to 6, as `transaction.State`                               |
|      2 |    1 | protocol          | 2: each end has a new epoch (KIP-890); 1: Kafka before it    |
|      3 |    1 | flags             | 1: `is_fenced`, 2: the ended transaction was committed       |
|      4 |    8 | producer_id       | int64                                                        |
|     12 |    2 | producer_epoch    | int16                                                        |
|     14 |    4 | timeout_ms        | uint32                                                       |
|     18 |    8 | began_at          | int64                                                        |
|     26 |    8 | previous id       | int64; -1: none                                              |
|     34 |    2 | previous epoch    | int16                                                        |
|     36 |    8 | ended id          | of the ended transaction's records, int64; -1: none is ended |
|     44 |    2 | ended epoch       | int16                                                        |
|     46 |    2 | marker epoch      | int16                                                        |
|     48 |    1 | ending            | who ended it, as `transaction.Ending`                        |

An id whose transactions have participants (`transaction.Shared`) has version 2, and more after
this. A text is a length (uint16) and UTF-8. A version is its number (int64; -1: there is none) and
two texts, the query id and the checkpoint.

| field      | meaning                                                     |
|------------|-------------------------------------------------------------|
| generation | int64                                                       |
| number     | int64                                                       |
| run_id     | text                                                        |
| wanted     | version                                                     |
| done       | version                                                     |
| replaced   | count (uint16), texts                                       |
| listed     | count (uint32), producer ids (int64)                        |

**Kind 2: partitions of one topic in a transaction.** The key is the kind, a chunk (uint32: the
partitions from 1024 times it on), the topic id (16 bytes) and the transactional id. The value is
the version, the producer id and the epoch of the transaction, and a bitmap of the chunk's
partitions, the lowest bit first, without the zeros at its end: at most 128 bytes. So a partition
alone takes a byte, and 10,000 of them, added one by one, never write more than that each.

**Kind 3: a group in a transaction.** The key is the kind, the length of the transactional id
(uint16), the id, and the group. The value is the version, the producer id and the epoch.

**Kind 4: markers owed to a topic that is deleted and may be brought back.** The key is the kind, a
chunk, the topic id, the producer id and the epoch of the marker. The value is the version, the
protocol, 1 for a commit or 0 for an abort, the length of the bitmap (uint8), the bitmap, and the
transactional id.

**Kind 5: a participant of a transaction.** The key is the kind, its producer id (int64) and the
transactional id. The value is the version, its epoch (int16) and the number of the transaction that
it joined last (int64). Its partitions and groups are of kinds 2 and 3, with `participant_name` as
their transactional id.
"""

import struct
from typing import Final, NamedTuple, TypeAlias

from millrace.core.coordinator.transactions.transaction import (
    NOBODY,
    Ended,
    Ending,
    Origin,
    Producer,
    Shared,
    State,
    Transaction,
    Version,
)
from millrace.core.errors import UnsupportedFormatError
from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, WallMs
from millrace.core.records.markers import BUMPING, NOT_BUMPING

VERSION: Final = 1
SHARED_VERSION: Final = 2
"""Of the value of an id whose transactions have participants."""
CHUNK_PARTITIONS: Final = 1024
"""Partitions of a topic that share a record."""
ID, PARTITIONS, GROUP, OWED, PARTICIPANT = 1, 2, 3, 4, 5
_FENCED: Final = 1
_COMMITTED: Final = 2
_ID_VALUE: Final = struct.Struct("<BBBBqhIqqhqhhB")
_TOPIC_KEY: Final = struct.Struct("<BI16s")
_GROUP_KEY: Final = struct.Struct("<BH")
_PRODUCER: Final = struct.Struct("<qh")
_MEMBER_VALUE: Final = struct.Struct("<Bqh")
_OWED_VALUE: Final = struct.Struct("<BBBB")
_PARTICIPANT_KEY: Final = struct.Struct("<Bq")
_PARTICIPANT_VALUE: Final = struct.Struct("<Bhq")
_SHARED: Final = struct.Struct("<qq")
_INT64: Final = struct.Struct("<q")
_LENGTH: Final = struct.Struct("<H")
_COUNT: Final = struct.Struct("<I")
_NO_VERSION: Final = -1
_UNPRINTABLE: Final = "\x1f"
_VERSIONS: Final = (bytes([VERSION]),), (bytes([VERSION]), bytes([SHARED_VERSION]))
"""Of values: of all other kinds, and of ids."""


_NOTHING: Final = Version(_NO_VERSION, Origin("", ""))


class IdRecord(NamedTuple):
    """Kind 1; without a transaction the id is forgotten."""

    transactional_id: str
    transaction: Transaction | None
    timestamp: WallMs

    @property
    def key(self) -> tuple[int, str]:
        """What it is about."""
        return ID, self.transactional_id

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.transaction is None


class PartitionsRecord(NamedTuple):
    """Kind 2.

    Attributes:
        writer: the producer of the transaction; None: they are forgotten.
        bitmap: bit n: partition `CHUNK_PARTITIONS * chunk + n`.
    """

    transactional_id: str
    topic_id: TopicId
    chunk: int
    writer: Producer | None
    bitmap: int
    timestamp: WallMs

    @property
    def key(self) -> tuple[int, str, TopicId, int]:
        """What it is about."""
        return PARTITIONS, self.transactional_id, self.topic_id, self.chunk

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.writer is None


class GroupRecord(NamedTuple):
    """Kind 3, likewise."""

    transactional_id: str
    group: str
    writer: Producer | None
    timestamp: WallMs

    @property
    def key(self) -> tuple[int, str, str]:
        """What it is about."""
        return GROUP, self.transactional_id, self.group

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.writer is None


class OwedRecord(NamedTuple):
    """Kind 4; with an empty bitmap they are forgotten.

    Attributes:
        producer: with the epoch of the marker.
    """

    topic_id: TopicId
    chunk: int
    producer: Producer
    bitmap: int
    is_commit: bool
    protocol: int
    transactional_id: str
    timestamp: WallMs

    @property
    def key(self) -> tuple[int, TopicId, int, Producer]:
        """What it is about."""
        return OWED, self.topic_id, self.chunk, self.producer

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return not self.bitmap


class ParticipantRecord(NamedTuple):
    """Kind 5.

    Attributes:
        epoch: with which the participant writes; None: it is forgotten.
        number: of the transaction that it joined.
    """

    transactional_id: str
    producer_id: ProducerId
    epoch: ProducerEpoch | None
    number: int
    timestamp: WallMs

    @property
    def name(self) -> str:
        """Of the records of its partitions and groups."""
        return participant_name(self.transactional_id, self.producer_id)

    @property
    def key(self) -> tuple[int, str, ProducerId]:
        """What it is about."""
        return PARTICIPANT, self.transactional_id, self.producer_id

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.epoch is None


TransactionRecord: TypeAlias = (
    IdRecord | PartitionsRecord | GroupRecord | OwedRecord | ParticipantRecord
)


def participant_name(transactional_id: str, producer_id: ProducerId) -> str:
    """Return the name of a participant's records; no transactional id is like it."""
    return f"{transactional_id}{_UNPRINTABLE}{producer_id}"


def participant_of(name: str) -> tuple[str, ProducerId | None]:
    """Return the id and the producer of a participant's name; None: it is an id itself."""
    transactional_id, separator, producer_id = name.partition(_UNPRINTABLE)
    return transactional_id, ProducerId(int(producer_id)) if separator else None


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record."""
    match record:
        case IdRecord(transactional_id, transaction, _):
            key = bytes([ID]) + transactional_id.encode()
            return key, None if transaction is None else _id_value(transaction)
        case PartitionsRecord(transactional_id, topic_id, chunk, writer, bitmap, _):
            key = _TOPIC_KEY.pack(PARTITIONS, chunk, topic_id) + transactional_id.encode()
            return key, None if writer is None else _member_value(writer) + _bytes_of(bitmap)
        case GroupRecord(transactional_id, group, writer, _):
            name = transactional_id.encode()
            key = _GROUP_KEY.pack(GROUP, len(name)) + name + group.encode()
            return key, None if writer is None else _member_value(writer)
        case OwedRecord(topic_id, chunk, producer, bitmap, is_commit, protocol, of_id, _):
            key = _TOPIC_KEY.pack(OWED, chunk, topic_id) + _PRODUCER.pack(*producer)
            if not bitmap:
                return key, None
            bits = _bytes_of(bitmap)
            fixed = _OWED_VALUE.pack(VERSION, protocol, is_commit, len(bits))
            return key, fixed + bits + of_id.encode()
        case ParticipantRecord(transactional_id, producer_id, epoch, number, _):
            key = _PARTICIPANT_KEY.pack(PARTICIPANT, producer_id) + transactional_id.encode()
            return key, None if epoch is None else _PARTICIPANT_VALUE.pack(VERSION, epoch, number)


def decode(key: bytes | None, value: bytes | None, timestamp: WallMs) -> TransactionRecord:
    """Return a record.

    Raises:
        UnsupportedFormatError: this release does not know its format.
    """
    try:
        kind = (key or b"\0")[0]
        if value is not None and value[:1] not in _VERSIONS[kind == ID]:
            raise ValueError(f"version {value[:1].hex()}")
        if key is not None and kind == ID:
            transaction = None if value is None else _transaction(value)
            return IdRecord(key[1:].decode(), transaction, timestamp)
        if key is not None and kind == GROUP:
            _, length = _GROUP_KEY.unpack_from(key)
            transactional_id = key[_GROUP_KEY.size : _GROUP_KEY.size + length].decode()
            group = key[_GROUP_KEY.size + length :].decode()
            writer = None if value is None else _writer(value)
            return GroupRecord(transactional_id, group, writer, timestamp)
        if key is not None and kind in (PARTITIONS, OWED):
            return _of_topic(key, value, timestamp)
        if key is not None and kind == PARTICIPANT:
            return _participant(key, value, timestamp)
        raise ValueError(f"kind {kind}")
    except (struct.error, ValueError, IndexError) as error:
        raise UnsupportedFormatError(
            f"a record of __transactions is none that this release knows ({error}): a later "
            "release has written it. Start that one again"
        ) from error


def _id_value(transaction: Transaction) -> bytes:
    ended = transaction.ended
    flags = _FENCED * transaction.is_fenced | _COMMITTED * (ended is not None and ended.is_commit)
    writer, marker_epoch = (NOBODY, -1) if ended is None else (ended.writer, ended.marker_epoch)
    shared = transaction.shared
    fixed = _ID_VALUE.pack(
        VERSION if shared is None else SHARED_VERSION,
        transaction.state,
        transaction.protocol,
        flags,
        *transaction.producer,
        transaction.timeout_ms,
        transaction.began_at,
        *transaction.previous,
        *writer,
        marker_epoch,
        0 if ended is None else ended.ending,
    )
    return fixed if shared is None else fixed + _shared_value(shared)


def _shared_value(shared: Shared) -> bytes:
    parts = [_SHARED.pack(shared.generation, shared.number), _text(shared.run_id)]
    for version in (shared.wanted, shared.done):
        if version is None:
            version = _NOTHING
        parts += _INT64.pack(version.number), *map(_text, version.origin)
    parts += _LENGTH.pack(len(shared.replaced)), *map(_text, shared.replaced)
    parts += _COUNT.pack(len(shared.listed)), struct.pack(f"<{len(shared.listed)}q", *shared.listed)
    return b"".join(parts)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


class _Values:
    """Reads values one after the other."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        values = form.unpack_from(self._data, self.position)
        self.position += form.size
        return values

    def text(self) -> str:
        (length,) = self.take(_LENGTH)
        (encoded,) = struct.unpack_from(f"{length}s", self._data, self.position)
        self.position += length
        return bytes(encoded).decode()

    def version(self) -> Version | None:
        (number,) = self.take(_INT64)
        version = Version(number, Origin(self.text(), self.text()))
        return None if number == _NO_VERSION else version


def _shared(value: bytes) -> Shared:
    values = _Values(value, _ID_VALUE.size)
    generation, number = values.take(_SHARED)
    run_id = values.text()
    wanted, done = values.version(), values.version()
    (count,) = values.take(_LENGTH)
    replaced = tuple(values.text() for _ in range(count))
    (count,) = values.take(_COUNT)
    listed = tuple(map(ProducerId, values.take(struct.Struct(f"<{count}q"))))
    if values.position != len(value):
        raise ValueError(f"{len(value)} bytes")
    return Shared(run_id, generation, number, wanted, done, replaced, listed)


def _participant(key: bytes, value: bytes | None, timestamp: WallMs) -> ParticipantRecord:
    _, producer_id = _PARTICIPANT_KEY.unpack_from(key)
    transactional_id = key[_PARTICIPANT_KEY.size :].decode()
    epoch, number = None, 0
    if value is not None:
        _, said, number = _PARTICIPANT_VALUE.unpack(value)
        epoch = ProducerEpoch(said)
    return ParticipantRecord(transactional_id, ProducerId(producer_id), epoch, number, timestamp)


def _transaction(value: bytes) -> Transaction:
    is_shared = value[0] == SHARED_VERSION
    if len(value) != _ID_VALUE.size and not is_shared:
        raise ValueError(f"{len(value)} bytes")
    (
        _,
        state,
        protocol,
        flags,
        producer_id,
        epoch,
        timeout_ms,
        began_at,
        previous_id,
        previous_epoch,
        ended_id,
        ended_epoch,
        marker_epoch,
        ending,
    ) = _ID_VALUE.unpack_from(value)
    ended = None
    if ending:
        writer = _producer(ended_id, ended_epoch)
        is_commit = bool(flags & _COMMITTED)
        ended = Ended(writer, ProducerEpoch(marker_epoch), is_commit, Ending(ending))
    if protocol not in (BUMPING, NOT_BUMPING) or flags & ~(_FENCED | _COMMITTED):
        raise ValueError(f"protocol {protocol}, flags {flags}")
    if State(state) > State.ONGOING and ended is None:
        raise ValueError(f"state {state} without an end")
    return Transaction(
        _producer(producer_id, epoch),
        timeout_ms,
        State(state),
        protocol,
        WallMs(began_at),
        ended,
        _producer(previous_id, previous_epoch),
        bool(flags & _FENCED),
        _shared(value) if is_shared else None,
    )


def _of_topic(key: bytes, value: bytes | None, timestamp: WallMs) -> PartitionsRecord | OwedRecord:
    kind, chunk, topic = _TOPIC_KEY.unpack_from(key)
    rest, topic_id = key[_TOPIC_KEY.size :], TopicId(topic)
    if kind == PARTITIONS:
        writer = None if value is None else _writer(value)
        bitmap = int.from_bytes((value or b"")[_MEMBER_VALUE.size :], "little")
        return PartitionsRecord(rest.decode(), topic_id, chunk, writer, bitmap, timestamp)
    producer = _producer(*_PRODUCER.unpack(rest))
    if value is None:
        return OwedRecord(topic_id, chunk, producer, 0, False, BUMPING, "", timestamp)
    _, protocol, is_commit, length = _OWED_VALUE.unpack_from(value)
    end = _OWED_VALUE.size + length
    bitmap = int.from_bytes(value[_OWED_VALUE.size : end], "little")
    if protocol not in (BUMPING, NOT_BUMPING) or is_commit > 1 or not bitmap:
        raise ValueError(f"protocol {protocol}, kind {is_commit}, bitmap {bitmap:x}")
    transactional_id = value[end:].decode()
    return OwedRecord(
        topic_id, chunk, producer, bitmap, bool(is_commit), protocol, transactional_id, timestamp
    )


def _member_value(writer: Producer) -> bytes:
    return _MEMBER_VALUE.pack(VERSION, *writer)


def _writer(value: bytes) -> Producer:
    _, producer_id, epoch = _MEMBER_VALUE.unpack_from(value)
    return _producer(producer_id, epoch)


def _producer(producer_id: int, epoch: int) -> Producer:
    return Producer(ProducerId(producer_id), ProducerEpoch(epoch))


def _bytes_of(bitmap: int) -> bytes:
    return bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little")
