"""Produce's request and response, by hand: the records are not copied, and stay where they came.

Every length is compared with the bytes that are there before anything is made of it.

Source: Kafka's ProduceRequest.json and ProduceResponse.json, versions 3 to 13; KIP-951 for the
leader in an answer, KIP-516 for ids instead of names from version 13 on.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from millrace.core.errors import MalformedRequestError

FIRST_FLEXIBLE: Final = 9
FIRST_WITH_START: Final = 5
FIRST_WITH_MESSAGES: Final = 8
FIRST_WITH_LEADERS: Final = 10
FIRST_WITH_IDS: Final = 13
_ID_BYTES: Final = 16
_TAGS_MAX: Final = 16
_MESSAGE_MAX: Final = 1000
"""Most bytes of an error's text in an answer."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_TERMS: Final = struct.Struct(">hi")
_RESULT: Final = struct.Struct(">ihqq")
_INT64: Final = struct.Struct(">q")
_LEADER: Final = struct.Struct(">iib")


class ProducePartition(NamedTuple):
    """The records for one partition.

    Attributes:
        topic: its name, or from version 13 on its id.
        partition: its number.
        records: as they came; None: the client sent none.
    """

    topic: str | bytes
    partition: int
    records: memoryview | None


class ProduceBody(NamedTuple):
    """A request.

    Attributes:
        transactional_id: None: there is none.
        acks: -1, 0 or 1, if the client keeps to the rules.
        timeout_ms: how long it waits.
        partitions: in their order.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]


class ProduceResult(NamedTuple):
    """What became of the records for one partition.

    Attributes:
        topic, partition: as in the request.
        code: Kafka's number of the error; 0: none.
        base_offset: of the first record; -1: an error.
        append_timestamp: that all records have; -1: they have their own.
        log_start_offset: of the partition; -1: unknown.
        message: of the error.
        records: the numbers of the records that it is about, where it is not the whole batch.
        leader: id and epoch of the leader, where another one leads; None: not told.
    """

    topic: str | bytes
    partition: int
    code: int
    base_offset: int = -1
    append_timestamp: int = -1
    log_start_offset: int = -1
    message: str = ""
    records: Sequence[int] = ()
    leader: tuple[int, int] | None = None


Endpoint = tuple[int, str, int, str]
"""Id, host, port and zone of a broker; the zone may be empty."""


class _Reader:
    """Reads fields one after the other.

    Args:
        data: the body.
        version: of the request.
        entries_max: partitions, or topics.
    """

    def __init__(self, data: memoryview, version: int, entries_max: int) -> None:
        self._data = data
        self._at = 0
        self._entries = entries_max
        self.is_flexible = version >= FIRST_FLEXIBLE

    def _take(self, size: int) -> memoryview:
        at = self._at
        end = at + size
        if end > len(self._data):
            raise IndexError
        self._at = end
        return self._data[at:end]

    def number(self) -> int:
        """Read a number of 32 bits."""
        (value,) = _INT32.unpack_from(self._data, self._at)
        self._at += 4
        return int(value)

    def terms(self) -> tuple[int, int]:
        """Read acks and time-out."""
        acks, timeout_ms = _TERMS.unpack_from(self._data, self._at)
        self._at += _TERMS.size
        return acks, timeout_ms

    def _varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFF_FFFF:
                    break
                return value
            shift += 7
        raise MalformedRequestError("a number in the request has more than 32 bits")

    def text(self) -> str | None:
        """Read a text, which may be missing."""
        if self.is_flexible:
            length = self._varint() - 1
        else:
            (length,) = _INT16.unpack_from(self._data, self._at)
            self._at += 2
        if length < 0:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequestError("a name in the request is not UTF-8") from None

    def topic_id(self) -> bytes:
        """Read a topic's id."""
        return bytes(self._take(_ID_BYTES))

    def records(self) -> memoryview | None:
        """Read records, which may be missing."""
        length = self._varint() - 1 if self.is_flexible else self.number()
        return None if length < 0 else self._take(length)

    def count(self) -> int:
        """Read how many entries a list has."""
        count = self._varint() - 1 if self.is_flexible else self.number()
        if count < 0:
            raise MalformedRequestError("a list of the request is missing")
        self._entries -= count
        if self._entries < 0:
            raise MalformedRequestError(
                "the request names more topics and partitions than limits.request_entries_max "
                "allows: send several requests"
            )
        return count

    def tags(self) -> None:
        """Read over tagged fields."""
        if not self.is_flexible:
            return
        count = self._varint()
        if count > _TAGS_MAX:
            raise MalformedRequestError(f"a struct has {_TAGS_MAX} tagged fields at most")
        for _ in range(count):
            self._varint()
            self._take(self._varint())


