"""The format `millrace`: what Spark asks for by name.

Readers, and with them the client, gRPC and Arrow, are imported when they are asked for: each driver
imports this module when it looks up its first format, whichever that is, and each query starts
processes that need no more than the schema.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from millrace.spark.option import Use
from millrace.spark.options import parse_options
from millrace.spark.schema import check_schema, source_schema


class MillraceDataSource(DataSource):
    """Reads topics of a Millrace cluster; see docs/spark.md."""

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


def _wants_headers(options: dict[str, str]) -> bool:
    # Asked before it is known whether the query is a stream: the rest is parsed then.
    return str(options.get("includeheaders", "false")).lower() == "true"
