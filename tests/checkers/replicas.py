"""Compares the replicas of a partition while no client writes: C23.

Committed batches have the same bytes on all replicas, and leader epochs the same start offsets.
Batches below any replica's log start, or above any replica's high watermark, are not compared.

`details` of a `replica` operation, whose process is the broker: `key`, `log_start`,
`high_watermark`, `batches` as [base offset, last offset, digest of the bytes], and `epochs` as
[leader epoch, start offset], both ascending.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.checkers.history import Op
from tests.checkers.report import Anomaly


def anomalies(history: Iterable[Op]) -> Iterator[Anomaly]:
    """Yield differences between the last reports of the replicas."""
    last: dict[int, dict[str, Op]] = {}  # By key and broker.
    for op in history:
        if op.f == "replica":
            last.setdefault(op.details["key"], {})[op.process] = op
    for key in sorted(last):
        replicas = list(last[key].values())
        begin = max(op.details["log_start"] for op in replicas)
        end = min(op.details["high_watermark"] for op in replicas)
        first, *others = replicas
        for other in others:
            what = f"key {key}, offsets {begin} to {end}: {first.process} and {other.process}"
            numbers = (first.index, other.index)
            difference = _first_difference(
                _batches(first.details, begin, end), _batches(other.details, begin, end)
            )
            if difference is not None:
                yield Anomaly("replica-divergence", f"{what} hold {difference}", numbers)
            elif _epochs(first.details, begin, end) != _epochs(other.details, begin, end):
                yield Anomaly(
                    "replica-divergence",
                    f"{what} know epochs {first.details['epochs']} and {other.details['epochs']}",
                    numbers,
                )


def _batches(replica: Mapping[str, Any], begin: int, end: int) -> list[Sequence[Any]]:
    return [list(batch) for batch in replica["batches"] if batch[1] >= begin and batch[0] < end]


def _epochs(replica: Mapping[str, Any], begin: int, end: int) -> list[tuple[int, int]]:
    """The epochs of a range, each with its first offset there."""
    found: list[tuple[int, int]] = []
    for epoch, start in replica["epochs"]:
        if start >= end:
            break
        if start <= begin:
            found.clear()
        found.append((epoch, max(start, begin)))
    return found


def _first_difference(ours: list[Sequence[Any]], theirs: list[Sequence[Any]]) -> str | None:
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            return f"{one} and {other}"
    if len(ours) != len(theirs):
        return f"{len(ours)} and {len(theirs)} batches"
    return None
