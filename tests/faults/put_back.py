"""Restores from a backup: the metadata's store, or a broker's log directory (P39).

Brokers refuse such a state with the reason, and change nothing, as long as it is there. With the
newest state everything continues, and no acknowledged record is lost.
"""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tests.faults.cluster import Cluster, Node
from tests.faults.fault import Scene, fault
from tests.faults.network import run
from tests.integration.running_broker import wait_until

from millrace.broker.storage.log_directory import read_seen
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.client import SyncAdmin
from millrace.core.errors import MillraceError
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.objects.store_versions import StoreVersions
from millrace.core.metadata.objects.stored_object import StoredObject

_SET_BACK = "the coordination store was set back to an older state"
_EMPTY = "the coordination store is empty"
_OLDER_COPY = "an older copy was put back"
_KNOWN_SECONDS = 60.0


def _stored(path: Path) -> dict[str, StoredObject]:
    """The objects of a store."""
    with closing(sqlite3.connect(path)) as store:
        rows = store.execute("SELECT key, value, version, controller_epoch FROM objects").fetchall()
    return {
        key: StoredObject(value, version, ControllerEpoch(e)) for key, value, version, e in rows
    }


def _copy_store(source: Path, target: Path) -> None:
    """Copy one store's content into another's file, even while brokers use it."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)
    _flush(target)


def _copy_directory(source: Path, target: Path) -> None:
    """Replace a directory by a copy of another one."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    _flush(target)


def _flush(path: Path) -> None:
    """Flush the copy, so that it survives later power cuts."""
    run("sync", "-f", str(path))


def _refusal(node: Node, reason: str) -> str:
    """Start a broker that must refuse to start; return the reason."""
    logged = node.log_size()
    try:
        code, _ = node.refused_start()
    except subprocess.TimeoutExpired:
        raise AssertionError(
            f"{node.name} started, or tries to, and should say: {reason}"
        ) from None
    said = node.logged_since(logged)
    if not code or reason not in said:
        raise AssertionError(f"{node.name} ended with {code} and should say {reason!r}: {said}")
    return f"{node.name} refused: {reason}"


def _accepting(node: Node) -> str:
    """Return the setting with which the broker starts with its older copy, as it says itself."""
    found = re.findall(r"node\.accept_older_copy = '(\d+/\d+)'", node.logged_since(0))
    accepted: str = found[-1]
    return accepted


def _make_topic(admin: SyncAdmin, scene: Scene) -> str:
    """Change the metadata; return the new topic."""
    return admin.create_topic(f"put-back-{scene.dice.randrange(10**9)}", replication_factor=3).name


@contextmanager
def _paused(cluster: Cluster) -> Iterator[None]:
    """Pause all writers to the store for the length of the block."""
    for node in cluster.nodes:
        node.pause()
    try:
        yield
    finally:
        for node in cluster.nodes:
            node.resume()


@fault("F41", "the metadata's store is set back to an older state while brokers run")
def set_the_store_back(scene: Scene) -> str:
    cluster, store = scene.cluster, scene.cluster.store_file
    older, newest = cluster.folder / "older.sqlite", cluster.folder / "newest.sqlite"
    made: list[str] = []

    with SyncAdmin(cluster.bootstrap, request_timeout_ms=2000) as admin:

        def is_known() -> bool:
            with suppress(MillraceError):  # Only a writer notices.
                made.append(_make_topic(admin, scene))
            return _SET_BACK in admin.describe_health().controller_problem

        with cluster.watcher.reading:
            _copy_store(store, older)
            made.append(_make_topic(admin, scene))
            with _paused(cluster):
                _copy_store(store, newest)
                _copy_store(older, store)
            try:
                wait_until(is_known, f"somebody says: {_SET_BACK}", _KNOWN_SECONDS)
                count, before = len(made), _stored(store)
                scene.load.wait_for_more()
                is_known()
                if len(made) > count or _stored(store) != before:
                    raise AssertionError("the metadata was changed while the store was set back")
                if not all(node.is_running for node in cluster.nodes):
                    raise AssertionError("a broker ended because the store was set back")
            finally:
                _copy_store(newest, store)
        wait_until(
            lambda: not admin.describe_health().controller_problem, "it goes on", _KNOWN_SECONDS
        )
        for topic in made:
            admin.delete_topic(topic)  # Each exists: its creation was acknowledged.
    return f"cluster health said: {_SET_BACK}; writes went on"


