"""How fast a leader's broker sends a follower what it missed.

A follower that returns, or is added, wants everything at once, and competes with producers and
in-sync followers for disk, network and processor. So it gets a number of bytes a second, plus as
many as are appended meanwhile: it catches up at any rate (F34). In-sync followers are never held
back, as commits wait for them.

A token bucket that may be overdrawn by one response, so that batches of any size pass. Source:
Kafka's replication quotas (KIP-73), where people have to choose a rate above the rate of appends.
"""

from typing import Final

from millrace.core.ids import MonotonicMs

_BURST_MS: Final = 100
"""The burst: unused allowance of this time can be sent at once."""


class CatchUpAllowance:
    """The allowance of one follower for partitions in which it is not in sync.

    Args:
        bytes_per_second: on top of what is appended meanwhile.
        now: it begins with a full burst.
    """

    __slots__ = ("_accrued_at", "_burst", "_bytes", "_rate")

    def __init__(self, bytes_per_second: int, now: MonotonicMs) -> None:
        self._rate = bytes_per_second
        self._burst = bytes_per_second * _BURST_MS / 1000
        self._bytes = self._burst
        self._accrued_at = now

    def pause_ms(self, now: MonotonicMs, appended_bytes: int = 0) -> int:
        """Return for how long nothing may be sent; 0: a response may be.

        Args:
            appended_bytes: by how much the partition in question grew since this was asked last.
        """
        earned = self._rate * (now - self._accrued_at) / 1000
        self._accrued_at = now
        self._bytes = max(self._bytes, min(self._bytes + earned, self._burst)) + appended_bytes
        return 0 if self._bytes > 0 else int(-self._bytes * 1000 / self._rate) + 1

    def on_sent(self, size: int) -> None:
        """Count bytes that were sent."""
        self._bytes -= size
