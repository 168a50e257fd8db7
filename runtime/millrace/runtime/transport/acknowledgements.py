"""Finds out whether the other machine still acknowledges what it is sent.

The kernel's `TCP_USER_TIMEOUT` does not tell it: it also ends the connection of a machine that
lives, acknowledges everything, and does not read for so long. A broker does just that when it holds
up a producer. So the kernel is asked what has no answer: bytes, or its questions to a machine that
has no room for more (`TCP_INFO`, Linux).
"""

import socket
import sys
from typing import Final, Protocol

_PROBES_AT: Final = 3
_UNACKNOWLEDGED_AT: Final = 24
_ACKNOWLEDGED_AT: Final = 120
_INFO_BYTES: Final = 128
"""Where `struct tcp_info` of linux/tcp.h has its `tcpi_probes`, `tcpi_unacked`, `tcpi_bytes_acked`,
and where the last one ends."""


_PROBES_MIN: Final = 2
"""Questions without an answer that count: machines answer one in half a second, and one may be
lost."""


class _Socket(Protocol):
    def getsockopt(self, level: int, optname: int, buflen: int) -> bytes: ...


class Acknowledgements:
    """Those of one connection.

    Args:
        of: its socket.
        dead_after_ms: how long the other machine may answer nothing.
    """

    def __init__(self, of: _Socket, dead_after_ms: int) -> None:
        self._socket = of
        self._dead_after_ms = dead_after_ms
        self._acknowledged = -1  # Bytes, when it was last known that the other machine lives.
        self._alive_ms = 0

    def is_dead(self, now_ms: int) -> bool:
        """Whether the other machine has left the kernel without an answer for too long.

        It has to be asked several times in that time.
        """
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        except (OSError, ValueError, AttributeError):  # Closed, not TCP, or not Linux.
            return False
        if len(info) < _INFO_BYTES:
            return False
        is_owed = any(info[_UNACKNOWLEDGED_AT : _UNACKNOWLEDGED_AT + 4])
        is_owed = is_owed or info[_PROBES_AT] >= _PROBES_MIN
        acknowledged = int.from_bytes(info[_ACKNOWLEDGED_AT:_INFO_BYTES], sys.byteorder)
        if acknowledged != self._acknowledged or not is_owed:
            self._acknowledged, self._alive_ms = acknowledged, now_ms
            return False
        return now_ms - self._alive_ms >= self._dead_after_ms
