"""confluent-kafka-python copying a topic exactly once: the loop that its users write.

`settings` as in `copy_millrace`.
"""

import time

from bench.loads.confluent_consume import GATHER_TIMEOUT_S, MESSAGES_PER_CALL
from bench.loads.spec import Load, Moved, run_from_command_line, used_since
from bench.settings import CONFLUENT_CONSUMER, CONFLUENT_PRODUCER
from confluent_kafka import Consumer, KafkaException, Message, Producer

_WAIT_S = 120


def copy(load: Load) -> Moved:
    """Copy for the load's time and count what was committed."""
    settings = load.settings
    group, into, commit_s = settings["group"], settings["into"], settings["commit_ms"] / 1000
    common = {"bootstrap.servers": load.address, "log_level": 3}
    consumer = Consumer(
        {
            **common,
            **CONFLUENT_CONSUMER,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    producer = Producer({**common, **CONFLUENT_PRODUCER, "transactional.id": group})
    producer.init_transactions(_WAIT_S)
    consumer.subscribe([load.topic])
    messages: list[Message] = []
    while not messages:
        messages = consumer.consume(MESSAGES_PER_CALL, GATHER_TIMEOUT_S)
    records = 0
    started, cpu_started = time.perf_counter(), time.process_time()
    while (seconds := time.perf_counter() - started) < load.seconds:
        producer.begin_transaction()
        begun, taken = time.perf_counter(), 0
        while True:
            for message in messages:
                if message.error() is not None:
                    raise KafkaException(message.error())
                _produce(producer, into, message.value(), message.key())
            taken += len(messages)
            messages = []
            if time.perf_counter() - begun >= commit_s:
                break
            messages = consumer.consume(MESSAGES_PER_CALL, GATHER_TIMEOUT_S)
            producer.poll(0)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), _WAIT_S)
        producer.commit_transaction(_WAIT_S)
        records += taken
    used = used_since(cpu_started)
    consumer.close()
    if records >= settings["records"]:
        raise SystemExit(f"all {records} records were copied before the time was over")
    return Moved(records=records, bytes=0, seconds=seconds, detail=used)


def _produce(producer: Producer, topic: str, value: bytes, key: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, key)
        except BufferError:
            producer.poll(GATHER_TIMEOUT_S)
            continue
        return


if __name__ == "__main__":
    run_from_command_line(copy)
