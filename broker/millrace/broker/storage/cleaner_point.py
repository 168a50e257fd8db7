"""The cleaner point of a log, in a file of its own.

A cache (P68): without it everything counts as dirty, and is cleaned once more. But it must never be
too high (P57): a tombstone before it may go, as older records of its key are gone already. So the
log lowers it durably before it cuts its end below it. The file names its partition.
"""

from typing import Final

from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.core.ids import Offset, TopicPartition, WallMs
from millrace.core.replica.compaction.cleanable import CleanerPoint

FILE_NAME: Final = "cleaner-point"
_KIND: Final = "cleaner-point"


def read_point(files: FileSystem, directory: str, topic_partition: TopicPartition) -> CleanerPoint:
    """Return the point; offset 0 when the file is missing, damaged, or another partition's."""
    try:
        payload = read_sealed(files, f"{directory}/{FILE_NAME}", f"{_KIND} {topic_partition}")
        offset, next_horizon, cleaned_at, *rest = map(int, payload.split())
        (next_end,) = rest or (0,)  # Release 0.2 did not write it.
    except (FileNotFoundError, DamagedFileError, ValueError):
        return CleanerPoint(Offset(0))
    return CleanerPoint(Offset(offset), WallMs(next_horizon), WallMs(cleaned_at), Offset(next_end))


def write_point(
    files: FileSystem, directory: str, topic_partition: TopicPartition, point: CleanerPoint
) -> None:
    """Make the point durable.

    Raises:
        OSError: the disk refused.
    """
    payload = " ".join(map(str, point)) + "\n"
    write_sealed(files, f"{directory}/{FILE_NAME}", f"{_KIND} {topic_partition}", payload.encode())
