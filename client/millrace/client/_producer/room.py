"""The memory for records: who waits for some of it, and whether more are taken at all.

Threads wait in queues, tasks for futures. A queue is in C: Ctrl-C in the middle of a wait leaves no
lock taken.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty
from typing import Final

from millrace.client._producer.settings import ProducerConfig
from millrace.client._threads.token_lock import TokenLock
from millrace.core.client.producer.intake import Intake, Intakes
from millrace.core.errors import BufferExhaustedError, MillraceError
from millrace.core.ids import MonotonicMs
from millrace.runtime import host

FOREVER: Final = MonotonicMs(2**62)


@dataclass(eq=False)
class Room:
    """The room in `buffer_memory`."""

    intakes: Intakes
    lock: TokenLock
    config: ProducerConfig
    loop: asyncio.AbstractEventLoop
    wake: Callable[[], None]
    loop_thread: int = 0
    refusal: MillraceError | None = None
    """Why no more records are taken; None while they are."""
    is_short: bool = False
    """A caller found no room since memory was last given back."""
    _tasks_waiting: list[asyncio.Future[None]] = field(default_factory=list)
    _threads_waiting: dict[host.Queue, None] = field(default_factory=dict)

    # Called from any thread.

    def is_on_loop(self) -> bool:
        """Return whether this thread runs the producer's loop, and must not be blocked."""
        return threading.get_ident() == self.loop_thread

    def expect(self) -> host.Queue | None:
        """Return the queue for `wait`; None: this thread must not wait. The lock is held."""
        self._run_short()
        if self.is_on_loop():
            return None
        waiting = host.current.new_queue()
        self._threads_waiting[waiting] = None
        return waiting

    def wait(self, waiting: host.Queue | None, deadline: float) -> None:
        """Block this thread until memory was given back; the lock is not held.

        Raises:
            BufferExhaustedError: it is the loop's thread, or the deadline passed.
        """
        self.wake()
        if waiting is None:
            remedy = "on the event loop send() never waits: `await producer.wait_for_room()`"
        else:
            try:
                waiting.get(timeout=max(0.0, deadline - host.monotonic_s()))
            except Empty:
                remedy = f"it stayed full for max_block_ms={self.config.max_block_ms}"
            else:
                return
            finally:
                self._threads_waiting.pop(waiting, None)
        raise BufferExhaustedError(
            f"buffer_memory={self.config.buffer_memory} is used up by records that are not "
            f"acknowledged yet; {remedy}, or raise buffer_memory"
        )

    def _run_short(self) -> None:
        self.is_short = True
        self.intakes.close_opened_until(FOREVER)  # Open intakes must leave first.

    # Called on the loop.

    async def until(self, size: int) -> None:
        """Wait until `size` bytes of memory are free.

        Raises:
            MillraceError: no more records are taken.
        """
        while True:
            with self.lock:
                if self.refusal is not None:
                    raise self.refusal.again(self.refusal.appended)
                if self.intakes.available >= min(size, self.config.buffer_memory):
                    return
                self._run_short()
            future: asyncio.Future[None] = self.loop.create_future()
            self._tasks_waiting.append(future)
            self.wake()
            try:
                await future
            finally:
                with suppress(ValueError):  # It is still there if this task was cancelled.
                    self._tasks_waiting.remove(future)

    def release(self, intake: Intake) -> None:
        """Give the memory of an intake back."""
        with self.lock:
            self.intakes.release(intake)
            self.is_short = False
            if self._threads_waiting:
                self._wake_threads()
        if self._tasks_waiting:
            self._wake_tasks()

    def admit(self) -> None:
        """Take records again."""
        with self.lock:
            self.refusal = None

    def refuse(self, why: MillraceError) -> None:
        """Take no more records, and wake who waits for room."""
        with self.lock:
            self.refusal = why
            self.intakes.plain.clear()
            self._wake_threads()
        self._wake_tasks()

    def _wake_threads(self) -> None:
        """Let threads try again; the lock is held."""
        for waiting in list(self._threads_waiting):  # Some may give up meanwhile.
            waiting.put(None)
        self._threads_waiting.clear()

    def _wake_tasks(self) -> None:
        for future in self._tasks_waiting:
            if not future.done():
                future.set_result(None)
        self._tasks_waiting.clear()
