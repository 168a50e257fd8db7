"""The SQLite store on real files, with other processes."""

import fcntl
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.integration.coordination.store_contract import (
    StoreContract,
    Stores,
    lease,
    read,
    stored,
    swap,
)
from tests.integration.small_disk import fill, small_disk

from millrace.broker.coordination.reserve import RESERVE_BYTES
from millrace.broker.coordination.sqlite import SqliteStore
from millrace.broker.coordination.store import (
    CoordinationStoreError,
    CoordinationUnavailableError,
)
from millrace.core.errors import InvalidConfigError
from millrace.core.metadata.objects.stored_object import CorruptMetadataError

BUSY_MS = 60_000
"""How long stores that race wait for each other: SQLite keeps no order, and disks may be slow."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "coordination.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


class TestSqliteStore(StoreContract):
    """The contract."""

    @pytest.fixture
    def stores(self, path: Path) -> Iterator[Stores]:
        one, other = (
            SqliteStore(path, is_exclusive=False, busy_timeout_ms=BUSY_MS) for _ in range(2)
        )
        yield one, other
        for store in (one, other):
            store.close()


def test_what_was_written_is_there_after_a_restart(path: Path) -> None:
    first = SqliteStore(path)
    swap(first, "k", stored(1))
    first.compare_and_swap_lease(lease(1))
    first.close()
    second = SqliteStore(path)
    assert read(second, "k") == stored(1)
    assert second.read_lease() == lease(1)
    second.close()


def test_objects_are_flushed_and_the_lease_is_not(store: SqliteStore) -> None:  # P41
    modes = [
        connection.execute("PRAGMA synchronous").fetchone()[0]
        for connection in (store._objects, store._lease)
    ]
    assert modes == [2, 1]  # FULL and NORMAL.


# Other processes.

WRITER = """
import sys
from millrace.broker.coordination.sqlite import SqliteStore
from millrace.core.metadata.objects.stored_object import StoredObject
store = SqliteStore(sys.argv[1])
version = 0
while True:
    version += 1
    assert store.compare_and_swap_all([("k", StoredObject(b"%d" % version * 500, version, 1))])[0]
    print(version, flush=True)
"""

RACER = """
import sys
from millrace.broker.coordination.sqlite import SqliteStore
from millrace.core.metadata.objects.stored_object import StoredObject
store = SqliteStore(sys.argv[1], is_exclusive=False, busy_timeout_ms=int(sys.argv[3]))
print("ready", flush=True)
sys.stdin.readline()
won = 0
while True:
    (old,) = store.read_all(["counter"])
    version = old.version + 1 if old else 1
    if version > int(sys.argv[2]):
        break
    value = b"%d" % version
    won += store.compare_and_swap_all([("counter", StoredObject(value, version, 1))])[0]
print(won, flush=True)
store.close()
"""


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )


def test_what_a_killed_process_had_confirmed_is_there(path: Path) -> None:
    for _ in range(3):
        with python(WRITER, path) as writer:
            assert writer.stdout is not None
            confirmed = [int(writer.stdout.readline()) for _ in range(20)][-1]
            writer.send_signal(signal.SIGKILL)
            confirmed = max([confirmed, *map(int, writer.stdout.read().split())])
            assert writer.wait(30) == -signal.SIGKILL
        store = SqliteStore(path)
        found = read(store, "k")
        assert found is not None
        assert found.version in (confirmed, confirmed + 1)
        assert found.value == b"%d" % found.version * 500
        store.close()
        path.unlink()


OPENER = """
import sys
from millrace.broker.coordination.sqlite import SqliteStore
print("ready", flush=True)
sys.stdin.readline()
SqliteStore(sys.argv[1], is_exclusive=False).close()
print("opened", flush=True)
"""


def test_processes_may_make_the_database_at_the_same_moment(tmp_path: Path) -> None:
    for attempt in range(5):
        openers = [python(OPENER, tmp_path / f"{attempt}" / "store") for _ in range(4)]
        for opener in openers:
            assert opener.stdout is not None
            assert opener.stdout.readline() == "ready\n"
        for opener in openers:
            assert opener.stdin is not None
            opener.stdin.write("go\n")
            opener.stdin.flush()
        printed = [opener.communicate(timeout=60) for opener in openers]
        assert printed == [("opened\n", "")] * len(openers)


def test_of_processes_that_race_one_wins_each_version(path: Path) -> None:
    rounds = 200
    racers = [python(RACER, path, rounds, BUSY_MS) for _ in range(2)]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        wins = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert sum(wins) == rounds
    store = SqliteStore(path)
    assert read(store, "counter") == stored(rounds, b"%d" % rounds)
    store.close()


def copy(source: Path, target: Path) -> None:
    """Put one store's content into another's file, also while it is in use."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


