"""The format `millrace`, which Spark finds by name.

Readers and sinks, and with them the client, gRPC and Arrow, are imported at their first use: each
driver imports this module when it looks up its first format of any name.
"""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from millrace.core.errors import MillraceError
from millrace.spark import events
from millrace.spark.errors import InvalidOptionError
from millrace.spark.options.option import Use
from millrace.spark.options.sink_options import parse_sink_options
from millrace.spark.options.source_options import SourceOptions, parse_options
from millrace.spark.source.planning import Extent
from millrace.spark.source.schema import check_schema, source_schema

_TABLE_PROPERTY: Final = "provider"
"""Properties that Spark adds to each created table; its options have the prefix `option.`."""

_NAMESPACE_VARIABLE: Final = "MILLRACE_NAMESPACE"

_log = logging.getLogger(__name__)


class MillraceDataSource(DataSource):
    """Reads and writes topics of a Millrace cluster; see docs/spark.md."""

    _extent: Extent | None = None
    """The records of a batch. Spark keeps this object, as of `schema`, for all its uses."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "millrace"

    def schema(self) -> StructType:
        """Return the columns, and fix the records of a batch: Spark calls it once, in `load()`.

        Raises:
            InvalidOptionError: with these options nothing can be read or written.
        """
        if _TABLE_PROPERTY in self.options:
            _check_table(self.options)
        elif (options := _options_of_batch(_given(self.options))) is not None:
            self._extent = _extent_now(options)
        return source_schema(with_headers=_wants_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises:
            InvalidOptionError: the options or the schema are not valid.
        """
        from millrace.spark.source.batch_reader import make_batch_reader

        options = parse_options(_given(self.options), Use.BATCH)
        check_schema(schema, with_headers=options.include_headers)
        return make_batch_reader(options, schema, self._extent)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # Spark's.
        """Return the reader of a stream; with invalid options or schema, one that raises the
        error."""
        from millrace.spark.source.stream_reader import RefusedStreamReader, StreamReader

        try:
            options = parse_options(_given(self.options), Use.STREAM)
            check_schema(schema, with_headers=options.include_headers)
        except InvalidOptionError as refusal:
            return RefusedStreamReader(refusal)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch.

        Raises:
            MillraceError: it cannot be written; see `make_batch_sink`.
        """
        from millrace.spark.sink.writer import make_batch_sink

        return make_batch_sink(_given(self.options), schema, overwrite=overwrite)

    def streamWriter(  # Spark's.
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream; in output mode complete, all rows in every micro-batch.

        Raises:
            InvalidOptionError, InvalidColumnsError: it cannot be written.
        """
        from millrace.spark.sink.writer import make_stream_sink

        return make_stream_sink(_given(self.options), schema)


def _given(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options, completed from the environment, which is always the driver's."""
    namespace = os.environ.get(_NAMESPACE_VARIABLE)
    return {"namespace": namespace, **options} if namespace else dict(options)


def _wants_headers(options: Mapping[str, str]) -> bool:
    # Called before it is known whether the query is a stream: the rest is parsed then.
    return str(options.get("includeheaders", "false")).lower() == "true"


def _check_table(properties: Mapping[str, str]) -> None:
    """Refuse options that the catalog keeps but passes to no query."""
    if any(name.startswith("option.") for name in properties):
        raise InvalidOptionError(
            "Spark keeps the OPTIONS of a table, and hands them to no query: create the table "
            "without, and give them with each query, as in SELECT * FROM t WITH "
            "('bootstrap.servers'='...', 'subscribe'='...'); or create a temporary view with them"
        )


def _options_of_batch(given: Mapping[str, str]) -> SourceOptions | None:
    """Return the options of a batch; None: they may be of a stream or a sink.

    Spark does not say yet which of them the query is, and each is told only what concerns it: what
    is wrong in a batch alone, `reader` refuses.

    Raises:
        InvalidOptionError: they are of none of them, for the same reason.
    """
    try:
        return parse_options(given, Use.BATCH)
    except InvalidOptionError as refusal:
        in_batch = refusal.message
    if in_batch == _refusal(lambda: parse_options(given, Use.STREAM)) and _refusal(
        lambda: parse_sink_options(given, Use.BATCH)
    ):
        raise InvalidOptionError(in_batch)
    return None


def _refusal(parse: Callable[[], object]) -> str:
    """Return why options are refused; empty: they are not."""
    try:
        parse()
    except InvalidOptionError as refusal:
        return refusal.message
    return ""


def _extent_now(options: SourceOptions) -> Extent | None:
    """Return the records of a batch; None: they cannot be looked up now.

    That is no error yet, as this may become a stream. In a batch, planning looks again, and raises.
    """
    from millrace.spark.cluster.lookups import Lookups
    from millrace.spark.source.batch_reader import find_extent

    lookups = Lookups(options)
    try:
        return find_extent(lookups, options)
    except MillraceError as error:
        events.LOOKUP_POSTPONED.log(_log, error=str(error))
        return None
    finally:
        lookups.close()
