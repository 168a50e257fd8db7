"""The network between machines, and all it may do to what they say.

Every pair of machines has two *links*, one in each direction, each with its own weather: delay,
loss, duplication, copies that arrive minutes later, cuts, and clogs that hold everything back.

- A *unary* message may be lost, doubled, overtaken, or arrive when nobody remembers it. It is
  delivered to whoever then lives at the address.
- A *stream* connects two processes. Its messages arrive in order and once, until it is reset. Loss
  costs it time, as retransmission does. A cut holds it back; if that lasts longer than keepalive,
  each end hears of a reset. A process that dies resets its streams at once; a machine that loses
  power says nothing.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log
from typing import Final, Protocol

from tests.sim.world import MILLISECOND, MINUTE, SECOND, Event, World

KEEPALIVE_US: Final = 10 * SECOND
RETRANSMISSION_US: Final = 200 * MILLISECOND
_RETRANSMISSIONS_MAX: Final = 6
_LATE_US: Final = (10 * SECOND, 5 * MINUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What a link does; several may be in force at once.

    Attributes:
        delay_us: mean of the exponential delay of each message.
        loss: share of unary messages that vanish.
        duplication: share that arrive twice.
        lateness: share of which a copy arrives again, up to minutes later.
        is_cut: nothing goes through.
        is_clogged: nothing goes through until it clears, and then everything.
    """

    delay_us: int = 0
    loss: float = 0.0
    duplication: float = 0.0
    lateness: float = 0.0
    is_cut: bool = False
    is_clogged: bool = False


FAIR: Final = Weather(delay_us=250)


@dataclass(slots=True)
class Received:
    """A unary message arrived."""

    sender: str
    message: object


@dataclass(slots=True)
class Refused:
    """A unary message came back: the machine runs, but no process listens."""

    target: str
    message: object


@dataclass(slots=True)
class StreamOpened:
    """Somebody opened a stream; `request` says what for."""

    stream: "Stream"
    request: object


@dataclass(slots=True)
class StreamReceived:
    """The next message of a stream."""

    stream: "Stream"
    message: object


@dataclass(slots=True)
class StreamEnded:
    """A stream was reset by its other end, or by the network."""

    stream: "Stream"


NetworkEvent = Received | Refused | StreamOpened | StreamReceived | StreamEnded


class Station(Protocol):
    """A machine as the network sees it."""

    @property
    def name(self) -> str:
        """Its address."""

    @property
    def is_powered(self) -> bool:
        """Whether anything there can answer, if only to refuse."""

    @property
    def is_listening(self) -> bool:
        """Whether a process is there."""

    def deliver(self, event: NetworkEvent) -> None:
        """Hand an event to the process, if there is one."""


