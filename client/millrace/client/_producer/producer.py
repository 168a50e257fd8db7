"""The producer: `send()` and `send_batch()` for both flavours, and the async one."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.client._cluster.arguments import whole_number
from millrace.client._producer.handles import BatchHandle, RecordHandle
from millrace.client._producer.pipeline import Pipeline
from millrace.client._producer.settings import (
    BATCH_SIZE_DEFAULT,
    ProducerConfig,
    ProducerSettings,
)
from millrace.client._settings import documents
from millrace.client._threads.tasks import last_work_s
from millrace.client.serialization import Serializer
from millrace.core import words
from millrace.core.client.producer.delivery import Acknowledged
from millrace.core.client.producer.intake import Intake
from millrace.core.client.producer.partitioners import (
    ByFunction,
    Keyed,
    Partitioner,
    PartitionFunction,
    RoundRobin,
)
from millrace.core.client.producer.sent_columns import (
    RECORD_OVERHEAD,
    Cells,
    SentColumns,
    taken,
    with_headers,
)
from millrace.core.errors import (
    Appended,
    BufferExhaustedError,
    ClosedError,
    InvalidRecordError,
    MessageTooLargeError,
    MillraceError,
    SerializationError,
)
from millrace.core.ids import WallMs
from millrace.core.records.column_writer import are_long
from millrace.core.records.columns import HEADERS_TYPE
from millrace.core.records.compression import Compressor
from millrace.core.records.header import TIMESTAMP_MAX
from millrace.core.settings import INT32_MAX, parse
from millrace.core.topics import parse_topic_name
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now, wall_now

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from millrace.client.tracing import Tracing

Headers = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]
"""Headers of one record: pairs of name and value, or a mapping."""

Placed = TypeVar("Placed")

_SLICE_BYTES_MAX: Final = 4 * 1024 * 1024
_PARTITIONERS: Final[Mapping[str, Callable[[], Partitioner]]] = {
    "keyed": Keyed,
    "round_robin": RoundRobin,
}
_TIMES: Final = "milliseconds since 1970, up to the year 9999"
_COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition")


class RecordSink:
    """Taking records from any thread: the part that both producers share."""

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
            timestamp: ms UTC; the time of sending, to within `linger_ms`, when not given.

        Raises:
            BufferExhaustedError: `buffer_memory` is full (and stayed so for `max_block_ms`).
            SerializationError: a serializer raised, or there is none for this type.
            InvalidRecordError: a negative partition, a timestamp that is negative or beyond the
                year 9999, a header's name that is not text.
            InvalidTopicError: not a topic's name.
            MessageTooLargeError: larger than `buffer_memory`.
            ClosedError: the producer is closed.
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
                intake = self._plain.get(topic)
                if intake is not None and intake.room >= size:
                    values = intake.values
                    handle = RecordHandle()
                    handle.intake = intake
                    handle.index = len(values)
                    intake.room -= size
                    if key is not None or intake.keys is not None:
                        intake.add_key(key)
                    values.append(value)
                    return handle
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
            timestamps: ms UTC of each record, or one for all; the time of sending when not given.
                Whole numbers, or times of Arrow or numpy.

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
        values = _arrow(values, "values")
        if isinstance(values, pa.Table | pa.RecordBatch):
            columns = _columns_of_table(values)
            if keys is not None or headers is not None or timestamps is not None:
                raise InvalidRecordError("a table brings keys, headers and timestamps as columns")
        else:
            columns = self._columns_of_sequences(values, keys, headers, timestamps, rejected)
        if partition is not None:
            columns.partitions = np.full(columns.record_count, _partition(partition), np.int64)
        total = columns.record_count + len(rejected)
        intakes: list[Intake] = []
        handle = BatchHandle(topic, total, intakes, rejected)
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
            "failed_streams": self._pipeline.stream_failures(),
            "throttled_ms": counters.throttled_ms,
            "buffer_available_bytes": self._intakes.available,
            "buffer_total_bytes": self._intakes.buffer_memory,
        }

    def _send_slowly(  # noqa: PLR0917  # Called by `send` alone.
        self, topic: str, value: Any, key: Any, partition: int | None, headers: Any, timestamp: Any
    ) -> RecordHandle:
        topic = self._names.get(topic) or self._canonical(topic)
        key_serializer, value_serializer = self._serializers
        value = _serialized(value, value_serializer, "value", topic)
        key = _serialized(key, key_serializer, "key", topic)
        if partition is not None:
            partition = _partition(partition)
        if headers is not None:
            headers = _headers(headers)
        if timestamp is not None:
            timestamp = _timestamp(timestamp)
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
        """Likewise, of a record; its error counts as untold."""
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
            lambda: self._intakes.add(
                topic, value, key, partition, headers, timestamp, monotonic_now(), wall_now()
            )
        )
        return handle

    def _place(self, place: Callable[[], Placed | None], deadline: float | None = None) -> Placed:
        """Call `place` under the lock until it finds room.

        Raises:
            BufferExhaustedError: there is none until `deadline`, `max_block_ms` from now when it is
                not given, or this thread must not wait.
            ClosedError: the producer is closed.
        """
        pipeline, token = self._pipeline, self._token
        while True:
            try:
                del token[0]
            except IndexError:
                self._lock.wait()
                continue
            try:
                if pipeline.refusal:
                    raise ClosedError(pipeline.refusal)
                placed = place()
                room = pipeline.expect_room() if placed is None else None
            finally:
                token.append(None)
            if placed is not None:
                if self._intakes.must_wake:
                    pipeline.wake()
                return placed
            if deadline is None:
                deadline = host.monotonic_s() + pipeline.config.max_block_ms / 1000
            pipeline.wait_for_room(room, deadline)

    def _take_columns(self, topic: str, columns: SentColumns, intakes: list[Intake]) -> None:
        pipeline = self._pipeline
        ends = np.cumsum(columns.sizes())
        limit = max(1, min(_SLICE_BYTES_MAX, self._intakes.buffer_memory // 2))
        on_loop = pipeline.is_on_loop()
        if on_loop and int(ends[-1]) > self._intakes.available:
            with self._lock:
                pipeline.expect_room()
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
            take = partial(
                self._intakes.add_columns, topic, part, size, monotonic_now(), wall_now()
            )
            try:
                intakes.append(self._place(take, deadline))
            except (BufferExhaustedError, ClosedError) as error:
                if intakes:
                    error.appended = Appended.MAYBE
                raise
            start, before = end, before + size

    def _columns_of_sequences(
        self,
        values: Any,
        keys: Any,
        headers: Any,
        timestamps: Any,
        rejected: dict[int, MillraceError],
    ) -> SentColumns:
        keys, headers = _arrow(keys, "keys"), _arrow(headers, "headers")
        timestamps = _arrow(timestamps, "timestamps")
        given = [
            c
            for c in (values, keys, headers, timestamps)
            if c is not None and hasattr(c, "__len__")
        ]
        if not given:
            raise InvalidRecordError("send_batch() needs values or keys")
        count = len(given[0])
        if any(len(column) != count for column in given):
            raise InvalidRecordError(
                f"the columns have different lengths: {', '.join(str(len(c)) for c in given)}"
            )
        key_serializer, value_serializer = self._serializers
        values = _column(values, value_serializer, "value", rejected)
        keys = _column(keys, key_serializer, "key", rejected)
        if isinstance(headers, pa.Array | pa.ChunkedArray):
            headers = _header_column(headers)
        elif headers is not None:
            headers = [() if h is None else _headers(h) for h in headers]
        times = _timestamps(timestamps, count)
        if rejected:
            kept = np.array([row for row in range(count) if row not in rejected], np.int64)
            indexes = pa.array(kept)
            values, keys = taken(values, kept), taken(keys, kept)
            if isinstance(headers, pa.Array):
                headers = headers.take(indexes)
            elif headers is not None:
                headers = [headers[row] for row in kept.tolist()]
            times = None if times is None else times[kept]
            count = len(kept)
        return SentColumns(values, keys, headers, times, None, count)

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


def _serialized(cell: Any, serializer: Serializer | None, what: str, topic: str) -> bytes | None:
    if type(cell) is bytes and serializer is None:
        return cell
    if cell is None:
        return None
    if serializer is not None:
        try:
            cell = serializer(cell)
        except Exception as error:
            raise SerializationError(
                f"the {what} serializer raised {error!r} for a record of topic {topic!r}"
            ) from error
    if isinstance(cell, bytes | bytearray | memoryview):
        return bytes(cell)  # A copy: the caller may change its buffer while ours is under way.
    raise SerializationError(
        f"a {what} of topic {topic!r} is {type(cell).__name__}, not bytes: encode it, or give the "
        f"producer a {what}_serializer"
    )


def _partition(partition: object) -> int:
    number = whole_number(partition)
    if number is None or not 0 <= number <= INT32_MAX:
        raise InvalidRecordError(f"partition={partition!r}: it must be a number from 0")
    return number


def _timestamp(timestamp: object) -> WallMs:
    number = whole_number(timestamp)
    if number is None and isinstance(timestamp, np.datetime64):
        number = whole_number(timestamp.astype("datetime64[ms]").astype(np.int64))
    if number is None or not 0 <= number <= TIMESTAMP_MAX:
        raise InvalidRecordError(f"timestamp={timestamp!r}: it must be {_TIMES}")
    return WallMs(number)


def _headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    checked = []
    try:
        for name, value in headers.items() if isinstance(headers, Mapping) else headers:
            if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
                raise InvalidRecordError(
                    f"header {name!r}: a name is a string and a value bytes or None"
                )
            if not name.isascii():
                name.encode()
            checked.append((name, value))
    except UnicodeEncodeError as error:  # Of a name as `os.fsdecode` makes them.
        raise InvalidRecordError(f"header {name!r}: no UTF-8 can be made of it") from error
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"headers={headers!r}: they must be pairs of name and value, or a mapping"
        ) from error
    return tuple(checked)


def _header_column(headers: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return headers with their one type; refuse headers that no batch can hold."""
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    if headers.type != HEADERS_TYPE:
        if not _has_names(headers.type):
            raise InvalidRecordError(
                f"the headers column is {headers.type} and must be {HEADERS_TYPE}"
            )
        try:
            headers = headers.cast(HEADERS_TYPE)
        except pa.ArrowException as error:
            raise InvalidRecordError(
                f"the headers column is {headers.type} and must be {HEADERS_TYPE}"
            ) from error
    entries = headers.flatten()
    if entries.null_count or entries.field("key").null_count:
        raise InvalidRecordError("a header and its name may not be null, only its value")
    return headers


