"""The two clocks of a client, as the two types that the core tells apart."""

import time

from millrace.core.ids import MonotonicMs, WallMs


def monotonic_ms() -> MonotonicMs:
    """Return the clock of lingering, time-outs and pauses."""
    return MonotonicMs(time.monotonic_ns() // 1_000_000)


def wall_ms() -> WallMs:
    """Return the clock of record timestamps."""
    return WallMs(time.time_ns() // 1_000_000)
