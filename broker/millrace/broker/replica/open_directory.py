"""A log directory in use, with the threads that write there."""

from dataclasses import dataclass

from millrace.broker.replica.appender import Appender
from millrace.broker.storage.log_directory import LogDirectory
from millrace.core.replica.replication.placement import ReplicaDirectory


@dataclass(slots=True, eq=False, kw_only=True)
class OpenDirectory(ReplicaDirectory):
    """A log directory, its appender's thread, and its readers."""

    directory: LogDirectory
    appender: Appender
