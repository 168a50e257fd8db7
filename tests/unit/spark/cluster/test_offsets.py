"""Offsets in a checkpoint: one form for what is equal, and nothing else is taken for them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.spark.cluster.offsets import LogPosition, Offsets, check_topic_names
from millrace.spark.errors import CheckpointError

POSITIONS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b", "c/d"]), st.integers(0, 12)),
    st.builds(LogPosition, st.integers(0, 2**60), st.integers(-1, 5)),
    max_size=9,
)


def offsets(positions: dict[tuple[str, int], LogPosition]) -> Offsets:
    return Offsets(positions, {topic: f"{topic}-id" for topic, _ in positions})


def test_the_form_is_kafka_s_with_what_tells_a_topic_and_a_log_from_another() -> None:
    given_ = offsets({("clicks", 10): LogPosition(7), ("clicks", 2): LogPosition(23, 4)})
    assert json.dumps(given_.to_dict()) == (
        '{"__meta": {"epoch": {"clicks": {"2": 4}}, "ids": {"clicks": "clicks-id"}, "v": 1}, '
        '"clicks": {"2": 23, "10": 7}}'
    )


def test_the_end_of_a_batch_names_where_the_batch_begins() -> None:
    begin = offsets({("clicks", 2): LogPosition(3, 1)})
    end = replace(offsets({("clicks", 2): LogPosition(23, 4)}), begin=begin)
    written = json.dumps(end.to_dict())
    assert written == (
        '{"__meta": {"begin": {"__meta": {"epoch": {"clicks": {"2": 1}}, "ids": {"clicks": '
        '"clicks-id"}, "v": 1}, "clicks": {"2": 3}}, "epoch": {"clicks": {"2": 4}}, "ids": '
        '{"clicks": "clicks-id"}, "v": 1}, "clicks": {"2": 23}}'
    )
    assert Offsets.from_dict(json.loads(written)) == end


@given(POSITIONS, st.randoms())
def test_what_is_equal_is_written_equally(positions: Any, order: Any) -> None:
    shuffled = list(positions.items())
    order.shuffle(shuffled)
    written = json.dumps(offsets(positions).to_dict())
    assert json.dumps(offsets(dict(shuffled)).to_dict()) == written
    assert Offsets.from_dict(json.loads(written)) == offsets(positions)


def test_a_new_leader_alone_is_no_news() -> None:
    before = offsets({("a", 0): LogPosition(5, 1), ("a", 1): LogPosition(5, 1)})
    later = offsets({("a", 0): LogPosition(5, 2), ("a", 1): LogPosition(6, 2)})
    assert later.with_known_epochs(before).positions == {
        ("a", 0): LogPosition(5, 1),
        ("a", 1): LogPosition(6, 2),
    }


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"clicks": {"0": 23}},
        {"__meta": {"v": 1, "ids": {}, "epoch": {}}, "clicks": {"zero": 23}},
        {"__meta": {"v": 1, "ids": {}, "epoch": {}}, "clicks": {"0": "23"}},
        {"__meta": {"v": 1, "ids": {}, "epoch": {}}, "clicks": [23]},
        {"__meta": {"v": 1, "ids": [], "epoch": {}}},
        {"__meta": {"v": 1, "ids": {}, "epoch": {}, "begin": 3}},
    ],
)
def test_what_is_not_of_this_source_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="give the query a checkpoint of its own"):
        Offsets.from_dict(value)


def test_a_later_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(CheckpointError, match="version 2, and this release reads version 1"):
        Offsets.from_dict({"__meta": {"v": 2, "ids": {}, "epoch": {}}})


def test_no_topic_may_have_the_offsets_own_name() -> None:
    with pytest.raises(CheckpointError, match="rename it"):
        check_topic_names(["clicks", "__meta"])
