"""What failures of a disk, and damage on it, mean to whoever used the log.

| the operating system says             | it means            | what follows                   |
|---------------------------------------|---------------------|--------------------------------|
| ENOSPC, EDQUOT, EFBIG                 | `StorageFullError`  | tried again when there is room |
| EMFILE, ENFILE, ENOMEM, EINTR, EAGAIN | `StorageBusyError`  | tried again shortly            |
| any error of a flush                  | `LogDirFailedError` | the directory is dead (P63)    |
| EIO, EROFS, and all others            | `LogDirFailedError` | likewise                       |

What is not known to be harmless fails the directory.
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
        f"the log of {topic_partition} in {directory} is damaged and was left as it is: {reason}. "
        "Where another replica leads, this one is set aside and fetched anew by itself; where none "
        "can, start a broker that has one, or look at it with `millrace log verify` and restore it"
    )


def failed(error: OSError, doing: str) -> LogDirFailedError:
    """Return the error that fails a log directory; `doing` says what was tried where."""
    return LogDirFailedError(
        f"{doing} failed: {error}. The log directory takes no writes any more; replace the disk "
        "and restart"
    )


def refusal(error: OSError, doing: str) -> StorageError:
    """Return what a disk's error means: see the module."""
    if is_passing(error):
        return StorageBusyError(
            f"{doing}: {error}; nothing was changed, and it will be tried again. If this goes on, "
            "raise the limit of open files (`ulimit -n`) or lower storage.file_handles_max, and "
            "look at the machine's memory"
        )
    if is_full(error):
        return StorageFullError(
            f"{doing}: the disk is full; nothing was changed. Free some space or lower the "
            "retention"
        )
    return failed(error, doing)
