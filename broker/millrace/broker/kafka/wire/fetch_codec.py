"""Kafka's Fetch messages, versions 4 to 16, by hand: they are the hot ones of a reader.

A request is read with one `struct` for each partition. An answer is a list of buffers: the records
are not copied, their fields around them are few. Versions differ in fields that were added, and
from 12 on in how lengths are written, with tagged fields at the end of each struct.

Counts are compared with what may be asked for before anything is made of them.

Source: Kafka's `FetchRequest.json` and `FetchResponse.json`.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final

from millrace.core.errors import MalformedRequestError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    TOPIC_ID_BYTES,
    BrokerId,
    EpochEnd,
    Leader,
    LeaderEpoch,
    Offset,
    TopicId,
)
from millrace.core.records.header import Buffer
from millrace.core.records.markers import AbortedTransaction
from millrace.core.replica.fetch.asked import LAST_EPOCH, NO_SESSION, AskedTopic, Wanted
from millrace.core.topics import NAME_LENGTH_MAX

VERSIONS: Final = range(4, 17)
"""That are served."""
SESSIONS_SINCE: Final = 7
TOPIC_IDS_SINCE: Final = 13
_EPOCHS_SINCE: Final = 9
_RACKS_SINCE: Final = 11
_FLEXIBLE_SINCE: Final = 12
_REPLICA_STATE_SINCE: Final = 15
_ENDPOINTS_SINCE: Final = 16

_TAGS_MAX: Final = 16
"""Tagged fields of a struct: each is passed on the loop. In these versions Kafka has one."""
_REPLICA_STATE_TAG: Final = 1
_DIVERGING_TAG: Final = 0
_LEADER_TAG: Final = 1
_ENDPOINTS_TAG: Final = 0

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_SETTINGS: Final = struct.Struct(">iiib")  # Wait, min bytes, max bytes, isolation.
_SESSION: Final = struct.Struct(">ii")
_PARTITION_4: Final = struct.Struct(">iqi")
_PARTITION_5: Final = struct.Struct(">iqqi")
_PARTITION_9: Final = struct.Struct(">iiqqi")
_PARTITION_12: Final = struct.Struct(">iiqiqi")

_HEAD_7: Final = struct.Struct(">ihi")  # Throttle, error, session.
_TOLD_4: Final = struct.Struct(">ihqq")  # Partition, error, high watermark, last stable offset.
_TOLD_5: Final = struct.Struct(">ihqqq")  # And the log start offset.
_ABORTED: Final = struct.Struct(">qq")
_DIVERGING: Final = struct.Struct(">iqB")
_LEADER: Final = struct.Struct(">iiB")


@dataclass(slots=True, kw_only=True)
class FetchRequest:
    """A request, any version.

    Attributes:
        replica_id: of a follower; negative: a consumer asks.
        max_bytes: of records in the answer, except for a larger first batch.
        wanted: partitions; in a session those that are new or at another offset.
        unknown: partitions of topics that cannot be, as their names are too long. Nothing keeps
            these names.
        forgotten: partitions that leave the session.
        rack: of the consumer; empty: it does not say.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int = NO_SESSION
    session_epoch: int = LAST_EPOCH
    wanted: list[Wanted] = field(default_factory=list)
    unknown: list[Wanted] = field(default_factory=list)
    forgotten: list[tuple[AskedTopic, int]] = field(default_factory=list)
    rack: str = ""


@dataclass(slots=True)
class PartitionAnswer:
    """What an answer says of one partition.

    Attributes:
        diverging: where the reader's log and this one part.
        leader: of the partition, for a reader that asked another broker.
        aborted: transactions that were aborted; None: the reader reads uncommitted records, too.
        preferred_replica: where to read from instead; -1: here.
        records: batches in Kafka's form, in pieces.
    """

    topic: AskedTopic
    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging: EpochEnd | None = None
    leader: Leader | None = None
    aborted: Sequence[AbortedTransaction] | None = None
    preferred_replica: int = -1
    records: Sequence[Buffer] = ()


@dataclass(slots=True)
class Endpoint:
    """Where a broker is reached.

    Attributes:
        rack: of the broker; empty: none.
    """

    broker_id: BrokerId
    host: str
    port: int
    rack: str = ""


@dataclass(slots=True)
class FetchAnswer:
    """An answer.

    Attributes:
        endpoints: of the leaders that partitions name.
    """

    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = NO_SESSION
    partitions: Sequence[PartitionAnswer] = ()
    endpoints: Sequence[Endpoint] = ()


# --- Requests --------------------------------------------------------------------------------


