"""One end of a DRPC connection: packets in, packets out.

A connection carries one call at a time. Packets of one frame are written whole, and may come in
several. Ids never go back; a frame with a greater id drops the packet before it that did not end.
A packet counts when it is whole, and for its own call alone (P78).
"""

import asyncio
from typing import Final

from millrace.core.numbers import parse_whole_number
from millrace.core.records.header import Buffer
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.wire import Kind
from millrace.runtime.transport.framed_connection import ConnectionLimits, FramedConnection
from millrace.runtime.transport.frames import Frame, FrameError, Hold, ReadAhead
from millrace.runtime.transport.receive_memory import ReceiveMemory

_KEEPALIVE_MS_MIN: Final = 1000
_KEEPALIVE_MS_MAX: Final = 99_999_999
_FREE_FRAMES: Final = 64
_FRAME_BYTES_MIN: Final = 256
"""A packet may have so many frames, and one more for each so many bytes: smaller frames would cost
more time than their bytes are worth."""


class Connection(FramedConnection):
    """One end of a connection.

    Args:
        limits: of what is received.
        ahead: of the connection's loop.
        memory: counts what has arrived.
    """

    def __init__(self, limits: ConnectionLimits, ahead: ReadAhead, memory: ReceiveMemory) -> None:
        super().__init__(limits, ahead, memory)
        self._stream_sent = 0  # The id of the stream of the last packet that was sent.
        self._message_sent = 0
        self._stream = 0  # The id of the frame that came last.
        self._message = 0
        self._packet_ended = True
        self._parts: list[bytes | memoryview] = []
        self._parts_bytes = 0
        self._frames = 0
        self._kind = 0
        self._ticking: asyncio.TimerHandle | None = None
        self._keepalive_ms = limits.keepalive_ms
        self._peer_keepalive_ms = 0  # What the other side promises; 0: nothing.
        self._sent_packets = 0
        self._seen = (0, 0)  # Packets sent and bytes received at the last tick.
        self._silent_ms = 0  # How long nothing has come.

    # --- For the subclass --------------------------------------------------------------------

    def on_packet(self, kind: int, stream: int, body: bytes | memoryview) -> None:
        """Take a packet whose kind is known; its bytes are charged until `release`.

        Raises:
            FrameError: it is not allowed here.
        """
        raise NotImplementedError

    def on_ignored(self, size: int) -> None:
        """A packet of so many bytes was ignored: its kind is not known, or its end did not come.

        Raises:
            FrameError: there were too many.
        """

    # --- Writing -----------------------------------------------------------------------------

    def begin_stream(self, stream: int) -> None:
        """Have the next packets belong to a stream."""
        self._stream_sent, self._message_sent = stream, 0
        if self._ticking is None and self._keepalive_ms:
            self._arm_tick()

    def send(self, kind: int, *parts: Buffer, is_ignorable: bool = False) -> None:
        """Send a packet in one frame; the parts are not joined, and must not change any more."""
        if self.is_closed:
            return
        self._message_sent += 1
        self._sent_packets += 1
        length = sum(map(len, parts)) if len(parts) != 1 else len(parts[0])
        header = wire.frame_header(
            kind, self._stream_sent, self._message_sent, length, is_ignorable=is_ignorable
        )
        if length:
            self.transport.writelines((header, *parts))
        else:
            self.transport.write(header)

    # --- Keep-alive --------------------------------------------------------------------------

    # Both sides promise to say something in each interval, while a call is known: so a process that
    # stands still is noticed, though its machine still acknowledges what it gets. A packet of the
    # last stream's id, as Go's peer cancels its call for a greater one.

    def ask_keep_alive(self, text: str) -> None:
        """Say more often that this process lives, where the other side asks for it."""
        asked_ms = parse_whole_number(text, _KEEPALIVE_MS_MAX)
        if asked_ms is not None and self._keepalive_ms:
            self._keepalive_ms = min(self._keepalive_ms, max(asked_ms, _KEEPALIVE_MS_MIN))

    def expect_keep_alive(self, body: bytes | memoryview) -> None:
        """Take what the other side promises: an interval in ms, in digits."""
        promised_ms = parse_whole_number(bytes(body).decode("ascii", "replace"), _KEEPALIVE_MS_MAX)
        if promised_ms is not None:
            self._peer_keepalive_ms = promised_ms

    def _arm_tick(self) -> None:
        seconds = self._keepalive_ms / 2000
        self._ticking = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        if self.is_closed:
            return
        sent, received = self._seen
        if sent == self._sent_packets and self.is_writable:
            said = b"%d" % self._keepalive_ms
            self.send(Kind.KEEP_ALIVE, said, is_ignorable=True)
        has_come = self.received_bytes != received
        self._silent_ms = 0 if has_come else self._silent_ms + self._keepalive_ms // 2
        allowed_ms = self._peer_keepalive_ms + self._limits.dead_after_ms
        if self._peer_keepalive_ms and self._silent_ms > allowed_ms and not self.is_holding:
            self.abort(f"the other side has said nothing for {self._silent_ms} ms")
            return
        self._seen = (self._sent_packets, self.received_bytes)
        self._arm_tick()

    def _end(self, reason: str) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self._parts.clear()
        super()._end(reason)

    # --- Frames ------------------------------------------------------------------------------

    def parse_header(self, data: bytearray | bytes, at: int, end: int) -> Frame | None:
        """Implement `FrameReader`."""
        header = wire.parse_header(data, at, end)
        if header is None:
            return None
        kind, control, stream, message, length, payload_at = header
        if not self._packet_ended and stream == self._stream and message == self._message:
            if kind != self._kind:
                raise FrameError("the kind of a packet changes between its frames")
        else:
            last = (self._stream, self._message)
            if not stream or not message or (stream, message) <= last:
                raise FrameError(
                    f"the ids of a frame go back: stream {stream}, message {message} after stream "
                    f"{self._stream}, message {self._message}"
                )
            if kind not in _KINDS and not control & wire.IGNORABLE:
                # At once: other protocols are told so, and do not wait for the rest of a packet.
                raise FrameError(f"packets of kind {kind} are not known here")
            if not self._packet_ended:
                self._drop_packet()
            self._stream, self._message, self._kind = stream, message, kind
        if self._parts_bytes + length > self.message_bytes_max:
            raise FrameError(
                f"a message has {self._parts_bytes + length} bytes or more, and "
                f"{self.message_bytes_max} are allowed: send less at a time"
            )
        self._frames += 1
        if self._frames > _FREE_FRAMES + (self._parts_bytes + length) // _FRAME_BYTES_MIN:
            raise FrameError(f"a packet comes in {self._frames} small frames: send larger ones")
        self._packet_ended = control & wire.LAST == wire.LAST
        return payload_at, length

    def on_frame(self, payload: bytes | memoryview, *, is_charged: bool) -> bool:
        """Implement `FrameReader`."""
        holder, body = self.holder, payload
        if self._packet_ended and not self._parts:
            if is_charged:
                holder.complete(len(body))
            else:
                holder.charge_message(len(body))
        else:
            if not is_charged:
                holder.charge(len(payload))
            if len(payload):
                self._parts.append(payload)
                self._parts_bytes += len(payload)
            if not self._packet_ended:
                return False
            body = b"".join(self._parts)
            self._parts.clear()
            holder.complete(len(body))
        self._parts_bytes = self._frames = 0
        if self._kind in _KINDS:
            self.on_packet(self._kind, self._stream, body)
        else:
            self.release(len(body))
            self.on_ignored(len(body))
        return True

    def _drop_packet(self) -> None:
        """Forget the packet that did not end."""
        size, self._parts_bytes, self._frames = self._parts_bytes, 0, 0
        self._parts.clear()
        if not self._packet_ended:
            self._packet_ended = True
            self.holder.complete(size)
            self.release(size)
            self.on_ignored(size)

    def on_protocol_error(self, error: FrameError) -> None:
        """Implement `FrameReader`."""
        self.abort(f"the other side broke DRPC's rules: {error}")


