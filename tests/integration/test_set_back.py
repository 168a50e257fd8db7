"""A store or a log directory that is put back from a backup is refused with the reason (F41, F45).

Nothing is deleted or begun anew by itself, and with the newest state everything is there again.
"""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.integration.cli.command_line import CommandLine
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, failed_start, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.cli.console.failures import ExitCode
from millrace.client import SyncAdmin, SyncConsumer, SyncProducer


def produce(address: str, topic: str, count: int) -> None:
    with SyncProducer(address, acks="all") as producer:
        for handle in [producer.send(topic, b"%d" % number) for number in range(count)]:
            handle.result(30)


def read(address: str, topic: str, count: int) -> int:
    """Return how many records there are, of those that should be."""
    with SyncConsumer(address) as consumer:
        consumer.subscribe([topic])
        found = 0
        for _ in consumer:
            found += 1
            if found == count:
                break
        return found


def stored(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return what lies in a store."""
    with closing(sqlite3.connect(path)) as store:
        rows = store.execute("SELECT key, version, value FROM objects").fetchall()
    return {key: (version, value) for key, version, value in rows}


def copy_store(source: Path, target: Path) -> None:
    """Put one store's content into another's file, also while brokers use it."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def files_of(broker: RunningBroker) -> dict[str, bytes]:
    """Return the records in a broker's files, by path."""
    (folder,) = broker.log_dirs
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*.log"))}


def stop(cluster: RunningCluster) -> None:
    for broker in reversed(cluster.brokers):
        broker.stop()


def test_no_broker_starts_on_a_store_that_was_set_back_however_often_it_tries(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    store, backup, newest = (
        tmp_path / name for name in ("coordination.sqlite", "backup.sqlite", "newest.sqlite")
    )
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("a", replication_factor=3)
        copy_store(store, backup)
        admin.create_topic("b", replication_factor=3)
    produce(cluster.bootstrap, "b", 50)
    stop(cluster)
    copy_store(store, newest)
    copy_store(backup, store)
    before, files = stored(store), [files_of(broker) for broker in cluster.brokers]
    for broker in (*cluster.brokers, *cluster.brokers):
        code, said = failed_start(broker)
        assert code
        assert "the coordination store was set back to an older state" in said
        assert "Restore its newest state" in said
    assert stored(store) == before
    assert [files_of(broker) for broker in cluster.brokers] == files
    copy_store(newest, store)
    cluster.start()
    assert read(cluster.bootstrap, "b", 50) == 50


@pytest.mark.nightly
def test_a_store_that_is_set_back_under_a_running_cluster_stops_changes_and_nothing_else(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    store, backup, newest = (
        tmp_path / name for name in ("coordination.sqlite", "backup.sqlite", "newest.sqlite")
    )
    millrace = CommandLine(cluster.bootstrap)
    copy_store(store, backup)
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("b", replication_factor=3)
        produce(cluster.bootstrap, "b", 50)
        copy_store(store, newest)
        copy_store(backup, store)

        def is_known() -> bool:
            # What was set back has to be written for the controller to notice.
            millrace.run("topic", "alter", "b", "--set", "retention.ms=9000000")
            return "was set back to an older state" in millrace.run("cluster", "health").output

        wait_until(is_known, "cluster health says that the store was set back", 60)
        assert millrace.run("cluster", "health").exit_code == ExitCode.UNHEALTHY
        document = json.loads(millrace.run("cluster", "health", "-o", "json").stdout)
        assert "Restore its newest state" in document["controller_problem"]
        before = stored(store)
        produce(cluster.bootstrap, "b", 50)
        assert all(broker.is_running for broker in cluster.brokers)
        assert stored(store) == before
        copy_store(newest, store)
        wait_until(
            lambda: millrace.run("cluster", "health").exit_code == 0, "it is healthy again", 60
        )
        admin.create_topic("d", replication_factor=3)
    assert read(cluster.bootstrap, "b", 100) == 100


@pytest.mark.nightly
def test_a_broker_that_remembers_nothing_does_not_overtake_those_that_do(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    """It takes the older state over; the first that has seen more ends that, for good."""
    store, backup, newest = (
        tmp_path / name for name in ("coordination.sqlite", "backup.sqlite", "newest.sqlite")
    )
    copy_store(store, backup)
    cluster.create_topic("b", replication_factor=3)
    produce(cluster.bootstrap, "b", 50)
    stop(cluster)
    copy_store(store, newest)
    copy_store(backup, store)
    settings = {**cluster[0].settings, "node.name": "newcomer"}
    old = cluster[0]
    with RunningBroker(tmp_path / "newcomer", settings) as newcomer:
        process = old.spawn()
        try:
            text = "was set back to an older state"
            wait_until(lambda: newcomer.log_has(text), "the newcomer says so", 60)
            wait_until(lambda: old.log_has(text), "so does who has seen more", 60)
        finally:
            process.kill()
            process.communicate()
        before = stored(store)
        newcomer.kill()
        for _ in range(3):
            code, said = failed_start(newcomer)
            assert code
            assert text in said
        assert stored(store) == before
    copy_store(newest, store)
    cluster.start()
    assert read(cluster.bootstrap, "b", 50) == 50


def test_an_older_copy_of_a_log_directory_is_refused(
    start_broker: StartBroker, topic_name: str, tmp_path: Path
) -> None:
    broker = start_broker()
    (log,) = broker.log_dirs
    broker.create_topic(topic_name)
    produce(broker.address, topic_name, 5)
    broker.stop()
    shutil.copytree(log, tmp_path / "old")
    broker.start()
    produce(broker.address, topic_name, 4)
    broker.kill()
    log.rename(tmp_path / "newest")
    shutil.copytree(tmp_path / "old", log)
    before = files_of(broker)
    for _ in range(3):
        code, said = failed_start(broker)
        assert code
        assert "an older copy was put back" in said
    assert files_of(broker) == before
    shutil.rmtree(log)
    (tmp_path / "newest").rename(log)
    broker.start()
    assert read(broker.address, topic_name, 9) == 9


def test_an_older_copy_that_somebody_lets_count_as_a_lost_disk_is_caught_up(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", replication_factor=3)
        produce(cluster.bootstrap, "t", 5)
        (log,) = cluster[2].log_dirs
        cluster[2].stop()
        shutil.copytree(log, tmp_path / "old")
        cluster[2].start()
        produce(cluster.bootstrap, "t", 5)
        cluster[2].stop()
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "old", log)
        code, said = failed_start(cluster[2])
        assert code
        told = re.search(r"node\.accept_older_copy = '(\d+/\d+)'", said)
        assert told is not None
        cluster[2].settings["node.accept_older_copy"] = told[1]
        cluster[2].start()
        accepted = [
            broker.log_has("older copy of its disk, which counts") for broker in cluster.brokers
        ]
        assert accepted.count(True) == 1, "the controller's audit log says so"

        def is_whole() -> bool:
            return len(admin.describe_topic("t").partitions[0].isr) == 3

        wait_until(is_whole, "the copy is caught up and in sync")
    cluster[0].kill()
    cluster[1].kill()
    assert files_of(cluster[2])


@pytest.mark.nightly
def test_a_lost_store_under_new_brokers_is_another_cluster_and_deletes_nothing(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    """Whoever starts first with new directories cannot know; all others say what happened."""
    cluster.create_topic("t", replication_factor=3)
    produce(cluster.bootstrap, "t", 50)
    stop(cluster)
    store = tmp_path / "coordination.sqlite"
    copy_store(store, tmp_path / "newest.sqlite")
    files = [files_of(broker) for broker in cluster.brokers]
    for path in tmp_path.glob("coordination.sqlite*"):
        path.unlink()
    code, said = failed_start(cluster[0])
    assert code
    assert "the coordination store is empty" in said
    assert stored(store) == {}
    settings = {**cluster[0].settings, "node.name": "newcomer"}
    with RunningBroker(tmp_path / "newcomer", settings) as newcomer:
        for broker in cluster.brokers:
            code, said = failed_start(broker)
            assert code
            assert "broker's log directories belong to" in said or "but the log directories" in said
        newcomer.stop()
    assert [files_of(broker) for broker in cluster.brokers] == files
    for path in tmp_path.glob("coordination.sqlite*"):
        path.unlink()
    copy_store(tmp_path / "newest.sqlite", store)
    cluster.start()
    assert read(cluster.bootstrap, "t", 50) == 50
