from collections.abc import Mapping

from millrace.core.coordinator.groups.lags import (
    GroupLag,
    LagRound,
    LagSums,
    Place,
    Unread,
    added_up,
    unread_records,
)
from millrace.core.ids import Offset, TopicId, TopicPartition

ORDERS, PAYMENTS, DELETED = (TopicId(bytes([number]) * 16) for number in range(3))
NAMES = {ORDERS: "orders", PAYMENTS: "payments"}


def at(topic_id: TopicId, *offsets: int | None) -> dict[TopicPartition, Offset | None]:
    """Return the offsets in the partitions from 0 on."""
    return {
        TopicPartition(topic_id, number): None if offset is None else Offset(offset)
        for number, offset in enumerate(offsets)
    }


def lags_of(
    groups: Mapping[str, Mapping[TopicPartition, Offset | None]],
    end: int = 10,
    *,
    series_max: int = 100,
) -> tuple[list[GroupLag], LagRound]:
    """Take up groups, and let all logs end there; each record has 3 bytes, and is 100 ms older than
    the next one."""
    lags = LagRound(series_max, lambda topic_id: NAMES.get(topic_id, ""))
    for name, positions in groups.items():
        lags.take(name, positions)
    found: dict[Place, Unread] = {
        place: Unread(end - place[1], 3 * (end - place[1]), 100 * (end - place[1]))
        for place in lags.places
    }
    return the_lags(lags, found), lags


def the_lags(lags: LagRound, found: dict[Place, Unread]) -> list[GroupLag]:
    return list(lags.lags(found))


def test_a_group_has_the_sums_of_each_topic_and_the_worst_of_its_partitions() -> None:
    lags, _ = lags_of({"g": {**at(ORDERS, 10, 4, 8), **at(PAYMENTS, 9)}})
    assert lags == [
        GroupLag("g", "orders", LagSums(8, 6, 24, 600, 0)),
        GroupLag("g", "payments", LagSums(1, 1, 3, 100, 0)),
    ]


def test_deleted_records_are_not_unread() -> None:
    assert unread_records(position=5, log_start=7, end=10, unread_bytes=300) == 3


def test_nothing_is_unread_beyond_the_end_or_where_no_batch_is() -> None:
    assert unread_records(position=12, log_start=7, end=10, unread_bytes=0) == 0
    assert unread_records(position=9, log_start=7, end=10, unread_bytes=0) == 0, "it is a marker"


def test_the_lag_in_no_partition_is_unknown_and_not_0() -> None:
    assert added_up([]) == LagSums(None, None, None, None, 0)


def test_an_unknown_partition_makes_the_sums_unknown() -> None:
    _, round_ = lags_of({"g": at(ORDERS, 4, 5)})
    (first, second) = round_.places
    assert the_lags(round_, {first: Unread(6, 18, 600)}) == [
        GroupLag("g", "orders", LagSums(None, None, None, None, 1))
    ]
    assert the_lags(round_, {}) == [GroupLag("g", "orders", LagSums(None, None, None, None, 2))]
    assert the_lags(round_, {first: Unread(6, 18, 600), second: Unread(5, 15, None)}) == [
        GroupLag("g", "orders", LagSums(11, 6, 33, None, 0))
    ]


def test_everything_is_unread_in_a_partition_without_a_position() -> None:
    lags, _ = lags_of({"g": at(ORDERS, 4, None)})
    assert lags == [GroupLag("g", "orders", LagSums(16, 10, 48, 1000, 0))]


def test_nothing_is_unread_in_a_partition_without_records_and_a_position() -> None:
    lags, _ = lags_of({"g": at(ORDERS, 0, None)}, end=0)
    assert lags == [GroupLag("g", "orders", LagSums(0, 0, 0, 0, 0))]


def test_leaders_are_asked_once_about_the_same_offset() -> None:
    lags, round_ = lags_of({f"g{number}": at(ORDERS, 10, 10) for number in range(50)})
    assert len(list(round_.places)) == 2
    assert round_.positions == 100
    assert [lag.lag.records for lag in lags] == [0] * 50


def test_a_group_whose_topics_do_not_fit_is_left_out_as_a_whole() -> None:
    both = {**at(ORDERS, 1), **at(PAYMENTS, 1)}
    lags, round_ = lags_of({"a": at(ORDERS, 1), "b": both, "c": at(PAYMENTS, 1)}, series_max=2)
    assert [(lag.group, lag.topic) for lag in lags] == [("a", "orders"), ("c", "payments")]
    assert round_.left_out == 1
    assert round_.is_full


def test_positions_of_deleted_topics_are_no_lag() -> None:
    lags, round_ = lags_of({"g": at(DELETED, 3), "h": {}}, series_max=1)
    assert (lags, list(round_.places), round_.left_out) == ([], [], 0)
