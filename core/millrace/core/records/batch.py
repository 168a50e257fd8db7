"""Record batches as a whole: sealed by producers, checked by leaders, opened by readers."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.core import words
from millrace.core.errors import (
    CorruptBatchError,
    InvalidRecordError,
    MessageTooLargeError,
    UnsupportedFormatError,
)
from millrace.core.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records import column_reader, column_writer, few_records, kafka_reader
from millrace.core.records.arrow_views import int64s_of, numbers_of
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.column_reader import Body
from millrace.core.records.columns import HEADERS_TYPE, RECORDS_MAX, SCHEMA, Columns
from millrace.core.records.compression import Codec, Compressor, check_frames, inflate
from millrace.core.records.few_records import FewRecords
from millrace.core.records.header import (
    COLUMNS_FORMAT,
    HEADER_BYTES,
    KAFKA_FORMAT,
    Attributes,
    BatchHeader,
    Buffer,
    parse_header,
    producer_section,
    seal,
    verify_body,
)


@dataclass(slots=True)
class PreparedBatch:
    """A batch that lacks only the producer's identity, which is known when it is sent. Not changed.

    Encoding and compressing are costly and may be done by any thread, before the sequence is given;
    `finish` is cheap and may be repeated with another identity.
    """

    topic_partition: TopicPartition
    record_count: int
    attributes: int
    base_timestamp: WallMs
    max_timestamp: WallMs
    inflated_length: int
    body: Buffer
    length: int
    """Bytes of the finished batch."""

    def finish(
        self,
        producer_id: ProducerId = NO_PRODUCER_ID,
        producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        *,
        is_transactional: bool = False,
    ) -> bytes:
        """Return the sealed header; the batch on the wire is this and `body`."""
        section = producer_section(
            stored_length=len(self.body),
            inflated_length=self.inflated_length,
            record_count=self.record_count,
            attributes=self.attributes | (Attributes.TRANSACTIONAL if is_transactional else 0),
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
        return seal(self.topic_partition, section, self.body)


_PLAIN: Final = Compressor()


def prepare(
    topic_partition: TopicPartition, columns: Columns, compressor: Compressor = _PLAIN
) -> PreparedBatch:
    """Encode and compress records.

    Raises:
        InvalidRecordError: no records, too many, or columns that do not fit each other.
        InvalidTimestampError: a time that the format cannot hold.
        MessageTooLargeError: more bytes than the format can hold.
    """
    if not 0 < columns.record_count <= RECORDS_MAX:
        raise InvalidRecordError(
            f"{columns.record_count} records: a batch holds 1 to {RECORDS_MAX}"
        )
    written = column_writer.write(columns)
    codec, stored = compressor.compress(written.body)
    return PreparedBatch(
        topic_partition=topic_partition,
        record_count=columns.record_count,
        attributes=written.attributes | codec,
        base_timestamp=written.base_timestamp,
        max_timestamp=written.max_timestamp,
        inflated_length=len(written.body),
        body=stored,
        length=HEADER_BYTES + len(stored),
    )


def check(
    topic_partition: TopicPartition,
    batch: Buffer,
    limits: BatchLimits,
    header: BatchHeader | None = None,
) -> BatchHeader:
    """Check a client's whole batch, as its leader does once before it appends the original bytes.

    The order is from cheap to costly, and nothing is allocated for a size that was not compared
    with a limit before: header and its checksum, limits, producer's checksum, inflating, layout.

    Args:
        topic_partition: where it is to be appended.
        batch: the whole batch.
        limits: the topic's.
        header: of the batch, if it is parsed already.

    Raises:
        MessageTooLargeError: larger than the limits.
        CorruptBatchError: checksums or lengths do not fit.
        UnsupportedFormatError: a magic, attribute or codec that is not known.
        InvalidRecordError: the contents break a rule of the format.
    """
    if header is None:
        header = parse_header(batch)
    if header.format != COLUMNS_FORMAT:
        raise UnsupportedFormatError(
            "the batch is one of Kafka's (format 2), which only Kafka's own protocol takes: send "
            "columns (format 1)"
        )
    length = header.length
    if length != len(batch):
        raise CorruptBatchError(f"the batch is {length} bytes by its header, but {len(batch)} came")
    if length > limits.batch_bytes_max:
        raise MessageTooLargeError(
            f"the batch is {length} bytes; the topic's max.message.bytes is "
            f"{limits.batch_bytes_max}: send smaller batches or raise it"
        )
    if header.inflated_length > limits.inflated_bytes_max:
        raise MessageTooLargeError(
            f"the batch inflates to {header.inflated_length} bytes; the broker's "
            f"limits.batch_inflated_bytes_max is {limits.inflated_bytes_max}: send smaller batches "
            "or raise it"
        )
    if header.record_count > RECORDS_MAX:
        raise MessageTooLargeError(
            f"the batch holds {header.record_count} records; the limit is {RECORDS_MAX}"
        )
    _check_client_rules(header)
    if header.attributes & Attributes.TRANSACTIONAL and not limits.takes_transactions:
        raise InvalidRecordError(
            "the topic takes no transactional batches: it is one of the cluster's own"
        )
    verify_body(topic_partition, header, batch)
    body = _inflated(header, memoryview(batch)[HEADER_BYTES:], canonical=True)
    opened = None
    if not column_reader.is_plain(body, header):
        opened = column_reader.read(body, header, canonical=True)
    if limits.requires_keys:
        _check_keys(header, opened)
    return header


_CHECK_US: Final = 8
_COLUMN_US: Final = (
    (Attributes.TIMESTAMPS, 10),
    (Attributes.KEYS, 15),
    (Attributes.VALUES, 15),
    (Attributes.HEADERS, 65),
)
_LAYOUT_US_PER_BYTE: Final = 0.001
_CODEC_US: Final[dict[int, tuple[float, float, float]]] = {
    Codec.GZIP: (5, 0.006, 0),
    Codec.SNAPPY: (2, 0.002, 0),
    Codec.LZ4: (20, 0.001, 0.12),
    Codec.ZSTD: (30, 0.002, 0.12),
}
"""Of each codec: for a batch, for a byte when inflated, for a byte as stored (its frames)."""


def check_cost_us(header: BatchHeader) -> float:
    """Return about how many microseconds of one core `check` takes at the most, by sizes alone.

    The numbers were measured with the layouts and frames that take longest for their size.
    """
    attributes, stored = header.attributes, header.stored_length
    cost = _CHECK_US + _columns_us(attributes & Attributes.COLUMNS)
    size = max(header.inflated_length, stored)
    if attributes & Attributes.CODEC_MASK:
        once, inflating, frames = _CODEC_US.get(header.codec, (0, 0, 0))
        cost += once + frames * stored + inflating * size
    return cost + _LAYOUT_US_PER_BYTE * size


@cache
def _columns_us(columns: int) -> float:
    return sum(column_us for column, column_us in _COLUMN_US if columns & column)


def _check_keys(header: BatchHeader, body: Body | None) -> None:
    """Check that each record has a key; None: the body is plain, so no key in it is null."""
    if not header.attributes & Attributes.KEYS:
        missing = 0 if header.attributes & Attributes.KEYS_EMPTY else header.record_count
    else:
        missing = 0 if body is None or body.keys is None else body.keys.null_count
    if missing:
        raise InvalidRecordError(
            f"the batch has {words.count(missing, 'record')} without a key, and the topic is "
            "compacted (cleanup.policy), which keeps the latest record of each key: give every "
            "record a key; an empty one is a key, too"
        )


def _check_client_rules(header: BatchHeader) -> None:
    """Refuse what only brokers may write (P51)."""
    if header.record_count == 0:
        raise InvalidRecordError("the batch holds no records")
    if header.is_stamped:
        raise InvalidRecordError(
            f"the batch is stamped with offset {header.base_offset} and leader epoch "
            f"{header.leader_epoch}: only a leader may do that"
        )
    if header.attributes & (Attributes.CONTROL | Attributes.DELETE_HORIZON):
        raise InvalidRecordError("only a broker may write control batches or delete horizons")
    if header.last_offset_delta != header.record_count - 1 or (
        header.attributes & Attributes.OFFSET_DELTAS
    ):
        raise InvalidRecordError("a producer's offsets must be dense: only a cleaner leaves gaps")


def _inflated(header: BatchHeader, stored: memoryview, *, canonical: bool) -> Buffer:
    codec = header.codec
    if codec == Codec.NONE and len(stored) == header.inflated_length:
        return stored
    if canonical:
        check_frames(codec, stored, header.inflated_length)
    return inflate(codec, stored, header.inflated_length)


def walk(data: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield header and bytes of each whole batch in `data`; a partial last one is left out.

    Raises:
        CorruptBatchError, UnsupportedFormatError: bytes that are not a batch.
    """
    view = memoryview(data)
    at, size = 0, len(view)
    while size - at >= HEADER_BYTES:
        header = parse_header(view, at)
        end = at + header.length
        if size < end:
            return
        yield header, view[at:end]
        at = end


