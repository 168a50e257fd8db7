"""What Kafka's clients wrote moves beside batches of columns: to another medium, to other brokers,
and through compaction and restarts. Readers of both kinds see the same all the time."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.records.header import COLUMNS_FORMAT, KAFKA_FORMAT

confluent = pytest.importorskip("confluent_kafka")

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIERS = {
    **KAFKA,
    "storage.tier_check_interval_ms": 50,
    "storage.tier_free_bytes_min": 0,
    "storage.retention_check_interval_ms": 100,
}
TIERED = {"media": "tiered", "segment.bytes": "1MiB", "local.retention.ms": "0"}
MOVED = 'millrace_tier_moved_segments_total{way="to"}'
CAME_BACK = 'millrace_tier_moved_segments_total{way="from"}'
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0",
}
REMOVED = "millrace_cleaner_removed_records_total"
KEYS = 40

Records = list[tuple[bytes, bytes | None]]


def some(first: int, count: int, size: int = 0) -> Records:
    """Return records with their numbers as keys."""
    return [(b"%d" % at, b"value %d " % at + bytes(size)) for at in range(first, first + count)]


def check_both(cluster: RunningCluster, expected: Records, first: int = 0) -> None:
    """Check what readers of both kinds see from the first offset to the end."""
    by_kafka = read_by_kafka(cluster, first + len(expected))
    assert list(by_kafka.items()) == list(enumerate(expected, first))
    assert read_by_millrace(cluster, first + len(expected) - 1) == by_kafka


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[RunningCluster]:
    """One broker with an SSD and an HDD."""
    with RunningCluster(tmp_path, TIERS, racks=("",), media=[["ssd", "hdd"]]) as started:
        yield started


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_segments_of_both_formats_move_to_the_hdd_are_read_there_deleted_and_come_back(
    tiered: RunningCluster,
) -> None:
    (broker,) = tiered.brokers
    ssd, hdd = broker.log_dirs

    def count_on(medium: Path) -> int:
        try:
            return len(list(medium.glob(f"{topic_id.hex()}-0*/*.log")))
        except FileNotFoundError:  # A folder was removed after it had been listed.
            return count_on(medium)

    def all_have_moved() -> bool:
        return count_on(ssd) == 1

    expected: Records = []
    with SyncAdmin(tiered.bootstrap) as admin:
        topic_id = admin.create_topic(TOPIC, partitions=1, config=TIERED).topic_id
        for codec in CODECS:
            for as_kafka in (True, False):
                records = some(len(expected), 60, 10_000 if codec == "none" else 30_000)
                write(tiered, records, as_kafka=as_kafka, codec=codec)
                expected += records
        wait_until(all_have_moved, "all closed segments have moved", 60)
        moved = count_on(hdd)
        assert moved >= 2
        check_both(tiered, expected)
        broker.kill()
        broker.start()
        check_both(tiered, expected)

        records = some(len(expected), 150, 10_000)
        write(tiered, records, as_kafka=True)
        expected += records
        wait_until(lambda: all_have_moved() and count_on(hdd) > moved, "more have moved", 60)
        check_both(tiered, expected)

        kafka = confluent_admin(tiered)
        (future,) = kafka.delete_records([place_at(660)]).values()
        assert future.result(30).low_watermark == 660
        wait_until(lambda: count_on(hdd) <= 2, "segments on the HDD are deleted")
        check_both(tiered, expected[660:], 660)

        admin.alter_topic(TOPIC, set_config={"media": "ssd"})
        wait_until(lambda: count_on(hdd) == 0, "all segments have come back")
        # It is counted after its files are gone.
        wait_until(lambda: broker.metrics().get(CAME_BACK, 0) >= 1, "they are counted")
        check_both(tiered, expected[660:], 660)
    broker.stop()
    assert KAFKA_FORMAT in formats_of(broker)


def confluent_admin(cluster: RunningCluster) -> Any:
    """Return librdkafka's admin."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap(*cluster.brokers)})


def place_at(offset: int) -> Any:
    return confluent.TopicPartition(*PLACE, offset)


class Writing:
    """Writes numbered records until it is told to stop, as a client of one kind.

    Args:
        write_one: sends a record; called with its number.
        finish: waits until all are acknowledged.

    Attributes:
        count: how many were sent.
    """

    def __init__(self, write_one: Callable[[int], object], finish: Callable[[], object]) -> None:
        self.count = 0
        self._write_one = write_one
        self._finish = finish
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for_more(self, count: int = 200) -> None:
        """Return once so many more are sent."""
        wanted = self.count + count
        wait_until(lambda: self._failure or self.count >= wanted, f"{wanted} are sent", 60)

    def stop(self) -> int:
        """Stop, and return how many were sent and acknowledged."""
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
        return self.count

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.002):
                self._write_one(self.count)
                self.count += 1
            self._finish()
        except BaseException as error:
            self._failure = error


