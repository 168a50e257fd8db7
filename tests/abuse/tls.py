"""Attacks on the handshake of TLS, and by connections as such."""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from tests.abuse.attack import Attack, Peer, Port, Target, grpc_call


def _hello(versions: tuple[ssl.TLSVersion, ssl.TLSVersion] | None = None) -> bytes:
    """Return the first message of a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if versions is not None:
        context.minimum_version, context.maximum_version = versions
    outgoing = ssl.MemoryBIO()
    session = context.wrap_bio(ssl.MemoryBIO(), outgoing)
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


HELLO: Final = _hello()
OLD_HELLO: Final = _hello((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2))
_ALERT: Final = bytes.fromhex("15030300020100")
_KEY_UPDATE_LIKE: Final = bytes.fromhex("1703030016") + bytes(22)
"""A record that nobody can decipher."""


async def _silent(peer: Peer, target: Target) -> None:
    await peer.hold_on()


async def _leave(peer: Peer, target: Target) -> None:
    return


async def _slow_hello(peer: Peer, target: Target) -> None:
    await peer.drip(HELLO)


def _say(*parts: bytes, then_hold: bool = True) -> Callable[[Peer, Target], Awaitable[None]]:
    async def say(peer: Peer, target: Target) -> None:
        for part in parts:
            await peer.send(part)
        if then_hold:
            await peer.hold_on()

    return say


async def _half_way(peer: Peer, target: Target) -> None:
    await peer.send(HELLO)
    await peer.reader.read(1)
    await asyncio.sleep(60)


async def _garbage(peer: Peer, target: Target) -> None:
    await peer.send(random.randbytes(2000))
    await peer.hold_on()


async def _endless(peer: Peer, target: Target) -> None:
    await peer.send(HELLO)
    while True:
        await peer.send(_KEY_UPDATE_LIKE * 1000)


async def _nameless_broker(peer: Peer, target: Target) -> None:
    await peer.greet()
    await peer.send(grpc_call(1, "/millrace.proto.v1.Replica/Fetch", b""))
    await peer.hold_on()


ATTACKS: Final = (
    Attack("tls_silent_grpc", "connect, and say nothing", Port.RAW_GRPC, 300, _silent),
    Attack("tls_silent_drpc", "connect, and say nothing", Port.RAW_DRPC, 300, _silent),
    Attack("tls_hello_slow", "a hello of a byte in half a second", Port.RAW_DRPC, 300, _slow_hello),
    Attack("tls_half_hello", "half a hello, and no more", Port.RAW_GRPC, 300, _say(HELLO[:100])),
    Attack("tls_stopped_grpc", "a handshake that stops half-way", Port.RAW_GRPC, 300, _half_way),
    Attack("tls_stopped_drpc", "a handshake that stops half-way", Port.RAW_DRPC, 300, _half_way),
    Attack("tls_garbage", "random bytes instead of a hello", Port.RAW_DRPC, 50, _garbage),
    Attack("tls_storm_grpc", "handshakes without end", Port.GRPC, 30, _leave),
    Attack("tls_storm_drpc", "handshakes without end", Port.DRPC, 30, _leave),
    Attack(
        "tls_hellos_drpc",
        "a hello, and away before it is answered",
        Port.RAW_DRPC,
        50,
        _say(HELLO, then_hold=False),
    ),
    Attack(
        "tls_hellos_grpc",
        "a hello, and away before it is answered",
        Port.RAW_GRPC,
        50,
        _say(HELLO, then_hold=False),
    ),
    Attack("tls_old", "hellos of TLS 1.2 alone", Port.RAW_DRPC, 50, _say(OLD_HELLO)),
    Attack(
        "tls_again",
        "one hello after another, as to renegotiate",
        Port.RAW_GRPC,
        50,
        _say(HELLO * 500),
    ),
    Attack("tls_alerts", "warnings of TLS without end", Port.RAW_DRPC, 50, _say(_ALERT * 5000)),
    Attack("tls_records", "records that nobody can read", Port.RAW_GRPC, 20, _endless),
    Attack(
        "tls_nameless_broker",
        "a certificate that names no broker, at the port of brokers",
        Port.REPLICAS,
        20,
        _nameless_broker,
    ),
    Attack("connections_storm", "connect, and leave at once", Port.PLAIN_DRPC, 50, _leave, 0.0),
)