def open_batch(
    topic_partition: TopicPartition, header: BatchHeader, batch: Buffer, inflated_bytes_max: int
) -> pa.RecordBatch:
    """Verify a batch that a broker sent and return its records, with the columns of `SCHEMA`.

    Nothing is copied out of an uncompressed batch of columns: the arrays look into `batch`. One of
    Kafka's is converted.

    Args:
        topic_partition: the partition that was read.
        header: the parsed header of `batch`.
        batch: the whole batch.
        inflated_bytes_max: the largest body that the reader allocates.

    Raises:
        CorruptBatchError, UnsupportedFormatError, InvalidRecordError, MessageTooLargeError: the
            batch is not what its leader accepted.
    """
    stored = _stored(topic_partition, header, batch, inflated_bytes_max)
    if header.format == KAFKA_FORMAT:
        return kafka_reader.open_kafka(header, stored)
    return _arrays(header, _inflated(header, stored, canonical=False))


def open_records(
    topic_partition: TopicPartition, header: BatchHeader, batch: Buffer, inflated_bytes_max: int
) -> FewRecords | pa.RecordBatch:
    """As `open_batch`, but a few plain records come as Python objects."""
    stored = _stored(topic_partition, header, batch, inflated_bytes_max)
    if header.format == KAFKA_FORMAT:
        return kafka_reader.open_few(header, stored)
    body = _inflated(header, stored, canonical=False)
    few = few_records.read(body, header)
    return _arrays(header, body) if few is None else few


