"""How far readers see: records of open transactions, and of aborted ones, or committed ones alone.

The default is the same wherever a log's end is named, so that the end of a partition is one that a
consumer with default settings reaches.
"""

from typing import Final, Literal, get_args

from millrace.core.errors import InvalidRequestError
from millrace.proto.v1 import fetch_pb2

Isolation = Literal["read_committed", "read_uncommitted"]
"""Kafka's names. `read_committed`: the records of a transaction once it is committed, and those of
no transaction. `read_uncommitted`: all records as soon as they are replicated."""

ISOLATIONS: Final[tuple[Isolation, ...]] = get_args(Isolation)
READ_COMMITTED: Final = "read_committed"

_LEVELS: Final[dict[object, fetch_pb2.IsolationLevel]] = {
    "read_committed": fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED,
    "read_uncommitted": fetch_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
}


def level_of(isolation: object) -> fetch_pb2.IsolationLevel:
    """Return an isolation as it goes on the wire.

    Raises:
        InvalidRequestError: there is no such isolation.
    """
    level = _LEVELS.get(isolation) if isinstance(isolation, str) else None
    if level is None:
        raise InvalidRequestError(
            f'{isolation!r} is no isolation: give "read_committed" or "read_uncommitted"'
        )
    return level
