"""The two clocks of a broker, with the core's two types of time."""

from millrace.client import host
from millrace.core.ids import MonotonicMs, WallMs


def monotonic_now() -> MonotonicMs:
    """Milliseconds that never jump and go on while the machine sleeps."""
    return MonotonicMs(host.current.monotonic_ns() // 1_000_000)


def wall_now() -> WallMs:
    """Milliseconds UTC since 1970."""
    return WallMs(host.current.wall_ns() // 1_000_000)
