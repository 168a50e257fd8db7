"""A compacted topic on three brokers: each key keeps its last value when leaders change (P57)."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.broker.storage import inspection
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.client import Record, SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.errors import InvalidRecordError
from millrace.core.ids import NO_BROKER

TOPIC = "tails"
PLACE = (TOPIC, 0)
KEYS = 50
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0",
}
REMOVED = "millrace_cleaner_removed_records_total"


@pytest.fixture
def cleaning(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers that look for something to clean all the time."""
    with RunningCluster(tmp_path, {"storage.cleaner_backoff_ms": 50}) as started:
        yield started


def write(bootstrap: str, cells: Iterable[tuple[bytes, bytes | None]], batch: str = "2KiB") -> None:
    with SyncProducer(bootstrap, acks="all", batch_size=batch) as producer:
        for future in [producer.send(TOPIC, value, key=key) for key, value in cells]:
            future.result(60)


def round_of(number: int) -> list[tuple[bytes, bytes]]:
    return [(b"key-%d" % key, b"%d of round %d" % (key, number)) for key in range(KEYS)]


def read(bootstrap: str, end: int, start: int = 0) -> list[Record]:
    """Return the records from an offset on, up to one that is there."""
    with SyncConsumer(bootstrap) as consumer:
        consumer.assign({PLACE: start})
        found = []
        for record in takewhile(lambda record: record.offset < end, consumer):
            found.append(record)
            if record.offset == end - 1:
                break
        return found


def leader_of(cluster: RunningCluster, admin: SyncAdmin) -> RunningBroker | None:
    leader = admin.describe_topic(TOPIC).partitions[0].leader
    return None if leader == NO_BROKER else cluster[leader]


def leads(broker: RunningBroker, cluster: RunningCluster, admin: SyncAdmin) -> bool:
    return leader_of(cluster, admin) is broker


def end_of(admin: SyncAdmin) -> int:
    return admin.list_offsets([PLACE], "end")[PLACE].offset


def check_files(broker: RunningBroker) -> None:
    """Check every byte of a stopped broker's logs, and that no offset is without a batch."""
    files = PosixFileSystem()
    for log_dir in broker.log_dirs:
        for partition in inspection.partitions(files, str(log_dir)):
            verified = inspection.verify_partition(files, partition)
            assert verified.is_sound, verified.findings


@pytest.mark.timeout(300)  # More than its waits together: it starts and stops brokers nine times.
def test_each_replica_keeps_the_last_value_of_each_key_and_a_follower_catches_up(
    cleaning: RunningCluster,
) -> None:
    with SyncAdmin(cleaning.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3, config=COMPACTED)
        for number in range(10):
            write(cleaning.bootstrap, round_of(number))
        behind = next(
            broker for broker in cleaning.brokers if broker is not leader_of(cleaning, admin)
        )
        # What it has of the last segment ends in the middle of what its leader will put together.
        write(cleaning.bootstrap, round_of(10)[:20])
        behind.kill()
        others = [broker for broker in cleaning.brokers if broker is not behind]
        write(cleaning.bootstrap, round_of(10)[20:])
        write(cleaning.bootstrap, [*round_of(11)[:-1], (b"key-7", None)])
        end = end_of(admin)
        wait_until(
            lambda: all(other.metrics()[REMOVED] >= end - KEYS - 1 for other in others),
            "both others have compacted everything",
            60,
        )
        behind.start()
        wait_until(
            lambda: len(admin.describe_topic(TOPIC).partitions[0].isr) == 3, "it is in sync again"
        )
        expected = dict([*round_of(10), *round_of(11)[:-1], (b"key-7", None)])
        for leader in [behind, *others]:
            for other in cleaning.brokers:
                if other is not leader:
                    other.stop()
            wait_until(partial(leads, leader, cleaning, admin), "the only one leads", 60)
            records = read(leader.address, end)
            assert {record.key: record.value for record in records} == expected
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets))
            for other in cleaning.brokers:
                if other is not leader:
                    other.start()
            wait_until(
                lambda: len(admin.describe_topic(TOPIC).partitions[0].isr) == 3,
                "all are in sync again",
            )
    for broker in cleaning.brokers:
        assert broker.stop() == 0
        check_files(broker)


