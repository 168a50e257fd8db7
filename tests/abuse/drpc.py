"""Attacks by frames of DRPC."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from tests.abuse.attack import Attack, Peer, Port, Target, drpc_call

from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.wire import Kind

_HELLO: Final = "/millrace.proto.v1.Cluster/Hello"
_METADATA: Final = "/millrace.proto.v1.Cluster/GetMetadata"
_PRODUCE: Final = "/millrace.proto.v1.Produce/Produce"
_FETCH: Final = "/millrace.proto.v1.Fetch/Fetch"
_MESSAGE_BYTES: Final = 1_000_000
_INVOKE: Final = drpc_call(1, _FETCH, None)


def _packet(kind: int, stream: int, message: int, body: bytes = b"") -> bytes:
    return wire.frame_header(kind, stream, message, len(body)) + body


async def _half_messages(peer: Peer, target: Target) -> None:
    header = wire.frame_header(Kind.MESSAGE, 1, 9, _MESSAGE_BYTES)
    await peer.send(_INVOKE + header + bytes(_MESSAGE_BYTES // 2))
    await peer.hold_on()


async def _half_messages_with_token(peer: Peer, target: Target) -> None:
    header = wire.frame_header(Kind.MESSAGE, 1, 9, _MESSAGE_BYTES)
    await peer.send(drpc_call(1, _PRODUCE, None, target.token) + header)
    await peer.send(bytes(_MESSAGE_BYTES // 2))
    await peer.hold_on()


async def _slow_bytes(peer: Peer, target: Target) -> None:
    await peer.send(_INVOKE + wire.frame_header(Kind.MESSAGE, 1, 9, _MESSAGE_BYTES))
    await peer.drip(bytes(100))


async def _slow_call(peer: Peer, target: Target) -> None:
    await peer.drip(_INVOKE)


async def _empty_frames(peer: Peer, target: Target) -> None:
    await peer.send(_INVOKE + bytes((Kind.MESSAGE << 1, 1, 9, 0)) * 10_000)
    await peer.hold_on()


async def _invokes(peer: Peer, target: Target) -> None:
    for stream in range(1, 1 << 30):
        await peer.send(drpc_call(stream, _FETCH, None))
        await asyncio.sleep(0.001)


async def _garbage(peer: Peer, target: Target) -> None:
    await peer.send(random.randbytes(1000))
    await peer.hold_on()


async def _huge_frame(peer: Peer, target: Target) -> None:
    await peer.send(_INVOKE + b"\x05\x01\x09" + b"\xff" * 8 + b"\x7f")
    await peer.hold_on()


async def _idle(peer: Peer, target: Target) -> None:
    await peer.hold_on()


async def _leave(peer: Peer, target: Target) -> None:
    await peer.send(_INVOKE)


def _flood(data: bytes) -> Callable[[Peer, Target], Awaitable[None]]:
    async def flood(peer: Peer, target: Target) -> None:
        await peer.send(_INVOKE)
        while True:
            await peer.send(data)
            await asyncio.sleep(0)

    return flood


async def _much_metadata(peer: Peer, target: Target) -> None:
    await peer.send(_packet(Kind.METADATA, 1, 1, bytes(900_000)))
    await peer.hold_on()


async def _unread_answers(peer: Peer, target: Target) -> None:
    for stream in range(1, 1 << 20):
        await peer.send(drpc_call(stream, _METADATA, b"", target.token))
        if stream == 1:
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]


async def _ended_calls(peer: Peer, target: Target) -> None:
    await peer.send(drpc_call(1, _HELLO, b"\xff"))
    while True:
        await peer.send(_packet(Kind.MESSAGE, 1, 99) * 1000)


async def _unknown_methods(peer: Peer, target: Target) -> None:
    for stream in range(1, 1 << 20):
        await peer.send(drpc_call(stream, "/x/y", None))


async def _strangers(peer: Peer, target: Target) -> None:
    while True:
        await peer.call(_METADATA, b"")


D: Final = Port.DRPC
ATTACKS: Final = (
    Attack(
        "drpc_half_messages", "half a message of 1 MB each, of strangers", D, 100, _half_messages
    ),
    Attack(
        "drpc_half_batches",
        "half a message of 1 MB each, of a known caller",
        D,
        100,
        _half_messages_with_token,
    ),
    Attack("drpc_slow_bytes", "a byte of a message in half a second", D, 100, _slow_bytes),
    Attack("drpc_slow_call", "a call of a byte in half a second", D, 100, _slow_call),
    Attack("drpc_empty_frames", "a packet of empty frames", D, 5, _empty_frames),
    Attack("drpc_invokes", "a new call every millisecond", D, 5, _invokes),
    Attack("drpc_garbage", "random bytes", D, 20, _garbage),
    Attack("drpc_huge_frame", "a frame of 2^63 bytes", D, 20, _huge_frame),
    Attack("drpc_idle", "connections without a call", D, 400, _idle),
    Attack("drpc_storm", "a call, and away", Port.PLAIN_DRPC, 50, _leave, 0.0),
    Attack(
        "drpc_keep_alives",
        "signs of life without end",
        D,
        10,
        _flood(_packet(Kind.KEEP_ALIVE, 1, 9, b"1000") * 100),
    ),
    Attack("drpc_metadata", "900 KB of metadata", D, 20, _much_metadata),
    Attack("drpc_unread_answers", "answers that nobody reads", D, 50, _unread_answers),
    Attack("drpc_ended_calls", "messages for a call that has ended", D, 20, _ended_calls),
    Attack("drpc_unknown_methods", "methods that are not there", D, 20, _unknown_methods),
    Attack("strangers_drpc", "calls without a token", D, 20, _strangers),
)
