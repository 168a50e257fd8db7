"""Attacks by tokens: many bad ones, and odd ones."""

import asyncio
import base64
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any, Final

from tests.abuse.attack import Attack, Peer, Port, Target, drpc_call, grpc_call
from tests.integration.hostile_http2 import call_headers, frame

_HELLO: Final = "/millrace.proto.v1.Cluster/Hello"
_FETCH: Final = "/millrace.proto.v1.Fetch/Fetch"
_dice: Final = random.Random()


def _part(content: Any) -> str:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def _unique() -> str:
    """Return a token that is formed as one of a ServiceAccount, and that nobody has given."""
    header = {"alg": "RS256", "kid": "none", "typ": "JWT"}
    claims = {"sub": f"system:serviceaccount:a:{_dice.getrandbits(64):x}", "aud": ["logs"]}
    return ".".join((_part(header), _part(claims), _part(_dice.randbytes(64))))


def odd_tokens() -> Iterator[str]:
    """Yield tokens of odd shapes, for ever."""
    claims = {"sub": "system:serviceaccount:default:admin", "exp": 1 << 40}
    nested: Any = "x"
    for _ in range(500):
        nested = [nested]
    shapes = (
        f"{_part({'alg': 'none'})}.{_part(claims)}.",
        f"{_part({'alg': 'HS256', 'kid': '../../key'})}.{_part(claims)}.{_part(b'x' * 32)}",
        f"{_part({'alg': 'RS256', 'jwk': {'kty': 'oct', 'k': 'eA'}})}.{_part(claims)}.eA",
        f"{_part({'alg': 'RS256'})}.{_part({'claims': nested})}.eA",
        f"{_part(b'{' * 1000)}.{_part(b'[' * 1000)}.eA",
        "a" * 7000,
        "." * 7000,
        "mlr_",
        "..",
    )
    for number in itertools.count():
        yield shapes[number % len(shapes)]


async def _unique_by_grpc(peer: Peer, target: Target) -> None:
    await peer.greet()
    reading = asyncio.create_task(peer.hold_on())
    try:
        for stream in range(1, 1 << 20, 2):
            await peer.send(grpc_call(stream, _HELLO, b"", _unique()))
            await asyncio.sleep(0)
            if reading.done():
                return
    finally:
        reading.cancel()


async def _unique_by_drpc(peer: Peer, target: Target) -> None:
    while True:
        await peer.call(_HELLO, b"", _unique())


async def _unique_sessions(peer: Peer, target: Target) -> None:
    """Calls that end one another, each with its own token."""
    for stream in range(1, 1 << 20):
        await peer.send(drpc_call(stream, _FETCH, None, _unique()))


async def _odd_by_drpc(peer: Peer, target: Target) -> None:
    for token in odd_tokens():
        await peer.call(_HELLO, b"", token)


async def _odd_by_grpc(peer: Peer, target: Target) -> None:
    await peer.greet()
    for stream, token in zip(range(1, 1 << 20, 2), odd_tokens(), strict=False):
        await peer.send(grpc_call(stream, _HELLO, b"", token))
        await asyncio.sleep(0.001)


async def _several_headers(peer: Peer, target: Target) -> None:
    await peer.greet()
    field = b"\x00\x0dauthorization\x08Bearer x"
    for stream in range(1, 1 << 20, 2):
        block = call_headers(_HELLO, stream)[9:] + field * 100
        await peer.send(frame(1, block, flags=4, stream=stream))
        await asyncio.sleep(0.001)


ATTACKS: Final = (
    Attack(
        "tokens_grpc",
        "unique bad tokens, as fast as they are taken",
        Port.GRPC,
        20,
        _unique_by_grpc,
    ),
    Attack(
        "tokens_drpc",
        "unique bad tokens, as fast as they are taken",
        Port.DRPC,
        50,
        _unique_by_drpc,
        0.0,
    ),
    Attack("tokens_plain", "the same without TLS", Port.PLAIN_DRPC, 50, _unique_by_drpc, 0.0),
    Attack(
        "tokens_sessions",
        "calls with bad tokens that end one another",
        Port.DRPC,
        20,
        _unique_sessions,
    ),
    Attack(
        "tokens_odd_drpc", "alg none, huge, nested and empty tokens", Port.DRPC, 20, _odd_by_drpc
    ),
    Attack(
        "tokens_odd_grpc", "alg none, huge, nested and empty tokens", Port.GRPC, 20, _odd_by_grpc
    ),
    Attack("tokens_several", "a hundred tokens in a call", Port.GRPC, 20, _several_headers),
)
