"""A log directory as the broker sees it."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from millrace.broker.storage.file_system import FileSystem, Lock, make_durable_directory
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import clean_shutdown
from millrace.broker.storage.log_directory.ballast import Ballast
from millrace.broker.storage.log_directory.clean_shutdown import CleanShutdown
from millrace.broker.storage.log_directory.log_moves import LogMoves
from millrace.broker.storage.log_directory.ownership import (
    Identity,
    Ownership,
    identify,
    read_identity,
)
from millrace.broker.storage.log_directory.partitions import Partitions
from millrace.broker.storage.log_directory.retired import RetiredLogs
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.sealed_file import TEMPORARY_SUFFIX, DamagedFileError
from millrace.broker.storage.sparse_index import IndexCache
from millrace.core.errors import CorruptLogError, LogDirFailedError, StorageError
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    MonotonicMs,
    TopicPartition,
    WallMs,
)
from millrace.core.media import DEFAULT_MEDIA, Media
from millrace.core.metadata.objects.store_versions import StoreVersions

_LOCK: Final = "lock"


@dataclass(slots=True, frozen=True, kw_only=True)
class DirectoryConfig:
    """Settings of a log directory."""

    media: Media = DEFAULT_MEDIA
    """The kind of disk, by the broker's settings; this class does not depend on it."""
    ballast_bytes: int = 64 * 2**20
    """Space taken from the disk in advance, for checkpoints when it is full; 0 is none."""
    index_cache_bytes: int = 32 * 2**20
    """Entries of indexes that are kept in memory, of all partitions together."""
    file_delete_delay_ms: int = 86_400_000
    """How long a deleted partition is kept under another name, so that a mistake can be undone."""
    damaged_logs_max: int = 16
    """Most damaged logs that are set aside; a further one stays in its place."""