def by_librdkafka(cluster: RunningCluster) -> Writing:
    """Write idempotently as `kafka ...`."""
    failed: list[Any] = []
    producer = confluent.Producer(
        {
            "bootstrap.servers": bootstrap(*cluster.brokers),
            "enable.idempotence": True,
            "linger.ms": 2,
        }
    )

    def write_one(number: int) -> None:
        producer.produce(
            TOPIC,
            b"kafka %d" % number,
            partition=0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)

    def finish() -> None:
        assert producer.flush(60) == 0
        assert failed == []

    return Writing(write_one, finish)


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_a_partition_moves_while_clients_of_both_kinds_write_and_all_readers_see_the_same(
    tmp_path: Path,
) -> None:
    with (
        RunningCluster(tmp_path, dict(KAFKA), racks=("",) * 4) as cluster,
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, linger_ms=2) as producer,
    ):
        admin.create_topic(TOPIC, partitions=1, replication_factor=2)
        before = admin.describe_topic(TOPIC).partitions[0].replicas
        after = sorted({0, 1, 2, 3} - set(before))
        kafka = by_librdkafka(cluster)
        ours = Writing(
            lambda number: producer.send(TOPIC, b"ours %d" % number, partition=0), producer.flush
        )
        for replicas in (after, list(before), [before[0], after[0]], after):
            kafka.wait_for_more()
            ours.wait_for_more()
            assert admin.reassign_partitions({PLACE: replicas}) == {PLACE: None}

            def has_moved(replicas: Sequence[int] = replicas) -> bool:
                state = admin.describe_topic(TOPIC).partitions[0]
                return list(state.replicas) == list(replicas) and state.leader == replicas[0]

            wait_until(has_moved, f"{replicas} have it", 60)
        kafka.wait_for_more()
        counts = {b"kafka": kafka.stop(), b"ours": ours.stop()}
        total = sum(counts.values())
        by_kafka = read_by_kafka(cluster, total)
        assert read_by_millrace(cluster, total - 1) == by_kafka
        values = [value or b"" for _, value in by_kafka.values()]
        for kind, count in counts.items():
            found = [int(value.split()[1]) for value in values if value.startswith(kind)]
            assert found == list(range(count))
        cluster[after[0]].kill()  # The other one has all of it, too.
        wait_until(
            lambda: admin.describe_topic(TOPIC).partitions[0].leader == after[1], "it leads", 60
        )
        assert read_by_kafka(cluster, total) == by_kafka
        assert read_by_millrace(cluster, total - 1) == by_kafka
        for broker in cluster.brokers:
            broker.abandon() if broker is cluster[after[0]] else broker.stop()
        assert formats_of(cluster[after[1]]) >= {COLUMNS_FORMAT, KAFKA_FORMAT}


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_compaction_of_both_formats_goes_on_after_all_brokers_were_killed(tmp_path: Path) -> None:
    def round_of(number: int) -> Records:
        return [(b"key-%d" % key, b"%d of round %d" % (key, number)) for key in range(KEYS)]

    settings = {**KAFKA, "storage.cleaner_backoff_ms": 50}
    with RunningCluster(tmp_path, settings) as cluster, SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3, config=COMPACTED)
        for number in range(4):
            write(cluster, round_of(number), as_kafka=number % 2 == 0, codec=CODECS[number])
        wait_until(
            lambda: all(broker.metrics()[REMOVED] > 0 for broker in cluster.brokers),
            "all have compacted something",
            60,
        )
        for broker in cluster.brokers:
            broker.kill()
        for broker in cluster.brokers:
            broker.start()
        for number in range(4, 8):
            write(cluster, round_of(number), as_kafka=number % 2 == 0, codec=CODECS[number - 4])
        last: Records = [(b"key-7", None), *round_of(8)[: KEYS // 4]]
        write(cluster, last, as_kafka=True, codec="zstd")
        end = admin.list_offsets([PLACE], "end")[PLACE].offset
        expected = dict([*round_of(7), *last])

        def is_compacted() -> bool:
            return len(read_by_kafka(cluster, end)) <= 2 * KEYS

        wait_until(is_compacted, "older values are gone", 60)
        wait_until(
            lambda: len(admin.describe_topic(TOPIC).partitions[0].isr) == 3,
            "all are in sync",
            60,
        )
        first = read_by_kafka(cluster, end)
        ours = read_by_millrace(cluster, max(first))
        again = read_by_kafka(cluster, end)
        for seen in (first, ours, again):
            assert dict(seen[offset] for offset in sorted(seen)) == expected
        assert first.items() >= ours.items() >= again.items()  # Compaction may go on meanwhile.
        for broker in cluster.brokers:
            broker.stop()
        for broker in cluster.brokers:
            assert KAFKA_FORMAT in formats_of(broker)
