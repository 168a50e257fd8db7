"""Opens Kafka's record batches, which are the bodies of batches of format 2.

What comes out is what comes out of columns: the same schema, null and empty kept apart. The
records are passed once to find their fields (`kafka_walk`); then each column is copied out of the
inflated records at once. A reader trusts no broker with its memory, so it checks what the leader
has checked.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from millrace.core.errors import CorruptBatchError, InvalidRecordError
from millrace.core.records import kafka_batch, kafka_compression
from millrace.core.records.arrow_views import Int64s, int64s_of, slices
from millrace.core.records.columns import HEADERS_TYPE, SCHEMA
from millrace.core.records.few_records import FEW_BYTES, FewRecords
from millrace.core.records.header import KAFKA_HEADER_BYTES, BatchHeader, Buffer
from millrace.core.records.kafka_walk import FEW_MAX, Walked, WalkedHeaders, walk

_NO_HEADERS: Final = WalkedHeaders(*(np.empty(0, kind) for kind in "qiiii"))


def open_kafka(header: BatchHeader, body: Buffer) -> pa.RecordBatch:
    """Return the records of a body of format 2, with the columns of `SCHEMA`.

    Args:
        header: of the batch; the caller has held its sizes against limits.
        body: exactly the stored body.

    Raises:
        CorruptBatchError: it does not inflate to its size.
        UnsupportedFormatError: a codec that is not known.
        InvalidRecordError: the records are not what the header says.
    """
    records = _records(header, body)
    walked = walk(records, header.record_count)
    arrays = [
        int64s_of(_offsets(header, walked)),
        int64s_of(_timestamps(header, body, walked)),
        slices(records, walked.key_starts, walked.key_lengths),
        slices(records, walked.value_starts, walked.value_lengths),
        _headers(records, header.record_count, walked.headers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def open_few(header: BatchHeader, body: Buffer) -> FewRecords | pa.RecordBatch:
    """As `open_kafka`, but a few small records without headers come as Python objects."""
    if header.record_count > FEW_MAX or header.inflated_length > FEW_BYTES:
        return open_kafka(header, body)
    records = _records(header, body)
    walked = walk(records, header.record_count)
    if walked.headers is not None:
        return open_kafka(header, body)
    return FewRecords(
        _offsets(header, walked).tolist(),
        _timestamps(header, body, walked).tolist(),
        _cells(records, walked.key_starts, walked.key_lengths),
        _cells(records, walked.value_starts, walked.value_lengths),
    )


def _records(header: BatchHeader, body: Buffer) -> Buffer:
    """Return the inflated records."""
    length = header.inflated_length - KAFKA_HEADER_BYTES
    stored = memoryview(body)[KAFKA_HEADER_BYTES:]
    records = kafka_compression.inflate(header.codec, stored, length)
    if len(records) != length:
        raise CorruptBatchError(
            f"the records inflate to {len(records)} bytes but are declared as {length}"
        )
    return records


def _offsets(header: BatchHeader, walked: Walked) -> Int64s:
    deltas = walked.offset_deltas
    first, last = int(deltas[0]), int(deltas[-1])
    if first < 0 or last > header.last_offset_delta or (deltas[1:] <= deltas[:-1]).any():
        raise InvalidRecordError(
            f"the records' offsets do not ascend between 0 and {header.last_offset_delta}"
        )
    return deltas + header.base_offset


def _timestamps(header: BatchHeader, body: Buffer, walked: Walked) -> Int64s:
    if header.has_append_time:
        return np.full(header.record_count, header.append_timestamp, np.int64)
    return walked.timestamp_deltas + kafka_batch.read_header(body).base_timestamp


def _headers(records: Buffer, count: int, headers: WalkedHeaders | None) -> pa.Array:
    offsets = np.zeros(count + 1, np.int32)
    if headers is None:
        headers = _NO_HEADERS
    else:
        np.cumsum(headers.counts, out=offsets[1:])
    names = slices(records, headers.name_starts, headers.name_lengths, pa.string())
    values = slices(records, headers.value_starts, headers.value_lengths)
    entries = pa.Array.from_buffers(
        HEADERS_TYPE.value_type, len(names), [None], 0, children=[names, values]
    )
    return pa.Array.from_buffers(
        HEADERS_TYPE, count, [None, pa.py_buffer(offsets)], 0, children=[entries]
    )


def _cells(records: Buffer, starts: Int64s, lengths: Int64s) -> list[bytes | None] | None:
    """Return the cells of a column; None: all are null."""
    places = list(zip(starts.tolist(), lengths.tolist(), strict=True))
    if all(length < 0 for _, length in places):
        return None
    data = bytes(records)
    return [None if length < 0 else data[at : at + length] for at, length in places]
