"""How a log moves to another log directory of the same broker: as a copy.

After any crash exactly one of the two logs counts:

1. the log is copied to `.moving`, while it goes on; the start after a crash removes the copy;
2. nothing is appended any more; the rest is copied, all of it flushed, the file `came-from` names
   the directory that it comes from, and the copy gets its proper name and its recovery point
   (`take_in`);
3. the old log goes to the trash (`part_with`), and then the file `came-from` is removed (`settle`).
   Only then the copy takes appends.

So a log with `came-from` has nothing that the old one lacks. At the start the old one counts if it
is still there, and the copy is removed; if it is gone the copy counts. If the directory of the old
one is missing, that is unknown, and the copy is refused like a damaged log.
"""

import logging
from collections.abc import Collection
from typing import Final

from millrace.broker import events
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory.log_copy import LogCopy
from millrace.broker.storage.log_directory.partitions import CAME_FROM, DELETED, Partitions
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.core.errors import CorruptLogError, StorageBusyError, StorageFullError
from millrace.core.ids import TopicPartition, WallMs, parse_topic_partition

_MOVING: Final = ".moving"

_log = logging.getLogger(__name__)


class LogMoves:
    """Takes logs into one log directory, and lets logs leave it.

    Attributes:
        directory_id: of the log directory.
        partitions: of the log directory.
    """

    def __init__(self, partitions: Partitions, directory_id: str) -> None:
        self.directory_id = directory_id
        self.partitions = partitions
        self._files = partitions.files
        self._path = partitions.path

    # --- To this directory -------------------------------------------------------------------

    def begin_copy(self, log: PartitionLog) -> LogCopy:
        """Begin to copy a log of another directory to this one.

        Raises:
            StorageFullError: there is no room for all of it, or for its first file.
            CorruptLogError: there is an unknown log of the partition here.
            LogDirFailedError, StorageBusyError: the disk refused.
        """
        path = self.partitions.directory_of(log.topic_partition)
        if self._files.exists(f"{path}/{CAME_FROM}"):
            self.remove_copy(log.topic_partition)  # That was refused when it was given up.
        try:
            if self._files.exists(path):
                raise CorruptLogError(
                    f"{path} is there for an unknown reason: the log in {log.directory} is not "
                    "moved. Remove one of the two"
                )
            if (free := self._files.free_space(self._path)) < log.size_bytes:
                raise StorageFullError(
                    f"{self._path} has {free} bytes left, and the log in {log.directory} takes "
                    f"{log.size_bytes}: it is not moved. Free some space"
                )
            self._files.make_directory(path + _MOVING)
        except OSError as error:
            raise refusal(error, f"copying {log.directory} to {self._path}") from error
        return LogCopy(self._files, log, path + _MOVING)

    def take_in(
        self, copy: LogCopy, source: "LogMoves", config: LogConfig, now: WallMs
    ) -> PartitionLog:
        """Complete a copy, and open it as the partition's log.

        The log has been checkpointed, and nothing is appended to it, or cut, until this is over. It
        still counts. After an error the copy is to be given up with `remove_copy`.

        Args:
            copy: made by `begin_copy`.
            source: of the directory that the log comes from.
            config: the topic's settings.
            now: the time.

        Raises:
            CorruptLogError: the log, or its copy here, is damaged.
            LogDirFailedError, StorageFullError, StorageBusyError: this disk refused.
        """
        log = copy.log
        topic_partition = log.topic_partition
        path = self.partitions.directory_of(topic_partition)
        copy.complete()
        point = source.partitions.checkpoints.get(topic_partition)
        if point is None or point.recovery_point != log.log_end_offset:
            raise StorageBusyError(f"the log in {log.directory} is not flushed: it is not moved")
        try:
            write_sealed(
                self._files,
                f"{copy.directory}/{CAME_FROM}",
                f"{CAME_FROM} {topic_partition}",
                f"{source.directory_id}\n".encode(),
            )
            self._files.rename(copy.directory, path)
            self._files.fsync_directory(self._path)
            self.partitions.checkpoints.put(topic_partition, point)
            self.partitions.checkpoints.write()
        except OSError as error:
            raise refusal(error, f"moving {log.directory} to {self._path}") from error
        taken = self.partitions.open(topic_partition, config, now)
        if taken.log_end_offset != log.log_end_offset:
            raise CorruptLogError(
                f"the copy of {log.directory} in {self._path} ends at {taken.log_end_offset}, and "
                f"not at {log.log_end_offset}: it is not used"
            )
        return taken

    def settle(self, topic_partition: TopicPartition) -> None:
        """Let a copy count from now on: its original is gone, durably.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        path = self.partitions.directory_of(topic_partition)
        try:
            if self._files.exists(f"{path}/{CAME_FROM}"):
                self._files.unlink(f"{path}/{CAME_FROM}")
            self._files.fsync_directory(path)
        except OSError as error:
            raise refusal(error, f"moving a partition to {self._path}") from error
        self.partitions.unsettled.pop(topic_partition, None)

    def remove_copy(self, topic_partition: TopicPartition) -> None:
        """Remove a copy that does not count; its original does.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        self.partitions.let_go([topic_partition])
        path = self.partitions.directory_of(topic_partition)
        try:
            self.partitions.forget([topic_partition])
            if self._files.exists(f"{path}/{CAME_FROM}"):
                # All at once: a part of it without `came-from` would count.
                self._files.rename(path, path + _MOVING)
                self._files.fsync_directory(self._path)
            self.partitions.remove_files(path + _MOVING)
        except OSError as error:
            raise refusal(error, f"removing a copy from {self._path}") from error

    # --- From this directory -----------------------------------------------------------------

    def part_with(self, topic_partition: TopicPartition, now: WallMs) -> None:
        """Put a log into the trash that another directory has a complete copy of.

        After a refusal that may pass the caller tries it again.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the disk refused.
        """
        self.partitions.let_go([topic_partition])
        try:
            # First the name: a log without a recovery point may not be told from a damaged one.
            self.partitions.rename(topic_partition, now, DELETED)
            self._files.fsync_directory(self._path)
            self.partitions.forget([topic_partition])
        except OSError as error:
            raise refusal(error, f"moving a partition out of {self._path}") from error

    # --- At the start ------------------------------------------------------------------------

    def remove_unfinished(self, names: list[str]) -> None:
        """Remove the copies that a crash left unfinished, by the names in the directory.

        Raises:
            OSError: the disk refused.
        """
        for name in names:
            partition = name.removesuffix(_MOVING)
            if partition != name and parse_topic_partition(partition) is not None:
                self.partitions.remove_files(f"{self._path}/{name}")

    def look_for_unsettled(self) -> None:
        """Find the copies whose original may still count.

        Raises:
            OSError: the disk refused.
        """
        for topic_partition in self.partitions.found:
            path = f"{self.partitions.directory_of(topic_partition)}/{CAME_FROM}"
            try:
                payload = read_sealed(self._files, path, f"{CAME_FROM} {topic_partition}")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except DamagedFileError:
                payload = b""  # No directory has this id.
            self.partitions.unsettled[topic_partition] = payload.decode().strip()


def connect(directories: Collection[LogMoves]) -> None:
    """Let each log directory of a broker know all of them; no log is open yet."""
    companions = {directory.directory_id: directory.partitions for directory in directories}
    for directory in directories:
        directory.partitions.companions = companions


def settle_moves(directories: Collection[LogMoves]) -> None:
    """End the moves that a crash interrupted, of all directories of a broker; none is used yet.

    Raises:
        LogDirFailedError, StorageFullError, StorageBusyError: a disk refused.
    """
    by_id = {directory.directory_id: directory for directory in directories}
    for target in directories:
        for topic_partition, source_id in list(target.partitions.unsettled.items()):
            source = by_id.get(source_id)
            if source is None:
                continue  # Opening the copy fails, and the error says what to do.
            counts = target
            if source.partitions.has_files_of(topic_partition):
                target.remove_copy(topic_partition)
                counts = source
            else:
                source.part_with(topic_partition, WallMs(0))  # Its checkpoint may still name it.
                target.settle(topic_partition)
            events.REPLICA_MOVE_SETTLED.log(
                _log, partition=str(topic_partition), log_dir=counts.partitions.path
            )
