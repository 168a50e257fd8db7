"""Reads a batch: what is in the log between two positions, when the query is planned."""

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millrace.spark.errors import DataLossError, InvalidOptionError
from millrace.spark.filters import Wanted, narrow
from millrace.spark.guards import what_to_do
from millrace.spark.lookups import Lookups
from millrace.spark.option import Use
from millrace.spark.options import SourceOptions
from millrace.spark.planning import Range, plan_tasks
from millrace.spark.range_reader import Task, read_task

_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Plans in the driver, reads in executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._lookups = Lookups(options)
        self._wanted = Wanted()

    def partitions(self) -> list[InputPartition]:
        """Return what each task reads.

        Raises:
            InvalidOptionError: the options ask for what cannot be.
            DataLossError: they ask for records that are not in the log.
        """
        try:
            ranges, topic_ids = self._lookups.settle(self._ranges)
        finally:
            self._lookups.close()
        tasks = plan_tasks(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
            max_partitions=self._options.max_partitions,
        )
        return [InputPartition(Task(task, topic_ids)) for task in tasks]

    def _ranges(self) -> tuple[list[Range], dict[str, str]]:
        start_option, start_at = self._options.start(Use.BATCH)
        end_option, end_at = self._options.end()
        start = self._lookups.resolve(start_option, start_at, at_start=True)
        end = self._lookups.resolve(end_option, end_at, at_start=False)
        log = self._lookups.log(start.positions)
        ranges = []
        for (topic, partition), position in start.positions.items():
            first = log.beginnings[topic, partition]
            last = log.ends.positions[topic, partition].offset
            begin, stop = position.offset, end.positions[topic, partition].offset
            if begin > stop:
                raise InvalidOptionError(
                    f"{start_option} is {begin} in {topic}-{partition}, after {end_option} at "
                    f"{stop}"
                )
            if begin < first or stop > last:
                problem = (
                    f"{topic}-{partition} holds the offsets {first} to {last}, and {begin} to "
                    f"{stop} were asked for"
                )
                if self._options.fail_on_data_loss:
                    raise DataLossError(f"{problem}. {what_to_do(Use.BATCH, None)}")
                _log.warning("%s", problem)
            ranges.append(Range(topic, partition, max(begin, first), min(stop, last)))
        since = self._wanted.since_ms
        if since is not None:
            found = self._lookups.offsets({each.place: since for each in ranges})
            begins = {place: each.offset for place, each in found.items()}
        else:
            begins = {}
        return narrow(ranges, self._wanted, begins), dict(log.ends.topic_ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of a task."""
        if partition.value is None:  # Spark's, where there are no tasks.
            return iter(())
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return read_task(partition.value, self._options, schema)


class FilteringBatchReader(BatchReader):
    """The same with filters: another class, as Spark refuses it where they are switched off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # Spark's.
        """Take the filters that say what not to read; return those that Spark must apply."""
        return [each for each in filters if not self._wanted.take(each)]


def make_batch_reader(options: SourceOptions, schema: StructType) -> BatchReader:
    """Return the reader that the options ask for."""
    return (FilteringBatchReader if options.pushdown else BatchReader)(options, schema)
