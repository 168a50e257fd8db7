"""Background tasks of a client. Only the client ends them.

A program may cancel every task of its loop, as `asyncio.run` does at its end. A client still has
work to do then: the program closes it in a `finally`, and `close()` delivers the sent records. So
`Tasks` starts a background task again, after a pause, when anything but the client has cancelled
it. If no client is in use, `asyncio.run` closes its loop before the pause is over, and no task is
left.

The tasks of one stream, or of one call, are not started again. The stream counts as broken, or the
call fails. The client then acts as after any other failure of a stream or a call.

A `CancelledError` does not say which task was cancelled. gRPC has tasks of its own. When one of
those is cancelled, or a connection is closed, gRPC raises a `CancelledError` in the task that waits
for it. `cancellations` tells the two cases apart.

One of gRPC's tasks waits for the end of a stream. When that task was cancelled, a read from the
stream never returns, not even when the connection breaks. So this task counts as one of the
stream's own.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from millrace.core.errors import ClientError
from millrace.runtime import host

CANCELLED_BY_OTHERS: Final = "was cancelled, and not by the client"
"""What has happened, for the messages of errors."""
_PAUSE_S: Final = 0.02
_LET_GO_SHARE: Final = 0.2
"""The share of `close_timeout_ms` in which the parts of a client end, after its last work."""
_LET_GO_S_MAX: Final = 1.0
_PART_S_MIN: Final = 0.01
"""What each part has at least. A part that is cancelled before its first step closes nothing."""
_WAITS_FOR_END: Final = "_AioCall._handle_status_once_received"
"""Name of the coroutine by which gRPC waits for the end of a stream; a test fails if it changes."""
_seen: Final[WeakSet[asyncio.Task[Any]]] = WeakSet()
"""Tasks of gRPC that are watched already."""


def cancellations() -> int:
    """Return how often the current task was cancelled so far.

        begun = await cancellations_so_far()
        try:
            await call
        except asyncio.CancelledError:
            if cancellations() > begun:
                raise  # This task was cancelled, and not only the call.

    More than 0 at first is usual: the `finally` of a cancelled task awaits something.
    """
    task = asyncio.current_task()
    assert task is not None, "runs in a task"
    return task.cancelling()


async def cancellations_so_far() -> int:
    """Return how often the current task was cancelled and has seen it.

    A cancellation waits for the task's next pause: Ctrl-C under `asyncio.run` may come while the
    program computes. One that waits is raised here, and so never taken for one of a call.
    """
    begun = cancellations()
    if begun:
        await asyncio.sleep(0)
    return begun


@asynccontextmanager
async def parts_of_a_call() -> AsyncIterator[None]:
    """Wait for the tasks of one call in here, as `asyncio.gather` does.

    Raises:
        ClientError: one of them was cancelled, and not the task that waits.
    """
    begun = await cancellations_so_far()
    try:
        yield
    except asyncio.CancelledError:
        if cancellations() > begun:
            raise
        raise ClientError(f"a part of the call {CANCELLED_BY_OTHERS}: call again") from None


def last_work_s(limit_s: float) -> float:
    """Return for how long a client that closes in `limit_s` may work; `let_go` has the rest."""
    return limit_s - min(_LET_GO_SHARE * limit_s, _LET_GO_S_MAX)


async def let_go(ends_at: float, *parts: Callable[[], Awaitable[None]]) -> None:
    """End the parts of a client that is closed, one after the other.

    A part may use its share of the time. Then the next part is ended, whether it is done or not.

    Args:
        ends_at: when `close_timeout_ms` is over; that may be past, as after a long callback.
        parts: what ends each.
    """
    for left, part in zip(range(len(parts), 0, -1), parts, strict=True):
        with suppress(TimeoutError):
            async with asyncio.timeout(max((ends_at - host.monotonic_s()) / left, _PART_S_MIN)):
                await part()


class Tasks:
    """The background tasks of one owner, which are started again when others cancel them.

    Args:
        loop: on which they run.
        owner: name of the client, for people.
        on_failure: called with an unexpected error of a task; None: the loop is told.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: str,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._loop = loop
        self._owner = owner
        self._on_failure = on_failure
        self._running: dict[asyncio.Task[None], Callable[[], Coroutine[Any, Any, None]]] = {}
        self._has_ended = False

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Run a coroutine function in the background; nothing happens after `cancel`.

        Args:
            work: may be called again, after somebody cancelled it anywhere in its middle.
            arguments: of each call.
        """
        if self._has_ended:
            return
        begin = partial(work, *arguments)
        task = self._loop.create_task(begin())
        self._running[task] = begin
        task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """End all of them, for good."""
        self._has_ended = True
        for task in self._running:
            task.cancel()

    async def end(self) -> None:
        """End all of them, and wait until they have ended."""
        self.cancel()
        if self._running:  # Not `gather`: it does not heed a time-out while one of them goes on.
            await asyncio.wait(self._running)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        begin = self._running.pop(task)
        if task.cancelled():
            if not self._has_ended:
                self._loop.call_later(_PAUSE_S, self.spawn, begin)
        elif (error := task.exception()) is not None:
            if self._on_failure is not None:
                self._on_failure(error)
            else:
                _tell(self._loop, self._owner, error)


class StreamTasks:
    """The tasks of one stream, which begin and end together: it breaks when others cancel one.

    Args:
        owner: name of the stream, for people.
        duties: what they run.
        on_cancelled: called when one was cancelled otherwise than by `cancel`.
        on_failed: called when one failed unexpectedly; the loop has been told.
    """

    def __init__(
        self,
        owner: str,
        *duties: Coroutine[Any, Any, None],
        on_cancelled: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._owner = owner
        self._on_cancelled = on_cancelled
        self._on_failed = on_failed
        self._is_cancelled = False
        self._tasks = [asyncio.create_task(duty) for duty in duties]
        for task in self._tasks:
            task.add_done_callback(self._on_done)
        # gRPC begins its own in this turn, before these, and before those of later streams.
        asyncio.get_running_loop().call_soon(self._watch_grpc)

    def _watch_grpc(self) -> None:
        for task in asyncio.all_tasks():
            is_it = getattr(task.get_coro(), "__qualname__", "") == _WAITS_FOR_END
            if is_it and task not in _seen:
                _seen.add(task)
                task.add_done_callback(self._on_grpc_done)

    def _on_grpc_done(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() and not self._is_cancelled:
            self._on_cancelled()

    def cancel(self) -> None:
        """End all of them."""
        self._is_cancelled = True
        for task in self._tasks:
            task.cancel()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all have ended, or the time is over."""
        await asyncio.wait(self._tasks, timeout=timeout_s)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if not self._is_cancelled:
                self._on_cancelled()
        elif (error := task.exception()) is not None:
            _tell(task.get_loop(), self._owner, error)
            if not self._is_cancelled:
                self._on_failed(error)


def _tell(loop: asyncio.AbstractEventLoop, owner: str, error: BaseException) -> None:
    loop.call_exception_handler({"message": f"a task of the {owner} failed", "exception": error})
