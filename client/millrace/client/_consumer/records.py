"""Records of a consumer: as Python objects, or as Arrow batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from operator import length_hint
from typing import Any, Final, NamedTuple, overload

import pyarrow as pa

from millrace.client.serialization import Deserializer
from millrace.core.errors import SerializationError
from millrace.core.ids import LeaderEpoch, Offset, TopicId, WallMs
from millrace.core.records.few_records import FewRecords
from millrace.core.words import count
from millrace.runtime.clock import monotonic_now

POLL_EVERY_MS: Final = 100
"""How long a loop hands out records before its next poll."""
_PART_MAX: Final = 64
"""Records that a loop hands out at most between two looks at the clock."""


class Record(NamedTuple):
    """One record.

    With deserializers, `key` and `value` are their results, computed at each read of the field;
    without, they are bytes. None is null. An exception of a deserializer becomes a
    `SerializationError` at the read, and affects nothing else.
    """

    topic: str
    partition: int
    offset: Offset
    timestamp: WallMs
    """Milliseconds UTC; -1: a client of Kafka gave none."""
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True, frozen=True)
class FetchedRecords:
    """Records of one partition as Arrow, in the order of their offsets.

    `records` has the columns `offset` and `timestamp` (int64), `key` and `value` (binary) and
    `headers` (list of structs of key and value). Deserializers are not called.
    """

    topic: str
    partition: int
    records: pa.RecordBatch
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    topic_id: TopicId
    """Id of the topic: another topic of the same name has another id."""
    has_append_time: bool
    """Whether `timestamp` is the leader's, as the topic asks, instead of the producer's."""


def record_type(
    key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
) -> type[Record]:
    """Return the class of records whose fields go through these deserializers."""
    if key_deserializer is None and value_deserializer is None:
        return Record
    fields: dict[str, Any] = {"__slots__": ()}
    for name, index, deserializer in (
        ("key", 4, key_deserializer),
        ("value", 5, value_deserializer),
    ):
        if deserializer is not None:
            fields[name] = property(_deserialized(name, index, deserializer))
    return type("Record", (Record,), fields)


def _deserialized(
    name: str, index: int, deserializer: Deserializer
) -> Callable[[tuple[Any, ...]], Any]:
    def get(record: tuple[Any, ...]) -> Any:
        data = record[index]
        if data is None:
            return None
        try:
            return deserializer(data)
        except Exception as error:
            raise SerializationError(
                f"the {name} deserializer raised {error!r} for the record at offset {record[2]} of "
                f"topic {record[0]!r} partition {record[1]}"
            ) from error

    return get


_NO_HEADERS: Final[tuple[tuple[str, bytes | None], ...]] = ()


class Records(Sequence[Record]):
    """What `poll` returns: a sequence of records.

    Keys and values are decoded, column by column; a `Record` is made when one is asked for. So a
    program that needs only values calls `values()`, and pays for nothing else.
    """

    __slots__ = ("_columns", "_count", "_kind")

    def __init__(self, kind: type[Record]) -> None:
        self._kind = kind
        self._columns: list[_Columns] = []
        self._count = 0

    def add(self, topic: str, partition: int, records: pa.RecordBatch) -> None:
        """Append the rows of an Arrow batch."""
        self._columns.append(_decoded(topic, partition, records))
        self._count += len(records)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(
            _records(self._kind, columns.rows(_numbers(columns.offsets)))
            for columns in self._columns
        )

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return list(self)[index]
        if not -self._count <= index < self._count:
            raise IndexError(f"{index} of {count(self._count, 'record')}")
        index %= self._count
        for columns in self._columns:
            if index < columns.record_count:
                return tuple.__new__(self._kind, columns.row(index))
            index -= columns.record_count
        raise IndexError(index)

    def keys(self) -> list[Any]:
        """Return the key of every record, deserialized."""
        return (
            [record.key for record in self]
            if self._kind is not Record
            else _joined(columns.keys or [None] * columns.record_count for columns in self._columns)
        )

    def values(self) -> list[Any]:
        """Return the value of every record, deserialized."""
        return (
            [record.value for record in self]
            if self._kind is not Record
            else _joined(
                columns.values or [None] * columns.record_count for columns in self._columns
            )
        )

    def __repr__(self) -> str:
        return f"<{count(self._count, 'record')}>"


class LentRecords:
    """Records of one partition for loops, made one by one as a loop comes to each.

    Counting the remaining records costs nothing per record: all decoded records are one iterator of
    C, and its list of offsets has the count.
    """

    __slots__ = ("_left", "_offsets", "_records", "count")

    def __init__(
        self,
        kind: type[Record],
        topic: str,
        partition: int,
        records: pa.RecordBatch | FewRecords,
    ) -> None:
        columns = _decoded(topic, partition, records)
        self.count = len(records)
        self._offsets = list(_numbers(columns.offsets))
        self._left = iter(self._offsets)
        self._records = _records(kind, columns.rows(self._left))

    def __len__(self) -> int:
        """Return how many records no loop has reached."""
        return length_hint(self._left)

    def __iter__(self) -> Iterator[Record]:
        """Return the records that are left: each loop goes on where the last one stopped."""
        return self._records

    def take_back(self) -> None:
        """End every loop over them at its next record."""
        self._offsets.clear()


def parts(lent: LentRecords | tuple[()]) -> Iterator[Iterator[Record]]:
    """Yield the records in parts, until it is time for the next poll.

    A part is twice as long as the one before, as looks at the clock must not be a cost of each
    record. A loop that takes long for a record gets that one alone.
    """
    poll_at = monotonic_now() + POLL_EVERY_MS
    part = 1
    while lent and monotonic_now() < poll_at:
        yield islice(lent, part)
        part = min(2 * part, _PART_MAX)


def header_columns(taken: object) -> list[tuple[str, int, pa.Array | None]]:
    """Return topic, number of records, and headers of each part of what a poll hands out.

    Records that are lent to a loop are none: the loop has not reached them.
    """
    if isinstance(taken, Records):
        return [
            (columns.topic, columns.record_count, columns.headers) for columns in taken._columns
        ]
    if isinstance(taken, list):
        return [
            (batch.topic, len(batch.records), batch.records.column("headers")) for batch in taken
        ]
    return []


def _decoded(topic: str, partition: int, records: pa.RecordBatch | FewRecords) -> "_Columns":
    if isinstance(records, FewRecords):
        few = records
        return _Columns(
            topic, partition, len(few), few.offsets, few.timestamps, few.keys, few.values, None
        )
    offsets, timestamps, keys, values, headers = records.columns
    return _Columns(
        topic,
        partition,
        len(records),
        offsets,
        timestamps,
        None if keys.null_count == len(keys) else keys.to_pylist(),
        None if values.null_count == len(values) else values.to_pylist(),
        headers if _has_headers(headers) else None,
    )


@dataclass(slots=True)
class _Columns:
    """Neighbouring records of one partition."""

    topic: str
    partition: int
    record_count: int
    offsets: pa.Array | Sequence[int]
    timestamps: pa.Array | Sequence[int]
    keys: list[bytes | None] | None
    values: list[bytes | None] | None
    headers: pa.Array | None

    def row(self, index: int) -> tuple[Any, ...]:
        """Return the fields of one record, without a look at the others."""
        return (
            self.topic,
            self.partition,
            _number(self.offsets, index),
            _number(self.timestamps, index),
            None if self.keys is None else self.keys[index],
            None if self.values is None else self.values[index],
            _NO_HEADERS if self.headers is None else _headers(self.headers.slice(index, 1))[0],
        )

    def rows(self, offsets: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        """Return the fields of each record, for their decoded offsets: no loop in Python."""
        return zip(
            repeat(self.topic),
            repeat(self.partition),
            offsets,
            _numbers(self.timestamps),
            repeat(None) if self.keys is None else self.keys,
            repeat(None) if self.values is None else self.values,
            repeat(_NO_HEADERS) if self.headers is None else _headers(self.headers),
            strict=False,
        )


def _numbers(column: pa.Array | Sequence[int]) -> Sequence[int]:
    numbers: Sequence[int] = column.to_pylist() if isinstance(column, pa.Array) else column
    return numbers


def _number(column: pa.Array | Sequence[int], index: int) -> int:
    number: int = column[index].as_py() if isinstance(column, pa.Array) else column[index]
    return number


def _records(kind: type[Record], rows: Iterator[tuple[Any, ...]]) -> Iterator[Record]:
    """Make a record of each row, as `kind(*row)` does in twice the time."""
    return map(tuple.__new__, repeat(kind), rows)


def _joined(columns: Iterable[list[Any]]) -> list[Any]:
    lists = list(columns)
    return lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))


def _has_headers(column: pa.Array) -> bool:
    """Return whether any record has headers: decoding the empty lists of all costs a quarter."""
    ends = column.offsets
    return bool(ends[-1].as_py() > ends[0].as_py())


def _headers(column: pa.Array) -> list[tuple[tuple[str, bytes | None], ...]]:
    return [
        tuple((header["key"], header["value"]) for header in row or ())
        for row in column.to_pylist()
    ]
