"""Which faults hit a run, and when: the seed decides before it begins.

Each seed takes some families at random, each with its own rate (swarm testing: Groce et al., ISSTA
2012): a run with all faults hides what only some of them together show. Chaos and quiet alternate.
Safety is judged always. In quiet windows all faults have ended, and at their end the cluster must
work.

The plan is a list. A run with some faults removed is otherwise the same run, as far as the cluster
allows; so a failing run can shrink.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.sim.faults.family import Family, Scene, Undo
from tests.sim.world import SECOND, World

CHAOS_US: Final = (20 * SECOND, 60 * SECOND)
QUIET_US: Final = (20 * SECOND, 30 * SECOND)
FAULTS_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a plan.

    Attributes:
        number: its place in the plan.
        at_us: when it begins.
        family: the kind of fault.
        duration_us: when it ends, unless the chaos window ends before.
        seed: of its dice.
    """

    number: int
    at_us: int
    family: Family
    duration_us: int
    seed: int

    def __str__(self) -> str:
        return (
            f"fault {self.number} at {self.at_us / SECOND:.3f} s for "
            f"{self.duration_us / SECOND:.3f} s: {self.family.fault_id}, {self.family.name}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The faults of one seed, and its quiet windows.

    Attributes:
        seed: of the run.
        end_us: its length; always the end of a quiet window.
        quiet_us: the quiet windows, [begin, end) each.
        faults: ascending by time.
        victim: draws the machine whose disk may be damaged.
    """

    seed: int
    end_us: int
    quiet_us: tuple[tuple[int, int], ...]
    faults: tuple[Fault, ...]
    victim: int

    def only(self, numbers: Iterable[int]) -> "Plan":
        """Return the plan with some of its faults."""
        wanted = set(numbers)
        return replace(self, faults=tuple(f for f in self.faults if f.number in wanted))


def plan(seed: int, length_us: int, families: Sequence[Family]) -> Plan:
    """Draw a plan of about a length from some families."""
    dice = random.Random(f"{seed}/swarm")
    count = max(1, min(len(families), int(dice.expovariate(1 / 5)) + 1))
    chosen = dice.sample(list(families), count)
    mean_gaps_us = [dice.uniform(5, 60) * SECOND for _ in chosen]
    faults: list[Fault] = []
    quiet: list[tuple[int, int]] = []
    begin = 5 * SECOND  # Time to start.
    while True:
        end = begin + dice.randrange(*CHAOS_US)
        for family, mean_gap_us in zip(chosen, mean_gaps_us, strict=True):
            at = begin + int(dice.expovariate(1 / mean_gap_us))
            while at < end and len(faults) < FAULTS_MAX:
                duration = dice.randint(*family.duration_us)
                faults.append(Fault(0, at, family, duration, dice.getrandbits(48)))
                at += int(dice.expovariate(1 / mean_gap_us)) + 1
        begin = end + dice.randrange(*QUIET_US)
        quiet.append((end, begin))
        if begin >= length_us:
            break
    faults.sort(key=lambda fault: (fault.at_us, fault.seed))
    numbered = tuple(replace(fault, number=number) for number, fault in enumerate(faults))
    return Plan(seed, begin, tuple(quiet), numbered, dice.randrange(2**16))


def crafted(seed: int, steps: Sequence[tuple[float, Family, float]], quiet_s: float = 25) -> Plan:
    """Return a plan of given faults and one quiet window, for a named scenario.

    Args:
        seed: for all other choices.
        steps: for each fault when it begins and how long it lasts, in seconds.
        quiet_s: how long the window is; it begins when the last fault ends.
    """
    faults = tuple(
        Fault(number, int(at_s * SECOND), family, int(duration_s * SECOND), seed + number)
        for number, (at_s, family, duration_s) in enumerate(sorted(steps, key=lambda s: s[0]))
    )
    end = max((fault.at_us + fault.duration_us for fault in faults), default=5 * SECOND) + 1
    end_us = end + int(quiet_s * SECOND)
    return Plan(seed, end_us, ((end, end_us),), faults, victim=0)


class Swarm:
    """Injects the faults of a plan.

    Args:
        world: where they happen.
        faults: the plan's.
        scene: what the faults may touch; each fault gets its own dice and duration.

    Attributes:
        fired: how many faults of each family hit something.
    """

    def __init__(self, world: World, faults: Iterable[Fault], scene: Scene) -> None:
        self.fired: Counter[str] = Counter()
        self._world = world
        self._scene = scene
        self._undos: dict[int, Undo] = {}
        for fault in faults:
            world.at(fault.at_us, str(fault), self._begin, fault)

    def heal(self) -> None:
        """End every fault."""
        for number in list(self._undos):
            self._end(number)

    def _begin(self, fault: Fault) -> None:
        family = fault.family
        dice = random.Random(fault.seed)
        undo = family.inject(replace(self._scene, dice=dice, duration_us=fault.duration_us))
        if undo is None:
            self._world.note(f"fault {fault.number} finds nothing to hit")
            return
        self._world.note(f"fault {fault.number} hits: {family.fault_id}, {family.name}")
        self.fired[family.fault_id] += 1
        self._undos[fault.number] = undo
        self._world.after(fault.duration_us, f"fault {fault.number} ends", self._end, fault.number)

    def _end(self, number: int) -> None:
        undo = self._undos.pop(number, None)
        if undo is not None:
            self._world.note(f"fault {number} is over")
            undo()
