"""Some records of one partition, read with a bound on everything: records, bytes and time.

A page shows few records, but a batch may hold very many, and a value may be very large. So only the
records that are shown are taken from a batch, column by column, and only the beginning of each key
and value. A search for a key reads far more than it shows. It ends after some seconds or bytes, and
says how far it came, so that another one can continue there.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.core.errors import CreditTooSmallError, RequestTimedOutError
from millrace.core.topics import PartitionName
from millrace.web.clients import (
    CLIENT_ID,
    METADATA_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    Cluster,
    credentials,
)

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS_MAX: Final = 50
"""Records on a page."""
PREVIEW_BYTES: Final = 300
"""Of a key or a value in a list."""
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of the largest batch that is read; brokers take none above their `limits.message_bytes_max`."""
SEARCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that one search for a key reads."""
SEARCH_S_MAX: Final = 3.0
"""How long one search for a key reads."""
_READ_S_MAX: Final = 5.0
_FETCH_BYTES: Final = (2 * 1024 * 1024, BATCH_BYTES_MAX)
"""That may be on their way. Few suffice for a page, but a batch that is larger needs them all."""
_SEARCH_FETCH_BYTES: Final = (8 * 1024 * 1024, BATCH_BYTES_MAX)
_HEADERS_MAX: Final = 100
_HEADER_BYTES_MAX: Final = 4_000
"""Of the name or the value of a header, on whatever page."""


@dataclass(slots=True, frozen=True)
class Part:
    """A key, a value or the value of a header, or the beginning of one."""

    begin: bytes
    size: int

    @property
    def is_cut(self) -> bool:
        """Whether there is more of it."""
        return len(self.begin) < self.size


@dataclass(slots=True, frozen=True)
class Row:
    """A record; None: it has no such thing."""

    offset: int
    timestamp: int
    key: Part | None
    value: Part | None
    headers: tuple[tuple[str, Part | None], ...]
    headers_left_out: int = 0


@dataclass(slots=True, frozen=True)
class Found:
    """What was read.

    Attributes:
        rows: the records, in order.
        next_offset: where to read on; equal to the end: there is no more at present.
        searched: records that were looked at.
    """

    rows: Sequence[Row]
    next_offset: int
    searched: int


async def read(
    cluster: Cluster,
    place: PartitionName,
    start: int,
    end: int,
    *,
    key: bytes | None = None,
    records_max: int = RECORDS_MAX,
    part_bytes: int = PREVIEW_BYTES,
) -> Found:
    """Return the first records at or after an offset.

    Args:
        start: the offset; at least the log's start.
        end: where to stop at the latest: the end of the partition.
        key: only records with this key; None: all.
        records_max: so many records at the most.
        part_bytes: so many bytes of each key and value.

    Raises:
        CreditTooSmallError: a batch is larger than `BATCH_BYTES_MAX`.
        RequestTimedOutError: no record came in time.
        MillraceError: as `Consumer.poll_batches`.
    """
    few, most = _FETCH_BYTES if key is None else _SEARCH_FETCH_BYTES
    span = _Span(cluster, place, start, end)
    try:
        return await _read(span, key, records_max, part_bytes, few)
    except CreditTooSmallError:
        return await _read(span, key, records_max, part_bytes, most)


@dataclass(slots=True, frozen=True)
class _Span:
    cluster: Cluster
    place: PartitionName
    start: int
    end: int


async def _read(
    span: _Span, key: bytes | None, records_max: int, part_bytes: int, fetch_bytes: int
) -> Found:
    from millrace.client import Consumer  # It loads Arrow, which no other page needs.

    place, start, end = span.place, span.start, span.end
    rows: list[Row] = []
    position, searched, read_bytes = start, 0, 0
    deadline = time.monotonic() + (_READ_S_MAX if key is None else SEARCH_S_MAX)
    async with Consumer(
        span.cluster.place.bootstrap,
        client_id=CLIENT_ID,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        metadata_timeout_ms=METADATA_TIMEOUT_MS,
        fetch_max_bytes=fetch_bytes,
        auto_offset_reset="none",
        **credentials(span.cluster.place, span.cluster.token),
    ) as consumer:
        await consumer.assign({place: start}, ends={place: end})
        while position < end and len(rows) < records_max:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or read_bytes > SEARCH_BYTES_MAX:
                break
            for batch in await consumer.poll_batches(int(left_s * 1000) + 1, fetch_bytes):
                read_bytes += batch.records.nbytes
                taken = _taken(batch.records, position, end)
                if key is not None:
                    taken, looked_at = _with_key(taken, key), len(taken)
                else:
                    looked_at = len(taken)
                room = records_max - len(rows)
                rows += _rows(taken.slice(0, room), part_bytes)
                if len(taken) >= room:
                    position = rows[-1].offset + 1
                    searched += looked_at
                    break
                searched += looked_at
                last = batch.records.column("offset")[-1].as_py()
                position = min(max(position, last + 1), end)
            else:
                # Compaction may have removed the last records before the end.
                position = min(max(position, await consumer.position(place)), end)
    if position == start < end and not rows:
        raise RequestTimedOutError(
            f"no record of {place[0]}-{place[1]} at or after {start} came in time: `millrace "
            "cluster health` says whether the partition is well"
        )
    return Found(rows, position, searched)


def _taken(records: "pa.RecordBatch", position: int, end: int) -> "pa.RecordBatch":
    """Return the records of a batch from a position on, and before the end: a part, no copy."""
    first, last = records.column("offset").to_numpy().searchsorted((position, end))
    return records.slice(first, last - first)


def _with_key(records: "pa.RecordBatch", key: bytes) -> "pa.RecordBatch":
    import pyarrow as pa
    import pyarrow.compute as pc

    return records.filter(pc.equal(records.column("key"), pa.scalar(key, pa.binary())))


def _rows(records: "pa.RecordBatch", part_bytes: int) -> list[Row]:
    offsets, timestamps, keys, values, headers = records.columns
    return [
        Row(offset, timestamp, key, value, *_headers(row, part_bytes))
        for offset, timestamp, key, value, row in zip(
            offsets.to_pylist(),
            timestamps.to_pylist(),
            _parts(keys, part_bytes),
            _parts(values, part_bytes),
            headers,
            strict=True,
        )
    ]


def _parts(column: "pa.Array", part_bytes: int) -> list[Part | None]:
    """Return the beginning of each value of a column: the rest is never copied."""
    import pyarrow.compute as pc

    begins = pc.binary_slice(column, 0, part_bytes).to_pylist()
    sizes = pc.binary_length(column).to_pylist()
    return [
        None if begin is None else Part(begin, size)
        for begin, size in zip(begins, sizes, strict=True)
    ]


def _headers(
    row: "pa.ListScalar", part_bytes: int
) -> tuple[tuple[tuple[str, Part | None], ...], int]:
    values = row.values
    if values is None:
        return (), 0
    shown = values.slice(0, _HEADERS_MAX)
    import pyarrow.compute as pc

    begin = min(part_bytes, _HEADER_BYTES_MAX)
    names = pc.utf8_slice_codeunits(shown.field("key"), 0, begin).to_pylist()
    parts = _parts(shown.field("value"), begin)
    return tuple(zip(names, parts, strict=True)), len(values) - len(shown)
