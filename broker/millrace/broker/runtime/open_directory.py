"""A log directory in use, with the threads that write there."""

from dataclasses import dataclass

from millrace.broker.runtime.appender import Appender
from millrace.broker.storage.log_directory import LogDirectory
from millrace.core.errors import LogDirFailedError
from millrace.core.ids import TopicPartition


@dataclass(slots=True, eq=False)
class OpenDirectory:
    """See the module."""

    directory: LogDirectory
    appender: Appender
    known: set[TopicPartition]
    """Partitions that it has, or is to get."""
    failure: LogDirFailedError | None = None

    def check(self) -> None:
        """Refuse to use it when it has failed.

        Raises:
            LogDirFailedError: it has.
        """
        if self.failure is not None:
            raise LogDirFailedError(self.failure.message)
