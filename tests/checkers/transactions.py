"""Promises to readers of committed records, and of transactions to each other: C30.

Other checkers have a part of it: records of an aborted transaction are never read (C4), those of a
committed one are all there at the end (C5, C6), one in doubt is there as a whole or not at all (C5,
C6), and an offset has one value for readers of both kinds (C1). Here:

- Nobody reads a record of committed transactions before its commit was asked for, nor a transaction
  its own: a *precommitted read*.
- A reader that has seen a record of a transaction sees all of them, wherever it reads on: each
  partition has the transaction before what the reader has passed. Else the transaction is *torn*,
  and what the reader saw was an *intermediate* state.
- Transactions of one id do not overlap in a partition, and stand there in the order in which they
  began, whoever had the id.
- No circle of transactions each of which was decided before the next one read, or follows the one
  before under one id (*G1c*). What a transaction has read was written by one that was decided (wr);
  and so was every transaction that begins before it in that partition (ww, then wr), since the last
  stable offset is where the oldest undecided one begins.

Circles of writes alone are allowed, as in Kafka: two transactions that write to two partitions at
the same time may stand there in different orders, since a transaction is no lock (ww). So are
circles with a record that a transaction has *not* read yet (rw): a poll is no snapshot.

Source: Adya's G1a to G1c; jepsen.tests.kafka.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.checkers.history import FAIL, INVOKE, OK, KnownLog, Op, Run
from tests.checkers.report import Anomaly

_ID_ENDS_AT = "#"


@dataclass(slots=True)
class _Transaction:
    """One transaction.

    Attributes:
        process: its name.
        began: the number of the operation.
        outcome: the type of the operation that ended it; `invoke`: none did.
        asked: the number of the operation that asked for its commit; -1: nobody asked.
        values: what it wrote, as (key, value), in order.
        read_to: the last offset that it read, by key.
    """

    process: str
    began: int
    outcome: str = INVOKE
    asked: int = -1
    values: Sequence[tuple[int, int]] = ()
    read_to: dict[int, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.process.partition(_ID_ENDS_AT)[0]


@dataclass(slots=True)
class _Pass:
    """What one process has read, since it began anew.

    Attributes:
        process: its name.
        first: the first offset that it read, by key.
        last: the last one.
        seen: what it read, as (key, value), with the operation.
    """

    process: str
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    seen: dict[tuple[int, int], int] = field(default_factory=dict)


class _History:
    """What one pass over a history collects."""

    def __init__(self, history: Iterable[Op]) -> None:
        self.transactions: dict[str, _Transaction] = {}
        self.writer_of: dict[tuple[int, int], _Transaction] = {}
        self.offsets: dict[tuple[int, int], int] = {}
        self.passes: list[_Pass] = []
        self.precommitted: list[Anomaly] = []
        self._known = KnownLog()
        self._current: dict[str, _Pass] = {}
        for op in history:
            self._feed(op)

    def _feed(self, op: Op) -> None:
        if op.f == "txn":
            self._feed_transaction(op)
        elif op.f == "end" and op.details == "commit":
            self.transactions[op.process].asked = op.index
        elif op.f in ("assign", "subscribe", "seek", "final"):
            self._current.pop(op.process, None)
        for key, value, offset in op.sends:
            if offset is not None and op.type != INVOKE:
                self._known.of(key).setdefault(offset, value)
                self.offsets.setdefault((key, value), offset)
        if op.polls and op.type != INVOKE:
            self._feed_polls(op)

    def _feed_transaction(self, op: Op) -> None:
        transaction = self.transactions.get(op.process)
        if transaction is None:
            transaction = _Transaction(op.process, op.index)
            self.transactions[op.process] = transaction
            transaction.values = [(send.key, send.value) for send in op.sends]
            self.writer_of.update(dict.fromkeys(transaction.values, transaction))
        transaction.outcome = op.type

    def _feed_polls(self, op: Op) -> None:
        is_of_committed = op.type == OK and op.f in ("poll", "final", "txn")
        current = self._current.get(op.process)
        if current is None and is_of_committed:
            current = self._current[op.process] = _Pass(op.process)
            self.passes.append(current)
        for key, offset, value in self._reads(op):
            self.offsets.setdefault((key, value), offset)
            if not is_of_committed or current is None:
                continue
            current.first.setdefault(key, offset)
            current.last[key] = offset
            current.seen[key, value] = op.index
            writer = self.writer_of.get((key, value))
            if op.f == "txn":
                read_to = self.transactions[op.process].read_to
                read_to[key] = max(offset, read_to.get(key, -1))
            if writer is None or writer.outcome == FAIL:
                continue
            if writer.asked < 0 or (op.f == "txn" and writer.process == op.process):
                what = f"key {key}: {value} of {writer.process}, whose commit nobody had asked for"
                self.precommitted.append(Anomaly("precommitted-read", what, (op.index,)))

    def _reads(self, op: Op) -> Iterator[tuple[int, int, int]]:
        """Yield key, offset and value of all that an operation read."""
        for polled in op.polls:
            for key, entries in polled.items():
                known = self._known.of(key)
                for entry in entries:
                    if type(entry) is Run:
                        for offset in range(entry.first, entry.last + 1):
                            yield key, offset, known[offset]
                    else:
                        known.setdefault(*entry)
                        yield key, entry[0], entry[1]


def anomalies(history: Iterable[Op]) -> Iterator[Anomaly]:
    """Yield what is wrong with the transactions of a history."""
    found = _History(history)
    if not found.transactions:
        return
    yield from found.precommitted
    for reading in found.passes:
        yield from _torn(found, reading)
    yield from _overlapping(found)
    yield from _circles(found)


def _torn(found: _History, reading: _Pass) -> Iterator[Anomaly]:
    """Judge what one reader has seen of each transaction."""
    judged: set[str] = set()
    for place, at in reading.seen.items():
        transaction = found.writer_of.get(place)
        if transaction is None or transaction.process in judged:
            continue
        judged.add(transaction.process)
        for key, value in transaction.values:
            if (key, value) in reading.seen or key not in reading.last:
                continue
            offset = found.offsets.get((key, value))
            if offset is not None and reading.first[key] <= offset < reading.last[key]:
                what = (
                    f"{reading.process} has seen {place[1]} of key {place[0]}, and not {value} of "
                    f"key {key} at {offset}, both of {transaction.process}"
                )
                yield Anomaly("torn-transaction", what, (at,))


def _overlapping(found: _History) -> Iterator[Anomaly]:
    """Judge the order of the transactions of each id in each partition."""
    last: dict[tuple[str, int], tuple[int, _Transaction]] = {}
    for transaction in sorted(found.transactions.values(), key=lambda one: one.began):
        offsets: dict[int, list[int]] = {}
        for key, value in transaction.values:
            offset = found.offsets.get((key, value))
            if offset is not None:
                offsets.setdefault(key, []).append(offset)
        for key, places in offsets.items():
            before, other = last.get((transaction.id, key), (-1, transaction))
            if min(places) < before:
                what = (
                    f"key {key}: {transaction.process} begins at {min(places)}, and "
                    f"{other.process} before it ends at {before}"
                )
                yield Anomaly("overlapping-transactions", what, (transaction.began,))
            if max(places) > before:
                last[transaction.id, key] = max(places), transaction


def _circles(found: _History) -> Iterator[Anomaly]:
    """Judge who was decided before whom."""
    following: dict[str, set[str]] = {name: set() for name in found.transactions}
    _follow_reads(found, following)
    of_id: dict[str, str] = {}
    for transaction in found.transactions.values():
        if transaction.outcome == OK:
            before = of_id.get(transaction.id)
            of_id[transaction.id] = transaction.process
            if before is not None:
                following[before].add(transaction.process)
    for circle in strong_components(following):
        if len(circle) > 1:
            names = [name for name in circle if name in found.transactions]
            began = tuple(found.transactions[name].began for name in names)
            what = f"{', '.join(names)} were each decided before the next one has read"
            yield Anomaly("circular-reads", what, began)


def _follow_reads(found: _History, following: dict[str, set[str]]) -> None:
    """Let committed transactions follow all that begin before the last record they read of a key.

    Each place where one begins is a node, from which the next place of its key follows.
    """
    begins: dict[int, dict[int, str]] = {}
    for transaction in found.transactions.values():
        first: dict[int, int] = {}
        for key, value in transaction.values:
            offset = found.offsets.get((key, value))
            if offset is not None:
                first[key] = min(offset, first.get(key, offset))
        for key, offset in first.items():
            begins.setdefault(key, {})[offset] = transaction.process
    places = {key: sorted(names) for key, names in begins.items()}
    for key, offsets in places.items():
        for before, offset in zip((-1, *offsets), offsets, strict=False):
            following[begins[key][offset]].add(_place(key, offset))
            following.setdefault(_place(key, before), set()).add(_place(key, offset))
        following.setdefault(_place(key, offsets[-1]), set())
    for transaction in found.transactions.values():
        for key, end in transaction.read_to.items() if transaction.outcome == OK else ():
            offsets = places.get(key, [])
            at = bisect_right(offsets, end)
            if at:
                following[_place(key, offsets[at - 1])].add(transaction.process)


def _place(key: int, offset: int) -> str:
    return f"offset {offset} of key {key}"


def strong_components(following: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of a graph, sorted inside (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    on_path: dict[str, None] = {}
    found: list[list[str]] = []
    for root in following:
        if root in number:
            continue
        number[root] = lowest[root] = len(number)
        on_path[root] = None
        steps = [(root, iter(following[root]))]
        while steps:
            node, left = steps[-1]
            for other in left:
                if other not in number:
                    number[other] = lowest[other] = len(number)
                    on_path[other] = None
                    steps.append((other, iter(following[other])))
                    break
                if other in on_path:
                    lowest[node] = min(lowest[node], number[other])
            else:
                steps.pop()
                if steps:
                    above = steps[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == number[node]:
                    component: list[str] = []
                    while not component or component[-1] != node:
                        component.append(on_path.popitem()[0])
                    found.append(sorted(component))
    return found
