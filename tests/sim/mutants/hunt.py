"""Runs seeds against mutants: each mutant gets a process of its own, until a run fails.

The first run that is not clean *catches* a mutant. A run that fails because the mutant is invalid
code (an unknown name) is no catch but a mistake in the catalogue.

Many mutants are tested in rounds. Each round tests the remaining ones a little longer, and
continues where the previous round ended; so the mutants that need more time get it.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from tests.sim.mutants.mutant import Mutant, NoMutantError, planted
from tests.sim.run import Outcome
from tests.sim.world import SECOND

Runs = Callable[[Mutant], Iterator[tuple[str, Callable[[], Outcome]]]]
"""Yields names and runs, without end; each run is clean if there is no mutant."""

UNSOUND: Final = ("NameError", "AttributeError", "TypeError", "UnboundLocalError", "SyntaxError")
_FIRST_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class Found:
    """The result for one mutant.

    Attributes:
        mutant: the mutant.
        caught_by: name of the run; None: it survived.
        violation: the first line of the run's violation.
        runs: how many runs there were.
        simulated_s: their total length in virtual time.
        cpu_s: their total CPU time.
        executions: how often the mutated function ran.
        problem: why the mutant is invalid; empty when it is valid.
    """

    mutant: Mutant
    caught_by: str | None = None
    violation: str = ""
    runs: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    executions: int = 0
    problem: str = ""

    def after(self, earlier: "Found") -> "Found":
        """Return the sum of an earlier result and this one."""
        executions = self.executions + earlier.executions
        return replace(
            self,
            runs=self.runs + earlier.runs,
            simulated_s=self.simulated_s + earlier.simulated_s,
            cpu_s=self.cpu_s + earlier.cpu_s,
            executions=executions,
            problem=self.problem if self.executions or not executions else "",
        )

    @property
    def is_open(self) -> bool:
        """Whether more runs could catch it, or execute its function at all."""
        return self.caught_by is None and (not self.problem or self.runs > 0)


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to test one mutant; a run in progress still finishes.

    Attributes:
        cpu_s: CPU seconds.
        simulated_s: seconds of virtual time.
        ends_at: the time, by `time.monotonic`.
    """

    cpu_s: float = 600.0
    simulated_s: float = float("inf")
    ends_at: float = float("inf")


def hunt(mutant: Mutant, runs: Runs, budget: Budget, skip: int = 0) -> Found:
    """Plant a mutant, and run until it is caught or the budget is used up.

    Args:
        mutant: the mutant.
        runs: the runs to try.
        budget: the limit.
        skip: how many of the runs were tried before.
    """
    began = time.process_time()
    count = simulated_us = 0
    caught_by, violation = None, ""
    try:
        with planted(mutant) as executions:
            for name, run in islice(runs(mutant), skip, None):
                outcome = run()
                count += 1
                simulated_us += outcome.simulated_us
                if outcome.violation is not None:
                    caught_by, violation = name, outcome.violation
                    break
                if (
                    time.process_time() - began >= budget.cpu_s
                    or simulated_us >= budget.simulated_s * SECOND
                    or time.monotonic() >= budget.ends_at
                ):
                    break
    except NoMutantError as error:
        return Found(mutant, problem=str(error))
    problem = ""
    if not executions.count:
        problem = f"{mutant.target} is never executed"
    elif any(f"\n{unsound}:" in violation for unsound in UNSOUND):
        problem = f"it is not sound: {violation.strip().splitlines()[-1]}"
    return Found(
        mutant,
        caught_by,
        _headline(violation),
        count,
        simulated_us / SECOND,
        time.process_time() - began,
        executions.count,
        problem,
    )


def _headline(violation: str) -> str:
    lines = violation.strip().splitlines()
    if not lines:
        return ""
    return f"{lines[0]}: {lines[-1]}" if lines[0] == "an exception" else lines[0]


def _hunt_one(arguments: tuple[Mutant, Runs, Budget, int]) -> Found:
    return hunt(*arguments)


def hunt_all(
    mutants: Sequence[Mutant],
    runs: Runs,
    budget: Budget,
    processes: int,
    done: Sequence[int] = (),
) -> Iterator[Found]:
    """Test many mutants in parallel; yield each result when it is ready.

    Args:
        mutants: the mutants.
        runs: the runs to try against each.
        budget: the limit for each.
        processes: how many mutants at a time.
        done: how many runs of each were tried before; empty: none.
    """
    skips = done or [0] * len(mutants)
    work = [(mutant, runs, budget, skip) for mutant, skip in zip(mutants, skips, strict=True)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([runs.__module__])  # Once, and not for each mutant.
    with context.Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_hunt_one, work)


def hunt_within(
    mutants: Sequence[Mutant], runs: Runs, seconds: float, processes: int
) -> Iterator[Found]:
    """Test many mutants within a time in seconds; yield each result when the mutant is caught.

    The results of survivors come last.
    """
    ends_at = time.monotonic() + seconds
    budget_s = _FIRST_S
    left = {mutant: Found(mutant) for mutant in mutants}
    while left and time.monotonic() < ends_at:
        wanted = list(left)
        done = [left[mutant].runs for mutant in wanted]
        for now in hunt_all(wanted, runs, Budget(budget_s, ends_at=ends_at), processes, done):
            found = now.after(left[now.mutant])
            if found.is_open:
                left[now.mutant] = found
            else:
                del left[now.mutant]
                yield found
        budget_s *= 2
    yield from left.values()
