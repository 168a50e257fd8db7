"""File descriptors: connections and segments draw on one limit of the process.

A connection that finds none is refused and may come back; a segment that finds none looks like a
disk that failed. So the segments' share is set aside first, and connections get what is left.
"""

import logging
import resource
from typing import Final

from millrace.broker import events
from millrace.core.errors import InvalidConfigError

_log = logging.getLogger(__name__)

_OTHERS: Final = 128
"""Descriptors for everything else: the store, the metrics page, directories being synced."""
_CONNECTIONS_MIN: Final = 16


def connections_allowed(connections_max: int, file_handles_max: int, *, listeners: int) -> int:
    """Raise the process's own limit as far as necessary and possible; return how many connections
    fit.

    Args:
        connections_max: how many each listener may have.
        file_handles_max: the segments' share.
        listeners: how many there are.

    Raises:
        InvalidConfigError: not even a few connections would fit beside the files.
    """
    wanted = listeners * connections_max + file_handles_max + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = soft
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit == resource.RLIM_INFINITY or limit >= wanted:
        return connections_max
    allowed = (limit - file_handles_max - _OTHERS) // listeners
    if allowed < _CONNECTIONS_MIN:
        raise InvalidConfigError(
            f"this process may open {limit} files, but storage.file_handles_max = "
            f"{file_handles_max} leaves no room for connections: raise the limit (ulimit -Hn), or "
            "lower the setting"
        )
    events.CONNECTIONS_LOWERED.log(
        _log, connections_max=connections_max, allowed=allowed, open_files=limit
    )
    return allowed