def _arrow(column: Any, what: str) -> Any:
    """Return objects with Arrow's interface as Arrow, and all others unchanged.

    Raises:
        InvalidRecordError: a mapping, which has no order of rows; or Arrow cannot hold it.
    """
    if isinstance(column, Mapping):
        raise InvalidRecordError(
            f"{what} are a {type(column).__name__}: give columns by their names as a table, as "
            "pyarrow.table({'key': ..., 'value': ...})"
        )
    if isinstance(column, pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray):
        return column
    try:
        if hasattr(column, "__arrow_c_stream__"):
            column = pa.chunked_array(column)
        elif hasattr(column, "__arrow_c_array__"):
            column = pa.chunked_array([pa.array(column)])
        else:
            return column
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidRecordError(f"{what} cannot be made Arrow columns: {error}") from error
    return pa.Table.from_struct_array(column) if pa.types.is_struct(column.type) else column


def _column(
    cells: Any, serializer: Serializer | None, what: str, rejected: dict[int, MillraceError]
) -> Cells | None:
    """Return keys or values as an array or list that the caller can no longer change."""
    if cells is None:
        return None
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    if isinstance(cells, pa.Array):
        return _binary_array(cells, what)
    if isinstance(cells, str | bytes):
        raise InvalidRecordError(f"{what}s must be a sequence, not one {type(cells).__name__}")
    if serializer is not None:
        serialized: list[bytes | None] = []
        for row, cell in enumerate(cells):
            try:
                serialized.append(_serialized(cell, serializer, what, "?"))
            except SerializationError as error:
                rejected[row] = error
                serialized.append(None)
        cells = serialized
    elif isinstance(cells, list) and cells and are_long(cells):
        cells = cells.copy()
        if set(map(type, cells)) == {bytes}:
            return cells
    try:
        column = pa.array(cells, pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise SerializationError(
            f"the {what}s are not all bytes ({error}): encode them, or give the producer a "
            f"{what}_serializer"
        ) from error
    if isinstance(column, pa.ChunkedArray):
        raise InvalidRecordError(f"the {what}s of one send_batch() are limited to 2 GiB")
    return column


def _binary_array(cells: pa.Array, what: str) -> pa.Array:
    if cells.type == pa.binary():
        return cells
    kinds = pa.types
    if not (
        kinds.is_string(cells.type)
        or kinds.is_string_view(cells.type)
        or kinds.is_binary_view(cells.type)
        or kinds.is_large_string(cells.type)
        or kinds.is_large_binary(cells.type)
        or kinds.is_fixed_size_binary(cells.type)
        or kinds.is_null(cells.type)
        or kinds.is_dictionary(cells.type)
    ):
        raise InvalidRecordError(
            f"the {what} column is {cells.type}: cast it to binary or string first"
        )
    try:
        if kinds.is_dictionary(cells.type):
            return _binary_array(cells.dictionary_decode(), what)
        return cells.cast(pa.binary())
    except pa.ArrowException as error:
        raise InvalidRecordError(f"the {what} column cannot be cast to binary: {error}") from error


def _has_names(kind: pa.DataType) -> bool:
    """Return whether headers of this type have names that are text: others would be cast."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)):
        return False
    entry = kind.value_type
    at = entry.get_field_index("key") if pa.types.is_struct(entry) else -1
    if at < 0:
        return False
    name = entry.field(at).type
    if pa.types.is_dictionary(name):
        name = name.value_type
    return bool(
        pa.types.is_string(name)
        or pa.types.is_large_string(name)
        or pa.types.is_string_view(name)
        or pa.types.is_null(name)
    )


def _timestamps(timestamps: Any, count: int) -> Any:
    if timestamps is None:
        return None
    if isinstance(timestamps, int | float | str | np.generic):
        return np.full(count, _timestamp(timestamps), np.int64)
    try:
        times = _whole_numbers(timestamps)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidRecordError(f"timestamps must be {_TIMES}: {error}") from error
    if times.shape != (count,):
        raise InvalidRecordError(
            f"timestamps of shape {times.shape} for {words.count(count, 'record')}"
        )
    if count and not 0 <= int(times.min()) <= int(times.max()) <= TIMESTAMP_MAX:
        raise InvalidRecordError(
            f"timestamps from {times.min()} to {times.max()}: they must be {_TIMES}"
        )
    return np.ascontiguousarray(times, np.int64)


def _whole_numbers(column: Any) -> np.ndarray[Any, Any]:
    """Return a column of whole numbers, or of times as milliseconds.

    Raises:
        TypeError: it holds something else: truth values, fractions, texts, nulls.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        if column.null_count:
            raise TypeError("nulls are among them")
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        if not pa.types.is_integer(column.type):
            raise TypeError(f"{column.type} are no whole numbers")
        return cast("np.ndarray[Any, Any]", column.to_numpy(zero_copy_only=False))
    array = column if isinstance(column, list | tuple) else np.asarray(column)
    if isinstance(array, list | tuple) or array.dtype == object:
        # numpy would make numbers of truth values and times that stand beside numbers.
        kinds = set(map(type, array))
        are_times = kinds == {np.datetime64}
        for kind in () if are_times else kinds:
            if not issubclass(kind, int | np.integer) or kind is bool:
                raise TypeError(f"{kind.__name__} is among them, and not whole numbers alone")
        array = np.asarray(array, "datetime64[ms]" if are_times else np.int64)
    if not array.size:
        return array.astype(np.int64)
    if array.dtype.kind == "M":
        return array.astype("datetime64[ms]").astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{array.dtype} are no whole numbers")
    return array


def _columns_of_table(table: pa.Table | pa.RecordBatch) -> SentColumns:
    known = {name: table.column(name) for name in table.schema.names if name in _COLUMNS}
    if "value" not in known and "key" not in known:
        raise InvalidRecordError(
            f"the table has the columns {', '.join(table.schema.names)}, but needs `value` or `key`"
        )
    headers = known.get("headers")
    if headers is not None:
        headers = _header_column(headers)
    partitions = None
    if "partition" in known:
        cells = known["partition"]
        if not (pa.types.is_integer(cells.type) or pa.types.is_null(cells.type)):
            raise InvalidRecordError(
                f"the partition column is {cells.type}: it must hold whole numbers from 0, or null"
            )
        bounds = pc.min_max(cells).as_py()
        if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] <= INT32_MAX:
            raise InvalidRecordError(
                f"the partition column holds {bounds['min']} to {bounds['max']}: it must hold "
                "numbers from 0, or null"
            )
        cells = cells.cast(pa.int64()).fill_null(-1)
        partitions = np.ascontiguousarray(cells.to_numpy(), np.int64)
    return SentColumns(
        _column(known.get("value"), None, "value", {}),
        _column(known.get("key"), None, "key", {}),
        headers,
        _timestamps(known.get("timestamp"), table.num_rows),
        partitions,
        table.num_rows,
    )


