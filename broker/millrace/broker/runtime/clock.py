"""The two clocks of a broker, as the two types that the core tells apart."""

import time

from millrace.core.ids import MonotonicMs, WallMs


def monotonic_now() -> MonotonicMs:
    """Milliseconds that never jump and go on while the machine sleeps."""
    return MonotonicMs(time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


def wall_now() -> WallMs:
    """Milliseconds UTC since 1970."""
    return WallMs(time.time_ns() // 1_000_000)
