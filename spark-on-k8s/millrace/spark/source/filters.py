"""Filters from Spark that reduce the reads. Pure, except for Spark's classes of filters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from millrace.core.settings import INT64_MAX
from millrace.core.topics import PartitionName
from millrace.spark.source.planning import Range

_NEVER_NULL: Final = frozenset(["topic", "partition", "offset", "timestamp", "timestampType"])
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Wanted:
    """The records that pass the filters."""

    topics: set[str] | None = None
    partitions: set[int] | None = None
    first_offset: int = 0
    end_offset: int = INT64_MAX
    since_ms: int | None = None

    def take(self, condition: Filter) -> bool:
        """Take a filter; return whether Spark need not apply it any more."""
        (column, *deeper) = condition.attribute if hasattr(condition, "attribute") else ("",)
        if deeper:
            return False
        match condition:
            case IsNotNull():
                return column in _NEVER_NULL
            case EqualTo() | EqualNullSafe():
                return self._equals(column, [condition.value])
            case In():
                return self._equals(column, condition.value)
            case GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual():
                return self._compares(column, condition, condition.value)
        return False

    def _equals(self, column: str, values: Iterable[Any]) -> bool:
        values = set(values)
        if column == "topic" and all(isinstance(value, str) for value in values):
            self.topics = values if self.topics is None else self.topics & values
            return True
        if not all(type(value) is int for value in values):
            return False
        if column == "partition":
            self.partitions = values if self.partitions is None else self.partitions & values
            return True
        if column == "offset" and len(values) == 1:
            (offset,) = values
            self._between(offset, offset + 1)
            return True
        return False

    def _compares(self, column: str, condition: Filter, value: Any) -> bool:
        if column == "offset" and type(value) is int:
            match condition:
                case GreaterThan():
                    self._between(value + 1, INT64_MAX)
                case GreaterThanOrEqual():
                    self._between(value, INT64_MAX)
                case LessThan():
                    self._between(0, value)
                case _:
                    self._between(0, value + 1)
            return True
        is_lower_bound = isinstance(condition, GreaterThan | GreaterThanOrEqual)
        if (
            column == "timestamp"
            and is_lower_bound
            and isinstance(value, datetime)
            and value.tzinfo
        ):
            # Reading begins at the first record of this time or later. Timestamps do not ascend, so
            # earlier ones may follow: Spark checks each record.
            since = max(0, (value - _EPOCH) // timedelta(milliseconds=1))
            self.since_ms = since if self.since_ms is None else max(self.since_ms, since)
        return False

    def _between(self, first: int, end: int) -> None:
        self.first_offset = max(self.first_offset, first)
        self.end_offset = min(self.end_offset, end)


def narrow(
    ranges: Iterable[Range], wanted: Wanted, begins: Mapping[PartitionName, int]
) -> list[Range]:
    """Return ranges reduced by filters.

    Args:
        begins: the offset of the first record of `since_ms`; -1: there is none.
    """
    left = []
    for part in ranges:
        if wanted.topics is not None and part.topic not in wanted.topics:
            continue
        if wanted.partitions is not None and part.partition not in wanted.partitions:
            continue
        begin = begins.get(part.place, 0)
        if begin < 0:
            continue
        start = max(part.start, wanted.first_offset, begin)
        end = min(part.end, wanted.end_offset)
        if start < end:
            left.append(Range(part.topic, part.partition, start, end))
    return left
