"""The operations and results of clients: one line of JSON for each event, in order of time.

    {"i":7,"t":1200,"p":"c3","type":"ok","f":"poll","v":[["p",{"0":[[4,19],["r",5,80]]}]]}

| field | |
|---|---|
| `i` | number of the line |
| `t` | monotonic nanoseconds, never descending |
| `p` | the process: one logical client, with one operation at a time; retired after an `info` |
| `type` | `invoke`, then `ok` (it happened), `fail` (it certainly did not) or `info` (unknown) |
| `f` | the operation: see below |
| `v` | micro-operations, or as `f` says |
| `err` | the error, if there was one |
| `rebal` | keys that were rebalanced while it ran |
| `ends` | `{key:end offset}`: of a poll that returned some records, while more existed |

A *key* is an integer that stands for a partition. A *value* is an integer, unique for its key, and
never sent again by another operation. Micro-operations: a send `["s",key,value]`, which becomes
`["s",key,[offset,value]]` when its offset is known; a poll `["p"]`, which becomes
`["p",{key:[...]}]` with `[offset,value]` for each record, or `["r",first,last]` for a run of
offsets without a hole, whose values are the first that the history showed there. So a record that
is read a thousand times is written once.

| `f` | `v` | |
|---|---|---|
| `send`, `poll`, `txn` | micro-operations | |
| `uncommitted` | micro-operations | a poll that shows open and aborted transactions, too |
| `end` | `"commit"` or `"abort"` | `invoke`; the process asks for this end of its transaction |
| `final` | micro-operations | polls from the beginning to the end, after all faults |
| `assign`, `subscribe` | `[key,...]` | positions of other keys are forgotten |
| `seek` | `{key:offset}` | positions of these keys are forgotten |
| `list_offsets` | `{key:end offset}` | invoked with `{key:null}` |
| `metadata` | one partition's state | `info`; `p` is the observer: `store`, or a broker |
| `replica` | one replica's batches | `info`; see `replicas` |
| `fault` | `[id,target]` | `info`; only after its effect was seen |
| `window` | `"open"` or `"close"` | `info`; between them everything should be available |
| `dump` | one poll | `info`; what a replica holds, read from its files |
| `resources` | `{name:amount}` | `info`; of the process `p` |
| `group`, `commit`, `positions` | see `groups` | of consumer groups |

A transaction is a `txn` with sends: invoked when it begins, with all that it will send; `ok`: it is
committed, `fail`: aborted, `info`: in doubt. Its process is the transactional id, `#` and a number.

The format is that of Jepsen's queue workload for Kafka, plus runs.
"""

import itertools
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

INVOKE: Final = "invoke"
OK: Final = "ok"
FAIL: Final = "fail"
INFO: Final = "info"

STORE: Final = "store"
"""The observer of metadata that misses no version."""

UNCOMMITTED: Final = "uncommitted"

_MICRO: Final = frozenset({"send", "poll", "txn", "final", "dump", UNCOMMITTED})


class Send(NamedTuple):
    """One sent record, with its offset if known."""

    key: int
    value: int
    offset: int | None = None


class Run(NamedTuple):
    """Records read at `first` to `last`, inclusive, each with the value first seen there."""

    first: int
    last: int


class Seen(NamedTuple):
    """One read record, whose value was unknown before, or differs."""

    offset: int
    value: int


Polled = dict[int, list[Run | Seen]]


@dataclass(slots=True)
class Op:
    """One event: a line of a history.

    Attributes:
        details: `v` if it holds no micro-operations.
        ends: the log's end by key, for polls that did not return everything up to it.
        index: its number, given by the recorder.
    """

    at_ns: int
    process: str
    type: str
    f: str
    sends: Sequence[Send] = ()
    polls: Sequence[Polled] = ()
    details: Any = None
    error: str | None = None
    rebalanced: tuple[int, ...] = ()
    ends: Mapping[int, int] = field(default_factory=dict)
    index: int = -1


class KnownLog:
    """The value at each offset of each key, as the history showed it first."""

    def __init__(self) -> None:
        self.values: dict[int, dict[int, int]] = {}

    def of(self, key: int) -> dict[int, int]:
        return self.values.setdefault(key, {})

    def learn_sends(self, sends: Iterable[Send]) -> None:
        for key, value, offset in sends:
            if offset is not None:
                self.of(key).setdefault(offset, value)

    def compact(self, key: int, records: Iterable[Sequence[int]]) -> list[Run | Seen]:
        """Turn (offset, value) pairs into runs if they are known; remember the others."""
        known = self.of(key)
        found: list[Run | Seen] = []
        run: Run | None = None
        for offset, value in records:
            expected = known.get(offset)
            if expected == value:
                if run is not None and offset == run.last + 1:
                    run = Run(run.first, offset)
                    continue
                if run is not None:
                    found.append(run)
                run = Run(offset, offset)
                continue
            if run is not None:
                found.append(run)
                run = None
            if expected is None:
                known[offset] = value
            found.append(Seen(offset, value))
        if run is not None:
            found.append(run)
        return found


