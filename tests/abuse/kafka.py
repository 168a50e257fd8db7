"""Attacks by frames of Kafka's protocol, of strangers and of somebody who is known."""

import random
import struct
from typing import Final

from tests.abuse.attack import Attack, Peer, Port, Target

_API_VERSIONS: Final = 18
_METADATA: Final = 3
_PRODUCE: Final = 0
_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
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
    Attack("kafka_half_batches", "most of 8 MiB, and no more", Port.KAFKA, 50, _half_batches),
    Attack("kafka_empty_batches", "9,000 empty batches a time", Port.KAFKA, 20, _empty_batches),
)
