"""What one task writes: its rows become records, and the transaction has them.

A task passes its Arrow batches to a producer and ends when all in-sync replicas have acknowledged
all its rows. Columns are passed on unchanged: Python touches no row. The producer's buffer bounds
the rows under way, and twice its size the rows held to name them in errors; when either is full,
the task waits, and Spark with it.

A task without rows takes no part in a transaction: after a shuffle of few rows many have none. The
producer is kept for the next task, and meanwhile keeps the transaction open that it has left.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from millrace.client import (
    AbortedError,
    BatchHandle,
    ConnectionFailedError,
    MillraceError,
    Participant,
    SharedTransaction,
    SyncProducer,
    UnknownTopicOrPartitionError,
)
from millrace.spark.options.sink_options import SinkOptions
from millrace.spark.sink.rows import Part, RowsOfTask, not_taken, not_written

_HELD_BUFFERS: Final = 2
"""Sent rows that a task holds, in `bufferBytes`: not all are under way."""
_PAUSE_S: Final = 0.05
_OUTCOMES_S: Final = 5.0
"""How long a task that fails waits for the row with which that began."""
_NEW_TOPIC_S: Final = 1.0
"""How long a topic may be unknown: a broker may know a new one later than its creator."""


class WrittenRows(NamedTuple):
    """What a task has written.

    Attributes:
        rows: how many.
        bytes: of their columns in Arrow.
        participant: as which it has taken part in the transaction, if it has.
    """

    rows: int
    bytes: int
    participant: Participant | None = None


def with_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """Return the batches from the first one with rows; None: there are no rows."""
    for batch in batches:
        if len(batch):
            return chain((batch,), batches)
    return None


class Writing:
    """One task under way.

    Args:
        producer: which writes.
        options: of the query.
        shared: the transaction that has the rows; None: they count at once.
    """

    def __init__(
        self, producer: SyncProducer, options: SinkOptions, shared: SharedTransaction | None = None
    ) -> None:
        self._producer = producer
        self._options = options
        self._shared = shared
        self._partition_counts: dict[str, int] = {}
        self._under_way: deque[tuple[BatchHandle, Part]] = deque()
        self._held_bytes = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> WrittenRows:
        """Write all rows.

        Raises:
            MillraceError: a row was not written; the message names it.
        """
        if self._shared is not None:
            self._producer.join_transaction(self._shared)
        context = TaskContext.get()
        task = "a task" if context is None else f"task {context.partitionId()}"
        options = self._options
        rows = RowsOfTask(options.topic, options.namespace, task, options.buffer_bytes)
        written_bytes = 0
        for batch in batches:
            parts = rows.parts(batch, time.time_ns() // 1_000_000)
            for part in parts:
                self._check(part)
            for part in parts:
                self._under_way.append((self._send(part), part))
                self._held_bytes += part.records.nbytes
                written_bytes += part.records.nbytes
            self._settle(is_end=False)
        with suppress(MillraceError):  # The handles report it, with the rows.
            self._producer.flush()
        self._settle(is_end=True)
        participant = None if self._shared is None else self._producer.leave_transaction()
        return WrittenRows(rows.count, written_bytes, participant)

    def _send(self, part: Part) -> BatchHandle:
        """Hand rows to the producer.

        Raises:
            MillraceError: one was not written; of a transaction it may be an earlier one, after
                which the producer takes no more.
        """
        try:
            return self._producer.send_batch(part.topic, part.records)
        except MillraceError as error:
            told = self._await_began()
            raise told or not_taken(part, error, is_undone=self._shared is not None) from error

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
                    raise no_topic(part.topic, error, part.name_row(0)) from error
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
                raise self._failure(handle, part) from error

    def _failure(self, failed: BatchHandle, part: Part) -> MillraceError:
        """Return the error of the row with which it began: a transaction has all others fail."""
        self._under_way.appendleft((failed, part))
        return self._began() or not_written(
            part, failed.errors(), is_undone=self._shared is not None
        )

    def _await_began(self) -> MillraceError | None:
        """Return what `_began` does, after waiting shortly for what is under way."""
        until = time.monotonic() + _OUTCOMES_S
        while True:
            told = self._began()
            is_over = all(handle.done() for handle, _ in self._under_way)
            if told is not None or is_over or time.monotonic() > until:
                return told
            time.sleep(_PAUSE_S)

    def _began(self) -> MillraceError | None:
        """Return the error of the first row that failed by itself; None: there is none so far."""
        for handle, part in self._under_way:
            errors = handle.errors() if handle.done() else {}
            began = {row: error for row, error in errors.items() if type(error) is not AbortedError}
            if began:
                return not_written(part, began, is_undone=self._shared is not None)
        return None


def no_topic(
    topic: str, error: UnknownTopicOrPartitionError, row: str = ""
) -> UnknownTopicOrPartitionError:
    """Return the error of a topic that does not exist, for a row if it is named."""
    of_row = f" ({row})" if row else ""
    return UnknownTopicOrPartitionError(
        f"there is no topic {topic!r}{of_row}: create it (millrace topic create {topic}), or "
        "correct the name. Nothing was sent to it",
        appended=error.appended,
    )