@pytest.mark.parametrize("writes_itself", [True, False])
def test_nothing_is_written_to_a_store_that_was_set_back_not_even_what_was_the_same_before(
    path: Path, tmp_path: Path, writes_itself: bool
) -> None:
    store, other = (SqliteStore(path, is_exclusive=False) for _ in range(2))
    swap(store, "a", stored(1))
    swap(store, "b", stored(1))
    copy(path, tmp_path / "older")
    if writes_itself:
        swap(store, "a", stored(2))
    else:
        swap(other, "a", stored(2))
        assert read(store, "b") == stored(1)  # From a store that holds the newest of "a".
    copy(path, tmp_path / "newest")
    copy(tmp_path / "older", path)
    for _ in range(2):  # What is read meanwhile makes no difference.
        with pytest.raises(CorruptMetadataError, match="was set back to an older state"):
            swap(store, "b", stored(2))
        assert read(store, "b") == stored(1)
    copy(tmp_path / "newest", path)
    assert swap(store, "b", stored(2))
    for each in (store, other):
        each.close()


def test_a_second_process_is_kept_out(path: Path, store: SqliteStore) -> None:
    for is_exclusive in (True, False):
        with pytest.raises(InvalidConfigError, match="another broker uses"):
            SqliteStore(path, is_exclusive=is_exclusive)


def test_a_store_that_another_process_holds_up_is_unavailable_for_a_while(path: Path) -> None:
    store = SqliteStore(path, busy_timeout_ms=10)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CoordinationUnavailableError, match="locked"):
        swap(store, "k", stored(1))
    other.execute("ROLLBACK")
    other.close()
    assert swap(store, "k", stored(1))
    store.close()


# Other users.


def test_nobody_else_may_read_what_is_made_and_what_was_there_stays(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        (tmp_path / "there").mkdir(mode=0o755)
        for directory in (tmp_path / "new" / "data", tmp_path / "there"):
            store = SqliteStore(directory / "coordination.sqlite")
            swap(store, "k", stored(1))
            made = {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()}
            assert {"coordination.sqlite", "coordination.sqlite-wal"} < made.keys()
            assert set(made.values()) == {0o600}
            store.close()
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o755


def test_the_names_of_new_directories_are_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # P69
    flushed: list[str] = []
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    SqliteStore(tmp_path / "new" / "data" / "coordination.sqlite").close()
    assert [f"{tmp_path}", f"{tmp_path}/new", f"{tmp_path}/new/data"] == flushed


def test_a_lock_of_the_directory_holds_nobody_up(path: Path) -> None:
    SqliteStore(path).close()
    with python(OPENER, path) as opener:
        directory = os.open(path.parent, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        try:
            assert opener.communicate("go\n", timeout=60) == ("ready\nopened\n", "")
        finally:
            os.close(directory)
            opener.kill()


# Damage.


def filled(path: Path) -> bytes:
    """Return the bytes of a store with some content, all of it in the main file."""
    store = SqliteStore(path)
    store.compare_and_swap_all([(f"k{n:03}", stored(1, bytes(3000))) for n in range(40)])
    store.close()
    assert not path.with_name(path.name + "-wal").exists()
    return path.read_bytes()


@pytest.mark.parametrize(
    ("position", "damage"),
    [
        (0, b"Not SQLite!!"),
        (16, b"\xff\xff"),  # Page size.
        (100, b"\x77"),  # Kind of the first page.
        (4096, b"\x77" * 64),  # A page of a table.
        (8192, bytes(4096)),
    ],
)
def test_a_damaged_file_is_refused_and_left_as_it_is(
    path: Path, position: int, damage: bytes
) -> None:
    whole = filled(path)
    damaged = whole[:position] + damage + whole[position + len(damage) :]
    path.write_bytes(damaged)
    with pytest.raises(CoordinationStoreError, match=r"restore|damaged"):
        SqliteStore(path)
    assert path.read_bytes() == damaged
    path.write_bytes(whole)  # As after a restore: the lock was given back too.
    store = SqliteStore(path)
    assert read(store, "k007") == stored(1, bytes(3000))
    store.close()


def test_a_truncated_file_is_refused(path: Path) -> None:
    whole = filled(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CoordinationStoreError):
        SqliteStore(path)


def test_a_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(InvalidConfigError, match="another program"):
        SqliteStore(path)


def test_a_schema_of_a_later_release_is_refused(path: Path) -> None:
    filled(path)
    later = sqlite3.connect(path)
    later.execute("PRAGMA user_version = 2")
    later.close()
    with pytest.raises(InvalidConfigError, match="schema 2"):
        SqliteStore(path)


def test_a_path_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CoordinationStoreError, match="cannot be opened"):
        SqliteStore(tmp_path / "file" / "coordination.sqlite")


def test_a_disk_that_fails_is_told_as_such(path: Path) -> None:
    filled(path)
    path.with_name(path.name + "-wal").mkdir()
    with pytest.raises(CoordinationStoreError, match="failed"):
        SqliteStore(path)


# Full disks.


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 4 * RESERVE_BYTES) as mounted:
        yield mounted


