"""How long to wait before what was in vain is asked again: a tenth of how long it was in vain.

So nobody notices much later than he could that it works again, and nobody is asked for days as
often as in an election.
"""


def pause_after(in_vain_ms: int, shortest_ms: int, longest_ms: int) -> int:
    """Return for how many ms to wait.

    Args:
        in_vain_ms: for how long nothing has helped.
        shortest_ms: the pause as long as that is short.
        longest_ms: no pause is longer.
    """
    return min(max(in_vain_ms // 10, shortest_ms), longest_ms)
