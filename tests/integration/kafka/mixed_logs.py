"""One partition that clients of Millrace and of Kafka write and read: batches of both formats."""

from collections.abc import Iterable
from typing import Any

import pytest
from tests.integration.kafka.ends import bootstrap
from tests.integration.running_broker import RunningBroker
from tests.integration.running_cluster import RunningCluster

from millrace.broker.storage import inspection
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.client import SyncConsumer, SyncProducer
from millrace.core.ids import Offset

confluent = pytest.importorskip("confluent_kafka")

TOPIC = "tails"
PLACE = (TOPIC, 0)

Cells = Iterable[tuple[bytes, bytes | None]]


def write(cluster: RunningCluster, cells: Cells, *, as_kafka: bool, codec: str = "none") -> None:
    """Write by a client of one kind, in small batches, and have all acknowledged."""
    if not as_kafka:
        with SyncProducer(cluster.bootstrap, acks="all", batch_size="1KiB") as producer:
            for future in [producer.send(TOPIC, value, key=key) for key, value in cells]:
                future.result(60)
        return
    settings = {
        "bootstrap.servers": bootstrap(*cluster.brokers),
        "compression.type": codec,
        "enable.idempotence": True,
        "batch.num.messages": 10,
    }
    failed: list[Any] = []
    producer = confluent.Producer(settings)
    for key, value in cells:
        producer.produce(
            TOPIC, value, key, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert failed == []


def read_by_kafka(cluster: RunningCluster, end: int) -> dict[int, tuple[bytes, bytes | None]]:
    """Return the records of the topic by their offsets, as librdkafka's consumer sees them."""
    settings = {
        "bootstrap.servers": bootstrap(*cluster.brokers),
        "group.id": "none",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "check.crcs": True,
        "enable.partition.eof": True,
    }
    found: dict[int, tuple[bytes, bytes | None]] = {}
    consumer = confluent.Consumer(settings)
    try:
        consumer.assign([confluent.TopicPartition(TOPIC, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                assert message.error().code() == confluent.KafkaError._PARTITION_EOF
                assert message.offset() == end
                return found
            found[message.offset()] = message.key(), message.value()
    finally:
        consumer.close()


def read_by_millrace(cluster: RunningCluster, last: int) -> dict[int, tuple[bytes, bytes | None]]:
    """Return the records of the topic by their offsets, as Millrace's consumer sees them."""
    found: dict[int, tuple[bytes, bytes | None]] = {}
    with SyncConsumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign({PLACE: 0})
        for record in consumer:
            found[record.offset] = record.key, record.value
            if record.offset == last:
                return found
    raise AssertionError("the last record did not come")


def formats_of(broker: RunningBroker) -> set[int]:
    """Check every byte of a stopped broker's logs; return the formats of the topic's batches."""
    files, formats = PosixFileSystem(), set()
    for log_dir in broker.log_dirs:
        for partition in inspection.partitions(files, str(log_dir)):
            verified = inspection.verify_partition(files, partition)
            assert verified.is_sound, verified.findings
            for batch in inspection.batches(files, partition, Offset(0)):
                if batch.header.record_count:
                    formats.add(batch.header.format)
    return formats
