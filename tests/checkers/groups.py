"""Promises to the members of one consumer group, whose time with a partition is a *tenure*.

- A partition is given to a member when no other one has it whose session lives, and handed out to
  its owner alone (C18).
- A commit counts no more once a later owner has committed, and is refused once it begins after the
  partition has another owner (C17).
- The members together leave no record out, and commit only what was handed out (C19).

A history has these operations of members, beside `poll`, `subscribe` and sends; see `history`:

| `f` | `v` | |
|---|---|---|
| `group` | `["assigned" or "given-up", [key,...]]` | `info`; what a callback was told |
| `group` | `["alive", until]` | `info`; when the session ends, unless the member hears again |
| `group` | `["gone", []]` | `info`; it is closed, or dead |
| `commit` | `{key:offset}` | |
| `positions` | `{key:offset}` | what is stored; of any process |
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.checkers.history import INVOKE, OK, Op, Run
from tests.checkers.report import Anomaly


class _Attempt(NamedTuple):
    tenure: int
    offset: int
    is_late: bool


def anomalies(history: Iterable[Op]) -> Iterator[Anomaly]:
    """Yield the anomalies of a history."""
    group = _Group()
    for op in history:
        match op.f:
            case "group":
                yield from group.on_told(op)
            case "poll" if op.process in group.alive_until:
                yield from group.on_poll(op)
            case "commit":
                yield from group.on_commit(op)
            case "positions":
                yield from group.on_positions(op)


class _Group:
    """What has happened so far.

    Attributes:
        alive_until: when each member's session ends, by what it has heard.
    """

    def __init__(self) -> None:
        self.alive_until: dict[str, int] = {}
        self._owners: dict[int, str] = {}
        self._tenures: dict[int, int] = {}
        self._own: dict[tuple[str, int], int] = {}  # The latest tenure of each member and key.
        self._handed_out: dict[int, int] = {}
        self._least: dict[tuple[int, int], int] = {}  # Of all attempts of a tenure.
        self._floors: dict[int, tuple[int, int]] = {}
        self._begins: dict[int, tuple[str, int]] = {}
        self._polling: dict[str, dict[int, str]] = {}  # Who owned what when it began.
        self._committing: dict[str, dict[int, _Attempt]] = {}
        self._asking: dict[str, dict[int, int]] = {}

    def on_told(self, op: Op) -> Iterator[Anomaly]:
        event, about = op.details
        me = op.process
        if event == "alive":
            self.alive_until[me] = about
        elif event == "gone":
            self.alive_until[me] = 0
            self._owners = {key: owner for key, owner in self._owners.items() if owner != me}
        elif event == "given-up":
            for key in about:
                if self._owners.get(key) == me:
                    del self._owners[key]
        else:
            for key in about:
                yield from self._assign(op, key)

    def _assign(self, op: Op, key: int) -> Iterator[Anomaly]:
        me, before = op.process, self._owners.get(key)
        if before not in (None, me) and self._is_alive(before, op):
            if not self._is_alive(me, op):
                return  # It stood still meanwhile, and hears next that it has lost everything.
            yield Anomaly("two-owners", f"{me} is given key {key}, which {before} has", (op.index,))
        self._owners[key] = me
        self._tenures[key] = self._own[me, key] = self._tenures.get(key, 0) + 1
        self._begins[key] = me, self._floor(key)

    def _is_alive(self, member: str | None, op: Op) -> bool:
        return member is not None and self.alive_until.get(member, 0) > op.at_ns

    def on_poll(self, op: Op) -> Iterator[Anomaly]:
        me = op.process
        if op.type == INVOKE:
            self._polling[me] = dict(self._owners)
            return
        owners = self._polling.pop(me, {})
        for polled in op.polls:
            for key, entries in polled.items():
                now = self._owners.get(key)
                if now != me and owners.get(key, me) != me:
                    what = f"{me} reads key {key}, which {owners[key]} has"
                    yield Anomaly("read-by-former-owner", what, (op.index,))
                first, last = entries[0][0], entries[-1]
                end = (last.last if isinstance(last, Run) else last.offset) + 1
                at = self._handed_out.get(key, 0)
                if first > at:
                    what = f"key {key}: {me} goes on at {first}, and the group was at {at}"
                    yield Anomaly("group-skip", what, (op.index,))
                self._handed_out[key] = max(at, end)
                owner, floor = self._begins.pop(key, ("", 0))
                if owner == me and first < floor:
                    what = f"key {key}: {me} begins at {first}, and {floor} was committed before"
                    yield Anomaly("commit-regression", what, (op.index,))

    def on_commit(self, op: Op) -> Iterator[Anomaly]:
        me = op.process
        if op.type == INVOKE:
            attempts = self._committing[me] = {}
            for key, offset in op.details.items():
                tenure = self._own.get((me, key), 0)
                least = self._least.get((key, tenure), offset)
                self._least[key, tenure] = min(least, offset)
                attempts[key] = _Attempt(tenure, offset, tenure < self._tenures.get(key, 0))
            return
        attempts = self._committing.pop(me, {})
        if op.type != OK:
            return
        for key, (tenure, offset, is_late) in attempts.items():
            if is_late:
                what = f"key {key}: {me} has committed {offset}, and {self._owners.get(key)} has it"
                yield Anomaly("late-commit", what, (op.index,))
            elif tenure >= self._floors.get(key, (0, 0))[0]:
                self._floors[key] = tenure, self._least[key, tenure]

    def on_positions(self, op: Op) -> Iterator[Anomaly]:
        if op.type == INVOKE:
            self._asking[op.process] = {key: self._floor(key) for key in self._floors}
            return
        floors = self._asking.pop(op.process, {})
        if op.type != OK:
            return
        for key, floor in floors.items():
            at = op.details.get(key, 0)
            if at < floor:
                what = f"key {key}: {at} is stored, and {floor} was committed before"
                yield Anomaly("commit-regression", what, (op.index,))
        for key, at in op.details.items():
            most = self._handed_out.get(key, 0)
            if at > most:
                what = f"key {key}: {at} is stored, and {most} was handed out"
                yield Anomaly("commit-ahead", what, (op.index,))

    def _floor(self, key: int) -> int:
        return self._floors.get(key, (0, 0))[1]
