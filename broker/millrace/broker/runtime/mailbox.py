"""From threads to the event loop, many messages a wake-up.

`loop.call_soon_threadsafe` writes to a socket each time. Here a thread leaves its message in a
deque and wakes the loop only when nobody has done so since the loop last emptied it: a busy loop is
not woken at all, an idle one at once.
"""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

_TURN_SECONDS_MAX = 0.01
"""How long the loop may be kept from everything else by what threads have posted."""


class Mailbox:
    """Runs calls that threads post, on the loop and in the order in which they were posted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def post(self, call: Callable[..., None], *args: Any) -> None:
        """Have the loop call `call(*args)`; from any thread."""
        self._calls.append((call, args))
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # The loop is closed: nobody is left to be told.
                self._calls.clear()

    def _deliver(self) -> None:
        # First the flag, then the calls: a call posted in between wakes the loop once more.
        self._is_woken = False
        calls = self._calls
        until = time.monotonic() + _TURN_SECONDS_MAX
        try:
            while calls:
                call, args = calls.popleft()
                call(*args)
                if time.monotonic() > until:
                    break
        finally:
            if calls:  # Time is up, or one has raised: the others come in the loop's next turn.
                self._loop.call_soon(self._deliver)


class Worker:
    """One thread that runs jobs in the order of submission and posts their outcomes.

    Args:
        name: the thread's name.
        mailbox: where outcomes go.
    """

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._jobs: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Any] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        done: Callable[[Any, BaseException | None], None],
        job: Callable[..., Any],
        *args: Any,
    ) -> None:
        """Run `job(*args)` on the thread, then `done(result, error)` on the loop."""
        self._jobs.put((job, args, done))

    def call(self, job: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run `job(*args)` on the thread; from the loop."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(partial(settle, future), job, *args)
        return future

    def close(self) -> None:
        """Let the jobs that were submitted end, then end the thread; blocks for as long."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, args, done = entry
            try:
                result, error = job(*args), None
            except BaseException as raised:
                result, error = None, raised
            self._mailbox.post(done, result, error)
            entry = job = args = done = result = error = None  # type: ignore[assignment]


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Hand the outcome of a job to who waits for it, if anybody still does; on the loop."""
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
