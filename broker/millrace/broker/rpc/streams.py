"""What streams of both kinds are made of: several duties at a time, which end together."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_until_first(*duties: Coroutine[Any, Any, object]) -> None:
    """Run duties until one of them ends, then end the others; raise what that one raised.

    Nothing is left behind, however this ends: a task that is lost while it waits, or whose
    exception nobody takes, would be reported to the loop as a fault of the broker.
    """
    tasks = [asyncio.create_task(duty) for duty in duties]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
