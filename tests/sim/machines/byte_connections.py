"""Connections of bytes between simulated processes: what `Host.bind` and `Host.connect` give.

Bytes arrive in order, in pieces whose sizes the seed chooses, so a frame may be cut anywhere, also
in its header. Those in flight are bounded, as by TCP's window. What frames mean is the product's.

The machine keeps a connection, and not the process: a paused process still acknowledges what
arrives, so only a machine that is cut off or gone is noticed by keepalive. One that is back answers
with a reset, as it does for a connection that its process has closed.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tests.sim.lines import Line
from tests.sim.machines.network import CONNECT_US, KEEPALIVE_US, Link, Network, Process

WINDOWS: Final = (1 << 10, 16 << 10, 256 << 10)
"""Bytes in flight at most, and bytes that a process may write before it has to pause."""
_CUT_SHARE: Final = 0.15
"""The share of pieces that arrive in two parts."""
_SLASH: Final = b"/"
_METHOD_BYTES_MAX: Final = 100
_RESET: Final = "Connection reset by peer"

Factory = Callable[[], asyncio.BufferedProtocol]


class ByteEnd(Line):
    """One end of a connection; the part of `asyncio.Transport` that the product uses.

    Args:
        address: of the other end.
        factory: makes the protocol, when the connection is there.
    """

    is_kept_by_machine = True
    peer: "ByteEnd"

    def __init__(
        self, network: Network, process: Process, address: tuple[str, int], factory: Factory
    ) -> None:
        super().__init__(network, process)
        self.protocol: asyncio.BufferedProtocol | None = None
        self._factory = factory
        self._address = address
        self._dice = network.dice
        self._window = self._dice.choice(WINDOWS)
        self._high = self._dice.choice(WINDOWS)
        # What is sent.
        self._unsent = bytearray()
        self._unread = 0  # Bytes in flight, and those that the peer has not read.
        self._last_piece = bytearray()
        self._last_sent_at = -1
        self._is_paused = False
        self._cut_after = -1  # After so many bytes the connection breaks; below 0: it does not.
        self._piece_max = 1 << 30
        self._late_us = 0
        # What has arrived.
        self._inbox = bytearray()
        self._has_ended = False  # The peer sends no more.
        self._is_reading = True
        self._wants_read = False
        # How it ends.
        self._is_closing = False
        self._is_lost = False
        self._is_told = False
        self._is_mute = False

    def begin(self) -> asyncio.BufferedProtocol:
        """The connection is there: give it to a protocol, in its process."""
        self.protocol = self._factory()
        self.protocol.connection_made(self)  # type: ignore[arg-type]
        if self._is_lost:  # Before anybody could be told.
            self.process.loop.call_soon(self._tell_lost, ConnectionError(_RESET))
        self._look()
        return self.protocol

    # --- asyncio.Transport: sending ----------------------------------------------------------

    def write(self, data: Any) -> None:
        self.writelines((data,))

    def writelines(self, parts: Any) -> None:
        if self._is_closing:
            return
        for part in parts:
            if part[:1] == _SLASH and len(part) < _METHOD_BYTES_MAX:
                self._begin_call(bytes(part).decode())
            self._unsent += part
        self._pump()
        if not self._is_paused and len(self._unsent) > self._high and self.protocol is not None:
            self._is_paused = True
            self.protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def _begin_call(self, method: str) -> None:
        """Let weather know whose messages come now; they travel apart from what was before."""
        self.method = self.peer.method = method
        self._last_sent_at = -1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Choose a bound by the seed: far fewer bytes are written here than the product allows."""
        del low
        self._high = min(self._high, high or 0)

    def _pump(self) -> None:
        dice, unsent = self._dice, self._unsent
        while unsent and not self._is_lost and (room := self._window - self._unread) > 0:
            size = min(len(unsent), room, self._piece_max)
            if size > 1 and dice.random() < _CUT_SHARE:
                size = 1 + int(dice.random() * (size - 1))
            piece = unsent[:size]
            del unsent[:size]
            self._unread += size
            self._send(piece)
        if self._is_paused and len(unsent) <= self._high // 4:
            self._is_paused = False
            self.process.loop.call_soon(self._resume_writing)
        if self._is_closing and not unsent and not self._is_lost:
            self._is_lost = True
            self._post(self._end, self.peer._on_end)
            self.process.loop.call_soon(self._tell_lost, None)

    def _resume_writing(self) -> None:
        if self.protocol is not None and not self._is_paused and not self._is_lost:
            self.protocol.resume_writing()

    def _send(self, piece: bytearray) -> None:
        now = self.network.world.now
        if self._cut_after >= 0:
            left = self._cut_after - len(piece)
            self._cut_after = max(left, 0)
            if left <= 0:
                self._post(self.peer._on_piece, piece[:left] if left else piece)
                self._break()
                return
        elif now == self._last_sent_at and not self._late_us and self._dice.random() >= _CUT_SHARE:
            self._last_piece += piece  # Both were written in one turn, and travel together.
            return
        self._last_piece, self._last_sent_at = piece, now
        self._post(self.peer._on_piece, piece)

    def _break(self) -> None:
        """Break the connection where it is: nothing that is sent now arrives."""
        self.network.lost_calls += 1
        self._post(self.peer.fail, _RESET)
        self.network.world.after(self._delay(self._link()), "a call breaks", self.fail, _RESET)
        self._window = -1

    def _delay(self, link: Link) -> int:
        late_us = int(self._dice.random() * self._late_us) if self._late_us else 0
        return link.delay(self.method) + late_us

    def _on_room(self) -> None:
        if not self.process.is_dead:
            self._pump()

    # --- asyncio.Transport: receiving --------------------------------------------------------

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._is_reading = True
            self._look()

    def _on_piece(self, piece: bytearray) -> None:
        if self.process.is_dead or self._is_lost:
            self._answer_with_reset()
            return
        self._inbox += piece
        self._look()

    def _answer_with_reset(self) -> None:
        link = self._link()
        if not self._is_mute and self.network.has_power(link.source) and not link.is_held:
            self.network.world.after(link.delay(), link.label, self.peer.fail, _RESET)

    def _on_end(self) -> None:
        self._has_ended = True
        self._look()

    def _look(self) -> None:
        """Have the process read what is there."""
        has_news = bool(self._inbox) or self._has_ended
        if not has_news or self._wants_read or not self._is_reading or self.protocol is None:
            return
        self._wants_read = True
        self.process.loop.call_soon(self._read)

    def _read(self) -> None:
        self._wants_read = False
        protocol = self.protocol
        if not self._is_reading or protocol is None:
            return
        inbox = self._inbox
        if not inbox:
            self._is_reading = False
            if not protocol.eof_received():
                self.close()
            return
        view: Any = protocol.get_buffer(-1)
        size = min(len(inbox), len(view))
        if size > 1 and self._dice.random() < _CUT_SHARE:
            size = 1 + int(self._dice.random() * (size - 1))
        view[:size] = inbox[:size]
        del inbox[:size]
        peer = self.peer
        peer._unread -= size
        if peer._unsent:
            self._post(peer._on_room)
        protocol.buffer_updated(size)
        self._look()

    # --- asyncio.Transport: the rest ---------------------------------------------------------

    def get_extra_info(self, name: str) -> Any:
        if name == "ssl_object" and self.network.is_encrypted:
            return _ENCRYPTED
        return self._address if name == "peername" else None

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close it after what was written; what arrives meanwhile is lost."""
        if not self._is_closing:
            self._is_closing, self._is_reading = True, False
            self._pump()

    def abort(self) -> None:
        """Close it at once; what is in flight still arrives."""
        self._is_closing, self._is_reading = True, False
        if not self._is_lost:
            self._is_lost = True
            self._post(self._end, self.peer.fail, _RESET)
            self.process.loop.call_soon(self._tell_lost, None)

    def _end(self, tell: Callable[..., None], *arguments: object) -> None:
        # Only now: a link that works again must find an end that has still something to say.
        self.network.forget(self)
        tell(*arguments)

    # --- What happens to it ------------------------------------------------------------------

    def fail(self, details: str) -> None:
        """Note that the connection is broken; what has arrived may still be read."""
        if self._is_lost or self.process.is_dead:
            return
        self._is_lost = self._is_closing = True
        self.network.forget(self)
        self.process.loop.call_soon(self._tell_lost, ConnectionError(details))

    def _tell_lost(self, error: Exception | None) -> None:
        self._is_reading = False
        self._inbox.clear()
        self._unsent.clear()
        if self.protocol is not None and not self._is_told:
            self._is_told = True
            self.protocol.connection_lost(error)

    def cut_after(self, size: int) -> None:
        """Let the connection break after so many bytes from here; below 0: it does not."""
        self._cut_after = size

    def slow_down(self, piece_max: int, late_us: int) -> None:
        """Send small pieces from here, each of them up to so much later."""
        self._piece_max, self._late_us = piece_max, late_us

    def vanish(self) -> None:
        """Lose this end alone. The other one learns of it by keepalive."""
        self._is_mute = True
        self.fail("Connection timed out")
        world = self.network.world
        world.after(KEEPALIVE_US, "keepalive", self.peer.fail, "Connection timed out")


class _Tls:
    """What is told of a connection that nobody else reads; no end of it shows a certificate."""

    def getpeercert(self) -> None:
        """Return None."""


_ENCRYPTED: Final = _Tls()


# --- How connections begin ---------------------------------------------------------------------


class SimulatedListening:
    """A port that is bound; implements `Listening` and `Accepting`."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        name, _, port = address.rpartition(":")
        self.port = int(port) or network.new_port()
        self.process = process
        self.is_serving = False
        self._factory: Factory | None = None
        network.listen(f"{name}:{self.port}", self)

    async def accept(self, factory: Factory, tls: object = None) -> "SimulatedListening":
        del tls
        self._factory = factory
        self.is_serving = True
        return self

    def close(self) -> None:
        self.is_serving = False

    def take(self, network: Network, address: tuple[str, int]) -> ByteEnd:
        """Return the end of a connection that arrives; its protocol gets it soon."""
        assert self._factory is not None
        end = ByteEnd(network, self.process, address, self._factory)
        self.process.loop.call_soon(end.begin)
        return end


