"""The columns of the source: Kafka's, with its names, types and order."""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.spark.errors import InvalidOptionError

_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS: Final = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)


def source_schema(*, with_headers: bool) -> StructType:
    """Return the columns that the source has."""
    return StructType([*_COLUMNS, *([_HEADERS] if with_headers else ())])


def check_schema(schema: StructType, *, with_headers: bool) -> None:
    """Refuse a schema of the user's own.

    Raises:
        InvalidOptionError: it is not the source's.
    """
    own = source_schema(with_headers=with_headers)
    if schema != own:
        raise InvalidOptionError(
            f"the columns of a topic are always {own.simpleString()}, not "
            f"{schema.simpleString()}: leave .schema(...) out, and make columns of the value "
            "afterwards"
        )
