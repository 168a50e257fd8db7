"""The serving end of DRPC: a listener, its connections, and the call of each.

A connection has one call at a time. A new call ends the one before, and begins when its handler has
returned; nothing is read meanwhile. Packets of calls that have ended are ignored, but not without
end. Source: storj.io/drpc, packages drpcmanager and drpcserver.

Where callers have to be known (`admit`), a connection is a stranger's until one is: of its first
call nothing is read but who makes it, and when nobody is known, the connection ends with the call.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from millrace.core.addresses import host_port
from millrace.core.errors import BrokerShuttingDownError, MillraceError
from millrace.core.numbers import parse_whole_number
from millrace.core.quotas.sources import SourceRates
from millrace.core.records.header import Buffer
from millrace.proto.errors import error_to_bytes
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.handshakes import TOO_OFTEN, ServerTls
from millrace.runtime.transport.calls import Message, Metadata, ServerCall, Status
from millrace.runtime.transport.credentials import ServerCredentials, principal_of_connection
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.connection import Connection, ConnectionLimits, Inbox
from millrace.runtime.transport.drpc.wire import Kind
from millrace.runtime.transport.frames import FrameError, Hold, ReadAhead
from millrace.runtime.transport.receive_memory import STEP_BYTES, ReceiveMemory

_LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the connections."""
_DEADLINE_MS_MAX: Final = 10**15 - 1
_VAIN_MS: Final = 10_000
_VAIN_BYTES_MAX: Final = 16 << 20
_VAIN_PACKETS_MAX: Final = 1000
"""How many packets and bytes of a connection may be ignored in `_VAIN_MS`: those for a call that
has ended, of an unknown kind, and for an unknown method. Some are usual: messages that are under
way when their call ends."""
_CLOSING_MS_MAX: Final = 5000
"""How long a connection that is closed may take for the last bytes."""
_DROPPED_BYTES_MAX: Final = 4 << 20
"""How much may come by a connection whose caller was refused."""
_LINGERING_MAX: Final = 64
"""Connections that are closed for what they did, and have such time."""
_UNREAD_MS_MAX: Final = 60_000
"""How long a peer may read nothing of the answers that wait for it."""
_DRAIN_MS_MAX: Final = 60_000
"""How long a connection of the greatest age may take to finish."""
_LINGER_MS: Final = 2000
"""How long a connection stays that has no call, and whose caller was asked to go."""
_HANDSHAKES_MAX: Final = 256
"""Handshakes of TLS that are under way at a time."""

_BURST_MS: Final = 100
"""How much of its rate an address saves up that opens no connections: so many handshakes of TLS may
follow one another without a pause."""
TOO_MANY_UNKNOWN: Final = "there are too many connections whose callers are not known"
TOO_MANY_OF_HOST: Final = "there are too many connections from its address"
"""Reasons for which `on_ended` is called, beside others, and `handshakes.TOO_OFTEN`."""

Method = Callable[[ServerCall], Awaitable[None]]
"""Serves a call; raises `MillraceError` for one that fails as a whole."""


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


class _Call:
    """A call; implements `ServerCall`."""

    def __init__(self, connection: "_ServedConnection", metadata: Metadata, method: str) -> None:
        self._connection = connection
        self.metadata = metadata.items()
        self.deadline_s = _deadline_s(metadata)
        self.method = method
        self.inbox = Inbox(connection)
        self.task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self._connection.address

    @property
    def principal(self) -> str:
        return self._connection.principal

    def on_known(self) -> None:
        self._connection.on_known()

    async def read(self) -> Message | None:
        return await self.inbox.read()

    async def write(self, *parts: Buffer) -> None:
        connection = self._connection
        connection.send(Kind.MESSAGE, *parts)
        if not connection.is_writable:
            await connection.until_writable()

    def try_write(self, *parts: Buffer) -> bool:
        connection = self._connection
        if not connection.is_writable:
            return False
        connection.send(Kind.MESSAGE, *parts)
        return True


