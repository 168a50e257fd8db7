"""The work of a task: ranges of partitions as Arrow batches with Spark's columns.

On executors. From the broker's bytes to Spark's Arrow, Python touches no record. Keys, values and
offsets are Arrow's views of the received bytes; times are multiplied, topics and partitions
repeated, and headers get Spark's names. Only small batches are copied to join them.

The consumer reads ahead in a thread of its own, `fetchMaxBytes` from each broker at the most, and
follows leaders that move. Worker processes outlive a task: its consumer is kept for the next.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.client import (
    FetchedRecords,
    LogTruncatedError,
    MillraceError,
    OffsetOutOfRangeError,
    SyncConsumer,
    UnknownTopicOrPartitionError,
)
from millrace.core.isolation import Isolation
from millrace.core.topics import PartitionName
from millrace.spark import events
from millrace.spark.cluster.lookups import CLIENT_ID, Lookups, until_answered
from millrace.spark.cluster.offsets import Log, LogPosition, Offsets
from millrace.spark.cluster.worker_clients import IdleClient
from millrace.spark.errors import ReadStalledError
from millrace.spark.options.option import CredentialFiles, Use, credential_files
from millrace.spark.options.source_options import SourceOptions
from millrace.spark.source.data_loss import Loss, losses, raise_for, told, what_to_do
from millrace.spark.source.planning import Range

_POLL_MS: Final = 100
_REFUSED_PAUSE_S: Final = 0.1
"""Pause before refused partitions that exist are assigned again."""
_SMALL_BYTES: Final = 256 * 1024
"""Smaller batches are joined: the copy costs less than another batch in Spark."""
_CREATE_TIME: Final = 0
_LOG_APPEND_TIME: Final = 1
"""Values of `timestampType`: the times are the producer's, or the leader's."""
_TIMESTAMPS: Final = pa.timestamp("us", "UTC")
_RACK_VARIABLE: Final = "MILLRACE_CLIENT_RACK"

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Task:
    """The ranges of one task; it travels to the executor."""

    ranges: tuple[Range, ...]
    topic_ids: Mapping[str, str]
    use: Use = Use.BATCH
    """The kind of query."""


def read_task(task: Task, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the records of a task, in batches of Spark's columns.

    Raises:
        DataLossError: records are gone, and with `failOnDataLoss` that is a failure.
        ReadStalledError: nothing came for `pollTimeoutMs`.
        MillraceError: any other error of the client, such as for a damaged batch; also refusals for
            that long though no record is gone.
    """
    kind = _ConsumerKind.of(options)
    with _idle.lent(kind) as consumer:
        yield from _Reading(task, options, schema, consumer).batches()
        consumer.assign([])


class Received(NamedTuple):
    """Records of one batch of the log."""

    place: PartitionName
    records: pa.RecordBatch
    has_append_time: bool


