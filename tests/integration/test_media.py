"""Brokers with SSDs and HDDs: what a topic asks for is where its replicas lie."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.cli.command_line import CommandLine
from tests.integration.conftest import StartBroker
from tests.integration.raw_client import RawClient, batch_of
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster, read_all

from millrace.client import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    LogDescription,
    Media,
    SyncAdmin,
    SyncProducer,
    plan_reassignment,
)
from millrace.core.ids import TopicPartition
from millrace.proto.v1.common_pb2 import ErrorCode

SSD, HDD = Media.SSD, Media.HDD


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[RunningCluster]:
    """Broker 0 has an SSD, 1 has an SSD and two HDDs, 2 has an HDD."""
    with RunningCluster(tmp_path, media=[["ssd"], ["ssd", "hdd", "hdd"], ["hdd"]]) as running:
        yield running


def lies_on(admin: SyncAdmin, topic: str) -> set[tuple[int, Media | None]]:
    """Return which brokers have replicas of a topic, and on what."""
    return {(int(log.broker_id), log.media) for log in admin.describe_logs(topic)}


@contextmanager
def producing(bootstrap: str, topic: str, *, partitions: int) -> Iterator[list[float]]:
    """Send numbered records one after the other all the while; all must arrive.

    Yields how many seconds each took to be acknowledged, which grows.
    """
    took: list[float] = []
    is_over = threading.Event()
    failures: list[Exception] = []

    def produce() -> None:
        try:
            with SyncProducer(bootstrap, acks="all", delivery_timeout_ms=120_000) as producer:
                while not is_over.is_set():
                    begun = time.monotonic()
                    value = b"%d " % len(took)
                    partition = len(took) % partitions
                    producer.send(topic, value.ljust(2000), partition=partition).result(120)
                    took.append(time.monotonic() - begun)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield took
    finally:
        is_over.set()
        thread.join()
    assert failures == []


def numbers(bootstrap: str, topic: str, count: int) -> list[int]:
    """Return the numbers of what was produced, ascending."""
    return sorted(int(value.split()[0]) for value in read_all(bootstrap, topic, count))


def directory_of(log: LogDescription) -> str:
    return Path(log.log_dir).parent.name


def test_topics_lie_where_they_ask_for_and_move_when_they_ask_for_something_else(
    mixed: RunningCluster,
) -> None:
    with SyncAdmin(mixed.bootstrap) as admin:
        brokers = admin.describe_cluster().brokers
        assert [broker.media for broker in brokers] == [(SSD,), (SSD, HDD), (HDD,)]
        admin.create_topic("fast", partitions=2, replication_factor=2, config={"media": "ssd"})
        admin.create_topic("large", partitions=4, replication_factor=2, config={"media": "hdd"})
        # A follower makes its replica a little later.
        wait_until(lambda: lies_on(admin, "fast") == {(0, SSD), (1, SSD)}, "they lie on SSDs")
        wait_until(lambda: lies_on(admin, "large") == {(1, HDD), (2, HDD)}, "they lie on HDDs")

        # JBOD: two directories of one media share what there is.
        def held() -> Counter[str]:
            logs = admin.describe_logs("large")
            return Counter(directory_of(log) for log in logs if log.broker_id == 1)

        wait_until(lambda: held() == {"hdd-1": 2, "hdd-2": 2}, "each has a half")

        with pytest.raises(InvalidReplicationFactorError, match="broker 0 has ssd; broker 1 has"):
            admin.create_topic("refused", replication_factor=3, config={"media": "hdd"})
        refused = admin.reassign_partitions({("large", 0): [0, 1]})
        assert isinstance(refused["large", 0], InvalidReplicaAssignmentError)

        config = {"media": "ssd"}
        admin.create_topic("one", partitions=1, replication_factor=1, config=config)
        admin.reassign_partitions({("one", 0): [0]})  # Which has no HDD.
        wait_until(lambda: lies_on(admin, "one") == {(0, SSD)}, "the replica has moved")
        with SyncProducer(mixed.bootstrap, acks="all") as producer:
            for number in range(100):
                producer.send("one", b"%d" % number)
        admin.alter_topic("one", set_config={"media": "hdd"})
        described = admin.describe_topic("one")
        assert len(described.misplaced(admin.describe_logs("one"))) == 1
        topics = admin.describe_topics().values()
        plan = plan_reassignment(topics, [brokers[2]], partitions=[("one", 0)])
        assert plan == {("one", 0): (2,)}
        assert admin.reassign_partitions(plan) == {("one", 0): None}
        wait_until(lambda: lies_on(admin, "one") == {(2, HDD)}, "the replica has moved")
        assert described.misplaced(admin.describe_logs("one")) == []
        assert read_all(mixed.bootstrap, "one", 100) == [b"%d" % number for number in range(100)]


def test_people_are_shown_what_brokers_have_and_what_lies_elsewhere(mixed: RunningCluster) -> None:
    millrace = CommandLine(mixed.bootstrap)
    table = millrace.ok("cluster", "describe").splitlines()
    assert "MEDIA" in table[1]
    assert "ssd, hdd" in table[3]
    document = json.loads(millrace.ok("cluster", "describe", "-o", "json"))
    assert [broker["media"] for broker in document["brokers"]] == [["ssd"], ["ssd", "hdd"], ["hdd"]]

    create = ["topic", "create", "t", "--partitions", "2", "--replication-factor", "2"]
    millrace.ok(*create, "--set", "media=ssd")
    logs = json.loads(millrace.ok("topic", "describe", "t", "-o", "json"))["logs"]
    assert {log["media"] for log in logs} == {"ssd"}
    millrace.ok("topic", "alter", "t", "--set", "media=hdd")
    said = millrace.run("topic", "describe", "t").stderr
    assert "on ssd and not on hdd: partitions 0, 1 on broker 0" in said
    plan = json.loads(millrace.ok("reassign", "plan", "t"))["partitions"]
    assert [sorted(partition["replicas"]) for partition in plan] == [[1, 2], [1, 2]]


def test_a_disk_that_fails_takes_its_replicas_and_its_media_and_leaves_the_rest(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(log_dirs=[tmp_path / "ssd", tmp_path / "hdd"], media=["ssd", "hdd"])
    with SyncAdmin(broker.address) as admin, SyncProducer(broker.address) as producer:
        admin.create_topic("fast", partitions=1, config={"media": "ssd"})
        config = {"media": "hdd", "segment.bytes": "1MiB"}
        large = TopicPartition(admin.create_topic("large", config=config).topic_id, 0)
        assert lies_on(admin, "large") == {(0, HDD)}
        producer.send("fast", b"before").result(30)
        (tmp_path / "hdd").rename(tmp_path / "away")
        with RawClient(broker.address) as client:
            batch = batch_of(large, [bytes(4000)] * 100)
            answers = [client.produce_batch(large, batch) for _ in range(10)]
        assert answers[-1].error.code == ErrorCode.ERROR_CODE_LOG_DIR_FAILED  # No new segment.
        wait_until(lambda: broker.metrics()["millrace_offline_log_dirs"] == 1, "it is noticed")
        wait_until(lambda: admin.describe_cluster().brokers[0].media == (SSD,), "it is said")
        with pytest.raises(InvalidReplicationFactorError, match="broker 0 has ssd"):
            admin.create_topic("larger", partitions=1, config={"media": "hdd"})
        producer.send("fast", b"after").result(30)
    assert read_all(broker.address, "fast", 2) == [b"before", b"after"]


def test_a_directory_that_is_said_to_lie_on_another_media_keeps_what_it_has(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(log_dirs=[tmp_path / "log"])
    with SyncAdmin(broker.address) as admin, SyncProducer(broker.address) as producer:
        admin.create_topic("t", partitions=1, config={"media": "ssd"})
        producer.send("t", b"there").result(30)
    broker.stop()
    broker.media = ["hdd"]
    broker.start()
    with SyncAdmin(broker.address) as admin:
        assert admin.describe_cluster().brokers[0].media == (HDD,)
        assert len(admin.describe_topic("t").misplaced(admin.describe_logs("t"))) == 1
    assert read_all(broker.address, "t", 1) == [b"there"]


@pytest.mark.timeout(240)  # More than its waits together.
def test_replicas_move_to_the_media_that_their_topic_asks_for_by_themselves(
    tmp_path: Path,
) -> None:
    with RunningCluster(tmp_path, media=[["ssd", "hdd"]] * 3) as running:
        with SyncAdmin(running.bootstrap) as admin:
            admin.create_topic("t", partitions=4, replication_factor=2, config={"media": "ssd"})
            leaders = [partition.leader for partition in admin.describe_topic("t").partitions]
            with producing(running.bootstrap, "t", partitions=4) as took:
                wait_until(lambda: len(took) > 200, "records are written", 60)
                admin.alter_topic("t", set_config={"media": "hdd"})
                wait_until(
                    lambda: {media for _, media in lies_on(admin, "t")} == {HDD}, "all have moved"
                )
                there = len(took)
                wait_until(lambda: len(took) > there + 200, "records are written there", 60)
            assert max(took) < 15, "the request time-out is 30 s"
            described = admin.describe_topic("t")
            assert described.misplaced(admin.describe_logs("t")) == []
            assert [partition.leader for partition in described.partitions] == leaders
            assert all(len(partition.isr) == 2 for partition in described.partitions)
            for broker in running.brokers:
                wait_until(
                    lambda: broker.metrics()["millrace_misplaced_replicas"] == 0,  # noqa: B023
                    "it is shown",
                )
                assert broker.log_has("a replica has moved")
                old = f"{described.topic_id.hex()}-?"
                wait_until(lambda: not list(broker.log_dirs[0].glob(old)), "it is gone")  # noqa: B023
        assert numbers(running.bootstrap, "t", len(took)) == list(range(len(took)))