class Link:
    """One direction between two machines."""

    __slots__ = (
        "_held", "_layers", "_network", "dice", "had_weather", "label", "source", "stalled",
        "target", "weather",
    )  # fmt: skip

    def __init__(self, network: "Network", source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.label = f"{source}→{target}"
        self.dice = network.world.random(f"link {self.label}")
        self.weather = network.weather
        self.stalled: dict[Stream, None] = {}
        self.had_weather = False
        self._network = network
        self._layers: list[Weather] = []
        self._held: list[object] = []

    @property
    def is_held(self) -> bool:
        return self.weather.is_cut or self.weather.is_clogged

    def delay(self) -> int:
        """Draw a delay in microseconds."""
        return 50 + int(-log(1.0 - self.dice.random()) * self.weather.delay_us)

    def add(self, weather: Weather) -> None:
        self._layers.append(weather)
        self.had_weather = True
        self._combine()

    def remove(self, weather: Weather) -> None:
        for at, layer in enumerate(self._layers):
            if layer is weather:
                del self._layers[at]
                break
        self._combine()

    def send(self, message: object) -> None:
        """Send a unary message."""
        weather, dice = self.weather, self.dice
        if weather.is_clogged:
            self._held.append(message)
            return
        if weather.is_cut or (weather.loss and dice.random() < weather.loss):
            return
        self._send_after(self.delay(), message)
        if weather.duplication and dice.random() < weather.duplication:
            self._send_after(self.delay(), message)
        if weather.lateness and dice.random() < weather.lateness:
            self._send_after(dice.randrange(*_LATE_US), message)

    def _send_after(self, delay: int, message: object) -> None:
        world = self._network.world
        if world.trace.is_detailed:
            text = self._network.tell(message)
            if text:
                world.note(f"{self.label}: {text}")
        world.after(delay, self.label, self._network.arrive, self, message)

    def _combine(self) -> None:
        """The worst of everything in force; delays add up."""
        layers = [self._network.weather, *self._layers]
        self.weather = Weather(
            delay_us=sum(layer.delay_us for layer in layers),
            loss=max(layer.loss for layer in layers),
            duplication=max(layer.duplication for layer in layers),
            lateness=max(layer.lateness for layer in layers),
            is_cut=any(layer.is_cut for layer in layers),
            is_clogged=any(layer.is_clogged for layer in layers),
        )
        if not self.weather.is_clogged:
            held, self._held = self._held, []
            for message in held:
                self.send(message)
        if not self.is_held:
            stalled, self.stalled = self.stalled, {}
            for stream in stalled:
                stream.resume()


class Stream:
    """One end of a stream; `peer` is the other one."""

    __slots__ = ("_head", "_link", "_network", "_queue", "is_known", "is_open", "local",
                 "peer", "remote")  # fmt: skip

    peer: "Stream"

    def __init__(self, network: "Network", local: str, remote: str) -> None:
        self.local = local
        self.remote = remote
        self.is_open = True
        self.is_known = False
        """Whether the process at this end has heard of it."""
        self._network = network
        self._link = network.link(local, remote)
        self._queue: deque[tuple[int, NetworkEvent]] = deque()
        self._head: Event | None = None

    def __repr__(self) -> str:
        return f"stream {self.label}"

    @property
    def label(self) -> str:
        return self._link.label

    def send(self, message: object) -> None:
        """Send a message; nothing happens when the stream has ended."""
        if self.is_open:
            self.put(StreamReceived(self.peer, message))

    def reset(self) -> None:
        """End the stream: what is under way is lost, and the other end hears of it."""
        self._network.end_stream(self)

    def put(self, event: NetworkEvent) -> None:
        link = self._link
        delay = link.delay()
        if link.weather.loss:
            wait = RETRANSMISSION_US
            for _ in range(_RETRANSMISSIONS_MAX):
                if link.dice.random() >= link.weather.loss:
                    break
                delay += wait
                wait *= 2
        self._queue.append((self._network.world.now + delay, event))
        if self._head is None:
            self._plan()

    def resume(self) -> None:
        """The link works again."""
        if self.is_open and self._queue and self._head is None:
            self._head = self._network.world.after(
                self._link.delay(), self._link.label, self._arrive
            )

    def close(self) -> None:
        self.is_open = False
        self._queue.clear()
        self._link.stalled.pop(self, None)
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _plan(self) -> None:
        # Messages behind a slow one wait for it.
        self._head = self._network.world.at(self._queue[0][0], self._link.label, self._arrive)

    def _arrive(self) -> None:
        self._head = None
        if self._link.is_held:
            self._network.stall(self, self._link)
            return
        _, event = self._queue.popleft()
        if self._queue:
            self._plan()
        self._network.arrive_on_stream(self, event)


class Network:
    """See the module.

    Attributes:
        weather: of every link when nothing is wrong.
        tell: how messages and events read in a trace; empty: not at all.
        lost_streams: how many ended because the network failed them.
    """

    def __init__(
        self, world: World, weather: Weather = FAIR, tell: Callable[[object], str] = str
    ) -> None:
        self.world = world
        self.weather = weather
        self.tell = tell
        self.lost_streams = 0
        self._stations: dict[str, Station] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._streams: dict[Stream, None] = {}  # Both ends of each.

    def attach(self, station: Station) -> "Endpoint":
        """Connect a machine, once; its processes come and go."""
        assert station.name not in self._stations
        self._stations[station.name] = station
        return Endpoint(self, station.name)

    def link(self, source: str, target: str) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(self, source, target)
        return found

    # --- What faults do to it ----------------------------------------------------------------

    def impose(self, pairs: Iterable[tuple[str, str]], weather: Weather) -> Callable[[], None]:
        """Put weather on links, each (source, target); return what takes it away."""
        links = [self.link(source, target) for source, target in pairs]
        for link in links:
            link.add(weather)

        def lift() -> None:
            for link in links:
                link.remove(weather)

        return lift

    def has_been_cut(self, name: str) -> bool:
        """Whether links to or from a machine ever had other weather than all have."""
        return any(name in pair and link.had_weather for pair, link in self._links.items())

    def reset_streams(self, dice: random.Random, share: float, names: Iterable[str]) -> int:
        """Reset a share of the streams that touch some machines; return how many."""
        wanted = set(names)
        found = [
            stream
            for stream in self._streams
            if stream.local in wanted
            and (stream.remote not in wanted or stream.local < stream.remote)  # Once each.
            and dice.random() < share
        ]
        for stream in found:
            self._break_both(stream)
        return len(found)

    def on_process_ended(self, name: str, *, is_silent: bool) -> None:
        """The streams of a machine's process end; `is_silent` when nobody is left to say so."""
        for stream in [found for found in self._streams if found.local == name]:
            peer = stream.peer
            self._forget(stream)
            if not peer.is_open:
                continue
            delay = KEEPALIVE_US if is_silent else self.link(name, peer.local).delay()
            self.world.after(delay, f"{peer} ends", self._hear_of_end, peer)

    # --- Of links and streams ----------------------------------------------------------------

    def open_stream(self, source: str, target: str, request: object) -> Stream:
        near, far = Stream(self, source, target), Stream(self, target, source)
        near.peer, far.peer = far, near
        near.is_known = True
        self._streams[near] = self._streams[far] = None
        near.put(StreamOpened(far, request))
        return near

    def arrive(self, link: Link, message: object) -> None:
        station = self._stations[link.target]
        if link.weather.is_cut or not station.is_powered:
            return
        if station.is_listening:
            station.deliver(Received(link.source, message))
        else:
            back = self.link(link.target, link.source)
            if not back.is_held:
                self.world.after(back.delay(), back.label, self._refuse, link, message)

    def arrive_on_stream(self, sender: Stream, event: NetworkEvent) -> None:
        station = self._stations[sender.remote]
        if not station.is_powered:
            self.world.after(KEEPALIVE_US, f"{sender} ends", self._hear_of_end, sender)
            self._forget(sender.peer)
        elif not station.is_listening:
            self._break_both(sender)
        elif not sender.peer.is_open:  # The process that had it is gone; this one resets it.
            delay = self.link(sender.remote, sender.local).delay()
            self.world.after(delay, f"{sender} ends", self._hear_of_end, sender)
        else:
            if isinstance(event, StreamOpened):
                sender.peer.is_known = True
            if self.world.trace.is_detailed:
                text = self.tell(event)
                if text:
                    self.world.note(f"{sender.label}: {text}")
            station.deliver(event)

    def stall(self, stream: Stream, link: Link) -> None:
        """A stream has something to send over a link that is held."""
        link.stalled[stream] = None
        self.world.after(KEEPALIVE_US, f"{stream} keepalive", self._give_up, stream, link)

    def end_stream(self, stream: Stream) -> None:
        """The process at this end resets it."""
        if not stream.is_open:
            return
        peer = stream.peer
        self._forget(stream)
        if peer.is_open:
            link = self.link(stream.local, stream.remote)
            delay = KEEPALIVE_US if link.is_held else link.delay()
            self.world.after(delay, f"{peer} ends", self._hear_of_end, peer)

    def _give_up(self, stream: Stream, link: Link) -> None:
        if stream.is_open and stream in link.stalled:
            self._break_both(stream)

    def _break_both(self, stream: Stream) -> None:
        self.lost_streams += 1
        for end in (stream, stream.peer):
            if end.is_open:
                delay = self.link(end.remote, end.local).delay()
                self.world.after(delay, f"{end} ends", self._hear_of_end, end)

    def _hear_of_end(self, stream: Stream) -> None:
        if stream.is_open:
            self._forget(stream)
            if stream.is_known:
                self._stations[stream.local].deliver(StreamEnded(stream))

    def _forget(self, stream: Stream) -> None:
        stream.close()
        self._streams.pop(stream, None)

    def _refuse(self, link: Link, message: object) -> None:
        station = self._stations[link.source]
        if station.is_listening:
            station.deliver(Refused(link.target, message))


class Endpoint:
    """The network as one process sees it."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self.name = name

    def send(self, target: str, message: object) -> None:
        """Send a unary message, which may never arrive, or more than once."""
        self._network.link(self.name, target).send(message)

    def open_stream(self, target: str, request: object) -> Stream:
        """Open a stream; `StreamEnded` comes when that fails or it ends."""
        return self._network.open_stream(self.name, target, request)
