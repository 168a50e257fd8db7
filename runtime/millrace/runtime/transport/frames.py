"""Reads frames: a short header that tells a length, then that many bytes.

A protocol says what a header looks like (`FrameReader.parse_header`); memory, limits and the ways
of a byte are the same for all. The socket is read ahead into one buffer that all connections of a
loop share, as nothing else runs between a read and its parsing. So a header and small payloads cost
one system call, and an idle connection holds no buffer. The rest of a longer payload goes from the
kernel into a buffer of its own. That buffer takes address space for what is announced, but memory
only for what has arrived, and the pool is charged for the latter (`receive_memory`).

A frame is handed over when all of it has come (P78). A connection takes at most `FRAMES_A_TURN`
frames, then others have their turn. `progress` tells how slowly a message arrives; the server ends
connections that are too slow.
"""

import asyncio
import fcntl
import mmap
import sys
import termios
from enum import IntEnum
from typing import Final

import numpy as np

from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.receive_memory import FREE_BYTES, Holder, ReceiveMemory

READ_AHEAD_BYTES: Final = FREE_BYTES
FRAMES_A_TURN: Final = 256
"""Frames of a connection that are taken in a row: small ones cost time, not memory."""
_HUGE_BYTES: Final = 4 << 20
"""From here on the kernel may back a buffer with pages of 2 MiB, of which one byte takes all."""


class FrameError(Exception):
    """The other side broke the rules of the protocol: the connection cannot go on."""


class Hold(IntEnum):
    """Why a connection is not read; bits."""

    ROOM = 1
    """There is no memory for more."""
    TURN = 2
    """Others have their turn."""
    MESSAGES = 4
    """Nobody takes the messages that have come."""
    CALL = 8
    """A call waits until it can begin."""
    CALLER = 16
    """Nobody knows yet who calls."""


