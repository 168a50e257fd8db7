"""Spark reads a topic that Kafka's clients and Millrace's have written."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.integration.kafka.ends import KAFKA, bootstrap
from tests.integration.running_broker import RunningBroker

from millrace.client import SyncProducer

confluent = pytest.importorskip("confluent_kafka")

COUNT = 600
PART = 100
"""Records that one of them writes before the other."""
NOON = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("spark_kafka"), dict(KAFKA))
    yield running.start()
    running.abandon()


def value(number: int) -> bytes | None:
    return None if number % 10 == 0 else b"v%d" % number


def headers(number: int) -> list[tuple[str, bytes | None]]:
    return [("n", b"%d" % number), ("n", None)] if number % 5 == 0 else []


@pytest.fixture(scope="module")
def topic(broker: RunningBroker) -> str:
    name = "of-both"
    broker.create_topic(name, 2, config={"retention.ms": "-1"})  # Its times are of 2023.
    theirs = confluent.Producer(
        {"bootstrap.servers": bootstrap(broker), "compression.type": "lz4", "linger.ms": 50}
    )
    with SyncProducer(broker.address) as ours:
        for begin in range(0, COUNT, PART):
            for number in range(begin, begin + PART):
                if begin // PART % 2:
                    ours.send(
                        name,
                        value(number),
                        partition=number % 2,
                        timestamp=NOON + number,
                        headers=headers(number),
                    )
                else:
                    theirs.produce(
                        name,
                        value(number),
                        partition=number % 2,
                        timestamp=NOON + number,
                        headers=headers(number),
                    )
            ours.flush()
            assert theirs.flush(20) == 0
    return name


def test_every_column_of_every_record(spark: Any, broker: RunningBroker, topic: str) -> None:
    frame = (
        spark.read.format("millrace")
        .option("kafka.bootstrap.servers", broker.address)
        .option("includeHeaders", "true")
        .option("subscribe", topic)
        .load()
    )
    rows = (
        frame.toArrow().sort_by([("offset", "ascending"), ("partition", "ascending")]).to_pylist()
    )
    assert len(rows) == COUNT
    for number, row in enumerate(rows):
        assert row["value"] == value(number)
        assert row["key"] is None
        assert (row["partition"], row["offset"]) == (number % 2, number // 2)
        assert row["timestamp"].astimezone(UTC) == datetime.fromtimestamp(
            (NOON + number) / 1000, UTC
        )
        assert (row["headers"] or []) == [
            {"key": name, "value": cell} for name, cell in headers(number)
        ]