class Recorder:
    """Makes a history of the clients' reports, in order of time.

    Args:
        write: gets each line of JSON; None: no lines are made.
        keeps_ops: whether `ops` fills; off for very long runs.
    """

    def __init__(
        self, write: Callable[[str], object] | None = None, *, keeps_ops: bool = True
    ) -> None:
        self.ops: list[Op] = []
        self.count = 0
        self.known = KnownLog()
        self._write = write
        self._keeps_ops = keeps_ops
        self._last_ns = 0

    def record(self, op: Op, polled: Iterable[Mapping[int, Iterable[Sequence[int]]]] = ()) -> Op:
        """Take an operation; polls are given as (offset, value) pairs by key, one dict a poll."""
        assert op.at_ns >= self._last_ns
        self._last_ns = op.at_ns
        op.index = self.count
        op.sends, op.polls = tuple(op.sends), tuple(op.polls)
        self.count += 1
        if op.type == OK:
            self.known.learn_sends(op.sends)
        if polled:
            op.polls = tuple(
                {key: self.known.compact(key, records) for key, records in by_key.items()}
                for by_key in polled
            )
        if self._write is not None:
            self._write(to_json(op))
        if self._keeps_ops:
            self.ops.append(op)
        return op


def of_keys(history: Iterable[Op], keys: Container[int]) -> Iterator[Op]:
    """Yield the operations of some keys, and those without a key, with new numbers."""
    index = itertools.count()
    for op in history:
        sends, polls, details = op.sends, op.polls, op.details
        if sends:
            sends = [send for send in sends if send.key in keys]
            if not sends:
                continue
        if polls:
            polls = [{key: of for key, of in poll.items() if key in keys} for poll in polls]
        if op.f in ("metadata", "replica") and details["key"] not in keys:
            continue
        if op.f in ("assign", "subscribe"):
            details = [key for key in details if key in keys]
        elif op.f in ("seek", "list_offsets") and details is not None:
            details = {key: detail for key, detail in details.items() if key in keys}
        yield replace(op, sends=sends, polls=polls, details=details, index=next(index))


def to_json(op: Op) -> str:
    """Return the line of an operation, without its end."""
    line: dict[str, object] = {
        "i": op.index, "t": op.at_ns, "p": op.process, "type": op.type, "f": op.f,
    }  # fmt: skip
    if op.f in _MICRO:
        line["v"] = [
            *(
                ["s", key, value if offset is None else [offset, value]]
                for key, value, offset in op.sends
            ),
            *(["p", _polled_to_json(polled)] if polled else ["p"] for polled in op.polls),
        ]
    else:
        line["v"] = op.details
    if op.error is not None:
        line["err"] = op.error
    if op.rebalanced:
        line["rebal"] = op.rebalanced
    if op.ends:
        line["ends"] = op.ends
    return json.dumps(line, separators=(",", ":"))


def from_json(line: str) -> Op:
    """Return the operation of a line."""
    content = json.loads(line)
    value = content.get("v")
    op = Op(
        content["t"],
        content["p"],
        content["type"],
        content["f"],
        error=content.get("err"),
        rebalanced=tuple(content.get("rebal", ())),
        ends=_keys_to_int(content.get("ends", {})),
        index=content["i"],
    )
    if op.f not in _MICRO:
        op.details = _keys_to_int(value)
        return op
    sends, polls = [], []
    for micro in value:
        if micro[0] == "p":
            polls.append(_polled_from_json(micro[1] if len(micro) > 1 else {}))
        elif isinstance(micro[2], list):
            sends.append(Send(micro[1], micro[2][1], micro[2][0]))
        else:
            sends.append(Send(micro[1], micro[2]))
    op.sends, op.polls = tuple(sends), tuple(polls)
    return op


def read(lines: Iterable[str]) -> Iterator[Op]:
    """Yield the operations of a file."""
    return map(from_json, lines)


def _polled_to_json(polled: Polled) -> dict[str, list[object]]:
    return {
        str(key): [["r", *entry] if type(entry) is Run else list(entry) for entry in entries]
        for key, entries in polled.items()
    }


def _polled_from_json(polled: Mapping[str, Any]) -> Polled:
    return {
        int(key): [
            Run(entry[1], entry[2]) if entry[0] == "r" else Seen(entry[0], entry[1])
            for entry in entries
        ]
        for key, entries in polled.items()
    }


def _keys_to_int(value: Any) -> Any:
    """Turn names of an object into integers if they are keys: names in JSON are texts."""
    if isinstance(value, dict) and all(name.isdecimal() for name in value):
        return {int(name): inner for name, inner in value.items()}
    return value
