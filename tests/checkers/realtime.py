"""Real-time order, availability and lag: C15, C16, C25, C26 and C32, each in one pass.

Histories are in order of time: what was acknowledged before an operation's invocation stands above
its line.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from tests.checkers.history import INVOKE, OK, Op, Run
from tests.checkers.report import Anomaly


def send_anomalies(history: Iterable[Op]) -> Iterator[Anomaly]:
    """C15: an append that began after another one was acknowledged has the larger offset."""
    acknowledged: dict[int, int] = {}  # By key: the greatest offset.
    begun: dict[tuple[int, int], int] = {}  # By key and value: that offset when it was sent first.
    for op in history:
        if op.type == INVOKE:
            for key, value, _ in op.sends:
                begun.setdefault((key, value), acknowledged.get(key, -1))
        if op.type != OK:
            continue
        for key, value, offset in op.sends:
            if offset is None:
                continue
            bound = begun.pop((key, value), -1)
            if offset < bound:
                yield Anomaly(
                    "realtime-inversion",
                    f"key {key}: {value} has offset {offset}, but {bound} was acknowledged before "
                    "it was sent",
                    (op.index,),
                )
            acknowledged[key] = max(acknowledged.get(key, -1), offset)


def end_offset_anomalies(history: Iterable[Op]) -> Iterator[Anomaly]:
    """C16: an end offset covers what was acknowledged before it was asked, and never shrinks."""
    acknowledged: dict[int, int] = {}
    begun: dict[str, dict[int, int]] = {}
    seen: dict[tuple[str, int], int] = {}
    for op in history:
        if op.f == "list_offsets":
            if op.type == INVOKE:
                begun[op.process] = {key: acknowledged.get(key, -1) for key in op.details}
            elif op.type == OK:
                bounds = begun.pop(op.process, {})
                for key, end in op.details.items():
                    yield from _judge_end(op, key, end, bounds.get(key, -1), seen)
        elif op.type == OK:
            for key, _, offset in op.sends:
                if offset is not None:
                    acknowledged[key] = max(acknowledged.get(key, -1), offset)


def _judge_end(
    op: Op, key: int, end: int, bound: int, seen: dict[tuple[str, int], int]
) -> Iterator[Anomaly]:
    before = seen.get((op.process, key), -1)
    if end <= bound:
        yield Anomaly(
            "stale-end-offset", f"key {key} ends at {end}, but {bound} was acknowledged",
            (op.index,),
        )  # fmt: skip
    elif end < before:
        yield Anomaly(
            "end-offset-regression", f"{op.process} saw key {key} end at {before}, then at {end}",
            (op.index,),
        )  # fmt: skip
    seen[op.process, key] = max(before, end)


_Waits = dict[str, tuple[int, int]]
"""Of one key, by process: since when it waits, and for which operation."""


class Availability:
    """C25: how long sends waited while a `window` was open.

    A key is unavailable from the first send without an answer to the next acknowledged one. A wait
    that began before the window counts from the window's beginning. A transaction that was not
    committed waits no longer once its outcome is told: its writer may have given it up.

    Attributes:
        longest_ns: the longest wait, of any key.
    """

    def __init__(self, history: Iterable[Op], goal_ns: int) -> None:
        self.longest_ns = 0
        self.anomalies: list[Anomaly] = []
        self._goal_ns = goal_ns
        waiting: dict[int, _Waits] = {}
        is_open, opened_ns, last_ns = False, 0, 0
        for op in history:
            last_ns = op.at_ns
            if op.f == "window":
                if op.details == "close" and is_open:
                    self._judge_all(waiting, opened_ns, op.at_ns)
                is_open, opened_ns = op.details == "open", op.at_ns
                continue
            for send in op.sends:
                waits = waiting.setdefault(send.key, {})
                if op.type == INVOKE:
                    waits.setdefault(op.process, (op.at_ns, op.index))
                elif op.type == OK:
                    if is_open:
                        self._judge(send.key, waits, opened_ns, op.at_ns)
                    waits.clear()
                elif op.f == "txn":
                    waits.pop(op.process, None)
        if is_open:
            self._judge_all(waiting, opened_ns, last_ns)

    def _judge_all(self, waiting: dict[int, _Waits], opened_ns: int, closed_ns: int) -> None:
        for key, waits in waiting.items():
            self._judge(key, waits, opened_ns, closed_ns)

    def _judge(self, key: int, waits: _Waits, opened_ns: int, until_ns: int) -> None:
        if not waits:
            return
        since_ns, index = min(waits.values())
        waited = until_ns - max(since_ns, opened_ns)
        self.longest_ns = max(self.longest_ns, waited)
        if waited > self._goal_ns:
            self.anomalies.append(
                Anomaly(
                    "unavailable", f"key {key} took no write for {waited / 1e9:.3f} s", (index,)
                )
            )


class Commits:
    """C32: what becomes of transactions while a `window` is open, and how long they take.

    A transaction counts when its commit was asked for: then nobody but the brokers can keep it from
    being committed. It takes from its begin, or the window's, to its outcome, or the window's end.
    The outcome is judged when all of it lies in the window.

    Attributes:
        count: how many were committed within it.
        longest_ns: the longest one.
    """

    def __init__(self, history: Iterable[Op], goal_ns: int | None = None) -> None:
        self.count = 0
        self.longest_ns = 0
        self.anomalies: list[Anomaly] = []
        self._goal_ns = goal_ns
        self._opened_ns: int | None = None
        begun: dict[str, Op] = {}
        asked: dict[str, Op] = {}  # By process: the operation that began it.
        for op in history:
            if op.f == "window":
                for began in asked.values():
                    self._judge_time(began, op.at_ns)
                self._opened_ns = op.at_ns if op.details == "open" else None
            elif op.f == "end" and op.details == "commit" and op.process in begun:
                asked[op.process] = begun[op.process]
            elif op.f == "txn" and op.type == INVOKE:
                begun[op.process] = op
            elif op.f == "txn":
                begun.pop(op.process, None)
                if (asked_for := asked.pop(op.process, None)) is not None:
                    self._judge_time(asked_for, op.at_ns)
                    self._judge_outcome(asked_for, op)

    def _judge_time(self, began: Op, until_ns: int) -> None:
        if self._opened_ns is None:
            return
        took = until_ns - max(began.at_ns, self._opened_ns)
        self.longest_ns = max(self.longest_ns, took)
        if self._goal_ns is not None and took > self._goal_ns:
            what = f"{began.process} was not over after {took / 1e9:.3f} s"
            self.anomalies.append(Anomaly("slow-transaction", what, (began.index,)))

    def _judge_outcome(self, began: Op, ended: Op) -> None:
        if self._opened_ns is None or began.at_ns < self._opened_ns:
            return
        if ended.type == OK:
            self.count += 1
        elif self._goal_ns is not None:
            what = f"{began.process} should be committed, and is not: {ended.error}"
            self.anomalies.append(Anomaly("lost-transaction", what, (began.index, ended.index)))


class RealtimeLag:
    """C26: how old the log that a poll saw was when the poll began.

    The lag of a poll is the time from when any client first knew an offset after the last one that
    the poll saw, to the poll's beginning. A poll that returns nothing for a key saw what its
    process saw before. A full poll saw the log up to the end offset that it got: how rarely a
    process polls, and in how many pieces it reads, says nothing about the log. Final polls read
    from the beginning and do not count. Lag counts only while a `window` is open, and from its
    beginning: before it, the leader may not have served reads.

    Attributes:
        longest_ns: the longest lag, of any poll.
    """

    def __init__(self, history: Iterable[Op], goal_ns: int | None = None) -> None:
        self.longest_ns = 0
        self.anomalies: list[Anomaly] = []
        known: dict[int, tuple[list[int], list[int]]] = {}  # By key: greatest offsets, and when.
        positions: dict[str, dict[int, int]] = {}
        begun: dict[str, int] = {}
        self._opened_ns: int | None = None
        for op in history:
            if op.f == "window":
                self._opened_ns = op.at_ns if op.details == "open" else None
            if op.type == INVOKE:
                if op.f in ("poll", "txn"):
                    begun[op.process] = op.at_ns
                continue
            if op.f in ("assign", "subscribe", "seek"):
                positions.pop(op.process, None)
            began_ns = begun.pop(op.process, None)
            if op.type == OK:
                for key, _, offset in op.sends:
                    if offset is not None:
                        _learn(known, key, offset, op.at_ns)
            if op.f not in ("poll", "txn") or op.type != OK:
                continue
            seen = positions.setdefault(op.process, {})
            ends: dict[int, int] = {}
            for polled in op.polls:
                for key, entries in polled.items():
                    if entries:
                        last = entries[-1]
                        seen[key] = last.last if type(last) is Run else last[0]
                        _learn(known, key, seen[key], op.at_ns)
                        ends[key] = op.ends.get(key, 0)
            if began_ns is not None:
                for key, offset in seen.items():
                    end = max(offset + 1, ends.get(key, 0))
                    self._judge(op, key, began_ns, _known_since(known, key, end), goal_ns)

    def _judge(
        self, op: Op, key: int, began_ns: int, since_ns: int | None, goal_ns: int | None
    ) -> None:
        if since_ns is None or self._opened_ns is None:
            return
        lag = began_ns - max(since_ns, self._opened_ns)
        if lag <= 0:
            return
        self.longest_ns = max(self.longest_ns, lag)
        if goal_ns is not None and lag > goal_ns:
            self.anomalies.append(
                Anomaly("realtime-lag", f"{op.process} read key {key} {lag / 1e9:.3f} s late",
                        (op.index,))
            )  # fmt: skip


def _learn(
    known: dict[int, tuple[list[int], list[int]]], key: int, offset: int, at_ns: int
) -> None:
    offsets, times = known.setdefault(key, ([], []))
    if not offsets or offset > offsets[-1]:
        offsets.append(offset)
        times.append(at_ns)


def _known_since(
    known: dict[int, tuple[list[int], list[int]]], key: int, offset: int
) -> int | None:
    """Return when this offset or a later one was first known."""
    offsets, times = known.get(key, ([], []))
    at = bisect_left(offsets, offset)
    return times[at] if at < len(offsets) else None