@documents(ProducerConfig)
class Producer(RecordSink):
    """Writes records, from an event loop.

        async with Producer("localhost:7092") as producer:
            producer.send("orders", b"first", key=b"alice")
            metadata = await producer.send("orders", b"second", key=b"alice")
            print(metadata.partition, metadata.offset)

    `send()` is a plain method that returns at once; leaving the `async with` delivers everything.
    Made inside a running loop, used from it or from any thread. With `acks="all"`, the default,
    records are never duplicated and keep their order per partition, over all retries.

    Sizes and times may be texts with a unit, such as `"64MiB"` and `"30s"`.

    Args:
        bootstrap: `host:port` of brokers, tried in turn: a string with commas, or a sequence.
        {settings}

    Raises:
        InvalidConfigError: a setting does not exist, or is out of its bounds.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], **settings: Unpack[ProducerSettings]
    ) -> None:
        config = parse(ProducerConfig, settings)
        tracing = config.new_tracing()
        pipeline = Pipeline(
            config.new_cluster(bootstrap),
            config,
            Compressor(config.compression, config.compression_level),
            _partitioner(config.partitioner),
            asyncio.get_running_loop(),
        )
        super().__init__(pipeline, config.key_serializer, config.value_serializer, tracing)
        pipeline.start()

    async def flush(self) -> None:
        """Send everything without lingering, and wait until it is acknowledged or has failed.

        Several threads or tasks may wait at the same time: a failure is raised in all that wait for
        its record, or else once in the next call, unless the record's handle has reported it
        before. Threads or tasks that share the producer learn the outcome of their own records from
        the handles.

        Raises:
            MillraceError: the first failure of the records it waited for, or since the last flush,
                that no handle has reported.
            ClosedError: the producer was closed before everything was acknowledged.
        """
        await self._pipeline.flush()

    async def wait_for_room(self, size: int = BATCH_SIZE_DEFAULT) -> None:
        """Wait until `size` bytes of `buffer_memory` are free.

        Use it to send at full speed:

            for part in parts:
                await producer.wait_for_room(part.nbytes)
                producer.send_batch("orders", part)
        """
        await self._pipeline.room_for(size)

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
        """
        info = await self._pipeline.cluster.topic(topic)
        return [partition.partition for partition in info.partitions]

    def awaited_brokers(self) -> list[str]:
        """Return the addresses of the brokers that records on their way wait for.

        Without those of an unknown topic, or of a partition without a leader.
        """
        return self._pipeline.awaited_brokers()

    def producer_id_problem(self) -> str | None:
        """Return why there is no producer id, without which nothing is sent with `acks="all"`.

        The brokers get ids from the controller. None: no id is needed. Empty: one was requested,
        and no broker has answered yet.
        """
        return self._pipeline.producer_id_problem()

    async def close(self) -> None:
        """Deliver the sent records and release everything; closing twice is harmless.

        No more records can be sent from now on, also while it waits for the earlier ones. Takes
        `close_timeout_ms` at the most. Call it before the loop ends: nothing is delivered without
        one, and a warning counts the records that are lost.

        Raises:
            MillraceError: the first failure of the records it waited for, or since the last flush,
                that no handle has reported.
            ClosedError: `close_timeout_ms` passed; tells how many records were not acknowledged.
        """
        pipeline = self._pipeline
        if pipeline.is_closed:
            return
        pipeline.refuse_records()
        late = ""
        limit_s = pipeline.config.close_timeout_ms / 1000
        ends_at = host.monotonic_s() + limit_s
        try:
            async with asyncio.timeout(last_work_s(limit_s)) as limit:
                try:
                    await pipeline.flush()
                finally:
                    if not limit.expired():
                        await pipeline.drain()
        except TimeoutError:
            late = f"close_timeout_ms={pipeline.config.close_timeout_ms} passed"
            raise not_delivered(pipeline, late) from None
        finally:
            await pipeline.close(late, ends_at)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
        else:  # The user's error matters more than a failed delivery.
            with suppress(MillraceError):
                await self.close()


def unacknowledged(pipeline: Pipeline) -> str:
    """Return how many records are not acknowledged, for people."""
    left = words.count(pipeline.unfinished_records(), "record was", "records were")
    return f"{left} not acknowledged"


def not_delivered(pipeline: Pipeline, why: str) -> ClosedError:
    """Return the error of a producer that is closed before all records are acknowledged."""
    return ClosedError(
        f"{unacknowledged(pipeline)} before {why}: their handles tell which",
        appended=Appended.MAYBE,
    )


def _partitioner(partitioner: str | PartitionFunction) -> Partitioner:
    if isinstance(partitioner, str):
        return _PARTITIONERS[partitioner]()
    return ByFunction(partitioner)
