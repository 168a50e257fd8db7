"""Isolations on the wire."""

from typing import Final

from millrace.core.errors import InvalidRequestError
from millrace.core.isolation import READ_COMMITTED, READ_UNCOMMITTED
from millrace.proto.v1 import fetch_pb2

_LEVELS: Final[dict[object, fetch_pb2.IsolationLevel]] = {
    READ_COMMITTED: fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED,
    READ_UNCOMMITTED: fetch_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
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
