"""The two clocks of a client, with the core's two types of time."""

from millrace.client import host
from millrace.core.ids import MonotonicMs, WallMs


def monotonic_ms() -> MonotonicMs:
    """Return the clock of lingering, time-outs and pauses."""
    return MonotonicMs(host.current.monotonic_ns() // 1_000_000)


def wall_ms() -> WallMs:
    """Return the clock of record timestamps."""
    return WallMs(host.current.wall_ns() // 1_000_000)
