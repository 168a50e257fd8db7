"""One of a broker's log directories: whose it is, how it was left, and the partitions in it.

    <log directory>/
        lock                   held while a broker uses it
        identity               cluster id, broker id, and the directory's own random id
        recovery-checkpoint    see recovery_checkpoint.py
        clean-shutdown         written last when everything was closed in order
        ballast                space kept for checkpoints when the disk is full (P64)
        <topic id>-<number>/   a partition, see log.py
        <topic id>-<number>.<ms UTC>.deleted/   one that was deleted, until it is removed

The clean-shutdown marker is bound to this directory and to the very recovery checkpoint that was
written with it, so that a stale one means nothing. It is removed, durably, before the first append.

A partition is deleted only because somebody holds a tombstone of it. It gets another name first,
and is removed `file.delete.delay.ms` later. Directories that nobody knows are left alone (P70).

Opening happens in parts, because a broker learns from its directories who it is:
`LogDirectory.open`, `identify` once cluster and broker are known, then `open_log` for each
partition, in as many threads as the shell likes.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import crc32c

from millrace.broker.storage.file_system import FileSystem, Lock, is_full
from millrace.broker.storage.log import LogConfig, PartitionLog, refusal
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint
from millrace.broker.storage.sealed_file import (
    TEMPORARY_SUFFIX,
    DamagedFileError,
    read_sealed,
    write_sealed,
)
from millrace.broker.storage.sparse_index import IndexCache
from millrace.core.errors import CorruptLogError, LogDirFailedError
from millrace.core.ids import (
    BrokerId,
    TopicPartition,
    WallMs,
    parse_topic_partition,
)

_LOCK: Final = "lock"
_IDENTITY: Final = "identity"
_CLEAN: Final = "clean-shutdown"
_BALLAST: Final = "ballast"
_DELETED: Final = ".deleted"


class Identity(NamedTuple):
    """Whose directory it is. `directory_id` is random and never given twice."""

    cluster_id: str
    broker_id: BrokerId
    directory_id: str


@dataclass(slots=True, frozen=True, kw_only=True)
class DirectoryConfig:
    """Settings of a log directory."""

    ballast_bytes: int = 64 * 2**20
    """Space that is taken from the disk in advance, for checkpoints when it is full; 0 is none."""
    index_cache_bytes: int = 32 * 2**20
    """Entries of indexes that are kept in memory, of all partitions together."""
    trash_delay_ms: int = 86_400_000
    """How long a deleted partition is kept under another name, so that a mistake can be undone.
    Kafka's `file.delete.delay.ms`."""


