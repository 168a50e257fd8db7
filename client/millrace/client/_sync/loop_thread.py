"""One event loop on a thread serves all synchronous clients of a process.

It starts with the first client, and is never closed, as grpc.aio keeps calling into every loop that
it has once seen. `SyncProducer.send()` does not enter the loop at all; everything else costs one
hop per call.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from queue import Empty
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from millrace.client._threads import fork, logs
from millrace.client._threads.tasks import CANCELLED_BY_OTHERS
from millrace.core.errors import Appended, ClientError, ClosedError
from millrace.runtime import host

Result = TypeVar("Result")
Argument = TypeVar("Argument")

_CLOSING_S: Final = 2.0
"""How much longer `close()` of a client waits than the coroutine that it runs may take."""


class LoopThread:
    """The loop, and how other threads call into it."""

    _lock = threading.Lock()
    _shared: "LoopThread | None" = None

    def __init__(self) -> None:
        self._process = _process()
        self.loop = host.current.start_loop("millrace-client")
        logs.divert(self.loop)
        self._calling: WeakKeyDictionary[asyncio.Task[Any] | None, host.Queue] = WeakKeyDictionary()
        """Where the thread waits that called each task."""

    @classmethod
    def shared(cls) -> "LoopThread":
        """Return the process's loop thread."""
        with cls._lock:
            if cls._shared is None or cls._shared._process != _process():
                cls._shared = LoopThread()
            return cls._shared

    @classmethod
    def on_forked(cls) -> None:
        """Let the child make its own: a thread that the child lacks may hold the lock."""
        cls._lock = threading.Lock()

    def call(self, work: Coroutine[Any, Any, Result], limit_s: float | None = None) -> Result:
        """Run a coroutine on the loop and wait for its result.

        If the wait ends before that, by Ctrl-C or an exception of a signal handler, it is
        cancelled.

        Args:
            work: the coroutine.
            limit_s: how many seconds to wait; None: without a limit.

        Raises:
            TimeoutError: the time is over.
            ClosedError: the process was forked after the client was made.
            RuntimeError: this is the loop's thread, as in a delivery callback: the wait would last
                for ever.
        """
        try:
            self.check_caller()
        except BaseException:
            work.close()
            raise
        logs.remember_levels()
        # Not a future: Ctrl-C in the middle of its wait can leave its lock taken, and the loop
        # thread would block on it for ever.
        finished = host.current.new_queue()
        tasks: list[asyncio.Task[Result]] = []

        def start() -> None:
            task = self.loop.create_task(work)
            tasks.append(task)
            self._calling[task] = finished
            task.add_done_callback(finished.put)

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        deadline = None if limit_s is None else host.monotonic_s() + limit_s

        def get() -> Any:
            if deadline is None:
                return finished.get()
            try:
                return finished.get(timeout=max(0.0, deadline - host.monotonic_s()))
            except Empty:
                raise TimeoutError from None

        try:
            self.loop.call_soon_threadsafe(start)
            while not isinstance(news := get(), asyncio.Task):
                news()
        except BaseException:
            self.loop.call_soon_threadsafe(cancel)
            raise
        task: asyncio.Task[Result] = news
        if task.cancelled():
            raise ClientError(f"the call {CANCELLED_BY_OTHERS}: call again")
        return task.result()

    def check_caller(self) -> None:
        """Raise the `ClosedError` or `RuntimeError` of `call` where this thread must not wait."""
        if self._process != _process():
            raise ClosedError(fork.FORKED)
        if self._is_running():
            raise RuntimeError(
                "a synchronous client cannot be called where it delivers news, as in a callback: "
                "call it in another thread"
            )

    def run(self, function: Callable[[], Result]) -> Result:
        """Call a function on the loop, and return what it returns; raises as `call`."""

        async def work() -> Result:
            return function()

        return self.call(work())

    def close(
        self, work: Coroutine[Any, Any, None], timeout_ms: int, what_is_left: Callable[[], str]
    ) -> None:
        """Run the coroutine that closes a client, which keeps its own time limit.

        Raises:
            ClosedError: it did not: something blocks the clients' thread.
        """
        try:
            self.call(work, timeout_ms / 1000 + _CLOSING_S)
        except TimeoutError:
            raise ClosedError(
                f"close() has not ended in close_timeout_ms={timeout_ms}, as something blocks the "
                f"clients' thread, such as a callback{what_is_left()}",
                appended=Appended.MAYBE,
            ) from None

    def in_caller(self, callback: Callable[[Argument], object]) -> "Callable[[Argument], Any]":
        """Return a callback for the loop that runs in the thread which waits in `call`.

        So it may call the synchronous client itself.
        """

        async def run(argument: Argument) -> None:
            calling = self._calling.get(asyncio.current_task())
            assert calling is not None, "called by what a thread waits for"
            done = self.loop.create_future()

            def call() -> None:
                try:
                    callback(argument)
                except Exception as error:
                    # Not of Ctrl-C or `sys.exit`: these end `call`, which cancels the task.
                    self.loop.call_soon_threadsafe(_settle, done, error)
                else:
                    self.loop.call_soon_threadsafe(_settle, done, None)

            calling.put(call)
            await done

        return run

    def _is_running(self) -> bool:
        """Return whether this is the loop's thread."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False


def _process() -> tuple[host.Host, int]:
    return host.current, os.getpid()


os.register_at_fork(after_in_child=LoopThread.on_forked)


def _settle(done: "asyncio.Future[None]", error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
