"""Compares what was read with what was sent: C1 to C6 and C27, in one pass.

Records of a failed operation are judged too: no consumer may ever see a record that does not exist.
Only an `ok` read counts as reading.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.checkers.coverage import Coverage
from tests.checkers.history import FAIL, INFO, INVOKE, OK, UNCOMMITTED, KnownLog, Op, Run
from tests.checkers.report import Anomaly


@dataclass(slots=True)
class Write:
    """What happened to one value."""

    op: int
    outcome: str = INVOKE
    siblings: tuple[tuple[int, int], ...] = ()


class Contents:
    """What one pass over a history collects; `anomalies` judges it."""

    def __init__(self, history: Iterable[Op]) -> None:
        self.known = KnownLog()
        self.writes: dict[int, dict[int, Write]] = {}
        self.read: dict[int, Coverage] = {}
        """Offsets of `ok` operations."""
        self.shown: dict[int, Coverage] = {}
        """Offsets of all operations."""
        self.final: dict[int, Coverage] = {}
        self.finals: dict[str, dict[int, Coverage]] = {}
        """What each process has read last."""
        self.dumped: dict[int, Coverage] = {}
        self.others: list[tuple[int, int, int, Op]] = []
        """(key, offset, value, op) of values that were not the first at their offset."""
        for op in history:
            self._feed(op)

    def _feed(self, op: Op) -> None:
        if op.sends:
            self._feed_sends(op)
        if op.polls and op.type != INVOKE:
            self._feed_polls(op)

    def _feed_sends(self, op: Op) -> None:
        outcome = op.type
        for key, value, offset in op.sends:
            writes = self.writes.setdefault(key, {})
            if outcome == INVOKE:
                writes[value] = Write(op.index)
                continue
            write = writes.get(value)
            if write is None:  # A completion without an invocation: it was sent, too.
                write = writes[value] = Write(op.index)
            write.outcome = outcome
            if outcome == INFO and len(op.sends) > 1:
                write.siblings = tuple((send.key, send.value) for send in op.sends)
            if offset is not None and outcome != FAIL:
                first = self.known.of(key).setdefault(offset, value)
                if first != value:
                    self.others.append((key, offset, value, op))

    def _feed_polls(self, op: Op) -> None:
        if op.f == "dump":
            into = [self.dumped]
        elif op.f == UNCOMMITTED:
            into = []
        elif op.type != OK:
            into = [self.shown]
        elif op.f == "final":
            own = self.finals.setdefault(op.process, {})
            into = [self.shown, self.read, self.final, own]
        else:
            into = [self.shown, self.read]
        for polled in op.polls:
            for key, entries in polled.items():
                known = self.known.of(key)
                coverages = [covered.setdefault(key, Coverage()) for covered in into]
                for entry in entries:
                    if type(entry) is Run:
                        first, last = entry
                    else:
                        first, value = entry
                        last = first
                        if known.setdefault(first, value) != value:
                            self.others.append((key, first, value, op))
                            continue
                    for coverage in coverages:
                        coverage.add(first, last)


def anomalies(contents: Contents, log_starts: Mapping[int, int] | None = None) -> Iterator[Anomaly]:
    """Yield what is wrong.

    Args:
        contents: of the history.
        log_starts: offsets below which retention deleted records, by key.
    """
    places = {key: _places(contents, key) for key in contents.known.values}
    yield from _inconsistent(contents)
    for key in sorted(places.keys() | contents.writes.keys()):
        yield from _judge_log(contents, key, places.get(key, {}))
        yield from _judge_writes(contents, key, places, (log_starts or {}).get(key, 0))


Places = Mapping[int, list[int]]
"""The offsets at which each value of a key was seen."""


def _inconsistent(contents: Contents) -> Iterator[Anomaly]:
    for key, offset, value, op in contents.others:
        first = contents.known.of(key)[offset]
        yield Anomaly(
            "inconsistent-offset",
            f"key {key} offset {offset} was {first}, and then {value}",
            (op.index,),
        )
        write = contents.writes.get(key, {}).get(value)
        if write is None:
            yield Anomaly("phantom", f"key {key} offset {offset}: {value}", (op.index,))


def _places(contents: Contents, key: int) -> Places:
    offsets: dict[int, list[int]] = {}
    for offset, value in contents.known.of(key).items():
        offsets.setdefault(value, []).append(offset)
    for other_key, offset, value, _ in contents.others:
        if other_key == key and offset not in offsets.get(value, ()):
            offsets.setdefault(value, []).append(offset)
    return offsets


def _judge_log(contents: Contents, key: int, places: Places) -> Iterator[Anomaly]:
    writes, known = contents.writes.get(key, {}), contents.known.of(key)
    shown = contents.shown.get(key, Coverage())
    dumped = contents.dumped.get(key, Coverage())
    for value, offsets in places.items():
        if len(offsets) > 1:
            yield Anomaly("duplicate", f"key {key}: {value} at offsets {sorted(offsets)}")
        write = writes.get(value)
        if write is None:
            if known.get(offsets[0]) == value:
                yield Anomaly("phantom", f"key {key} offset {offsets[0]}: {value}")
        elif write.outcome == FAIL:
            kind = None
            if any(offset in shown for offset in offsets):
                kind = "aborted-read"
            elif any(offset in dumped for offset in offsets):
                kind = "dishonest-error"
            if kind is not None:
                yield Anomaly(kind, f"key {key} offsets {offsets}: {value}", (write.op,))


def _judge_writes(
    contents: Contents, key: int, places: Mapping[int, Places], log_start: int
) -> Iterator[Anomaly]:
    bound = contents.read[key].highest if key in contents.read else -1
    finals = [final[key] for final in contents.finals.values() if key in final]
    own = places.get(key, {})
    for value, write in contents.writes.get(key, {}).items():
        if write.outcome != OK and not any(
            _is_read(contents, places, *sibling) for sibling in write.siblings
        ):
            continue  # It need not be there.
        offsets = own.get(value, ())
        if offsets and max(offsets) < log_start:
            continue
        if _is_read(contents, places, key, value):
            if not all(any(offset in final for offset in offsets) for final in finals):
                yield Anomaly("unseen", f"key {key}: {value} at {offsets}", (write.op,))
        elif offsets and max(offsets) <= bound:
            yield Anomaly("lost-write", f"key {key}: {value} at {offsets}", (write.op,))
        elif finals:
            yield Anomaly("unseen", f"key {key}: {value}", (write.op,))


def _is_read(contents: Contents, places: Mapping[int, Places], key: int, value: int) -> bool:
    read = contents.read.get(key)
    if read is None:
        return False
    known = contents.known.of(key)
    # Another value may have been at its offset when it was read.
    return any(o in read and known[o] == value for o in places.get(key, {}).get(value, ()))