class LogDirectory:
    """One log directory. Any thread may call; calls about one partition must not overlap.

    Attributes:
        path: the directory.
        media: of its disk.
        ballast: space for small files when the disk is full.
        retired: the logs that were deleted, or set aside as damaged.
        moves: the logs that come from, and go to, other directories of the broker.
        can_append_cached: whether its file system can write without a wait.
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
        self.path = path
        self.media = config.media
        self.ballast = Ballast(files, path, config.ballast_bytes)
        self._files = files
        self._lock = lock
        self._checkpoints = RecoveryCheckpoint(files, path, self.ballast.write)
        self._partitions = Partitions(
            files, path, self._checkpoints, IndexCache(config.index_cache_bytes)
        )
        self.retired = RetiredLogs(
            self._partitions,
            delete_delay_ms=config.file_delete_delay_ms,
            damaged_max=config.damaged_logs_max,
        )
        self.moves = LogMoves(self._partitions, identity.directory_id)
        self.can_append_cached = False
        self._scrubbed = 0  # Logs that this round of scrubbing has finished.
        checkpoint = self._checkpoints.read()
        if checkpoint is not None:
            self._partitions.clean_shutdown = clean_shutdown.read_marker(
                files, path, identity.directory_id, checkpoint
            )
        self._ownership = Ownership(files, path, self.ballast, identity)

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
        """Open a directory for this broker; a missing or empty one becomes this broker's.

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
            make_durable_directory(files, path)
            lock = files.lock(f"{path}/{_LOCK}")
        except BlockingIOError:
            raise LogDirFailedError(
                f"{path} is in use by another process: give each broker its own log_dirs"
            ) from None
        except OSError as error:
            raise refusal(error, f"opening {path}") from error
        try:
            wanted = Identity(cluster_id, broker_id, new_directory_id)
            identity = identify(files, path, wanted)
            directory = cls(files, path, config, lock=lock, identity=identity)
            directory._prepare()
        except OSError as error:
            lock.release()
            raise refusal(error, f"opening {path}") from error
        except BaseException:
            lock.release()
            raise
        return directory

    def _prepare(self) -> None:
        """Remove leftovers, and find the partitions."""
        names = self._files.list(self.path)
        if clean_shutdown.FILE_NAME in names:
            self._files.unlink(f"{self.path}/{clean_shutdown.FILE_NAME}")
            self._files.fsync_directory(self.path)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self._files.unlink(f"{self.path}/{name}")
        self.moves.remove_unfinished(names)
        self._partitions.look_for(names)
        self.moves.look_for_unsettled()
        self.retired.look_for_damaged(names)
        self.ballast.take()
        self.can_append_cached = self._files.can_append_cached(
            f"{self.path}/probe{TEMPORARY_SUFFIX}"
        )

    # --- Identity, and the last shutdown -----------------------------------------------------

    @property
    def identity(self) -> Identity:
        """The broker and cluster that it belongs to."""
        return self._ownership.identity

    @property
    def was_clean(self) -> bool:
        """Whether it was closed cleanly."""
        return self._partitions.clean_shutdown is not None

    @property
    def closed_by(self) -> BrokerEpoch | None:
        """The life that closed it cleanly; None when none did, or that one had no epoch."""
        marker = self._partitions.clean_shutdown
        return None if marker is None else marker.closed_by

    @property
    def used_by(self) -> BrokerEpoch | None:
        """The latest life that used it; None when it does not say."""
        return self._ownership.used_by

    @property
    def companions(self) -> frozenset[str] | None:
        """Ids of the broker's other directories; None when they are unknown."""
        return self._ownership.companions

    def begin_life(
        self,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        companions: Collection[str] = (),
    ) -> None:
        """Store which life of which broker uses the directory from now on.

        To be called when the life is granted, before it does anything.

        Args:
            broker_id: the broker.
            broker_epoch: its life.
            companions: ids of its other directories, missing ones included.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        self._ownership.begin_life(broker_id, broker_epoch, companions)

    def keep_seen(self, seen: StoreVersions) -> None:
        """Store the versions seen of the metadata's store (P39).

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        self._ownership.keep_seen(seen)

    def check_there(self) -> None:
        """Refuse to write where this directory is not any more, as when its disk was unmounted.

        Raises:
            LogDirFailedError: it is not there.
        """
        try:
            is_there = read_identity(self._files, self.path) == self.identity
        except (OSError, DamagedFileError):
            is_there = False
        if not is_there:
            raise LogDirFailedError(
                f"{self.path} is not the log directory any more that it was when the broker "
                "started: bring its disk back, and restart"
            )

    # --- Partitions --------------------------------------------------------------------------

    @property
    def found(self) -> list[TopicPartition]:
        """The partitions that it had when it was opened, also missing ones that it had before."""
        return self._partitions.found

    @property
    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """The partitions that are open."""
        return self._partitions.logs

    @property
    def corrupt(self) -> dict[TopicPartition, CorruptLogError]:
        """Those that could not be opened, or were found damaged, and why."""
        return self._partitions.corrupt

    def open_partition(
        self, topic_partition: TopicPartition, config: LogConfig, now: WallMs
    ) -> PartitionLog:
        """Open a partition's log, recover it if need be, or begin with an empty one.

        Raises:
            CorruptLogError: it is damaged below what was flushed; also noted in `corrupt`.
            LogDirFailedError, StorageFullError: the disk refused.
        """
        return self._partitions.open(topic_partition, config, now)

    def close_partition(self, topic_partition: TopicPartition) -> None:
        """Close the log of a deleted topic in order, if it is open; it may be opened again (P75).

        Its recovery point is durable with the next checkpoint, or found by recovery.

        Raises:
            CorruptLogError: it is damaged; also noted in `corrupt`.
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused. The log is
                closed nevertheless, and recovered when it is opened.
        """
        self._partitions.close(topic_partition)

    def let_go(
        self, topic_partitions: Collection[TopicPartition]
    ) -> dict[str, list[TopicPartition]]:
        """Close the logs of partitions that are about to leave; return and raise as `tiers_of`."""
        self._partitions.let_go(topic_partitions)
        return self.tiers_of(topic_partitions)

    def tiers_of(
        self, topic_partitions: Collection[TopicPartition]
    ) -> dict[str, list[TopicPartition]]:
        """Return which partitions have segments on other disks, by their log directories' paths.

        Raises:
            LogDirFailedError, StorageBusyError: the disk refused.
        """
        try:
            return self._partitions.tiers_of(topic_partitions)
        except OSError as error:
            raise refusal(error, f"looking for segments of {self.path} elsewhere") from error

    # --- Keeping in order --------------------------------------------------------------------

    def free_space(self) -> int:
        """Return the bytes that the disk has left."""
        return self._files.free_space(self.path)

    def space(self) -> tuple[int, int]:
        """Return the bytes that the disk has left, and its size."""
        return self.free_space(), self._files.total_space(self.path)

    def checkpoint(self, now: MonotonicMs) -> int:
        """Advance the recovery points that are due, and make all of them durable.

        To be called about once a second, in a thread that may wait for the disk; appends go on
        beside it. Returns how many logs were flushed for it.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        due = [log for log in self._partitions.opened() if log.flusher.is_due(now)]
        for log in due:
            try:
                log.flusher.checkpoint()
            except StorageError as error:
                if self.logs.get(log.topic_partition) is not log:
                    continue  # Deleted meanwhile, and its files with it.
                if isinstance(error, CorruptLogError):
                    self.corrupt[log.topic_partition] = error
                elif not self._is_elsewhere(error):
                    raise
        self.keep_points()
        return len(due)

    def _is_elsewhere(self, error: StorageError) -> bool:
        """Whether a log was failed by the disk of another directory, which has its other segments.

        Work on all logs passes over it then: nothing is wrong with this disk (P63).
        """
        return isinstance(error, LogDirFailedError) and not error.is_about(self.path)

    def keep_points(self) -> None:
        """Make all recovery points durable: from now on the loss of a new log is detected.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        try:
            self._checkpoints.write()
        except OSError as error:
            raise refusal(error, f"writing checkpoints of {self.path}") from error

    def scrub(self, max_bytes: int) -> int:
        """Verify about `max_bytes` of closed segments here, from the end of the last call on.

        Returns: The bytes that were verified; 0 at the end of a round over all partitions. Damaged
        partitions are in `corrupt` of the directory that the log is in.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused; where it may
                pass, the next call goes on.
        """
        logs = self._partitions.with_segments()
        verified = 0
        while self._scrubbed < len(logs) and verified < max_bytes:
            home, log = logs[self._scrubbed]
            try:
                scrubber = log.scrubber if home is self._partitions else log.tier_scrubber
                step = scrubber.scrub(max_bytes - verified)
            except CorruptLogError as error:
                if home.logs.get(log.topic_partition) is log:  # Else it was deleted meanwhile.
                    home.corrupt[log.topic_partition] = error
                step = 0
            except LogDirFailedError as error:
                if not self._is_elsewhere(error):
                    raise
                step = 0
            verified += step
            if step == 0:
                self._scrubbed += 1
        if verified == 0:
            self._scrubbed = 0
        return verified

    def close(
        self,
        *,
        clean: bool,
        broker_epoch: BrokerEpoch | None = None,
        others: Collection[TopicPartition] = (),
    ) -> None:
        """Close all logs, and leave the marker if everything was closed cleanly.

        Args:
            clean: False closes the files and writes nothing, as when the disk failed.
            broker_epoch: the life of the broker that ends with this, if it had one.
            others: partitions here of which the broker has no replica: the cluster does not rely on
                them, so their state does not matter.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused; the next start recovers.
        """
        try:
            logs = self._partitions.opened()
            # Only recovery can find the end of a log that is being cut.
            ends_are_known = not any(log.truncation.is_pending for log in logs)
            for log in logs:
                try:
                    log.close(clean=clean)
                except CorruptLogError as error:
                    self.corrupt[log.topic_partition] = error
                except LogDirFailedError as error:
                    if not self._is_elsewhere(error):
                        raise
                    ends_are_known = False  # Its last records may not be durable.
            if clean:
                if self._checkpoints.is_lost:
                    self._checkpoints.require()  # The marker is bound to it, also to an empty one.
                self.keep_points()
            # The state of a log that was not opened is unknown.
            unjudged = frozenset(self.found) - self.logs.keys()
            if clean and ends_are_known and not self.corrupt and unjudged <= set(others):
                self._mark_clean(CleanShutdown(broker_epoch, unjudged))
        finally:
            self.logs.clear()
            self._lock.release()

    def _mark_clean(self, said: CleanShutdown) -> None:
        write = partial(
            clean_shutdown.write_marker,
            self._files,
            self.path,
            self.identity.directory_id,
            self._checkpoints.payload(),
            said,
        )
        try:
            self.ballast.write(write)
        except OSError as error:
            raise refusal(error, f"marking {self.path} as closed") from error
