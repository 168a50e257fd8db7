"""Batches for tests: sealed from columns, or resealed after a change; and strategies of them."""

import struct
from dataclasses import fields
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from tests.fakes.header_fields import FIELDS

from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, TopicPartition, WallMs
from millrace.core.records import batch as record_batch
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.columns import Columns
from millrace.core.records.compression import CODEC_NAMES, Compressor
from millrace.core.records.header import (
    HEADER_BYTES,
    KAFKA_FORMAT,
    TIMESTAMP_MAX,
    BatchHeader,
    parse_header,
    stamp,
)

TOPIC_PARTITION = TopicPartition(TopicId(bytes(range(16))), 3)
LIMITS = BatchLimits(batch_bytes_max=1 << 20, inflated_bytes_max=1 << 20)


def sealed(columns: Columns, codec: str = "none", **identity: int) -> bytes:
    """Return a whole batch as a producer sends it; `identity` is `PreparedBatch.finish`'s."""
    prepared = record_batch.prepare(TOPIC_PARTITION, columns, Compressor(codec))
    named: dict[str, Any] = identity
    return prepared.finish(**named) + bytes(prepared.body)


def idempotent(columns: Columns, codec: str = "none") -> bytes:
    """Return a whole batch of producer 7, epoch 1, sequence 20 on."""
    return sealed(
        columns,
        codec,
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(1),
        base_sequence=20,
    )


def with_body(batch: bytes, body: bytes, **numbers: Any) -> bytes:
    """Return an uncompressed `batch` with another body and numbers, and checksums that fit."""
    numbers = {"stored_length": len(body), "inflated_length": len(body)} | numbers
    return resealed(batch[:HEADER_BYTES] + body, **numbers)


def resealed(batch: bytes, **numbers: Any) -> bytes:
    """Return `batch` with other numbers in its header, and both checksums computed anew.

    This is what a hostile producer can do, and no accident.
    """
    data = bytearray(batch)
    for name, number in numbers.items():
        at, kind = FIELDS[name]
        struct.pack_into(kind, data, at, number)
    crc = crc32c.crc32c(struct.pack("<16si", *TOPIC_PARTITION))
    crc = crc32c.crc32c(data[:64], crc)
    body = data[HEADER_BYTES:]
    if data[3] == KAFKA_FORMAT:
        del body[12:16], body[:8]  # What the leader stamps.
    struct.pack_into("<I", data, 64, crc32c.crc32c(body, crc))
    struct.pack_into("<I", data, 92, crc32c.crc32c(data[:92]))
    return bytes(data)


def stamped(batch: bytes, **stamps: Any) -> bytes:
    """Return `batch` as a leader writes it."""
    return stamp(batch[:HEADER_BYTES], **stamps) + batch[HEADER_BYTES:]


def open_whole(batch: bytes, inflated_bytes_max: int = 1 << 20) -> pa.RecordBatch:
    """Parse and open a batch, and let Arrow check every cell of what comes out."""
    header = parse_header(batch)
    records = record_batch.open_batch(TOPIC_PARTITION, header, batch, inflated_bytes_max)
    records.validate(full=True)
    return records


def numbers_of(header: BatchHeader) -> dict[str, int]:
    """Return a parsed header's fields by their names, without the format, which its magic says."""
    return {
        field.name: getattr(header, field.name)
        for field in fields(header)
        if field.name != "format"
    }


def rows(columns: Columns) -> list[dict[str, Any]]:
    """Return what a reader must see of `columns`, whose batch begins at offset 0."""
    count = columns.record_count
    keys: Any
    values: Any
    times, keys, values, headers, deltas = (
        columns.timestamps,
        columns.keys,
        columns.values,
        columns.headers,
        columns.offset_deltas,
    )
    return [
        {
            "offset": i if deltas is None else int(deltas[i]),
            "timestamp": int(times[i]) if isinstance(times, np.ndarray) else times,
            "key": None if keys is None else keys[i],
            "value": None if values is None else values[i],
            "headers": []
            if headers is None
            else [{"key": name, "value": value} for name, value in headers[i]],
        }
        for i in range(count)
    ]


def _cells(count: int) -> st.SearchStrategy[list[bytes | None] | None]:
    some = st.lists(st.none() | st.binary(max_size=20), min_size=count, max_size=count)
    return st.one_of(
        st.none(),
        st.just([None] * count),
        st.just([b""] * count),
        st.lists(st.binary(max_size=20), min_size=count, max_size=count),
        # The size of the first cell decides how Python bytes are laid out, and must not be seen.
        st.lists(st.just(b"x" * 300) | st.binary(max_size=3), min_size=count, max_size=count),
        some,
    )


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    """Records of every combination of columns: there, left out, all null, all empty, mixed."""
    count = draw(st.integers(1, 20) | st.integers(64, 70))
    time = st.integers(0, TIMESTAMP_MAX)
    times = draw(time | st.lists(time, min_size=count, max_size=count))
    one_header = st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5))
    headers = st.lists(st.lists(one_header, max_size=3), min_size=count, max_size=count)
    return Columns(
        record_count=count,
        timestamps=WallMs(times) if isinstance(times, int) else np.array(times, np.int64),
        keys=draw(_cells(count)),
        values=draw(_cells(count)),
        headers=draw(st.none() | headers),
    )


def codecs() -> st.SearchStrategy[str]:
    """Any codec's name."""
    return st.sampled_from(CODEC_NAMES)