class _Reading:
    """One task under way.

    A refusal alone is no loss: the broker may lag behind the others. So all brokers are asked, and
    while the ranges exist by the newest metadata, they are assigned again.
    """

    def __init__(
        self, task: Task, options: SourceOptions, schema: pa.Schema, consumer: SyncConsumer
    ) -> None:
        self._options = options
        self._topic_ids = task.topic_ids
        self._use = task.use
        self._consumer = consumer
        self._is_assigned = False
        self._refusal: MillraceError | None = None
        """The refusal while the ranges exist by all brokers; None once records came again."""
        self._columns = SparkColumns(schema, options.batch_rows)
        self._next = {part.place: part.start for part in task.ranges if part.size > 0}
        self._ends = {part.place: part.end for part in task.ranges}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the records, until every range is read to its end."""
        heard_at = time.monotonic()
        while self._next:
            before = dict(self._next)
            yield from self._columns.joined(self._poll())
            if self._next != before:
                heard_at = time.monotonic()  # Not the time that Spark took.
            elif (time.monotonic() - heard_at) * 1000 > self._options.poll_timeout_ms:
                raise self._refusal or ReadStalledError(
                    f"nothing was read for pollTimeoutMs={self._options.poll_timeout_ms} at "
                    f"{_listed(self._next)}, and the ranges end at {_listed(self._ends)}: are "
                    "their leaders there (millrace cluster health), and is no transaction open?"
                )

    def _poll(self) -> list[Received]:
        try:
            if not self._is_assigned:
                self._assign()
            fetched = self._consumer.poll_batches(_POLL_MS, self._options.fetch_max_bytes)
            if not fetched:
                self._check_assignment()
        except (LogTruncatedError, OffsetOutOfRangeError, UnknownTopicOrPartitionError) as refusal:
            self._on_refusal(refusal)
            return []
        self._refusal = None
        if not fetched:
            self._skip_gaps()
        return [kept for batch in fetched if (kept := self._keep(batch)) is not None]

    def _assign(self) -> None:
        ends = {place: self._ends[place] for place in self._next}
        until_answered(
            lambda: self._consumer.assign(self._next, ends=ends),
            self._options.request_timeout_ms,
        )
        for topic, topic_id in self._consumer.topic_ids().items():
            wanted = self._topic_ids.get(topic, topic_id.hex())
            if topic_id.hex() != wanted:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic!r} has the id {topic_id.hex()}, and the records to be read are "
                    f"of the one with the id {wanted}"
                )
        self._is_assigned = True

    def _check_assignment(self) -> None:
        """Notice partitions of topics that are gone: the consumer leaves them and reads the others.

        Raises:
            UnknownTopicOrPartitionError: there are some.
        """
        if left := sorted(self._next.keys() - set(self._consumer.assignment())):
            raise UnknownTopicOrPartitionError(f"these partitions are gone: {left}")

    def _keep(self, fetched: FetchedRecords) -> Received | None:
        """Note the end of a batch; return the part of it in the range."""
        place = fetched.topic, fetched.partition
        if place not in self._next:
            return None
        records, end = fetched.records, self._ends[place]
        offsets = records.column(0).to_numpy()
        if not len(offsets):
            return None
        assert offsets[0] >= self._next[place], "no record is handed out twice"
        count = int(np.searchsorted(offsets, end))
        self._advance(place, int(offsets[-1]) + 1)
        return Received(place, records.slice(0, count), fetched.has_append_time)

    def _advance(self, place: PartitionName, to: int) -> None:
        if to < self._ends[place]:
            self._next[place] = to
            return
        del self._next[place]
        if self._next:
            self._consumer.pause(place)

    def _skip_gaps(self) -> None:
        """Skip gaps in the offsets: a range may end in one, where no record comes."""
        for place in list(self._next):
            self._advance(place, max(self._next[place], self._consumer.position(place)))

    def _on_refusal(self, refusal: MillraceError) -> None:
        """Find the lost records; go on with the others.

        Raises:
            DataLossError: records are gone, and that is a failure.
        """
        self._is_assigned = False
        with closing(Lookups(self._options)) as lookups:
            log = lookups.log_of_existing(self._next)
        found = self._losses(log, refusal)
        if not found:
            self._refusal = refusal
            time.sleep(_REFUSED_PAUSE_S)
            return
        if self._options.fail_on_data_loss:
            raise_for(found, what_to_do(self._use, self._options.group_id), refusal)
        events.TASK_RECORDS_GONE.log(_log, problem=told(found))
        for loss in found:
            self._go_on(loss, log)

    def _losses(self, log: Log, refusal: MillraceError) -> list[Loss]:
        at = {place: LogPosition(offset) for place, offset in self._next.items()}
        lost_from = {}
        if isinstance(refusal, LogTruncatedError):
            lost_from[refusal.topic, refusal.partition] = refusal.end_offset
        return [
            replace(loss, why=f"{loss.why}, and {self._range_of(loss.place)} was to be read")
            for loss in losses(Offsets(at, self._topic_ids), log, lost_from)
        ]

    def _range_of(self, place: PartitionName) -> str:
        return f"{self._next[place]} to {self._ends[place]}"

    def _go_on(self, loss: Loss, log: Log) -> None:
        """Read the rest of a range, if there is any; never the same record twice."""
        place = loss.place
        at = self._next.pop(place)
        if loss.is_of_topic:
            return
        self._ends[place] = min(self._ends[place], log.ends.positions[place].offset)
        begin = max(at, log.beginnings[place])
        if begin < self._ends[place]:
            self._next[place] = begin


class SparkColumns:
    """Makes Spark's columns of a consumer's."""

    def __init__(self, schema: pa.Schema, batch_rows: int) -> None:
        self._schema = schema
        self._rows = batch_rows
        self._create_time, self._append_time = (
            pa.repeat(pa.scalar(kind, pa.int32()), batch_rows)
            for kind in (_CREATE_TIME, _LOG_APPEND_TIME)
        )

    def joined(self, batches: Iterable[Received]) -> Iterator[pa.RecordBatch]:
        """Return batches of at most `batch_rows` rows; small ones are joined by copying."""
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for place, records, has_append_time in batches:
            for start in range(0, len(records), self._rows):
                part = Received(place, records.slice(start, self._rows), has_append_time)
                batch = self.of(part)
                batch_bytes = _data_bytes(records)
                if waiting and (
                    rows + len(batch) > self._rows
                    or batch_bytes >= _SMALL_BYTES
                    or size >= _SMALL_BYTES
                ):
                    yield _join(waiting)
                    waiting, rows, size = [], 0, 0
                waiting.append(batch)
                rows += len(batch)
                size += batch_bytes
        if waiting:
            yield _join(waiting)

    def of(self, received: Received) -> pa.RecordBatch:
        """Return Spark's columns of at most `batch_rows` records."""
        place, records, has_append_time = received
        count = len(records)
        offsets, times, keys, values, headers = records.columns
        timestamp_types = self._append_time if has_append_time else self._create_time
        columns = [
            keys,
            values,
            # Not cached: a cache would grow with the number of partitions.
            pa.repeat(pa.scalar(place[0], pa.string()), count),
            pa.array(np.full(count, place[1], np.int32)),
            offsets,
            _microseconds(times),
            timestamp_types.slice(0, count),
        ]
        if len(self._schema) > len(columns):
            columns.append(_spark_headers(headers, self._schema.field("headers").type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _microseconds(times: pa.Array) -> pa.Array:
    """Return times in Spark's unit, without overflow, as no record's time is after 9999.

    By numpy: a cast by Arrow costs ten times as much per batch.
    """
    milliseconds = times.to_numpy()
    scaled = pa.py_buffer(milliseconds * 1000)
    return pa.Array.from_buffers(_TIMESTAMPS, len(milliseconds), [None, scaled], 0)


def _data_bytes(records: pa.RecordBatch) -> int:
    """Return the approximate size of keys and values; `nbytes` costs as much as making the
    columns."""
    buffers = (records.column(name).buffers()[2] for name in ("key", "value"))
    return sum(buffer.size for buffer in buffers if buffer is not None)


def _spark_headers(headers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return headers as Kafka's source shows them: null where a record has none."""
    ends = headers.offsets.to_numpy()
    if ends[0] == ends[-1]:
        return pa.nulls(len(headers), kind)
    names, values = headers.values.field(0), headers.values.field(1)
    structs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    has_none = pa.array(ends[1:] == ends[:-1])
    # `from_arrays` takes no mask beside offsets that are a slice.
    offsets = pa.array(ends, pa.int32())
    return pa.ListArray.from_arrays(offsets, structs, type=kind, mask=has_none)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


@dataclass(slots=True, frozen=True)
class _ConsumerKind:
    """The properties that distinguish tasks' consumers."""

    bootstrap: str
    fetch_max_bytes: int
    request_timeout_ms: int
    rack: str
    isolation: Isolation
    tracing: bool
    credentials: CredentialFiles

    @staticmethod
    def of(options: SourceOptions) -> "_ConsumerKind":
        rack = os.environ.get(_RACK_VARIABLE, "") if options.rack is None else options.rack
        return _ConsumerKind(
            options.bootstrap_servers,
            options.fetch_max_bytes,
            options.request_timeout_ms,
            rack,
            options.reads,
            options.tracing,
            credential_files(options),
        )


def _open_consumer(kind: _ConsumerKind) -> SyncConsumer:
    return SyncConsumer(
        kind.bootstrap,
        client_id=CLIENT_ID,
        fetch_max_bytes=kind.fetch_max_bytes,
        auto_offset_reset="none",
        request_timeout_ms=kind.request_timeout_ms,
        client_rack=kind.rack,
        isolation=kind.isolation,
        tracing=kind.tracing,
        **kind.credentials._asdict(),
    )


_idle: Final = IdleClient(_open_consumer)


def _listed(offsets: Mapping[PartitionName, int]) -> str:
    return ", ".join(f"{topic}-{number}@{at}" for (topic, number), at in sorted(offsets.items()))
