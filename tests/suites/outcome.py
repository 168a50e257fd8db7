"""What a test of somebody else's suite came to, and why one may be left out.

Invariant: a test that is left out has one of four reasons; every other one has passed or failed.
"""

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


def leaves(results: list[Result]) -> list[Result]:
    """Return results without those of tests that only have others within them.

    A test that failed although all tests within it passed stays: something outside of them broke.
    """
    within: dict[str, list[Result]] = {}
    for result in results:
        parts = result.test.split("/")
        for length in range(1, len(parts)):
            within.setdefault("/".join(parts[:length]), []).append(result)

    def stays(result: Result) -> bool:
        inner = within.get(result.test)
        if inner is None:
            return True
        return result.outcome is Outcome.FAILED and not any(
            part.outcome is Outcome.FAILED for part in inner
        )

    return [result for result in results if stays(result)]