_KINDS: Final = frozenset(Kind)


class Inbox:
    """The messages of a call that arrived and were not read yet.

    Few: when `_MESSAGES_MAX` or `_BYTES_MAX` wait, the connection is not read.

    Args:
        connection: that they come by.
    """

    _MESSAGES_MAX: Final = 64
    _BYTES_MAX: Final = 1 << 20

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: list[bytes | memoryview] = []
        self._next = 0
        self._bytes = 0
        self._is_held = False
        self._news: asyncio.Future[None] | None = None
        self._is_ended = False
        self._error: Exception | None = None
        connection.holder.is_awaited = False

    def put(self, message: bytes | memoryview) -> None:
        """Take a message, whose bytes are charged."""
        if self._is_ended:
            self._connection.release(len(message))
            return
        self._connection.holder.is_awaited = False
        self._messages.append(message)
        self._bytes += len(message)
        waiting = len(self._messages) - self._next
        if (waiting >= self._MESSAGES_MAX or self._bytes >= self._BYTES_MAX) and not self._is_held:
            self._is_held = True
            self._connection.hold_frames(Hold.MESSAGES)
        self._wake()

    def end(self, error: Exception | None) -> None:
        """No more messages come; None: that is in order."""
        if not self._is_ended:
            self._is_ended = True
            self._error = error
            self._wake()

    def drop(self) -> None:
        """Forget what waits, and what comes: the call is over."""
        self._is_ended = True
        if not self._connection.is_closed and self._bytes:
            self._connection.release(self._bytes)
        self._messages.clear()
        self._next = self._bytes = 0
        self._connection.await_message()  # First: another call may begin with the next frame.
        self._take_frames()

    async def read(self) -> bytes | memoryview | None:
        """Return the next message; None: there are no more.

        Raises:
            Exception: that `end` was given.
        """
        while self._next >= len(self._messages):
            if self._is_ended:
                if self._error is not None:
                    raise self._error
                return None
            self._news = asyncio.get_running_loop().create_future()
            self._connection.await_message()
            await self._news
        message = self._messages[self._next]
        self._next += 1
        self._bytes -= len(message)
        if self._next == len(self._messages):
            self._messages.clear()
            self._next = 0
        if not self._connection.is_closed:
            self._connection.release(len(message))
        waiting = len(self._messages) - self._next
        if waiting <= self._MESSAGES_MAX // 2 and self._bytes <= self._BYTES_MAX // 2:
            self._take_frames()
        return message

    def _take_frames(self) -> None:
        if self._is_held:
            self._is_held = False
            if not self._connection.is_closed:
                self._connection.take_frames(Hold.MESSAGES)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
