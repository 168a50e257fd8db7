"""Values as columns, and back: plain functions from DataFrame to DataFrame.

    clicks = values.json_to_columns(stream, "page string, user long")
    values.columns_to_json(pages).write.format("millrace")...

Sources and sinks know bytes alone. JSON is Spark's own; values in Arrow's form (`arrow_values`) are
many rows each. All of it works in batches and in streams.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from millrace.spark.arrow_values import decode, encode
from millrace.spark.errors import InvalidColumnsError, InvalidOptionError

RECORD_COLUMNS: Final = (
    "key", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
)  # fmt: skip
"""What a record has beside its value: these stay columns."""

_BROKEN: Final = "_broken_json"
_PARSED: Final = "_parsed_json"
_SHOWN: Final = 80


def json_to_columns(
    frame: DataFrame, schema: StructType | str, *, strict: bool = True
) -> DataFrame:
    """Return `frame` with the fields of the JSON objects in `value` in place of `value`.

    Args:
        frame: with a column `value` (binary or string); its other columns stay.
        schema: the fields and their types. A field that an object lacks is null, and so are all
            fields where the value is null.
        strict: whether a value that is not such JSON fails the query, with an error that names the
            record; otherwise what cannot be parsed is null.

    Raises:
        InvalidColumnsError: a field has the name of another column.
    """
    fields, kept = _parts(frame, schema)
    text = F.col("value").cast("string")
    asked = StructType([*fields, StructField(_BROKEN, StringType())])
    parsed = F.from_json(text, asked, {"columnNameOfCorruptRecord": _BROKEN})
    staged = frame.select(*kept, text.alias("value"), parsed.alias(_PARSED))
    whole = F.col(_PARSED)
    if strict:
        told = F.concat(_place(kept), F.lit(" is not the JSON that was asked for: "), _beginning())
        # Of a value without anything in it Spark makes null, as of one that is null.
        is_empty = F.col("value").isNotNull() & whole.isNull()
        is_broken = is_empty | whole[_BROKEN].isNotNull()
        whole = F.when(is_broken, F.raise_error(told)).otherwise(whole)
    return staged.withColumn(_PARSED, whole).select(
        *kept, *(F.col(_PARSED)[field.name].alias(field.name) for field in fields)
    )


def columns_to_json(frame: DataFrame, columns: Iterable[str] | None = None) -> DataFrame:
    """Return `frame` with these columns as one column `value`: a JSON object in UTF-8.

    Args:
        columns: which go into the value; None: all but `RECORD_COLUMNS`. Fields that are null are
            left out of the object.

    Raises:
        InvalidColumnsError: there are none.
    """
    chosen = _chosen(frame, columns)
    kept = [name for name in frame.columns if name not in chosen]
    value = F.to_json(F.struct(*map(_column, chosen))).cast("binary")
    return frame.select(*map(_column, kept), value.alias("value"))


def arrow_to_columns(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """Return the rows in `value`, beside the other columns of their records.

    Each value is an Arrow IPC stream of any number of rows; a null value has none.

    Args:
        frame: with a column `value` (binary).
        schema: the columns of the rows; others in a value are left out. Types are cast where that
            loses nothing.

    Raises:
        InvalidColumnsError: one has the name of another column.
        InvalidValueError: when the query runs: a value is something else; names the record.
    """
    fields, kept = _parts(frame, schema)
    rows = to_arrow_schema(fields, timezone="UTC")

    def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from decode(batch, rows)

    return frame.select(*map(_column, kept), "value").mapInArrow(
        decoded, StructType([*(frame.schema[name] for name in kept), *fields])
    )


def columns_to_arrow(
    frame: DataFrame, columns: Iterable[str] | None = None, *, rows_per_record: int = 1000
) -> DataFrame:
    """Return records of many rows each: `columns` as an Arrow IPC stream in `value`.

    Rows share a record while they follow one another with the same key, topic and so on; so bring
    those together first, as with `sortWithinPartitions("key")`.

    Args:
        columns: which go into the value; None: all but `RECORD_COLUMNS`.
        rows_per_record: at the most, and not more than
            `spark.sql.execution.arrow.maxRecordsPerBatch`.

    Raises:
        InvalidColumnsError: there are none, or one that stays beside the value is nested.
    """
    if rows_per_record < 1:
        raise InvalidOptionError(f"rows_per_record={rows_per_record}: it is a number from 1")
    chosen = _chosen(frame, columns)
    kept = [name for name in frame.columns if name not in chosen]
    nested = [
        name
        for name in kept
        if isinstance(frame.schema[name].dataType, ArrayType | MapType | StructType)
    ]
    if nested:
        raise InvalidColumnsError(
            f"rows that share a record cannot keep {', '.join(nested)}: drop it, or name it among "
            "the columns of the value"
        )

    def encoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if len(batch):
                yield encode(batch, kept, rows_per_record)

    fields = [*(frame.schema[name] for name in kept), StructField("value", BinaryType())]
    return frame.select(*map(_column, [*kept, *chosen])).mapInArrow(encoded, StructType(fields))


def _parts(frame: DataFrame, schema: StructType | str) -> tuple[StructType, list[str]]:
    """Return the fields of the values, and the columns that stay."""
    fields = schema if isinstance(schema, StructType) else DataType.fromDDL(schema)
    if "value" not in frame.columns:
        raise InvalidColumnsError(f"there is no column value among {', '.join(frame.columns)}")
    kept = [name for name in frame.columns if name != "value"]
    if both := sorted(set(kept) & set(fields.names)):
        raise InvalidColumnsError(
            f"{', '.join(both)}: a field of the value and a column beside it have the same name: "
            "drop or rename the column first"
        )
    return fields, kept


def _chosen(frame: DataFrame, columns: Iterable[str] | None) -> list[str]:
    if columns is None:
        chosen = [name for name in frame.columns if name not in RECORD_COLUMNS]
    else:
        chosen = list(columns)
        if missing := sorted(set(chosen) - set(frame.columns)):
            raise InvalidColumnsError(
                f"there is no column {', '.join(missing)} among {', '.join(frame.columns)}"
            )
    if not chosen:
        raise InvalidColumnsError(
            f"there is nothing to make a value of: {', '.join(frame.columns)} belong to the record"
        )
    return chosen


def _column(name: str) -> F.Column:
    return F.col(f"`{name.replace('`', '``')}`")  # A name may hold dots.


def _place(kept: list[str]) -> F.Column:
    if not {"topic", "partition", "offset"} <= set(kept):
        return F.lit("the value of a record")
    return F.concat(
        F.lit("the value of the record at offset "), F.col("offset").cast("string"),
        F.lit(" of "), F.col("topic"), F.lit("-"), F.col("partition").cast("string"),
    )  # fmt: skip


def _beginning() -> F.Column:
    return F.substring(F.col("value"), 1, _SHOWN)
