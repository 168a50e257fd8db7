"""The two clocks of a process, with the core's two types of time."""

from millrace.core.ids import MonotonicMs, WallMs
from millrace.runtime import host


def monotonic_now() -> MonotonicMs:
    """Milliseconds that never jump and go on while the machine sleeps."""
    return MonotonicMs(host.current.monotonic_ns() // 1_000_000)


def wall_now() -> WallMs:
    """Milliseconds UTC since 1970."""
    return WallMs(host.current.wall_ns() // 1_000_000)
