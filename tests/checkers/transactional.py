"""Judges a load of transactions and its copy (`tests.faults.transactional`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.checkers.check import check
from tests.checkers.copies import check_copy
from tests.checkers.history import UNCOMMITTED, Op
from tests.checkers.report import Expectations

_FOREVER_NS: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was found.

    Attributes:
        failures: each breaks a promise.
        committed: number of records of committed transactions.
        copied: how many of them were copied.
        in_window: number of transactions that were committed while all should be well.
        longest_s: the longest transaction meanwhile.
    """

    failures: list[str]
    committed: int
    copied: int
    in_window: int
    longest_s: float

    def __str__(self) -> str:
        return f"transactions: {self.committed} records are committed, and {self.copied} copied"


def judge(
    original: Sequence[Op],
    copied: Sequence[Op],
    keys: Iterable[int],
    *,
    commit_ns: int | None = None,
) -> Judged:
    """Judge both histories.

    Args:
        original: of the topic that is written.
        copied: of its copy.
        keys: of the partitions of each.
        commit_ns: see `check`.
    """
    keys = tuple(keys)
    report = check(
        original,
        expectations=Expectations(ok_shares={"txn": 0.25, "poll": 0.5, UNCOMMITTED: 0.5}),
        availability_ns=_FOREVER_NS,
        commit_ns=commit_ns,
    )
    copy = check_copy(original, copied, keys, keys)
    return Judged(
        failures=[
            f"of {what}: {found.text()}"
            for what, found in (("transactions", report), ("copies", copy))
            if not found.is_good
        ],
        committed=round(report.measures["acknowledged"]),
        copied=round(copy.measures["copied"]),
        in_window=round(report.measures.get("timed_transactions", 0.0)),
        longest_s=report.measures.get("longest_transaction_s", 0.0),
    )
