"""The place on another disk where the oldest closed segments of a log lie.

    <log directory on the SSD>/<topic id>-<partition>/        the log's home
        tier                    which log directory the segments before which offset lie in
        ...                     the later segments, and all files beside the batches
    <log directory on the HDD>/<topic id>-<partition>.tier/
        00000000000000000000.log        batches, nothing else

A segment counts where the file `tier` says, and nowhere else: before its end offset in the tier,
from there on at home (P76). So one durable write of that file moves a segment, and a copy that does
not count is a leftover, which opening the log removes.

The log that is found is never shorter than the one that was written: `tier` names the HDD's log
directory by its id, and the log is refused like a damaged one when that directory is missing, or
another one stands in its place.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.core.errors import CorruptLogError
from millrace.core.ids import Offset, TopicPartition

FILE_NAME: Final = "tier"
SUFFIX: Final = ".tier"
NO_LOG_DIRS: Final[Mapping[str, str]] = {}
"""Of a log directory that is used alone."""
_KIND: Final = "tier"


class Tier(NamedTuple):
    """Where a log's oldest segments lie.

    Attributes:
        log_dir: path of the log directory.
        directory_id: its id.
        end_offset: segments that begin before it lie there.
    """

    log_dir: str
    directory_id: str
    end_offset: Offset = Offset(0)

    def folder(self, topic_partition: TopicPartition) -> str:
        """Return the directory of a partition's segments."""
        return f"{self.log_dir}/{topic_partition}{SUFFIX}"


def read_tier(
    files: FileSystem,
    directory: str,
    topic_partition: TopicPartition,
    log_dirs: Mapping[str, str],
) -> Tier | None:
    """Return where a log's oldest segments lie; None when all of them are at home.

    Args:
        files: where.
        directory: the log's home.
        topic_partition: the log's.
        log_dirs: paths of the broker's log directories, by id.

    Raises:
        CorruptLogError: the file cannot be read, or the log directory is not among them.
    """
    try:
        said = _read(files, directory, topic_partition)
    except (DamagedFileError, ValueError) as error:
        raise CorruptLogError(
            f"{directory}/{FILE_NAME} does not say where the oldest segments lie: {error}. They "
            f"are in {topic_partition}{SUFFIX} of a log directory on an HDD: restore the file, or "
            "let the replica be fetched again from another broker",
            topic_partition=topic_partition,
        ) from None
    if said is None:
        return None
    directory_id, end = said
    if directory_id not in log_dirs:
        raise CorruptLogError(
            f"the segments of {directory} before offset {end} lie in the log directory of id "
            f"{directory_id}, which is not here: bring it back into log_dirs. If it is lost for "
            "good, the replica is fetched again from another broker",
            topic_partition=topic_partition,
        )
    return Tier(log_dirs[directory_id], directory_id, end)


def write_tier(
    files: FileSystem, directory: str, topic_partition: TopicPartition, tier: Tier | None
) -> None:
    """Make durable where the oldest segments lie; it counts once this returns.

    Args:
        files: where.
        directory: the log's home.
        topic_partition: the log's.
        tier: where they lie; None: all of them are at home, and the other disk is not needed.

    Raises:
        OSError: the disk refused. After a crash either the old or the new place counts.
    """
    if tier is None:
        with suppress(FileNotFoundError):  # A try before this one was refused.
            files.unlink(f"{directory}/{FILE_NAME}")
        files.fsync_directory(directory)
        return
    payload = f"{tier.directory_id}\n{tier.end_offset}\n"
    write_sealed(files, f"{directory}/{FILE_NAME}", f"{_KIND} {topic_partition}", payload.encode())


def says(
    files: FileSystem, directory: str, topic_partition: TopicPartition, tier: Tier | None
) -> bool:
    """Return whether the file says that the oldest segments lie there, durably or not.

    Raises:
        OSError: the disk refused.
    """
    try:
        said = _read(files, directory, topic_partition)
    except (DamagedFileError, ValueError):
        return False
    return said == (None if tier is None else (tier.directory_id, tier.end_offset))


def _read(
    files: FileSystem, directory: str, topic_partition: TopicPartition
) -> tuple[str, Offset] | None:
    try:
        payload = read_sealed(files, f"{directory}/{FILE_NAME}", f"{_KIND} {topic_partition}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    directory_id, end_offset = payload.decode().splitlines()
    return directory_id, Offset(int(end_offset))
