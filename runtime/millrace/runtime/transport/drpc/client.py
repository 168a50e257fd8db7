"""The calling end of DRPC: a connection, and the call on it.

A connection carries one call at a time. A call that is given up ends its connection: what the other
side still sends for it would hold up the next one, and a lost answer means the same either way
(P78).
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from millrace.core.records.header import Buffer
from millrace.runtime import host
from millrace.runtime.transport.calls import CallError, Message, Metadata, Status, do_nothing
from millrace.runtime.transport.credentials import principal_of_connection
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.connection import Connection, Inbox
from millrace.runtime.transport.drpc.wire import Kind
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.frames import FrameError, ReadAhead
from millrace.runtime.transport.receive_memory import ReceiveMemory


class DrpcStream:
    """A call with a stream in each direction; implements `ClientStream`."""

    def __init__(self, connection: "DrpcConnection") -> None:
        self._connection = connection
        self._inbox = Inbox(connection)
        self._is_over = False
        self._error: CallError | None = None
        self._has_ended_writing = False
        self._details: bytes | None = None
        self.on_draining: Callable[[], None] = do_nothing

    # --- ClientStream ------------------------------------------------------------------------

    async def read(self) -> Message | None:
        """Implement `ClientStream`."""
        return await self._inbox.read()

    async def write(self, *parts: Buffer) -> None:
        """Implement `ClientStream`."""
        connection = self._connection
        if not connection.is_writable:
            await connection.until_writable()
        if self._is_over or connection.is_closed:
            raise self._error or CallError(Status.UNAVAILABLE, "the call has ended")
        connection.send(Kind.MESSAGE, *parts)

    def try_write(self, *parts: Buffer) -> bool:
        """Implement `ClientStream`."""
        connection = self._connection
        if self._is_over or not connection.is_writable:
            return False
        connection.send(Kind.MESSAGE, *parts)
        return True

    async def end_writing(self) -> None:
        """Implement `ClientStream`."""
        if not self._is_over and not self._has_ended_writing:
            self._has_ended_writing = True
            self._connection.send(Kind.CLOSE_SEND)

    def cancel(self) -> None:
        """Implement `ClientStream`."""
        if not self._is_over:
            self._end(CallError(Status.CANCELLED, "the call was given up"))
            self._connection.abort("its call was given up")

    def finish(self) -> None:
        """End a call whose one answer has come: the connection may carry another one."""
        self._end(None)

    @property
    def is_draining(self) -> bool:
        """Whether the other side asks to finish, and to connect again."""
        return self._connection.is_draining

    # --- What the connection tells -----------------------------------------------------------

    def on_packet(self, kind: int, body: bytes | memoryview) -> None:
        """Take a packet of this call; all but messages are released already."""
        if kind == Kind.MESSAGE:
            self._inbox.put(body)
        elif kind == Kind.ERROR_DETAILS:
            self._details = bytes(body)
        elif kind == Kind.ERROR:
            self._end(wire.decode_error(bytes(body), self._details))
        elif kind in (Kind.CLOSE, Kind.CLOSE_SEND):
            if not self._has_ended_writing and kind == Kind.CLOSE_SEND:
                self._connection.send(Kind.CLOSE_SEND)
            self._end(None)
        elif kind == Kind.CANCEL:
            self._end(CallError(Status.CANCELLED, "the other side gave the call up"))

    def on_lost(self, reason: str) -> None:
        """The connection is gone, and with it all that was not answered."""
        self._end(CallError(Status.UNAVAILABLE, reason))

    def _end(self, error: CallError | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._error = error
            self._inbox.end(error)
            self._connection.on_call_ended()


class DrpcConnection(Connection):
    """The calling end of a connection; see `connect`.

    Attributes:
        is_draining: whether the other side asks to finish.
        is_for_one_call: whether it ends with its call.
    """

    def __init__(self, limits: ConnectionLimits, ahead: ReadAhead, memory: ReceiveMemory) -> None:
        super().__init__(limits, ahead, memory)
        self.is_draining = False
        self.is_for_one_call = False
        self._call: DrpcStream | None = None
        self._last_stream = 0
        self._reason = ""

    @property
    def principal(self) -> str:
        """Whom the other end has proved to be by its certificate; empty: nobody."""
        return principal_of_connection(self.transport.get_extra_info("ssl_object"))

    @property
    def is_free(self) -> bool:
        """Whether a call can begin on it."""
        return self._call is None and not self.is_closed and not self.is_draining

    def stream(self, method: str, metadata: Metadata) -> DrpcStream:
        """Begin a call; nothing else may be under way."""
        assert self._call is None, "one call at a time"
        call = self._call = DrpcStream(self)
        if self.is_closed:
            call.on_lost(self._reason)
            return call
        self._last_stream += 1
        self.begin_stream(self._last_stream)
        self.send(Kind.METADATA, wire.encode_metadata(metadata))
        self.send(Kind.INVOKE, method.encode())
        return call

    def on_call_ended(self) -> None:
        """The call is over: what still comes for it is dropped."""
        self._call = None
        if self.is_for_one_call or self.is_draining:
            self.close()
        self.await_message()

    def on_packet(self, kind: int, stream: int, body: bytes | memoryview) -> None:
        call = self._call
        is_current = call is not None and stream == self._last_stream
        if kind == Kind.MESSAGE and is_current:
            assert call is not None
            call.on_packet(kind, body)
            return
        self.release(len(body))
        if stream > self._last_stream:
            raise FrameError("a packet of a call that was not begun")
        if kind == Kind.KEEP_ALIVE:
            self.expect_keep_alive(body)
        elif kind == Kind.DRAIN:
            self.retire()
        elif is_current:
            assert call is not None
            call.on_packet(kind, body)

    def retire(self) -> None:
        """End in good order: the call under way, if there is one, is asked to finish."""
        self.is_draining = True
        if self._call is None:
            self.close()
        else:
            self._call.on_draining()

    def on_lost(self, reason: str) -> None:
        self._reason = reason
        if self._call is not None:
            self._call.on_lost(reason)


async def connect(
    address: str,
    limits: ConnectionLimits,
    *,
    ahead: ReadAhead,
    memory: ReceiveMemory,
    tls: ssl.SSLContext | None = None,
) -> DrpcConnection:
    """Open a connection.

    Args:
        address: `host:port`.
        limits: of what is received.
        ahead: of the loop.
        memory: counts what has arrived.
        tls: of the connection; None: it is in plain text.

    Raises:
        OSError: the other end cannot be reached.
    """
    connection: Any = await host.current.connect(
        address, lambda: DrpcConnection(limits, ahead, memory), tls
    )
    assert isinstance(connection, DrpcConnection)
    return connection


async def call(
    connection: DrpcConnection, method: str, request: Buffer, metadata: Metadata
) -> bytes:
    """Make a call with one request and one response.

    Raises:
        CallError: it failed.
    """
    stream = connection.stream(method, metadata)
    try:
        await stream.write(request)
        await stream.end_writing()
        response = await stream.read()
    except asyncio.CancelledError:
        stream.cancel()
        raise
    stream.finish()
    if response is None:
        raise CallError(Status.INTERNAL, "the call ended without a response")
    return bytes(response)
