"""Kafka and Millrace beside each other, and their clients with the settings that are fastest."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.millrace_broker import running_millrace
from bench.millrace_cluster import REPLICATION, running_millrace_cluster
from bench.peers.kafka import running_kafka
from bench.records import KEY_BYTES, write_random_records
from bench.settings import (
    CONFLUENT_CONSUMER,
    CONFLUENT_PRODUCER,
    JAVA_PRODUCER,
    KAFKA_TOPIC,
    MILLRACE_CONSUMER,
    MILLRACE_PRODUCER,
    MILLRACE_TOPIC,
)
from bench.sides import Broker, Consume, JavaConsume, JavaProduce, Produce


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both systems. Each method returns one side of a comparison, which runs when it is called.

    Attributes:
        directory: of both, and of the logs of the clients.
        records: the file of the records that are sent.
        record_bytes: of their values.
    """

    kafka: Broker
    millrace: Broker
    directory: Path
    records: Path
    record_bytes: int

    def produce(
        self,
        way: str,
        *,
        durability: str = "replicated",
        codec: str = "",
        partitions: int = 4,
        commit_ms: int = 0,
    ) -> Produce:
        """Our producer; without a codec it takes its default. 0 as `commit_ms`: no transactions."""
        return Produce(
            broker=self.millrace,
            module="millrace_produce",
            way=way,
            records_file=self.records,
            topic_config=MILLRACE_TOPIC[durability],
            settings=MILLRACE_PRODUCER | _named("compression", codec) | _commits(commit_ms),
            partitions=partitions,
        )

    def confluent_produce(
        self,
        way: str,
        *,
        durability: str = "replicated",
        codec: str = "",
        partitions: int = 4,
        commit_ms: int = 0,
    ) -> Produce:
        """confluent-kafka-python's producer."""
        return Produce(
            broker=self.kafka,
            module="confluent_produce",
            way=way,
            records_file=self.records,
            topic_config=KAFKA_TOPIC[durability],
            settings=CONFLUENT_PRODUCER | _named("compression.type", codec) | _commits(commit_ms),
            partitions=partitions,
        )

    def java_produce(
        self, *, durability: str = "replicated", codec: str = "", partitions: int = 4
    ) -> JavaProduce:
        """Kafka's own tool."""
        return JavaProduce(
            broker=self.kafka,
            directory=self.directory / "kafka",
            records_file=self.records,
            record_bytes=self.record_bytes,
            topic_config=KAFKA_TOPIC[durability],
            settings=JAVA_PRODUCER | _named("compression.type", codec),
            partitions=partitions,
        )

    def fill(self, topic: str, partitions: int, records: int, codec: str = "") -> dict[str, int]:
        """Fill a topic with records with keys on both; return how many each has."""
        options: Any = {"codec": codec, "partitions": partitions}
        return {
            "kafka": self.confluent_produce("keyed", **options).fill(topic, records),
            "millrace": self.produce("batch_keyed", **options).fill(topic, records),
        }

    def consume(self, way: str, topic: str, partitions: int = 4) -> Consume:
        """Our consumer of a filled topic."""
        return Consume(
            broker=self.millrace,
            module="millrace_consume",
            way=way,
            topic=topic,
            settings=MILLRACE_CONSUMER,
            log=self.directory / "consume.log",
            partitions=partitions,
        )

    def confluent_consume(self, topic: str, partitions: int = 4) -> Consume:
        """confluent-kafka-python's consumer."""
        return Consume(
            broker=self.kafka,
            module="confluent_consume",
            way="",
            topic=topic,
            settings=CONFLUENT_CONSUMER,
            log=self.directory / "consume.log",
            partitions=partitions,
        )

    def java_consume(self, topic: str, records: int) -> JavaConsume:
        """Kafka's own tool; the topic has so many records."""
        return JavaConsume(
            broker=self.kafka,
            directory=self.directory / "kafka",
            topic=topic,
            records=records,
            record_bytes=self.record_bytes + KEY_BYTES,
        )


@contextmanager
def running_pair(
    directory: Path,
    record_bytes: int,
    brokers: int = 1,
    kafka_properties: str = "",
    *,
    kafka_listener: bool = False,
) -> Iterator[Pair]:
    """Run both systems with so many brokers each, and write random records for them.

    Args:
        kafka_properties: more lines for Kafka's `server.properties`.
        kafka_listener: whether Kafka's clients reach Millrace, too.
    """
    replication = REPLICATION if brokers > 1 else 1
    cluster = running_millrace_cluster if brokers > 1 else running_millrace
    with (
        running_kafka(
            directory / "kafka",
            nodes=brokers,
            replication=replication,
            properties=kafka_properties,
        ) as kafka,
        cluster(directory / "millrace", kafka_listener=kafka_listener) as millrace,
    ):
        yield Pair(
            kafka=kafka,
            millrace=millrace,
            directory=directory,
            records=write_random_records(directory / "records", record_bytes),
            record_bytes=record_bytes,
        )


def _named(name: str, codec: str) -> dict[str, Any]:
    return {name: codec} if codec else {}


def _commits(commit_ms: int) -> dict[str, Any]:
    return {"commit_ms": commit_ms} if commit_ms else {}
