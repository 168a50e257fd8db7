"""How large a batch is in each format, and how long it takes to write and to open.

`python -m bench.format_sizes` prints the tables of docs/format.md.
"""

import random
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from millrace.core.ids import TopicId, TopicPartition, WallMs
from millrace.core.records import batch as record_batch
from millrace.core.records.batch import check, open_batch
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.columns import Columns
from millrace.core.records.header import HEADER_BYTES, parse_header

COUNTS = (1, 100, 10_000)
VALUE_BYTES, KEY_BYTES = 100, 8
TOPIC_PARTITION = TopicPartition(TopicId(bytes(16)), 0)
NOON = WallMs(1_700_000_000_000)
LIMITS = BatchLimits(batch_bytes_max=1 << 24, inflated_bytes_max=1 << 24)
KAFKA_HEADER_BYTES = 61  # Base offset to record count of a record batch of version 2.


def sizes() -> str:
    """Return the table of sizes: bytes of a whole batch, and of its overhead for each record."""
    lines = [
        "| records of 100 bytes | key | Millrace | Arrow IPC, same header | Kafka v2 |",
        "|---:|---|---:|---:|---:|",
    ]
    for key_bytes in (0, KEY_BYTES):
        for count in COUNTS:
            columns = records(count, key_bytes)
            payload = count * (VALUE_BYTES + key_bytes)
            of_each = (
                len(millrace(columns)),
                HEADER_BYTES + arrow_message(columns).size,
                kafka_bytes(count, key_bytes),
            )
            cells = [f"{size:,} (+{(size - payload) / count:.1f})" for size in of_each]
            key = f"{key_bytes} bytes" if key_bytes else "none"
            lines.append(f"| {count:,} | {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def times() -> str:
    """Return the table of times: microseconds to write and open a batch without keys."""
    lines = [
        "| records of 100 bytes | write | seal | check | open | Arrow IPC: write | open |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for count in COUNTS:
        columns = records(count, 0)
        prepared = record_batch.prepare(TOPIC_PARTITION, columns)
        whole = millrace(columns)
        header = parse_header(whole)
        message = arrow_message(columns)
        schema = arrow_batch(columns).schema
        cells = [
            fastest(lambda c=columns: record_batch.prepare(TOPIC_PARTITION, c)),  # type: ignore[misc]
            fastest(prepared.finish),
            fastest(lambda b=whole: check(TOPIC_PARTITION, b, LIMITS)),  # type: ignore[misc]
            fastest(lambda h=header, b=whole: open_batch(TOPIC_PARTITION, h, b, 1 << 24)),  # type: ignore[misc]
            fastest(lambda c=columns: arrow_message(c)),  # type: ignore[misc]
            fastest(lambda m=message, s=schema: pa.ipc.read_record_batch(m, s)),  # type: ignore[misc]
        ]
        lines.append(f"| {count:,} | " + " | ".join(f"{cell:,.1f}" for cell in cells) + " |")
    return "\n".join(lines)


def records(count: int, key_bytes: int) -> Columns:
    """Return `count` records of random bytes, which are the same in every run."""
    source = random.Random(count)
    return Columns(
        record_count=count,
        timestamps=NOON,
        values=[source.randbytes(VALUE_BYTES) for _ in range(count)],
        keys=[source.randbytes(key_bytes) for _ in range(count)] if key_bytes else None,
    )


def millrace(columns: Columns) -> bytes:
    """Return the whole batch."""
    prepared = record_batch.prepare(TOPIC_PARTITION, columns)
    return prepared.finish() + bytes(prepared.body)


def arrow_batch(columns: Columns) -> pa.RecordBatch:
    """Return the columns with information, as Arrow would hold them."""
    named = {"key": columns.keys, "value": columns.values}
    there = {name: pa.array(cells, pa.binary()) for name, cells in named.items() if cells}
    return pa.RecordBatch.from_pydict(there)


def arrow_message(columns: Columns) -> pa.Buffer:
    """Return an IPC message of the same columns; its schema would be known to both sides."""
    return arrow_batch(columns).serialize()


def kafka_bytes(count: int, key_bytes: int) -> int:
    """Return the size of a Kafka record batch, one timestamp for all, no headers."""
    total = KAFKA_HEADER_BYTES
    for offset_delta in range(count):
        record = 1 + zigzag_bytes(0) + zigzag_bytes(offset_delta)  # Attributes, time, offset.
        record += zigzag_bytes(key_bytes or -1) + key_bytes
        record += zigzag_bytes(VALUE_BYTES) + VALUE_BYTES + zigzag_bytes(0)
        total += zigzag_bytes(record) + record
    return total


def zigzag_bytes(number: int) -> int:
    """Return the bytes of a signed varint."""
    folded = number << 1 ^ number >> 63
    return max(1, -(-folded.bit_length() // 7))


def fastest(action: Callable[[], object]) -> float:
    """Return the microseconds of a call, as in the fastest quarter of the calls."""

    def runs() -> Iterator[float]:
        for _ in range(200):
            started = time.perf_counter()
            action()
            yield time.perf_counter() - started

    return sorted(runs())[50] * 1e6


if __name__ == "__main__":
    print(sizes())
    print()
    print(times())
