"""What a program's page says of its clients is what they did, at a real broker."""

import asyncio
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.arch.repository import ROOT
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import (
    Admin,
    Consumer,
    InvalidRequestError,
    Producer,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    UnknownTopicOrPartitionError,
)
from millrace.client.metrics import OTHERS, ClientCollector

VALUE = b"x" * 100


class Page:
    """A program's page.

    Args:
        collector: of its clients.
    """

    def __init__(self, collector: ClientCollector) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.registry.register(collector)

    def value(self, name: str, **labels: str) -> float:
        """Return a sample of the text that Prometheus gets; 0 when it is absent."""
        text = generate_latest(self.registry).decode()
        wanted = {"client_id": "shop", **labels}
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"millrace_{name}" and wanted.items() <= sample.labels.items()
        )

    def wait_for(self, value: float, name: str, **labels: str) -> None:
        """Return once a sample has a value.

        The clients' thread may tell an outcome to who waits for it before it has counted it.
        """
        wait_until(lambda: self.value(name, **labels) == value, f"{name} is {value}")


@pytest.fixture
def topic(shared_broker: RunningBroker, topic_name: str) -> str:
    shared_broker.create_topic(topic_name, partitions=2)
    return topic_name


def test_the_page_tells_what_was_sent_and_read(shared_broker: RunningBroker, topic: str) -> None:
    with (
        SyncProducer(shared_broker.address, client_id="shop") as producer,
        SyncConsumer(shared_broker.address, client_id="shop", group=topic) as consumer,
        SyncAdmin(shared_broker.address, client_id="shop") as admin,
    ):
        page = Page(ClientCollector(producer, consumer, admin))
        producer.send_batch(topic, [VALUE] * 1000, partition=0).result(10)
        producer.send_batch(topic, [VALUE] * 500, partition=1).result(10)
        assert page.value("producer_records_total") == 1500
        page.wait_for(2, "producer_delivery_seconds_count")
        assert page.value("producer_acknowledged_records_total") == 1500
        assert page.value("producer_record_bytes_total") >= 1500 * len(VALUE)
        assert page.value("producer_batches_total") == 2
        assert 0 < page.value("producer_delivery_seconds_sum") < 20
        assert page.value("producer_delivery_seconds_bucket", le="+Inf") == 2
        assert page.value("producer_request_seconds_count") == 2
        assert page.value("producer_failed_records_total") == 0
        assert page.value("producer_buffer_bytes") == 32 << 20
        page.wait_for(32 << 20, "producer_buffer_available_bytes")

        admin.describe_topic(topic)
        assert page.value("client_call_seconds_count", method="GetMetadata") > 0
        assert page.value("client_call_seconds_count", method="Hello") >= 2

        consumer.subscribe([topic])
        read = 0
        while read < 100:
            read += len(consumer.poll(10_000, max_records=100 - read))
        assert page.value("consumer_assigned_partitions") == 2
        wait_until(
            lambda: page.value("consumer_lag_records", topic=topic) == 1500 - 100,
            "both partitions have been heard of",
        )
        while read < 1500:
            read += len(consumer.poll(10_000))
        assert page.value("consumer_lag_records", topic=topic) == 0
        assert page.value("consumer_records_total") == 1500
        assert page.value("consumer_batches_total") == 2
        sent = page.value("producer_batch_bytes_total")
        assert page.value("consumer_batch_bytes_total") == sent
        assert page.value("consumer_age_seconds_count") == 2
        assert 0 <= page.value("consumer_last_poll_age_seconds") < 20
        consumer.commit()
        assert page.value("consumer_commit_seconds_count") == consumer.metrics()["commits"] > 0
        assert page.value("consumer_assignments_total") >= 1
    assert page.value("consumer_assigned_partitions") == 0
    assert page.value("consumer_records_total") == 1500


def test_failed_records_are_counted_by_error(shared_broker: RunningBroker, topic: str) -> None:
    with SyncProducer(shared_broker.address, client_id="shop") as producer:
        page = Page(ClientCollector(producer))
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send_batch("not-there", [VALUE] * 3).result(10)
        producer.send(topic, VALUE).result(10)
        failed = page.value("producer_failed_records_total", error="UNKNOWN_TOPIC_OR_PARTITION")
        assert failed == producer.metrics()["failed_records"] == 3
        page.wait_for(1, "producer_acknowledged_records_total")


