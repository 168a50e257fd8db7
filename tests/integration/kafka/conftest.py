"""Brokers that clients of Kafka reach."""

from collections.abc import Iterator

import pytest
from tests.integration.kafka.ends import KAFKA
from tests.integration.running_broker import RunningBroker

from millrace.client import SyncAdmin


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with a listener for clients of Kafka, for tests that leave it as it was."""
    broker = RunningBroker(tmp_path_factory.mktemp("kafka"), dict(KAFKA))
    yield broker.start()
    broker.abandon()


@pytest.fixture
def topic(kafka_broker: RunningBroker, topic_name: str) -> str:
    """A topic with one partition."""
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(topic_name, 1, 1)
    return topic_name