class LogDirectory:
    """See the module. Any thread may call; calls about one partition must not overlap.

    Attributes:
        path: the directory.
        directory_id: its own id.
        identity: whose it is; None until `identify` when it is new.
        was_clean: whether it was closed in order.
        logs: the partitions that it holds; None where the log is not open: not opened yet, damaged,
            or missing although it was there before.
    """

    def __init__(
        self,
        files: FileSystem,
        path: str,
        config: DirectoryConfig,
        *,
        lock: Lock,
        identity: Identity | None,
        directory_id: str,
    ) -> None:
        self._files = files
        self._config = config
        self._lock = lock
        self._cache = IndexCache(config.index_cache_bytes)
        self._checkpoints = RecoveryCheckpoint(files, path, when_full=self._release_ballast)
        self.path = path
        self.identity = identity
        self.directory_id = directory_id
        self.was_clean = False
        self.logs: dict[TopicPartition, PartitionLog | None] = {}

    @classmethod
    def open(
        cls,
        files: FileSystem,
        path: str,
        new_directory_id: str,
        config: DirectoryConfig = DirectoryConfig(),
    ) -> Self:
        """Take a directory into use.

        Args:
            files: where.
            path: the directory; made if it is missing.
            new_directory_id: drawn by the caller, for a directory that has none.
            config: its settings.

        Raises:
            LogDirFailedError: another process uses it, it has partitions but no identity, or the
                disk refused.
            StorageFullError: the disk is full.
        """
        try:
            files.make_directory(path)
            lock = files.lock(f"{path}/{_LOCK}")
        except BlockingIOError:
            raise LogDirFailedError(
                f"{path} is in use by another process: give each broker its own log_dirs"
            ) from None
        except OSError as error:
            raise refusal(error, f"opening {path}") from error
        try:
            identity = _find_identity(files, path)
            directory = cls(
                files,
                path,
                config,
                lock=lock,
                identity=identity,
                directory_id=new_directory_id if identity is None else identity.directory_id,
            )
            directory._load()
        except OSError as error:
            lock.release()
            raise refusal(error, f"opening {path}") from error
        except BaseException:
            lock.release()
            raise
        return directory

    def _load(self) -> None:
        checkpoint = self._checkpoints.read()
        self.was_clean = checkpoint is not None and self._is_marked_clean(checkpoint)
        names = self._files.list(self.path)
        if _CLEAN in names:
            self._files.unlink(f"{self.path}/{_CLEAN}")
            self._files.fsync_directory(self.path)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self._files.unlink(f"{self.path}/{name}")
        present = (parse_topic_partition(name) for name in names)
        self.logs = {found: None for found in present if found is not None}
        # A partition that had records and has no directory any more is missing, not new.
        self.logs.update(dict.fromkeys(self._checkpoints.partitions()))
        self.take_ballast()

    def _is_marked_clean(self, checkpoint: bytes) -> bool:
        try:
            marker = read_sealed(self._files, f"{self.path}/{_CLEAN}", _CLEAN)
        except (FileNotFoundError, DamagedFileError):
            return False
        return marker == self._marker(checkpoint)

    def _marker(self, checkpoint: bytes) -> bytes:
        crc = crc32c.crc32c(checkpoint)
        return f"{self.directory_id} {crc:08x}\n".encode()

    def identify(self, cluster_id: str, broker_id: BrokerId) -> None:
        """Make the directory this broker's, or see that it is.

        Raises:
            LogDirFailedError: it belongs to another broker or cluster, or the disk refused.
            StorageFullError: the disk is full.
        """
        wanted = Identity(cluster_id, broker_id, self.directory_id)
        if self.identity is not None and self.identity != wanted:
            raise LogDirFailedError(
                f"{self.path} belongs to broker {self.identity.broker_id} of cluster "
                f"{self.identity.cluster_id}, not to broker {broker_id} of cluster {cluster_id}: "
                "check log_dirs"
            )
        if self.identity is None:
            payload = "".join(f"{field}\n" for field in wanted).encode()
            try:
                write_sealed(self._files, f"{self.path}/{_IDENTITY}", _IDENTITY, payload)
            except OSError as error:
                raise refusal(error, f"writing the identity of {self.path}") from error
            self.identity = wanted

    # --- Partitions --------------------------------------------------------------------------

    def open_log(
        self, topic_partition: TopicPartition, config: LogConfig, now: WallMs
    ) -> PartitionLog:
        """Open a partition's log, recover it if need be, or begin with an empty one.

        What a crash left behind the recovery point is in the page cache, but perhaps not flushed:
        the log of a topic that promises as much is to be flushed before it is served.

        Raises:
            CorruptLogError: it is damaged below what was flushed.
            LogDirFailedError, StorageFullError: the disk refused.
        """
        assert self.identity is not None
        self.logs.setdefault(topic_partition)
        log = PartitionLog.open(
            self._files,
            f"{self.path}/{topic_partition}",
            topic_partition,
            config,
            checkpoints=self._checkpoints,
            cache=self._cache,
            is_clean=self.was_clean,
            now=now,
        )
        self.logs[topic_partition] = log
        return log

    def delete_log(self, topic_partition: TopicPartition, now: WallMs) -> None:
        """Put a partition into the trash; the caller holds a tombstone of its topic id (P70).

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        log = self.logs.pop(topic_partition, None)
        if log is not None:
            log.close(clean=False)
        source = f"{self.path}/{topic_partition}"
        try:
            # First: from here on a missing directory is not missing records.
            self._checkpoints.remove(topic_partition)
            self._checkpoints.write()
            if self._files.exists(source):
                self._files.rename(source, f"{source}.{now}{_DELETED}")
                self._files.fsync_directory(self.path)
        except OSError as error:
            raise refusal(error, f"deleting {source}") from error

    def empty_trash(self, now: WallMs) -> int:
        """Remove what was deleted `trash_delay_ms` ago; return how many partitions.

        Raises:
            LogDirFailedError: the disk refused.
        """
        removed = 0
        try:
            for name in self._files.list(self.path):
                deleted_at = _deleted_at(name)
                if deleted_at is None or now - deleted_at < self._config.trash_delay_ms:
                    continue
                trash = f"{self.path}/{name}"
                for file in self._files.list(trash):
                    self._files.unlink(f"{trash}/{file}")
                self._files.remove_directory(trash)
                removed += 1
            if removed:
                self._files.fsync_directory(self.path)
        except OSError as error:
            raise refusal(error, f"emptying the trash of {self.path}") from error
        return removed

    # --- Keeping in order --------------------------------------------------------------------

    def write_checkpoint(self) -> None:
        """Make the recovery points that the logs' checkpoints advanced durable.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        try:
            self._checkpoints.write()
        except OSError as error:
            raise refusal(error, f"writing checkpoints of {self.path}") from error

    def free_space(self) -> int:
        """Return the bytes that the disk has left."""
        return self._files.free_space(self.path)

    def take_ballast(self) -> bool:
        """Take the ballast from the disk unless it is there; return whether it is.

        To be called now and then: a full disk used it up.
        """
        path = f"{self.path}/{_BALLAST}"
        wanted = self._config.ballast_bytes
        try:
            if wanted and not (self._files.exists(path) and self._files.size(path) >= wanted):
                self._files.allocate(path, wanted)
        except OSError as error:
            if not is_full(error):
                raise refusal(error, f"taking the ballast of {self.path}") from error
            self._release_ballast()
            return False
        return True

    def _release_ballast(self) -> None:
        path = f"{self.path}/{_BALLAST}"
        if self._files.exists(path):
            self._files.unlink(path)

    def close(self, *, clean: bool) -> None:
        """Close all logs, and leave the marker if everything was opened and closed in order.

        Args:
            clean: False gives the files back and writes nothing, as when the disk failed.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused; the next start recovers.
        """
        try:
            for topic_partition, log in list(self.logs.items()):
                try:
                    if log is not None:
                        log.close(clean=clean)
                except CorruptLogError:  # Whoever met it first has said so.
                    self.logs[topic_partition] = None
            if clean:
                self.write_checkpoint()
            if clean and None not in self.logs.values():
                self._mark_clean()
        finally:
            self._lock.release()

    def _mark_clean(self) -> None:
        marker = self._marker(self._checkpoints.payload())
        path = f"{self.path}/{_CLEAN}"
        try:
            try:
                write_sealed(self._files, path, _CLEAN, marker)
            except OSError as error:
                if not is_full(error):
                    raise
                self._release_ballast()
                write_sealed(self._files, path, _CLEAN, marker)
        except OSError as error:
            raise refusal(error, f"marking {self.path} as closed") from error


