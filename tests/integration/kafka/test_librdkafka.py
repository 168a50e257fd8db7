"""librdkafka's producer, and Millrace's consumer reads what it wrote."""

import threading
from typing import Any

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.kafka.ends import KAFKA, bootstrap, read
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncAdmin

confluent = pytest.importorskip("confluent_kafka")


@pytest.mark.parametrize("codec_name", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_librdkafka_writes_and_millraces_consumer_reads(
    kafka_broker: RunningBroker, topic: str, codec_name: str, *, idempotent: bool
) -> None:
    settings = {
        "bootstrap.servers": bootstrap(kafka_broker),
        "compression.type": codec_name,
        "enable.idempotence": idempotent,
        "linger.ms": 5,
    }
    producer = confluent.Producer(settings)
    failed: list[Any] = []
    for number in range(1000):
        producer.produce(
            topic,
            key=b"%d" % (number % 7),
            value=b"value-%d" % number * 5,
            headers={"h": b"%d" % number},
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert failed == []
    found = read(kafka_broker, topic, 1000)
    assert [record.value for record in found] == [b"value-%d" % n * 5 for n in range(1000)]
    assert found[9].key == b"2"
    assert dict(found[9].headers) == {"h": b"9"}


def test_librdkafka_compresses_what_it_is_told_to(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    """Releases of a few years ago only where Produce is listed from version 0 on (KAFKA-18659)."""
    sizes = {}
    for name in ("none", "gzip", "snappy", "lz4", "zstd"):
        topic = f"{topic_name[:100]}-{name}"
        with SyncAdmin(kafka_broker.address) as admin:
            admin.create_topic(topic, 1, 1)
            settings = {"bootstrap.servers": bootstrap(kafka_broker), "compression.type": name}
            producer = confluent.Producer(settings)
            for _ in range(100):
                producer.produce(topic, bytes(1000))
            assert producer.flush(30) == 0
            (log,) = admin.describe_logs(topic)
            sizes[name] = log.size_bytes
    assert sizes.pop("none") > 100_000
    assert max(sizes.values()) < 30_000, sizes


def test_a_quota_delays_who_exceeds_it_and_says_so(start_broker: StartBroker) -> None:
    broker = start_broker({**KAFKA})
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("t", 1, 1)
        admin.set_quota("slow", client_id="rdkafka", produce_bytes_per_second=100_000)
    settings = {"bootstrap.servers": bootstrap(broker), "linger.ms": 0}
    told = threading.Event()
    producer = confluent.Producer({**settings, "throttle_cb": lambda _: told.set()})
    for _ in range(5):
        producer.produce("t", bytes(100_000))
        producer.flush(30)
    wait_until(lambda: producer.poll(0.05) is not None and told.is_set(), "a throttle is told")


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_leaders_die_and_librdkafka_loses_and_doubles_nothing(tmp_path: Any) -> None:
    with RunningCluster(tmp_path, KAFKA) as cluster:
        cluster.create_topic("t", 3, 3, {"min.insync.replicas": "2"})
        settings = {
            "bootstrap.servers": bootstrap(*cluster.brokers),
            "enable.idempotence": True,
            "linger.ms": 2,
        }
        producer = confluent.Producer(settings)
        failed: list[Any] = []

        def write(numbers: range) -> None:
            for number in numbers:
                producer.produce(
                    "t",
                    b"%d" % number,
                    partition=number % 3,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                producer.poll(0)

        write(range(1000))
        cluster[0].kill()
        write(range(1000, 2000))
        assert producer.flush(60) == 0
        cluster[0].start()
        write(range(2000, 2500))
        assert producer.flush(60) == 0
        assert failed == []
        found = read(cluster[1], "t", 2500)
        assert sorted(int(record.value) for record in found) == list(range(2500))


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_brokers_stop_one_after_another_and_librdkafka_notices_nothing(tmp_path: Any) -> None:
    with RunningCluster(tmp_path, KAFKA) as cluster:
        cluster.create_topic("t", 3, 3, {"min.insync.replicas": "2"})
        settings = {"bootstrap.servers": bootstrap(*cluster.brokers), "linger.ms": 2}
        producer = confluent.Producer({**settings, "enable.idempotence": True})
        failed: list[Any] = []
        sent = 0
        for broker in cluster.brokers:
            for _ in range(500):
                producer.produce(
                    "t",
                    b"%d" % sent,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                sent += 1
            assert broker.stop() == 0
            assert producer.flush(60) == 0
            broker.start()
        assert failed == []
        found = read(cluster[1], "t", sent)
        assert sorted(int(record.value) for record in found) == list(range(sent))


def test_librdkafka_goes_on_though_its_leader_does_not_know_it(start_broker: StartBroker) -> None:
    """As after a day of silence. By a new connection nothing tells that from a change of leaders in
    which the old one has batches that are not answered (K1), so its first batch is refused once."""
    broker = start_broker({**KAFKA})
    settings = {"bootstrap.servers": bootstrap(broker), "linger.ms": 1}
    producer = confluent.Producer({**settings, "enable.idempotence": True})
    told: list[Any] = []

    def write(values: list[bytes]) -> None:
        for value in values:
            producer.produce("t", value, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(60) == 0

    with SyncAdmin(broker.address) as admin:
        admin.create_topic("t", 1, 1)
        write([b"of the topic before"] * 10)
        admin.delete_topic("t")
        admin.create_topic("t", 1, 1)
    broker.kill()
    broker.start()
    values = [b"%d" % number for number in range(2000)]
    write(values)
    assert told == [None] * 2010
    assert [record.value for record in read(broker, "t", 2000)] == values
