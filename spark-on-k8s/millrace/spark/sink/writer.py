"""The sink: rows of a batch or a stream become records, at least once.

A task passes its Arrow batches to a producer and ends when all in-sync replicas have acknowledged
all its rows. Columns are passed on unchanged: Python touches no row. The producer's buffer bounds
the rows under way, and twice its size the rows held to name them in errors; when either is full,
the task waits, and Spark with it.

Spark repeats failed tasks, and a micro-batch that was not committed; their rows stay and are
written again. An exactly-once sink would stage rows in `write`, invisible to readers, list them in
its `Written`, and publish them in `commit`. Here there is nothing to do in `commit`, and nothing to
undo in `abort`.

The driver creates the writer of a stream for every micro-batch, and once more to commit: so only
tasks ask brokers. A batch asks before its first task.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millrace.client import (
    BatchHandle,
    ConnectionFailedError,
    MillraceError,
    SyncAdmin,
    SyncProducer,
    UnknownTopicOrPartitionError,
)
from millrace.spark import events
from millrace.spark.cluster.lookups import CLIENT_ID
from millrace.spark.cluster.worker_clients import IdleClient
from millrace.spark.errors import InvalidOptionError
from millrace.spark.options.option import Use
from millrace.spark.options.sink_options import SinkOptions, parse_sink_options
from millrace.spark.sink.rows import Part, RowsOfTask, check_columns, not_written

_HELD_BUFFERS: Final = 2
"""Sent rows that a task holds, in `bufferBytes`: not all are under way."""
_PAUSE_S: Final = 0.05
_NEW_TOPIC_S: Final = 1.0
"""How long a topic may be unknown: a broker may know a new one later than its creator."""

_log = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """A task's message to the driver."""

    rows: int


