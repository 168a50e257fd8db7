"""Retry backoff, of two kinds: it doubles with each failure, or is a fraction of the time failing.

With a fraction, the delay until a client notices a recovery is proportional to the outage, and a
long outage does not cause as many retries as an election.
"""

from typing import Final

_DOUBLINGS_MAX: Final = 16


def pause_after(failing_ms: int, shortest_ms: int, longest_ms: int, *, fraction: int) -> int:
    """Return the pause before the next retry, in ms.

    Args:
        failing_ms: time since the first failure.
        shortest_ms: lower bound of the pause.
        longest_ms: upper bound of the pause.
        fraction: the pause is `failing_ms / fraction` between the bounds.
    """
    return min(max(failing_ms // fraction, shortest_ms), longest_ms)


def doubled_pause(failures: int, shortest_ms: int, longest_ms: int) -> int:
    """Return the pause after so many failures in a row, in ms: the first is the shortest (KIP-580).

    Args:
        failures: 1 or more.
        shortest_ms: the pause after the first failure; each further failure doubles it.
        longest_ms: upper bound of the pause.
    """
    return min(shortest_ms << min(failures - 1, _DOUBLINGS_MAX), longest_ms)
