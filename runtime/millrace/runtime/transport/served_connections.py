"""The serving end of any protocol of frames: a port, its connections, and their bounds.

A protocol says what a connection does (`ServedConnection`), and makes them (`ConnectionServer`).
How many there may be, from one address and of strangers, how fast new ones may come, how slowly a
message may arrive, how long answers may stay unread, and how a connection ends: all that is here,
once.

Where callers have to be known, a connection is a stranger's until one is.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from millrace.core.addresses import host_port
from millrace.core.quotas.sources import SourceRates
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.handshakes import TOO_OFTEN, ServerTls
from millrace.runtime.transport.credentials import ServerCredentials, principal_of_connection
from millrace.runtime.transport.framed_connection import ConnectionLimits, FramedConnection
from millrace.runtime.transport.frames import ReadAhead
from millrace.runtime.transport.receive_memory import STEP_BYTES, ReceiveMemory

_LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the connections."""
_CLOSING_MS_MAX: Final = 5000
"""How long a connection that is closed may take for the last bytes."""
_LINGERING_MAX: Final = 64
"""Connections that are closed for what they did, and have such time."""
_UNREAD_MS_MAX: Final = 60_000
"""How long a peer may read nothing of the answers that wait for it."""
_DRAIN_MS_MAX: Final = 60_000
"""How long a connection of the greatest age may take to finish."""
_LINGER_MS: Final = 2000
"""How long a connection stays that does nothing, and whose caller was asked to go."""
_HANDSHAKES_MAX: Final = 256
"""Handshakes of TLS that are under way at a time."""
_BURST_MS: Final = 100
"""How much of its rate an address saves up that opens no connections: so many handshakes of TLS may
follow one another without a pause."""
TOO_MANY_UNKNOWN: Final = "there are too many connections whose callers are not known"
TOO_MANY_OF_HOST: Final = "there are too many connections from its address"
"""Reasons for which `on_ended` is called, beside others, and `handshakes.TOO_OFTEN`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Bounds of a listener.

    Attributes:
        connection: of each connection.
        connections_max: at a time.
        connections_per_host_max: at a time, from one address.
        received_bytes_max: that have arrived and that no handler has taken, over all connections;
            half of them from one address.
        silence_ms_max: a connection without a call by then is closed.
        idle_ms_max: a connection is closed so long after its last call; below 0: never.
        age_ms_max: a connection is asked to end by then; below 0: never.
        message_ms_max: how long a message may take to arrive, beside its bytes at 64 KiB/s.
        handshake_ms_max: how long the handshake of TLS may take.
        host_rate_max: new connections a second from one address, over some seconds.
        unknown_max: connections at a time whose callers are not known.
    """

    connection: ConnectionLimits
    connections_max: int
    connections_per_host_max: int
    received_bytes_max: int
    silence_ms_max: int
    idle_ms_max: int
    age_ms_max: int
    message_ms_max: int
    handshake_ms_max: int = 3000
    host_rate_max: int = 1_000_000
    unknown_max: int = 1_000_000


