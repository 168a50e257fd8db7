"""A tiered topic on real files: closed segments lie on the HDD, and readers do not notice."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.cli.command_line import CommandLine
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster, read_all

from millrace.client import InvalidReplicationFactorError, MillraceError, SyncAdmin, SyncProducer

TOPIC = "orders"
MOVING = {
    "storage.tier_check_interval_ms": 50,
    "storage.tier_free_bytes_min": 0,
    "storage.retention_check_interval_ms": 100,
}
TIERED = {"media": "tiered", "segment.bytes": "1MiB", "local.retention.ms": "0"}
COUNT = 600
VALUES = [b"%06d " % number + bytes(10_000) for number in range(2 * COUNT)]
MOVED = 'millrace_tier_moved_segments_total{way="to"}'
CAME_BACK = 'millrace_tier_moved_segments_total{way="from"}'


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path) -> RunningBroker:
    return start_broker(MOVING, log_dirs=[tmp_path / "ssd", tmp_path / "hdd"], media=["ssd", "hdd"])


def write(bootstrap: str, first: int, end: int, timeout_ms: int = 120_000) -> None:
    with SyncProducer(
        bootstrap, acks="all", batch_size="100KiB", delivery_timeout_ms=timeout_ms
    ) as producer:
        for sent in [producer.send(TOPIC, value, partition=0) for value in VALUES[first:end]]:
            sent.result(60)


def segments(folder: Path) -> list[str]:
    """Return the names of the segment files in the partitions of a log directory, ascending."""
    return sorted(path.name for path in folder.glob("*/*.log"))


def tiers(folder: Path) -> list[Path]:
    return list(folder.glob("*.tier"))


def test_closed_segments_move_to_the_hdd_and_come_back(
    broker: RunningBroker, tmp_path: Path
) -> None:
    ssd, hdd = tmp_path / "ssd", tmp_path / "hdd"
    with SyncAdmin(broker.address) as admin:
        admin.create_topic(TOPIC, partitions=1, config=TIERED)
        write(broker.address, 0, COUNT)
        wait_until(lambda: len(segments(ssd)) == 1, "all closed segments have moved")
        assert len(segments(hdd)) >= 5
        assert read_all(broker.address, TOPIC, COUNT) == VALUES[:COUNT]

        (log,) = admin.describe_logs(TOPIC)
        assert log.tier is not None
        assert log.tier.log_dir == str(tiers(hdd)[0])
        assert 0 < log.tier.end_offset < COUNT
        assert 0 < log.tier.size_bytes < log.size_bytes
        said = CommandLine(broker.address).ok("topic", "describe", TOPIC)
        assert "HDD TO OFFSET" in said
        broker.kill()
        broker.start()
        assert read_all(broker.address, TOPIC, COUNT) == VALUES[:COUNT]
        write(broker.address, COUNT, 2 * COUNT)
        wait_until(lambda: len(segments(ssd)) == 1, "all closed segments have moved")
        wait_until(lambda: broker.metrics().get(MOVED, 0) >= 5, "they are counted")
        assert read_all(broker.address, TOPIC, 2 * COUNT) == VALUES

        admin.alter_topic(TOPIC, set_config={"media": "ssd"})
        wait_until(lambda: segments(hdd) == [], "all segments have come back")
        # The last one is counted after its files are gone.
        wait_until(lambda: broker.metrics().get(CAME_BACK, 0) >= 10, "they are counted")
        assert read_all(broker.address, TOPIC, 2 * COUNT) == VALUES


def test_an_hdd_that_fails_takes_the_replicas_with_segments_there_and_no_others(
    broker: RunningBroker, tmp_path: Path
) -> None:
    with SyncAdmin(broker.address) as admin, SyncProducer(broker.address) as producer:
        admin.create_topic(TOPIC, partitions=1, config=TIERED)
        admin.create_topic("fast", partitions=1, config={"media": "ssd"})
        write(broker.address, 0, COUNT // 2)
        wait_until(lambda: broker.metrics().get(MOVED, 0) > 0, "a segment has moved")
        (tmp_path / "hdd").rename(tmp_path / "away")
        with suppress(MillraceError):  # The replica goes offline in the middle of it.
            write(broker.address, COUNT // 2, COUNT, timeout_ms=3000)
        wait_until(lambda: broker.metrics()["millrace_offline_replicas"] == 1, "it is noticed")
        producer.send("fast", b"goes on").result(30)
    wait_until(lambda: broker.metrics()["millrace_offline_log_dirs"] == 1, "so is the directory")
    assert not (tmp_path / "hdd").exists()
    broker.stop()
    (tmp_path / "away").rename(tmp_path / "hdd")
    broker.start()
    assert read_all(broker.address, TOPIC, COUNT // 2) == VALUES[: COUNT // 2]


def test_an_ssd_that_fills_frees_itself_by_moving_segments_however_young(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    ssd, hdd = tmp_path / "ssd", tmp_path / "hdd"
    # More than any disk has: as if it was full.
    full = {**MOVING, "storage.tier_free_bytes_min": "1TiB"}
    broker = start_broker(full, log_dirs=[ssd, hdd], media=["ssd", "hdd"])
    broker.create_topic(TOPIC, partitions=1, config={**TIERED, "local.retention.ms": "-1"})
    write(broker.address, 0, COUNT)
    wait_until(lambda: len(segments(ssd)) == 1, "all closed segments have moved")
    assert len(segments(hdd)) >= 5
    assert read_all(broker.address, TOPIC, COUNT) == VALUES[:COUNT]


def test_a_deleted_topic_comes_back_from_both_disks_and_leaves_them_when_it_is_purged(
    broker: RunningBroker, tmp_path: Path
) -> None:
    hdd = tmp_path / "hdd"
    with SyncAdmin(broker.address) as admin:
        admin.create_topic(TOPIC, partitions=1, config=TIERED)
        write(broker.address, 0, COUNT)
        wait_until(lambda: len(segments(hdd)) >= 4, "closed segments have moved")
        admin.delete_topic(TOPIC)
        assert len(segments(hdd)) >= 4
        admin.undelete_topic(TOPIC)
        assert read_all(broker.address, TOPIC, COUNT) == VALUES[:COUNT]
        write(broker.address, COUNT, COUNT + 300)
        assert read_all(broker.address, TOPIC, COUNT + 300) == VALUES[: COUNT + 300]
        admin.delete_topic(TOPIC)
        admin.purge_topic(TOPIC)
        # Through the trash, which is emptied at once: the time since the deletion counts already.
        wait_until(lambda: not [*tiers(hdd), *hdd.glob("*.deleted")], "it has left the HDD")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Brokers 0 and 1 have an SSD and an HDD, 2 has an SSD."""
    media = [["ssd", "hdd"], ["ssd", "hdd"], ["ssd"]]
    with RunningCluster(tmp_path, MOVING, media=media) as running:
        yield running


def test_replicas_lie_where_both_media_are_and_followers_read_from_the_hdd(
    cluster: RunningCluster,
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        with pytest.raises(InvalidReplicationFactorError, match="media=tiered"):
            admin.create_topic(TOPIC, partitions=1, replication_factor=3, config=TIERED)
        admin.create_topic(TOPIC, partitions=1, replication_factor=2, config=TIERED)
        follower = next(
            number
            for number in (0, 1)
            if number != admin.describe_topic(TOPIC).partitions[0].leader
        )
        cluster[follower].stop()
        write(cluster.bootstrap, 0, COUNT)
        leader = cluster[1 - follower]
        wait_until(lambda: leader.metrics().get(MOVED, 0) >= 4, "closed segments have moved")
        cluster[follower].start()
        wait_until(
            lambda: len(admin.describe_topic(TOPIC).partitions[0].isr) == 2, "it has caught up"
        )
        assert read_all(cluster.bootstrap, TOPIC, COUNT) == VALUES[:COUNT]
        wait_until(lambda: cluster[follower].metrics().get(MOVED, 0) >= 4, "it moves its own")
