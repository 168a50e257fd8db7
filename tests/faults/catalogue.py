"""What the catalogues of real faults share, those of processes and those of a Kubernetes.

A fault's `inject` breaks something and returns the effect that it saw, as a sentence: a changed
epoch or ISR, a refusal, a recovery. It raises `NotSeenError` if it saw none: it does not count.
"""

import argparse
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from tests.checkers.report import Expectations, Report
from tests.faults.machine import Need
from tests.faults.metadata import View

SEEN_SECONDS_MAX: Final = 20.0
S = TypeVar("S")


class NotSeenError(Exception):
    """A fault had no visible effect; it does not count."""


@dataclass(frozen=True, slots=True)
class Fault(Generic[S]):
    """One kind of fault.

    Attributes:
        what: how it is injected, for the table.
        needs: of the machine.
    """

    name: str
    what: str
    inject: Callable[[S], str]
    needs: tuple[Need, ...]


class Catalogue(dict[str, Fault[S]]):
    """Faults by their name: an id of docs/safety.md, or some words."""

    def fault(
        self, name: str, what: str, *needs: Need
    ) -> Callable[[Callable[[S], str]], Callable[[S], str]]:
        """Register a function as the injection of a fault."""

        def add(inject: Callable[[S], str]) -> Callable[[S], str]:
            assert name not in self, name
            self[name] = Fault(name, what, inject, needs)
            return inject

        return add

    def parser(self, prog: str, about: str | None) -> argparse.ArgumentParser:
        """Return the options of a program that plays rounds with these faults."""
        names = ",".join(sorted(self))

        def chosen(text: str) -> list[str]:
            found = text.split(",")
            if unknown := sorted(set(found) - self.keys()):
                raise argparse.ArgumentTypeError(f"no such faults here: {', '.join(unknown)}")
            return found

        parser = argparse.ArgumentParser(prog=prog, description=about)
        parser.add_argument("--faults", type=chosen, help=f"only these, in this order: {names}")
        parser.add_argument("--count", type=int, default=1, help="how many rounds")
        parser.add_argument(
            "--seconds", type=float, default=float("inf"), help="begin nothing after so long"
        )
        parser.add_argument("--seed", type=int, default=1, help="of the first round")
        parser.add_argument("--folder", type=Path, help="where rounds leave their files")
        return parser


class Seeing(ABC):
    """How a fault sees its effect: by the cluster's metadata.

    Attributes:
        seen_seconds_max: how long an effect may take.
    """

    seen_seconds_max: ClassVar[float] = SEEN_SECONDS_MAX

    @property
    @abstractmethod
    def view(self) -> View:
        """The present metadata."""

    def wait_for(
        self, is_so: Callable[[View], object], what: str, seconds: float | None = None
    ) -> View:
        """Return the metadata once it fulfils a condition.

        Raises:
            NotSeenError: it does not in time.
        """
        seconds = seconds or self.seen_seconds_max
        deadline = time.monotonic() + seconds
        while not is_so(view := self.view):
            if time.monotonic() > deadline:
                raise NotSeenError(f"not within {seconds:g} s: {what}")
            time.sleep(0.02)
        return view

    def wait_for_new_leader(self, key: int, before: View, seconds: float | None = None) -> str:
        """Wait until a partition has a leader in a later epoch; return a description."""
        old = before.partition(key)

        def has_one(view: View) -> bool:
            new = view.partition(key)
            return new.leader_epoch > old.leader_epoch and new.leader >= 0

        new = self.wait_for(has_one, f"a new leader of key {key}", seconds).partition(key)
        return (
            f"key {key}: leader {old.leader} in epoch {old.leader_epoch}, "
            f"then {new.leader} in epoch {new.leader_epoch}"
        )

    def wait_for_new_controller(
        self, before: View, seconds: float | None = None, *, but: str = ""
    ) -> str:
        """Wait until another controller epoch has begun; return a description.

        Args:
            but: who must not be the controller.
        """
        old = before.cluster.controller_epoch
        view = self.wait_for(
            lambda view: view.cluster.controller_epoch > old and view.controller != but,
            "a new controller epoch",
            seconds,
        )
        return (
            f"controller epoch {old} of {before.controller}, then "
            f"{view.cluster.controller_epoch} of {view.controller}"
        )

    def led_keys(self, name: str) -> list[int]:
        """The partitions that a broker leads.

        Raises:
            NotSeenError: it leads none.
        """
        if not (found := self.view.led_by(name)):
            raise NotSeenError(f"{name} leads nothing")
        return found


@dataclass(slots=True)
class Done:
    """One fault that was tried: its observed effect, or why it does not count."""

    name: str
    seen: str
    counts: bool
    began_ns: int
    ended_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def seconds(self) -> float:
        """How long it took, healing included."""
        return (self.ended_ns - self.began_ns) / 1e9

    def __str__(self) -> str:
        what = "seen" if self.counts else "NOT SEEN"
        return f"{self.name} {self.seconds:5.1f} s {what}: {self.seen}"


D = TypeVar("D", bound=Done)


@dataclass(slots=True)
class Outcome(Generic[D]):
    """The result of a round.

    Attributes:
        failures: problems outside the history, such as a cluster that did not become whole.
    """

    done: list[D] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    report: Report | None = None

    @property
    def is_good(self) -> bool:
        """Whether nothing went wrong."""
        return not self.failures and self.report is not None and self.report.is_good

    def expectations(self, moving: int, **ok_shares: float) -> Expectations:
        """What the history must show: each fault, and of so many a changed leader and ISR."""
        counted = Counter(fault.name for fault in self.done if fault.counts)
        moves = int(counted.total() >= moving)
        return Expectations(
            ok_shares=ok_shares, faults=counted, leader_changes=moves, isr_changes=moves
        )

    def lines(self) -> list[str]:
        """What people have to be told at the end."""
        return self.failures + ([] if self.report is None else [self.report.text()])


def totals(outcomes: Sequence[Outcome[D]]) -> dict[str, Any]:
    """Return the sums over all rounds."""
    done = [fault for outcome in outcomes for fault in outcome.done]
    reports = [outcome.report for outcome in outcomes if outcome.report]
    return {
        "rounds": len(outcomes),
        "good": sum(outcome.is_good for outcome in outcomes),
        "seen": sum(fault.counts for fault in done),
        "not_seen": dict(sorted(Counter(fault.name for fault in done if not fault.counts).items())),
        "acknowledged": sum(int(report.measures["acknowledged"]) for report in reports),
        "anomalies": dict(sum((report.counts for report in reports), Counter())),
        "failures": [failure for outcome in outcomes for failure in outcome.failures],
    }
