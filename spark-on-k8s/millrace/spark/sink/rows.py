"""Spark's rows as records: the topic of each row, and rows that cannot be written.

Pure. Whole columns are handled: one sort divides a batch of rows by topic, and comparisons of
columns find rows that cannot be records. An error names such a row, and nothing of its Arrow batch
is sent.

| column | type | |
|---|---|---|
| `value` | binary or string | must be there; null is a tombstone |
| `key` | binary or string | null: no key |
| `topic` | string | must be there unless the option `topic` is given |
| `partition` | a whole number | null: the partitioner chooses |
| `headers` | array of struct of key (string) and value (binary) | |
| `timestamp` | timestamp | null, or 1 ms before 1970: when the row is written |

`offset` and `timestampType`, which readers have, are left out, so that topics can be copied. A
record of a Kafka client without a time is read with the time -1 ms.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import (
    BufferExhaustedError,
    InvalidTopicError,
    MessageTooLargeError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import NO_TIMESTAMP
from millrace.core.records.header import TIMESTAMP_MAX
from millrace.core.settings import INT32_MAX
from millrace.core.topics import parse_topic_name
from millrace.spark.errors import InvalidColumnsError, InvalidRowError

_BYTES: Final = ("binary", "string")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": ("string",),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
"""Columns, and their types as Spark writes them."""
_READERS_OWN: Final = ("offset", "timestampType")
_ROW_OVERHEAD: Final = 64
"""Bytes that a row may take beside its key, value and headers."""
_HEADER_OVERHEAD: Final = 8
"""Bytes that a header takes beside its name and value."""
_KEY_SHOWN: Final = 40


def check_columns(columns: Sequence[tuple[str, str]], topic: str | None) -> None:
    """Refuse columns that cannot be written.

    Args:
        columns: names and types, as Spark writes them.
        topic: the option.

    Raises:
        InvalidColumnsError: lists all problems.
    """
    counts = Counter(name for name, _ in columns if name in _TYPES)
    problems = [
        f"there are {count} columns {name}, as after a join: drop or rename the others"
        for name, count in counts.items()
        if count > 1
    ]
    for name, kind in dict(columns).items():
        if name in _READERS_OWN:
            continue
        if name not in _TYPES:
            near = get_close_matches(name, _TYPES, n=1, cutoff=0.6)
            meant = f"did you mean {near[0]}?" if near else "drop it, or make it part of the value"
            problems.append(f"there is no place for column {name}: {meant}")
        elif kind not in _TYPES[name]:
            wanted = " or ".join(_TYPES[name])
            problems.append(f"column {name} is {kind}, not {wanted}: cast it")
    if "value" not in counts:
        problems.append("there is no column value (binary or string): make one, as with to_json")
    if topic is None and "topic" not in counts:
        problems.append("there is neither a column topic nor the option topic: give one of them")
    if problems:
        raise InvalidColumnsError(
            f"these rows cannot be written: {'; '.join(problems)}. Nothing was written"
        )


@dataclass(slots=True, frozen=True)
class Part:
    """Rows of one Arrow batch that go to one topic."""

    topic: str
    records: pa.RecordBatch
    """The columns that a producer takes."""
    task: str
    rows: Any
    """Number of each row in its task."""

    def name_row(self, index: int) -> str:
        """Return the name of a record's row, for a person."""
        named = _name(self.task, int(self.rows[index]), self.records, index)
        return f"{named} for topic {self.topic!r}"

    def check_partitions(self, count: int) -> None:
        """Refuse rows that name a partition which the topic does not have.

        Raises:
            InvalidRowError: the first of them.
        """
        if "partition" not in self.records.schema.names:
            return
        wrong = pc.greater_equal(self.records.column("partition"), count)
        if (index := _first(wrong)) is not None:
            named = self.records.column("partition")[index].as_py()
            raise InvalidRowError(
                f"{self.name_row(index)} names partition {named}, and the topic has the partitions "
                f"0 to {count - 1}: correct it, or add partitions (a restarted task knows them). "
                "Nothing of its Arrow batch was sent"
            )


