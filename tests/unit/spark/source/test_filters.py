"""Filters that Spark hands down."""

from datetime import UTC, datetime
from typing import Any

import pytest

from millrace.spark.source.planning import Range

datasource = pytest.importorskip(
    "pyspark.sql.datasource", reason="needs pyspark: sh requirements/install.sh spark"
)
filters = pytest.importorskip("millrace.spark.source.filters")

RANGES = [Range("a", 0, 0, 100), Range("a", 1, 0, 100), Range("b", 0, 50, 100)]


def narrowed(*conditions: Any, begins: dict[tuple[str, int], int] | None = None) -> Any:
    wanted = filters.Wanted()
    assert all(wanted.take(condition) for condition in conditions)
    return filters.narrow(RANGES, wanted, begins or {})


def test_topics_partitions_and_offsets_are_not_read_in_vain() -> None:
    assert narrowed() == RANGES
    assert narrowed(datasource.EqualTo(("topic",), "b")) == RANGES[2:]
    assert narrowed(datasource.In(("topic",), ("a", "c"))) == RANGES[:2]
    assert narrowed(datasource.EqualTo(("partition",), 1)) == RANGES[1:2]
    assert narrowed(
        datasource.In(("partition",), (0, 1)), datasource.EqualNullSafe(("partition",), 0)
    ) == [RANGES[0], RANGES[2]]
    assert narrowed(
        datasource.GreaterThan(("offset",), 9), datasource.LessThanOrEqual(("offset",), 60)
    ) == [Range("a", 0, 10, 61), Range("a", 1, 10, 61), Range("b", 0, 50, 61)]
    assert narrowed(
        datasource.GreaterThanOrEqual(("offset",), 98), datasource.LessThan(("offset",), 99)
    ) == [Range("a", 0, 98, 99), Range("a", 1, 98, 99), Range("b", 0, 98, 99)]
    assert narrowed(datasource.EqualTo(("offset",), 7)) == [
        Range("a", 0, 7, 8),
        Range("a", 1, 7, 8),
    ]
    assert narrowed(datasource.IsNotNull(("topic",)), datasource.EqualTo(("offset",), 700)) == []


def test_a_time_only_moves_the_start_and_spark_looks_at_each_record() -> None:
    wanted = filters.Wanted()
    time = datetime(1970, 1, 1, 0, 0, 2, 500_900, tzinfo=UTC)
    assert not wanted.take(datasource.GreaterThan(("timestamp",), time))
    assert wanted.since_ms == 2500
    assert not wanted.take(datasource.LessThan(("timestamp",), time))
    left = filters.narrow(RANGES, wanted, {("a", 0): 40, ("a", 1): -1, ("b", 0): 7})
    assert left == [Range("a", 0, 40, 100), Range("b", 0, 50, 100)]


@pytest.mark.parametrize(
    "condition",
    [
        datasource.EqualTo(("value",), b"x"),
        datasource.EqualTo(("partition",), None),
        datasource.EqualTo(("topic",), None),
        datasource.In(("offset",), (1, 2)),
        datasource.EqualTo(("headers", "key"), "x"),
        datasource.IsNotNull(("key",)),
        datasource.IsNull(("topic",)),
        datasource.Not(datasource.EqualTo(("topic",), "a")),
        datasource.StringStartsWith(("topic",), "a"),
        datasource.GreaterThan(("timestamp",), datetime(2013, 1, 1)),  # noqa: DTZ001  # On purpose.
    ],
)
def test_what_cannot_be_told_from_offsets_is_left_to_spark(condition: Any) -> None:
    wanted = filters.Wanted()
    assert not wanted.take(condition)
    assert wanted == filters.Wanted()
