"""Kafka's own consumers read what Millrace's clients and Kafka's have written."""

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest
from tests.fakes.transaction_log import TransactionLog
from tests.integration.conftest import StartBroker
from tests.integration.kafka.ends import KAFKA
from tests.integration.kafka.kafka_consumers import (
    CLIENTS,
    Client,
    KafkaPython,
    Librdkafka,
    Read,
    confluent_kafka,
    reading,
)
from tests.integration.running_broker import RunningBroker
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.ids import LeaderEpoch, TopicPartition
from millrace.core.records.compression import CODEC_NAMES

BASE_MS = int(time.time() * 1000) - 3_600_000


CODECS: dict[Client, Sequence[str]] = {Librdkafka: CODEC_NAMES, KafkaPython: ("none", "gzip")}
"""Those that are there without further libraries."""


@pytest.fixture(params=CLIENTS, ids=lambda client: client.__name__)
def client(request: pytest.FixtureRequest) -> Client:
    return request.param  # type: ignore[no-any-return]


admin_module = pytest.importorskip("confluent_kafka.admin")


def write_by_millrace(
    address: str, topic: str, numbers: range, *, size: int = 20, **settings: Any
) -> list[Read]:
    """Write records with keys, headers and times; return what readers shall get."""
    expected = []
    with SyncProducer(address, **{"linger_ms": 5, **settings}) as producer:
        handles = []
        for number in numbers:
            key = b"key-%d" % number if number % 3 else None
            value = b"%d " % number + random.Random(number).randbytes(size)
            headers = [("h", b"%d" % number)] if number % 2 else []
            time_ms = BASE_MS + number
            handles.append(producer.send(topic, value, key=key, timestamp=time_ms, headers=headers))
            expected.append(Read(number, key, value, time_ms, tuple(headers)))
        for handle in handles:
            handle.result(60)
    return expected


def write_by_kafka(
    address: str, topic: str, numbers: range, *, size: int = 20, **settings: Any
) -> list[Read]:
    """Likewise, by Kafka's protocol."""
    expected = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 5,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    failures: list[Any] = []
    for number in numbers:
        key = b"key-%d" % number if number % 3 else None
        value = b"%d " % number + random.Random(number).randbytes(size)
        headers = [("h", b"%d" % number)] if number % 2 else []
        time_ms = BASE_MS + number
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            timestamp=time_ms,
            headers=headers,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
        expected.append(Read(number, key, value, time_ms, tuple(headers)))
    assert producer.flush(60) == 0
    assert not failures
    return expected


WRITERS = {"millrace": write_by_millrace, "kafka": write_by_kafka}


def write(
    broker: RunningBroker, writer: str, topic: str, numbers: range, **more: Any
) -> list[Read]:
    address = broker.address if writer == "millrace" else broker.kafka_address
    return WRITERS[writer](address, topic, numbers, **more)