def not_written(
    part: Part, errors: Mapping[int, MillraceError], *, is_undone: bool
) -> MillraceError:
    """Return the error of records that were not written, which names the first of them.

    Args:
        part: of the rows.
        errors: by the number of the record.
        is_undone: what the task had written does not count.
    """
    index = min(errors)
    others = f" and {len(errors) - 1} more of its batch were" if len(errors) > 1 else " was"
    return _failure(f"{part.name_row(index)}{others}", errors[index], part.topic, is_undone)


def not_taken(part: Part, error: MillraceError, *, is_undone: bool) -> MillraceError:
    """Return the error of rows that the producer has not taken, or not all of them.

    Args:
        part: of the rows.
        error: the producer's.
        is_undone: as of `not_written`.
    """
    first, last = int(part.rows[0]), int(part.rows[-1])
    named = f"of the rows {first} to {last} of {part.task} for topic {part.topic!r} some were"
    return _failure(named, error, part.topic, is_undone)


def _failure(named: str, error: MillraceError, topic: str, is_undone: bool) -> MillraceError:
    rest = "before stays, and a repeat writes it again"
    if is_undone:
        rest = "before does not count"
    advice = ""
    if isinstance(error, UnknownTopicOrPartitionError):  # Deleted since the rows were checked.
        advice = f": see that it is there (millrace topic create {topic}), and write again"
    elif isinstance(error, BufferExhaustedError):
        advice = ". The options for both are bufferBytes and deliveryTimeoutMs"
    return type(error)(
        f"{named} not written: {error.message}{advice}. What the task had written {rest}",
        appended=error.appended,
    )


class RowsOfTask:
    """Takes the Arrow batches of one task in turn.

    Args:
        topic: the option; None: each row names its topic.
        namespace: of topics that rows name without one.
        task: its name in errors.
        row_bytes_max: larger rows can never be sent.
    """

    def __init__(self, topic: str | None, namespace: str, task: str, row_bytes_max: int) -> None:
        self._topic = topic
        self._namespace = namespace
        self._task = task
        self._row_bytes_max = row_bytes_max
        self.count = 0
        """Rows so far."""

    def parts(self, batch: pa.RecordBatch, now_ms: int) -> list[Part]:
        """Return the rows of a batch by topic, in their order.

        Args:
            now_ms: the time of rows that have none.

        Raises:
            InvalidRowError, InvalidTopicError, MessageTooLargeError: one cannot be written.
        """
        if not len(batch):
            return []
        first, self.count = self.count, self.count + len(batch)
        columns = {name: batch.column(name) for name in _TYPES if name in batch.schema.names}
        topics = columns.pop("topic", None)
        self._check(batch, columns, topics, first)
        if "timestamp" in columns:
            columns["timestamp"] = pc.fill_null(_times(columns["timestamp"]), now_ms)
        records = pa.RecordBatch.from_pydict(columns)
        rows = np.arange(first, self.count)
        if self._topic is not None:
            return [Part(self._topic, records, self._task, rows)]
        return list(self._by_topic(topics, records, rows))

    def _by_topic(self, topics: pa.Array, records: pa.RecordBatch, rows: Any) -> Iterator[Part]:
        encoded = topics.dictionary_encode()
        numbers = encoded.indices.to_numpy()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            yield self._part(names[0], records, rows)
            return
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(len(names) + 1))
        records, rows = records.take(pa.array(order)), rows[order]
        for name, (start, end) in zip(names, pairwise(ends.tolist()), strict=True):
            yield self._part(name, records.slice(start, end - start), rows[start:end])

    def _part(self, name: str, records: pa.RecordBatch, rows: Any) -> Part:
        part = Part(name, records, self._task, rows)
        try:
            topic = str(parse_topic_name(name, self._namespace))
        except InvalidTopicError as error:
            raise InvalidTopicError(
                f"{part.name_row(0)}: {error.message}. Nothing of its Arrow batch was sent"
            ) from error
        return Part(topic, records, self._task, rows)

    def _check(
        self,
        batch: pa.RecordBatch,
        columns: Mapping[str, pa.Array],
        topics: pa.Array | None,
        first: int,
    ) -> None:
        """Refuse rows that cannot be records."""
        if wrong := list(self._wrong(columns, topics)):
            index, told = min(wrong)
            named = _name(self._task, first + index, batch, index)
            raise InvalidRowError(f"{named} {told}. Nothing of its Arrow batch was sent")
        sizes = _sizes(columns, len(batch))
        too_large = sizes > self._row_bytes_max - _ROW_OVERHEAD
        if too_large.any():
            index = int(too_large.argmax())
            raise MessageTooLargeError(
                f"{_name(self._task, first + index, batch, index)} has {sizes[index]} bytes, with "
                f"headers, more than bufferBytes={self._row_bytes_max} holds: write less, or raise "
                "it and the topic's max.message.bytes. Nothing of its Arrow batch was sent"
            )

    def _wrong(
        self, columns: Mapping[str, pa.Array], topics: pa.Array | None
    ) -> Iterator[tuple[int, str]]:
        """Yield, for each column, the first row that cannot be a record, and the reason."""
        if self._topic is None:
            assert topics is not None, "the driver has checked the columns"
            if (index := _first(pc.is_null(topics))) is not None:
                yield index, "has no topic: fill the column topic, or give the option topic"
        if (numbers := columns.get("partition")) is not None:
            numbers = numbers.cast(pa.int64())
            wrong = pc.or_(pc.less(numbers, 0), pc.greater(numbers, INT32_MAX))
            if (index := _first(wrong)) is not None:
                named = numbers[index].as_py()
                yield index, f"names partition {named}: it is a number from 0, or null"
        if "timestamp" in columns:
            times = _times(columns["timestamp"])
            wrong = pc.or_(pc.less(times, 0), pc.greater(times, TIMESTAMP_MAX))
            if (index := _first(wrong)) is not None:
                time = times[index].as_py()
                yield index, f"has the time {time} ms since 1970: it lies between 1970 and 9999"
        if (headers := columns.get("headers")) is not None:
            entries = headers.flatten()
            wrong = pc.or_(pc.is_null(entries), pc.is_null(pc.struct_field(entries, "key")))
            if (entry := _first(wrong)) is not None:
                index = pc.list_parent_indices(headers)[entry].as_py()
                yield index, "has a header without a name: give it one, or leave it out"


