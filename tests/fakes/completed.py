"""The appends that a machine's effects complete."""

from collections.abc import Iterable

from millrace.core.replica.replication.appends import Waiter
from millrace.core.replica.replication.effects import Complete, Effect


def completed(effects: Iterable[Effect]) -> list[Waiter]:
    """Return them in order."""
    return [
        waiter for effect in effects if isinstance(effect, Complete) for waiter in effect.waiters
    ]
