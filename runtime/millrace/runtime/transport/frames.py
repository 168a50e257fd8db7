"""Reads frames: a short header that tells a length, then that many bytes.

A protocol says what a header looks like (`FrameReader.parse_header`); memory, limits and the ways
of a byte are the same for all. The socket is read ahead into one buffer that all connections of a
loop share, as nothing else runs between a read and its parsing. So a header and small payloads cost
one system call, and an idle connection holds no buffer. The rest of a longer payload goes from the
kernel into a buffer of its own. That buffer takes address space for what is announced, but memory
only for what has arrived, and the pool is charged for the latter (`receive_memory`).

A frame that arrives too slowly is cut by whoever watches the connections: `frame_age_ms`.
"""

import asyncio
from typing import Final, NamedTuple

import numpy as np

from millrace.runtime import host
from millrace.runtime.transport.receive_memory import Holder, ReceiveMemory

READ_AHEAD_BYTES: Final = 16 << 10


class FrameError(Exception):
    """The other side broke the rules of the protocol: the connection cannot go on."""


class Frame(NamedTuple):
    """Where a frame's payload begins in what was read, and how long it is."""

    payload_at: int
    length: int


class ReadAhead:
    """The buffer of the connections of one event loop."""

    def __init__(self, size: int = READ_AHEAD_BYTES) -> None:
        self.data = bytearray(size)
        self.view = memoryview(self.data)


class FrameReader(asyncio.BufferedProtocol):
    """One connection; the subclass knows the protocol.

    Args:
        ahead: of the connection's loop.
        memory: what counts arrived bytes.
    """

    transport: asyncio.Transport

    def __init__(self, ahead: ReadAhead, memory: ReceiveMemory) -> None:
        self._ahead = ahead
        self._holder = Holder(memory, self._on_room)
        self._rest = b""  # Read, and not parsed yet: part of a header, or frames that have to wait.
        self._payload: memoryview | None = None
        self._received = 0  # Bytes of that payload.
        self._begun_ms = 0  # When the first byte of an incomplete frame arrived; 0: there is none.
        self._is_held = False  # The subclass takes no frames.
        self._lacks_room = False
        self.received_bytes = 0

    # --- For the subclass --------------------------------------------------------------------

    def parse_header(self, data: bytearray | bytes, at: int, end: int) -> Frame | None:
        """Read a header, and remember it for `on_frame`.

        Args:
            data: what was read.
            at: where the header begins.
            end: where the known bytes end; what follows means nothing.

        Returns:
            The frame's place; None: the header is incomplete.

        Raises:
            FrameError: that is no header, or a limit is exceeded.
        """
        raise NotImplementedError

    def on_frame(self, payload: bytes | memoryview) -> None:
        """Take the payload of the frame whose header came last; its bytes are charged.

        Raises:
            FrameError: the frame is not allowed here.
        """
        raise NotImplementedError

    def on_protocol_error(self, error: FrameError) -> None:
        """End the connection for an error of the other side."""
        raise NotImplementedError

    def hold_frames(self) -> None:
        """Take no more frames until `take_frames`; nothing is read meanwhile."""
        if not self._is_held:
            self._is_held = True
            self.transport.pause_reading()

    def take_frames(self) -> None:
        """Go on after `hold_frames`."""
        if not self._is_held:
            return
        self._is_held = False
        if self._rest:
            rest, self._rest = self._rest, b""
            self._parse(rest, len(rest))
        if not self._is_held and not self._lacks_room and not self.transport.is_closing():
            self.transport.resume_reading()

    @property
    def is_holding(self) -> bool:
        """Whether nothing is read at present, so that nothing can be known of the other side."""
        return self._is_held or self._lacks_room

    def release(self, size: int) -> None:
        """A payload of this size was handed over."""
        self._holder.release(size)

    def close_reading(self) -> None:
        """Forget what was read: the connection is gone."""
        self._rest, self._payload = b"", None
        self._holder.close()

    @property
    def is_contended(self) -> bool:
        """Whether other connections wait for memory."""
        return self._holder._memory.is_contended

    def frame_progress(self, now_ms: int) -> tuple[int, int]:
        """Return how long a frame is incomplete already, in ms, and its bytes that arrived."""
        if not self._begun_ms or self._is_held or self._lacks_room:
            return 0, 0
        return now_ms - self._begun_ms, self._received

    # --- asyncio.BufferedProtocol ------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        payload = self._payload
        if payload is None:
            view, rest = self._ahead.view, self._rest
            if not rest:
                return view
            view[: len(rest)] = rest
            return view[len(rest) :]
        received = self._received
        missing = len(payload) - received
        room = self._holder.room()
        # Without room it will not be read again; this read may still bring a step.
        return payload[received : received + min(missing, room or 1)]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that were read."""
        self.received_bytes += nbytes
        payload = self._payload
        if payload is None:
            end = len(self._rest) + nbytes
            self._rest = b""
            self._parse(self._ahead.data, end)
            return
        self._holder.charge(nbytes)
        self._received += nbytes
        if self._received == len(payload):
            self._payload = None
            self._complete(payload)
        elif not self._holder.room():
            self._lacks_room = True
            self.transport.pause_reading()

    def _complete(self, payload: memoryview) -> None:
        self._begun_ms = self._received = 0
        self._holder.on_message()
        try:
            self.on_frame(payload)
        except FrameError as error:
            self.on_protocol_error(error)

    def _parse(self, data: bytearray | bytes, end: int) -> None:
        """Take the frames that were read, and keep what is left."""
        at = 0
        view = memoryview(data)
        try:
            while at < end and not self._is_held:
                found = self.parse_header(data, at, end)
                if found is None:
                    break
                begin, length = found
                if end - begin < length:
                    self._begin_payload(view[begin:end], length)
                    return
                at = begin + length
                self._begun_ms = 0
                self._holder.charge(length)
                self.on_frame(bytes(view[begin:at]))
        except FrameError as error:
            self.on_protocol_error(error)
            return
        self._rest = bytes(view[at:end])
        if self._rest and not self._is_held and not self._begun_ms:
            self._begun_ms = _now_ms()

    def _begin_payload(self, part: memoryview, length: int) -> None:
        payload = np.empty(length, np.uint8).data
        self._received = len(part)
        payload[: self._received] = part
        self._holder.charge(self._received)
        self._payload = payload
        self._begun_ms = self._begun_ms or _now_ms()
        if not self._holder.room():
            self._lacks_room = True
            self.transport.pause_reading()

    def _on_room(self) -> None:
        self._lacks_room = False
        if not self._is_held and not self.transport.is_closing():
            self.transport.resume_reading()


def _now_ms() -> int:
    return host.current.monotonic_ns() // 1_000_000
