"""Runs a cluster from one seed; shrinks a run that fails.

A `Cluster` is what runs: machines with brokers, clients, and invariants. A *factory* makes one in a
fresh world. Everything else follows from the seed.
"""

import gc
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from tests.sim.faults.family import Administered, Family, Scene
from tests.sim.machines.coordination import SimulatedStore
from tests.sim.machines.machine import BrokerMachine, ClientMachine
from tests.sim.machines.network import Network
from tests.sim.swarm import Fault, Plan, Swarm
from tests.sim.swarm import plan as draw_plan
from tests.sim.world import MINUTE, SECOND, Trace, Violation, World

LINES_OF_A_FAILURE: Final = 150
_LEGEND: Final = (
    "What happened last: the time in seconds, and which machine did what, or said what to which "
    "(a→b). A life "
    "of a broker is broker.epoch, so ISR [0.1 2.7] is broker 0 in the life that began with epoch 1 "
    "and broker 2 in that of epoch 7; which machines these are stands before the violation."
)
RUNS_TO_SHRINK_MAX: Final = 150


class Cluster(Protocol):
    """A simulated cluster."""

    @property
    def families(self) -> Sequence[Family]:
        """The faults that it promises to survive."""

    @property
    def machines(self) -> Mapping[str, BrokerMachine]:
        """Of the brokers, by name; faults hit these. The cluster handles its clients itself."""

    @property
    def network(self) -> Network:
        """Between all of them."""

    @property
    def store(self) -> SimulatedStore:
        """The coordination store."""

    @property
    def clients(self) -> Mapping[str, ClientMachine]:
        """The clients' machines by name, on which faults may act, too."""

    @property
    def administered(self) -> Administered | None:
        """The cluster as operators can change it; None: they cannot."""

    def watching(self) -> AbstractContextManager[None]:
        """Let witnesses watch the brokers for the length of the block."""

    def start(self) -> None:
        """Start the machines and the load."""

    def role(self, role: str) -> list[str]:
        """Return the machines that now have a role, see `Scene.role`."""

    def check(self) -> None:
        """Judge the invariants; called after every event. Raises `Violation`."""

    def begin_quiet(self) -> None:
        """All faults have ended; note what must move on from here.

        The history gets a `window` that opens here and closes in `end_quiet`.
        """

    def end_quiet(self) -> None:
        """Judge that everything works again. Raises `Violation`."""

    def finish(self) -> Mapping[str, float]:
        """Judge what clients saw, at the end of the run, in quiet. Raises `Violation`.

        Returns:
            Measures by name, such as operations and leader changes; they decide if the run counts.
        """

    def end(self) -> None:
        """End all processes."""


Factory = Callable[[World], Cluster]


