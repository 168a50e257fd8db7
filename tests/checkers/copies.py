"""Compares a copy with its original: C31, exactly once.

Members of a group copy each record to the partition of the same number, in order, by transactions
that also have the group's positions. So what committed readers see of a partition's copy is a
beginning of what they see of the original: nothing is left out, comes twice, or comes from an
aborted attempt. The reads of the end tell both.
"""

from collections.abc import Iterable, Iterator, Sequence

from tests.checkers import order
from tests.checkers.history import INVOKE, OK, Op, Run
from tests.checkers.report import Anomaly, Report


def check_copy(
    original: Iterable[Op], copy: Sequence[Op], original_keys: Iterable[int], keys: Iterable[int]
) -> Report:
    """Judge a copy.

    Args:
        original: the history of the original; its final polls count.
        copy: the history of the copy.
        original_keys: of the original's partitions, in order.
        keys: of the copy's.
    """
    report = Report()
    wanted, there = final_values(original), final_values(copy)
    for key, copied in zip(original_keys, keys, strict=True):
        values = there.get(copied, [])
        report.add(_anomalies(copied, wanted.get(key, []), values))
        report.measures["copied"] = report.measures.get("copied", 0.0) + len(values)
    report.add(order.anomalies(copy))
    report.add(_unstable(copy))
    return report


def final_values(history: Iterable[Op]) -> dict[int, list[int]]:
    """Return the values of the final polls, by key, in the order of their offsets."""
    known: dict[int, dict[int, int]] = {}
    found: dict[int, dict[int, int]] = {}
    for op in history:
        if op.type == INVOKE:
            continue
        for key, value, offset in op.sends:
            if op.type == OK and offset is not None:
                known.setdefault(key, {}).setdefault(offset, value)
        for polled in op.polls:
            for key, entries in polled.items():
                values = known.setdefault(key, {})
                for entry in entries:
                    if type(entry) is Run:
                        read = {at: values[at] for at in range(entry.first, entry.last + 1)}
                    else:
                        read = {entry[0]: entry[1]}
                        values.setdefault(*entry)
                    if op.f == "final" and op.type == OK:
                        found.setdefault(key, {}).update(read)
    return {key: [values[at] for at in sorted(values)] for key, values in found.items()}


def _anomalies(key: int, wanted: Sequence[int], copied: Sequence[int]) -> Iterator[Anomaly]:
    seen: dict[int, int] = {}
    places = {value: at for at, value in enumerate(wanted)}
    expected = 0
    for number, value in enumerate(copied):
        if value in seen:
            what = f"key {key}: {value} is record {seen[value]}, and {number} again"
            yield Anomaly("copied-twice", what)
            continue
        seen[value] = number
        at = places.get(value)
        if at is None:
            yield Anomaly("copied-nothing", f"key {key}: {value} is not in the original")
        elif at < expected:
            yield Anomaly("copied-late", f"key {key}: {value} comes after {wanted[expected - 1]}")
        else:
            if at > expected:
                what = f"key {key}: {at - expected} values before {value} are left out"
                yield Anomaly("not-copied", what)
            expected = at + 1


def _unstable(history: Iterable[Op]) -> Iterator[Anomaly]:
    """C1: an offset has one value, whoever reads it."""
    known: dict[tuple[int, int], int] = {}
    for op in history:
        for polled in () if op.type == INVOKE else op.polls:
            for key, entries in polled.items():
                for entry in entries:
                    if type(entry) is Run:
                        continue  # By definition what the history showed first.
                    first = known.setdefault((key, entry[0]), entry[1])
                    if first != entry[1]:
                        what = f"key {key} offset {entry[0]} was {first}, and then {entry[1]}"
                        yield Anomaly("inconsistent-offset", what, (op.index,))
