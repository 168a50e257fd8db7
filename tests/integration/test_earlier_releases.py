"""What earlier releases have written is read by this one, and their programs go on with it.

Brokers of the last release beside those of this one: `F79` in tests/faults/processes.py.
"""

import os
import subprocess
from pathlib import Path

import pytest
from tests.fakes.cluster import Cluster
from tests.integration.cli.command_line import CommandLine
from tests.integration.conftest import StartBroker
from tests.integration.raw_client import RawClient
from tests.integration.running_broker import START_SECONDS_MAX, RunningBroker, wait_until
from tests.releases.directory import (
    GROUP,
    GROUP_TOPIC,
    PRODUCER_ID,
    archives,
    content_of,
    log_dirs,
    put_back,
)
from tests.releases.last import unpacked

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.ids import TopicPartition
from millrace.core.metadata.model import SideAddresses
from millrace.core.metadata.objects.encoding import encode_cluster
from millrace.core.records.batch import walk
from millrace.core.records.header import COLUMNS_FORMAT, KAFKA_FORMAT, BatchHeader

CREDIT = 20_000
"""Of a reader by hand: a few batches."""


@pytest.mark.parametrize("archive", archives(), ids=lambda path: path.name.partition(".tar")[0])
def test_a_data_directory_of_an_earlier_release_holds_what_it_held_and_goes_on(
    archive: Path, tmp_path: Path
) -> None:
    broker, content = put_back(archive, tmp_path)
    last_producer_id = content.pop(PRODUCER_ID)
    try:
        broker.start()
        assert content_of(broker.address) == content
        with RawClient(broker.address) as client:
            assert client.new_producer_id() > last_producer_id

        # The group reads what it has not committed, and nothing twice.
        committed = {
            (topic, partition): offset
            for topic, partition, offset, *_ in content["groups"][GROUP]["committed"]
        }
        unread = {
            (partition, row[0])
            for partition, rows in content["topics"][GROUP_TOPIC]["records"].items()
            for row in rows
            if row[0] >= committed[GROUP_TOPIC, int(partition)]
        }
        read: list[tuple[str, int]] = []
        with SyncConsumer(broker.address, group=GROUP) as member:
            member.subscribe([GROUP_TOPIC])

            def has_read_all() -> bool:
                read.extend((str(record.partition), record.offset) for record in member.poll())
                return len(read) >= len(unread)

            wait_until(has_read_all, "the group has read the rest", START_SECONDS_MAX)
        assert (set(read), len(read)) == (unread, len(unread))

        # Each partition goes on where it ended.
        with SyncAdmin(broker.address) as admin, SyncProducer(broker.address) as producer:
            assert admin.describe_health().is_healthy
            for topic in content["topics"]:
                end = admin.list_offsets(topic)[topic, 0].offset
                sent = producer.send(topic, b"later", key=b"later", partition=0)
                assert sent.result(START_SECONDS_MAX).offset == end
        assert broker.stop() == 0, broker.log_end()
    finally:
        broker.abandon()
    ssd, hdd = log_dirs(tmp_path)
    said = CommandLine("").ok("log", "verify", str(ssd), "--log-dir", str(hdd))
    assert "sound" in said


def test_the_last_release_reads_what_this_one_stores_of_a_broker(tmp_path: Path) -> None:
    """So its brokers follow a controller of this release, and one may become the controller."""
    cluster = Cluster(1)
    cluster.give_drpc_addresses(0, SideAddresses(clients="a:7096", brokers="a:7097"))
    stored = encode_cluster(cluster.driver.image.cluster)
    release = unpacked(tmp_path)
    read = (
        "import sys\n"
        "from millrace.core.metadata.objects.encoding import decode_cluster\n"
        "from millrace.core.metadata.objects.stored_object import StoredObject\n"
        "stored = StoredObject(sys.stdin.buffer.read(), int(sys.argv[1]), int(sys.argv[2]))\n"
        "print(*(broker.address for broker in decode_cluster(stored).brokers.values()))\n"
    )
    done = subprocess.run(
        [*release.python, "-c", read, str(stored.version), str(stored.controller_epoch)],
        env={**os.environ, **release.environment},
        input=stored.value,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    (broker,) = cluster.driver.image.cluster.brokers.values()
    assert done.stdout.decode().split() == [broker.address]


def test_programs_of_the_last_release_write_and_read_as_before(
    shared_broker: RunningBroker, topic_name: str, tmp_path: Path
) -> None:
    release = unpacked(tmp_path)
    environment = {**os.environ, **release.environment, "MILLRACE_BOOTSTRAP": shared_broker.address}

    def run(*words: str, stdin: str = "") -> str:
        command = [*release.python, "-m", "millrace.cli", *words]
        done = subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    assert run("--version") == f"millrace, version {release.version}\n"
    run("topic", "create", topic_name, "--partitions", "2")
    values = [f"value {number}" for number in range(200)]
    run("produce", topic_name, stdin="\n".join(values))
    reading = ("consume", topic_name, "--group", topic_name, "--max", "100")
    read = [line for _ in range(2) for line in run(*reading).splitlines()]
    assert sorted(read) == sorted(values), "the group goes on where it was"


def test_programs_of_the_last_release_read_what_clients_of_kafka_wrote(
    start_broker: StartBroker, topic_name: str, tmp_path: Path
) -> None:
    """They know no batches of Kafka's: the broker converts them (K6)."""
    kafka = pytest.importorskip("confluent_kafka")
    broker = start_broker({"listeners.clients_kafka.port": 0})
    values = [b"%d" % number + b"x" * (number % 90) for number in range(3000)]
    with SyncAdmin(broker.address) as admin:
        admin.create_topic(topic_name, 1, 1)
        place = TopicPartition(admin.describe_topics([topic_name])[topic_name].topic_id, 0)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        settings = {
            "bootstrap.servers": broker.kafka_address,
            "compression.type": codec,
            "batch.num.messages": 97,
            "enable.idempotence": True,
        }
        producer = kafka.Producer(settings)
        some = values[600 * number : 600 * (number + 1)]
        for value in some[:300]:
            producer.produce(topic_name, value, b"key", 0)
        assert producer.flush(60) == 0
        with SyncProducer(broker.address, compression=codec) as ours:
            for value in some[300:]:
                ours.send(topic_name, value, b"key", partition=0)
    release = unpacked(tmp_path)
    done = subprocess.run(
        [
            *(*release.python, "-m", "millrace.cli", "consume", topic_name, "--group", "old"),
            *("--max", "3000"),
        ],
        env={**os.environ, **release.environment, "MILLRACE_BOOTSTRAP": broker.address},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.splitlines() == values
    with RawClient(broker.address) as client:
        for known, formats in ((0, {COLUMNS_FORMAT}), (2, {COLUMNS_FORMAT, KAFKA_FORMAT})):
            session = client.fetch(timeout=60)
            session.ask([(1, place, 0)], credit=CREDIT, batch_format_max=known)
            found: list[BatchHeader] = []
            for _, data in session.answers():
                found += [header for header, _ in walk(data)]
                if found and found[-1].next_offset == len(values):
                    break
                assert len(data) <= CREDIT
                session.ask(credit=len(data))
            session.close()
            assert {header.format for header in found} == formats
            assert [header.base_offset for header in found[1:]] == [
                header.next_offset for header in found[:-1]
            ]
