"""Consumers of Kafka's own clients that read partitions which the test names, and no group."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from tests.integration.kafka.ends import drop_sockets

confluent_kafka = pytest.importorskip(
    "confluent_kafka", reason="needs confluent-kafka: sh requirements/install.sh bench"
)

DEADLINE_S = 60.0


class Read(NamedTuple):
    """A record that a consumer got."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


Placed = tuple[int, int, bytes | None]
"""Partition, offset and value of a record."""


class Librdkafka:
    """Confluent's consumer."""

    def __init__(
        self, address: str, topic: str, partitions: Iterable[int] = (0,), **settings: Any
    ) -> None:
        places = [confluent_kafka.TopicPartition(topic, number, 0) for number in partitions]
        self._place = places[0]
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "fetch.wait.max.ms": 100,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.consumer.assign(places)

    def take(self, count: int) -> list[Read]:
        return [
            Read(
                message.offset(),
                message.key(),
                message.value(),
                message.timestamp()[1],
                tuple(message.headers() or ()),
            )
            for message in self._messages(count)
        ]

    def take_placed(self, count: int) -> list[Placed]:
        return [
            (message.partition(), message.offset(), message.value())
            for message in self._messages(count)
        ]

    def take_nothing(self, seconds: float = 1) -> None:
        assert self.consumer.consume(1, timeout=seconds) == []

    def _messages(self, count: int) -> list[Any]:
        found: list[Any] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            for message in self.consumer.consume(count - len(found), timeout=0.2):
                assert message.error() is None, message.error()
                found.append(message)
            assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        return found

    def seek(self, offset: int) -> None:
        self._place.offset = offset
        self.consumer.assign([self._place])

    def offset_at(self, timestamp: int) -> int | None:
        asked = confluent_kafka.TopicPartition(self._place.topic, self._place.partition, timestamp)
        (found,) = self.consumer.offsets_for_times([asked], timeout=DEADLINE_S)
        assert found.error is None, found.error
        return None if found.offset < 0 else int(found.offset)

    def ends(self) -> tuple[int, int]:
        low, high = self.consumer.get_watermark_offsets(self._place, timeout=DEADLINE_S)
        return low, high

    def close(self) -> None:
        self.consumer.close()


class KafkaPython:
    """kafka-python's consumer."""

    def __init__(
        self, address: str, topic: str, partitions: Iterable[int] = (0,), **settings: Any
    ) -> None:
        places = [PythonPartition(topic, number) for number in partitions]
        self._place = places[0]
        self.consumer = KafkaConsumer(
            bootstrap_servers=address,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            **{"fetch_max_wait_ms": 100, **settings},
        )
        self.consumer.assign(places)
        for place in places:
            self.consumer.seek(place, 0)

    def take(self, count: int) -> list[Read]:
        return [
            Read(record.offset, record.key, record.value, record.timestamp, tuple(record.headers))
            for record in self._records(count)
        ]

    def take_placed(self, count: int) -> list[Placed]:
        return [(record.partition, record.offset, record.value) for record in self._records(count)]

    def take_nothing(self, seconds: float = 1) -> None:
        assert not self.consumer.poll(timeout_ms=int(seconds * 1000))

    def _records(self, count: int) -> list[Any]:
        found: list[Any] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            polled = self.consumer.poll(timeout_ms=200, max_records=count - len(found))
            found += [record for records in polled.values() for record in records]
            assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        return found

    def seek(self, offset: int) -> None:
        self.consumer.seek(self._place, offset)

    def offset_at(self, timestamp: int) -> int | None:
        found = self.consumer.offsets_for_times({self._place: timestamp})[self._place]
        return None if found is None else int(found.offset)

    def ends(self) -> tuple[int, int]:
        beginning = self.consumer.beginning_offsets([self._place])[self._place]
        return beginning, self.consumer.end_offsets([self._place])[self._place]

    def close(self) -> None:
        self.consumer.close()
        # It leaves sockets behind that it never connected.
        del self.consumer
        drop_sockets()


Client = Callable[..., Any]
CLIENTS: Sequence[Client] = (Librdkafka, KafkaPython)


@contextmanager
def reading(
    client: Client, address: str, topic: str, partitions: Iterable[int] = (0,), **settings: Any
) -> Iterator[Any]:
    """Provide a consumer at the beginning of partitions.

    It has `take` and `take_placed` for the next records, `take_nothing` where there shall be none,
    and of its first partition `seek`, `offset_at` for times, and `ends`.
    """
    consumer = client(address, topic, partitions, **settings)
    try:
        yield consumer
    finally:
        consumer.close()
