"""Records through Kafka at a steady rate, by confluent-kafka-python: from due time to receipt.

Ways: `produce` and `consume`, one process each.
"""

from bench.loads.confluent_reading import begin_reading
from bench.loads.paced import due_records, receive, record_count
from bench.loads.spec import Load, Moved, run_from_command_line
from confluent_kafka import Producer

FLUSH_TIMEOUT_S = 30


def run(load: Load) -> Moved:
    """Produce or consume."""
    return _produce(load) if load.way == "produce" else _consume(load)


def _produce(load: Load) -> Moved:
    producer = Producer(
        {
            "bootstrap.servers": load.address,
            "acks": "all",
            "enable.idempotence": True,
            "log_level": 3,
            **load.settings,
        }
    )
    producer.list_topics(load.topic, timeout=FLUSH_TIMEOUT_S)
    for values in due_records(load):
        for value in values:
            producer.produce(load.topic, value)
        producer.poll(0)
    if producer.flush(FLUSH_TIMEOUT_S):
        raise SystemExit("not everything was delivered")
    return Moved(records=record_count(load), bytes=0, seconds=load.seconds)


def _consume(load: Load) -> Moved:
    consumer, poll = begin_reading(load, {"check.crcs": True, **load.settings})
    moved = receive(load, poll)
    consumer.close()
    return moved


if __name__ == "__main__":
    run_from_command_line(run)
