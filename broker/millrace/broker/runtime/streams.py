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
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # Is taken now.
        # An exception knows this frame. If that knew its task in turn, both would wait for the
        # garbage collector (after `asyncio.gather` they do), and with them what the duty held: a
        # connection that broke would stay open.
        tasks.clear()
        del task
