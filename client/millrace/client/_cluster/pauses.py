"""Pauses between attempts, different for each client."""

from millrace.runtime import host


def spread(*pauses_ms: int) -> tuple[int, ...]:
    """Return pauses up to a fifth shorter or longer, all by the same share.

    Clients that lost a broker together would otherwise return together, again and again.
    """
    share = host.current.dice().uniform(0.8, 1.2)
    return tuple(max(1, round(pause_ms * share)) for pause_ms in pauses_ms)
