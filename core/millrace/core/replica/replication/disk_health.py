"""Whether a broker should be reluctant to lead, judged by its disks (F22, F33).

A broker with a slow or full disk lives, sends heartbeats, and leads. But its producers wait for
every flush, or are refused, while other in-sync replicas could serve them. So the broker reports
that it is reluctant, and why, and the controller lets others lead what they can
(`BrokerRegistration.reluctance`). If no other can lead, or all are as badly off, it goes on
leading.

- *Slow*: three of the last ten awaited flushes were slow, all within a minute. A flush or write
  that hangs counts again with each reading. A process that stood still, or a clock that jumped,
  makes one flush look slow: that is not enough.
- *Full*: a write was refused because the disk had no space.

The reluctance ends when no reading was bad for a while, and there is space. A broker that leads
nothing may write too little to see a problem. So the pause doubles with each relapse, from 10 s up
to 10 minutes, until the disk has been well for 10 minutes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from millrace.core.ids import MonotonicMs
from millrace.core.metadata.model import Reluctance

FLUSHES_JUDGED: Final = 10
_SLOW_FLUSHES: Final = 3
_FLUSHES_JUDGED_MS: Final = 60_000
_PAUSE_MS: Final = 10_000
_PAUSE_MS_MAX: Final = 600_000


@dataclass(slots=True, kw_only=True)
class DiskReading:
    """Observations of a disk since the last reading.

    Attributes:
        flushes_ms: durations of the flushes that have ended.
        under_way_ms: for how long a write or flush has not ended.
        was_full: whether a write was refused because the disk had no space.
    """

    flushes_ms: Sequence[int] = ()
    under_way_ms: int = 0
    was_full: bool = False


class DiskHealth:
    """Judges one log directory.

    Args:
        slow_flush_ms: a flush of this duration is slow; -1: no flush is.

    Attributes:
        reluctance: why the broker should be reluctant to lead.
    """

    def __init__(self, slow_flush_ms: int) -> None:
        self.reluctance = Reluctance.NONE
        self._slow_flush_ms = slow_flush_ms
        self._flushes: deque[tuple[MonotonicMs, bool]] = deque(maxlen=FLUSHES_JUDGED)
        self._troubled_at: MonotonicMs | None = None
        self._pause_ms = _PAUSE_MS

    def on_reading(
        self, reading: DiskReading, now: MonotonicMs, *, has_room: bool = True
    ) -> Reluctance:
        """Take a reading, about one a second; return the reluctance from then on.

        Args:
            has_room: whether a disk that was full has space again.
        """
        reluctance = self._trouble(reading, now, has_room=has_room)
        if reluctance:
            if not self.reluctance:
                self._pause_ms = self._next_pause_ms(now)
            self.reluctance = reluctance
            self._troubled_at = now
        elif self._troubled_at is not None and now - self._troubled_at >= self._pause_ms:
            self.reluctance = Reluctance.NONE
        return self.reluctance

    def _trouble(self, reading: DiskReading, now: MonotonicMs, *, has_room: bool) -> Reluctance:
        seen = [self._is_slow(flush_ms) for flush_ms in reading.flushes_ms]
        if self._is_slow(reading.under_way_ms):
            seen.append(True)
        self._flushes.extend((now, is_slow) for is_slow in seen)
        if reading.was_full or (self.reluctance is Reluctance.FULL_DISK and not has_room):
            return Reluctance.FULL_DISK
        slow = sum(
            is_slow and now - seen_at <= _FLUSHES_JUDGED_MS for seen_at, is_slow in self._flushes
        )
        # A disk that is slow now and then has not recovered, but does not begin a reluctance.
        is_slow_still = self.reluctance is Reluctance.SLOW_DISK and any(seen)
        if (any(seen) and slow >= _SLOW_FLUSHES) or is_slow_still:
            return Reluctance.SLOW_DISK
        return Reluctance.NONE

    def _is_slow(self, flush_ms: int) -> bool:
        return 0 <= self._slow_flush_ms <= flush_ms

    def _next_pause_ms(self, now: MonotonicMs) -> int:
        if self._troubled_at is None:
            return _PAUSE_MS
        well_ms = now - self._troubled_at - self._pause_ms
        return _PAUSE_MS if well_ms >= _PAUSE_MS_MAX else min(2 * self._pause_ms, _PAUSE_MS_MAX)