Frame = tuple[int, int]
"""Where a frame's payload begins in what was read, and how long it is."""


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

    Attributes:
        received_bytes: all that were read.
    """

    transport: asyncio.Transport

    def __init__(self, ahead: ReadAhead, memory: ReceiveMemory) -> None:
        self._ahead = ahead
        self.holder = Holder(memory, self._on_room)
        self._rest = b""  # Read, and not parsed yet: part of a header, or frames that have to wait.
        self._payload: memoryview | None = None
        self._received = 0  # Bytes of that payload.
        self._begun_ms = 0  # When the first byte of an incomplete message arrived; 0: none is.
        self._begun_at = 0  # `received_bytes` at that time.
        self._holds = 0
        self._held_since_ms = 0
        self._is_done = False
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

    def on_frame(self, payload: bytes | memoryview, *, is_charged: bool) -> bool:
        """Take the payload of the frame whose header came last.

        Args:
            payload: its bytes.
            is_charged: whether they are charged already; if not, this does it.

        Returns:
            Whether no message is incomplete after it.

        Raises:
            FrameError: the frame is not allowed here.
        """
        raise NotImplementedError

    def on_protocol_error(self, error: FrameError) -> None:
        """End the connection for an error of the other side."""
        raise NotImplementedError

    def hold_frames(self, why: Hold) -> None:
        """Take no more frames, and do not read, until `take_frames` with the same reason."""
        if not self._holds:
            self.transport.pause_reading()
            self._held_since_ms = monotonic_now()
        if why is not Hold.ROOM and self._holds & Hold.ROOM:
            self._holds &= ~Hold.ROOM
        self._holds |= why
        if why is not Hold.ROOM:
            self.holder.withdraw()

    def take_frames(self, why: Hold) -> None:
        """Go on after `hold_frames`."""
        if not self._holds & why:
            return
        self._holds &= ~why
        if self._holds or self._is_done:
            return
        self._count_on()
        rest, self._rest = self._rest, b""
        if rest:
            self._parse(rest, len(rest))
        else:
            self._ask_for_room()
        if not self._holds:
            self._read_on()

    @property
    def is_holding(self) -> bool:
        """Whether nothing is read at present, so that nothing can be known of the other side."""
        return bool(self._holds)

    def release(self, size: int) -> None:
        """A complete message of this size, or a part of it, was handed over."""
        holder = self.holder
        holder.release(size)
        if self._holds == Hold.ROOM and not holder.complete_bytes and not self._is_done:
            if holder.used:
                self._on_room()
            else:
                holder.withdraw()
                self._go_on()

    def await_message(self) -> None:
        """Somebody waits for the next message, which so leaves when it is complete."""
        self.holder.is_awaited = True
        if self._holds == Hold.ROOM and not self._is_done:
            self._on_room()

    def close_reading(self) -> None:
        """Forget what was read: the connection is gone."""
        self._is_done = True
        self._rest, self._payload = b"", None
        self.holder.close()

    def progress(self, now_ms: int) -> tuple[int, int]:
        """Return how long a message is incomplete already, in ms, and its bytes that arrived.

        The time in which this side did not read does not count; 0, 0: nothing is incomplete.
        """
        if not self._begun_ms or self._holds or self._has_unread():
            return 0, 0
        return now_ms - self._begun_ms, self.received_bytes - self._begun_at

    def _has_unread(self) -> bool:
        """Whether bytes wait that this side did not come to read: then it is the slow one."""
        found = self.transport.get_extra_info("socket")
        try:
            waiting = fcntl.ioctl(found.fileno(), termios.FIONREAD, bytes(4))
        except (AttributeError, OSError):  # No socket of this machine.
            return False
        return int.from_bytes(waiting, sys.byteorder) > 0

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
        return payload[received : received + self.holder.allowance()]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes that were read."""
        if self._is_done:
            return
        self.received_bytes += nbytes
        payload = self._payload
        if payload is None:
            end = len(self._rest) + nbytes
            self._rest = b""
            self._parse(self._ahead.data, end)
            return
        self.holder.charge(nbytes)
        self._received += nbytes
        if self._received == len(payload):
            self._payload = None
            self._received = 0
            try:
                if self.on_frame(payload, is_charged=True):
                    self._begun_ms = 0
            except FrameError as error:
                self.on_protocol_error(error)
                return
        self._ask_for_room()

    def _parse(self, data: bytearray | bytes, end: int) -> None:
        """Take the frames that were read, and keep what is left."""
        at, frames = 0, 0
        view = memoryview(data)
        is_whole = not self._begun_ms
        try:
            while at < end and not self._holds and not self._is_done:
                if frames == FRAMES_A_TURN:
                    self.hold_frames(Hold.TURN)
                    asyncio.get_running_loop().call_soon(self.take_frames, Hold.TURN)
                    break
                frames += 1
                found = self.parse_header(data, at, end)
                if found is None:
                    is_whole = False
                    break
                begin, length = found
                if end - begin < length:
                    self._begin_payload(view[begin:end], length)
                    at, is_whole = end, False
                    break
                at = begin + length
                is_whole = self.on_frame(bytes(view[begin:at]), is_charged=False)
                if is_whole:
                    self._begun_ms = 0
        except FrameError as error:
            self.on_protocol_error(error)
            return
        if self._is_done:
            return
        if at < end:
            self._rest = bytes(view[at:end])
        if not is_whole and not self._begun_ms:
            self._begun_ms = monotonic_now()
            self._begun_at = self.received_bytes - end + at
            if self._holds:
                self._held_since_ms = self._begun_ms
        self._ask_for_room()

    def _begin_payload(self, part: memoryview, length: int) -> None:
        payload = _buffer(length)
        self._received = len(part)
        payload[: self._received] = part
        self.holder.charge(self._received)
        self._payload = payload

    def _ask_for_room(self) -> None:
        """Read on where nothing is held, or where there is room for more."""
        if not self._holds and not self._is_done and self.holder.used and not self.holder.room():
            self.hold_frames(Hold.ROOM)

    def _on_room(self) -> None:
        if self.transport.is_closing():
            self.holder.withdraw()
        elif self.holder.room():
            self._go_on()

    def _go_on(self) -> None:
        """Read on where only room was lacking."""
        self._holds = 0
        self._count_on()
        self._read_on()

    def _count_on(self) -> None:
        """Do not count the time in which this side waited, and not the other one."""
        if self._begun_ms:
            self._begun_ms += monotonic_now() - self._held_since_ms

    def _read_on(self) -> None:
        if not self._is_done and not self.transport.is_closing():
            self.transport.resume_reading()


def _buffer(length: int) -> memoryview:
    """Return memory that is not written yet: its pages come with the bytes that arrive."""
    if length < _HUGE_BYTES:
        return np.empty(length, np.uint8).data
    pages = mmap.mmap(-1, length)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(pages)
