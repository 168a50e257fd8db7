"""The sink: rows of a batch or a stream become records, exactly once, or at least once.

Exactly once, each micro-batch and each batch is a transaction: see `transactions`. With
`delivery=at-least-once` rows are readable when they are acknowledged. Spark repeats failed tasks,
and a micro-batch that was not committed; their rows stay and are written again. There is nothing to
do in `commit` then, and nothing to undo in `abort`.

The driver creates the writer of a stream for every micro-batch, and once more to commit: so only
tasks ask brokers, and the commit. A batch asks before its first task, and opens its transaction.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from millrace.client import (
    SharedTransaction,
    SyncAdmin,
    SyncProducer,
    UnknownTopicOrPartitionError,
)
from millrace.spark import events
from millrace.spark.cluster.lookups import CLIENT_ID
from millrace.spark.cluster.worker_clients import IdleClient
from millrace.spark.errors import InvalidOptionError
from millrace.spark.options.option import CredentialFiles, Use, credential_files
from millrace.spark.options.sink_options import SinkOptions, parse_sink_options
from millrace.spark.sink import transactions
from millrace.spark.sink.rows import check_columns
from millrace.spark.sink.transactions import Written
from millrace.spark.sink.writing import Writing, no_topic, with_rows

_BATCH: Final = "the batch"
_CHECKPOINT: Final = "checkpointlocation"

_log = logging.getLogger(__name__)
_log.setLevel(logging.INFO)  # Of processes of Spark's alone, which can show it in a table.


class _Committed(NamedTuple):
    rows: int
    bytes: int
    ms: int
    commit_ms: int


class _Sink:
    """The tasks of a query that writes, which are the same in batches and streams."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task; on an executor.

        Raises:
            MillraceError: a row was not written; the message names it.
        """
        began_at = time.time()
        shared = self._transaction()
        if shared is not None and shared.is_done:
            return Written(0, 0, began_at, shared)
        with self._kept_open(shared):
            rows = with_rows(iterator)
        if rows is None:
            return Written(0, 0, began_at, shared)
        # A version is written once, and the producer is kept for the next transaction.
        options = replace(self._options, txn_app_id=None, txn_version=None)
        kind = _ProducerKind(options, is_transactional=shared is not None)
        with _idle_producer.lent(kind) as producer:
            written = Writing(producer, self._options, shared).write(rows)
        return Written(written.rows, written.bytes, began_at, shared, written.participant)

    def _kept_open(self, shared: SharedTransaction | None) -> AbstractContextManager[None]:
        """Keep a transaction open while the task waits for its first row."""
        if shared is None:
            return nullcontext()
        return transactions.kept_open(shared, lambda: _open_admin(_admin_kind(self._options)))

    def _transaction(self) -> SharedTransaction | None:
        """Return the transaction that has the rows; None: none, they count at once."""
        raise NotImplementedError

    def _commit(
        self, write: str, shared: SharedTransaction | None, messages: Sequence[Written | None]
    ) -> _Committed | None:
        """Commit; return what is to tell of it, or None: it was done before.

        Args:
            write: which one, for a person.
            shared: the transaction; None: the rows count already.
            messages: of the tasks.
        """
        begun = time.monotonic()
        if shared is not None:
            if shared.is_done:
                events.WRITE_SKIPPED.log(_log, write=write, application=shared.transactional_id)
                return None
            with _admin(self._options) as admin:
                transactions.commit(admin, shared, messages)
        told = [message for message in messages if message is not None]
        now = time.time()
        return _Committed(
            sum(message.rows for message in told),
            sum(message.bytes for message in told),
            max(0, round((now - min((each.began_at for each in told), default=now)) * 1000)),
            round((time.monotonic() - begun) * 1000),
        )

    def _abort(
        self, write: str, shared: set[SharedTransaction], messages: Sequence[Written | None]
    ) -> None:
        if not shared:
            events.ABORT_LEFT.log(_log, write=write)
            return
        with _admin(self._options) as admin:
            failure = transactions.abort(admin, {each for each in shared if not each.is_done})
        if failure is None:
            events.WRITE_UNDONE.log(_log, write=write, rows=_rows(messages))
        else:
            events.ABORT_FAILED.log(_log, write=write, error=str(failure))


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes a batch.

    Args:
        options: of the query.
        shared: its transaction; None: it is at least once, or has a version, and tasks open it.
    """

    def __init__(self, options: SinkOptions, shared: SharedTransaction | None) -> None:
        super().__init__(options)
        self._shared = shared
        self._run_id = transactions.new_run_id()

    def _transaction(self) -> SharedTransaction | None:
        if self._shared is not None or not self._options.is_exactly_once:
            return self._shared
        with _admin(self._options) as admin:
            return transactions.open_for_version(admin, self._options, self._run_id)

    def commit(self, messages: Sequence[Written | None]) -> None:
        """Commit the transaction, and log the written rows; a query that follows reads them.

        Raises:
            MillraceError: nothing counts, or that is in doubt.
        """
        shared = None
        if self._options.is_exactly_once:
            shared = transactions.transaction_of(messages)
        if told := self._commit(_BATCH, shared, messages):
            events.ROWS_WRITTEN.log(
                _log, rows=told.rows, bytes=told.bytes, ms=told.ms, commit_ms=told.commit_ms
            )
        if shared is not None:
            with _admin(self._options) as admin:
                limit_s = self._options.request_timeout_ms / 1000
                if why := transactions.wait_until_over(admin, shared, limit_s):
                    events.COMMIT_UNSEEN.log(_log, error=why)

    def abort(self, messages: Sequence[Written | None]) -> None:
        """Abort the transaction; log the rows that stay of a failed batch without one."""
        if not self._options.is_exactly_once:
            events.ROWS_STAY.log(_log, rows=_rows(messages))
            return
        known = set() if self._shared is None else {self._shared}
        self._abort(_BATCH, known | _named(messages), messages)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream.

    Args:
        options: of the query.
        checkpoint: where it keeps how far it is; empty: Spark's configuration says it.
    """

    def __init__(self, options: SinkOptions, checkpoint: str) -> None:
        super().__init__(options)
        self._checkpoint = checkpoint

    def _transaction(self) -> SharedTransaction | None:
        if not self._options.is_exactly_once:
            return None
        with _admin(self._options) as admin:
            return transactions.open_for_micro_batch(admin, self._options, self._checkpoint)

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # Spark's.
        """Commit the transaction that the tasks have named, and log the written rows.

        Raises:
            MillraceError: nothing counts, or that is in doubt.
        """
        shared = None
        if self._options.is_exactly_once:
            shared = transactions.transaction_of(messages)
        if told := self._commit(f"micro-batch {batchId}", shared, messages):
            events.BATCH_ROWS_WRITTEN.log(
                _log,
                batch=batchId,
                rows=told.rows,
                bytes=told.bytes,
                ms=told.ms,
                commit_ms=told.commit_ms,
            )

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:  # Spark's.
        """Abort the transaction, if a task has named it; log rows that stay without one."""
        if not self._options.is_exactly_once:
            events.BATCH_ROWS_STAY.log(_log, batch=batchId, rows=_rows(messages))
            return
        self._abort(f"micro-batch {batchId}", _named(messages), messages)


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
    with _admin(options) as admin:
        if options.topic is None:
            admin.describe_cluster()
        else:
            try:
                admin.describe_topic(options.topic)
            except UnknownTopicOrPartitionError as error:
                raise no_topic(options.topic, error) from error
        shared = None
        if options.is_exactly_once and options.txn_app_id is None:
            shared = transactions.open_for_batch(admin, options)
    return BatchSink(options, shared)


class _AdminKind(NamedTuple):
    bootstrap: str
    request_timeout_ms: int
    credentials: CredentialFiles


def _open_admin(kind: _AdminKind) -> SyncAdmin:
    return SyncAdmin(
        kind.bootstrap,
        client_id=CLIENT_ID,
        request_timeout_ms=kind.request_timeout_ms,
        **kind.credentials._asdict(),
    )


_idle_admin: Final = IdleClient(_open_admin)


def _admin(options: SinkOptions) -> AbstractContextManager[SyncAdmin]:
    return _idle_admin.lent(_admin_kind(options))


def _admin_kind(options: SinkOptions) -> _AdminKind:
    return _AdminKind(
        options.bootstrap_servers, options.request_timeout_ms, credential_files(options)
    )


def make_stream_sink(given: dict[str, str], schema: StructType) -> StreamSink:
    """Return the writer of a stream.

    Raises:
        InvalidOptionError: the options are not valid.
        InvalidColumnsError: the columns cannot be written.
    """
    options = parse_sink_options(given, Use.STREAM)
    _check_columns(schema, options)
    checkpoint = next((text for name, text in given.items() if name.lower() == _CHECKPOINT), "")
    return StreamSink(options, checkpoint)


def _check_columns(schema: StructType, options: SinkOptions) -> None:
    check_columns([(field.name, field.dataType.simpleString()) for field in schema], options.topic)


def _named(messages: Sequence[Written | None]) -> set[SharedTransaction]:
    """Return the transactions that tasks have named."""
    return {message.shared for message in messages if message and message.shared}


def _rows(messages: Sequence[Written | None]) -> int:
    return sum(message.rows for message in messages if message is not None)


# On executors.


class _ProducerKind(NamedTuple):
    options: SinkOptions
    is_transactional: bool


def open_producer(options: SinkOptions, *, is_transactional: bool = False) -> SyncProducer:
    """Return a producer for the tasks of a query; it has no transactions of its own."""
    return SyncProducer(
        options.bootstrap_servers,
        client_id=CLIENT_ID,
        transactional_id=CLIENT_ID if is_transactional else "",
        linger_ms=options.linger_ms,
        batch_size=options.batch_bytes,
        buffer_memory=options.buffer_bytes,
        max_block_ms=options.delivery_timeout_ms,
        delivery_timeout_ms=options.delivery_timeout_ms,
        request_timeout_ms=options.request_timeout_ms,
        compression=options.compression,
        tracing=options.tracing,
        partitioner="round_robin" if options.partitioner == "round_robin" else "keyed",
        **credential_files(options)._asdict(),
    )


def _open_producer(kind: _ProducerKind) -> SyncProducer:
    return open_producer(kind.options, is_transactional=kind.is_transactional)


_idle_producer: Final = IdleClient(_open_producer)
