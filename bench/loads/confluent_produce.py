"""confluent-kafka-python producing at full speed, acknowledged by all replicas.

Ways: `each` one produce() per record; `keyed` the same with a key; `callback` the same with a
delivery callback per record; `batch` produce_batch() of `BATCH_RECORDS`. flush() and the end
offsets of the topic prove the delivery.

With `commit_ms` among the settings all records are in transactions, each committed after that time,
as in `millrace_produce`.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.loads.spec import Load, Moved, run_from_command_line, used_since
from bench.records import keys_for, read_records
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

BATCH_RECORDS = 10_000
FLUSH_TIMEOUT_S = 120
FULL_QUEUE_WAIT_S = 0.005


def produce(load: Load) -> Moved:
    """Produce for the load's time, flush, and check that all of it arrived."""
    failures: list[KafkaError] = []
    settings = dict(load.settings)
    commit_ms = settings.pop("commit_ms", 0)
    if commit_ms:
        settings["transactional.id"] = load.topic
    producer = Producer(
        {
            "bootstrap.servers": load.address,
            "acks": "all",
            "enable.idempotence": True,
            "error_cb": failures.append,
            "log_level": 3,
            **settings,
        }
    )
    values = read_records(load.records_path)
    keys = keys_for(values)
    send = WAYS[load.way]
    # The clock starts after metadata and producer id are known.
    if commit_ms:
        producer.init_transactions()
        producer.begin_transaction()
    send(producer, load.topic, values[:1], keys[:1])
    producer.flush(FLUSH_TIMEOUT_S)
    sent = 1
    transactions = 1 if commit_ms else 0
    begun = time.perf_counter()
    started, cpu_started = time.perf_counter(), time.process_time()
    for first, last in _slices(len(values)):
        send(producer, load.topic, values[first:last], keys[first:last])
        producer.poll(0)
        sent += last - first
        if commit_ms and time.perf_counter() - begun >= commit_ms / 1000:
            producer.commit_transaction()
            producer.begin_transaction()
            transactions += 1
            begun = time.perf_counter()
        if time.perf_counter() - started >= load.seconds or sent - 1 >= load.records_max > 0:
            break
    left = producer.flush(FLUSH_TIMEOUT_S)
    if commit_ms:
        producer.commit_transaction()
    seconds = time.perf_counter() - started
    used = used_since(cpu_started)
    markers = _end_offsets(load) - sent
    if left or failures or not 0 <= markers <= transactions * load.partitions:
        raise SystemExit(f"{left} records not delivered of {sent}, errors: {failures}")
    record_bytes = len(values[0]) + (len(keys[0]) if load.way == "keyed" else 0)
    return Moved(
        records=sent - 1,
        bytes=record_bytes * (sent - 1),
        seconds=seconds,
        detail=used,
    )


def _slices(count: int) -> Iterator[tuple[int, int]]:
    """Go round and round over `count` records in slices of at most `BATCH_RECORDS`."""
    while True:
        for first in range(0, count, BATCH_RECORDS):
            yield first, min(first + BATCH_RECORDS, count)


def _each(producer: Producer, topic: str, values: list[bytes], _: list[bytes]) -> None:
    send = producer.produce
    for value in values:
        try:
            send(topic, value)
        except BufferError:
            _when_there_is_room(producer, topic, value)


def _keyed(producer: Producer, topic: str, values: list[bytes], keys: list[bytes]) -> None:
    send = producer.produce
    for value, key in zip(values, keys, strict=True):
        try:
            send(topic, value, key)
        except BufferError:
            _when_there_is_room(producer, topic, value, key)


def _callback(producer: Producer, topic: str, values: list[bytes], _: list[bytes]) -> None:
    send = producer.produce
    for value in values:
        try:
            send(topic, value, on_delivery=_delivered)
        except BufferError:
            _when_there_is_room(producer, topic, value, on_delivery=_delivered)


def _batch(producer: Producer, topic: str, values: list[bytes], _: list[bytes]) -> None:
    messages = [{"value": value} for value in values]
    while producer.produce_batch(topic, messages) < len(messages):
        messages = [{"value": message["value"]} for message in messages if "_error" in message]
        producer.poll(FULL_QUEUE_WAIT_S)


def _when_there_is_room(producer: Producer, topic: str, *record: Any, **options: Any) -> None:
    while True:
        producer.poll(FULL_QUEUE_WAIT_S)
        try:
            producer.produce(topic, *record, **options)
        except BufferError:
            continue
        return


def _delivered(error: KafkaError | None, _: object) -> None:
    if error is not None:
        raise KafkaException(error)


def _end_offsets(load: Load) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": load.address,
            "group.id": "check",
            "log_level": 3,
            **load.security,
        }
    )
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(load.topic, partition))[1]
            for partition in range(load.partitions)
        )
    finally:
        consumer.close()


WAYS: dict[str, Callable[[Producer, str, list[bytes], list[bytes]], None]] = {
    "each": _each,
    "keyed": _keyed,
    "callback": _callback,
    "batch": _batch,
}

if __name__ == "__main__":
    run_from_command_line(produce)
