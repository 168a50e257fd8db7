"""Concurrent duties of a stream, which end together."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_until_first(*duties: Coroutine[Any, Any, object]) -> None:
    """Run duties until one of them ends, then end the others; raise what that one raised.

    No task is left behind: one that is lost while it waits, or whose exception is not taken, would
    be reported to the loop as a bug of the broker.
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
        # An exception refers to this frame. If the frame referred to its task, both would wait for
        # the garbage collector (after `asyncio.gather` they do), and so would the duty's objects: a
        # broken connection would stay open.
        tasks.clear()
        del task
