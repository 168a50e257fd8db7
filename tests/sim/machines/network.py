"""The network between machines, and its faults.

Every pair of machines has two *links*, one in each direction, each with its own weather. Links
carry gRPC calls (`connections`) and connections of bytes (`byte_connections`): what belongs to one
of them arrives in order and once, different ones may overtake one another. Loss costs time, as TCP
retransmits. A link that is held keeps everything back; if that lasts longer than keepalive, both
ends learn that it is broken. A process that dies breaks its calls at once. A machine without power
stays silent, and so does a paused process.

What is said here of calls holds for connections of bytes, too.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log
from typing import Any, Final, Protocol

from tests.sim.world import MILLISECOND, SECOND, World

KEEPALIVE_US: Final = 10 * SECOND
CONNECT_US: Final = 20 * SECOND
RETRANSMISSION_US: Final = 200 * MILLISECOND
_RETRANSMISSIONS_MAX: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """The behaviour of a link; several may apply at once.

    Attributes:
        delay_us: mean of the exponential delay of each message.
        loss: share of packets that TCP retransmits.
        lateness: share of messages that come much later, with all later messages of their call. If
            that takes longer than keepalive, the sender learns by then that the call is broken, and
            the receiver only after the messages.
        late_us: how much later, from and to.
        late_calls: methods to whose messages alone that happens; empty: to all.
        is_cut: nothing goes through.
    """

    delay_us: int = 0
    loss: float = 0.0
    lateness: float = 0.0
    late_us: tuple[int, int] = (SECOND, 30 * SECOND)
    late_calls: frozenset[str] = frozenset()
    is_cut: bool = False


FAIR: Final = Weather(delay_us=250)


class Station(Protocol):
    """A machine as the network sees it."""

    @property
    def name(self) -> str:
        """Its address."""

    @property
    def is_powered(self) -> bool:
        """Whether the machine can answer at all, if only with a refusal."""

    @property
    def is_frozen(self) -> bool:
        """Whether its process is paused."""


class Process(Protocol):
    """The part of a process that a connection needs."""

    @property
    def name(self) -> str: ...
    @property
    def machine(self) -> Station: ...
    @property
    def loop(self) -> Any: ...
    @property
    def is_dead(self) -> bool: ...


class End(Protocol):
    """One end of a call.

    Attributes:
        is_kept_by_machine: keepalive is answered for a process that is paused.
    """

    is_kept_by_machine: bool

    @property
    def process(self) -> Process: ...
    @property
    def peer(self) -> Any: ...
    def release(self) -> None:
        """Send what was held back: the link works again."""

    def fail(self, details: str) -> None:
        """Break the call, with the details that this end learns."""


class Server(Protocol):
    """A server that listens at an address."""

    @property
    def process(self) -> Process: ...
    @property
    def is_serving(self) -> bool: ...


class Link:
    """One direction between two machines."""

    __slots__ = ("_layers", "_network", "dice", "had_weather", "label", "source", "target",
                 "weather")  # fmt: skip

    def __init__(self, network: "Network", source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.label = f"{source}→{target}"
        self.dice = network.world.random(f"link {self.label}")
        self.weather = network.weather
        self.had_weather = False
        self._network = network
        self._layers: list[Weather] = []

    @property
    def is_held(self) -> bool:
        return self.weather.is_cut

    def delay(self, method: str = "") -> int:
        """Draw the delay of a message, perhaps of a call of a method, in microseconds."""
        weather, dice = self.weather, self.dice
        delay = 50 + int(-log(1.0 - dice.random()) * weather.delay_us)
        if weather.loss:
            wait = RETRANSMISSION_US
            for _ in range(_RETRANSMISSIONS_MAX):
                if dice.random() >= weather.loss:
                    break
                delay += wait
                wait *= 2
        may_be_late = not weather.late_calls or method.rpartition("/")[2] in weather.late_calls
        if weather.lateness and may_be_late and dice.random() < weather.lateness:
            delay += dice.randrange(*weather.late_us)
        return delay

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

    def _combine(self) -> None:
        """Combine all weather in force: the worst of each, and the sum of the delays."""
        was_held = self.is_held
        layers = [self._network.weather, *self._layers]
        late = [layer.late_calls for layer in layers if layer.lateness]
        self.weather = Weather(
            delay_us=sum(layer.delay_us for layer in layers),
            loss=max(layer.loss for layer in layers),
            lateness=max(layer.lateness for layer in layers),
            late_us=max(layers, key=lambda layer: layer.lateness).late_us,
            late_calls=frozenset().union(*late) if all(late) else frozenset(),
            is_cut=any(layer.is_cut for layer in layers),
        )
        if self.is_held and not was_held:
            self._network.on_silence(self)
        elif was_held and not self.is_held:
            self._network.on_released(self)


class Network:
    """The links, listeners and calls of all machines.

    Attributes:
        weather: of every link when nothing is wrong.
        lost_calls: how many calls the network has broken.
        is_encrypted: connections of bytes say that nobody else reads them.
        dice: of connections of bytes: where they are cut into pieces, and how much is in flight.
    """

    def __init__(self, world: World, weather: Weather = FAIR) -> None:
        self.world = world
        self.weather = weather
        self.lost_calls = 0
        self.is_encrypted = False
        self.dice = world.random("connections")
        self._stations: dict[str, Station] = {}
        self._names: dict[str, str] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._servers: dict[str, Server] = {}
        self._ends: dict[End, None] = {}  # Both ends of each open call.
        self._ports = 10_000

    # --- Machines, processes and calls -------------------------------------------------------

    def attach(self, station: Station, host: str = "") -> None:
        """Connect a machine, once, with an optional address; its processes come and go."""
        assert station.name not in self._stations
        self._stations[station.name] = station
        self._names[host] = station.name

    def link(self, source: str, target: str) -> Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = Link(self, source, target)
        return found

    def new_port(self) -> int:
        self._ports += 1
        return self._ports

    def listen(self, address: str, server: Server) -> None:
        self._servers[address] = server

    def server_at(self, address: str) -> Server | None:
        return self._servers.get(address)

    def name_of(self, host: str) -> str:
        """Return the name of the machine with an address."""
        return self._names[host]

    def is_reachable(self, source: str, target: str) -> bool:
        """Whether one machine's messages to another get any answer."""
        station = self._stations[target]
        if not station.is_powered or station.is_frozen:
            return False
        return not (self.link(source, target).is_held or self.link(target, source).is_held)

    def has_power(self, name: str) -> bool:
        """Whether a machine can answer at all, if only with a refusal."""
        return self._stations[name].is_powered

    def remember(self, end: End) -> None:
        self._ends[end] = None

    def forget(self, end: End) -> None:
        self._ends.pop(end, None)

    def on_process_ended(self, process: Process, *, is_silent: bool) -> None:
        """Break the calls of a process; `is_silent` if its machine is gone, too."""
        for address in [a for a, s in self._servers.items() if s.process is process]:
            del self._servers[address]
        for end in [end for end in self._ends if end.process is process]:
            self.forget(end)
            peer = end.peer
            link = self.link(process.machine.name, peer.process.machine.name)
            delay = KEEPALIVE_US if is_silent or link.is_held else link.delay()
            self.world.after(delay, "a process is gone", peer.fail, "Socket closed")

    # --- What faults do to it ----------------------------------------------------------------

    def impose(self, pairs: Iterable[tuple[str, str]], weather: Weather) -> Callable[[], None]:
        """Put weather on links, each (source, target); return a function that removes it."""
        links = [self.link(source, target) for source, target in pairs]
        for link in links:
            link.add(weather)

        def lift() -> None:
            for link in links:
                link.remove(weather)

        return lift

    def has_been_cut(self, name: str) -> bool:
        """Whether links from or to a machine ever had their own weather."""
        return any(name in pair and link.had_weather for pair, link in self._links.items())

    def reset_streams(self, dice: random.Random, share: float, names: Iterable[str]) -> int:
        """Break a share of the calls of some machines; return how many."""
        found = [end for end in self.ends_of(names) if dice.random() < share]
        for end in found:
            self._break(end, "Connection reset by peer")
        return len(found)

    def ends_of(self, names: Iterable[str]) -> list[End]:
        """Return one end of each call of some machines, if they have one."""
        wanted = set(names)
        return [
            end
            for end in self._ends
            if end.process.machine.name in wanted
            and (
                end.peer.process.machine.name not in wanted
                or end.process.name < end.peer.process.name
            )
        ]

    def on_silence(self, link: Link) -> None:
        """A link is held; keepalive will notice it."""
        for end in list(self._ends):
            if self._is_of(end, link):
                self.world.after(KEEPALIVE_US, "keepalive", self._look, end)

    def on_frozen(self, name: str) -> None:
        """A process is paused; keepalive will notice it."""
        for end in list(self._ends):
            if end.process.machine.name == name and not end.is_kept_by_machine:
                self.world.after(KEEPALIVE_US, "keepalive", self._look, end)

    def watch(self, end: End) -> None:
        """Break a new call later if nothing comes through."""
        here, there = end.process.machine.name, end.peer.process.machine.name
        if not self.is_reachable(here, there):
            self.world.after(CONNECT_US, "keepalive", self._look, end)

    def on_released(self, link: Link) -> None:
        """A link works again."""
        for end in list(self._ends):
            if (end.process.machine.name, end.peer.process.machine.name) == (
                link.source,
                link.target,
            ):
                end.release()

    def _look(self, end: End) -> None:
        here, there = end.process.machine.name, end.peer.process.machine.name
        is_frozen = any(self._stations[name].is_frozen for name in (here, there))
        is_silent = is_frozen and not end.is_kept_by_machine
        if is_silent or self.link(here, there).is_held or self.link(there, here).is_held:
            self._break(end, "keepalive watchdog timeout")

    def _break(self, end: End, details: str) -> None:
        self.lost_calls += 1
        for side in (end, end.peer):
            delay = self.link(side.peer.process.machine.name, side.process.machine.name).delay()
            self.world.after(delay, "a call breaks", side.fail, details)

    @staticmethod
    def _is_of(end: End, link: Link) -> bool:
        names = (end.process.machine.name, end.peer.process.machine.name)
        return names in ((link.source, link.target), (link.target, link.source))
