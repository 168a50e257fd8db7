"""Waits in asynchronous tests for what nobody signals to them."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Return once a condition holds.

    Raises:
        TimeoutError: it does not in time.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