class _ServedConnection(Connection):
    def __init__(self, server: "DrpcServer") -> None:
        super().__init__(server.limits.connection, server.ahead, server.memory)
        self._server = server
        self.address = ""
        self.principal = ""
        self.host = ""
        self.opened_ms = self.quiet_since_ms = monotonic_now()
        self.has_called = False
        self.is_known = False
        if server.admit is not None:
            self.message_bytes_max = wire.METADATA_BYTES_MAX
        self.is_draining = False
        self.drained_ms = self._closing_ms = 0  # When that began; 0: not yet.
        self._unread = (0, 0)  # Bytes of answers that wait, and since when they are so many.
        self.call: _Call | None = None
        self._metadata: tuple[int, Metadata] = (0, {})
        self._dropped_bytes = 0
        self._vain_since_ms = self._vain_bytes = self._vain_packets = 0
        self._next: tuple[int, str] | None = None  # A call that waits for the end of the last one.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        name, port = str(peer[0]), peer[1]
        self.host = name
        self.address = host_port(name, port)
        self.principal = principal_of_connection(transport.get_extra_info("ssl_object"))
        self.holder.belong_to(name)
        self._server.on_opened(self)

    # --- Packets -----------------------------------------------------------------------------

    def on_packet(self, kind: int, stream: int, body: bytes | memoryview) -> None:
        call = self.call
        if stream == self._stream_sent and kind == Kind.MESSAGE and call is not None:
            call.inbox.put(body)
            return
        self.release(len(body))
        if kind == Kind.METADATA and stream > self._stream_sent:
            if len(body) > wire.METADATA_BYTES_MAX:
                raise FrameError(
                    f"the metadata of a call has {len(body)} bytes, and {wire.METADATA_BYTES_MAX} "
                    "are allowed"
                )
            if self._metadata[0]:
                self.on_ignored(0)
            self._metadata = (stream, wire.decode_metadata(bytes(body)))
        elif kind == Kind.INVOKE and stream > self._stream_sent:
            if len(body) > wire.METHOD_BYTES_MAX:
                raise FrameError(f"the name of a method has {len(body)} bytes")
            self._invoke(stream, bytes(body).decode(errors="replace"))
        elif stream == self._stream_sent and call is not None and kind in _ENDS:
            if kind == Kind.CLOSE_SEND:
                call.inbox.end(None)
            elif call.task is not None:
                call.task.cancel()
        elif kind == Kind.KEEP_ALIVE:
            self.expect_keep_alive(body)
            self.on_ignored(0)
        elif kind in (Kind.DRAIN, Kind.ERROR_DETAILS):
            self.on_ignored(0)
        elif stream > self._stream_sent:
            raise FrameError("a packet of a call that was not invoked")
        elif kind == Kind.INVOKE:
            raise FrameError("a call is invoked twice")
        else:
            self.on_ignored(len(body))

    def on_ignored(self, size: int) -> None:
        """Count a packet that was ignored: it costs this side time, and its sender nothing."""
        now_ms = monotonic_now()
        if now_ms - self._vain_since_ms > _VAIN_MS:
            self._vain_since_ms, self._vain_bytes, self._vain_packets = now_ms, 0, 0
        self._vain_packets += 1
        self._vain_bytes += size
        if self._vain_packets > _VAIN_PACKETS_MAX or self._vain_bytes > _VAIN_BYTES_MAX:
            raise FrameError("too much came in vain, as for a call that has ended")

    def _invoke(self, stream: int, method: str) -> None:
        if method not in self._server.methods:
            self.on_ignored(0)
        if self.call is None and self.is_writable:
            self._begin(stream, method)
            return
        # As Go's server: the call before is cancelled, and nothing is read until it has ended. Nor
        # does a call begin while answers wait to be sent: their caller may never read them.
        self._next = (stream, method)
        if self.call is not None and self.call.task is not None:
            self.call.task.cancel()
        self.hold_frames(Hold.CALL)

    def _begin_next(self) -> None:
        """Begin the call that waits, if it can begin."""
        if self._next is not None and self.call is None and self.is_writable:
            (stream, method), self._next = self._next, None
            self._begin(stream, method)
            self.take_frames(Hold.CALL)

    def resume_writing(self) -> None:
        """What was sent has left."""
        super().resume_writing()
        self._begin_next()

    def _begin(self, stream: int, method: str) -> None:
        self.has_called = True
        metadata = self._metadata[1] if self._metadata[0] == stream else {}
        self._metadata = (0, {})
        self.ask_keep_alive(metadata.get(wire.KEEP_ALIVE, ""))
        self.begin_stream(stream)
        if self._server.is_stopping:
            self._refuse(BrokerShuttingDownError("the broker is stopping"))
            return
        serve = self._server.methods.get(method)
        if serve is None:
            self._fail(Status.UNIMPLEMENTED, f"unknown rpc: {method!r}")
            self.quiet_since_ms = monotonic_now()
            if self._server.admit is not None and not self.is_known:
                self._end_stranger()
            return
        call = self.call = _Call(self, metadata, method)
        if not self.is_known:
            if self._server.admit is None:
                self.on_known()
            else:
                self.hold_frames(Hold.CALLER)
        task = call.task = asyncio.get_running_loop().create_task(self._serve(call, serve))
        task.add_done_callback(self._on_done)

    async def _serve(self, call: _Call, serve: Method) -> None:
        try:
            async with asyncio.timeout(call.deadline_s):
                if not self.is_known and self._server.admit is not None:
                    await self._server.admit(call, call.method)
                    self.take_frames(Hold.CALLER)
                await serve(call)
        except MillraceError as error:
            self._refuse(error)
        except TimeoutError:
            self._fail(Status.DEADLINE_EXCEEDED, "the call's time is up")
        except asyncio.CancelledError:
            pass  # By the caller, by the end of the connection, or of the server.
        else:
            self.send(Kind.CLOSE_SEND)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        call, self.call = self.call, None
        if call is not None:
            call.inbox.drop()
        self.quiet_since_ms = monotonic_now()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(Status.INTERNAL, "the broker failed; its log has the trace")
            self._server.on_failure(error)
        if self.is_closed:
            return
        if not self.is_known:
            self._end_stranger()
        elif self._next is not None:
            self._begin_next()
        elif self.is_draining or self._server.is_stopping:
            self.close()

    def on_known(self) -> None:
        """It is no stranger's connection any more."""
        if not self.is_known:
            self.is_known = True
            self.message_bytes_max = self._server.limits.connection.message_bytes_max
            self._server.strangers.pop(self, None)

    def _end_stranger(self) -> None:
        """Take nothing more, as nobody is known by the first call, and have the caller go.

        What still comes is dropped, within a bound: a connection that is closed before it has read
        all resets, and its caller would not learn why.
        """
        self.is_draining, self.drained_ms = True, monotonic_now()
        self.send(Kind.DRAIN, is_ignorable=True)
        self.close_reading()
        self.transport.resume_reading()
        self._server.linger(self.transport)

    def buffer_updated(self, nbytes: int) -> None:
        """Implement `FrameReader`."""
        if self._is_done:
            self._dropped_bytes += nbytes
            if self._dropped_bytes > _DROPPED_BYTES_MAX:
                self.transport.abort()
            return
        super().buffer_updated(nbytes)

    def _refuse(self, error: MillraceError) -> None:
        self.send(Kind.ERROR_DETAILS, error_to_bytes(error), is_ignorable=True)
        self._fail(self._server.status_of(error), error.message)

    def _fail(self, status: Status, text: str) -> None:
        self.send(Kind.ERROR, wire.encode_error(status, text))

    def on_protocol_error(self, error: FrameError) -> None:
        self._server.on_protocol_error(self, error)
        if not self._stream_sent or not self.is_writable:
            self.abort(str(error))  # It would not understand, or does not read.
            return
        self._fail(Status.INVALID_ARGUMENT, str(error))
        self.close()
        self._server.linger(self.transport)
        self._end(str(error))

    def on_lost(self, reason: str) -> None:
        if self.call is not None and self.call.task is not None:
            self.call.task.cancel()
        self._server.on_closed(self)

    # --- The listener's looks ----------------------------------------------------------------

    def drain(self) -> None:
        """Ask the peer to finish what is unanswered, and to connect again."""
        if self.is_closed or self.is_draining:
            return
        self.is_draining = True
        self.drained_ms = monotonic_now()
        if self.has_called:
            # The caller closes it when it has no call. A call may be on its way (P79).
            self.send(Kind.DRAIN, is_ignorable=True)
        else:
            self.close()

    def is_drained(self, now_ms: int) -> bool:
        """Whether there is no call, and the caller, which was asked to go, has not gone."""
        since_ms = max(self.drained_ms, self.quiet_since_ms)
        return self.is_draining and self.call is None and now_ms - since_ms >= _LINGER_MS

    def reason_to_close(self, now_ms: int, limits: ServerLimits) -> str:
        """Return why this connection has to end now; empty: it may go on."""
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
        if self.drained_ms and now_ms - self.drained_ms > _DRAIN_MS_MAX:
            return "it does not end its call, though it was asked to"
        is_silent = not self.is_known and now_ms - self.opened_ms >= limits.silence_ms_max
        if not is_silent:
            return ""
        return "it has not proved who calls" if self.has_called else "it has made no call"

    def is_idle(self, now_ms: int, limits: ServerLimits) -> bool:
        """Whether it has had no call for so long that it should go."""
        return self.call is None and now_ms - self.quiet_since_ms >= limits.idle_ms_max >= 0

    def _is_unread(self, now_ms: int) -> bool:
        waiting, (last, since_ms) = self.transport.get_write_buffer_size(), self._unread
        if waiting != last:
            self._unread = (waiting, now_ms)
            return False
        return now_ms - since_ms > _UNREAD_MS_MAX

    def _is_late(self, now_ms: int) -> bool:
        return now_ms - self._closing_ms > _CLOSING_MS_MAX


