"""What the clients of Kafka under faults share: librdkafka's settings, and how its errors count.

Times are short, as of the other clients, so that a client soon leaves a broker that says nothing.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from millrace.core.isolation import READ_COMMITTED, Isolation

TRIES_MS: Final = 90_000
"""How long a record is tried, as by the other writers."""
_COMMON: Final[Mapping[str, Any]] = {
    "socket.timeout.ms": 5_000,
    "socket.connection.setup.timeout.ms": 5_000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 2,
}


def producer(bootstrap: str, **settings: Any) -> Producer:
    """Return an idempotent producer with `acks=all`; names of settings have `_` for each dot."""
    return Producer(
        {
            **_COMMON,
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "request.timeout.ms": 5_000,
            "message.timeout.ms": TRIES_MS,
            **_dotted(settings),
        }
    )


def consumer(bootstrap: str, isolation: Isolation = READ_COMMITTED, **settings: Any) -> Consumer:
    """Return a consumer that checks checksums, and commits and resets nothing by itself."""
    return Consumer(
        {
            **_COMMON,
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "fetch.wait.max.ms": 100,
            "check.crcs": True,
            **_dotted(settings),
        }
    )


@contextmanager
def damage_is_a_crash() -> Iterator[None]:
    """End the process as a crash does where librdkafka has damaged what the interpreter uses.

    Such damage shows as an exception of a class that is none, and no program handles it.
    """
    try:
        yield
    except SystemError:
        logging.exception("librdkafka has damaged the heap")
        os.abort()


def beginning(places: Mapping[int, tuple[str, int]]) -> list[TopicPartition]:
    """Return the beginnings of partitions."""
    return [TopicPartition(topic, partition, 0) for topic, partition in places.values()]


def is_end(error: KafkaError) -> bool:
    """Whether it only says that the end of a partition was reached."""
    return bool(error.code() == KafkaError._PARTITION_EOF)


def said(error: KafkaError) -> str:
    """Return an error's name and words."""
    return f"{error.name()}: {error.str()}"


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}
