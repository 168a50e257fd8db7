"""All records that a topic has now, by librdkafka."""

from collections.abc import Iterator
from typing import Any

from confluent_kafka import TopicPartition
from tests.suites.command_lines import UnexpectedError


def messages_of(consumer: Any, topic: str, wait_s: float) -> Iterator[Any]:
    """Yield a topic's records, and close the consumer.

    Args:
        consumer: is told the ends of partitions (`enable.partition.eof`).
        topic: its name.
        wait_s: for each record.

    Raises:
        UnexpectedError: no record and no end came in time.
    """
    try:
        partitions = consumer.list_topics(topic, timeout=wait_s).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(wait_s)
            if message is None:
                raise UnexpectedError(f"nothing came of {topic}")
            if message.error():
                ended += 1  # The end of a partition.
            else:
                yield message
    finally:
        consumer.close()
