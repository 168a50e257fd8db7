"""Whether a log may be used, and what an error means for it.

A log that is damaged, or whose disk failed, takes no more calls: each gets the same error (P63,
P65). It leaves a mark in its directory, so that the next process knows. `refusals.py` explains the
errors of the operating system.
"""

import contextlib

from millrace.broker.storage.file_system import FileSystem, is_full, is_passing
from millrace.broker.storage.log_recovery import DAMAGED, FAILED
from millrace.broker.storage.refusals import corrupt_log, failed, refusal
from millrace.core.errors import CorruptLogError, StorageBusyError, StorageError
from millrace.core.ids import TopicPartition


class LogHealth:
    """The failure of one log, which every later call gets. Any thread may call.

    Attributes:
        failure: why the log takes no more calls; None while it does.
        failed_log_dir: the log directory whose disk failed it.
        is_closed: whether its files were given back.
    """

    __slots__ = (
        "_directory",
        "_files",
        "_topic_partition",
        "failed_log_dir",
        "failure",
        "is_closed",
    )

    def __init__(self, files: FileSystem, directory: str, topic_partition: TopicPartition) -> None:
        self._files = files
        self._directory = directory
        self._topic_partition = topic_partition
        self.failure: StorageError | None = None
        self.failed_log_dir = ""
        self.is_closed = False

    def check(self) -> None:
        """Refuse to read a log that is damaged or whose disk failed."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # A trace that is raised again would grow.

    def check_open(self) -> None:
        """Refuse to change files that belong to another log by now, or to none."""
        if self.failure is not None:
            self.check()
        if self.is_closed:
            raise CorruptLogError(
                f"the log in {self._directory} is closed: it was deleted, or set aside",
                topic_partition=self._topic_partition,
            )

    def check_not_closed(self) -> None:
        """Refuse to report records as gone whose files lie elsewhere by now."""
        if self.is_closed:
            raise StorageBusyError(
                f"the log in {self._directory} was deleted or moved meanwhile: ask again",
                topic_partition=self._topic_partition,
            )

    def corrupt(self, reason: str) -> CorruptLogError:
        """Return the error of damage; the log takes no more calls."""
        error = corrupt_log(self._topic_partition, self._directory, reason)
        if self.failure is None:
            self.failure = error
            self._leave_mark(DAMAGED)
        return error

    def fail(self, error: OSError, doing: str, folder: str | None = None) -> StorageError:
        """Return the error of a disk that failed; the log takes no more calls.

        Args:
            error: of the disk.
            doing: what was tried.
            folder: where, if not in the log's directory.
        """
        folder = folder or self._directory
        self.failed_log_dir = folder.rpartition("/")[0]
        failure = failed(error, f"{doing} {folder}", self._topic_partition)
        failure.log_dir = self.failed_log_dir
        self.failure = failure
        self._leave_mark(FAILED)
        return failure

    def refusal(self, error: OSError, doing: str, folder: str | None = None) -> StorageError:
        """Return the error to raise for a disk's error; one that cannot pass fails the log.

        Arguments as of `fail`.
        """
        if may_pass(error):
            doing = f"{doing} {folder or self._directory}"
            return refusal(error, doing, self._topic_partition)
        return self.fail(error, doing, folder)

    def unread(self, error: Exception, path: str) -> StorageError:
        """Return the error of a failed read: damage, unless the process lacked something."""
        if isinstance(error, OSError) and is_passing(error):
            return self.refusal(error, "reading")
        return self.corrupt(f"{path}: {error}")

    def _leave_mark(self, name: str) -> None:
        """Leave a mark for the next process; a disk that takes none takes no writes, either."""
        if not self.is_closed:
            with contextlib.suppress(OSError):
                self._files.open(f"{self._directory}/{name}", create=True).close()


def may_pass(error: OSError) -> bool:
    """Return whether the log may go on: the disk is full, or the process lacks something."""
    return is_full(error) or is_passing(error)