def decode_produce(body: memoryview, version: int, entries_max: int) -> ProduceBody:
    """Read a request; the records are parts of `body`.

    Args:
        body: after the header.
        version: of its format.
        entries_max: topics and partitions together.

    Raises:
        MalformedRequestError: it is none.
    """
    reader = _Reader(body, version, entries_max)
    partitions = []
    try:
        transactional_id = reader.text()
        acks, timeout_ms = reader.terms()
        for _ in range(reader.count()):
            topic = reader.topic_id() if version >= FIRST_WITH_IDS else reader.text()
            if topic is None:
                raise MalformedRequestError("a topic of the request has no name")
            for _ in range(reader.count()):
                partition = reader.number()
                records = reader.records()
                reader.tags()
                partitions.append(ProducePartition(topic, partition, records))
            reader.tags()
        reader.tags()
    except (IndexError, struct.error):
        raise MalformedRequestError("the request is cut short") from None
    return ProduceBody(transactional_id, acks, timeout_ms, partitions)


def encode_produce(
    results: Sequence[ProduceResult],
    version: int,
    throttle_ms: int,
    endpoints: Sequence[Endpoint] = (),
) -> bytes:
    """Return the body of an answer.

    Args:
        results: those of one topic one after the other.
        version: of the request.
        throttle_ms: how long the client should wait before its next request.
        endpoints: of the leaders that results name.
    """
    is_flexible = version >= FIRST_FLEXIBLE
    parts: list[bytes] = []
    topics = _by_topic(results)
    parts.append(_count(len(topics), is_flexible=is_flexible))
    for topic, found in topics:
        parts.append(topic if isinstance(topic, bytes) else _text(topic, is_flexible=is_flexible))
        parts.append(_count(len(found), is_flexible=is_flexible))
        for result in found:
            _, partition, code, base_offset, append_timestamp, *_ = result
            parts.append(_RESULT.pack(partition, code, base_offset, append_timestamp))
            if version >= FIRST_WITH_START:
                parts.append(_INT64.pack(result.log_start_offset))
            if version >= FIRST_WITH_MESSAGES:
                parts.append(_record_errors(result.records, is_flexible=is_flexible))
                message = result.message if result.code else None
                parts.append(_text(message, is_flexible=is_flexible))
            if is_flexible:
                parts.append(_leader(result) if version >= FIRST_WITH_LEADERS else b"\0")
        if is_flexible:
            parts.append(b"\0")
    parts.append(_INT32.pack(throttle_ms))
    if is_flexible:
        has_endpoints = endpoints and version >= FIRST_WITH_LEADERS
        parts.append(_endpoints(endpoints) if has_endpoints else b"\0")
    return b"".join(parts)


def _record_errors(numbers: Sequence[int], *, is_flexible: bool) -> bytes:
    """Return the list of the records that an error is about; each could have words of its own."""
    no_words = _text(None, is_flexible=is_flexible) + (b"\0" if is_flexible else b"")
    entries = (_INT32.pack(number) + no_words for number in numbers)
    return _count(len(numbers), is_flexible=is_flexible) + b"".join(entries)


def _by_topic(
    results: Sequence[ProduceResult],
) -> list[tuple[str | bytes, list[ProduceResult]]]:
    topics: list[tuple[str | bytes, list[ProduceResult]]] = []
    for result in results:
        if not topics or topics[-1][0] != result.topic:
            topics.append((result.topic, []))
        topics[-1][1].append(result)
    return topics


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _count(count: int, *, is_flexible: bool) -> bytes:
    return _varint(count + 1) if is_flexible else _INT32.pack(count)


def _text(text: str | None, *, is_flexible: bool) -> bytes:
    if text is None:
        return b"\0" if is_flexible else _INT16.pack(-1)
    data = text.encode()
    if len(data) > _MESSAGE_MAX:
        data = data[:_MESSAGE_MAX].decode(errors="ignore").encode()
    length = _varint(len(data) + 1) if is_flexible else _INT16.pack(len(data))
    return length + data


def _tagged(tag: int, data: bytes) -> bytes:
    """Return tagged fields of which there is one."""
    return b"\x01" + _varint(tag) + _varint(len(data)) + data


def _leader(result: ProduceResult) -> bytes:
    if result.leader is None:
        return b"\0"
    return _tagged(0, _LEADER.pack(*result.leader, 0))


def _endpoints(endpoints: Sequence[Endpoint]) -> bytes:
    parts = [_varint(len(endpoints) + 1)]
    for broker_id, host, port, rack in endpoints:
        parts.append(_INT32.pack(broker_id) + _text(host, is_flexible=True))
        parts.append(_INT32.pack(port) + _text(rack or None, is_flexible=True) + b"\0")
    return _tagged(0, b"".join(parts))
