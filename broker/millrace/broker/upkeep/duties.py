"""The tasks that run for as long as the broker does, and what ends its process.

A duty that fails, or that is cancelled before the broker stops, ends the process, with a non-zero
code: a broker that goes on after a broken assertion, or without one of its duties, is worse than
one that is restarted. A signal ends it in good order.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from millrace.broker import events
from millrace.core.errors import BrokerShuttingDownError, MillraceError

_log = logging.getLogger(__name__)


class Duties:
    """Runs the tasks, and keeps the exit code. It belongs to the event loop.

    Attributes:
        is_over: set when the broker should stop, or must.
        exit_code: of the process; not 0 once something has failed.
    """

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.exit_code = 0
        self._failure: MillraceError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._are_ending = False

    def begin(self, duty: Coroutine[Any, Any, None]) -> None:
        """Run a duty until the broker stops; if it fails, the broker does."""
        task = asyncio.get_running_loop().create_task(duty)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if not self._are_ending:
                self.fail(RuntimeError(f"a duty was cancelled: {task.get_coro()}"))
        elif (error := task.exception()) is not None:
            self.fail(error)

    def stop_soon(self) -> None:
        """Have the broker stop gracefully."""
        self.is_over.set()

    def fail(self, error: BaseException) -> None:
        """Stop the broker because of an error; the first `MillraceError` is kept."""
        if isinstance(error, MillraceError):
            events.BROKER_FAILED.log(_log, error=error.message)
            self._failure = self._failure or error
        else:
            events.BROKER_FAILED.log(_log, error=repr(error), cause=error)
        self.exit_code = 1
        self.is_over.set()

    def on_unexpected(self, context: dict[str, Any]) -> None:
        """Stop the broker because of an unexpected error; for the event loop."""
        error = context.get("exception")
        events.UNEXPECTED_ERROR.log(_log, where=context["message"], cause=error)
        self.fail(error or RuntimeError(context["message"]))

    async def unless_over(self, waiting: Coroutine[Any, Any, Any]) -> Any:
        """Return the result, unless the broker has to stop before.

        Raises:
            MillraceError: why it stops.
        """
        task = asyncio.create_task(waiting)
        over = asyncio.create_task(self.is_over.wait())
        try:
            await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._failure or BrokerShuttingDownError("the broker was stopped")
            return task.result()
        finally:
            task.cancel()
            over.cancel()
            await asyncio.gather(task, over, return_exceptions=True)

    async def end(self) -> None:
        """End all duties."""
        self._are_ending = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