class _Sink:
    """The tasks of a query that writes, which are the same in batches and streams."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task; on an executor.

        Raises:
            MillraceError: a row was not written; the message names it.
        """
        with _idle_producer.lent(self._options) as producer:
            return Written(_Writing(producer, self._options).write(iterator))


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes a batch."""

    def commit(self, messages: Sequence[Written | None]) -> None:
        """Log the written rows: they are readable since they were acknowledged."""
        events.ROWS_WRITTEN.log(_log, rows=_rows(messages))

    def abort(self, messages: Sequence[Written | None]) -> None:
        """Log the rows that stay of a failed batch."""
        events.ROWS_STAY.log(_log, rows=_rows(messages))


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # Spark's.
        """Log the written rows: they are readable since they were acknowledged."""
        events.BATCH_ROWS_WRITTEN.log(_log, batch=batchId, rows=_rows(messages))

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # Spark's.
        """Log the rows that stay of a failed micro-batch."""
        events.BATCH_ROWS_STAY.log(_log, batch=batchId, rows=_rows(messages))


def make_batch_sink(given: dict[str, str], schema: StructType, *, overwrite: bool) -> BatchSink:
    """Return the writer of a batch, after checking that it can be written.

    Raises:
        InvalidOptionError: the options are not valid.
        InvalidColumnsError: the columns cannot be written.
        UnknownTopicOrPartitionError: there is no such topic.
        ConnectionFailedError: no broker answers.
    """
    if overwrite:
        raise InvalidOptionError(
            "a log cannot be overwritten: write with mode('append'), and delete the topic where "
            "its records are to go"
        )
    options = parse_sink_options(given, Use.BATCH)
    _check_columns(schema, options)
    with _idle_admin.lent((options.bootstrap_servers, options.request_timeout_ms)) as admin:
        if options.topic is None:
            admin.describe_cluster()
        else:
            try:
                admin.describe_topic(options.topic)
            except UnknownTopicOrPartitionError as error:
                raise _no_topic(options.topic, error) from error
    return BatchSink(options)


def _open_admin(kind: tuple[str, int]) -> SyncAdmin:
    bootstrap, request_timeout_ms = kind
    return SyncAdmin(bootstrap, client_id=CLIENT_ID, request_timeout_ms=request_timeout_ms)


_idle_admin: Final = IdleClient(_open_admin)


def make_stream_sink(given: dict[str, str], schema: StructType) -> StreamSink:
    """Return the writer of a stream.

    Raises:
        InvalidOptionError: the options are not valid.
        InvalidColumnsError: the columns cannot be written.
    """
    options = parse_sink_options(given, Use.STREAM)
    _check_columns(schema, options)
    return StreamSink(options)


def _check_columns(schema: StructType, options: SinkOptions) -> None:
    check_columns({field.name: field.dataType.simpleString() for field in schema}, options.topic)


def _rows(messages: Sequence[Written | None]) -> int:
    return sum(message.rows for message in messages if message is not None)


# On executors.


class _Writing:
    """One task under way."""

    def __init__(self, producer: SyncProducer, options: SinkOptions) -> None:
        self._producer = producer
        self._options = options
        self._partition_counts: dict[str, int] = {}
        self._under_way: deque[tuple[BatchHandle, Part]] = deque()
        self._held_bytes = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Write all rows; return how many they are."""
        context = TaskContext.get()
        task = "a task" if context is None else f"task {context.partitionId()}"
        options = self._options
        rows = RowsOfTask(options.topic, options.namespace, task, options.buffer_bytes)
        for batch in batches:
            parts = rows.parts(batch, time.time_ns() // 1_000_000)
            for part in parts:
                self._check(part)
            for part in parts:
                handle = self._producer.send_batch(part.topic, part.records)
                self._under_way.append((handle, part))
                self._held_bytes += part.records.nbytes
            self._settle(is_end=False)
        with suppress(MillraceError):  # The handles report it, with the rows.
            self._producer.flush()
        self._settle(is_end=True)
        return rows.count

    def _check(self, part: Part) -> None:
        """Refuse rows for a topic or partition that does not exist, before they are sent."""
        if part.topic not in self._partition_counts:
            self._partition_counts[part.topic] = self._partition_count(part)
        part.check_partitions(self._partition_counts[part.topic])

    def _partition_count(self, part: Part) -> int:
        begun_at = time.monotonic()
        while True:
            waited_s = time.monotonic() - begun_at
            try:
                return len(self._producer.partitions_for(part.topic))
            except UnknownTopicOrPartitionError as error:
                if waited_s > _NEW_TOPIC_S:
                    raise _no_topic(part.topic, error, part.name_row(0)) from error
            except ConnectionFailedError:
                if waited_s * 1000 > self._options.request_timeout_ms:
                    raise
            time.sleep(_PAUSE_S)

    def _settle(self, *, is_end: bool) -> None:
        """Release acknowledged rows, in their order; at the end, wait for all.

        Also wait if rows wait for a leader and too many later ones are acknowledged: the producer's
        buffer has room then, and the held rows would have no bound.

        Raises:
            MillraceError: a row was not written.
        """
        held_max = _HELD_BUFFERS * self._options.buffer_bytes
        while self._under_way and (
            is_end or self._held_bytes > held_max or self._under_way[0][0].done()
        ):
            handle, part = self._under_way.popleft()
            self._held_bytes -= part.records.nbytes
            try:
                handle.result()
            except MillraceError as error:
                raise not_written(part, handle.errors()) from error


def _no_topic(
    topic: str, error: UnknownTopicOrPartitionError, row: str = ""
) -> UnknownTopicOrPartitionError:
    of_row = f" ({row})" if row else ""
    return UnknownTopicOrPartitionError(
        f"there is no topic {topic!r}{of_row}: create it (millrace topic create {topic}), or "
        "correct the name. Nothing was sent to it",
        appended=error.appended,
    )


def _open_producer(options: SinkOptions) -> SyncProducer:
    return SyncProducer(
        options.bootstrap_servers,
        client_id=CLIENT_ID,
        linger_ms=options.linger_ms,
        batch_size=options.batch_bytes,
        buffer_memory=options.buffer_bytes,
        max_block_ms=options.delivery_timeout_ms,
        delivery_timeout_ms=options.delivery_timeout_ms,
        request_timeout_ms=options.request_timeout_ms,
        compression=options.compression,
        tracing=options.tracing,
        partitioner="round_robin" if options.partitioner == "round_robin" else "keyed",
    )


_idle_producer: Final = IdleClient(_open_producer)
