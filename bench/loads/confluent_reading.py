"""A reader of confluent-kafka-python that gets each record as soon as it has come."""

from collections.abc import Callable
from typing import Any

from bench.loads.spec import Load
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

POLL_TIMEOUT_S = 10.0


def begin_reading(
    load: Load, settings: dict[str, Any]
) -> tuple[Consumer, Callable[[], list[bytes]]]:
    """Read a load's topic from its beginning.

    Returns:
        The consumer, to be closed, and a function that returns the values that have come: none if
        none came in time.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": load.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "log_level": 3,
            **settings,
        }
    )
    consumer.assign(
        [
            TopicPartition(load.topic, partition, OFFSET_BEGINNING)
            for partition in range(load.partitions)
        ]
    )

    def poll() -> list[bytes]:
        # consume() would wait until its count is full.
        message = consumer.poll(POLL_TIMEOUT_S)
        if message is None:
            return []
        if message.error() is not None:
            raise KafkaException(message.error())
        return [message.value() or b""]

    return consumer, poll
