"""Compares the resources of processes at the beginning and at the end: C29.

Samples are taken at rest: before the load and after it. A leak per failed operation grows without
bound, so the allowance does not depend on the run's length.
"""

from collections.abc import Iterable, Iterator, Mapping

from tests.checkers.history import FAIL, INFO, Op
from tests.checkers.report import Anomaly


def anomalies(history: Iterable[Op], allowances: Mapping[str, int]) -> Iterator[Anomaly]:
    """Yield resources that grew by more than their allowances.

    A process is one life of a program: a restart makes another process.
    """
    first: dict[str, Mapping[str, int]] = {}
    last: dict[str, tuple[int, Mapping[str, int]]] = {}
    failures = 0
    for op in history:
        if op.f == "resources":
            first.setdefault(op.process, op.details)
            last[op.process] = op.index, op.details
        elif op.type in (FAIL, INFO) and (op.sends or op.polls):
            failures += 1
    for process, (index, amounts) in last.items():
        for name, allowance in allowances.items():
            growth = amounts.get(name, 0) - first[process].get(name, 0)
            if growth > allowance:
                yield Anomaly(
                    "resource-growth",
                    f"{process} ended with {growth} more of {name}, after {failures} operations "
                    "that failed",
                    (index,),
                )
