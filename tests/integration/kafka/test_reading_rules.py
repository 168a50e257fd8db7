"""What Kafka's consumers get by rights, quotas, zones, transactions and compaction."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.guarded import RULES, GuardedBroker, token_of
from tests.integration.kafka.ends import KAFKA, bootstrap
from tests.integration.kafka.kafka_consumers import (
    CLIENTS,
    Client,
    Librdkafka,
    confluent_kafka,
    reading,
)
from tests.integration.running_broker import flip, wait_until
from tests.integration.running_cluster import RunningCluster, write_numbers

from millrace.client import SyncAdmin, SyncProducer

RACKS = ("a", "b", "c")
RATE = 1_000_000
_AUTHORIZATION = confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture(params=CLIENTS, ids=lambda client: client.__name__)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


# --- Rights ----------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[GuardedBroker]:
    """A guarded broker with ten records in `orders` of the namespace `team`."""
    broker = GuardedBroker(tmp_path, {**KAFKA, "listeners.clients_kafka.namespace": "team"})
    with broker:
        token_file = str(broker.token_file("root"))
        with SyncAdmin(broker.address, token_file=token_file) as admin:
            admin.create_topic("team/orders", 1)
        write_numbers(broker.address, "team/orders", range(10), token_file=token_file)
        yield broker


def librdkafka_of(broker: GuardedBroker, name: str, topic: str = "orders") -> Librdkafka:
    return Librdkafka(
        bootstrap(broker),
        topic,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username=name,
        sasl_password=token_of(name),
    )


def first_error(consumer: Librdkafka) -> int:
    """Return the first error that a consumer is told, instead of records."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = consumer.consumer.poll(0.2)
        if message is not None:
            assert message.error() is not None, "it got a record"
            return int(message.error().code())
    raise AssertionError("it was told nothing")


def test_who_may_consume_a_topic_reads_it_and_no_one_else(guarded: GuardedBroker) -> None:
    for name in ("consumer", "owner"):
        consumer = librdkafka_of(guarded, name)
        assert [record.value for record in consumer.take(10)] == [b"%d" % n for n in range(10)]
        assert consumer.ends() == (0, 10)
        consumer.close()
    for name in ("describer", "producer"):
        consumer = librdkafka_of(guarded, name)
        assert first_error(consumer) == _AUTHORIZATION
        assert consumer.ends() == (0, 10), "the ends of logs are described"
        consumer.close()


def test_a_right_that_is_taken_away_ends_the_reading(guarded: GuardedBroker) -> None:
    consumer = librdkafka_of(guarded, "consumer")
    assert len(consumer.take(10)) == 10
    guarded.write_rules(RULES.replace('may = ["consume"]', 'may = ["describe"]'))
    assert first_error(consumer) == _AUTHORIZATION
    consumer.close()


# --- Quotas ----------------------------------------------------------------------------------


def test_a_consumer_is_held_to_its_quota_and_others_are_not(
    start_broker: StartBroker, client: Client
) -> None:
    broker = start_broker(KAFKA)
    broker.create_topic("t", 1)
    with SyncProducer(broker.address, batch_size=32_000) as producer:
        for _ in range(400):
            producer.send("t", bytes(10_000))
        producer.flush()
    with SyncAdmin(broker.address) as admin:
        admin.set_quota("slow", client_id="slow", fetch_bytes_per_second=RATE)

    def seconds(client_id: str) -> float:
        begun = time.monotonic()
        settings: dict[str, Any] = {"client_id": client_id}
        with reading(client, broker.kafka_address, "t", **settings) as consumer:
            consumer.take(400)
        return time.monotonic() - begun

    before, slow, after = map(seconds, ("free", "slow", "free"))
    # 4 MB; each answer but the last delays the next one.
    assert 2 < slow < 20
    # A pause of the machine may hold up one of the free ones, and a quota would both.
    assert min(before, after) < slow


# --- Zones -----------------------------------------------------------------------------------


def fetched_bytes(cluster: RunningCluster, broker_id: int) -> float:
    """Bytes that a broker has sent, to clients and to followers."""
    return cluster[broker_id].metrics().get('millrace_topic_fetched_bytes_total{topic="t"}', 0)