def _sizes(columns: Mapping[str, pa.Array], count: int) -> Any:
    """Return the bytes of each row's key, value and headers, int64."""
    sizes = np.zeros(count, np.int64)
    for name in ("key", "value"):
        if name in columns:
            sizes += _lengths(columns[name])
    if "headers" in columns:
        entries = columns["headers"].flatten()
        of_entries = np.full(len(entries), _HEADER_OVERHEAD)
        for name in ("key", "value"):
            of_entries += _lengths(pc.struct_field(entries, name))
        np.add.at(sizes, pc.list_parent_indices(columns["headers"]).to_numpy(), of_entries)
    return sizes


def _lengths(cells: pa.Array) -> Any:
    return pc.fill_null(pc.binary_length(cells), 0).to_numpy()


def _name(task: str, row: int, columns: pa.RecordBatch, index: int) -> str:
    """Return the name of a row: its number in the task and its key."""
    key = columns.column("key")[index].as_py() if "key" in columns.schema.names else None
    if key is None:
        return f"row {row} of {task}"
    return f"row {row} of {task} (key {key[:_KEY_SHOWN]!r}{'...' * (len(key) > _KEY_SHOWN)})"


def _times(timestamps: pa.Array) -> pa.Array:
    """Return timestamps of any unit as ms since 1970, int64; null: there is none."""
    zone = timestamps.type.tz
    times = timestamps.cast(pa.timestamp("ms", zone), safe=False).cast(pa.int64())
    return pc.if_else(pc.equal(times, NO_TIMESTAMP), pa.scalar(None, pa.int64()), times)


def _first(found: pa.Array) -> int | None:
    """Return the first true row of a column of truth values."""
    index = pc.index(found, True).as_py()
    return None if index < 0 else index
