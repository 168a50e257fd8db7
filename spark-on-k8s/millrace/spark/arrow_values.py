"""Rows in Arrow's own form as values of records: one value is an Arrow IPC stream. Pure.

A value holds as many rows as its producer put into it. Python works once per value, and never per
row: so values should hold hundreds of rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.spark.errors import InvalidValueError

_ROWS_MAX: Final = 20_000
"""Rows at which a decoded batch is handed on; a single value may hold more."""


@dataclass(slots=True)
class _Decoded:
    """Rows of several values, and which value each is of."""

    tables: list[pa.Table] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, record: int, table: pa.Table) -> None:
        self.tables.append(table)
        self.records.append(record)
        self.rows.append(len(table))
        self.count += len(table)

    def take(self, kept: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Return them beside the columns of their records, and forget them."""
        table = pa.concat_tables(self.tables).combine_chunks()
        beside = kept.take(pa.array(np.repeat(self.records, self.rows)))
        self.tables, self.records, self.rows, self.count = [], [], [], 0
        for batch in table.to_batches():  # One, or none of no rows.
            arrays = [*beside.columns, *batch.columns]
            fields = [*beside.schema, *batch.schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def decode(records: pa.RecordBatch, rows: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the rows in the column `value`, beside the other columns of their records.

    A null value has no rows. Columns of a value that `rows` does not name are left out.

    Args:
        records: with a column `value` (binary).
        rows: the columns that each value must have; other types are cast if that loses nothing.

    Raises:
        InvalidValueError: a value is no Arrow stream, or has other columns; names the record.
    """
    values = records.column("value")
    kept = records.drop_columns(["value"])
    decoded = _Decoded()
    for record, value in enumerate(values):
        if not value.is_valid:
            continue
        decoded.add(record, _rows_of(records, record, value.as_buffer(), rows))
        if decoded.count >= _ROWS_MAX:
            yield from decoded.take(kept)
    if decoded.tables:
        yield from decoded.take(kept)


def _rows_of(records: pa.RecordBatch, record: int, value: pa.Buffer, rows: pa.Schema) -> pa.Table:
    try:
        with pa.ipc.open_stream(value) as stream:
            return stream.read_all().select(rows.names).cast(rows)
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise InvalidValueError(
            f"the value of {_place(records, record)} is not an Arrow stream with the columns "
            f"{', '.join(f'{column.name} ({column.type})' for column in rows)}: {error}. Read it "
            "with its own columns, or leave the record out"
        ) from error


def _place(records: pa.RecordBatch, record: int) -> str:
    names = ("topic", "partition", "offset")
    if not set(names) <= set(records.schema.names):
        return "a record"
    topic, partition, offset = (records.column(name)[record].as_py() for name in names)
    return f"the record at offset {offset} of {topic}-{partition}"


def encode(rows: pa.RecordBatch, kept: list[str], rows_per_record: int) -> pa.RecordBatch:
    """Return records of as many rows each: the columns `kept`, and the others in `value`.

    Rows share a record while they follow one another with equal `kept` columns.

    Args:
        kept: columns of a type that can be compared.
        rows_per_record: at the most.
    """
    beside = rows.select(kept)
    inner = rows.drop_columns(kept)
    bounds = _bounds(beside, len(rows), rows_per_record)
    values = [
        _stream_of(inner.slice(start, end - start)) for start, end in pairwise(bounds.tolist())
    ]
    starts = pa.array(bounds[:-1])
    return pa.RecordBatch.from_arrays(
        [*beside.take(starts).columns, pa.array(values, pa.binary())],
        schema=pa.schema([*beside.schema, pa.field("value", pa.binary())]),
    )


def _bounds(kept: pa.RecordBatch, count: int, rows_per_record: int) -> Any:
    """Return where each record begins, and the end."""
    is_first = np.zeros(count, bool)
    is_first[:1] = True
    for column in kept.columns if count else ():
        before, after = column.slice(0, count - 1), column.slice(1)
        differs = pc.fill_null(pc.not_equal(before, after), False)
        one_is_null = pc.xor(pc.is_null(before), pc.is_null(after))
        is_first[1:] |= pc.or_(differs, one_is_null).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(is_first)
    lengths = np.diff(np.append(starts, count))
    cuts = -(-lengths // rows_per_record)  # Records of each run.
    run = np.repeat(np.arange(len(starts)), cuts)
    number = np.arange(len(run)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    return np.append(starts[run] + number * rows_per_record, count)


def _stream_of(rows: pa.RecordBatch) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_batch(rows)
    stream_bytes: bytes = out.getvalue().to_pybytes()
    return stream_bytes
