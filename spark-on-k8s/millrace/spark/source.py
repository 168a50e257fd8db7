"""The format `millrace`: what Spark asks for by name.

Readers and sinks, and with them the client, gRPC and Arrow, are imported when they are asked for:
each driver imports this module when it looks up its first format, whichever that is, and each query
starts processes that need no more than the schema.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from millrace.spark.option import Use
from millrace.spark.options import parse_options
from millrace.spark.schema import check_schema, source_schema


class MillraceDataSource(DataSource):
    """Reads and writes topics of a Millrace cluster; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """Return what `format(...)` is given."""
        return "millrace"

    def schema(self) -> StructType:
        """Return the columns: they depend on one option alone."""
        return source_schema(with_headers=_wants_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch.

        Raises:
            InvalidOptionError: the options or the schema cannot be.
        """
        from millrace.spark.batch_reader import make_batch_reader

        options = parse_options(self.options, Use.BATCH)
        check_schema(schema, with_headers=options.include_headers)
        return make_batch_reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # Spark's.
        """Return what reads a stream.

        Raises:
            InvalidOptionError: the options or the schema cannot be.
        """
        from millrace.spark.stream_reader import StreamReader

        options = parse_options(self.options, Use.STREAM)
        check_schema(schema, with_headers=options.include_headers)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return what writes a batch.

        Raises:
            MillraceError: it cannot be written; see `make_batch_sink`.
        """
        from millrace.spark.sink import make_batch_sink

        return make_batch_sink(self.options, schema, overwrite=overwrite)

    def streamWriter(  # Spark's.
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return what writes a stream; in output mode complete, all rows in every micro-batch.

        Raises:
            InvalidOptionError, InvalidColumnsError: it cannot be written.
        """
        from millrace.spark.sink import make_stream_sink

        return make_stream_sink(self.options, schema)


def _wants_headers(options: dict[str, str]) -> bool:
    # Asked before it is known whether the query is a stream: the rest is parsed then.
    return str(options.get("includeheaders", "false")).lower() == "true"