def decode(body: memoryview, version: int, entries_max: int) -> FetchRequest:
    """Return a request.

    Args:
        body: without the request's header.
        version: one of `VERSIONS`.
        entries_max: how many topics and how many partitions it may name.

    Raises:
        MalformedRequestError: it is none, or names more.
    """
    reader = _Reader(body, is_flexible=version >= _FLEXIBLE_SINCE, entries_max=entries_max)
    try:
        request = _decode(reader, version)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise MalformedRequestError(
            f"the fetch request of version {version} and {len(body)} bytes is damaged at byte "
            f"{reader.at}"
        ) from None
    if reader.at != len(body):
        raise MalformedRequestError(
            f"the fetch request of version {version} ends at byte {reader.at} of {len(body)}"
        )
    return request


def _decode(reader: "_Reader", version: int) -> FetchRequest:
    replica_id = -1 if version >= _REPLICA_STATE_SINCE else reader.unpack(_I32)[0]
    max_wait_ms, min_bytes, max_bytes, isolation = reader.unpack(_SETTINGS)
    request = FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max(max_wait_ms, 0),
        min_bytes=min_bytes,
        max_bytes=max(max_bytes, 1),
        read_committed=bool(isolation),
    )
    if version >= SESSIONS_SINCE:
        request.session_id, request.session_epoch = reader.unpack(_SESSION)
    topic_of = reader.topic_id if version >= TOPIC_IDS_SINCE else reader.text
    partition_of = _partition_reader(version)
    left = reader.entries_max
    for _ in range(reader.count(left)):
        topic = topic_of()
        named = request.wanted if len(topic) <= NAME_LENGTH_MAX else request.unknown
        count = reader.count(left)
        left -= count
        for _ in range(count):
            named.append(partition_of(reader, topic))
            reader.skip_tags()
        reader.skip_tags()
    if version >= SESSIONS_SINCE:
        left = reader.entries_max
        for _ in range(reader.count(left)):
            topic = topic_of()
            count = reader.count(left)
            left -= count
            request.forgotten += [(topic, reader.unpack(_I32)[0]) for _ in range(count)]
            reader.skip_tags()
    if version >= _RACKS_SINCE:
        request.rack = reader.text()
    state = reader.skip_tags(_REPLICA_STATE_TAG)
    if version >= _REPLICA_STATE_SINCE and state is not None:
        (request.replica_id,) = _I32.unpack_from(state)
    return request


def _partition_reader(version: int) -> "Callable[[_Reader, AskedTopic], Wanted]":
    """Return what reads a partition of a request."""
    if version >= _FLEXIBLE_SINCE:

        def latest(reader: _Reader, topic: AskedTopic) -> Wanted:
            partition, epoch, offset, last_epoch, _, size = reader.unpack(_PARTITION_12)
            known, last = LeaderEpoch(epoch), LeaderEpoch(last_epoch)
            return Wanted(topic, partition, known, Offset(offset), last, max(size, 1))

        return latest
    if version >= _EPOCHS_SINCE:

        def with_epoch(reader: _Reader, topic: AskedTopic) -> Wanted:
            partition, epoch, offset, _, size = reader.unpack(_PARTITION_9)
            known, last = LeaderEpoch(epoch), NO_LEADER_EPOCH
            return Wanted(topic, partition, known, Offset(offset), last, max(size, 1))

        return with_epoch

    layout = _PARTITION_4 if version == VERSIONS[0] else _PARTITION_5

    def earlier(reader: _Reader, topic: AskedTopic) -> Wanted:
        partition, offset, *_, size = reader.unpack(layout)
        known = last = NO_LEADER_EPOCH
        return Wanted(topic, partition, known, Offset(offset), last, max(size, 1))

    return earlier


class _Reader:
    """Reads a message from its beginning on; leaves it by an error of `struct`, or `IndexError`.

    Attributes:
        at: the next byte.
    """

    __slots__ = ("_data", "_is_flexible", "at", "entries_max")

    def __init__(self, data: memoryview, *, is_flexible: bool, entries_max: int) -> None:
        self._data = data
        self._is_flexible = is_flexible
        self.entries_max = entries_max
        self.at = 0

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        found = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return found

    def count(self, at_most: int) -> int:
        """Read the length of an array."""
        count = self._varint() - 1 if self._is_flexible else self.unpack(_I32)[0]
        if count < 0:  # No array is nullable.
            raise IndexError
        if count > at_most:
            raise MalformedRequestError(
                f"the fetch request names more than {self.entries_max} topics or partitions: send "
                "several requests"
            )
        return count

    def text(self) -> str:
        size = self._varint() - 1 if self._is_flexible else self.unpack(_I16)[0]
        if size < 0:  # No text is, either.
            raise IndexError
        return str(self._take(size), "utf-8")

    def topic_id(self) -> TopicId:
        return TopicId(bytes(self._take(TOPIC_ID_BYTES)))

    def skip_tags(self, wanted: int = -1) -> memoryview | None:
        """Pass tagged fields, if the version has them; return the one that is wanted."""
        found = None
        if self._is_flexible:
            count = self._varint()
            if count > _TAGS_MAX:
                raise MalformedRequestError(
                    f"a struct of the fetch request has more than {_TAGS_MAX} tagged fields"
                )
            for _ in range(count):
                tag = self._varint()
                content = self._take(self._varint())
                if tag == wanted:
                    found = content
        return found

    def _take(self, size: int) -> memoryview:
        end = self.at + size
        if end > len(self._data):
            raise IndexError
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise IndexError


