"""Which connections of a listener to close, so that there is room for those in use. gRPC silently
refuses a connection beyond its bound.

A client that opens that many idle connections would lock out all others. So a connection that has
made no call within `connection_silence_ms_max` is closed; and when more than nine tenths of the
bound are used, so are those without a call under way, the longest idle one first. A machine: the
time is an argument, and the result says what to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.core.ids import MonotonicMs

_ROOM: Final = 10
"""The part of all connections that is kept free of those without a call: a tenth."""
_NEW_MS: Final = 1000
"""A connection younger than this may be about to make its first call."""


@dataclass(slots=True)
class ConnectionRules:
    """Decides which connections of one listener to close.

    Args:
        connections_max: how many the listener takes.
        silence_ms_max: how long a connection may live without a call.
    """

    connections_max: int
    silence_ms_max: int
    _quiet_since: dict[str, MonotonicMs] = field(default_factory=dict)  # By connection.
    _calls: dict[str, int] = field(default_factory=dict)  # Under way, by peer.
    _called_at: dict[str, MonotonicMs] = field(
        default_factory=dict
    )  # The last end of one, by peer.

    def on_call(self, peer: str) -> None:
        """A call of a peer begins."""
        self._calls[peer] = self._calls.get(peer, 0) + 1

    def on_call_ended(self, peer: str, now: MonotonicMs) -> None:
        """A call of a peer ended."""
        self._called_at[peer] = now
        self._calls[peer] -= 1
        if not self._calls[peer]:
            del self._calls[peer]

    def judge(self, peers: Mapping[str, str], now: MonotonicMs) -> list[str]:
        """Return the connections to close.

        Args:
            peers: the peer of each connection that is open.
            now: the time.
        """
        there = set(peers.values())
        self._called_at = {
            peer: at
            for peer, at in self._called_at.items()
            # One that is not seen yet may have called already.
            if peer in there or now - at < _NEW_MS * 10
        }
        self._quiet_since = {socket: self._quiet_since.get(socket, now) for socket in peers}
        quiet = [socket for socket, peer in peers.items() if peer not in self._calls]
        closed = [
            socket
            for socket in quiet
            if peers[socket] not in self._called_at
            and now - self._quiet_since[socket] >= self.silence_ms_max
        ]
        more = len(peers) - len(closed) - (self.connections_max - self.connections_max // _ROOM)
        if more > 0:
            gone = frozenset(closed)
            since = {
                socket: self._called_at.get(peers[socket], self._quiet_since[socket])
                for socket in quiet
                if socket not in gone
            }
            old = [socket for socket, at in since.items() if now - at >= _NEW_MS]
            closed += sorted(old, key=since.__getitem__)[:more]
        return closed
