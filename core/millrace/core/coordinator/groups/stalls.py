"""How long the sessions of members are prolonged because their broker stood still.

A broker that was paused, or whose loop was held up, finds heartbeats that wait to be handled, and
sessions that would end before that. So it prolongs all sessions by the time that it stood still,
however long that was. Kafka's brokers do not: there members join again after such a pause.

A broker may be held up again and again. If it prolonged sessions each time, a dead member would
keep its partitions for as long as that lasts. So what is granted over a longer time is at most half
of it: then a session takes about twice as long as it should, and ends (P61).

All times are by the clock of one broker.
"""

from typing import Final

from millrace.core.ids import MonotonicMs

LOOK_MS: Final = 250
"""Time between two looks at the clock, and at all sessions."""
_STALL_MS: Final = 1000
"""A look that is so late says that the broker stood still."""
_CREDIT_MS_MAX: Final = 10_000
"""What may be granted beyond half of the time, after a time without stalls."""


class Stalls:
    """The stalls of one broker, which looks at its clock again and again."""

    def __init__(self, now: MonotonicMs) -> None:
        self._looked_at = now
        self._credit = 2 * _CREDIT_MS_MAX  # In half milliseconds; one comes with each that passes.

    def look(self, now: MonotonicMs) -> int:
        """Return by how many milliseconds all sessions are prolonged now; 0 most times."""
        passed_ms = now - self._looked_at
        self._looked_at = now
        self._credit = min(self._credit + passed_ms, 2 * _CREDIT_MS_MAX)
        stalled_ms = passed_ms - LOOK_MS
        if stalled_ms <= _STALL_MS or self._credit <= 0:
            return 0
        self._credit -= 2 * stalled_ms
        return stalled_ms
