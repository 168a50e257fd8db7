"""Mutants of who may do what, and of how clients prove who they are."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

# fmt: off
MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant("what an authority answers is not looked at", "G8",
           "millrace.broker.guard.access_reviews:AccessReviews._reviewed",
           'is_allowed = status.get("allowed") is True and not status.get("denied")',
           "is_allowed = bool(status)"),
)
# fmt: on