async def connect(
    network: Network, process: Process, address: str, factory: Factory
) -> asyncio.BufferedProtocol:
    """Open a connection; return its protocol.

    Raises:
        OSError: nobody listens there, or there is no answer.
    """
    name, _, port = address.rpartition(":")
    here, there = process.machine.name, network.name_of(name)
    to, back = network.link(here, there), network.link(there, here)
    answered: asyncio.Future[ByteEnd] = process.loop.create_future()
    world = network.world
    caller = ("10.0.0.1", network.new_port())

    def settle(end: ByteEnd | None, error: OSError | None) -> None:
        if answered.done() or process.is_dead:
            if end is not None:
                end.abort()
        elif end is not None:
            answered.set_result(end)
        elif error is not None:
            answered.set_exception(error)

    def arrive() -> None:
        if not network.has_power(there) or to.is_held or back.is_held:
            error: OSError = TimeoutError(f"{address} does not answer")
            world.after(CONNECT_US, "no answer", settle, None, error)
            return
        listening = network.server_at(address)
        is_there = isinstance(listening, SimulatedListening) and listening.is_serving
        if not is_there or process.is_dead:
            error = ConnectionRefusedError(f"nobody listens at {address}")
            world.after(back.delay(), back.label, settle, None, error)
            return
        assert isinstance(listening, SimulatedListening)
        mine = ByteEnd(network, process, (name, int(port)), factory)
        mine.peer = listening.take(network, caller)
        mine.peer.peer = mine
        network.remember(mine)
        network.remember(mine.peer)
        world.after(back.delay(), back.label, settle, mine, None)

    world.after(to.delay(), to.label, arrive)
    return (await answered).begin()
