"""The order in which each client read and sent records: C9, C10, C11, in one pass.

A poll continues where the last one ended. A larger offset is a jump only if some client read a
record in between, which is known at the end. An acknowledged record that was never read is lost,
not skipped.
"""

from collections.abc import Iterable, Iterator

from tests.checkers.coverage import Coverage
from tests.checkers.history import OK, UNCOMMITTED, Op, Polled, Run
from tests.checkers.report import Anomaly

_Gap = tuple[int, int, int, Anomaly, dict[int, Coverage]]
"""(key, last offset before, first offset after it, the anomaly if a record in between was read, and
what was read by such readers)."""


def anomalies(history: Iterable[Op]) -> Iterator[Anomaly]:
    """Yield what is out of order."""
    read: dict[int, Coverage] = {}  # By key.
    also_open: dict[int, Coverage] = {}  # Likewise, with open and aborted transactions.
    gaps: list[_Gap] = []
    polled_to: dict[str, dict[int, int]] = {}  # By process and key: the last offset.
    sent_to: dict[str, dict[int, int]] = {}
    for op in history:
        if op.type != OK:
            continue
        positions = polled_to.setdefault(op.process, {})
        if op.sends:
            yield from _judge_sends(op, sent_to.setdefault(op.process, {}))
        if op.polls:
            if op.f == "final":
                positions = {}  # It starts over from its assignment.
            seen = also_open if op.f == UNCOMMITTED else read
            yield from _judge_polls(op, positions, seen, gaps)
        elif op.f in ("assign", "subscribe"):
            kept = set(op.details)
            for key in [key for key in positions if key not in kept]:
                del positions[key]
        elif op.f == "seek":
            for key in op.details:
                positions.pop(key, None)
    for key, before, after, anomaly, read_there in gaps:
        if read_there[key].has_between(before, after):
            yield anomaly


def _judge_sends(op: Op, positions: dict[int, int]) -> Iterator[Anomaly]:
    within: set[int] = set()
    for key, value, offset in op.sends:
        if offset is None:
            continue
        before = positions.get(key, -1)
        if offset <= before:
            kind = "int-nonmonotonic-send" if key in within else "nonmonotonic-send"
            yield Anomaly(
                kind, f"{op.process} sent {value} to key {key} at {offset}, after {before}",
                (op.index,),
            )  # fmt: skip
        positions[key] = offset
        within.add(key)


def _judge_polls(
    op: Op, positions: dict[int, int], read: dict[int, Coverage], gaps: list[_Gap]
) -> Iterator[Anomaly]:
    within: set[int] = set()
    for key, first, last in _runs(op.polls):
        read.setdefault(key, Coverage()).add(first, last)
        before = positions.get(key)
        positions[key] = last
        is_within = key in within
        within.add(key)
        if before is None or first == before + 1 or key in op.rebalanced:
            continue
        what = f"{op.process} read key {key} at {first}, after {before}"
        prefix = "int-" if is_within else ""
        if first <= before:
            yield Anomaly(f"{prefix}nonmonotonic-poll", what, (op.index,))
        else:
            anomaly = Anomaly(f"{prefix}poll-skip", what, (op.index,))
            gaps.append((key, before, first, anomaly, read))


def _runs(polls: Iterable[Polled]) -> Iterator[tuple[int, int, int]]:
    """Yield (key, first offset, last offset) in the order read."""
    for polled in polls:
        for key, entries in polled.items():
            for entry in entries:
                if type(entry) is Run:
                    yield key, entry.first, entry.last
                else:
                    yield key, entry[0], entry[0]
