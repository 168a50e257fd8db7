"""One of a broker's log directories: whose it is, how it was left, and the partitions in it.

    <log directory>/
        lock                   held while a broker uses it
        identity               cluster id, broker id, and the directory's own random id
        recovery-checkpoint    see recovery_checkpoint.py
        clean-shutdown         written last when everything was closed in order
        companions             ids of the broker's other log directories, also of those that it
                               misses
        broker-epoch           the latest life of the broker that used it
        controller-epoch       the highest that the broker has taken metadata of, and the versions
                               of the metadata's objects then or later (`core/metadata/seen.py`)
        ballast                space kept for all files above when the disk is full (P64)
        <topic id>-<number>/   a partition, see log.py
        <topic id>-<number>.<ms UTC>.deleted/   one that was deleted, until it is removed
        <topic id>-<number>.<ms UTC>.damaged/   a damaged log in whose place a new one was begun
        <topic id>-<number>.moving/    what is copied of a log that lies in another directory

The clean-shutdown marker is bound to this directory and to the very recovery checkpoint that was
written with it, so that a stale one means nothing. It names the life of the broker that ended so
(P27), and is removed, durably, before the first append. It also names the logs that it does not
speak for: what lies here, and was not the broker's, was not opened.

A life writes its epoch down before it does anything, so that a directory that was put back from a
backup is known by the older one that it names.

Its companions are written down likewise, and stay so: what was on one that is not in use any more,
whether it was left out or an empty one took its place, must not be begun anew on another.

A partition is deleted only because somebody holds a tombstone of it. It gets another name first,
and is removed `file.delete.delay.ms` later. Directories that nobody knows are left alone (P70).

A damaged log is never repaired in place (P65). Once others have what it had, and nobody counts on
it, it is *set aside* under another name, for people to look at: nothing removes it but them, or the
deletion of its topic. There is a bound on how many there are, for each of them takes space, and a
disk that damages so many should be replaced.

A log *moves* to another directory of the same broker as a copy, and no crash leaves two that count,
or none:

1. it is copied to `.moving`, while it goes on; what a crash leaves of that is removed at the start;
2. nothing is appended any more; the rest is copied, all of it flushed, the file `came-from` names
   the directory that it comes from, and the copy gets its proper name and its recovery point
   (`take_in`);
3. the old log goes to the trash (`part_with`), and then the file `came-from` (`settle`). Only then
   something is appended to the copy.

So a log with `came-from` has nothing that the old one lacks. At the start the old one counts where
it is still there, and the copy goes; where it is gone the copy counts. Where the directory of the
old one is not there itself nobody knows, and the copy is refused as a damaged log is.

Opening happens in two parts, so that the shell may recover partitions in as many threads as it
likes, and report progress: `LogDirectory.open`, then `open_partition` for each of `found`. What
cannot be opened is in `corrupt`, and the rest is served.
"""

import errno
import logging
import os.path
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Self

import crc32c

from millrace.broker.storage.file_system import FileSystem, Lock, is_full
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_copy import LogCopy
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint, RecoveryPoint
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.sealed_file import (
    TEMPORARY_SUFFIX,
    DamagedFileError,
    read_sealed,
    write_sealed,
)
from millrace.broker.storage.sparse_index import IndexCache
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    MonotonicMs,
    TopicPartition,
    WallMs,
    parse_topic_partition,
)
from millrace.core.media import DEFAULT_MEDIA, Media
from millrace.core.metadata.seen import NOTHING_SEEN, Seen

_log = logging.getLogger(__name__)

_LOCK: Final = "lock"
_IDENTITY: Final = "identity"
_CLEAN: Final = "clean-shutdown"
_BROKER_EPOCH: Final = "broker-epoch"
_COMPANIONS: Final = "companions"
_CONTROLLER_EPOCH: Final = "controller-epoch"
_BALLAST: Final = "ballast"
_DELETED: Final = ".deleted"
_DAMAGED: Final = ".damaged"
_MOVING: Final = ".moving"
_CAME_FROM: Final = "came-from"