def reserve_of(path: Path) -> Path:
    return path.with_name(path.name + ".reserve")


def test_a_store_opens_and_is_written_on_a_full_disk(disk: Path) -> None:  # P64
    path, filler = disk / "coordination.sqlite", disk / "filler"
    SqliteStore(path).close()
    for _ in range(2):
        assert reserve_of(path).stat().st_blocks * 512 == RESERVE_BYTES
        fill(filler)
        store = SqliteStore(path)
        assert not reserve_of(path).exists()
        old = read(store, "k")
        version = old.version + 1 if old else 1
        assert swap(store, "k", stored(version))
        assert store.compare_and_swap_lease(lease(version))
        filler.unlink()
        assert swap(store, "k", stored(version + 1))  # Takes the reserve again.
        assert store.compare_and_swap_lease(lease(version + 1))
        store.close()


def test_a_reserve_is_given_up_for_what_finds_no_room_later(disk: Path) -> None:
    path = disk / "coordination.sqlite"
    store = SqliteStore(path)
    fill(disk / "filler")
    with pytest.raises(CoordinationUnavailableError, match="full: free some space"):
        swap(store, "k", stored(1, bytes(1 << 20)))
    assert swap(store, "k", stored(1, bytes(1 << 20)))
    store.close()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_full_disk_without_a_reserve_is_no_damage(disk: Path, is_new: bool) -> None:
    path = disk / "coordination.sqlite"
    if not is_new:
        filled(path)
        reserve_of(path).unlink()
    fill(disk / "filler")
    with pytest.raises(CoordinationUnavailableError, match="full: free some space"):
        SqliteStore(path)
    (disk / "filler").unlink()
    store = SqliteStore(path)
    assert read(store, "k007") == (None if is_new else stored(1, bytes(3000)))
    store.close()


@contextmanager
def file_size_max(size: int) -> Iterator[None]:
    """Let writes beyond this size fail with EFBIG, as a quota's do with EDQUOT."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_finds_no_room_stores_nothing_and_may_be_tried_again(path: Path) -> None:
    store = SqliteStore(path)
    swap(store, "k", stored(1))
    store.compare_and_swap_lease(lease(1))
    wal_bytes = path.with_name(path.name + "-wal").stat().st_size
    with file_size_max(wal_bytes):
        with pytest.raises(CoordinationUnavailableError, match="full"):
            store.compare_and_swap_lease(lease(2))
        with pytest.raises(CoordinationUnavailableError, match="full"):
            swap(store, "k", stored(2, bytes(1 << 20)))
    with file_size_max(wal_bytes + 4096), pytest.raises(CoordinationUnavailableError, match="full"):
        swap(store, "k", stored(2, bytes(1 << 20)))
    store.close()
    again = SqliteStore(path)
    assert read(again, "k") == stored(1)
    assert again.compare_and_swap_lease(lease(2))
    again.close()


def test_opening_where_files_may_not_grow_advises_no_restore(path: Path) -> None:
    filled(path)
    with (
        file_size_max(4096),
        pytest.raises(CoordinationUnavailableError, match="full: free some space"),
    ):
        SqliteStore(path)