@dataclass(slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        plan: of the run, with the faults that were injected.
        violation: the broken promise, or None; its first line is the kind.
        digest: of the whole trace.
        simulated_us: how long the cluster ran.
        events: how many events there were.
        handled: how many events product code handled.
        fired: faults that hit something, by family.
        measures: the cluster's measures, if there is no violation.
        trace: the last lines of the trace.
    """

    plan: Plan
    violation: str | None
    digest: str
    simulated_us: int
    events: int
    handled: int
    fired: Counter[str] = field(default_factory=Counter)
    measures: Mapping[str, float] = field(default_factory=dict)
    trace: Trace = field(default_factory=Trace)


def plan_of(factory: Factory, seed: int, length_us: int = 5 * MINUTE) -> Plan:
    """Draw the plan of a seed from the families that the cluster survives."""
    return draw_plan(seed, length_us, factory(World(seed)).families)


def run(factory: Factory, plan: Plan, *, is_detailed: bool = False) -> Outcome:
    """Run a plan to its end or its first violation.

    Any exception is a violation: nothing in a simulated cluster may fail unexpectedly.
    """
    trace = Trace(LINES_OF_A_FAILURE, is_detailed=is_detailed)
    world = World(plan.seed, trace)
    cluster = factory(world)
    names = list(cluster.machines)
    scene = Scene(
        world,
        cluster.machines,
        cluster.network,
        cluster.store,
        cluster.role,
        cluster.machines[names[plan.victim % len(names)]],
        cluster.clients,
        cluster.administered,
        world.random("unused"),
        0,
    )
    swarm = Swarm(world, plan.faults, scene)
    violation = None
    measures: Mapping[str, float] = {}
    collects = gc.isenabled()
    gc.disable()  # A run leaves little garbage until its end, and a collection is slow.
    try:
        with cluster.watching():
            cluster.start()
            for quiet_begin, quiet_end in plan.quiet_us:
                world.run_until(quiet_begin, cluster.check)
                swarm.heal()
                world.note("quiet begins")
                cluster.begin_quiet()
                world.run_until(quiet_end, cluster.check)
                cluster.end_quiet()
                world.note("quiet ends")
            measures = cluster.finish()
    except Violation as broken:
        violation = str(broken)
    except Exception:
        violation = f"an exception\n{traceback.format_exc()}"
    finally:
        if collects:
            gc.enable()
    if violation is not None:
        world.note(_who_is_who(cluster))
        world.note(f"VIOLATION {violation}")
    cluster.end()
    return Outcome(
        plan,
        violation,
        trace.digest(),
        world.now,
        world.events,
        world.handled,
        swarm.fired,
        measures,
        trace,
    )


def _who_is_who(cluster: Cluster) -> str:
    """Map broker ids to machines: ids follow the order of registration."""
    stored = None if cluster.administered is None else cluster.administered.stored_cluster
    brokers = [] if stored is None else list(stored.brokers.values())
    lives = [f"{broker.broker_id}.{broker.broker_epoch} is {broker.name}" for broker in brokers]
    return f"registered are: {', '.join(lives) or 'none'}"


def shrink(factory: Factory, failed: Outcome, runs_max: int = RUNS_TO_SHRINK_MAX) -> Outcome:
    """Remove faults from a failed run while it still fails; return the smallest such run.

    Delta debugging (Zeller and Hildebrandt 2002): remove halves, then quarters, and so on.
    Faults after the violation go first; that needs no run.
    """
    assert failed.violation is not None
    smallest = failed
    faults = [fault for fault in failed.plan.faults if fault.at_us <= failed.simulated_us]
    runs = 0

    def fails_with(chosen: Sequence[Fault]) -> bool:
        nonlocal smallest, runs
        runs += 1
        outcome = run(factory, failed.plan.only(fault.number for fault in chosen))
        if outcome.violation is None:
            return False
        smallest = outcome
        return True

    if not fails_with([]):
        parts = 2
        while runs < runs_max and len(faults) > 1:
            size = -(-len(faults) // parts)
            for begin in range(0, len(faults), size):
                rest = faults[:begin] + faults[begin + size :]
                if fails_with(rest):
                    faults, parts = rest, max(parts - 1, 2)
                    break
                if runs >= runs_max:
                    break
            else:
                if size == 1:
                    break
                parts = min(parts * 2, len(faults))
    # Once more with a detailed trace: events and messages, and not each step.
    return run(
        factory, smallest.plan.only(f.number for f in smallest.plan.faults), is_detailed=True
    )


def describe(outcome: Outcome, command: str) -> str:
    """Return the report of a failed run: the trace, the violation, and how to repeat it."""
    assert outcome.violation is not None
    faults = "\n".join(f"  {fault}" for fault in outcome.plan.faults) or "  none"
    return (
        f"{_LEGEND}\n\n{outcome.trace.text()}\n\n"
        f"seed {outcome.plan.seed} fails after {outcome.simulated_us / SECOND:.3f} s: "
        f"{outcome.violation}\n\nfaults that it takes:\n{faults}\n\n"
        f"to see it again:\n  {command}"
    )
