"""Millrace's client consuming at full speed; the library verifies every batch's checksums.

Ways: `records` poll(), whose records hold key and value as Python bytes; `columns` poll_batches()
with the key and value columns turned into lists of bytes; `arrow` poll_batches() alone. All
partitions are assigned from the beginning. At their ends reading starts over, so that a topic in
the page cache lasts for any time. The clock starts with the first batch, without connecting and
metadata.
"""

import time
from collections.abc import Callable

from bench.loads.spec import Load, Moved, run_from_command_line, used_since

from millrace.client import SyncAdmin, SyncConsumer

POLL_TIMEOUT_MS = 10_000
MAX_RECORDS = 10_000


def consume(load: Load) -> Moved:
    """Consume for the load's time and count the records."""
    with SyncAdmin(load.address, **load.security) as admin:
        ends = admin.list_offsets(load.topic, "end").values()
    in_topic = sum(end.offset for end in ends)
    take = WAYS[load.way]
    places = [(load.topic, partition) for partition in range(load.partitions)]
    with SyncConsumer(load.address, **load.settings) as consumer:
        consumer.assign(places, start="beginning")
        count, _ = take(consumer)
        left = in_topic - count
        records = moved_bytes = 0
        started, cpu_started = time.perf_counter(), time.process_time()
        while (seconds := time.perf_counter() - started) < load.seconds:
            if not left:
                left = in_topic
                for place in places:
                    consumer.seek(place, "beginning")
            count, size = take(consumer)
            if not count:
                raise SystemExit(f"nothing came for {POLL_TIMEOUT_MS} ms, {left} records missing")
            records += count
            moved_bytes += size
            left -= count
        used = used_since(cpu_started)
    return Moved(records=records, bytes=moved_bytes, seconds=seconds, detail=used)


def _records(consumer: SyncConsumer) -> tuple[int, int]:
    size = 0
    records = consumer.poll(POLL_TIMEOUT_MS, MAX_RECORDS)
    for record in records:
        value, key = record.value, record.key
        size += len(value) + (len(key) if key is not None else 0)
    return len(records), size


def _columns(consumer: SyncConsumer) -> tuple[int, int]:
    count = size = 0
    for batch in consumer.poll_batches(POLL_TIMEOUT_MS):
        values = batch.records.column("value").to_pylist()
        keys = batch.records.column("key").to_pylist()
        count += len(values)
        size += sum(map(len, values)) + sum(map(len, keys))
    return count, size


def _arrow(consumer: SyncConsumer) -> tuple[int, int]:
    count = size = 0
    for batch in consumer.poll_batches(POLL_TIMEOUT_MS):
        count += batch.records.num_rows
        size += batch.records.column("value").nbytes + batch.records.column("key").nbytes
    return count, size


WAYS: dict[str, Callable[[SyncConsumer], tuple[int, int]]] = {
    "records": _records,
    "columns": _columns,
    "arrow": _arrow,
}

if __name__ == "__main__":
    run_from_command_line(consume)
