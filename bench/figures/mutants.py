"""The share of all mutants that the simulator catches in twenty minutes.

A mutant is the product without one of its rules. All named scenarios and seeds of the swarm run
against each mutant; scenarios in which its rule decides go first. See `tests/sim/mutants`.
"""

import os

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from tests.sim.mutants import report
from tests.sim.mutants.catalogue import MUTANTS
from tests.sim.mutants.hunt import Found, hunt_within
from tests.sim.mutants.runs import runs


def measure(bench: Bench) -> Outcome:
    """Plant one mutant after another, on every core."""
    seconds = bench.rounds * bench.seconds
    found: list[Found] = []
    for outcome in hunt_within(MUTANTS, runs, seconds, os.cpu_count() or 1):
        say(report.line(outcome))
        found.append(outcome)
    if report.problems(found):
        names = ", ".join(outcome.mutant.name for outcome in report.problems(found))
        raise LoadFailedError(f"these are no mutants any more: {names}")
    caught = report.caught(found)
    return Outcome(
        values={
            "share of the mutants that are caught": len(caught) / len(found),
            "mutants": len(found),
        },
        detail={
            "seconds": seconds,
            "cores": os.cpu_count(),
            "rules": sorted(
                {outcome.mutant.rule for outcome in found}, key=lambda rule: int(rule[1:])
            ),
            "survivors": [
                f"{outcome.mutant.rule}: {outcome.mutant.name}"
                for outcome in report.survivors(found)
            ],
            "caught": {
                outcome.mutant.name: {
                    "rule": outcome.mutant.rule,
                    "by": outcome.caught_by,
                    "core_seconds": outcome.cpu_s,
                    "simulated_minutes": outcome.simulated_s / 60,
                }
                for outcome in caught
            },
        },
    )
