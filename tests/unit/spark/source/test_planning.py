"""How much a micro-batch reads, and how that becomes tasks."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.spark.source.planning import Limits, Range, admit, is_due, plan_tasks, share_of_bytes

RANGES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9)),
    st.tuples(st.integers(0, 1000), st.integers(0, 5) | st.integers(0, 10_000)),
    max_size=12,
).map(lambda found: [Range(*place, start, start + size) for place, (start, size) in found.items()])
COUNTS = st.none() | st.integers(1, 50)


def test_without_limits_everything_is_read() -> None:
    assert admit([Range("a", 0, 5, 9)], Limits(), {}) == {("a", 0): 9}


def test_a_limit_is_shared_out_by_what_waits_and_nobody_starves() -> None:
    backlog = [Range("a", 0, 0, 9_999), Range("a", 1, 100, 101), Range("a", 2, 7, 7)]
    assert admit(backlog, Limits(records=1000), {}) == {("a", 0): 999, ("a", 1): 101}


def test_a_limit_of_bytes_goes_by_the_size_of_the_records() -> None:
    backlog = [Range("a", 0, 0, 1000), Range("b", 0, 0, 1000)]
    sizes = {("a", 0): 10.0, ("b", 0): 90.0}
    assert admit(backlog, Limits(size_bytes=50_000), sizes) == {("a", 0): 500, ("b", 0): 500}
    assert admit(backlog, Limits(100, 50_000), sizes) == {("a", 0): 50, ("b", 0): 50}
    assert admit(backlog, Limits(size_bytes=1), sizes) == {("a", 0): 1, ("b", 0): 1}


def test_bytes_are_shared_out_by_the_size_of_what_is_read() -> None:
    admitted = {("a", 0): 10, ("a", 1): 30}
    assert share_of_bytes(admitted, 100, {("a", 0): 90.0, ("a", 1): 10.0}) == {
        ("a", 0): 75,
        ("a", 1): 25,
    }
    assert share_of_bytes(admitted, 100, {}) == {("a", 0): 25, ("a", 1): 75}
    assert share_of_bytes(admitted, 1, {}) == {("a", 0): 1, ("a", 1): 1}
    assert share_of_bytes({}, 100, {}) == {}


@given(RANGES, st.integers(1, 5000))
def test_a_batch_keeps_its_limit_and_always_gets_on(ranges: list[Range], limit: int) -> None:
    until = admit(ranges, Limits(records=limit), {})
    waiting = {part.place: part for part in ranges if part.size}
    assert until.keys() == waiting.keys()
    admitted = {place: end - waiting[place].start for place, end in until.items()}
    assert all(1 <= admitted[place] <= waiting[place].size for place in admitted)
    assert sum(admitted.values()) <= limit + len(waiting)


@pytest.mark.parametrize(
    ("waiting", "waited_ms", "due"),
    [(0, 0, False), (10, 0, True), (9, 999, False), (1, 1000, True)],
)
def test_a_batch_waits_for_enough_records_or_long_enough(
    waiting: int, waited_ms: int, due: bool
) -> None:
    assert is_due(waiting, waited_ms, at_least=10, delay_ms=1000) is due


def test_a_range_is_split_for_more_tasks() -> None:
    (task, *others) = plan_tasks([Range("a", 0, 10, 20)], max_records=4)
    assert [task, *others] == [
        (Range("a", 0, 10, 13),), (Range("a", 0, 13, 16),), (Range("a", 0, 16, 20),)
    ]  # fmt: skip
    assert len(plan_tasks([Range("a", 0, 0, 90), Range("a", 1, 0, 10)], min_partitions=4)) >= 4


def test_small_partitions_share_a_task() -> None:
    ranges = [Range("a", number, 0, 10) for number in range(6)]
    assert plan_tasks(ranges, max_partitions=2) == [tuple(ranges[:3]), tuple(ranges[3:])]


def test_neighbours_in_a_task_are_one_range_again() -> None:
    assert plan_tasks([Range("a", 0, 0, 10)], max_records=2, max_partitions=1) == [
        (Range("a", 0, 0, 10),)
    ]


@given(RANGES, COUNTS, COUNTS, COUNTS)
def test_tasks_hold_every_offset_once_and_the_same_arguments_give_the_same_tasks(
    ranges: list[Range], least: int | None, records: int | None, most: int | None
) -> None:
    tasks = plan_tasks(ranges, min_partitions=least, max_records=records, max_partitions=most)
    again = list(reversed(ranges))
    assert (
        plan_tasks(again, min_partitions=least, max_records=records, max_partitions=most) == tasks
    )
    flat = [part for task in tasks for part in task]
    assert flat == sorted(flat)
    whole: dict[tuple[str, int], list[Range]] = {}
    for part in flat:
        assert part.size > 0
        whole.setdefault(part.place, []).append(part)
    for part in ranges:
        pieces = whole.pop(part.place, [])
        if part.size:
            assert (pieces[0].start, pieces[-1].end) == (part.start, part.end)
            assert all(one.end == other.start for one, other in pairwise(pieces))
    assert whole == {}
    if most is not None:
        assert len(tasks) <= most
    elif least is not None:
        assert len(tasks) >= min(least, sum(part.size for part in ranges))
    if records is not None and most is None:
        assert all(part.size <= records for part in flat)
