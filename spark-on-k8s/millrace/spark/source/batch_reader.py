"""Reads a batch: the records between two positions, looked up once.

Spark plans a DataFrame once for all its uses, or again for some of them. So the positions are
looked up before that, when it is loaded: all uses read the same records, even if others are written
later.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millrace.client import UnknownTopicOrPartitionError
from millrace.core.topics import PartitionName
from millrace.spark import events
from millrace.spark.cluster.lookups import Lookups
from millrace.spark.errors import DataLossError, InvalidOptionError
from millrace.spark.options.option import Use
from millrace.spark.options.source_options import SourceOptions
from millrace.spark.source.data_loss import NOTHING_SKIPPED
from millrace.spark.source.filters import Wanted, narrow
from millrace.spark.source.planning import Extent, Range, plan_tasks
from millrace.spark.source.range_reader import Task, read_task

_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Plans in the driver, reads in executors.

    Args:
        schema: the columns that Spark wants.
        extent: the records to read; None: looked up when the query is planned.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, extent: Extent | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._extent = extent
        self._lookups = Lookups(options)
        self._wanted = Wanted()

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of each task.

        Raises:
            InvalidOptionError: the options cannot be satisfied.
            DataLossError: they ask for records that are not in the log.
        """
        try:
            extent = self._extent or find_extent(self._lookups, self._options)
            ranges = narrow(extent.ranges, self._wanted, self._begins(extent))
        finally:
            self._lookups.close()
        tasks = plan_tasks(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
            max_partitions=self._options.max_partitions,
        )
        return [InputPartition(Task(task, extent.topic_ids)) for task in tasks]

    def _begins(self, extent: Extent) -> Mapping[PartitionName, int]:
        """Return the offsets of the first records that may be late enough for the filters."""
        since = self._wanted.since_ms
        if since is None:
            return {}
        try:
            found = self._lookups.offsets({part.place: since for part in extent.ranges})
        except UnknownTopicOrPartitionError:  # It is gone; tasks decide whether that is a loss.
            return {}
        return {place: position.offset for place, position in found.items()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of a task."""
        if partition.value is None:  # Spark's own, if there are no tasks.
            return iter(())
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return read_task(partition.value, self._options, schema)


class FilteringBatchReader(BatchReader):
    """The same with filters: another class, as Spark refuses it when they are switched off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # Spark's.
        """Take the filters that reduce the reads; return those that Spark must apply."""
        return [pushed for pushed in filters if not self._wanted.take(pushed)]


def make_batch_reader(
    options: SourceOptions, schema: StructType, extent: Extent | None
) -> BatchReader:
    """Return the reader that the options ask for; its arguments as of `BatchReader`."""
    kind = FilteringBatchReader if options.filter_pushdown else BatchReader
    return kind(options, schema, extent)


def find_extent(lookups: Lookups, options: SourceOptions) -> Extent:
    """Look up the records that a batch reads, as of now.

    Raises:
        InvalidOptionError: the options cannot be satisfied.
        DataLossError: they ask for records that are not in the log.
        UnknownTopicOrPartitionError: one that is named does not exist.
        ConnectionFailedError: no broker could be reached for `requestTimeoutMs`.
    """
    return lookups.settle(lambda: _find_extent(lookups, options))


def _find_extent(lookups: Lookups, options: SourceOptions) -> Extent:
    start_option, start_at = options.start(Use.BATCH)
    end_option, end_at = options.end()
    start = lookups.resolve(start_option, start_at, at_start=True)
    end = lookups.resolve(end_option, end_at, at_start=False)
    log = lookups.log(start.positions)
    ranges = []
    for (topic, partition), position in start.positions.items():
        first = log.beginnings[topic, partition]
        last = log.ends.positions[topic, partition].offset
        begin, stop = position.offset, end.positions[topic, partition].offset
        if begin > stop:
            is_log_end = end_at.everywhere == "latest"
            ends = f"the log ends at {stop}" if is_log_end else f"{end_option} is {stop}"
            raise InvalidOptionError(
                f"{start_option} is {begin} in {topic}-{partition}, and {ends}: nothing is between "
                "them"
            )
        if begin < first or stop > last:
            problem = (
                f"{topic}-{partition} holds the offsets {first} to {last}, and {begin} to {stop} "
                "were asked for"
            )
            if options.fail_on_data_loss:
                raise DataLossError(f"{problem}. {NOTHING_SKIPPED}")
            events.RANGE_SHORTENED.log(_log, problem=problem)
        ranges.append(Range(topic, partition, max(begin, first), min(stop, last)))
    return Extent(tuple(ranges), dict(log.ends.topic_ids))
