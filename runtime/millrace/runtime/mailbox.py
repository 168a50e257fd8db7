"""From threads to the event loop, many messages a wake-up.

`loop.call_soon_threadsafe` writes to a socket each time. Here a thread leaves its message in a
deque and wakes the loop only if no thread has done so since the loop last emptied it: a busy loop
is not woken at all, an idle one at once.
"""

import asyncio
import queue
from collections import deque
from collections.abc import Callable, Generator, Hashable
from functools import partial
from types import GeneratorType
from typing import Any, TypeVar

from millrace.runtime import host

_T = TypeVar("_T")

_TURN_SECONDS_MAX = 0.01
"""How long posted calls may keep the loop from other work."""


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
            except RuntimeError:  # The loop is closed.
                self._calls.clear()

    def _deliver(self) -> None:
        # First the flag, then the calls: a call posted in between wakes the loop once more.
        self._is_woken = False
        calls = self._calls
        # A single one, as usual, needs no clock; what comes meanwhile has the next turn.
        until = host.monotonic_s() + _TURN_SECONDS_MAX if len(calls) > 1 else 0.0
        try:
            while calls:
                call, args = calls.popleft()
                call(*args)
                if calls and host.monotonic_s() > until:
                    break
        finally:
            if calls:  # Time is up, or one has raised: the others come in the loop's next turn.
                self._loop.call_soon(self._deliver)


class Worker:
    """One thread that runs jobs and posts their outcomes.

    Owners take turns, a job each: nobody waits for all that another one has submitted. The jobs of
    one owner run in the order of submission. A job that may be long is a generator: each `yield`
    ends its owner's turn.

    Args:
        name: the thread's name.
        mailbox: where outcomes go.
    """

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._jobs: host.Queue = host.current.new_queue()
        self._thread = host.current.start_thread(name, self._run)

    def submit(
        self,
        done: Callable[[Any, BaseException | None], None],
        job: Callable[..., Any],
        *args: Any,
        owner: Hashable = None,
    ) -> None:
        """Run `job(*args)` on the thread, then `done(result, error)` on the loop."""
        self._jobs.put((owner, (job, args, done)))

    def call(
        self, job: Callable[..., Any], *args: Any, owner: Hashable = None
    ) -> asyncio.Future[Any]:
        """Run `job(*args)` on the thread; from the loop."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit(partial(settle, future), job, *args, owner=owner)
        return future

    def close(self) -> None:
        """Let the submitted jobs end, then end the thread; blocks meanwhile."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        waiting: dict[Hashable, deque[Any]] = {}  # By owner; whose turn is next is first.
        while True:
            try:
                entry = self._jobs.get(block=not waiting)
            except queue.Empty:
                self._run_next(waiting)
                continue
            if entry is None:
                break
            owner, job = entry
            waiting.setdefault(owner, deque()).append(job)
            entry = job = None
        while waiting:
            self._run_next(waiting)

    def _run_next(self, waiting: dict[Hashable, deque[Any]]) -> None:
        owner = next(iter(waiting))
        jobs = waiting.pop(owner)
        job, args, done = jobs[0]
        try:
            result, error = _turn_of(job, args), None
        except BaseException as raised:
            result, error = None, raised
        if isinstance(result, GeneratorType):
            jobs[0] = result, (), done
        else:
            jobs.popleft()
            self._mailbox.post(done, result, error)
        if jobs:
            waiting[owner] = jobs
        job = args = done = result = error = None  # The error refers to this frame.


def _turn_of(job: Any, args: tuple[Any, ...]) -> Any:
    """Return what a job returns, or the generator that goes on with it."""
    running = job if isinstance(job, GeneratorType) else job(*args)
    if not isinstance(running, GeneratorType):
        return running
    try:
        next(running)
    except StopIteration as end:
        return end.value
    return running


def at_once(job: Generator[None, None, _T]) -> _T:
    """Return what a job returns whose turns are all here and now."""
    while True:
        try:
            next(job)
        except StopIteration as end:
            result: _T = end.value
            return result


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Complete the future that waits for a job, unless it was cancelled; on the loop."""
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