def test_records_without_a_key_are_refused_and_say_so(cleaning: RunningCluster) -> None:
    with SyncAdmin(cleaning.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3, config=COMPACTED)
        with SyncProducer(cleaning.bootstrap) as producer:
            with pytest.raises(
                InvalidRecordError, match="without a key, and the topic is compacted"
            ):
                producer.send(TOPIC, b"value").result(30)
            assert producer.send(TOPIC, b"value", key=b"").result(30).offset == 0
        admin.alter_topic(TOPIC, set_config={"cleanup.policy": "delete"})
        with SyncProducer(cleaning.bootstrap) as producer:
            assert producer.send(TOPIC, b"value").result(30).offset == 1


def test_a_policy_that_changes_under_load_loses_nothing_that_must_stay(
    cleaning: RunningCluster,
) -> None:
    with SyncAdmin(cleaning.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3, config=COMPACTED)
        rounds = 12
        for number in range(rounds):
            policy = ("compact", "delete", "compact,delete")[number % 3]
            admin.alter_topic(TOPIC, set_config={"cleanup.policy": policy})
            write(cleaning.bootstrap, round_of(number))
        admin.alter_topic(TOPIC, set_config={"cleanup.policy": "compact"})
        end = end_of(admin)
        wait_until(
            lambda: all(broker.metrics()[REMOVED] >= end - 2 * KEYS for broker in cleaning.brokers),
            "all have compacted nearly everything",
            60,
        )
        records = read(cleaning.bootstrap, end)
        assert {record.key: record.value for record in records} == dict(round_of(rounds - 1))

        def are_compacted() -> bool:
            """What is removed counts while a log is compacted, and its point moves after that."""
            logs = [log.compaction for log in admin.describe_logs(TOPIC)]
            assert all(log is not None and log.problem == "" for log in logs)
            return all(
                log is not None
                and log.cleaner_point > end - 2 * KEYS
                and log.compacted_at is not None
                for log in logs
            )

        wait_until(are_compacted, "all say how far they have compacted")


def test_a_reader_that_is_in_the_middle_of_what_is_compacted_goes_on(
    cleaning: RunningCluster,
) -> None:
    with SyncAdmin(cleaning.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3, config=COMPACTED)
        for number in range(6):
            cells = [(key, b"%s %s" % (value, bytes(5000))) for key, value in round_of(number)]
            write(cleaning.bootstrap, cells, batch="16KiB")
        end = end_of(admin)
        with SyncConsumer(cleaning.bootstrap, fetch_max_bytes="128KiB") as consumer:
            consumer.assign({PLACE: 0})
            records = iter(consumer)
            seen = [next(records) for _ in range(10)]
            wait_until(
                lambda: all(broker.metrics()[REMOVED] > 0 for broker in cleaning.brokers),
                "something is compacted",
            )
            while seen[-1].offset < end - 1:
                seen.append(next(records))
        offsets = [record.offset for record in seen]
        assert offsets == sorted(set(offsets))
        assert {record.key: record.value for record in seen} == dict(cells)
        for start in (0, 13, end // 2, end - 1):
            assert read(cleaning.bootstrap, end, start)[0].offset >= start


def test_batches_of_columns_have_records_also_where_batches_of_the_log_have_none_left(
    start_broker: StartBroker,
) -> None:
    broker = start_broker({"storage.cleaner_backoff_ms": 50})
    writers = 6
    broker.create_topic(TOPIC, partitions=1, config=COMPACTED)
    for number in range(writers):  # The last batch of a producer stays, without its record.
        write(broker.address, [(b"key", b"of writer %d" % number)])
    wait_until(lambda: broker.metrics()[REMOVED] >= writers - 1, "only the last one is left")
    with SyncConsumer(broker.address) as consumer:
        consumer.assign({PLACE: 0})
        found = []
        while consumer.position(PLACE) < writers:
            found += consumer.poll_batches(10_000)
    assert [batch.records.column("value").to_pylist() for batch in found] == [[b"of writer 5"]]
    assert found[0].records.column("offset").to_pylist() == [writers - 1]
    assert broker.stop() == 0
    check_files(broker)
