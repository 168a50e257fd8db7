"""What a consumer hands out: records as Python objects, or batches as Arrow."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from millrace.client.serialization import Deserializer
from millrace.core.errors import SerializationError
from millrace.core.ids import LeaderEpoch, Offset, WallMs


class Record(tuple[Any, ...]):
    """One record. Cheap to make: a tuple whose fields have names.

    With deserializers `key` and `value` are what they return, called when the field is read and at
    every reading; without, they are bytes. None is null. A deserializer that raises does so as
    `SerializationError` at the reading, and affects nothing else.
    """

    __slots__ = ()

    topic: str = property(itemgetter(0))  # type: ignore[assignment]
    partition: int = property(itemgetter(1))  # type: ignore[assignment]
    offset: Offset = property(itemgetter(2))  # type: ignore[assignment]
    timestamp: WallMs = property(itemgetter(3))  # type: ignore[assignment]
    """Milliseconds UTC."""
    key: Any = property(itemgetter(4))
    value: Any = property(itemgetter(5))
    headers: tuple[tuple[str, bytes | None], ...] = property(itemgetter(6))  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Record(topic={self[0]!r}, partition={self[1]}, offset={self[2]}, "
            f"timestamp={self[3]}, key={self[4]!r}, value={self[5]!r}, headers={self[6]!r})"
        )


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


def to_records(
    kind: type[Record], topic: str, partition: int, records: pa.RecordBatch
) -> list[Record]:
    """Return the rows of an Arrow batch as records, column by column: no loop in Python."""
    offsets, timestamps, keys, values, headers = records.columns
    return list(
        map(
            partial(tuple.__new__, kind),
            zip(
                repeat(topic),
                repeat(partition),
                offsets.to_pylist(),
                timestamps.to_pylist(),
                _cells(keys),
                _cells(values),
                _headers(headers),
                strict=False,
            ),
        )
    )


def _cells(column: pa.Array) -> Any:
    return repeat(None) if column.null_count == len(column) else column.to_pylist()


def _headers(column: pa.Array) -> Any:
    if column.null_count == len(column):
        return repeat(_NO_HEADERS)
    return [
        tuple((header["key"], header["value"]) for header in row or ())
        for row in column.to_pylist()
    ]