# --- Answers ---------------------------------------------------------------------------------


def encode(answer: FetchAnswer, version: int) -> list[Buffer]:
    """Return the buffers of an answer, without its header; records are among them as they are."""
    writer = _Writer(is_flexible=version >= _FLEXIBLE_SINCE)
    if version >= SESSIONS_SINCE:
        writer.out += _HEAD_7.pack(answer.throttle_time_ms, answer.error_code, answer.session_id)
    else:
        writer.out += _I32.pack(answer.throttle_time_ms)
    groups = [
        (topic, list(partitions))
        for topic, partitions in groupby(answer.partitions, attrgetter("topic"))
    ]
    writer.count(len(groups))
    for topic, partitions in groups:
        if isinstance(topic, str):
            writer.text(topic)
        else:
            writer.out += topic
        writer.count(len(partitions))
        for partition in partitions:
            _encode_partition(writer, partition, version)
        writer.tags([])
    writer.tags(
        [(_ENDPOINTS_TAG, _encode_endpoints(answer.endpoints))]
        if answer.endpoints and version >= _ENDPOINTS_SINCE
        else []
    )
    return writer.parts()


def _encode_partition(writer: "_Writer", answer: PartitionAnswer, version: int) -> None:
    told = answer.partition, answer.error_code, answer.high_watermark, answer.last_stable_offset
    if version == VERSIONS[0]:
        writer.out += _TOLD_4.pack(*told)
    else:
        writer.out += _TOLD_5.pack(*told, answer.log_start_offset)
    aborted = answer.aborted
    if aborted is None:
        writer.count(-1)
    else:
        writer.count(len(aborted))
        for transaction in aborted:
            writer.out += _ABORTED.pack(transaction.producer_id, transaction.first_offset)
            writer.tags([])
    if version >= _RACKS_SINCE:
        writer.out += _I32.pack(answer.preferred_replica)
    writer.records(answer.records)
    tags: list[tuple[int, Buffer]] = []
    if answer.diverging is not None:
        tags.append((_DIVERGING_TAG, _DIVERGING.pack(*answer.diverging, 0)))
    if answer.leader is not None:
        tags.append((_LEADER_TAG, _LEADER.pack(*answer.leader, 0)))
    writer.tags(tags)


def _encode_endpoints(endpoints: Sequence[Endpoint]) -> bytearray:
    writer = _Writer(is_flexible=True)
    writer.count(len(endpoints))
    for endpoint in endpoints:
        writer.out += _I32.pack(endpoint.broker_id)
        writer.text(endpoint.host)
        writer.out += _I32.pack(endpoint.port)
        if endpoint.rack:
            writer.text(endpoint.rack)
        else:
            writer.out += b"\x00"  # None.
        writer.tags([])
    return writer.out


class _Writer:
    """Writes a message.

    Attributes:
        out: what follows the last records.
    """

    __slots__ = ("_is_flexible", "_parts", "out")

    def __init__(self, *, is_flexible: bool) -> None:
        self._is_flexible = is_flexible
        self._parts: list[Buffer] = []
        self.out = bytearray()

    def count(self, count: int) -> None:
        """Write the length of an array; -1: there is none."""
        self.out += varint(count + 1) if self._is_flexible else _I32.pack(count)

    def text(self, text: str) -> None:
        encoded = text.encode()
        size = len(encoded)
        self.out += varint(size + 1) if self._is_flexible else _I16.pack(size)
        self.out += encoded

    def records(self, pieces: Sequence[Buffer]) -> None:
        self.count(sum(map(len, pieces)))
        if pieces:
            self._parts.append(self.out)
            self._parts += pieces
            self.out = bytearray()

    def tags(self, fields: Sequence[tuple[int, Buffer]]) -> None:
        """Write tagged fields, if the version has them; ascending by tag."""
        if self._is_flexible:
            self.out += varint(len(fields))
            for tag, content in fields:
                self.out += varint(tag) + varint(len(content))
                self.out += content

    def parts(self) -> list[Buffer]:
        return [*self._parts, self.out]


def varint(value: int) -> bytes:
    """Return an unsigned number as Kafka's messages have it: 7 bits a byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
