"""What a reader of a compacted topic may and may not see."""

import pytest
from tests.checkers.compacted import Read, Sent, problems, table
from tests.checkers.history import FAIL, INFO, OK

A, B = b"a", b"b"
SENDS = [
    Sent(A, 1, False, OK, 0),
    Sent(B, 2, False, OK, 1),
    Sent(A, 3, False, OK, 2),
    Sent(B, 4, True, OK, 3),
    Sent(A, 5, False, FAIL),
    Sent(A, 6, False, INFO),
]
LATEST = Read(2, A, 3, False)
TOMBSTONE = Read(3, B, 4, True)


@pytest.mark.parametrize(
    "read",
    [
        [LATEST],  # The tombstone is gone.
        [LATEST, TOMBSTONE],
        [Read(0, A, 1, False), Read(1, B, 2, False), LATEST, TOMBSTONE],
        [LATEST, TOMBSTONE, Read(4, A, 6, False)],  # What had an unknown outcome was written.
    ],
)
def test_what_is_promised_is_no_problem(read: list[Read]) -> None:
    assert list(problems(SENDS, read, is_whole=True)) == []


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ([TOMBSTONE], "nothing of b'a' was read"),
        ([Read(0, A, 1, False), TOMBSTONE], "was read last of its key"),
        ([Read(1, B, 2, False), LATEST], "was read last of its key"),  # A deleted key is back.
        ([LATEST, Read(4, A, 5, False)], "is its outcome"),
        ([Read(1, A, 3, False)], "is its outcome"),
        ([TOMBSTONE, LATEST], "follows offset 3"),
        ([LATEST, Read(2, A, 3, False)], "follows offset 2"),
        ([LATEST, Read(3, B, 4, False)], "was sent"),
        ([LATEST, Read(7, A, 9, False)], "None was sent"),
        ([Read(0, A, 6, False), Read(2, A, 3, False)], "follows Read(offset=0"),
    ],
)
def test_what_breaks_a_promise_is_one(read: list[Read], words: str) -> None:
    assert any(words in problem for problem in problems(SENDS, read, is_whole=True))


def test_a_reader_that_is_not_at_the_end_has_lost_nothing() -> None:
    assert list(problems(SENDS, [Read(0, A, 1, False)], is_whole=False)) == []


def test_the_table_has_the_last_value_of_each_key_that_is_not_deleted() -> None:
    assert table([Read(0, A, 1, False), Read(1, B, 2, False), LATEST, TOMBSTONE]) == {A: 3}
