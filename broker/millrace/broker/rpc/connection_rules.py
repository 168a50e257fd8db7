"""Which connections of a listener to close, so that there is room for those in use. gRPC silently
refuses a connection beyond its bound.

A client that opens that many idle connections would lock out all others. So a connection by which
nobody who is known has called within `connection_silence_ms_max` is closed: health checks and
reflection ask nobody who calls, and keep no connection. One address has a bound of connections, and
of new ones a second; strangers have one together. When more than nine tenths of the bound are used,
connections without a call under way are closed, the longest idle first. A machine: the time is an
argument, and the result says what to do.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from millrace.core.broker_config import LimitsConfig
from millrace.core.ids import MonotonicMs
from millrace.core.quotas.sources import SourceRates

_ROOM: Final = 10
"""The part of all connections that is kept free of those without a call: a tenth."""
_NEW_MS: Final = 1000
"""A connection younger than this may be about to make its first call."""
_KEPT_MS: Final = 10_000
"""A peer whose connection is not seen yet is remembered for so long."""
_RATE_DEBT_MS: Final = 3000
"""By how much new connections of an address may exceed their rate."""
_CONDEMNED_MS: Final = 10_000
"""How long who did what no client does is closed at once."""
_CONDEMNED_MAX: Final = 3
"""So many of a host in that time have its strangers closed, too: one alone must not lock them out,
and each may take 100 MiB."""
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_REFUSED_MAX: Final = 20
"""Refused calls of a stranger on one connection."""


@dataclass(slots=True)
class ConnectionRules:
    """Decides which connections of one listener to close.

    Args:
        limits: of the listener.

    Attributes:
        reached: how often each limit was, by the name of its setting.
    """

    limits: LimitsConfig
    reached: Counter[str] = field(default_factory=Counter)
    _quiet_since: dict[str, MonotonicMs] = field(default_factory=dict)  # By connection.
    _calls: dict[str, int] = field(default_factory=dict)  # Under way, by peer.
    # The last end of a call, or when its caller was known first, by peer that is known.
    _known: dict[str, MonotonicMs] = field(default_factory=dict)
    # Until when, by peer or host.
    _condemned: dict[str, MonotonicMs] = field(default_factory=dict)
    _refused: dict[str, int] = field(default_factory=dict)  # Calls of strangers, by peer.
    _rates: SourceRates = field(init=False)

    def __post_init__(self) -> None:
        """Make what measures the rate of new connections."""
        rate = self.limits.connections_per_host_rate_max
        self._rates = SourceRates(rate, _NEW_MS, _RATE_DEBT_MS)

    def on_call(self, peer: str) -> None:
        """A call of a peer begins."""
        self._calls[peer] = self._calls.get(peer, 0) + 1

    def on_known(self, peer: str, now: MonotonicMs) -> None:
        """The caller of a peer's call is known, as far as that is asked for."""
        self._known[peer] = now
        self._refused.pop(peer, None)

    def on_call_ended(self, peer: str, now: MonotonicMs) -> None:
        """A call of a peer ended."""
        if peer in self._known:
            self._known[peer] = now
        self._calls[peer] -= 1
        if not self._calls[peer]:
            del self._calls[peer]

    def on_refused(self, peer: str) -> bool:
        """A call of a peer was refused; return whether the connection should be closed at once."""
        if peer in self._known:
            return False
        count = self._refused[peer] = self._refused.get(peer, 0) + 1
        return count == _REFUSED_MAX

    def condemn(self, peer: str, now: MonotonicMs) -> None:
        """A peer does what no client does: it has to go; so have strangers if it is not alone."""
        host, until = _host(peer), MonotonicMs(now + _CONDEMNED_MS)
        self._known.pop(peer, None)
        self._condemned[peer] = until
        is_condemned = self._condemned.get(host, now) > now
        if is_condemned or self._condemned_of(host, now) >= _CONDEMNED_MAX:
            self._condemned[host] = until

    def _condemned_of(self, host: str, now: MonotonicMs) -> int:
        """Return how many peers of a host are condemned."""
        return sum(at > now and _host(peer) == host for peer, at in self._condemned.items())

    def strangers(self, peers: Mapping[str, str]) -> frozenset[str]:
        """Return the connections of peers that are not known."""
        return frozenset(socket for socket, peer in peers.items() if peer not in self._known)

    def judge(
        self, peers: Mapping[str, str], now: MonotonicMs, received: Mapping[str, int] = _NOTHING
    ) -> list[str]:
        """Return the connections to close.

        Args:
            peers: the peer of each connection that is open; it begins with its host.
            now: the time.
            received: bytes that have come by connections of strangers.
        """
        there = set(peers.values())
        self._condemned = {host: at for host, at in self._condemned.items() if now < at}
        self._known = {
            peer: at
            for peer, at in self._known.items()
            # One that is not seen yet may have called already.
            if peer in there or peer in self._calls or now - at < _KEPT_MS
        }
        self._refused = {peer: count for peer, count in self._refused.items() if peer in there}
        closed = dict.fromkeys(self._too_often(peers, now))
        self._quiet_since = {socket: self._quiet_since.get(socket, now) for socket in peers}
        closed |= dict.fromkeys(self._silent(peers, now, received))
        closed |= dict.fromkeys(self._of_full_hosts(peers, closed))
        closed |= dict.fromkeys(self._strangers(peers, closed))
        limit = self.limits.connections_max
        more = len(peers) - len(closed) - (limit - limit // _ROOM)
        if more > 0:
            since = {
                socket: self._known.get(peer, self._quiet_since[socket])
                for socket, peer in peers.items()
                if socket not in closed and (peer not in self._calls or peer not in self._known)
            }
            old = [socket for socket, at in since.items() if now - at >= _NEW_MS]
            closed |= dict.fromkeys(sorted(old, key=since.__getitem__)[:more])
        return list(closed)

    def _too_often(self, peers: Mapping[str, str], now: MonotonicMs) -> list[str]:
        """Return the new connections of addresses that open too many in a short time."""
        found = [
            socket
            for socket, peer in peers.items()
            if socket not in self._quiet_since
            and self._rates.charge(_host(peer), now) is None
            and peer not in self._known
        ]
        self.reached["connections_per_host_rate_max"] += len(found)
        return found

    def _silent(
        self, peers: Mapping[str, str], now: MonotonicMs, received: Mapping[str, int]
    ) -> list[str]:
        """Return those by which nobody who is known has called in time, or before much came."""
        return [
            socket
            for socket, peer in peers.items()
            if peer in self._condemned
            or (
                peer not in self._known
                and (
                    now - self._quiet_since[socket] >= self.limits.connection_silence_ms_max
                    or _host(peer) in self._condemned
                    or self._refused.get(peer, 0) >= _REFUSED_MAX
                    or received.get(socket, 0) > self.limits.connection_unknown_bytes_max
                )
            )
        ]

    def _of_full_hosts(self, peers: Mapping[str, str], closed: Mapping[str, None]) -> list[str]:
        """Return the youngest connections of addresses that have more than they may."""
        found = []
        counts: Counter[str] = Counter()
        for socket in sorted(peers, key=self._quiet_since.__getitem__):
            if socket not in closed:
                host = _host(peers[socket])
                counts[host] += 1
                if counts[host] > self.limits.connections_per_host_max:
                    found.append(socket)
        self.reached["connections_per_host_max"] += len(found)
        return found

    def _strangers(self, peers: Mapping[str, str], closed: Mapping[str, None]) -> list[str]:
        """Return the oldest strangers, where there are too many."""
        strangers = [
            socket
            for socket, peer in peers.items()
            if socket not in closed and peer not in self._known
        ]
        more = len(strangers) - self.limits.connections_unknown_max
        if more <= 0:
            return []
        self.reached["connections_unknown_max"] += more
        return sorted(strangers, key=self._quiet_since.__getitem__)[:more]


def _host(peer: str) -> str:
    return peer.partition(" ")[0]
