"""Millrace's client producing at full speed: from Python bytes to acknowledged by all replicas.

Ways: `each` one send() per record; `keyed` the same with a key; `handle` the same, asking every
record's handle for its outcome when the next `SEND_SLICE` records have been sent; `batch`
send_batch() of `BATCH_BYTES`; `batch_keyed` the same with keys. flush() and the end offsets of the
topic prove the delivery.

With `commit_ms` among the settings all records are in transactions, each committed after that time.
Then the end offsets count markers, too, of which there is at most one for a transaction and
partition.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence

from bench.loads.spec import Load, Moved, run_from_command_line, used_since
from bench.records import keys_for, read_records

from millrace.client import RecordHandle, SyncAdmin, SyncProducer

BATCH_BYTES = 1 << 20
SEND_SLICE = 10_000

Handles = Sequence[RecordHandle]


def produce(load: Load) -> Moved:
    """Produce for the load's time, flush, and check that all of it arrived."""
    values = read_records(load.records_path)
    keys = keys_for(values)
    send = WAYS[load.way]
    slice_records = BATCH_BYTES // len(values[0]) if "batch" in load.way else SEND_SLICE
    settings = dict(load.settings)
    commit_ms = settings.pop("commit_ms", 0)
    if commit_ms:
        settings["transactional_id"] = load.topic
    with SyncProducer(load.address, acks="all", **settings) as producer:
        # The clock starts after metadata and producer id are known.
        if commit_ms:
            producer.begin_transaction()
        send(producer, load.topic, values[:1], keys[:1])
        producer.flush()
        sent = 1
        transactions = 1 if commit_ms else 0
        begun = time.perf_counter()
        unseen: deque[Sequence[RecordHandle]] = deque()
        started, cpu_started = time.perf_counter(), time.process_time()
        is_over = False
        while not is_over:
            for first in range(0, len(values), slice_records):
                chosen = slice(first, first + slice_records)
                unseen.append(send(producer, load.topic, values[chosen], keys[chosen]))
                sent += len(values[chosen])
                while len(unseen) > 1:
                    _see_outcomes(unseen.popleft())
                if commit_ms and time.perf_counter() - begun >= commit_ms / 1000:
                    producer.commit_transaction()
                    producer.begin_transaction()
                    transactions += 1
                    begun = time.perf_counter()
                is_over = (
                    time.perf_counter() - started >= load.seconds or sent > load.records_max > 0
                )
                if is_over:
                    break
        producer.flush()
        for handles in unseen:
            _see_outcomes(handles)
        if commit_ms:
            producer.commit_transaction()
        seconds = time.perf_counter() - started
        used = used_since(cpu_started)
    arrived = _end_offsets(load)
    if not sent <= arrived <= sent + transactions * load.partitions:
        raise SystemExit(f"{sent} records sent and flushed, {arrived} are in the log")
    record_bytes = len(values[0]) + (len(keys[0]) if "keyed" in load.way else 0)
    return Moved(
        records=sent - 1,
        bytes=record_bytes * (sent - 1),
        seconds=seconds,
        detail=used,
    )


def _each(producer: SyncProducer, topic: str, values: list[bytes], _: list[bytes]) -> Handles:
    send = producer.send
    for value in values:
        send(topic, value)
    return ()


def _keyed(producer: SyncProducer, topic: str, values: list[bytes], keys: list[bytes]) -> Handles:
    send = producer.send
    for value, key in zip(values, keys, strict=True):
        send(topic, value, key)
    return ()


def _handle(producer: SyncProducer, topic: str, values: list[bytes], _: list[bytes]) -> Handles:
    send = producer.send
    return [send(topic, value) for value in values]


def _see_outcomes(handles: Handles) -> None:
    for handle in handles:
        handle.result()


def _batch(producer: SyncProducer, topic: str, values: list[bytes], _: list[bytes]) -> Handles:
    producer.send_batch(topic, values)
    return ()


def _batch_keyed(
    producer: SyncProducer, topic: str, values: list[bytes], keys: list[bytes]
) -> Handles:
    producer.send_batch(topic, values, keys)
    return ()


def _end_offsets(load: Load) -> int:
    with SyncAdmin(load.address, **load.security) as admin:
        return sum(end.offset for end in admin.list_offsets(load.topic, "end").values())


WAYS: dict[str, Callable[[SyncProducer, str, list[bytes], list[bytes]], Handles]] = {
    "each": _each,
    "keyed": _keyed,
    "handle": _handle,
    "batch": _batch,
    "batch_keyed": _batch_keyed,
}

if __name__ == "__main__":
    run_from_command_line(produce)
