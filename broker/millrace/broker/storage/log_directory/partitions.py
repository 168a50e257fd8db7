"""The partitions of a log directory: the logs that are open, and the directories of all of them.

A partition with a line in the recovery checkpoint, but without a directory, is missing and not new.
So an intended removal of a partition also removes its line.
"""

import errno
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from millrace.broker import events
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.log import PartitionLog, open_log
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory.clean_shutdown import CleanShutdown
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint
from millrace.broker.storage.sparse_index import IndexCache
from millrace.broker.storage.tier import SUFFIX as TIER_SUFFIX
from millrace.broker.storage.tier import read_tier
from millrace.core.errors import CorruptLogError
from millrace.core.ids import TopicPartition, WallMs, parse_topic_partition

CAME_FROM: Final = "came-from"
"""Name of a file in a copy whose original may still count: see `log_moves`."""

DELETED: Final = ".deleted"
"""End of the name of a directory in the trash: see `retired`."""

_log = logging.getLogger(__name__)


class Partitions:
    """The logs of one log directory. Any thread may call; calls about one partition must not
    overlap.

    Attributes:
        files, path: the log directory.
        checkpoints: the recovery points of its logs.
        clean_shutdown: the marker when it was opened; None when there was none.
        found: the partitions that it had when it was opened, also missing ones that it had before.
        logs: the partitions that are open.
        corrupt: those that could not be opened, or were found damaged, and why.
        unsettled: copies of logs that may still lie in another directory, and that one's id.
        companions: those of all log directories of the broker, by id, these included: segments of a
            log may lie in another one.
        tiers: partitions whose segments were found here when it was opened, and their logs
            elsewhere; those are left out that were opened since, or deleted. Also logs that were
            closed before what they left on other disks was removed.
    """

    def __init__(
        self, files: FileSystem, path: str, checkpoints: RecoveryCheckpoint, cache: IndexCache
    ) -> None:
        self.files = files
        self.path = path
        self.checkpoints = checkpoints
        self._cache = cache
        self._lock = files.new_mutex()
        self.clean_shutdown: CleanShutdown | None = None
        self.found: list[TopicPartition] = []
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.corrupt: dict[TopicPartition, CorruptLogError] = {}
        self.unsettled: dict[TopicPartition, str] = {}
        self.companions: Mapping[str, Partitions] = {}
        self.tiers: set[TopicPartition] = set()

    def look_for(self, names: list[str]) -> None:
        """Set `found` by the names in the directory and by the recovery checkpoint."""
        present = (parse_topic_partition(name) for name in names)
        known = {found: None for found in present if found is not None}
        known.update(dict.fromkeys(self.checkpoints.partitions()))
        self.found = list(known)
        stems = (name.removesuffix(TIER_SUFFIX) for name in names if name.endswith(TIER_SUFFIX))
        self.tiers = {found for stem in stems if (found := parse_topic_partition(stem)) is not None}

    # --- Logs --------------------------------------------------------------------------------

    def open(self, topic_partition: TopicPartition, config: LogConfig, now: WallMs) -> PartitionLog:
        """Open a partition's log, recover it if need be, or begin with an empty one."""
        marker = self.clean_shutdown
        try:
            self._check_settled(topic_partition)
            log = open_log(
                self.files,
                self.directory_of(topic_partition),
                topic_partition,
                config,
                checkpoints=self.checkpoints,
                cache=self._cache,
                is_clean=marker is not None and topic_partition not in marker.unjudged,
                now=now,
                log_dirs=self._log_dirs,
            )
        except CorruptLogError as error:
            with self._lock:
                self.corrupt[topic_partition] = error
            raise
        with self._lock:
            self.logs[topic_partition] = log
        self._give_up_tiers(log, now)
        return log

    def _give_up_tiers(self, log: PartitionLog, now: WallMs) -> None:
        """Put folders of segments into the trash: the log is whole without them.

        A crash leaves one behind, for example when the last segment had just come back.
        """
        for companion in self.companions.values():
            if log.topic_partition not in companion.tiers:
                continue
            if log.tier is not None and log.tier.log_dir == companion.path:
                companion.tiers.discard(log.topic_partition)
                continue
            try:
                companion.retire_tier(log.topic_partition, now, DELETED)
                companion.files.fsync_directory(companion.path)
            except OSError as error:
                events.OLD_TIER_KEPT.log(
                    _log,
                    partition=str(log.topic_partition),
                    log_dir=companion.path,
                    error=str(error),
                )

    def close(self, topic_partition: TopicPartition) -> None:
        """Close a log that may be opened again in this life of the broker, or in a later one.

        It is recovered then: what was written since the last clean shutdown is not covered by that.

        Raises:
            CorruptLogError: it is damaged; also noted in `corrupt`.
            StorageError: the disk refused.
        """
        with self._lock:
            log = self.logs.pop(topic_partition, None)
            if log is None:
                return
            if topic_partition not in self.found:  # Its state is unknown to the next shutdown.
                self.found.append(topic_partition)
            self._note_leftovers(log)
            marker = self.clean_shutdown
            if marker is not None:
                unjudged = marker.unjudged | {topic_partition}
                self.clean_shutdown = replace(marker, unjudged=unjudged)
        try:
            log.close(clean=True)
        except CorruptLogError as error:
            with self._lock:
                self.corrupt[topic_partition] = error
            raise

    def opened(self) -> list[PartitionLog]:
        """Return the logs that are open now."""
        with self._lock:
            return list(self.logs.values())

    def with_segments(self) -> "list[tuple[Partitions, PartitionLog]]":
        """Return the open logs with segments in this directory, each after that of its home."""
        own = [(self, log) for log in self.opened()]
        others = [companion for companion in self.companions.values() if companion is not self]
        return own + [
            (other, log)
            for other in others
            for log in other.opened()
            if log.tier is not None and log.tier.log_dir == self.path
        ]

    def let_go(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Close the logs of partitions that are about to leave, and forget them here."""
        gone = frozenset(topic_partitions)
        with self._lock:
            logs = [self.logs.pop(partition, None) for partition in gone]
            for partition in gone:
                self.corrupt.pop(partition, None)
                self.unsettled.pop(partition, None)
            self.found = [found for found in self.found if found not in gone]
        for log in logs:
            if log is not None:
                self._note_leftovers(log)
                log.close(clean=False)

    def _note_leftovers(self, log: PartitionLog) -> None:
        """Let what a log leaves on other disks go when it is opened, or its topic deleted."""
        if log.has_leftovers:
            for companion in self.companions.values():
                if companion is not self:
                    companion.tiers.add(log.topic_partition)

    def forget(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Remove partitions from the checkpoint: a missing directory is no loss then.

        Raises:
            OSError: the disk refused.
        """
        for topic_partition in topic_partitions:
            self.checkpoints.remove(topic_partition)
        self.checkpoints.write()

    def _check_settled(self, topic_partition: TopicPartition) -> None:
        if topic_partition in self.unsettled:
            path = self.directory_of(topic_partition)
            raise CorruptLogError(
                f"{path} is the copy of a log in a log directory that is not here, and may be "
                "older than that one: bring the directory back. If it is lost for good, and no "
                f"other broker has the partition, remove {path}/{CAME_FROM} to go on with the copy"
            )

    # --- Directories -------------------------------------------------------------------------

    def directory_of(self, topic_partition: TopicPartition) -> str:
        """Return where the log of a partition is, or would be."""
        return f"{self.path}/{topic_partition}"

    def has_files_of(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition's log is on disk."""
        return self.files.exists(self.directory_of(topic_partition))

    def rename(self, topic_partition: TopicPartition, now: WallMs, suffix: str) -> str:
        """Rename a partition's directory, if there is one; return its new path.

        The caller flushes the directory.

        Raises:
            OSError: the disk refused.
        """
        source = self.directory_of(topic_partition)
        target = self.free_name(topic_partition, now, suffix)
        if self.files.exists(source):
            self.files.rename(source, target)
        return target

    @property
    def _log_dirs(self) -> Mapping[str, str]:
        return {directory_id: companion.path for directory_id, companion in self.companions.items()}

    def tiers_of(
        self, topic_partitions: Collection[TopicPartition]
    ) -> dict[str, list[TopicPartition]]:
        """Return which partitions have segments on other disks, by the paths of these directories.

        Raises:
            OSError: the disk refused.
        """
        found: dict[str, list[TopicPartition]] = {}
        for topic_partition in topic_partitions:
            try:
                tier = read_tier(
                    self.files, self.directory_of(topic_partition), topic_partition, self._log_dirs
                )
            except CorruptLogError as error:
                events.TIER_UNREADABLE.log(
                    _log, partition=str(topic_partition), error=error.message
                )
            else:
                if tier is not None:
                    found.setdefault(tier.log_dir, []).append(topic_partition)
        return found

    def retire_tier(self, topic_partition: TopicPartition, now: WallMs, suffix: str) -> None:
        """Rename the folder of a partition's segments here, if there is one.

        The caller flushes the directory.

        Raises:
            OSError: the disk refused.
        """
        folder = f"{self.path}/{topic_partition}{TIER_SUFFIX}"
        if self.files.exists(folder):
            self.files.rename(folder, self.free_name(topic_partition, now, suffix))
        self.tiers.discard(topic_partition)

    def free_name(self, topic_partition: TopicPartition, now: WallMs, suffix: str) -> str:
        """Return a path that no directory has, even if the clock went back."""
        while self.files.exists(path := f"{self.directory_of(topic_partition)}.{now}{suffix}"):
            now = WallMs(now + 1)
        return path

    def remove_files(self, directory: str) -> bool:
        """Remove a directory of log files; return whether it was there, and is gone.

        People may remove it at the same time, or keep something in it: the disk is sound then.

        Raises:
            OSError: the disk refused.
        """
        try:
            for file in self.files.list(directory):
                with suppress(FileNotFoundError, IsADirectoryError):
                    self.files.unlink(f"{directory}/{file}")
            self.files.remove_directory(directory)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            events.STRANGE_FILE_KEPT.log(_log, path=directory)
            return False
        return True
