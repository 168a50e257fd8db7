"""The families of faults, by their ids in docs/safety.md. A fault hits a running cluster, and ends.

A family is a function of a `Scene`. It returns a function that ends the fault, or None when there
was nothing to hit; only a hit counts. All its choices come from the scene's dice, which belong to
this fault alone: removing one fault from a run leaves the others unchanged.

Damage to stored bytes, and the loss of a disk, hit only one machine of each run, its *victim*: a
cluster in which every copy of a record is damaged can only report it.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tests.sim.clients.admin import TrimRecords
from tests.sim.machines.coordination import SimulatedStore
from tests.sim.machines.machine import BrokerMachine, ClientMachine
from tests.sim.machines.network import Network, Weather
from tests.sim.world import MILLISECOND, SECOND, World

from millrace.core.ids import TopicId, TopicPartition
from millrace.core.metadata.model import ClusterState, DeletedTopic, PartitionState, Topic
from millrace.core.metadata.requests import Request

Undo = Callable[[], None]
Inject = Callable[["Scene"], Undo | None]

CUT: Final = Weather(is_cut=True)


class Administered(Protocol):
    """A cluster that operators change."""

    @property
    def states(self) -> Mapping[TopicPartition, PartitionState]:
        """Of all partitions, as stored."""

    @property
    def stored_topics(self) -> Mapping[TopicId, Topic]:
        """Likewise."""

    @property
    def stored_cluster(self) -> ClusterState | None:
        """Likewise."""

    @property
    def stored_deleted(self) -> Mapping[TopicId, DeletedTopic]:
        """Deleted topics that can be brought back, likewise."""

    def returnable(self) -> list[TopicId]:
        """Topics that a fault may delete, and must bring back."""

    def disposable(self) -> list[TopicId]:
        """Topics that a fault may delete; each is created again under its name."""

    def administer(self, request: Request | TrimRecords) -> None:
        """Send a request to the cluster; the answer is dropped."""


@dataclass(slots=True)
class Scene:
    """What a fault may touch.

    Attributes:
        world: where it happens.
        machines: of the brokers, by name.
        network: between them, and to the store.
        store: the coordination store.
        role: names of the machines that are now `leader`, `follower`, `controller` or
            `coordinator` of the consumer group.
        victim: the machine whose disk may be damaged.
        clients: the clients' machines by name, as they come.
        administered: the cluster as an operator can change it; None: not at all.
        dice: of this fault alone.
        duration_us: until it is ended.
    """

    world: World
    machines: Mapping[str, BrokerMachine]
    network: Network
    store: SimulatedStore
    role: Callable[[str], list[str]]
    victim: BrokerMachine
    clients: Mapping[str, ClientMachine]
    administered: Administered | None
    dice: random.Random
    duration_us: int

    def any_machine(self) -> BrokerMachine:
        return self.machines[self.dice.choice(list(self.machines))]

    def pick(self, role: str) -> BrokerMachine | None:
        """Choose a machine with a role."""
        names = self.role(role)
        return self.machines[self.dice.choice(names)] if names else None

    def others(self, machine: BrokerMachine) -> list[str]:
        return [name for name in self.machines if name != machine.name]

    def cut(self, here: list[str], there: list[str], *, both_ways: bool = True) -> Undo:
        """Cut the links from some machines to others."""
        pairs = [(a, b) for a in here for b in there if a != b]
        if both_ways:
            pairs += [(b, a) for a, b in pairs]
        return self.network.impose(dict.fromkeys(pairs), CUT)


@dataclass(frozen=True, slots=True)
class Family:
    """One fault of docs/safety.md, as far as it can be simulated.

    Attributes:
        fault_id: for example `F02`.
        name: what happens, as a sentence.
        inject: the function that does it.
        duration_us: least and most; the fault draws a duration between them.
    """

    fault_id: str
    name: str
    inject: Inject
    duration_us: tuple[int, int]


LONG: Final = (2 * SECOND, 20 * SECOND)
SHORT: Final = (100 * MILLISECOND, 3 * SECOND)


class Families(dict[str, Family]):
    """The families of one kind, by their ids."""

    def add(
        self, fault_id: str, name: str, duration_us: tuple[int, int] = LONG
    ) -> Callable[[Inject], Inject]:
        """Return a decorator of the function that does a fault."""

        def register(inject: Inject) -> Inject:
            assert fault_id not in self
            self[fault_id] = Family(fault_id, name, inject, duration_us)
            return inject

        return register


def all_of(undos: Sequence[Undo | None]) -> Undo:
    """Undo all that has gathered by then."""

    def undo_all() -> None:
        for undo in undos:
            if undo is not None:
                undo()

    return undo_all


def together(undos: Sequence[Undo | None]) -> Undo | None:
    return all_of(undos) if any(undos) else None


def started(machines: Iterable[BrokerMachine]) -> Undo:
    """Start some machines."""
    return all_of([machine.start for machine in machines])
