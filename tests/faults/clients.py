"""Clients of a cluster under faults, on an event loop and a thread of their own."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

STOP_SECONDS_MAX = 150.0


class Clients(threading.Thread):
    """The clients are tasks, from `begin` to `stop_clients`.

    Attributes:
        failure: an unexpected error of a client.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self.is_over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.new_event_loop()

    def call(self, work: Coroutine[Any, Any, Any], seconds: float = 120) -> Any:
        """Run a coroutine on the clients' loop."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(seconds)

    def begin_clients(self, work: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Start clients, one for each coroutine."""

        async def begin() -> None:
            self._tasks = [asyncio.create_task(client) for client in work]
            for task in self._tasks:
                task.add_done_callback(self._on_done)

        self.call(begin())

    def stop_clients(self) -> None:
        """Tell the clients that it is over, and wait until they have ended."""

        async def stop() -> None:
            self.is_over.set()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self.call(stop(), STOP_SECONDS_MAX)

    def stop(self) -> None:
        """Stop clients and loop, if they run."""
        if self.is_alive():
            with suppress(TimeoutError):
                self.stop_clients()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self.join()

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()