class ServedConnection(FramedConnection):
    """A connection at the side that serves; the subclass calls `be_served` when it is made.

    Attributes:
        address: `host:port` of the other end.
        principal: whom the connection's credentials prove; empty: nobody.
        host: of the other end.
        opened_ms: when it was taken.
        quiet_since_ms: when its last call ended.
        has_called: whether there was one.
        is_known: whether its caller is known, as far as that is asked for.
        is_draining: whether it is to end.
    """

    def be_served(self, server: "ConnectionServer[Any]") -> None:
        """Belong to a server."""
        self._of = server
        self.address = ""
        self.principal = ""
        self.host = ""
        self.opened_ms = self.quiet_since_ms = monotonic_now()
        self.has_called = False
        self.is_known = False
        self.is_draining = False
        self._drained_ms = self._closing_ms = 0  # When that began; 0: not yet.
        self._unread = (0, 0)  # Bytes of answers that wait, and since when they are so many.

    # --- For the subclass --------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether it is doing something for its caller."""
        raise NotImplementedError

    @property
    def tasks(self) -> Sequence["asyncio.Task[Any]"]:
        """What it is doing."""
        raise NotImplementedError

    def ask_to_go(self) -> None:
        """Have the caller finish what is unanswered, and connect again."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the transport."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        name, port = str(peer[0]), peer[1]
        self.host = name
        self.address = host_port(name, port)
        self.principal = principal_of_connection(transport.get_extra_info("ssl_object"))
        self.holder.belong_to(name)
        self._of.on_opened(self)

    def on_known(self) -> None:
        """It is no stranger's connection any more."""
        if not self.is_known:
            self.is_known = True
            self.message_bytes_max = self._of.limits.connection.message_bytes_max
            self._of.strangers.pop(self, None)

    def drain_since(self, now_ms: int) -> None:
        """It is to end since then."""
        self.is_draining, self._drained_ms = True, now_ms

    # --- The listener's looks ----------------------------------------------------------------

    def drain(self) -> None:
        """Ask the peer to finish what is unanswered, and to connect again."""
        if self.is_closed or self.is_draining:
            return
        self.drain_since(monotonic_now())
        self.ask_to_go()

    def is_drained(self, now_ms: int) -> bool:
        """Whether it does nothing, and the caller, which was asked to go, has not gone."""
        since_ms = max(self._drained_ms, self.quiet_since_ms)
        return self.is_draining and not self.is_busy and now_ms - since_ms >= _LINGER_MS

    def reason_to_close(self, now_ms: int, limits: ServerLimits) -> str:
        """Return why this connection has to end now; empty: it may go on, or has ended."""
        if self.is_closed:
            return ""
        if self.transport.is_closing():
            self._closing_ms = self._closing_ms or now_ms
            return "it does not read the last bytes" if self._is_late(now_ms) else ""
        age_ms, arrived = self.progress(now_ms)
        if age_ms:
            allowed_ms = _LOOK_SECONDS * 1000 if self.holder.others_wait else limits.message_ms_max
            if age_ms > allowed_ms + arrived * 1000 // STEP_BYTES:
                return "a message arrives too slowly"
        if not self.is_writable and self._is_unread(now_ms):
            return "it does not read its answers"
        if self._drained_ms and now_ms - self._drained_ms > _DRAIN_MS_MAX:
            return "it does not end its call, though it was asked to"
        is_silent = not self.is_known and now_ms - self.opened_ms >= limits.silence_ms_max
        if not is_silent:
            return ""
        return "it has not proved who calls" if self.has_called else "it has made no call"

    def is_idle(self, now_ms: int, limits: ServerLimits) -> bool:
        """Whether it has done nothing for so long that it should go."""
        return not self.is_busy and now_ms - self.quiet_since_ms >= limits.idle_ms_max >= 0

    def _is_unread(self, now_ms: int) -> bool:
        waiting, (last, since_ms) = self.transport.get_write_buffer_size(), self._unread
        if waiting != last:
            self._unread = (waiting, now_ms)
            return False
        return now_ms - since_ms > _UNREAD_MS_MAX

    def _is_late(self, now_ms: int) -> bool:
        return now_ms - self._closing_ms > _CLOSING_MS_MAX


_ConnectionT = TypeVar("_ConnectionT", bound=ServedConnection)


