"""A log that deletes all its records and begins at another offset, atomically over crashes.

Several files cannot be replaced in one step. So first a mark says, durably, that the files no
longer count, and at which offset the log begins; it is removed last. Opening a log with the mark
repeats all of it.

Segments on another disk do not count once the file `tier` is gone: see `tier.py`. They are removed
later, so this does not wait for that disk.
"""

from contextlib import suppress
from typing import Final

from millrace.broker.storage import segment
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint, RecoveryPoint
from millrace.broker.storage.refusals import corrupt_log
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.broker.storage.segment import offset_name
from millrace.core.ids import Offset, TopicPartition

MARK: Final = "begins-anew"
_KIND: Final = "begins-anew"


def decide(
    files: FileSystem, directory: str, topic_partition: TopicPartition, offset: Offset
) -> None:
    """Leave the mark, durably: from here on the log is empty and begins at `offset`."""
    kind = f"{_KIND} {topic_partition}"
    write_sealed(files, f"{directory}/{MARK}", kind, f"{offset}\n".encode())


def decided(files: FileSystem, directory: str, topic_partition: TopicPartition) -> Offset | None:
    """Return the offset at which the log begins; None when there is no mark.

    Raises:
        DamagedFileError: the mark cannot be read, or is another partition's.
    """
    try:
        payload = read_sealed(files, f"{directory}/{MARK}", f"{_KIND} {topic_partition}")
        return Offset(int(payload))
    except FileNotFoundError:
        return None
    except ValueError:
        raise DamagedFileError(f"{directory}/{MARK} does not hold an offset") from None


def carry_out(
    files: FileSystem,
    directory: str,
    topic_partition: TopicPartition,
    checkpoints: RecoveryCheckpoint,
) -> None:
    """Carry out a mark, and remove it; do nothing without a mark.

    Args:
        files: where.
        directory: of the log.
        topic_partition: the log's.
        checkpoints: the log directory's recovery points.

    Raises:
        CorruptLogError: the mark cannot be read, or is another partition's.
        OSError: the disk refused; to be called again.
    """
    try:
        offset = decided(files, directory, topic_partition)
    except DamagedFileError as error:
        raise corrupt_log(topic_partition, directory, str(error)) from None
    if offset is None:
        return
    for name in files.list(directory):
        if name != MARK:
            with suppress(FileNotFoundError):  # A move to another disk removes its files, too.
                files.unlink(f"{directory}/{name}")
    path = f"{directory}/{offset_name(offset)}{segment.SUFFIX}"
    files.open(path, create=True, writable=True).close()
    files.fsync_directory(directory)
    checkpoints.put(topic_partition, RecoveryPoint(offset, offset, offset))
    checkpoints.write()
    files.unlink(f"{directory}/{MARK}")
    files.fsync_directory(directory)
