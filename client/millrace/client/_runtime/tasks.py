"""Background tasks of a client; a failed task is reported to the loop."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """The running tasks of one client.

    Args:
        loop: on which they run.
        owner: name of the client, for people.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: str) -> None:
        self._loop = loop
        self._owner = owner
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._on_done)

    async def cancel(self) -> None:
        """End those that run now."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler(
                {"message": f"a task of the {self._owner} failed", "exception": task.exception()}
            )