def test_clients_of_one_id_are_one_and_what_is_removed_stays_counted(
    shared_broker: RunningBroker, topic: str
) -> None:
    collector = ClientCollector()
    page = Page(collector)
    for _ in range(3):
        with SyncProducer(shared_broker.address, client_id="shop") as producer:
            collector.add(producer)
            producer.send_batch(topic, [VALUE] * 10).result(10)
        collector.remove(producer)  # It is closed: all is counted.
    assert page.value("producer_buffer_bytes") == 0
    with (
        SyncProducer(shared_broker.address, client_id="shop") as one,
        SyncProducer(shared_broker.address, client_id="shop") as other,
        SyncProducer(shared_broker.address, client_id="else") as third,
    ):
        for producer in (one, other, third):
            collector.add(producer)
            producer.send(topic, VALUE).result(10)
        page.wait_for(5, "producer_delivery_seconds_count")
        assert page.value("producer_acknowledged_records_total") == 32
        assert page.value("producer_buffer_bytes") == 2 * (32 << 20)
        page.wait_for(1, "producer_acknowledged_records_total", client_id="else")


async def test_the_topics_beyond_the_maximum_share_a_label(shared_broker: RunningBroker) -> None:
    names = [f"metrics-{number}" for number in range(4)]
    with SyncAdmin(shared_broker.address) as admin:
        for name in names:
            admin.create_topic(name)
    async with (
        Producer(shared_broker.address, client_id="shop") as producer,
        Consumer(shared_broker.address, client_id="shop") as consumer,
        Admin(shared_broker.address, client_id="shop") as admin,
    ):
        page = Page(ClientCollector(producer, consumer, admin, topics_max=2))
        for name in names:
            await producer.send(name, VALUE)
        await consumer.assign(names, start="beginning")
        await asyncio.to_thread(
            wait_until,
            lambda: page.value("consumer_lag_records") == 4,
            "all partitions have been heard of",
        )
        assert page.value("consumer_lag_records", topic=OTHERS) == 2


async def test_the_lag_of_a_topic_is_not_shown_while_that_of_a_partition_is_unknown(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    _, second = places = [(topic_name, 0), (topic_name, 1)]
    async with (
        Admin(shared_broker.address) as admin,
        Producer(shared_broker.address) as producer,
        Consumer(shared_broker.address, client_id="shop") as consumer,
    ):
        await admin.create_topic(topic_name, partitions=2)
        for topic, partition in places:
            await producer.send(topic, VALUE, partition=partition)
        page = Page(ClientCollector(consumer))
        await consumer.assign(places, start="beginning")
        consumer.pause(second)  # Before any broker could say how much it has.
        assert [record.partition for record in await consumer.poll(10_000)] == [0]
        assert topic_name.encode() not in generate_latest(page.registry)
        consumer.resume(second)
        assert [record.partition for record in await consumer.poll(10_000)] == [1]
        assert topic_name.encode() in generate_latest(page.registry)
        assert page.value("consumer_lag_records", topic=topic_name) == 0


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'orders' is no client"):
        ClientCollector("orders")  # type: ignore[arg-type]


def test_the_example_of_the_documentation_serves_a_page(shared_broker: RunningBroker) -> None:
    text = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    section = text.partition("## Programs that use the client\n")[2].partition("\n## ")[0]
    example = section.partition("```python\n")[2].partition("```")[0]
    example = example.replace("localhost:7092", shared_broker.address).replace("(9000)", "(0)")
    made: dict[str, Any] = {}
    known = set(REGISTRY._collector_to_names)
    exec(example, made)
    server = made["server"]
    try:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as page:
            assert 'millrace_producer_records_total{client_id="shop"} 0.0' in page.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        made["thread"].join()
        for collector in set(REGISTRY._collector_to_names) - known:
            REGISTRY.unregister(collector)
        made["producer"].close()
        made["consumer"].close()