class ConnectionServer(Generic[_ConnectionT]):
    """Listens, and keeps connections within bounds.

    Args:
        limits: of its connections.
        on_ended: called with an address and a reason when a connection was not taken, or was ended
            for what it did.

    Attributes:
        connections: that are open.
        strangers: of these, those whose callers are not known; the oldest first.
        is_stopping: whether no new calls are taken.
    """

    def __init__(self, limits: ServerLimits, *, on_ended: Callable[[str, str], None]) -> None:
        self.limits = limits
        self._on_ended = on_ended
        self.ahead = ReadAhead()
        self.memory = ReceiveMemory(limits.received_bytes_max, limits.received_bytes_max // 2)
        self.connections: dict[_ConnectionT, None] = {}
        self.strangers: dict[_ConnectionT, None] = {}
        debt_ms_max = limits.handshake_ms_max
        self._rates = SourceRates(limits.host_rate_max, _BURST_MS, debt_ms_max)
        self.is_stopping = False
        self._has_tls = False
        self._hosts: Counter[str] = Counter()
        self._lingering: deque[tuple[int, asyncio.Transport]] = deque()
        self._listening: host.Listening | None = None
        self._accepting: host.Accepting | None = None

    def make_connection(self) -> _ConnectionT:
        """Return what takes the bytes of a new connection."""
        raise NotImplementedError

    def bind(self, address: str) -> int:
        """Bind a port; return it. Nobody is answered before `serve`.

        Raises:
            OSError: the address cannot be bound.
        """
        self._listening = host.current.bind(address)
        return self._listening.port

    async def serve(self, credentials: ServerCredentials | None = None) -> None:
        """Answer from now on; without credentials, connections are in plain text."""
        assert self._listening is not None, "bound first"
        tls = None
        if credentials is not None:
            tls = ServerTls(
                context=lambda: credentials.context,
                handshake_seconds_max=self.limits.handshake_ms_max / 1000,
                handshakes_max=min(_HANDSHAKES_MAX, self.limits.connections_max),
                on_failed=self._on_ended,
                delay_ms=lambda name: self._rates.charge(name, monotonic_now()),
            )
            self._has_tls = True
        self._accepting = await self._listening.accept(self.make_connection, tls)

    async def watch(self) -> None:
        """End connections that exceed a bound, for as long as the listener lives."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now_ms, limits = monotonic_now(), self.limits
            while self._lingering and now_ms - self._lingering[0][0] > _CLOSING_MS_MAX:
                self._lingering.popleft()[1].abort()
            for connection in list(self.connections):
                if reason := connection.reason_to_close(now_ms, limits):
                    self._on_ended(connection.address, reason)
                    connection.abort(reason)
                elif connection.is_idle(now_ms, limits) and not connection.is_draining:
                    self._on_ended(connection.address, "it is idle")
                    connection.drain()
                elif 0 <= limits.age_ms_max <= now_ms - connection.opened_ms:
                    connection.drain()
                if connection.is_drained(now_ms):
                    connection.close()

    def stop_accepting(self) -> None:
        """Take no more connections, and ask those that are there to end."""
        self.is_stopping = True
        if self._accepting is not None:
            self._accepting.close()
        for connection in list(self.connections):
            connection.drain()

    async def stop(self, grace_seconds: float) -> None:
        """Return when the calls in flight have ended, or the grace is over."""
        self.stop_accepting()
        tasks = [task for connection in self.connections for task in connection.tasks]
        if tasks and grace_seconds:
            await asyncio.wait(tasks, timeout=grace_seconds)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)  # In which those are forgotten that had nothing to send.
        if self._listening is not None:
            self._listening.close()

    # --- What connections tell ---------------------------------------------------------------

    def on_opened(self, connection: _ConnectionT) -> None:
        """Take a connection, or end it if there are too many."""
        limits = self.limits
        if len(self.strangers) >= limits.unknown_max:
            oldest = next(iter(self.strangers))
            self._on_ended(oldest.address, TOO_MANY_UNKNOWN)
            oldest.abort("others need its place")
        if len(self.connections) >= limits.connections_max:
            self._make_room()
        if not self._has_tls and self._rates.charge(connection.host, monotonic_now()) is None:
            self._refuse(connection, TOO_OFTEN)
            return
        is_full = len(self.connections) >= limits.connections_max
        if is_full or self._hosts[connection.host] >= limits.connections_per_host_max:
            reason = "there are too many connections" if is_full else TOO_MANY_OF_HOST
            self._refuse(connection, reason)
            return
        self.connections[connection] = self.strangers[connection] = None
        self._hosts[connection.host] += 1

    def _refuse(self, connection: _ConnectionT, reason: str) -> None:
        """End a connection before it is one of the server's; nothing is kept of its address."""
        self._on_ended(connection.address, reason)
        connection.is_closed = True
        connection.close_reading()
        connection.transport.abort()

    def linger(self, transport: asyncio.Transport) -> None:
        """End a connection that is closed once the other end had time to read why; few at a time.

        With TLS it waits for the other end's farewell, and has memory for what comes before that.
        """
        self._lingering.append((monotonic_now(), transport))
        if len(self._lingering) > _LINGERING_MAX:
            self._lingering.popleft()[1].abort()

    def _make_room(self) -> None:
        """End the connection that has had no call for longest: its client may never need it."""
        idle = [connection for connection in self.connections if not connection.is_busy]
        if idle:
            oldest = min(idle, key=lambda connection: connection.quiet_since_ms)
            self._on_ended(oldest.address, "others need its place, and it is idle")
            oldest.abort("others need its place")

    def on_closed(self, connection: _ConnectionT) -> None:
        """Forget a connection."""
        if connection in self.connections:
            del self.connections[connection]
            self.strangers.pop(connection, None)
            self._hosts[connection.host] -= 1
            if not self._hosts[connection.host]:
                del self._hosts[connection.host]

    def on_broken_rules(self, connection: _ConnectionT, error: Exception) -> None:
        """A connection broke the rules of its protocol."""
        self._on_ended(connection.address, str(error))
