"""Intakes: room, memory, and what becomes of handles."""

from collections import deque
from collections.abc import Callable

import pyarrow as pa
import pytest

from millrace.core.client.producer.delivery import Delivery, Waiter
from millrace.core.client.producer.intake import Intake, Intakes
from millrace.core.client.producer.sent_columns import RECORD_OVERHEAD, SentColumns
from millrace.core.errors import (
    InvalidRecordError,
    MessageTooLargeError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition, WallMs
from millrace.core.records.columns import HEADERS_TYPE

NOW = MonotonicMs(1000)
WALL = WallMs(1_700_000_000_000)
PLACE = TopicPartition(TopicId(b"t" * 16), 0)


def add(
    intakes: Intakes, value: bytes, key: bytes | None = None, topic: str = "t"
) -> tuple[Intake, int] | None:
    return intakes.add(topic, value, key, None, None, None, NOW, WALL)


def columns(*values: bytes) -> SentColumns:
    return SentColumns(pa.array(values, pa.binary()), None, None, None, None, len(values))


def test_records_of_a_topic_share_an_intake_and_count_up() -> None:
    intakes = Intakes(1000, 10_000)
    first, second = add(intakes, b"a"), add(intakes, b"b")
    assert first is not None
    assert second is not None
    assert first[0] is second[0]
    assert (first[1], second[1]) == (0, 1)
    assert intakes.must_wake


def test_an_open_intake_has_its_room_reserved_and_a_closed_one_what_it_uses() -> None:
    intakes = Intakes(1000, 10_000)
    add(intakes, b"x" * 92)
    assert intakes.available == 9_000
    intakes.close("t")
    assert intakes.available == 10_000 - 92 - RECORD_OVERHEAD


def test_memory_never_exceeds_its_bound_and_comes_back_whole() -> None:
    intakes = Intakes(1000, 3_000)
    taken = 0
    while add(intakes, b"x" * 92) is not None:
        taken += 1
    assert taken == 30
    assert intakes.available == 0
    intakes.close("t")
    for intake in intakes.closed:
        intakes.release(intake)
    assert intakes.available == 3_000


def test_a_full_intake_closes_and_another_opens() -> None:
    intakes = Intakes(200, 10_000)
    for _ in range(3):
        add(intakes, b"x" * 92)
    assert [intake.record_count for intake in intakes.closed] == [2]
    assert len(intakes.open["t"].values) == 1


def test_a_large_intake_grows_in_steps() -> None:
    intakes = Intakes(1_000_000, 2_000_000)
    add(intakes, b"")
    small = 2_000_000 - intakes.available
    for _ in range(1000):
        add(intakes, b"x" * 900)
    assert small < 100_000 < 2_000_000 - intakes.available <= 1_000_000
    assert len(intakes.open["t"].values) == 1001


def test_without_batching_every_record_closes_its_intake() -> None:
    intakes = Intakes(0, 10_000)
    add(intakes, b"a")
    add(intakes, b"b")
    assert [intake.record_count for intake in intakes.closed] == [1, 1]


def test_a_record_larger_than_an_intake_has_its_own() -> None:
    intakes = Intakes(100, 10_000)
    add(intakes, b"a")
    add(intakes, b"x" * 5000)
    add(intakes, b"b")
    assert [intake.record_count for intake in intakes.closed] == [1, 1]
    assert intakes.closed[1].size == 5008


def test_a_record_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(MessageTooLargeError, match="buffer_memory=100"):
        add(Intakes(100, 100), b"x" * 200)


def test_keys_may_come_and_go() -> None:
    intakes = Intakes(1000, 10_000)
    for key in (None, b"k", None):
        add(intakes, b"v", key)
    assert intakes.open["t"].keys == [None, b"k", None]
    assert "t" in intakes.plain


def test_an_intake_with_headers_leaves_the_shortest_path() -> None:
    intakes = Intakes(1000, 10_000)
    add(intakes, b"v")
    assert "t" in intakes.plain
    intakes.add("t", b"v", None, None, (("h", b"1"),), None, NOW, WALL)
    assert "t" not in intakes.plain
    assert intakes.open["t"].headers == [(), (("h", b"1"),)]


def test_a_key_without_its_value_does_not_shift_the_others() -> None:
    # A Ctrl-C may fall between the two.
    intakes = Intakes(1000, 10_000)
    add(intakes, b"v0", b"k0")
    intake = intakes.open["t"]
    intake.keys.append(b"interrupted")
    add(intakes, b"v1", b"k1")
    intake.keys.append(b"interrupted")
    intakes.close("t")
    assert (intake.keys, intake.values) == ([b"k0", b"k1"], [b"v0", b"v1"])


def test_columns_keep_their_place_after_what_was_sent_before() -> None:
    intakes = Intakes(1000, 10_000)
    add(intakes, b"a")
    assert intakes.add_columns("t", columns(b"b", b"c"), 18, NOW, WALL) is not None
    add(intakes, b"d")
    intakes.close("t")
    assert [intake.record_count for intake in intakes.closed] == [1, 2, 1]


def test_columns_that_do_not_fit_leave_everything_as_it_was() -> None:
    intakes = Intakes(1000, 10_000)
    add(intakes, b"a")
    assert intakes.add_columns("t", columns(b"b"), 20_000, NOW, WALL) is None
    assert not intakes.closed
    assert intakes.available == 9_000


def test_closing_by_age_spares_younger_intakes() -> None:
    intakes = Intakes(1000, 10_000)
    intakes.add("old", b"", None, None, None, None, MonotonicMs(1), WALL)
    intakes.add("young", b"", None, None, None, None, MonotonicMs(5), WALL)
    intakes.close_opened_until(MonotonicMs(4))
    assert [intake.topic for intake in intakes.closed] == ["old"]
    assert intakes.first_opened_at() == 5


def test_sizes_count_keys_values_headers_and_timestamps() -> None:
    sent = SentColumns(
        pa.array([b"abc", None], pa.binary()),
        pa.array([b"k", b""], pa.binary()),
        [(("name", b"v"),), ()],
        [1, 2],
        None,
        2,
    )
    assert sent.sizes().tolist() == [8 + 3 + 1 + 8 + 4 + (4 + 1 + 8), 8 + 8 + 4]


def test_headers_in_a_column_have_the_size_that_they_have_one_by_one() -> None:
    rows: list[list[tuple[str, bytes | None]]] = [
        [("dropped", b"by the slice")],
        [("name", b"v"), ("other", None)],
        [("größe", None)],
        [],
        [("", b"")],
    ]
    column = pa.array([[{"key": k, "value": v} for k, v in row] for row in rows], HEADERS_TYPE)
    nulls = pa.array([None] * 2, HEADERS_TYPE)

    def sizes(headers: object, count: int) -> list[int]:
        found: list[int] = SentColumns(None, None, headers, None, None, count).sizes().tolist()
        return found

    assert sizes(column.slice(1), 4) == sizes(rows[1:], 4)
    assert sizes(nulls, 2) == sizes([(), ()], 2)


def test_a_failed_intake_fails_all_of_its_records() -> None:
    intakes = Intakes(1000, 10_000)
    placed = add(intakes, b"a")
    assert placed is not None
    intake, index = placed
    assert intake.locate(index) is None
    error = UnknownTopicOrPartitionError("there is no such topic")
    intake.fail(error)
    assert intake.locate(index) is error
    assert intake.is_complete


class AskedMeanwhile(list[int]):
    """An order of records; while one handle looks its place up in it, another one does."""

    def __init__(self, order: list[int], ask: Callable[[], object]) -> None:
        super().__init__(order)
        self._asks = [ask]

    def __len__(self) -> int:
        if self._asks:
            self._asks.pop()()
        return super().__len__()


def test_two_threads_that_ask_first_hear_of_their_own_records() -> None:
    placed = add(Intakes(1000, 10_000), b"a")
    assert placed is not None
    intake, _ = placed
    intake.record_count = 3
    intake.order = AskedMeanwhile([2, 0, 1], lambda: found.append(intake.locate(1)))
    delivery = Delivery("t", TopicPartition(TopicId(b"t" * 16), 0))
    intake.segments = [(delivery, 0, 3)]
    intake.is_distributed = True
    found: list[object] = []
    found.append(intake.locate(0))
    assert found == [(delivery, 2), (delivery, 1)]


def nothing() -> None:
    """What is to be called for an outcome."""


def also_nothing() -> None:
    """Another one."""


def distributed(*deliveries: Delivery) -> Intake:
    """Return an intake of one record for each delivery, and of one more, which has failed."""
    intake = Intake("t", NOW, WALL, 0, 0)
    intake.record_count = len(deliveries) + 1
    intake.segments = [(delivery, 0, 1) for delivery in deliveries]
    intake.failures = {len(deliveries): InvalidRecordError("no partition")}
    return intake


def test_who_waits_for_a_record_waits_for_its_delivery_alone() -> None:
    first, second = Delivery("t", PLACE), Delivery("t", PLACE)
    intake = distributed(first, second)
    for index in (0, 1, 2, None):
        intake.add_waiter(nothing, index)
    intake.is_distributed = True
    assert intake.pass_waiters_on() == [nothing], "that of the record which failed"
    assert (list(first.waiters), list(second.waiters)) == ([nothing], [nothing])
    assert list(intake.waiters) == [(None, nothing)]
    intake.add_waiter(also_nothing, 1)
    assert (list(first.waiters), list(second.waiters)) == ([nothing], [nothing, also_nothing])
    for index in (0, 1, None):
        intake.forget_waiter(nothing, index)
    assert (list(first.waiters), list(second.waiters)) == ([], [also_nothing])
    assert not intake.waiters


@pytest.mark.parametrize("passes_on", [False, True])
def test_who_begins_to_wait_while_records_get_their_partitions_is_not_lost(
    passes_on: bool,
) -> None:
    delivery = Delivery("t", PLACE)
    intake = distributed(delivery)

    class Waiters(deque[tuple[int | None, Waiter]]):
        def append(self, entry: tuple[int | None, Waiter]) -> None:
            super().append(entry)
            intake.is_distributed = True  # By the loop, just now.
            if passes_on:
                intake.pass_waiters_on()

    intake.waiters = Waiters()
    intake.add_waiter(nothing, 0)
    assert list(delivery.waiters) == [nothing]
    assert not intake.waiters
