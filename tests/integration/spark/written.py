"""What tests of the sink need: topics, rows that are written, and the records that count."""

from typing import Any
from uuid import uuid4

from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import Record, SyncAdmin, SyncConsumer, SyncProducer

END = b"the end "
"""Of what `records` reads."""


def create(broker: RunningBroker, *topics: str, partitions: int = 3, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    with SyncAdmin(broker.address) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions, config=settings)


def records(broker: RunningBroker, topic: str) -> list[Record]:
    """Return all records that count, by partition and offset, once it is decided which do."""
    mark = END + uuid4().bytes
    found: list[Record] = []
    with (
        SyncAdmin(broker.address) as admin,
        SyncProducer(broker.address) as producer,
        SyncConsumer(broker.address) as consumer,
    ):
        partitions = admin.list_offsets(topic)
        for _, partition in partitions:
            producer.send(topic, mark, partition=partition)
        producer.flush()
        consumer.assign([topic], start="beginning")
        while sum(record.value == mark for record in found) < len(partitions):
            found += consumer.poll(1000)
    found = [record for record in found if not (record.value or b"").startswith(END)]
    return sorted(found, key=lambda record: (record.partition, record.offset))


def write(frame: Any, broker: RunningBroker, **options: str) -> None:
    frame.write.format("millrace").option("kafka.bootstrap.servers", broker.address).options(
        **options
    ).mode("append").save()


def wait_until_decided(address: str, topic: str, **settings: Any) -> None:
    """Return once no transaction is open in a topic: a reader of what is there ends before it.

    A commit ends when it is decided, and the partitions hear of it a moment later; that of a batch
    which Spark writes waits for them itself.

    Args:
        address: of the broker.
        topic: that a reader is to find whole.
        settings: of the client that asks.
    """
    with SyncAdmin(address, **settings) as admin:

        def is_decided() -> bool:
            every = admin.list_offsets(topic, isolation="read_uncommitted")
            return admin.list_offsets(topic) == every

        wait_until(is_decided, f"nothing is open in {topic}")
