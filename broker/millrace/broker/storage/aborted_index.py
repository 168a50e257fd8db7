"""Where the records of aborted transactions lie: the part of a segment's index for readers of
committed records.

An entry belongs to the segment that has the transaction's marker, and follows from that marker
alone. A reader of the offsets `[start, end)` needs the entries whose marker is not before `start`,
and whose first record is before `end`: in the segment of `start`, and in all later ones. Entries
ascend by marker, so the first condition is a binary search. For the second, each entry has the
smallest first offset from it on: these ascend, too, so the search ends where they reach `end`. A
million aborted transactions cost a reader no more than those that concern it.

`sparse_index` keeps them in its file and says how. Entries that the file does not hold yet are in
memory (`PendingAborts`): one thread adds, any thread searches.

Of those that are found, the ones whose last record lies before `start` are left out: a control
batch may end thousands of transactions, and a reader that comes to it has passed their records.

Source: KIP-98's transaction index (P52, T5).
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.core.ids import Offset, ProducerId
from millrace.core.records.markers import AbortedTransaction, WrittenMarker

ENTRY: Final = np.dtype(
    [
        ("producer_id", "<i8"),
        ("first_offset", "<i8"),
        ("last_offset", "<i8"),
        ("marker_offset", "<i8"),
    ]
)
"""An entry in the file."""
NEVER: Final = Offset(2**63 - 1)
"""The smallest first offset of no entries."""

Rows = npt.NDArray[np.void]
"""Entries of the file, ascending by marker."""


class Abort(NamedTuple):
    """An aborted transaction, and the first offset of the control batch that has its marker."""

    transaction: AbortedTransaction
    marker_offset: Offset


def aborts_of(markers: Iterable[WrittenMarker], marker_offset: Offset) -> list[Abort]:
    """Return the entries that a control batch makes; none for what was committed, or is empty."""
    return [
        Abort(AbortedTransaction(marker.producer_id, first, last), marker_offset)
        for marker, first, last in markers
        if not marker.is_commit and first >= 0
    ]


def in_range(
    aborts: Iterable[Abort], start_offset: Offset, end_offset: Offset
) -> list[AbortedTransaction]:
    """Return the transactions that concern a reader of `[start_offset, end_offset)`."""
    return [
        transaction
        for transaction, marker_offset in aborts
        if marker_offset >= start_offset
        and transaction.first_offset < end_offset
        and transaction.last_offset >= start_offset
    ]


class AbortTable:
    """The entries of a file, to be searched. Immutable."""

    __slots__ = ("_rows", "_smallest_from", "nbytes")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        firsts = rows["first_offset"][::-1]
        self._smallest_from = np.minimum.accumulate(firsts)[::-1].copy()
        self.nbytes = rows.nbytes + self._smallest_from.nbytes

    @property
    def last_marker_offset(self) -> int:
        """Of its last entry; -1 when there is none."""
        return int(self._rows["marker_offset"][-1]) if len(self._rows) else -1

    def between(self, start_offset: Offset, end_offset: Offset) -> list[AbortedTransaction]:
        """Return the transactions that concern a reader of `[start_offset, end_offset)`."""
        begin = int(self._rows["marker_offset"].searchsorted(start_offset, "left"))
        end = int(self._smallest_from.searchsorted(end_offset, "left"))
        rows = self._rows[begin:end]
        if not len(rows):
            return []
        return _in_range(rows, start_offset, end_offset)

    def before(self, marker_offset: Offset) -> Rows:
        """Return the entries whose marker lies before an offset."""
        return self._rows[: int(self._rows["marker_offset"].searchsorted(marker_offset, "left"))]


class PendingAborts:
    """Entries that are only in memory, ascending by marker."""

    __slots__ = ("_firsts", "_lasts", "_markers", "_producers")

    def __init__(self) -> None:
        self._producers = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._markers = array("q")  # Grows last: readers use its length.

    def __len__(self) -> int:
        return len(self._markers)

    @classmethod
    def of(cls, rows: Rows) -> "PendingAborts":
        """Return entries of a file as they are in memory."""
        made = cls()
        made._producers.frombytes(rows["producer_id"].tobytes())
        made._firsts.frombytes(rows["first_offset"].tobytes())
        made._lasts.frombytes(rows["last_offset"].tobytes())
        made._markers.frombytes(rows["marker_offset"].tobytes())
        return made

    def add(self, abort: Abort) -> None:
        """Take the next entry."""
        self._producers.append(abort.transaction.producer_id)
        self._firsts.append(abort.transaction.first_offset)
        self._lasts.append(abort.transaction.last_offset)
        self._markers.append(abort.marker_offset)

    def between(
        self, start_offset: Offset, end_offset: Offset, *, after: int
    ) -> list[AbortedTransaction]:
        """As `AbortTable.between`, of the entries whose marker lies after `after`."""
        begin = bisect_left(self._markers, max(start_offset, after + 1))
        if begin == len(self._markers):
            return []
        rows = self.rows(begin)
        return _in_range(rows, start_offset, end_offset)

    def rows(self, begin: int = 0, end: int | None = None) -> Rows:
        """Return entries as rows of the file."""
        # Copied: an array that numpy looks into cannot grow.
        markers = self._markers[begin : len(self._markers) if end is None else end]
        rows = np.empty(len(markers), ENTRY)
        end = begin + len(markers)
        rows["producer_id"] = self._producers[begin:end]
        rows["first_offset"] = self._firsts[begin:end]
        rows["last_offset"] = self._lasts[begin:end]
        rows["marker_offset"] = markers
        return rows

    def split(self, marker_offset: Offset) -> "tuple[Rows, PendingAborts]":
        """Return the entries whose marker lies before an offset, and the others."""
        at = bisect_left(self._markers, marker_offset)
        return self.rows(0, at), PendingAborts.of(self.rows(at))


def smallest_first(rows: Rows) -> Offset:
    """Return the smallest first offset; `NEVER`: there are no entries."""
    return Offset(int(rows["first_offset"].min())) if len(rows) else NEVER


def _in_range(rows: Rows, start_offset: Offset, end_offset: Offset) -> list[AbortedTransaction]:
    concerned = (rows["first_offset"] < end_offset) & (rows["last_offset"] >= start_offset)
    return transactions_of(rows[concerned])


def transactions_of(rows: Rows) -> list[AbortedTransaction]:
    """Return entries as readers get them."""
    columns = rows["producer_id"], rows["first_offset"], rows["last_offset"]
    return [
        AbortedTransaction(ProducerId(producer), Offset(first), Offset(last))
        for producer, first, last in zip(*(column.tolist() for column in columns), strict=True)
    ]
