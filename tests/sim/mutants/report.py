"""The report of a hunt: a table of all mutants, the survivors, and the share that was caught."""

from collections.abc import Sequence

from tests.sim.mutants.hunt import Found


def line(found: Found) -> str:
    """Return one mutant's line of the table."""
    mutant = found.mutant
    if found.problem:
        end = f"NO MUTANT: {found.problem}"
    elif found.caught_by is None:
        end = "SURVIVES"
    else:
        end = f"{found.caught_by}: {found.violation[:90]}"
    return (
        f"{mutant.rule:4} {mutant.name[:80]:80} {found.cpu_s:6.1f} s "
        f"{found.simulated_s / 60:6.1f} min {found.runs:4}  {end}"
    )


def caught(found: Sequence[Found], within_s: float = float("inf")) -> list[Found]:
    """Return those that were caught within a CPU time in seconds."""
    return [
        outcome
        for outcome in found
        if outcome.caught_by is not None and not outcome.problem and outcome.cpu_s <= within_s
    ]


def problems(found: Sequence[Found]) -> list[Found]:
    """Return the invalid mutants: they fail the whole hunt."""
    return [outcome for outcome in found if outcome.problem]


def survivors(found: Sequence[Found]) -> list[Found]:
    """Return those that no run caught."""
    return [outcome for outcome in found if outcome.caught_by is None and not outcome.problem]


def summary(found: Sequence[Found]) -> str:
    """Return the last lines of a report."""
    names = [f"  {survivor.mutant.rule} {survivor.mutant.name}" for survivor in survivors(found)]
    rules = {outcome.mutant.rule for outcome in found}
    text = (
        f"{len(caught(found))} of {len(found)} mutants of {len(rules)} rules are caught "
        f"({len(caught(found)) / max(len(found), 1):.0%})"
    )
    return "\n".join([text, *(["survivors:", *names] if names else [])])