_ENDS: Final = (Kind.CANCEL, Kind.CLOSE, Kind.CLOSE_SEND, Kind.ERROR)


def _deadline_s(metadata: Metadata) -> float | None:
    """Return the seconds that a call may take, by its metadata."""
    text = metadata.get(wire.DEADLINE, "")
    deadline_ms = parse_whole_number(text, _DEADLINE_MS_MAX)
    return None if deadline_ms is None else deadline_ms / 1000


class DrpcServer:
    """Listens, and serves calls.

    Args:
        limits: of its connections.
        status_of: returns the status of a call that fails for an error.
        on_failure: called with what a handler raised that is no `MillraceError`: a bug.
        on_ended: called with an address and a reason when a connection was not taken, or was ended
            for what it did.

    Attributes:
        methods: that it serves, by `/package.Service/Method`.
        connections: that are open.
        strangers: of these, those whose callers are not known; the oldest first.
        admit: finds out who makes a call with a method, before anything else of it is read, and
            has `on_known` called, or raises `MillraceError`; None: nobody has to be known.
    """

    admit: Callable[[ServerCall, str], Awaitable[None]] | None = None

    def __init__(
        self,
        limits: ServerLimits,
        *,
        status_of: Callable[[MillraceError], Status],
        on_failure: Callable[[BaseException], None],
        on_ended: Callable[[str, str], None],
    ) -> None:
        self.limits = limits
        self.status_of = status_of
        self.on_failure = on_failure
        self._on_ended = on_ended
        self.methods: dict[str, Method] = {}
        self.ahead = ReadAhead()
        self.memory = ReceiveMemory(limits.received_bytes_max, limits.received_bytes_max // 2)
        self.connections: dict[_ServedConnection, None] = {}
        self.strangers: dict[_ServedConnection, None] = {}
        debt_ms_max = limits.handshake_ms_max
        self._rates = SourceRates(limits.host_rate_max, _BURST_MS, debt_ms_max)
        self.is_stopping = False
        self._has_tls = False
        self._hosts: Counter[str] = Counter()
        self._lingering: deque[tuple[int, asyncio.Transport]] = deque()
        self._listening: host.Listening | None = None
        self._accepting: host.Accepting | None = None

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
        self._accepting = await self._listening.accept(lambda: _ServedConnection(self), tls)

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
        tasks = [
            connection.call.task
            for connection in self.connections
            if connection.call is not None and connection.call.task is not None
        ]
        if tasks and grace_seconds:
            await asyncio.wait(tasks, timeout=grace_seconds)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for connection in list(self.connections):
            connection.close()
        if self._listening is not None:
            self._listening.close()

    # --- What connections tell ---------------------------------------------------------------

    def on_opened(self, connection: _ServedConnection) -> None:
        """Take a connection, or end it if there are too many."""
        limits = self.limits
        if len(self.strangers) >= limits.unknown_max:
            oldest = next(iter(self.strangers))
            self._on_ended(oldest.address, TOO_MANY_UNKNOWN)
            oldest.abort("others need its place")
        if len(self.connections) >= limits.connections_max:
            self._make_room()
        if not self._has_tls and self._rates.charge(connection.host, monotonic_now()) is None:
            self._on_ended(connection.address, TOO_OFTEN)
            connection.is_closed = True
            connection.transport.abort()
            return
        is_full = len(self.connections) >= limits.connections_max
        if is_full or self._hosts[connection.host] >= limits.connections_per_host_max:
            reason = "there are too many connections" if is_full else TOO_MANY_OF_HOST
            self._on_ended(connection.address, reason)
            connection.is_closed = True
            connection.transport.abort()
            return
        self.connections[connection] = self.strangers[connection] = None
        self._hosts[connection.host] += 1

    def linger(self, transport: asyncio.Transport) -> None:
        """End a connection that is closed once the other end had time to read why; few at a time.

        With TLS it waits for the other end's farewell, and has memory for what comes before that.
        """
        self._lingering.append((monotonic_now(), transport))
        if len(self._lingering) > _LINGERING_MAX:
            self._lingering.popleft()[1].abort()

    def _make_room(self) -> None:
        """End the connection that has had no call for longest: its client may never need it."""
        idle = [connection for connection in self.connections if connection.call is None]
        if idle:
            oldest = min(idle, key=lambda connection: connection.quiet_since_ms)
            self._on_ended(oldest.address, "others need its place, and it is idle")
            oldest.abort("others need its place")

    def on_closed(self, connection: _ServedConnection) -> None:
        """Forget a connection."""
        if connection in self.connections:
            del self.connections[connection]
            self.strangers.pop(connection, None)
            self._hosts[connection.host] -= 1
            if not self._hosts[connection.host]:
                del self._hosts[connection.host]

    def on_protocol_error(self, connection: _ServedConnection, error: FrameError) -> None:
        """A connection broke the rules."""
        self._on_ended(connection.address, str(error))