def _find_identity(files: FileSystem, path: str) -> Identity | None:
    try:
        return read_identity(files, path)
    except FileNotFoundError:
        if any(parse_topic_partition(name) for name in files.list(path)):
            raise LogDirFailedError(
                f"{path} has partitions, but no identity file: it is not known whose they are. "
                "Restore the file, or use another directory"
            ) from None
        return None
    except DamagedFileError as error:
        raise LogDirFailedError(
            f"{error}: it is not known whose the partitions in {path} are. Restore the file"
        ) from None


def read_identity(files: FileSystem, path: str) -> Identity:
    """Return whose directory `path` is.

    Raises:
        FileNotFoundError, DamagedFileError: nobody knows.
    """
    payload = read_sealed(files, f"{path}/{_IDENTITY}", _IDENTITY)
    try:
        cluster_id, broker_id, directory_id = payload.decode().splitlines()
        return Identity(cluster_id, BrokerId(int(broker_id)), directory_id)
    except ValueError:
        raise DamagedFileError(f"{path}/{_IDENTITY} does not hold three lines") from None


def _deleted_at(name: str) -> WallMs | None:
    partition, dot, stamp = name.removesuffix(_DELETED).rpartition(".")
    is_trash = name.endswith(_DELETED) and dot and stamp.isascii() and stamp.isdigit()
    if not is_trash or parse_topic_partition(partition) is None:
        return None
    return WallMs(int(stamp))
