"""Clients of Kafka's own world against a broker: librdkafka and kafka-python."""

import contextlib
import gc
import warnings
from collections.abc import Iterator
from typing import Any

from tests.integration.running_broker import RunningBroker

from millrace.client import SyncConsumer

KAFKA = {"listeners.clients_kafka.port": 0}
"""Settings of a broker that serves clients of Kafka."""


def bootstrap(*brokers: RunningBroker) -> str:
    """Return where clients of Kafka begin."""
    return ",".join(broker.kafka_address for broker in brokers)


@contextlib.contextmanager
def closing(client: Any) -> Iterator[Any]:
    """Close a client of kafka-python at the end."""
    try:
        yield client
    finally:
        client.close()


def drop_sockets() -> None:
    """Close the sockets that kafka-python leaves to the garbage collector.

    Whenever else it finds them, it warns, and the test that runs then fails.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def read(broker: RunningBroker, topic: str, count: int) -> list[Any]:
    """Return a topic's first records."""
    found: list[Any] = []
    with SyncConsumer(broker.address) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            found.append(record)
            if len(found) == count:
                break
    return found
