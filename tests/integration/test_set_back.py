"""A store or a log directory that is put back from a backup is refused with the reason (F41, F45).

Nothing is deleted or begun anew by itself, and with the newest state everything is there again.
"""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster, read_all, write_numbers

from millrace.client import SyncAdmin


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
    write_numbers(cluster.bootstrap, "b", range(50))
    for broker in reversed(cluster.brokers):
        broker.stop()
    copy_store(store, newest)
    copy_store(backup, store)
    before, files = stored(store), [files_of(broker) for broker in cluster.brokers]
    for broker in (*cluster.brokers, *cluster.brokers):
        code, said = broker.refused_start()
        assert code
        assert "the coordination store was set back to an older state" in said
        assert "Restore its newest state" in said
    assert stored(store) == before
    assert [files_of(broker) for broker in cluster.brokers] == files
    copy_store(newest, store)
    cluster.start()
    assert len(read_all(cluster.bootstrap, "b", 50)) == 50


def test_an_older_copy_that_somebody_lets_count_as_a_lost_disk_is_caught_up(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", replication_factor=3)
        write_numbers(cluster.bootstrap, "t", range(5))
        (log,) = cluster[2].log_dirs
        cluster[2].stop()
        shutil.copytree(log, tmp_path / "old")
        cluster[2].start()
        write_numbers(cluster.bootstrap, "t", range(5))
        cluster[2].stop()
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "old", log)
        code, said = cluster[2].refused_start()
        assert code
        told = re.search(r"node\.accept_older_copy = '(\d+/\d+)'", said)
        assert told is not None, said[-3000:]
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