@pytest.mark.parametrize("writer", WRITERS)
def test_what_was_written_is_read_whatever_wrote_it(
    kafka_broker: RunningBroker, topic_name: str, client: Client, writer: str
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    name = "compression_type" if writer == "kafka" else "compression"
    expected: list[Read] = []
    for codec in CODECS[client]:
        numbers = range(len(expected), len(expected) + 200)
        expected += write(broker, writer, topic, numbers, **{name: codec})
    with reading(client, broker.kafka_address, topic) as consumer:
        assert consumer.take(len(expected)) == expected
        assert consumer.ends() == (0, len(expected))


def test_one_log_has_records_of_both_kinds_of_writers(
    kafka_broker: RunningBroker, topic_name: str, client: Client
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    expected: list[Read] = []
    for part in range(6):
        writer = list(WRITERS)[part % 2]
        expected += write(broker, writer, topic, range(part * 50, part * 50 + 50))
    with reading(client, broker.kafka_address, topic) as consumer:
        assert consumer.take(300) == expected


@pytest.mark.parametrize("writer", WRITERS)
def test_a_reader_may_begin_at_any_offset_also_within_a_batch(
    kafka_broker: RunningBroker, topic_name: str, client: Client, writer: str
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    expected = write(broker, writer, topic, range(300))
    with reading(client, broker.kafka_address, topic) as consumer:
        for offset in (299, 0, 150, 151, 7):
            consumer.seek(offset)
            assert consumer.take(min(20, 300 - offset)) == expected[offset : offset + 20]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_time_has_its_offset(
    kafka_broker: RunningBroker, topic_name: str, client: Client, writer: str
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    expected = write(broker, writer, topic, range(300))
    with reading(client, broker.kafka_address, topic) as consumer:
        for number in (0, 1, 150, 299):
            assert consumer.offset_at(expected[number].timestamp) == number
        assert consumer.offset_at(0) == 0
        assert consumer.offset_at(expected[-1].timestamp + 1) is None


@pytest.mark.parametrize("writer", WRITERS)
def test_a_topic_that_stamps_times_has_those_of_its_leader(
    kafka_broker: RunningBroker, topic_name: str, client: Client, writer: str
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1, config={"message.timestamp.type": "LogAppendTime"})
    begun = int(time.time() * 1000) - 1
    expected = write(broker, writer, topic, range(100))
    with reading(client, broker.kafka_address, topic) as consumer:
        found = consumer.take(100)
        assert [record._replace(timestamp=0) for record in found] == [
            record._replace(timestamp=0) for record in expected
        ]
        times = [record.timestamp for record in found]
        assert begun <= times[0]
        assert times == sorted(times)
        assert times[-1] <= time.time() * 1000
        assert consumer.offset_at(begun) == 0
        assert consumer.offset_at(times[-1] + 1) is None
        assert consumer.offset_at(times[50]) == times.index(times[50])


@pytest.mark.parametrize("writer", WRITERS)
def test_records_larger_than_what_a_reader_asks_for_are_read(
    kafka_broker: RunningBroker, topic_name: str, client: Client, writer: str
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    expected = write(broker, writer, topic, range(12), size=600_000)
    small: dict[str, Any] = (
        {"fetch_message_max_bytes": 1000, "fetch_max_bytes": 1_000_000}
        if client is Librdkafka
        else {"max_partition_fetch_bytes": 1000, "fetch_max_bytes": 1000}
    )
    with reading(client, broker.kafka_address, topic, **small) as consumer:
        assert consumer.take(12) == expected


def test_one_consumer_reads_many_partitions(
    kafka_broker: RunningBroker, topic_name: str, client: Client
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 30)
    expected = set()
    with SyncProducer(broker.address) as producer:
        for number in range(600):
            value = b"%d" % number
            producer.send(topic, value, partition=number % 30)
            expected.add((number % 30, number // 30, value))
        producer.flush()
    with reading(client, broker.kafka_address, topic, range(30)) as consumer:
        found = consumer.take_placed(600)
        assert set(found) == expected
        assert len(found) == 600
        with SyncProducer(broker.address) as producer:  # It waits for all of them.
            producer.send(topic, b"late", partition=17).result(60)
        assert consumer.take_placed(1) == [(17, 20, b"late")]


@contextlib.contextmanager
def waiting_take(consumer: Any, count: int) -> Iterator[list[Read]]:
    """Read on a thread while the block writes; the block's end waits for the records."""
    found: list[Read] = []
    thread = threading.Thread(target=lambda: found.extend(consumer.take(count)))
    thread.start()
    yield found
    thread.join(60)
    assert not thread.is_alive()


def test_a_reader_at_the_end_gets_what_comes_at_once(
    kafka_broker: RunningBroker, topic_name: str, client: Client
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    wait = "fetch_wait_max_ms" if client is Librdkafka else "fetch_max_wait_ms"
    waiting: dict[str, Any] = {wait: 20_000}
    with reading(client, broker.kafka_address, topic, **waiting) as consumer:
        for part in range(5):
            with waiting_take(consumer, 10) as found:
                time.sleep(0.3)  # So that it waits at the broker.
                expected = write(
                    broker, list(WRITERS)[part % 2], topic, range(part * 10, part * 10 + 10)
                )
                begun = time.monotonic()
            assert found == expected
            assert time.monotonic() - begun < 10, "it was not woken"


# --- Transactions ----------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_reader_of_committed_records_sees_no_other_ones(
    start_broker: StartBroker, client: Client, isolation: str
) -> None:
    broker = start_broker(KAFKA)
    topic = broker.create_topic("t", 1)
    broker.stop()
    place = TopicPartition(topic.topic_id, 0)
    log = TransactionLog(place)
    log.leader_epoch = LeaderEpoch(0)
    codecs = CODECS[client]
    for number in range(30):
        codec = codecs[number % len(codecs)]
        for part in range(3):
            log.append([b"%d.%d" % (number, part)] * 20, 1 + number % 7, codec=codec)
            log.append([b"of nobody"], None)
        log.end([1 + number % 7], is_committed=number % 3 > 0)
    log.append([b"a"], 2)
    log.append([b"b"], 3)
    log.end([2, 3], is_committed=False)  # Both in one control batch.
    log.append([b"again"], 2)
    log.end([2], is_committed=True)
    log.append([b"open"], 1)
    log.append([b"after it"], None)
    (path,) = broker.folder.rglob(f"{place}/*.log")
    with path.open("ab") as file:
        for _, _, data in log.stored():
            file.write(data)
    broker.start()
    read_committed = isolation == "read_committed"
    end = log.last_stable_offset if read_committed else log.end_offset
    with reading(client, broker.kafka_address, "t", isolation_level=isolation) as consumer:
        for start in range(0, end, 113):
            expected = log.seen(start, read_committed=read_committed)
            consumer.seek(start)
            found = [(record.offset, record.value) for record in consumer.take(len(expected))]
            assert found == expected
        if client is KafkaPython:  # librdkafka's watermarks are those of readers of everything.
            assert consumer.ends() == (0, end)


# --- Ends of logs ----------------------------------------------------------------------------


def test_deleted_records_are_gone_for_kafkas_readers(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    expected = write_by_millrace(broker.address, topic, range(100))
    admin = admin_module.AdminClient({"bootstrap.servers": broker.kafka_address})
    until = confluent_kafka.TopicPartition(topic, 0, 40)
    (deleted,) = [future.result(60) for future in admin.delete_records([until]).values()]
    assert deleted.low_watermark == 40
    with reading(Librdkafka, broker.kafka_address, topic, auto_offset_reset="earliest") as consumer:
        assert consumer.ends() == (40, 100)
        consumer.seek(3)  # Out of range: it goes on at the earliest offset.
        assert consumer.take(60) == expected[40:]
    everything = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)
    (deleted,) = [future.result(60) for future in admin.delete_records([everything]).values()]
    assert deleted.low_watermark == 100
    beyond = confluent_kafka.TopicPartition(topic, 0, 101)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        [future.result(60) for future in admin.delete_records([beyond]).values()]
    assert raised.value.args[0].code() == confluent_kafka.KafkaError.OFFSET_OUT_OF_RANGE


def test_offsets_are_listed_by_name(kafka_broker: RunningBroker, topic_name: str) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    write_by_millrace(broker.address, topic, range(10))
    write_by_millrace(broker.address, topic, range(5))  # Earlier times follow.
    admin = admin_module.AdminClient({"bootstrap.servers": broker.kafka_address})
    place = confluent_kafka.TopicPartition(topic, 0)

    def listed(spec: Any) -> tuple[int, int]:
        (future,) = admin.list_offsets({place: spec}).values()
        found = future.result(60)
        return found.offset, found.timestamp

    assert listed(admin_module.OffsetSpec.earliest())[0] == 0
    assert listed(admin_module.OffsetSpec.latest())[0] == 15
    assert listed(admin_module.OffsetSpec.max_timestamp()) == (9, BASE_MS + 9)
    assert listed(admin_module.OffsetSpec.for_timestamp(BASE_MS + 7)) == (7, BASE_MS + 7)


# --- Readers that fail, and leaders ----------------------------------------------------------


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_a_consumer_goes_on_when_the_leader_moves(tmp_path: Any, client: Client) -> None:
    with RunningCluster(tmp_path, KAFKA) as cluster:
        topic = cluster.create_topic("t", 1, 3)
        expected = write_by_millrace(cluster.bootstrap, "t", range(200))
        addresses = ",".join(broker.kafka_address for broker in cluster.brokers)
        with reading(client, addresses, "t") as consumer:
            found = consumer.take(50)
            leader = topic.partitions[0].leader
            cluster[leader].kill()
            found += consumer.take(150)
            assert found == expected
            survivors = ",".join(broker.address for broker in cluster.brokers if broker.is_running)
            more = write_by_millrace(survivors, "t", range(200, 260))
            assert consumer.take(60) == more


def fetch_frame(number: int, topic: str) -> bytes:
    """Return a request for everything, as bytes."""
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20
    )
    message = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )
    body = bytes(message.encode(version=4))
    header = struct.pack(">hhih", 1, 4, number, 4) + b"slow"
    return struct.pack(">i", len(header) + len(body)) + header + body


def test_a_reader_that_takes_nothing_costs_little_and_slows_nobody(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    expected = write_by_millrace(broker.address, topic, range(64), size=30_000)
    host, _, port = broker.kafka_address.rpartition(":")
    before = resident_bytes(broker.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            silent = stack.enter_context(socket.create_connection((host, int(port))))
            silent.settimeout(2)
            with contextlib.suppress(TimeoutError, ConnectionError):
                for number in range(2000):
                    silent.sendall(fetch_frame(number, topic))
        with reading(Librdkafka, broker.kafka_address, topic) as consumer:
            begun = time.monotonic()
            assert consumer.take(64) == expected
            assert time.monotonic() - begun < 20
        assert resident_bytes(broker.pid) - before < 150 << 20
    assert broker.is_running


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_reader_that_dies_at_the_broker_leaves_others_alone(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    broker, topic = kafka_broker, topic_name
    broker.create_topic(topic, 1)
    for _ in range(20):
        dead = Librdkafka(broker.kafka_address, topic, fetch_wait_max_ms=30_000)
        dead.consumer.poll(0.05)
        dead.close()
    expected = write_by_millrace(broker.address, topic, range(50))
    with reading(KafkaPython, broker.kafka_address, topic) as consumer:
        assert consumer.take(50) == expected
    with SyncAdmin(broker.address) as admin:
        assert admin.list_offsets(topic)[topic, 0].offset == 50
