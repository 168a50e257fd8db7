"""Which entries of the index of aborted transactions a reader is told."""

from collections.abc import Callable

import numpy as np
import pytest

from millrace.broker.storage.aborted_index import (
    ENTRY,
    Abort,
    AbortTable,
    PendingAborts,
    in_range,
)
from millrace.core.ids import Offset, ProducerId
from millrace.core.records.markers import AbortedTransaction

ABORTS = [
    Abort(AbortedTransaction(ProducerId(1), Offset(10), Offset(14)), Offset(20)),
    Abort(AbortedTransaction(ProducerId(2), Offset(0), Offset(16)), Offset(20)),
    Abort(AbortedTransaction(ProducerId(3), Offset(22), Offset(24)), Offset(30)),
]
Search = Callable[[int, int], list[AbortedTransaction]]


def pending() -> PendingAborts:
    made = PendingAborts()
    for abort in ABORTS:
        made.add(abort)
    return made


SEARCHES: dict[str, Search] = {
    "in the file": lambda start, end: AbortTable(pending().rows()).between(
        Offset(start), Offset(end)
    ),
    "in memory": lambda start, end: pending().between(Offset(start), Offset(end), after=-1),
    "by the markers": lambda start, end: in_range(ABORTS, Offset(start), Offset(end)),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize(
    ("start", "end", "producers"),
    [
        (0, 5, [2]),
        (0, 11, [1, 2]),
        (14, 15, [1, 2]),
        (15, 20, [2]),
        (17, 22, []),  # The markers' own batch: nothing of a transaction is sent.
        (20, 30, [3]),
        (0, 40, [1, 2, 3]),
        (25, 40, []),
    ],
)
def test_a_reader_is_told_of_the_transactions_whose_records_it_may_be_sent(
    search: Search, start: int, end: int, producers: list[int]
) -> None:
    assert [found.producer_id for found in search(start, end)] == producers


def test_of_very_many_transactions_a_reader_is_told_of_those_that_concern_it() -> None:
    count = 1_000_000
    rows = np.empty(count, ENTRY)
    numbers = np.arange(count)
    rows["producer_id"] = numbers % 1000
    rows["first_offset"], rows["last_offset"] = 3 * numbers, 3 * numbers + 1
    rows["marker_offset"] = 3 * numbers + 2
    rows["first_offset"][count // 2] = 0  # One was open for long.
    table = AbortTable(rows)
    assert table.nbytes == 40 * count
    for start in range(0, 3 * count, count // 5):
        found = table.between(Offset(start), Offset(start + 30))
        assert 10 <= len(found) <= 12
