"""Work that several callers want at the same time is done once, in a task for all of them.

A caller that is cancelled leaves the task to the others. A task that anything but the client has
cancelled is begun again by its callers.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from millrace.client._threads.tasks import cancellations, cancellations_so_far
from millrace.core.errors import ClosedError

Key = TypeVar("Key")
Result = TypeVar("Result")


class SharedTasks(Generic[Key, Result]):
    """Tasks by what they are for."""

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[Result]] = {}
        self._is_closed = False

    def __contains__(self, key: Key) -> bool:
        return key in self._tasks

    async def result(self, key: Key, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of the task for a key, which is begun unless it runs.

        Raises:
            ClosedError: the client was closed, which ends the task.
        """
        while True:
            if self._is_closed:
                raise ClosedError("the client is closed")
            task = self._tasks.get(key)
            if task is None or task.done():
                task = self._tasks[key] = asyncio.create_task(work())
                task.add_done_callback(partial(self._forget, key))
            begun = await cancellations_so_far()
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if not task.cancelled() or cancellations() > begun:
                    raise
                if self._is_closed:
                    raise ClosedError("the client was closed meanwhile") from None

    def _forget(self, key: Key, task: asyncio.Task[Result]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # Its waiters have it. If there are none, asyncio must not log it.

    def cancel(self) -> list[asyncio.Task[Result]]:
        """End all of them for good, and return them."""
        self._is_closed = True
        for task in self._tasks.values():
            task.cancel()
        return list(self._tasks.values())
