"""The meaning of a disk's errors, and of damage, for the users of a log.

| the operating system says             | it means            | what follows                   |
|---------------------------------------|---------------------|--------------------------------|
| ENOSPC, EDQUOT, EFBIG                 | `StorageFullError`  | tried again when there is room |
| EMFILE, ENFILE, ENOMEM, EINTR, EAGAIN | `StorageBusyError`  | tried again shortly            |
| any error of a flush                  | `LogDirFailedError` | the directory is dead (P63)    |
| EIO, EROFS, and all others            | `LogDirFailedError` | likewise                       |

Any error that is not known to be harmless fails the directory.
"""

from millrace.broker.storage.file_system import is_full, is_passing
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import TopicPartition


def corrupt_log(topic_partition: TopicPartition, directory: str, reason: str) -> CorruptLogError:
    """Return the error of a partition whose log is damaged."""
    return CorruptLogError(
        f"the log in {directory} is damaged and was left as it is: {reason}. If another replica "
        "leads, this one is set aside and fetched again by itself; if none can, start a broker "
        "that has one, or look at it with `millrace log verify` and restore it",
        topic_partition=topic_partition,
    )


def failed(
    error: OSError, doing: str, topic_partition: TopicPartition | None = None
) -> LogDirFailedError:
    """Return the error that fails a log directory.

    Args:
        error: of the disk.
        doing: what was tried where.
        topic_partition: whose files it concerns, if it is those of one partition.
    """
    return LogDirFailedError(
        f"{doing} failed: {error}. The log directory takes no writes any more; replace the disk "
        "and restart",
        topic_partition=topic_partition,
    )


def refusal(
    error: OSError, doing: str, topic_partition: TopicPartition | None = None
) -> StorageError:
    """Return the error to raise for a disk's error, by the table of this module. The arguments are
    those of `failed`.
    """
    if is_passing(error):
        return StorageBusyError(
            f"{doing}: {error}; nothing was changed, and it will be tried again. If this goes on, "
            "raise the limit of open files (`ulimit -n`) or lower storage.file_handles_max, and "
            "look at the machine's memory",
            topic_partition=topic_partition,
        )
    if is_full(error):
        return StorageFullError(
            f"{doing}: the disk is full; nothing was changed. Free some space or lower the "
            "retention",
            topic_partition=topic_partition,
        )
    return failed(error, doing, topic_partition)
