"""The coordination store of one machine: an SQLite database.

Objects are written with `journal_mode=WAL` and `synchronous=FULL`, which flushes each commit: with
NORMAL, a power cut undoes confirmed commits (measured: 200 of 200). The lease is written four times
a second and means nothing after a power cut, as its holder is gone then: it has a connection with
`synchronous=NORMAL`, which orders writes without flushing them.

Every write of an object has the next revision of the whole store, so a store with a lower revision
than this process has seen was set back to an older state. Nothing is written to it, not even over
an object that is equal in both: that write would be lost in the newest state, and brokers that have
seen it would refuse that state (P39).

A lock file beside the database keeps other processes out: all of them, or, if several brokers share
the store, those without that setting. A second one lets one process after the other open it. Both
are for this user alone, as is all that is made here: no other user can hold up a broker.

A full disk passes. A part of it is kept for this store, so that it can be opened even then (P64).

Rule P41. All brokers are on one machine, where two processes cannot listen at one address. So the
lease does not record processes here (`LeaseRecord.incarnation`).
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from millrace.broker.coordination.reserve import Reserve, is_disk_full
from millrace.broker.coordination.store import (
    CoordinationStoreError,
    CoordinationUnavailableError,
    always,
)
from millrace.broker.storage.file_system import is_full, make_durable_directory
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.core.controller.lease import LeaseRecord
from millrace.core.errors import InvalidConfigError
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.objects.store_versions import set_back
from millrace.core.metadata.objects.stored_object import StoredObject

APPLICATION_ID: Final = 0x4D52_434F  # Marks the file as ours: "MRCO".
SCHEMA_VERSION: Final = 1

_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS objects (
    key TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    controller_epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL UNIQUE, -- Of the whole store: how many writes there were before.
    value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS lease (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    holder TEXT NOT NULL,
    address TEXT NOT NULL,
    duration_ms INTEGER NOT NULL,
    version INTEGER NOT NULL
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

# Nothing was done, or the outcome is unknown; it may work again.
_TRANSIENT: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

# What SQLite says of a write that found no room, and of others that failed.
_WRITES: Final = (
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
    sqlite3.SQLITE_CANTOPEN,
)


class SqliteStore:
    """A database that is open, with the lock that keeps others out.

    Args:
        path: the database, created with its directory when it is missing.
        is_exclusive: whether no other process may have it open; all must agree.
        busy_timeout_ms: how long to wait for another process's transaction.

    Raises:
        InvalidConfigError: another process has the store open, or the file is something else.
        CoordinationStoreError: the database is damaged, or cannot be opened.
        CoordinationUnavailableError: the disk is full, or another process's transaction lasts.
    """

    def __init__(
        self, path: str | Path, *, is_exclusive: bool = True, busy_timeout_ms: int = 5000
    ) -> None:
        self._path = Path(path)
        self._busy_timeout_s = busy_timeout_ms / 1000
        self._revision = 0  # The highest that was seen.
        self._reserve = Reserve(self._beside(".reserve"))
        has_reserve = self._reserve.is_there
        try:
            self._open(is_exclusive)
        except CoordinationUnavailableError:
            if not has_reserve or self._reserve.is_there:
                raise
            self._open(is_exclusive)  # There is room now.
        self._reserve.take()

    def read_all(self, keys: Sequence[str]) -> list[StoredObject | None]:
        """See `CoordinationStore`."""
        with self._errors():
            self._revision = max(self._revision, self._stored_revision())
            rows = [
                self._objects.execute(
                    "SELECT value, version, controller_epoch FROM objects WHERE key = ?", (key,)
                ).fetchone()
                for key in keys
            ]
        return [
            None if row is None else StoredObject(row[0], row[1], ControllerEpoch(row[2]))
            for row in rows
        ]

    def compare_and_swap_all(
        self, writes: Sequence[tuple[str, StoredObject]], may_write: Callable[[], bool] = always
    ) -> list[bool]:
        """See `CoordinationStore`. One transaction, so one flush for any number."""
        with self._errors(), _transaction(self._objects):  # May wait for another process.
            if not may_write():
                return [False] * len(writes)
            revision = self._stored_revision()
            if revision < self._revision:
                raise set_back(
                    f"its revision is {revision}, and this broker has read {self._revision} before"
                )
            swapped = [
                self._swap(key, new, revision + number)
                for number, (key, new) in enumerate(writes, start=1)
            ]
            revision = self._stored_revision()
        self._revision = revision
        self._reserve.take()
        return swapped

    def read_lease(self) -> LeaseRecord | None:
        """See `CoordinationStore`."""
        with self._errors():
            row = self._lease.execute(
                "SELECT holder, address, duration_ms, version FROM lease"
            ).fetchone()
        if row is None:
            return None
        return LeaseRecord(holder=row[0], address=row[1], duration_ms=row[2], version=row[3])

    def compare_and_swap_lease(self, new: LeaseRecord) -> bool:
        """See `CoordinationStore`."""
        values = (new.holder, new.address, new.duration_ms, new.version)
        with self._errors(), _transaction(self._lease) as execute:
            if new.version == 1:
                written = execute(
                    "INSERT INTO lease (id, holder, address, duration_ms, version) "
                    "VALUES (1, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                    values,
                )
            else:
                written = execute(
                    "UPDATE lease SET holder = ?, address = ?, duration_ms = ?, version = ? "
                    "WHERE version = ?",
                    (*values, new.version - 1),
                )
        return written.rowcount == 1

    def lease_mark(self) -> int:
        """See `CoordinationStore`. Writes of objects change it too."""
        with self._errors():
            (data_version,) = self._lease.execute("PRAGMA data_version").fetchone()
        return int(data_version)

    def watch_lease(self, on_change: Callable[[], None]) -> bool:
        """See `CoordinationStore`. SQLite tells nothing of the writes of other processes."""
        del on_change
        return False

    def close(self) -> None:
        """See `CoordinationStore`."""
        with self._errors():
            self._opened.close()

    def _open(self, is_exclusive: bool) -> None:
        files = PosixFileSystem()
        directory = str(self._path.parent)
        with contextlib.ExitStack() as opened:
            opening = opened.enter_context(contextlib.ExitStack())
            with self._file_errors():
                if not files.exists(directory):
                    make_durable_directory(files, directory)
                kind = fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH
                opened.enter_context(_locked(self._beside(".lock"), kind | fcntl.LOCK_NB))
                # One process at a time opens it: SQLite does not wait for others when it begins a
                # write-ahead log, and no process can use a half-made database.
                opening.enter_context(_locked(self._beside(".opening"), fcntl.LOCK_EX))
                if not files.exists(str(self._path)):
                    # For this user alone. SQLite gives the files beside it the same mode.
                    files.open(str(self._path), create=True)
            self._objects = opened.enter_context(contextlib.closing(self._connect("FULL")))
            self._check()
            self._lease = opened.enter_context(contextlib.closing(self._connect("NORMAL")))
            with self._file_errors():
                files.fsync_directory(directory)  # Makes the new files' names durable.
            opening.close()
            # In reverse, so that the connection with FULL is the last to close.
            self._opened = opened.pop_all()

    def _stored_revision(self) -> int:
        (revision,) = self._objects.execute(
            "SELECT coalesce(max(revision), 0) FROM objects"
        ).fetchone()
        return int(revision)

    def _swap(self, key: str, new: StoredObject, revision: int) -> bool:
        assert new.version >= 1
        values = (new.version, new.controller_epoch, revision, new.value, key)
        if new.version == 1:
            written = self._objects.execute(
                "INSERT INTO objects (version, controller_epoch, revision, value, key) "
                "VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
                values,
            )
        else:
            written = self._objects.execute(
                "UPDATE objects SET version = ?, controller_epoch = ?, revision = ?, value = ? "
                "WHERE key = ? AND version = ? AND controller_epoch <= ?",
                (*values, new.version - 1, new.controller_epoch),
            )
        return written.rowcount == 1

    def _beside(self, suffix: str) -> Path:
        return self._path.with_name(self._path.name + suffix)

    @contextlib.contextmanager
    def _file_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_full(error):
                raise self._full() from error
            raise CoordinationStoreError(
                f"the coordination store {self._path} cannot be opened: {error}"
            ) from error

    def _connect(self, synchronous: str) -> sqlite3.Connection:
        with self._errors(), contextlib.ExitStack() as opened:
            connection = sqlite3.connect(
                self._path,
                timeout=self._busy_timeout_s,
                isolation_level=None,  # Transactions are begun and ended here, by name.
                check_same_thread=False,  # One thread at a time, by the caller.
            )
            opened.callback(connection.close)
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise CoordinationStoreError(
                    f"the coordination store {self._path} cannot use a write-ahead log: put it on "
                    "a local file system"
                )
            opened.pop_all()
        return connection

    def _check(self) -> None:
        """Check the file; create the tables in a new one."""
        with self._errors():
            (application_id,) = self._objects.execute("PRAGMA application_id").fetchone()
            (tables,) = self._objects.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if not tables and not application_id:
                self._objects.executescript(_SCHEMA)
            elif application_id != APPLICATION_ID:
                raise InvalidConfigError(
                    f"{self._path} is a database of another program: correct coordination.path"
                )
            (version,) = self._objects.execute("PRAGMA user_version").fetchone()
            if version != SCHEMA_VERSION:
                raise InvalidConfigError(
                    f"{self._path} was written by another release: it has schema {version}, this "
                    f"release knows {SCHEMA_VERSION}"
                )
            problems = [row[0] for row in self._objects.execute("PRAGMA quick_check(3)")]
        if problems != ["ok"]:
            raise CoordinationStoreError(
                f"the coordination store {self._path} is damaged ({'; '.join(problems)}): restore "
                "it from a backup; nothing was changed"
            )

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code & 0xFF in _TRANSIENT:  # Without the extended part.
                raise CoordinationUnavailableError(
                    f"the coordination store {self._path} is not available now: {error}"
                ) from error
            if code == sqlite3.SQLITE_FULL or (code in _WRITES and self._is_disk_full()):
                raise self._full() from error
            raise CoordinationStoreError(
                f"the coordination store {self._path} failed: {error}. If the file is damaged, "
                "restore it from a backup; nothing is repaired by itself"
            ) from error

    def _is_disk_full(self) -> bool:
        log = self._beside("-wal")
        return is_disk_full(self._path, log.stat().st_size if log.exists() else 0)

    def _full(self) -> CoordinationUnavailableError:
        """Return what to say, with room for the next try if there was a reserve."""
        self._reserve.give_up()
        return CoordinationUnavailableError(
            f"the disk of the coordination store {self._path} is full: free some space"
        )


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[Callable[..., sqlite3.Cursor]]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection.execute
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    """Hold a lock file, which no other user can open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            raise InvalidConfigError(
                f"another broker uses the coordination store beside {path}: stop it, or choose "
                "another coordination.path"
            ) from None
        yield
    finally:
        os.close(descriptor)
