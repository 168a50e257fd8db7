"""Promises about writes that are acknowledged before they are replicated.

They may be lost, but only when another leader is elected. The former one acknowledges writes until
it hears of that. Records that were read are never lost. The records are in the order of their
sends, without duplicates. Each key has one writer, whose values ascend. The other checkers judge
what holds for all writes.
"""

from collections.abc import Iterable, Iterator, Sequence

from tests.checkers.contents import Contents
from tests.checkers.history import OK, Op, Run
from tests.checkers.report import Anomaly

_LATE_NS = 10 * 10**9
"""How late the observer of metadata may see an election."""
_UNHEARD_NS = 2 * 10**9
"""How long the former leader may not hear of it: the session time-out in `tests.faults`."""


def anomalies(history: Sequence[Op]) -> Iterator[Anomaly]:
    """Yield the anomalies of a history that ends with final polls of all keys."""
    contents = Contents(history)
    for key, final in contents.final.items():
        known = contents.known.of(key)
        before = -1
        for offset in sorted(known):
            value = known[offset]
            if offset in final:
                if value < before:
                    yield Anomaly(
                        "nonmonotonic-send", f"key {key}: {value} at {offset} comes after {before}"
                    )
                before = value
            elif offset in contents.read[key]:
                yield Anomaly("lost-write", f"key {key}: {value} was read at {offset}, and is gone")
        there = {value for offset, value in known.items() if offset in final}
        elections = list(_elections(history, key))
        passed = list(_passed(history, key, contents))
        for value, write in contents.writes.get(key, {}).items():
            if write.outcome != OK or value in there:
                continue
            since = history[write.op].at_ns
            until = next((at for at, newest in passed if newest > value), history[-1].at_ns)
            if not any(since - _UNHEARD_NS <= at <= until + _LATE_NS for at in elections):
                yield Anomaly(
                    "lost-write",
                    f"key {key}: {value} was acknowledged and is gone, and nobody else was elected",
                    (history[write.op].index,),
                )


def share_seen(history: Sequence[Op]) -> float:
    """Return the share of sent records that the final polls read."""
    contents = Contents(history)
    sent = sum(map(len, contents.writes.values()))
    seen = sum(
        offset in contents.final.get(key, ())
        for key, known in contents.known.values.items()
        for offset in known
    )
    return seen / sent if sent else 0.0


def _elections(history: Iterable[Op], key: int) -> Iterator[int]:
    """Yield the times at which a changed leader epoch was seen."""
    epoch = None
    for op in history:
        if op.f == "metadata" and op.details["key"] == key:
            if epoch is not None and op.details["leader_epoch"] != epoch:
                yield op.at_ns
            epoch = op.details["leader_epoch"]


def _passed(history: Iterable[Op], key: int, contents: Contents) -> Iterator[tuple[int, int]]:
    """Yield the times at which a value greater than all before was read."""
    known, newest = contents.known.of(key), -1
    for op in history:
        if op.f != "poll" or op.type != OK:
            continue
        for polled in op.polls:
            if entries := polled.get(key):
                last = entries[-1]
                value = known[last.last] if type(last) is Run else last[1]
                if value > newest:
                    newest = value
                    yield op.at_ns, value
