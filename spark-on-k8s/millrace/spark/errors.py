"""Errors of source and sink, beside the client's.

    MillraceError
    └── SparkSourceError
        ├── InvalidOptionError     an option is unknown, malformed, or contradicts another
        ├── CheckpointError        a checkpoint holds offsets that are not this query's
        ├── DataLossError          records that were to be read are gone
        │   └── TopicRecreatedError
        ├── ReadStalledError       a range gave nothing for `pollTimeoutMs`
        ├── InvalidColumnsError    rows have columns or types that cannot be written
        ├── InvalidRowError        one row cannot be written
        ├── IncompleteWriteError   not all tasks have written the same transaction
        └── InvalidValueError      a record's value is not what it is read as

Each says what was wrong and what to do. An error of a read means that nothing was skipped, and
Spark commits no batch with a failed task.
"""

from millrace.core.errors import ClientError


class SparkSourceError(ClientError):
    """Base of all errors of the data source."""


class InvalidOptionError(SparkSourceError):
    """An option is unknown, malformed, or contradicts another one."""


class CheckpointError(SparkSourceError):
    """A checkpoint holds offsets that cannot be those of this query."""


class DataLossError(SparkSourceError):
    """Records that were to be read are gone; `failOnDataLoss=false` goes on without them."""


class TopicRecreatedError(DataLossError):
    """The topic was deleted and created again: its offsets count other records."""


class ReadStalledError(SparkSourceError):
    """A range of records could not be read to its end in time."""


class InvalidColumnsError(SparkSourceError):
    """The rows to write have columns or types that do not fit into a record."""


class InvalidRowError(SparkSourceError):
    """A row cannot be a record; the message names it."""


class IncompleteWriteError(SparkSourceError):
    """Not all tasks of a write have written, or not the same transaction: nothing counts."""


class InvalidValueError(SparkSourceError):
    """The value of a record cannot be read in the requested form; the message names the record."""
