"""What Kafka's clients wrote lies in the logs of three brokers beside batches of columns: it is
replicated, compacted, recovered and read as those are."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.kafka.ends import KAFKA, bootstrap
from tests.integration.kafka.mixed_logs import (
    PLACE,
    TOPIC,
    formats_of,
    read_by_kafka,
    read_by_millrace,
    write,
)
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncAdmin, SyncConsumer
from millrace.core.records.header import COLUMNS_FORMAT, KAFKA_FORMAT

confluent = pytest.importorskip("confluent_kafka")

KEYS = 40
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0",
}
REMOVED = "millrace_cleaner_removed_records_total"


@pytest.fixture
def cleaning(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers with listeners for both kinds of clients, that look for something to clean."""
    settings = {**KAFKA, "storage.cleaner_backoff_ms": 50}
    with RunningCluster(tmp_path, settings) as started:
        yield started


def round_of(number: int) -> list[tuple[bytes, bytes | None]]:
    return [(b"key-%d" % key, b"%d of round %d" % (key, number)) for key in range(KEYS)]


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_a_compacted_topic_keeps_the_last_value_of_each_key_whoever_wrote_it(
    cleaning: RunningCluster,
) -> None:
    with SyncAdmin(cleaning.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3, config=COMPACTED)
        codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
        for number in range(10):
            codec = codecs[number // 2]
            write(cleaning, round_of(number), as_kafka=number % 2 == 0, codec=codec)
        leader = admin.describe_topic(TOPIC).partitions[0].leader
        behind = next(b for b in cleaning.brokers if b is not cleaning[leader])
        # What it has of the last segment ends in the middle of what its leader will put together.
        write(cleaning, round_of(10)[:15], as_kafka=True)
        behind.kill()
        others = [broker for broker in cleaning.brokers if broker is not behind]
        write(cleaning, round_of(10)[15:], as_kafka=True)
        last = [*round_of(11)[: KEYS // 2], (b"key-30", None)]
        write(cleaning, last, as_kafka=True, codec="lz4")
        end = admin.list_offsets([PLACE], "end")[PLACE].offset
        wait_until(
            lambda: all(other.metrics()[REMOVED] >= end - KEYS - 1 for other in others),
            "both others have compacted everything",
            60,
        )
        behind.start()
        wait_until(
            lambda: len(admin.describe_topic(TOPIC).partitions[0].isr) == 3,
            "it is in sync again",
            60,
        )
        expected = dict([*round_of(10), *last])
        seen = read_by_kafka(cleaning, end)
        assert dict(seen[offset] for offset in sorted(seen)) == expected
        assert read_by_millrace(cleaning, max(seen)) == seen
    for broker in cleaning.brokers:
        broker.stop()
    for broker in cleaning.brokers:
        assert KAFKA_FORMAT in formats_of(broker)


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_logs_of_both_formats_are_the_same_after_kills_and_for_readers_of_both_kinds(
    tmp_path: Path,
) -> None:
    with RunningCluster(tmp_path, dict(KAFKA)) as cluster:
        with SyncAdmin(cluster.bootstrap) as admin:
            config = {"segment.bytes": "1MiB", "min.insync.replicas": "2"}
            admin.create_topic(TOPIC, partitions=1, replication_factor=3, config=config)
            expected: list[tuple[bytes, bytes | None]] = []
            for number, broker in enumerate([*cluster.brokers, cluster.brokers[0]]):
                some = [(b"%d" % at, b"%d of round %d" % (at, number) * 9) for at in range(500)]
                write(cluster, some[:250], as_kafka=True, codec="zstd" if number % 2 else "none")
                broker.kill()
                write(cluster, some[250:], as_kafka=False)
                broker.start()
                expected += some
            wait_until(
                lambda: len(admin.describe_topic(TOPIC).partitions[0].isr) == 3,
                "all are in sync",
                60,
            )
        by_kafka = read_by_kafka(cluster, len(expected))
        assert list(by_kafka.items()) == list(enumerate(expected))
        assert read_by_millrace(cluster, len(expected) - 1) == by_kafka
        for broker in cluster.brokers:
            broker.stop()
        for broker in cluster.brokers:
            assert formats_of(broker) >= {COLUMNS_FORMAT, KAFKA_FORMAT}


def test_append_time_is_what_both_kinds_of_readers_see(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    """K3: librdkafka checks the checksum that the leader has renewed."""
    with SyncAdmin(kafka_broker.address) as admin:
        config = {"message.timestamp.type": "LogAppendTime"}
        admin.create_topic(topic_name, partitions=1, replication_factor=1, config=config)
    producer = confluent.Producer({"bootstrap.servers": bootstrap(kafka_broker)})
    before = time.time_ns() // 1_000_000
    for number in range(3):
        producer.produce(topic_name, b"%d" % number, timestamp=1000 + number)
    assert producer.flush(30) == 0
    settings = {
        "bootstrap.servers": bootstrap(kafka_broker),
        "group.id": "none",
        "enable.auto.commit": False,
        "check.crcs": True,
    }
    consumer = confluent.Consumer(settings)
    try:
        consumer.assign([confluent.TopicPartition(topic_name, 0, 0)])
        messages = [consumer.poll(30) for _ in range(3)]
    finally:
        consumer.close()
    assert [message.value() for message in messages] == [b"0", b"1", b"2"]
    kinds, times = zip(*(message.timestamp() for message in messages), strict=True)
    assert set(kinds) == {confluent.TIMESTAMP_LOG_APPEND_TIME}
    assert before <= times[0] <= time.time_ns() // 1_000_000
    with SyncConsumer(kafka_broker.address) as reader:
        reader.assign({(topic_name, 0): 0})
        found = [next(iter(reader)) for _ in range(3)]
    assert [record.timestamp for record in found] == list(times)
