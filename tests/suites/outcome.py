"""What a test of somebody else's suite came to, and why one may be left out.

Invariant: a test that is left out has one of four reasons; every other one has passed or failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"


class Reason(StrEnum):
    """Why a test is left out. There is no fifth reason."""

    NOT_LISTED = "not_listed"
    """It is about a request that the broker does not list."""
    HOOKS = "hooks"
    """It hooks into Kafka's own broker: its files, settings, command lines, logs."""
    MACHINES = "machines"
    """It takes ssh or Docker."""
    FAILS_AT_KAFKA = "fails_at_kafka"
    """It fails against Apache Kafka, too, or leaves itself out there."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One test.

    Attributes:
        test: its name, with those of the tests that it is part of before it.
        seconds: how long it took; 0: not known.
        said: of a failure, what the suite said of it; of a test that is left out, the reason.
    """

    test: str
    outcome: Outcome
    seconds: float = 0.0
    said: str = ""


def leaves(results: Sequence[tuple[int, Result]]) -> list[Result]:
    """Return results without those of tests that only have others within them.

    A test that failed although all tests within it passed stays: something outside of them broke.

    Args:
        results: with the depth of each; those within a test follow it.
    """
    found = []
    for at, (depth, result) in enumerate(results):
        end = next(
            (later for later in range(at + 1, len(results)) if results[later][0] <= depth),
            len(results),
        )
        inner = [part for _, part in results[at + 1 : end]]
        is_broken = result.outcome is Outcome.FAILED and not any(
            part.outcome is Outcome.FAILED for part in inner
        )
        if not inner or is_broken:
            found.append(result)
    return found
