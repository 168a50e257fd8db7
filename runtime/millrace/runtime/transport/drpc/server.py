"""The serving end of DRPC: a listener, its connections, and the call of each.

A connection has one call at a time. A new call ends the one before, and begins when its handler has
returned; nothing is read meanwhile. Packets of calls that have ended are ignored, but not without
end. Source: storj.io/drpc, packages drpcmanager and drpcserver.

Where callers have to be known (`admit`), a connection is a stranger's until one is: of its first
call nothing is read but who makes it, and when nobody is known, the connection ends with the call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from millrace.core.errors import BrokerShuttingDownError, MillraceError
from millrace.core.numbers import parse_whole_number
from millrace.core.records.header import Buffer
from millrace.proto.errors import error_to_bytes
from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.calls import Message, Metadata, ServerCall, Status
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.connection import Connection, Inbox
from millrace.runtime.transport.drpc.wire import Kind
from millrace.runtime.transport.frames import FrameError, Hold
from millrace.runtime.transport.served_connections import (
    ConnectionServer,
    ServedConnection,
    ServerLimits,
)

_DEADLINE_MS_MAX: Final = 10**15 - 1
_VAIN_MS: Final = 10_000
_VAIN_BYTES_MAX: Final = 16 << 20
_VAIN_PACKETS_MAX: Final = 1000
"""How many packets and bytes of a connection may be ignored in `_VAIN_MS`: those for a call that
has ended, of an unknown kind, and for an unknown method. Some are usual: messages that are under
way when their call ends."""
_DROPPED_BYTES_MAX: Final = 4 << 20
"""How much may come by a connection whose caller was refused."""

Method = Callable[[ServerCall], Awaitable[None]]
"""Serves a call; raises `MillraceError` for one that fails as a whole."""


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


class _ServedConnection(ServedConnection, Connection):
    def __init__(self, server: "DrpcServer") -> None:
        Connection.__init__(self, server.limits.connection, server.ahead, server.memory)
        self.be_served(server)
        self._server = server
        if server.admit is not None:
            self.message_bytes_max = wire.METADATA_BYTES_MAX
        self.call: _Call | None = None
        self._metadata: tuple[int, Metadata] = (0, {})
        self._dropped_bytes = 0
        self._vain_since_ms = self._vain_bytes = self._vain_packets = 0
        self._next: tuple[int, str] | None = None  # A call that waits for the end of the last one.

    @property
    def is_busy(self) -> bool:
        """Whether it has a call."""
        return self.call is not None

    @property
    def tasks(self) -> Sequence["asyncio.Task[Any]"]:
        """That of its call."""
        return () if self.call is None or self.call.task is None else (self.call.task,)

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
        # A connection that drains stays for a moment (`is_drained`): the caller closes it when it
        # has the answer. Go's client may lose one that is followed by the end.

    def _end_stranger(self) -> None:
        """Take nothing more, as nobody is known by the first call, and have the caller go.

        What still comes is dropped, within a bound: a connection that is closed before it has read
        all resets, and its caller would not learn why.
        """
        self.drain_since(monotonic_now())
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
        self._server.on_broken_rules(self, error)
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

    def ask_to_go(self) -> None:
        """Ask it by a packet: the caller closes the connection when it has no call."""
        if self.has_called:
            # A call may be on its way (P79).
            self.send(Kind.DRAIN, is_ignorable=True)
        else:
            self.close()


_ENDS: Final = (Kind.CANCEL, Kind.CLOSE, Kind.CLOSE_SEND, Kind.ERROR)


def _deadline_s(metadata: Metadata) -> float | None:
    """Return the seconds that a call may take, by its metadata."""
    text = metadata.get(wire.DEADLINE, "")
    deadline_ms = parse_whole_number(text, _DEADLINE_MS_MAX)
    return None if deadline_ms is None else deadline_ms / 1000


class DrpcServer(ConnectionServer[_ServedConnection]):
    """Listens, and serves calls.

    Args:
        limits: of its connections.
        status_of: returns the status of a call that fails for an error.
        on_failure: called with what a handler raised that is no `MillraceError`: a bug.
        on_ended: called with an address and a reason when a connection was not taken, or was ended
            for what it did.

    Attributes:
        methods: that it serves, by `/package.Service/Method`.
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
        super().__init__(limits, on_ended=on_ended)
        self.status_of = status_of
        self.on_failure = on_failure
        self.methods: dict[str, Method] = {}

    def make_connection(self) -> _ServedConnection:
        """Return a connection of DRPC."""
        return _ServedConnection(self)
