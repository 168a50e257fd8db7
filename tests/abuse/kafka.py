"""Attacks by frames of Kafka's protocol, of strangers and of somebody who is known."""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable
from typing import Final

from tests.abuse.attack import Attack, Peer, Port, Target
from tests.fakes.kafka_batches import Record, batch_of
from tests.fakes.kafka_ends import request_frame
from tests.integration.kafka.by_hand import produce_request

_API_VERSIONS: Final = 18
_METADATA: Final = 3
_PRODUCE: Final = 0
_FETCH: Final = 1
_LIST_OFFSETS: Final = 2
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_TOPIC: Final = "topic"
_HALF_BYTES: Final = 30_000
_MIB: Final = 1 << 20


def _request(key: int, version: int = 0, body: bytes = b"") -> bytes:
    header = struct.pack(">hhih", key, version, 1, -1)
    return struct.pack(">i", len(header) + len(body)) + header + body


_ASK: Final = _request(_API_VERSIONS)


async def _half_frames(peer: Peer, target: Target) -> None:
    await peer.send(_ASK + struct.pack(">i", 2 * _HALF_BYTES) + bytes(_HALF_BYTES))
    await peer.hold_on()


async def _slow_bytes(peer: Peer, target: Target) -> None:
    await peer.send(_ASK + struct.pack(">i", 1000))
    await peer.drip(bytes(100))


async def _huge_frame(peer: Peer, target: Target) -> None:
    await peer.send(struct.pack(">i", 2**31 - 1) + bytes(100_000))
    await peer.hold_on()


async def _garbage(peer: Peer, target: Target) -> None:
    await peer.send(random.randbytes(1000))
    await peer.hold_on()


async def _idle(peer: Peer, target: Target) -> None:
    await peer.hold_on()


async def _leave(peer: Peer, target: Target) -> None:
    await peer.send(_ASK)


async def _unread_answers(peer: Peer, target: Target) -> None:
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    while True:
        await peer.send(_ASK * 1000)


async def _pipeline(peer: Peer, target: Target) -> None:
    while True:
        await peer.send(_ASK * 1000)
        await peer.reader.read(1 << 20)


async def _strangers(peer: Peer, target: Target) -> None:
    await peer.send(_ASK + _request(_METADATA, 1, struct.pack(">i", -1)))
    await peer.hold_on()


async def _many_entries(peer: Peer, target: Target) -> None:
    """Lists of names of no characters, as many as fit: each would be an object."""
    await peer.send(_request(_METADATA, 1, struct.pack(">i", 15_000) + bytes(30_000)))
    await peer.hold_on()


