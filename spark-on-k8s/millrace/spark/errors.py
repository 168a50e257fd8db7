"""What the source raises beside the client's errors.

    MillraceError
    └── SparkSourceError
        ├── InvalidOptionError     an option is unknown, malformed, or contradicts another
        ├── CheckpointError        a checkpoint holds offsets that are not this query's
        ├── DataLossError          records that were to be read are not there any more
        │   └── TopicRecreatedError
        └── ReadStalledError       a range gave nothing for `pollTimeoutMs`

Each says what was wrong and what to do. Nothing is written where one of them is raised: the source
only reads, and Spark commits no batch of which a task has failed.
"""

from millrace.core.errors import ClientError


class SparkSourceError(ClientError):
    """Base of all errors of the source."""


class InvalidOptionError(SparkSourceError):
    """An option is unknown, malformed, or contradicts another one."""


class CheckpointError(SparkSourceError):
    """A checkpoint holds offsets that cannot be those of this query."""


class DataLossError(SparkSourceError):
    """Records that were to be read are gone; `failOnDataLoss=false` goes on without them."""


class TopicRecreatedError(DataLossError):
    """The topic was deleted and made anew: its offsets count other records."""


class ReadStalledError(SparkSourceError):
    """A range of records could not be read to its end in time."""
