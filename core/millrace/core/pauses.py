"""How long to wait before what was in vain is asked again: a part of how long it was in vain.

So nobody notices much later than he could that it works again, and nobody is asked for days as
often as in an election.
"""


def pause_after(in_vain_ms: int, shortest_ms: int, longest_ms: int, *, fraction: int) -> int:
    """Return for how many ms to wait.

    Args:
        in_vain_ms: for how long nothing has helped.
        shortest_ms: the pause as long as that is short.
        longest_ms: no pause is longer.
        fraction: into how many parts of that size the time before divides: what works again is
            noticed so much later.
    """
    return min(max(in_vain_ms // fraction, shortest_ms), longest_ms)