@fault(
    "F45",
    "all brokers die; the metadata's store is put back from an older copy, or lost",
)
def put_an_older_store_back(scene: Scene) -> str:
    cluster, store = scene.cluster, scene.cluster.store_file
    older, newest = cluster.folder / "older.sqlite", cluster.folder / "newest.sqlite"
    _copy_store(store, older)
    with SyncAdmin(cluster.bootstrap) as admin:
        topic = _make_topic(admin, scene)
    _wait_until_remembered(cluster)
    before = cluster.look()
    with cluster.watcher.reading:
        for node in cluster.nodes:
            os.kill(node.pid, signal.SIGKILL)  # Kill all before waiting for the first.
        for node in cluster.nodes:
            node.abandon()
        _copy_store(store, newest)
        _remove(store)
        reason = _EMPTY
        if scene.dice.random() < 0.5:
            _copy_store(older, store)
            reason = _SET_BACK
        try:
            put_back = _stored(store) if store.exists() else {}
            acknowledged = scene.load.acknowledged
            with ThreadPoolExecutor(len(cluster.nodes)) as pool:
                said = list(pool.map(lambda node: _refusal(node, reason), cluster.nodes))
            if scene.load.acknowledged > acknowledged or _stored(store) != put_back:
                raise AssertionError("something was acknowledged or changed by who refused")
        finally:
            _remove(store)
            _copy_store(newest, store)
        cluster.start(cluster.nodes)
    for node in cluster.nodes:
        scene.wait_for_new_life(node, before)
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.delete_topic(topic)
    return f"{'; '.join(said)}; then every broker registered anew"


def _wait_until_remembered(cluster: Cluster) -> None:
    """Return once every broker has stored the present state of the metadata."""
    wanted = StoreVersions.of(_stored(cluster.store_file))
    files = PosixFileSystem()

    def is_remembered() -> bool:
        found = [read_seen(files, str(node.log_dirs[0])) for node in cluster.nodes]
        return all(seen.merged(wanted) == seen for seen in found)

    wait_until(is_remembered, "all brokers remember the metadata")


def _remove(store: Path) -> None:
    for path in store.parent.glob(f"{store.name}*"):
        path.unlink()


@fault(
    "F36b",
    "an older copy of a log directory is put back, and then the newest, or it is given up",
)
def put_an_older_directory_back(scene: Scene) -> str:
    cluster = scene.cluster
    node = scene.any_node()
    (log,) = node.log_dirs
    older, newest = cluster.folder / "older", cluster.folder / "newest"
    before = scene.view
    node.kill()
    _copy_directory(log, older)
    node.start()
    scene.wait_for_new_life(node, before)
    cluster.wait_until_whole()
    scene.load.wait_for_all()
    before = scene.view
    node.kill()
    _copy_directory(log, newest)
    node.is_spoilt = True
    _copy_directory(older, log)
    said = _refusal(node, _OLDER_COPY)
    scene.load.wait_for_more()
    if scene.cluster.look().broker(node.name).broker_epoch != before.broker(node.name).broker_epoch:
        raise AssertionError(f"{node.name} registered with an older copy of its directory")
    if scene.dice.random() < 0.5:
        _copy_directory(newest, log)
        what = "with the newest"
    else:
        node.settings["node.accept_older_copy"] = _accepting(node)
        what = "when the newest was given up"
    node.start()
    node.is_spoilt = False
    scene.wait_for_new_life(node, before)
    cluster.wait_until_whole()
    shutil.rmtree(older)
    shutil.rmtree(newest)
    return f"{said}; {what} it registered anew, and was in sync"
