"""confluent-kafka-python consuming at full speed: records with key and value as Python bytes.

All partitions are assigned from the beginning. At their ends reading starts over, so that a topic
in the page cache lasts for any time. The clock starts with the first batch, without connecting and
metadata.
"""

import time

from bench.loads.spec import Load, Moved, run_from_command_line, used_since
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

MESSAGES_PER_CALL = 10_000
GATHER_TIMEOUT_S = 0.05
"""consume() waits until its count is full; at the end of a topic it loses this time."""
SILENCE_MAX_S = 10.0


def consume(load: Load) -> Moved:
    """Consume for the load's time and count the records."""
    consumer = Consumer(
        {
            "bootstrap.servers": load.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 3,
            **load.settings,
        }
    )
    start = [
        TopicPartition(load.topic, partition, OFFSET_BEGINNING)
        for partition in range(load.partitions)
    ]
    consumer.assign(start)
    records = moved_bytes = at_end = 0
    started = cpu_started = 0.0
    heard = time.perf_counter()
    while True:
        messages = consumer.consume(MESSAGES_PER_CALL, GATHER_TIMEOUT_S)
        now = time.perf_counter()
        if messages:
            heard = now
        elif now - heard > SILENCE_MAX_S:
            raise SystemExit(f"nothing came for {SILENCE_MAX_S} s after {records} records")
        if not started:
            if messages:
                started, cpu_started = now, time.process_time()
            continue
        for message in messages:
            error = message.error()
            if error is None:
                value, key = message.value() or b"", message.key() or b""
                moved_bytes += len(value) + len(key)
                records += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end += 1
            else:
                raise KafkaException(error)
        seconds = time.perf_counter() - started
        if seconds >= load.seconds:
            break
        if at_end == load.partitions:
            at_end = 0
            consumer.assign(start)
    used = used_since(cpu_started)
    consumer.close()
    return Moved(records=records, bytes=moved_bytes, seconds=seconds, detail=used)


if __name__ == "__main__":
    run_from_command_line(consume)
