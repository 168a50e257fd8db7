"""Pauses between attempts: no two clients keep the same time.

Those between attempts to connect to a broker get longer and longer, until there are news of it.

Source: KIP-580.
"""

import asyncio
import random
from contextlib import suppress

from millrace.core.ids import BrokerId


def spread(*pauses_ms: int) -> tuple[int, ...]:
    """Return pauses up to a fifth shorter or longer, all by the same share.

    Clients that lost a broker together would otherwise come back together, again and again.
    """
    share = random.uniform(0.8, 1.2)
    return tuple(max(1, round(each * share)) for each in pauses_ms)


class ConnectPauses:
    """See the module. Used on the client's loop.

    Args:
        first_ms: the pause after one failure; each further one doubles it.
        longest_ms: the longest pause.
    """

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._failures: dict[BrokerId, int] = {}
        self._waiting: dict[BrokerId, asyncio.Event] = {}

    async def wait(self, broker_id: BrokerId) -> None:
        """Return when the broker may be connected to; at once if the last attempt worked."""
        failures = self._failures.get(broker_id, 0)
        if not failures:
            return
        pause_ms = min(self._first_ms << min(failures - 1, 16), self._longest_ms)
        news = self._waiting.setdefault(broker_id, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await news.wait()
        self._waiting.pop(broker_id, None)

    def on_failed(self, broker_id: BrokerId) -> None:
        """An attempt failed, or a connection broke."""
        self._failures[broker_id] = self._failures.get(broker_id, 0) + 1

    def on_answered(self, broker_id: BrokerId) -> None:
        """It answers: what was before does not count any more."""
        self._failures.pop(broker_id, None)

    def on_news(self, broker_id: BrokerId) -> None:
        """It is known to be there, again or at another address: who waits need not."""
        self._failures.pop(broker_id, None)
        if broker_id in self._waiting:
            self._waiting[broker_id].set()