def _stored(
    topic_partition: TopicPartition, header: BatchHeader, batch: Buffer, inflated_bytes_max: int
) -> memoryview:
    """Return the stored body of a batch within the reader's limits, verified."""
    if header.inflated_length > inflated_bytes_max or header.record_count > RECORDS_MAX:
        raise MessageTooLargeError(
            f"the batch at offset {header.base_offset} inflates to {header.inflated_length} bytes "
            f"and {words.count(header.record_count, 'record')}; the reader's limits are "
            f"{inflated_bytes_max} bytes and {RECORDS_MAX} records"
        )
    verify_body(topic_partition, header, batch)
    return memoryview(batch)[HEADER_BYTES : header.length]


def _arrays(header: BatchHeader, inflated: Buffer) -> pa.RecordBatch:
    body = column_reader.read(inflated, header)
    count = header.record_count
    if body.offset_deltas is None:
        offsets = np.arange(header.base_offset, header.base_offset + count, dtype=np.int64)
    else:
        offsets = numbers_of(body.offset_deltas).astype(np.int64) + header.base_offset
    arrays = [
        int64s_of(offsets),
        _timestamps(header, body),
        _cells(body.keys, count, header.attributes & Attributes.KEYS_EMPTY),
        _cells(body.values, count, header.attributes & Attributes.VALUES_EMPTY),
        _no_headers(count) if body.headers is None else body.headers,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


# All omitted columns use these zeros, for any number of records: as a bitmap they mean null, as
# offsets empty.
_ZEROS: Final = pa.py_buffer(bytes(4 * (RECORDS_MAX + 1)))
_NOTHING: Final = pa.py_buffer(b"")
_NO_CELLS: Final = [None, _ZEROS.slice(0, 4), _NOTHING]
"""Of a column without cells: one offset, as Arrow writes the whole buffer of it."""
_NO_ENTRIES: Final = pa.Array.from_buffers(
    HEADERS_TYPE.value_type,
    0,
    [None],
    0,
    children=[
        pa.Array.from_buffers(kind.type, 0, _NO_CELLS, 0) for kind in HEADERS_TYPE.value_type
    ],
)


def _timestamps(header: BatchHeader, body: Body) -> pa.Array:
    if header.has_append_time:
        return int64s_of(np.full(header.record_count, header.append_timestamp, np.int64))
    if body.timestamps is not None:
        return body.timestamps
    return int64s_of(np.full(header.record_count, header.base_timestamp, np.int64))


def _cells(column: pa.Array | None, count: int, empty: int) -> pa.Array:
    if column is not None:
        return column
    buffers = [None if empty else _ZEROS, _ZEROS, _NOTHING]
    return pa.Array.from_buffers(pa.binary(), count, buffers, 0 if empty else count)


def _no_headers(count: int) -> pa.Array:
    return pa.Array.from_buffers(HEADERS_TYPE, count, [None, _ZEROS], 0, children=[_NO_ENTRIES])


NO_RECORDS: Final = pa.RecordBatch.from_arrays(
    [int64s_of(np.empty(0, np.int64))] * 2 + [_cells(None, 0, empty=0)] * 2 + [_no_headers(0)],
    schema=SCHEMA,
)
"""A batch of records without any."""
