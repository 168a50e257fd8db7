"""Attacks on the metrics page."""

from typing import Final

from tests.abuse.attack import Attack, Peer, Port, Target

_REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n"


async def _silent(peer: Peer, target: Target) -> None:
    await peer.hold_on()


async def _slow(peer: Peer, target: Target) -> None:
    await peer.drip(_REQUEST)


async def _flood(peer: Peer, target: Target) -> None:
    await peer.send(_REQUEST)
    await peer.hold_on()


async def _unread(peer: Peer, target: Target) -> None:
    await peer.send(_REQUEST)
    await peer.stand_still()


async def _large(peer: Peer, target: Target) -> None:
    await peer.send(b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 100_000)
    await peer.hold_on()


P: Final = Port.PAGE
ATTACKS: Final = (
    Attack("page_silent", "connections to the metrics page that say nothing", P, 200, _silent),
    Attack("page_slow", "a request of a byte in half a second", P, 200, _slow),
    Attack("page_flood", "the metrics page, again and again", P, 20, _flood),
    Attack("page_unread", "metrics that nobody reads", P, 50, _unread),
    Attack("page_large", "600 KB of headers", P, 20, _large),
)
