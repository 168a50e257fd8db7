"""Looks for mutants: each is planted in a process of its own, and seeds are run until one fails.

A mutant is *caught* by the first run that is not clean. A run that fails because the mutant is no
sound code (a name that is not there) is no catch but a mistake in the catalogue.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.sim.mutants.mutant import Mutant, NoMutantError, planted
from tests.sim.run import Outcome
from tests.sim.world import SECOND

Runs = Callable[[Mutant], Iterator[tuple[str, Callable[[], Outcome]]]]
"""Gives names and runs, without end, each of which is clean while there is no mutant."""

UNSOUND: Final = ("NameError", "AttributeError", "TypeError", "UnboundLocalError", "SyntaxError")


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one mutant.

    Attributes:
        mutant: which one.
        caught_by: name of the run, or None: it survived.
        violation: the first line of what the run said.
        runs: how many there were.
        simulated_s: how long all of them were, in virtual time.
        cpu_s: what they took of one core.
        executions: how often the function ran.
        problem: why the mutant is none; empty when it is one.
    """

    mutant: Mutant
    caught_by: str | None = None
    violation: str = ""
    runs: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    executions: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long one mutant is looked for.

    Attributes:
        cpu_s: seconds of one core.
        simulated_s: seconds of virtual time.
    """

    cpu_s: float = 600.0
    simulated_s: float = float("inf")


def hunt(mutant: Mutant, runs: Runs, budget: Budget) -> Found:
    """Plant a mutant, and run until it is caught or the budget is used up."""
    began = time.process_time()
    count = simulated_us = 0
    caught_by, violation = None, ""
    try:
        with planted(mutant) as executions:
            for name, run in runs(mutant):
                outcome = run()
                count += 1
                simulated_us += outcome.simulated_us
                if outcome.violation is not None:
                    caught_by, violation = name, outcome.violation
                    break
                if (
                    time.process_time() - began >= budget.cpu_s
                    or simulated_us >= budget.simulated_s * SECOND
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


def _hunt_one(arguments: tuple[Mutant, Runs, Budget]) -> Found:
    return hunt(*arguments)


def hunt_all(
    mutants: Sequence[Mutant], runs: Runs, budget: Budget, processes: int
) -> Iterator[Found]:
    """Look for many mutants, so many at a time; yield them as they are done."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_hunt_one, [(each, runs, budget) for each in mutants])
