"""Logs that are retired: deleted, or set aside as damaged. They lie under other names.

A partition is deleted only because its caller holds a tombstone of it. It is renamed first, and
removed `file.delete.delay.ms` later.

Unknown directories are left alone (P70). A damaged log is never repaired in place (P65). Once
others have its records, and the metadata does not count on it, it is *set aside* under another
name, for people to inspect: only they remove it, or the deletion of its topic. Their number is
bounded, as each takes space, and a disk that damages so many should be replaced.
"""

from collections.abc import Collection
from contextlib import suppress
from typing import Final

from millrace.broker.storage.log_directory.partitions import DELETED, Partitions
from millrace.broker.storage.refusals import refusal
from millrace.core.errors import CorruptLogError
from millrace.core.ids import TopicId, TopicPartition, WallMs, parse_topic_partition
from millrace.core.words import count

_DAMAGED: Final = ".damaged"


class RetiredLogs:
    """Retires logs of one log directory, and empties its trash.

    Attributes:
        damaged: paths of the logs that were set aside, the oldest of each partition first.

    Args:
        partitions: of the log directory.
        delete_delay_ms: how long a deleted log is kept.
        damaged_max: how many may be set aside.
    """

    def __init__(self, partitions: Partitions, *, delete_delay_ms: int, damaged_max: int) -> None:
        self._partitions = partitions
        self._files = partitions.files
        self._path = partitions.path
        self._delete_delay_ms = delete_delay_ms
        self._damaged_max = damaged_max
        self.damaged: list[str] = []
        # Names in the trash with a time in the future, and when they were first seen.
        self._first_seen: dict[str, WallMs] = {}

    def delete(self, topic_partitions: Collection[TopicPartition], now: WallMs) -> None:
        """Put partitions into the trash; the caller holds tombstones of their topic ids (P70).

        The checkpoint is written once for all, and the directory flushed once. After a refusal the
        caller tries all of them again.

        Args:
            topic_partitions: which; also their logs that were set aside.
            now: the time from which the delay counts.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        self._partitions.let_go(topic_partitions)
        try:
            self._partitions.forget(topic_partitions)
            moved: list[str] = []
            for topic_partition in topic_partitions:
                self._partitions.rename(topic_partition, now, DELETED)
                moved += self._retire_damaged(topic_partition, now)
            self._files.fsync_directory(self._path)
            for path in moved:
                self.damaged.remove(path)
        except OSError as error:
            raise refusal(error, f"deleting partitions of {self._path}") from error

    def retire_tiers(
        self, topic_partitions: Collection[TopicPartition], now: WallMs, is_damaged: bool
    ) -> None:
        """Put the segments here of logs that lie elsewhere into the trash, or set them aside.

        The logs are closed. Theirs is the last disk whose files are renamed: they name this one.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        suffix = _DAMAGED if is_damaged else DELETED
        moved: list[str] = []
        try:
            for topic_partition in topic_partitions:
                self._partitions.retire_tier(topic_partition, now, suffix)
                if not is_damaged:
                    moved += self._retire_damaged(topic_partition, now)
            self._files.fsync_directory(self._path)
            for path in moved:
                self.damaged.remove(path)
            if is_damaged:
                self.look_for_damaged(self._files.list(self._path))
        except OSError as error:
            raise refusal(error, f"retiring segments in {self._path}") from error

    def left_of(self, topic_ids: Collection[TopicId]) -> list[TopicPartition]:
        """Return the partitions of topics that left segments here, or damaged logs.

        Their logs have not been opened in this life of the broker.
        """
        names = (path.rpartition("/")[2].split(".")[0] for path in self.damaged)
        damaged = (found for name in names if (found := parse_topic_partition(name)) is not None)
        here = {*self._partitions.tiers, *damaged}
        return sorted(partition for partition in here if partition.topic_id in topic_ids)

    def _retire_damaged(self, topic_partition: TopicPartition, now: WallMs) -> list[str]:
        """Rename the logs of a partition that were set aside; return their paths until now."""
        paths = self.damaged_of(topic_partition)
        for path in paths:
            with suppress(FileNotFoundError):  # A person has removed it.
                target = self._partitions.free_name(topic_partition, now, DELETED)
                self._files.rename(path, target)
        return paths

    def set_aside(self, topic_partition: TopicPartition, now: WallMs) -> str:
        """Rename a damaged log, durably; return its new path.

        A new one may replace it. The caller knows that the metadata does not count on this replica
        (P65).

        Raises:
            CorruptLogError: as many were set aside as may be; the log stays where it is.
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        self.look_again_for_damaged()
        if len(self.damaged) >= self._damaged_max:
            raise CorruptLogError(
                f"the log in {self._path} is damaged, and is not copied from another broker: "
                f"{count(len(self.damaged), 'damaged log was', 'damaged logs were')} set aside "
                "there already, and the setting storage.damaged_logs_max allows no more. Replace "
                f"the disk, or remove those directories, whose names end in {_DAMAGED}",
                topic_partition=topic_partition,
            )
        self._partitions.let_go([topic_partition])
        try:
            self._partitions.forget([topic_partition])
            path = self._partitions.rename(topic_partition, now, _DAMAGED)
            self._files.fsync_directory(self._path)
            self.look_for_damaged(self._files.list(self._path))
        except OSError as error:
            raise refusal(error, f"setting {self._path}/{topic_partition} aside") from error
        return path

    def damaged_of(self, topic_partition: TopicPartition) -> list[str]:
        """Return the paths of a partition's logs that were set aside, the oldest first."""
        prefix = f"{self._path}/{topic_partition}."
        return [path for path in self.damaged if path.startswith(prefix)]

    def look_for_damaged(self, names: list[str]) -> None:
        """Set `damaged` by the names in the directory: people may remove some."""
        self.damaged = [
            f"{self._path}/{name}" for name in names if _stamp(name, _DAMAGED) is not None
        ]

    def look_again_for_damaged(self) -> None:
        """Set `damaged` by what is in the directory now.

        Raises:
            LogDirFailedError: the disk refused.
        """
        try:
            self.look_for_damaged(self._files.list(self._path))
        except OSError as error:
            raise refusal(error, f"listing {self._path}") from error

    def empty_trash(self, now: WallMs) -> int:
        """Remove partitions deleted long enough ago; return how many.

        Where the clock was ahead at the deletion, the delay counts from when that is noticed.
        From any thread, one at a time: to free a gigabyte takes a disk a tenth of a second.

        Raises:
            LogDirFailedError: the disk refused.
        """
        removed = 0
        first_seen: dict[str, WallMs] = {}
        try:
            for name in self._files.list(self._path):
                deleted_at = _stamp(name, DELETED)
                if deleted_at is None:
                    continue
                if deleted_at > now:
                    deleted_at = first_seen[name] = min(self._first_seen.get(name, now), now)
                if now - deleted_at < self._delete_delay_ms:
                    continue
                removed += self._partitions.remove_files(f"{self._path}/{name}")
            if removed:
                self._files.fsync_directory(self._path)
            self._first_seen = first_seen
        except OSError as error:
            raise refusal(error, f"emptying the trash of {self._path}") from error
        return removed


def _stamp(name: str, suffix: str) -> WallMs | None:
    """Return when a partition was renamed with this suffix; None for any other name."""
    partition, dot, stamp = name.removesuffix(suffix).rpartition(".")
    is_one = name.endswith(suffix) and dot and stamp.isascii() and stamp.isdigit()
    if not is_one or parse_topic_partition(partition) is None:
        return None
    return WallMs(int(stamp))
