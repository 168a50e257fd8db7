"""One end of a connection of frames: what is written, when it ends, and whether the peer lives.

`FrameReader` reads; a protocol is a subclass. What is written waits in the process only within a
bound; beyond it, `until_writable` waits. A peer whose machine acknowledges nothing that it is sent
is dead, and its connection ends.
"""

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import Any, Final

from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.acknowledgements import Acknowledgements
from millrace.runtime.transport.frames import FrameReader, ReadAhead
from millrace.runtime.transport.receive_memory import ReceiveMemory

_WRITE_BYTES_MAX: Final = 256 << 10
"""Bytes that wait in the process to be sent, beside one message. The kernel holds more."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection.

    Attributes:
        message_bytes_max: of a received message.
        keepalive_ms: a connection says so often, at least, that its process lives; 0: never.
        dead_after_ms: what was sent and not acknowledged by the other machine for so long ends it.
    """

    message_bytes_max: int
    keepalive_ms: int
    dead_after_ms: int


class _Gone(asyncio.Transport):
    """The transport of a connection that is gone."""

    def is_closing(self) -> bool:
        return True

    def close(self) -> None:
        """It is."""

    def abort(self) -> None:
        """It is gone."""

    def pause_reading(self) -> None:
        """Nothing comes."""

    def resume_reading(self) -> None:
        """Nothing comes."""

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


_GONE: Final = _Gone()


class FramedConnection(FrameReader):
    """One end of a connection; the subclass knows the protocol.

    Args:
        limits: of what is received.
        ahead: of the connection's loop.
        memory: counts what has arrived.

    Attributes:
        message_bytes_max: of a received message.
        is_closed: whether it has ended.
    """

    def __init__(self, limits: ConnectionLimits, ahead: ReadAhead, memory: ReceiveMemory) -> None:
        super().__init__(ahead, memory)
        self._limits = limits
        self.message_bytes_max = limits.message_bytes_max
        self.is_closed = False
        self._is_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._looking: asyncio.TimerHandle | None = None

    # --- For the subclass --------------------------------------------------------------------

    def on_lost(self, reason: str) -> None:
        """The connection is gone."""
        raise NotImplementedError

    @property
    def is_writable(self) -> bool:
        """Whether what is sent now does not wait in the process for long."""
        return not self._is_paused and not self.is_closed

    async def until_writable(self) -> None:
        """Return when there is room for another message, or the connection is gone."""
        while self._is_paused and not self.is_closed:
            if self._writable is None:
                self._writable = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Close the connection after what was sent."""
        if not self.is_closed:
            self.transport.close()

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        if not self.is_closed:
            self.transport.abort()
            self._end(reason)

    def _end(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._looking is not None:
            self._looking.cancel()
        self.close_reading()
        self._wake_writer()
        self.on_lost(reason)

    # --- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Take the transport."""
        self.transport = transport
        transport.set_write_buffer_limits(_WRITE_BYTES_MAX)
        found = transport.get_extra_info("socket")
        if found is not None:
            _configure(found, self._limits.dead_after_ms)
            self._acknowledgements = Acknowledgements(found, self._limits.dead_after_ms)
            self._arm_look()

    def _arm_look(self) -> None:
        seconds = self._limits.dead_after_ms / 3000
        self._looking = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        if self.is_closed:
            return
        if self._acknowledgements.is_dead(monotonic_now()):
            self.abort("the other machine acknowledges nothing that it is sent")
            return
        self._arm_look()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what depends on the connection."""
        self._end("the connection was closed" if exc is None else f"the connection broke: {exc}")
        # This object is part of a cycle, and stays until the garbage collector comes. What TLS has
        # for it, half a megabyte, must not.
        self.transport = _GONE

    def eof_received(self) -> bool:
        """The other side sends nothing more: no protocol here has such a state, so it ends."""
        return False

    def pause_writing(self) -> None:
        """Too much waits to be sent."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """There is room again."""
        self._is_paused = False
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None


def _configure(found: socket.socket, dead_after_ms: int) -> None:
    """Set what a socket has that carries calls: no delays, and an end when an idle peer is gone."""
    with contextlib.suppress(OSError, AttributeError):  # Not TCP, or not Linux.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        seconds = max(1, dead_after_ms // 3000)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