def test_a_reader_that_names_its_zone_reads_there_and_falls_back_to_the_leader(
    tmp_path: Path,
) -> None:
    with RunningCluster(tmp_path, KAFKA, racks=RACKS) as cluster:
        leader = cluster.create_topic("t", 1, 3).partitions[0].leader
        near = next(number for number in range(3) if number != leader)
        write_numbers(cluster.bootstrap, "t", range(100))
        addresses = bootstrap(*cluster.brokers)
        with reading(Librdkafka, addresses, "t", client_rack=RACKS[near]) as consumer:
            consumer.take(100)
            write_numbers(cluster.bootstrap, "t", range(100))
            consumer.take(100)
            wait_until(lambda: fetched_bytes(cluster, near) > 0, "the follower has sent them")
            cluster[near].kill()
            living = ",".join(broker.address for broker in cluster.brokers if broker.is_running)
            write_numbers(living, "t", range(50))
            assert len(consumer.take(50)) == 50


# --- Transactions of Millrace's own producers ------------------------------------------------


def test_transactions_are_read_when_they_are_committed_and_not_when_they_are_aborted(
    start_broker: StartBroker, client: Client
) -> None:
    broker = start_broker(KAFKA)
    broker.create_topic("t", 1)
    expected = []
    with (
        SyncProducer(broker.address, transactional_id="writer") as producer,
        reading(client, broker.kafka_address, "t", isolation_level="read_committed") as consumer,
        reading(client, broker.kafka_address, "t") as everything,
    ):
        for number in range(10):
            values = [b"%d of %d" % (part, number) for part in range(20)]
            with suppress(KeyError), producer.transaction() as transaction:
                handles = [transaction.send("t", value) for value in values]
                for handle in handles:
                    handle.result(30)  # Else an abort takes back what was not sent yet.
                if number % 3 == 0:
                    raise KeyError  # It is aborted.
                expected += values
        assert [record.value for record in consumer.take(len(expected))] == expected
        assert len(everything.take(200)) == 200
        with producer.transaction() as transaction:
            transaction.send("t", b"open").result(30)
            assert [record.value for record in everything.take(1)] == [b"open"]
            consumer.take_nothing()
        assert [record.value for record in consumer.take(1)] == [b"open"]


# --- What compaction has left ----------------------------------------------------------------

KEYS = 50
ROUNDS = 12
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0",
}


def cells() -> Iterator[tuple[bytes, bytes]]:
    for number in range(ROUNDS):
        for key in range(KEYS):
            yield b"key-%d" % key, b"%d of round %d" % (key, number)


@pytest.mark.parametrize("writer", ["millrace", "kafka"])
def test_the_last_value_of_each_key_is_read_where_batches_lost_records(
    start_broker: StartBroker, client: Client, writer: str
) -> None:
    broker = start_broker({**KAFKA, "storage.cleaner_backoff_ms": 50})
    broker.create_topic("t", 1, config=COMPACTED)
    if writer == "millrace":
        with SyncProducer(broker.address, batch_size="2KiB") as millrace:
            for key, value in cells():
                millrace.send("t", value, key=key)
            millrace.flush()
    else:
        settings = {"bootstrap.servers": broker.kafka_address, "batch.size": 2048}
        kafka = confluent_kafka.Producer({**settings, "enable.idempotence": True})
        for key, value in cells():
            kafka.produce("t", value, key)
        assert kafka.flush(60) == 0
    end = KEYS * ROUNDS
    removed = "millrace_cleaner_removed_records_total"
    wait_until(lambda: broker.metrics()[removed] >= end - KEYS, "everything is compacted", 40)
    with reading(client, broker.kafka_address, "t") as consumer:
        found = consumer.take(KEYS)
        assert [record.offset for record in found] == list(range(end - KEYS, end))
        assert {record.key: record.value for record in found} == dict(cells())
        consumer.take_nothing()
        for offset in (1, end // 2, end - KEYS - 1):  # Nothing of these is left.
            consumer.seek(offset)
            assert consumer.take(KEYS) == found


# --- Damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["millrace", "kafka"])
def test_a_damaged_log_goes_offline_and_its_readers_get_nothing_of_it(
    start_broker: StartBroker, client: Client, writer: str
) -> None:
    broker = start_broker(KAFKA)
    topic = broker.create_topic("t", 1)
    if writer == "millrace":
        write_numbers(broker.address, "t", range(100))
    else:
        kafka = confluent_kafka.Producer({"bootstrap.servers": broker.kafka_address})
        kafka.produce("t", b"0")
        assert kafka.flush(60) == 0
    (path,) = broker.folder.rglob(f"{topic.topic_id.hex()}-0/*.log")
    # Kafka's readers compare its checksum themselves: here the header is damaged.
    flip(path, 200 if writer == "millrace" else 1)
    with reading(client, broker.kafka_address, "t") as consumer:
        consumer.take_nothing()
        wait_until(lambda: broker.log_has('"partition_offline"'), "the log is offline")
        consumer.take_nothing()
