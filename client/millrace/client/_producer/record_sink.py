"""Taking records from any thread: `send()` and `send_batch()` of both producers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from millrace.client._producer.given_records import (
    Headers,
    as_arrow,
    checked_headers,
    checked_partition,
    checked_timestamp,
    columns_of_sequences,
    columns_of_table,
    serialized,
)
from millrace.client._producer.handles import BatchHandle, RecordHandle
from millrace.client._producer.pipeline import Pipeline
from millrace.client.serialization import Serializer
from millrace.core.client.producer.delivery import Acknowledged
from millrace.core.client.producer.intake import Intake
from millrace.core.client.producer.sent_columns import RECORD_OVERHEAD, SentColumns, with_headers
from millrace.core.errors import (
    Appended,
    BufferExhaustedError,
    InvalidRecordError,
    MessageTooLargeError,
    MillraceError,
)
from millrace.core.ids import MonotonicMs, WallMs
from millrace.core.topics import parse_topic_name
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now, wall_now

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from millrace.client.tracing import Tracing

Placed = TypeVar("Placed")

_SLICE_BYTES_MAX: Final = 4 * 1024 * 1024


class RecordSink:
    """The part that both producers share."""

    def __init__(
        self,
        pipeline: Pipeline,
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._pipeline = pipeline
        self._intakes = pipeline.intakes
        self._lock = pipeline.lock
        self._token = pipeline.lock.token
        self._tracing = tracing
        # With serializers or spans no record is plain, so the shortest path finds nothing here.
        is_plain = not (key_serializer or value_serializer or tracing)
        self._plain: dict[str, Intake] = self._intakes.plain if is_plain else {}
        self._serializers = (key_serializer, value_serializer)
        self._names: dict[str, str] = {}

    @property
    def acks(self) -> int:
        """The acknowledgement that a record waits for: -1: that of all in-sync replicas; 1: that of
        the leader; 0: none."""
        return self._pipeline.config.acks

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> RecordHandle:
        """Append a record to its topic. Returns at once; the handle has the outcome.

        Args:
            topic: `name` or `namespace/name`.
            value: bytes, or what `value_serializer` takes; None is null.
            key: bytes, or what `key_serializer` takes. Records of one key stay in order.
            partition: wins over the partitioner.
            headers: pairs of name and value.
            timestamp: ms UTC; the time of sending, to within `linger_ms`, when not given, or -1 as
                of a record that Kafka's clients gave no time.

        Raises:
            BufferExhaustedError: `buffer_memory` is full (and stayed so for `max_block_ms`).
            SerializationError: a serializer raised, or there is none for this type.
            InvalidRecordError: a negative partition, a timestamp that is below -1 or beyond the
                year 9999, a header's name that is not text.
            InvalidTopicError: not a topic's name.
            MessageTooLargeError: larger than `buffer_memory`.
            ClosedError: the producer is closed.
            InvalidTransactionStateError: the producer is transactional, and no transaction is open.
        """
        # The budget of all this is one microsecond: hence one test for all that is rare, the token
        # instead of the lock's methods, and a handle that is filled without a call.
        if partition is None and headers is None and timestamp is None and type(value) is bytes:
            size = len(value) + RECORD_OVERHEAD
            if key is not None:
                if type(key) is not bytes:
                    return self._send_slowly(topic, value, key, None, None, None)
                size += len(key)
            token = self._token
            try:
                del token[0]
            except IndexError:  # Another thread has the lock: wait for it there.
                return self._send_slowly(topic, value, key, None, None, None)
            try:
                intake = self._plain[topic]
                if intake.room >= size:
                    values, keys = intake.values, intake.keys
                    index = len(values)
                    if keys is not None:
                        if len(keys) != index:
                            del keys[index:]  # Of a record whose `send()` was interrupted.
                        keys.append(key)
                    elif key is not None:
                        intake.keys = [*repeat(None, index), key]
                    handle = RecordHandle()
                    handle.intake = intake
                    handle.index = index
                    intake.room -= size
                    values.append(value)  # Last: a record exists from its value on.
                    return handle
            except KeyError:  # None is open.
                pass
            finally:
                token.append(None)
        return self._send_slowly(topic, value, key, partition, headers, timestamp)

    def send_batch(
        self,
        topic: str,
        values: Any = None,
        keys: Any = None,
        *,
        partition: int | None = None,
        headers: Sequence[Headers | None] | pa.Array | None = None,
        timestamps: Any = None,
    ) -> BatchHandle:
        """Append many records at once: several times as fast as one `send()` each.

            producer.send_batch("orders", [b"a", b"b"], keys=[b"1", b"2"])
            producer.send_batch("orders", pyarrow.array(["a", "b"]))
            producer.send_batch("orders", frame)  # Columns key, value, headers, timestamp.

        Objects with Arrow's interface count as Arrow, such as series and data frames of pandas and
        Polars (`__arrow_c_stream__`, `__arrow_c_array__`).

        Args:
            topic: `name` or `namespace/name`.
            values: a sequence, an Arrow array of binary or string type, or a table or record batch
                with `key` or `value` among its columns, and perhaps `headers`, `timestamp` and
                `partition`; others are left out. Serializers are called for sequences and never for
                Arrow.
            keys: a sequence or an Arrow array, as long as `values`.
            partition: of all records; wins over the partitioner.
            headers: of each record.
            timestamps: ms UTC of each record, or one for all; the time of sending when not given,
                or -1. Whole numbers, or times of Arrow or numpy.

        Raises:
            BufferExhaustedError: `buffer_memory` is full. With `appended=MAYBE` the first part of
                the records was taken, and is sent.
            SerializationError: as `send()`, when it is every record; else the handle has it.
            MessageTooLargeError: a record is larger than `buffer_memory`.
            InvalidRecordError: no columns, or of different lengths, of types that do not fit, or
                with a timestamp or header that `send()` would refuse.
        """
        topic = self._canonical(topic)
        rejected: dict[int, MillraceError] = {}
        values = as_arrow(values, "values")
        if isinstance(values, pa.Table | pa.RecordBatch):
            columns = columns_of_table(values)
            if keys is not None or headers is not None or timestamps is not None:
                raise InvalidRecordError("a table brings keys, headers and timestamps as columns")
        else:
            columns = columns_of_sequences(
                values,
                keys,
                headers,
                timestamps,
                serializers=self._serializers,
                rejected=rejected,
            )
        if partition is not None:
            columns.partitions = np.full(
                columns.record_count, checked_partition(partition), np.int64
            )
        total = columns.record_count + len(rejected)
        intakes: list[Intake] = []
        handle = BatchHandle(topic, total, intakes, rejected)
        if rejected:
            self._pipeline.on_rejected(next(iter(rejected.values())))
        tracing = self._tracing
        if not columns.record_count:
            return handle
        if tracing is None:
            self._take_columns(topic, columns, intakes)
            return handle
        span, begun = tracing.begin_send(topic, columns.record_count), host.monotonic_s()
        with _ended_if_refused(tracing, span):
            columns.headers = with_headers(
                columns.headers, columns.record_count, tracing.headers(span)
            )
            self._take_columns(topic, columns, intakes)
        if span.is_recording():
            handle._when_done(lambda error: self._end_span(span, begun, error))
        return handle

    def metrics(self) -> dict[str, int]:
        """Return counters since the start, and how much is under way now.

        With `acks=0` records count as acknowledged once the transport has them. Requests that a
        broker refused afterwards, at least in part, are counted in `refused_requests`: their
        records may be lost. `throttled_ms` is for how long quotas have delayed requests, each
        broker's counted by itself. `failed_streams` to brokers broke, or could not be opened.
        `millrace.client.metrics` shows all of it to Prometheus.
        """
        counters = self._pipeline.counters
        return {
            "records": counters.records,
            "record_bytes": counters.record_bytes,
            "batches": counters.batches,
            "batch_bytes": counters.batch_bytes,
            "requests": counters.requests,
            "acknowledged_records": counters.acknowledged_records,
            "repeated_batches": counters.repeated_batches,
            "failed_records": counters.failed_records,
            "refused_requests": counters.refused_requests,
            "begun_transactions": counters.begun_transactions,
            "committed_transactions": counters.committed_transactions,
            "failed_streams": self._pipeline.streams.failures,
            "throttled_ms": counters.throttled_ms,
            "buffer_available_bytes": self._intakes.available,
            "buffer_total_bytes": self._intakes.buffer_memory,
        }

    def _send_slowly(  # noqa: PLR0917  # Called by `send` alone.
        self, topic: str, value: Any, key: Any, partition: int | None, headers: Any, timestamp: Any
    ) -> RecordHandle:
        topic = self._names.get(topic) or self._canonical(topic)
        key_serializer, value_serializer = self._serializers
        if type(value) is not bytes or value_serializer is not None:
            value = serialized(value, value_serializer, "value", topic)
        if key is not None:
            key = serialized(key, key_serializer, "key", topic)
        if partition is not None:
            partition = checked_partition(partition)
        if headers is not None:
            headers = checked_headers(headers)
        if timestamp is not None:
            timestamp = checked_timestamp(timestamp)
        tracing = self._tracing
        if tracing is None:
            return self._add(topic, value, key, partition, headers, timestamp)
        span, begun = tracing.begin_send(topic), host.monotonic_s()
        with _ended_if_refused(tracing, span):
            (headers,) = with_headers([headers or ()], 1, tracing.headers(span))
            handle = self._add(topic, value, key, partition, headers or None, timestamp)
        if span.is_recording():
            handle.add_done_callback(partial(self._end_record_span, span, begun))
        return handle

    def _end_span(
        self,
        span: "Span",
        begun: float,
        error: MillraceError | None,
        *,
        partition: int | None = None,
        offset: int = -1,
    ) -> None:
        """End the span of a record or batch whose outcome is known."""
        tracing = self._tracing
        assert tracing is not None, "there is a span"
        tracing.end_send(span, error, partition=partition, offset=offset)
        if error is None and (trace_id := tracing.sampled_trace(span)):
            seconds = host.monotonic_s() - begun
            self._pipeline.counters.delivery_seconds.mark(seconds, trace_id)

    def _end_record_span(self, span: "Span", begun: float, handle: RecordHandle) -> None:
        """End the span of a record whose outcome is known. Its error counts as untold."""
        place = handle._outcome()
        if not isinstance(place, tuple):
            self._end_span(span, begun, place)
            return
        delivery, index = place
        if not isinstance(delivery.outcome, Acknowledged):
            self._end_span(span, begun, delivery.outcome)
            return
        base_offset = delivery.outcome.base_offset
        self._end_span(
            span,
            begun,
            None,
            partition=delivery.topic_partition.partition,
            offset=base_offset + index if base_offset >= 0 else -1,
        )

    def _add(  # noqa: PLR0917  # As `_send_slowly`.
        self, topic: str, value: Any, key: Any, partition: int | None, headers: Any, timestamp: Any
    ) -> RecordHandle:
        handle = RecordHandle()
        handle.intake, handle.index = self._place(
            partial(self._intakes.add, topic, value, key, partition, headers, timestamp)
        )
        return handle

    def _place(
        self,
        place: Callable[[MonotonicMs, WallMs], Placed | None],
        deadline: float | None = None,
    ) -> Placed:
        """Call `place` with the time, under the lock, until it finds room.

        Raises:
            BufferExhaustedError: there is none until `deadline`, `max_block_ms` from now when it is
                not given, or this thread must not wait.
            MillraceError: no more records are taken, as the producer is closed or no transaction
                is open.
        """
        pipeline, room, token = self._pipeline, self._pipeline.room, self._token
        while True:
            try:
                del token[0]
            except IndexError:
                self._lock.wait()
                continue
            try:
                if room.refusal is not None:
                    raise room.refusal.again(room.refusal.appended)
                placed = place(monotonic_now(), wall_now())
                waiting = room.expect() if placed is None else None
            finally:
                token.append(None)
            if placed is not None:
                if self._intakes.must_wake:
                    pipeline.look_at_intakes()
                return placed
            if deadline is None:
                deadline = host.monotonic_s() + pipeline.config.max_block_ms / 1000
            room.wait(waiting, deadline)

    def _take_columns(self, topic: str, columns: SentColumns, intakes: list[Intake]) -> None:
        pipeline = self._pipeline
        ends = np.cumsum(columns.sizes())
        limit = max(1, min(_SLICE_BYTES_MAX, self._intakes.buffer_memory // 2))
        if pipeline.room.is_on_loop() and int(ends[-1]) > self._intakes.available:
            with self._lock:
                pipeline.room.expect()
            pipeline.wake()
            raise BufferExhaustedError(
                f"{int(ends[-1])} bytes of records do not fit into the "
                f"{self._intakes.available} bytes that are free of buffer_memory="
                f"{self._intakes.buffer_memory}: send them in smaller parts, and "
                "`await producer.wait_for_room(bytes)` between them"
            )
        deadline = host.monotonic_s() + pipeline.config.max_block_ms / 1000
        start = before = 0
        while start < columns.record_count:
            end = max(start + 1, int(np.searchsorted(ends, before + limit, "right")))
            size = int(ends[end - 1]) - before
            part = columns.slice(start, end - start)
            if size > self._intakes.buffer_memory:
                raise MessageTooLargeError(
                    f"a record of {size} bytes can never fit into buffer_memory="
                    f"{self._intakes.buffer_memory}",
                    appended=Appended.MAYBE if intakes else Appended.NO,
                )
            take = partial(self._intakes.add_columns, topic, part, size)
            try:
                intakes.append(self._place(take, deadline))
            except MillraceError as error:
                if intakes:
                    error.appended = Appended.MAYBE
                raise
            start, before = end, before + size

    def _canonical(self, topic: str) -> str:
        if not isinstance(topic, str):
            raise InvalidRecordError(f"a topic is named by a string, not {topic!r}")
        name = self._names.get(topic)
        if name is None:
            name = self._names[topic] = str(parse_topic_name(topic))
        return name


@contextmanager
def _ended_if_refused(tracing: "Tracing", span: "Span") -> Iterator[None]:
    """End the span of records that are not taken."""
    try:
        yield
    except BaseException as error:
        tracing.end_send(span, error)
        raise