class Identity(NamedTuple):
    """Whose directory it is. `directory_id` is random and never given twice."""

    cluster_id: str
    broker_id: BrokerId
    directory_id: str


@dataclass(slots=True, frozen=True, kw_only=True)
class DirectoryConfig:
    """Settings of a log directory."""

    media: Media = DEFAULT_MEDIA
    """What it lies on, as whoever set up the broker says; nothing here depends on it."""
    ballast_bytes: int = 64 * 2**20
    """Space that is taken from the disk in advance, for checkpoints when it is full; 0 is none."""
    index_cache_bytes: int = 32 * 2**20
    """Entries of indexes that are kept in memory, of all partitions together."""
    file_delete_delay_ms: int = 86_400_000
    """How long a deleted partition is kept under another name, so that a mistake can be undone."""
    damaged_logs_max: int = 16
    """Damaged logs that are set aside; beyond, a damaged one stays in its place."""


class LogDirectory:
    """See the module. Any thread may call; calls about one partition must not overlap.

    Attributes:
        path: the directory.
        media: what it lies on.
        identity: whose it is.
        was_clean: whether it was closed in order.
        closed_by: the life of the broker that did so; None when nobody did, or it had none.
        used_by: the latest life that used it; None when it does not say.
        companions: ids of the broker's other directories; None when they are not known any more.
        found: the partitions that were there when it was opened, also those that are missing but
            were there before.
        logs: the partitions that are open.
        corrupt: those that could not be opened, or were found damaged, and why.
        damaged: paths of the logs that were set aside, the oldest of each partition first.
        unsettled: copies of logs that may still lie in another directory, and that one's id.
    """

    def __init__(
        self,
        files: FileSystem,
        path: str,
        config: DirectoryConfig,
        *,
        lock: Lock,
        identity: Identity,
    ) -> None:
        self._files = files
        self._config = config
        self._lock = lock
        self._cache = IndexCache(config.index_cache_bytes)
        self._checkpoints = RecoveryCheckpoint(files, path, self._with_room)
        self._registry_lock = threading.Lock()
        self._ballast_lock = threading.Lock()
        self._lacks_ballast = False
        self._scrubbed = 0  # Logs that this round of scrubbing is done with.
        self.path = path
        self.media = config.media
        self.identity = identity
        self.was_clean = False
        self.closed_by: BrokerEpoch | None = None
        self.used_by: BrokerEpoch | None = None
        self.companions: frozenset[str] | None = frozenset()
        self.found: list[TopicPartition] = []
        self._unjudged: set[TopicPartition] = set()  # Logs that the marker does not speak for.
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.corrupt: dict[TopicPartition, CorruptLogError] = {}
        self.damaged: list[str] = []
        self.unsettled: dict[TopicPartition, str] = {}

    @classmethod
    def open(
        cls,
        files: FileSystem,
        path: str,
        config: DirectoryConfig,
        *,
        cluster_id: str,
        broker_id: BrokerId,
        new_directory_id: str,
    ) -> Self:
        """Take a directory into use; a missing or empty one becomes this broker's.

        Args:
            files: where.
            path: the directory.
            config: its settings.
            cluster_id: must be that of the directory.
            broker_id: likewise; -1 while the broker has none yet.
            new_directory_id: drawn by the caller, for a directory that has none.

        Raises:
            LogDirFailedError: another process uses it, it belongs to another broker or cluster, it
                has partitions but no identity, or the disk refused.
            StorageFullError: the disk is full.
        """
        try:
            _make_durable_directory(files, path)
            lock = files.lock(f"{path}/{_LOCK}")
        except BlockingIOError:
            raise LogDirFailedError(
                f"{path} is in use by another process: give each broker its own log_dirs"
            ) from None
        except OSError as error:
            raise refusal(error, f"opening {path}") from error
        try:
            wanted = Identity(cluster_id, broker_id, new_directory_id)
            identity = _identify(files, path, wanted)
            directory = cls(files, path, config, lock=lock, identity=identity)
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
        self.used_by = self._last_life()
        self.companions = self._known_companions()
        names = self._files.list(self.path)
        if _CLEAN in names:
            self._files.unlink(f"{self.path}/{_CLEAN}")
            self._files.fsync_directory(self.path)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self._files.unlink(f"{self.path}/{name}")
            elif _is_moving(name):
                self._remove_files(f"{self.path}/{name}")
        present = (parse_topic_partition(name) for name in names)
        known = {found: None for found in present if found is not None}
        # A partition that had records and has no directory any more is missing, not new.
        known.update(dict.fromkeys(self._checkpoints.partitions()))
        self.found = list(known)
        self._look_for_unsettled()
        self._look_for_damaged(names)
        self.take_ballast()

    def _is_marked_clean(self, checkpoint: bytes) -> bool:
        try:
            marker = read_sealed(self._files, f"{self.path}/{_CLEAN}", _CLEAN)
            first, *names = marker.decode().splitlines()
            broker_epoch = int(first.split()[-1])
        except (FileNotFoundError, DamagedFileError, ValueError, IndexError):
            return False
        unjudged = {found for name in names if (found := parse_topic_partition(name)) is not None}
        if marker != self._marker(checkpoint, broker_epoch, unjudged):
            return False
        self._unjudged = unjudged
        self.closed_by = BrokerEpoch(broker_epoch) if broker_epoch >= 0 else None
        return True

    def _last_life(self) -> BrokerEpoch | None:
        try:
            payload = read_sealed(self._files, f"{self.path}/{_BROKER_EPOCH}", _BROKER_EPOCH)
            return BrokerEpoch(int(payload))
        except (FileNotFoundError, DamagedFileError, ValueError):
            return None

    def _known_companions(self) -> frozenset[str] | None:
        try:
            payload = read_sealed(self._files, f"{self.path}/{_COMPANIONS}", _COMPANIONS)
            return frozenset(payload.decode().splitlines())
        except FileNotFoundError:
            return frozenset()
        except (DamagedFileError, ValueError):
            return None

    def _marker(
        self, checkpoint: bytes, broker_epoch: int, unjudged: Iterable[TopicPartition]
    ) -> bytes:
        first = f"{self.identity.directory_id} {crc32c.crc32c(checkpoint):08x} {broker_epoch}"
        return "".join(f"{line}\n" for line in (first, *sorted(map(str, unjudged)))).encode()

    # --- Partitions --------------------------------------------------------------------------

    def open_partition(
        self, topic_partition: TopicPartition, config: LogConfig, now: WallMs
    ) -> PartitionLog:
        """Open a partition's log, recover it if need be, or begin with an empty one.

        Raises:
            CorruptLogError: it is damaged below what was flushed; also noted in `corrupt`.
            LogDirFailedError, StorageFullError: the disk refused.
        """
        try:
            self._check_settled(topic_partition)
            log = PartitionLog.open(
                self._files,
                f"{self.path}/{topic_partition}",
                topic_partition,
                config,
                checkpoints=self._checkpoints,
                cache=self._cache,
                is_clean=self.was_clean and topic_partition not in self._unjudged,
                now=now,
            )
        except CorruptLogError as error:
            with self._registry_lock:
                self.corrupt[topic_partition] = error
            raise
        with self._registry_lock:
            self.logs[topic_partition] = log
        return log

    def delete_partitions(self, topic_partitions: Collection[TopicPartition], now: WallMs) -> None:
        """Put partitions into the trash; the caller holds tombstones of their topic ids (P70).

        However many they are, the checkpoint is written once, and the directory flushed once. After
        a refusal the caller tries all of them again.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        self._let_go(topic_partitions)
        try:
            self._forget(topic_partitions)
            moved: list[str] = []
            for topic_partition in topic_partitions:
                self._rename(topic_partition, now, _DELETED)
                for path in self.damaged_of(topic_partition):
                    with suppress(FileNotFoundError):  # Somebody has removed it.
                        self._files.rename(path, self._free_name(topic_partition, now, _DELETED))
                    moved.append(path)
            self._files.fsync_directory(self.path)
            for path in moved:
                self.damaged.remove(path)
        except OSError as error:
            raise refusal(error, f"deleting partitions of {self.path}") from error

    def set_aside(self, topic_partition: TopicPartition, now: WallMs) -> str:
        """Give a damaged log another name, durably; return its path then.

        A new one may begin in its place. The caller knows that nobody counts on this replica (P65).

        Raises:
            CorruptLogError: as many were set aside as may be; the log stays where it is.
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        try:
            self._look_for_damaged(self._files.list(self.path))
        except OSError as error:
            raise refusal(error, f"listing {self.path}") from error
        if len(self.damaged) >= self._config.damaged_logs_max:
            raise CorruptLogError(
                f"the log of {topic_partition} in {self.path} is damaged, and is not fetched anew: "
                f"{len(self.damaged)} damaged logs were set aside there already, and the setting "
                f"storage.damaged_logs_max allows no more. Replace the disk, or remove those "
                f"directories, whose names end in {_DAMAGED}"
            )
        self._let_go([topic_partition])
        try:
            self._forget([topic_partition])
            path = self._rename(topic_partition, now, _DAMAGED)
            self._files.fsync_directory(self.path)
            self._look_for_damaged(self._files.list(self.path))
        except OSError as error:
            raise refusal(error, f"setting {self.path}/{topic_partition} aside") from error
        return path

    # --- Moves between directories -----------------------------------------------------------

    def begin_copy(self, log: PartitionLog) -> LogCopy:
        """Begin to copy a log of another directory to this one.

        Raises:
            StorageFullError: there is no room for all of it, or for its first file.
            CorruptLogError: there is a log of the partition here, which nobody knows.
            LogDirFailedError, StorageBusyError: the disk refused.
        """
        path = f"{self.path}/{log.topic_partition}"
        if self._files.exists(f"{path}/{_CAME_FROM}"):
            self.remove_copy(log.topic_partition)  # That was refused when it was given up.
        try:
            if self._files.exists(path):
                raise CorruptLogError(
                    f"{path} is there, and nobody knows why: the log in {log.directory} is not "
                    "moved. Remove one of the two"
                )
            if (free := self.free_space()) < log.size_bytes:
                raise StorageFullError(
                    f"{self.path} has {free} bytes left, and the log in {log.directory} takes "
                    f"{log.size_bytes}: it is not moved. Free some space"
                )
            self._files.make_directory(path + _MOVING)
        except OSError as error:
            raise refusal(error, f"copying {log.directory} to {self.path}") from error
        return LogCopy(self._files, log, path + _MOVING)

    def take_in(
        self, copy: LogCopy, source: "LogDirectory", config: LogConfig, now: WallMs
    ) -> PartitionLog:
        """Complete a copy, and open it as the partition's log.

        The log has been checkpointed, and nothing is appended to it, or cut, until this is over. It
        still counts. After an error the copy is to be given up with `remove_copy`.

        Raises:
            CorruptLogError: the log, or what became of it here, is damaged.
            LogDirFailedError, StorageFullError, StorageBusyError: this disk refused.
        """
        log = copy.log
        topic_partition = log.topic_partition
        path = f"{self.path}/{topic_partition}"
        copy.complete()
        point = source.recovery_point_of(topic_partition)
        if point is None or point.recovery_point != log.log_end_offset:
            raise StorageBusyError(f"the log in {log.directory} is not flushed: it is not moved")
        try:
            write_sealed(
                self._files,
                f"{copy.directory}/{_CAME_FROM}",
                f"{_CAME_FROM} {topic_partition}",
                f"{source.identity.directory_id}\n".encode(),
            )
            self._files.rename(copy.directory, path)
            self._files.fsync_directory(self.path)
            self._checkpoints.put(topic_partition, point)
            self._checkpoints.write()
        except OSError as error:
            raise refusal(error, f"moving {log.directory} to {self.path}") from error
        taken = self.open_partition(topic_partition, config, now)
        if taken.log_end_offset != log.log_end_offset:
            raise CorruptLogError(
                f"the copy of {log.directory} in {self.path} ends at {taken.log_end_offset}, and "
                f"not at {log.log_end_offset}: it is not used"
            )
        return taken

    def recovery_point_of(self, topic_partition: TopicPartition) -> RecoveryPoint | None:
        """Return where a log stands; None when nothing is known of it."""
        return self._checkpoints.get(topic_partition)

    def part_with(self, topic_partition: TopicPartition, now: WallMs) -> None:
        """Put a log into the trash of which another directory has a copy with all that it has.

        After a refusal that may pass the caller tries it again.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        self._let_go([topic_partition])
        try:
            # First the name: a log without a recovery point may not be told from a damaged one.
            self._rename(topic_partition, now, _DELETED)
            self._files.fsync_directory(self.path)
            self._forget([topic_partition])
        except OSError as error:
            raise refusal(error, f"moving a partition out of {self.path}") from error

    def settle(self, topic_partition: TopicPartition) -> None:
        """Have a copy count from now on: the log that it was made of is gone, durably.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        path = f"{self.path}/{topic_partition}"
        try:
            if self._files.exists(f"{path}/{_CAME_FROM}"):
                self._files.unlink(f"{path}/{_CAME_FROM}")
            self._files.fsync_directory(path)
        except OSError as error:
            raise refusal(error, f"moving a partition to {self.path}") from error
        self.unsettled.pop(topic_partition, None)

    def has_files_of(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition's log is there, as it is on disk."""
        return self._files.exists(f"{self.path}/{topic_partition}")

    def remove_copy(self, topic_partition: TopicPartition) -> None:
        """Give up a copy that does not count; the log that it was made of does.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        self._let_go([topic_partition])
        path = f"{self.path}/{topic_partition}"
        try:
            self._forget([topic_partition])
            if self._files.exists(f"{path}/{_CAME_FROM}"):
                # All at once: a part of it without `came-from` would count.
                self._files.rename(path, path + _MOVING)
                self._files.fsync_directory(self.path)
            self._remove_files(path + _MOVING)
        except OSError as error:
            raise refusal(error, f"removing a copy from {self.path}") from error

    def _look_for_unsettled(self) -> None:
        for topic_partition in self.found:
            path = f"{self.path}/{topic_partition}/{_CAME_FROM}"
            try:
                payload = read_sealed(self._files, path, f"{_CAME_FROM} {topic_partition}")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except DamagedFileError:
                payload = b""  # No directory has this id.
            self.unsettled[topic_partition] = payload.decode().strip()

    def _check_settled(self, topic_partition: TopicPartition) -> None:
        if topic_partition in self.unsettled:
            path = f"{self.path}/{topic_partition}"
            raise CorruptLogError(
                f"{path} is the copy of a log in a log directory that is not here, and may be older"
                " than that one: bring the directory back. Where it is lost for good, and nobody "
                f"else has the partition, remove {path}/{_CAME_FROM} to go on with the copy"
            )

    # --- Names -------------------------------------------------------------------------------

    def damaged_of(self, topic_partition: TopicPartition) -> list[str]:
        """Return the paths of a partition's logs that were set aside, the oldest first."""
        return [path for path in self.damaged if path.startswith(f"{self.path}/{topic_partition}.")]

    def _look_for_damaged(self, names: list[str]) -> None:
        """Take note of what people have removed meanwhile."""
        self.damaged = [
            f"{self.path}/{name}" for name in names if _stamp(name, _DAMAGED) is not None
        ]

    def _let_go(self, topic_partitions: Collection[TopicPartition]) -> None:
        gone = frozenset(topic_partitions)
        with self._registry_lock:
            logs = [self.logs.pop(each, None) for each in gone]
            for each in gone:
                self.corrupt.pop(each, None)
                self.unsettled.pop(each, None)
            self.found = [found for found in self.found if found not in gone]
        for log in logs:
            if log is not None:
                log.close(clean=False)

    def _forget(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Strike partitions off the checkpoint: a missing directory is no missing records then."""
        for topic_partition in topic_partitions:
            self._checkpoints.remove(topic_partition)
        self._checkpoints.write()

    def _rename(self, topic_partition: TopicPartition, now: WallMs, suffix: str) -> str:
        """Rename a partition's directory, if there is one; return its name then.

        The caller has struck it off the checkpoint, and flushes the directory.
        """
        source = f"{self.path}/{topic_partition}"
        target = self._free_name(topic_partition, now, suffix)
        if self._files.exists(source):
            self._files.rename(source, target)
        return target

    def _free_name(self, topic_partition: TopicPartition, now: WallMs, suffix: str) -> str:
        """Return a path that no directory has, also where the clock went back."""
        while self._files.exists(path := f"{self.path}/{topic_partition}.{now}{suffix}"):
            now = WallMs(now + 1)
        return path

    def empty_trash(self, now: WallMs) -> int:
        """Remove what was deleted `file_delete_delay_ms` ago; return how many partitions.

        Raises:
            LogDirFailedError: the disk refused.
        """
        removed = 0
        try:
            names = self._files.list(self.path)
            self._look_for_damaged(names)
            for name in names:
                deleted_at = _stamp(name, _DELETED)
                if deleted_at is None or now - deleted_at < self._config.file_delete_delay_ms:
                    continue
                removed += self._remove_files(f"{self.path}/{name}")
            if removed:
                self._files.fsync_directory(self.path)
        except OSError as error:
            raise refusal(error, f"emptying the trash of {self.path}") from error
        return removed

    def _remove_files(self, trash: str) -> bool:
        """Remove a directory of log files; return whether it was there, and is gone.

        People may remove it at the same time, or keep something in it: the disk is sound then.
        """
        try:
            for file in self._files.list(trash):
                with suppress(FileNotFoundError, IsADirectoryError):
                    self._files.unlink(f"{trash}/{file}")
            self._files.remove_directory(trash)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            _log.warning("what is no file of a log stays where it is", extra={"path": trash})
            return False
        return True

    # --- Keeping in order --------------------------------------------------------------------

    def checkpoint(self, now: MonotonicMs) -> int:
        """Advance the recovery points that are due, and make all of them durable.

        To be called about once a second, in a thread that may wait for the disk; appends go on
        beside it. Returns how many logs were flushed for it.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        due = [log for log in self._open_logs() if log.checkpoint_due(now)]
        for log in due:
            try:
                log.checkpoint()
            except StorageError as error:
                if self.logs.get(log.topic_partition) is not log:
                    continue  # Deleted meanwhile, and its files with it.
                if not isinstance(error, CorruptLogError):
                    raise
                self.corrupt[log.topic_partition] = error
        self.keep_points()
        return len(due)

    def scrub(self, max_bytes: int) -> int:
        """Verify about `max_bytes` of closed segments, going on where the last call ended.

        Returns:
            The bytes that were verified; 0 at the end of a round over all partitions. What is
            found damaged is in `corrupt`.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused; where it may
                pass, the next call goes on.
        """
        logs = self._open_logs()
        verified = 0
        while self._scrubbed < len(logs) and verified < max_bytes:
            log = logs[self._scrubbed]
            try:
                step = log.scrub(max_bytes - verified)
            except CorruptLogError as error:
                if self.logs.get(log.topic_partition) is log:  # Else it was deleted meanwhile.
                    self.corrupt[log.topic_partition] = error
                step = 0
            verified += step
            if step == 0:
                self._scrubbed += 1
        if verified == 0:
            self._scrubbed = 0
        return verified

    def _open_logs(self) -> list[PartitionLog]:
        with self._registry_lock:
            return list(self.logs.values())

    def keep_points(self) -> None:
        """Make all recovery points durable: a log that is new here is missed from now on.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
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
        with self._ballast_lock:
            try:
                if wanted and not (self._files.exists(path) and self._files.size(path) >= wanted):
                    self._files.allocate(path, wanted)
            except OSError as error:
                if not is_full(error):
                    raise refusal(error, f"taking the ballast of {self.path}") from error
                self._remove_ballast()
            else:
                self._lacks_ballast = False
            return not self._lacks_ballast

    def check_room(self) -> None:
        """Take the ballast again before anything is appended, if it was used up.

        What it is kept for comes more than once: appends must not take the room.

        Raises:
            StorageFullError: there is no room for it.
            LogDirFailedError: the disk refused.
        """
        if self._lacks_ballast and not self.take_ballast():
            raise StorageFullError(
                f"appending in {self.path}: the disk is full, but for less than the "
                f"{self._config.ballast_bytes} bytes that are kept for checkpoints "
                "(storage.ballast_bytes); nothing was changed. Free some space or lower the "
                "retention"
            )

    def _remove_ballast(self) -> None:
        path = f"{self.path}/{_BALLAST}"
        if self._config.ballast_bytes:
            self._lacks_ballast = True
        if self._files.exists(path):
            self._files.unlink(path)

    def _with_room(self, write: Callable[[], None]) -> None:
        """Write a small file, with the ballast's room where there is no other."""
        try:
            write()
        except OSError as error:
            if not is_full(error):
                raise
            with self._ballast_lock:
                self._remove_ballast()
            write()

    def begin_life(
        self,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        companions: Collection[str] = (),
    ) -> None:
        """Write down which life of which broker uses the directory from now on.

        To be called when the life is granted, before it does anything.

        Args:
            broker_id: the broker.
            broker_epoch: its life.
            companions: ids of its other directories, also of those that it misses.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        assert self.identity.broker_id in (NO_BROKER, broker_id)
        try:
            if self.companions != frozenset(companions):
                lines = "".join(f"{each}\n" for each in sorted(companions))
                self._write_sealed(_COMPANIONS, lines.encode())
                self.companions = frozenset(companions)
            self._write_sealed(_BROKER_EPOCH, f"{broker_epoch}\n".encode())
            self.used_by = broker_epoch
            # Last: a directory that is a broker's says which life it was.
            if self.identity.broker_id != broker_id:
                identity = self.identity._replace(broker_id=broker_id)
                self._with_room(partial(_write_identity, self._files, self.path, identity))
                self.identity = identity
        except OSError as error:
            raise refusal(error, f"writing down whose {self.path} is") from error

    def _write_sealed(self, name: str, payload: bytes) -> None:
        path = f"{self.path}/{name}"
        self._with_room(partial(write_sealed, self._files, path, name, payload))

    def keep_seen(self, seen: Seen) -> None:
        """Remember what was seen of the metadata's store (P39).

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        try:
            self._write_sealed(_CONTROLLER_EPOCH, f"{seen}\n".encode())
        except OSError as error:
            raise refusal(error, f"writing {self.path}/{_CONTROLLER_EPOCH}") from error

    def close(
        self,
        *,
        clean: bool,
        broker_epoch: BrokerEpoch | None = None,
        others: Collection[TopicPartition] = (),
    ) -> None:
        """Close all logs, and leave the marker if everything was closed in order.

        Args:
            clean: False gives the files back and writes nothing, as when the disk failed.
            broker_epoch: the life of the broker that ends with this, if it had one.
            others: partitions that lie here, and that broker has no replica of: how they were left
                matters to nobody who counts on it.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused; the next start recovers.
        """
        try:
            # Where a log that is being cut ends, only recovery can tell.
            ends_are_known = not any(log.is_being_cut for log in self._open_logs())
            for log in self._open_logs():
                try:
                    log.close(clean=clean)
                except CorruptLogError as error:
                    self.corrupt[log.topic_partition] = error
            if clean:
                if self._checkpoints.is_lost:
                    self._checkpoints.require()  # The marker is bound to it, also to an empty one.
                self.keep_points()
            # Of a log that was not opened it is not known how it was left.
            unjudged = set(self.found) - self.logs.keys()
            if clean and ends_are_known and not self.corrupt and unjudged <= set(others):
                self._mark_clean(-1 if broker_epoch is None else broker_epoch, unjudged)
        finally:
            self.logs.clear()
            self._lock.release()

    def _mark_clean(self, broker_epoch: int, unjudged: Iterable[TopicPartition]) -> None:
        marker = self._marker(self._checkpoints.payload(), broker_epoch, unjudged)
        try:
            self._write_sealed(_CLEAN, marker)
        except OSError as error:
            raise refusal(error, f"marking {self.path} as closed") from error


def settle_moves(directories: Collection[LogDirectory]) -> None:
    """End the moves that a crash interrupted, of all directories of a broker; none is used yet.

    Raises:
        LogDirFailedError, StorageFullError, StorageBusyError: a disk refused.
    """
    by_id = {each.identity.directory_id: each for each in directories}
    for target in directories:
        for topic_partition, source_id in list(target.unsettled.items()):
            source = by_id.get(source_id)
            if source is None:
                continue  # Whoever opens it is told what to do.
            counts = target
            if source.has_files_of(topic_partition):
                target.remove_copy(topic_partition)
                counts = source
            else:
                source.part_with(topic_partition, WallMs(0))  # Its checkpoint may still name it.
                target.settle(topic_partition)
            _log.warning(
                "a move to another log directory was interrupted: one of the two logs counts",
                extra={"partition": str(topic_partition), "log_dir": counts.path},
            )


def _make_durable_directory(files: FileSystem, path: str) -> None:
    parent = os.path.dirname(path) or "."
    if not files.exists(parent):
        _make_durable_directory(files, parent)
    files.make_directory(path)
    files.fsync_directory(parent)


def _identify(files: FileSystem, path: str, wanted: Identity) -> Identity:
    try:
        found = read_identity(files, path)
    except FileNotFoundError:
        if any(parse_topic_partition(name) for name in files.list(path)):
            raise LogDirFailedError(
                f"{path} has partitions, but no identity file: it is not known whose they are. "
                "Restore the file, or use another directory"
            ) from None
        _write_identity(files, path, wanted)
        return wanted
    except DamagedFileError as error:
        raise LogDirFailedError(
            f"{error}: it is not known whose the partitions in {path} are. Restore the file"
        ) from None
    ids = {found.broker_id, wanted.broker_id} - {NO_BROKER}
    if found.cluster_id != wanted.cluster_id or len(ids) > 1:
        raise LogDirFailedError(
            f"{path} belongs to broker {found.broker_id} of cluster {found.cluster_id}, not to "
            f"broker {wanted.broker_id} of cluster {wanted.cluster_id}: check log_dirs"
        )
    return found


def is_log_directory(files: FileSystem, path: str) -> bool:
    """Return whether `path` is a log directory, by its identity file."""
    return files.exists(f"{path}/{_IDENTITY}")


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


def read_seen(files: FileSystem, path: str) -> Seen:
    """Return what `keep_seen` kept in the directory `path`, if anything.

    Raises:
        DamagedFileError: it cannot be read.
    """
    try:
        payload = read_sealed(files, f"{path}/{_CONTROLLER_EPOCH}", _CONTROLLER_EPOCH)
        return Seen.parse(payload.decode())
    except FileNotFoundError:
        return NOTHING_SEEN
    except ValueError:
        raise DamagedFileError(f"{path}/{_CONTROLLER_EPOCH} does not hold numbers") from None


def _write_identity(files: FileSystem, path: str, identity: Identity) -> None:
    payload = "".join(f"{field}\n" for field in identity).encode()
    write_sealed(files, f"{path}/{_IDENTITY}", _IDENTITY, payload)


def _stamp(name: str, suffix: str) -> WallMs | None:
    """Return when a partition got a name with this suffix; None when the name is another one."""
    partition, dot, stamp = name.removesuffix(suffix).rpartition(".")
    is_one = name.endswith(suffix) and dot and stamp.isascii() and stamp.isdigit()
    if not is_one or parse_topic_partition(partition) is None:
        return None
    return WallMs(int(stamp))


def _is_moving(name: str) -> bool:
    partition = name.removesuffix(_MOVING)
    return partition != name and parse_topic_partition(partition) is not None