async def _log_in(peer: Peer, target: Target) -> None:
    """Become `mallory`, by SASL's PLAIN: the token is the password."""
    said = f"\0mallory\0{target.token}".encode()
    await peer.send(_request(_SASL_HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN"))
    await peer.send(_request(_SASL_AUTHENTICATE, 0, struct.pack(">i", len(said)) + said))
    for _ in range(2):
        (length,) = struct.unpack(">i", await peer.reader.readexactly(4))
        await peer.reader.readexactly(length)


_ALL_TOPICS: Final = _request(_METADATA, 1, struct.pack(">i", -1))


async def _metadata(peer: Peer, target: Target) -> None:
    await _log_in(peer, target)
    while True:
        await peer.send(_ALL_TOPICS * 100)
        await peer.reader.read(_MIB)


async def _unread_metadata(peer: Peer, target: Target) -> None:
    await _log_in(peer, target)
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    while True:
        await peer.send(_ALL_TOPICS * 100)


async def _half_batches(peer: Peer, target: Target) -> None:
    await _log_in(peer, target)
    await peer.send(struct.pack(">i", 8 * _MIB) + bytes(7 * _MIB))
    await peer.hold_on()


def _without_end(request: bytes, at_once: int) -> Callable[[Peer, Target], Awaitable[None]]:
    """Return a step that sends a request without end, so often at a time, and awaits no answer."""

    async def send(peer: Peer, target: Target) -> None:
        await _log_in(peer, target)
        reading = asyncio.create_task(peer.hold_on())
        try:
            while True:
                await peer.send(request * at_once)
        finally:
            reading.cancel()

    return send


def _batch(record: Record, codec: str = "none") -> bytes:
    return request_frame(_PRODUCE, 7, produce_request(_TOPIC, batch_of([record], codec)))


def _fetch() -> bytes:
    topic = _TOPIC.encode()
    body = struct.pack(">iiiibi", -1, 0, 0, _MIB, 0, 1) + struct.pack(">h", len(topic)) + topic
    return _request(_FETCH, 4, body + struct.pack(">iiqi", 1, 0, 0, _MIB))


def _offsets() -> bytes:
    """Ask for the ends of partitions that are not there, five thousand a time."""
    topic, entries = _TOPIC.encode(), 5_000
    body = struct.pack(">iih", -1, 1, len(topic)) + topic + struct.pack(">i", entries)
    asked = (struct.pack(">iq", number, -1) for number in range(1, 1 + entries))
    return _request(_LIST_OFFSETS, 1, body + b"".join(asked))


async def _empty_batches(peer: Peer, target: Target) -> None:
    """Produce for partitions that are not there, ten thousand a time."""
    await _log_in(peer, target)
    entries = 9_000
    body = struct.pack(">hhii", -1, 1, 1000, 1) + struct.pack(">h", 1) + b"x"
    body += struct.pack(">i", entries) + struct.pack(">ii", 0, 0) * entries
    while True:
        await peer.send(_request(_PRODUCE, 3, body))
        await peer.reader.read(_MIB)


K: Final = Port.PLAIN_KAFKA
ATTACKS: Final = (
    Attack("kafka_half_frames", "half a frame of 60 KB each", K, 100, _half_frames),
    Attack("kafka_slow_bytes", "a byte of a frame in half a second", K, 100, _slow_bytes),
    Attack("kafka_huge_frame", "a frame of 2 GB", K, 20, _huge_frame),
    Attack("kafka_garbage", "random bytes", K, 20, _garbage),
    Attack("kafka_idle", "connections without a request", K, 400, _idle),
    Attack("kafka_storm", "a request, and away", K, 50, _leave, 0.0),
    Attack(
        "kafka_unread_answers", "requests without end, of who reads nothing", K, 20, _unread_answers
    ),
    Attack("kafka_pipeline", "requests without end, a thousand at a time", K, 20, _pipeline),
    Attack("kafka_strangers", "requests of nobody who is known", K, 20, _strangers),
    Attack("kafka_many_entries", "lists of 15,000 empty names", K, 20, _many_entries),
    Attack("kafka_metadata", "all topics, without end", Port.KAFKA, 20, _metadata),
    Attack("kafka_unread_metadata", "likewise, nothing is read", Port.KAFKA, 20, _unread_metadata),
    Attack(
        "kafka_small_batches",
        "small batches without end, a hundred at a time",
        Port.KAFKA,
        20,
        _without_end(_batch(Record()), 100),
    ),
    Attack(
        "kafka_zipped_batches",
        "batches that inflate to 7 MiB, without end",
        Port.KAFKA,
        20,
        _without_end(_batch(Record(bytes(7 * _MIB)), "gzip"), 10),
    ),
    Attack(
        "kafka_fetches",
        "fetches without end, a hundred at a time",
        Port.KAFKA,
        20,
        _without_end(_fetch(), 100),
    ),
    Attack(
        "kafka_offsets",
        "ends of 5,000 partitions, without end",
        Port.KAFKA,
        20,
        _without_end(_offsets(), 10),
    ),
    Attack("kafka_half_batches", "most of 8 MiB, and no more", Port.KAFKA, 50, _half_batches),
    Attack("kafka_empty_batches", "9,000 empty batches a time", Port.KAFKA, 20, _empty_batches),
)
