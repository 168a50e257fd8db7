"""What failures of a disk, and damage on it, mean to whoever used the log."""

from millrace.broker.storage.file_system import is_full
from millrace.core.errors import CorruptLogError, LogDirFailedError, StorageError, StorageFullError
from millrace.core.ids import TopicPartition


def corrupt_log(topic_partition: TopicPartition, directory: str, reason: str) -> CorruptLogError:
    """Return the error of a partition whose log is damaged."""
    return CorruptLogError(
        f"the log of {topic_partition} in {directory} is damaged and was left as it is: {reason}. "
        "Look at it with `millrace log verify`; then restore it, or delete the topic"
    )


def failed(error: OSError, doing: str) -> LogDirFailedError:
    """Return the error that fails a log directory; `doing` says what was tried where."""
    return LogDirFailedError(
        f"{doing} failed: {error}. The log directory takes no writes any more; replace the disk "
        "and restart"
    )


def refusal(error: OSError, doing: str) -> StorageError:
    """Return what a disk's error means: that it is full, which may pass, or that it failed."""
    if is_full(error):
        return StorageFullError(
            f"{doing}: the disk is full; nothing was changed. Free some space or lower the "
            "retention"
        )
    return failed(error, doing)
