"""An asyncio event loop in virtual time, for one simulated process.

Coroutines, tasks, futures and time-outs are asyncio's own. Turns of the loop, timers and results of
threads are events of the world. The seed decides when a turn runs; within a turn everything runs in
the order that asyncio promises.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

import greenlet
from tests.sim.world import World

TURN_US_MAX = 30
"""The longest that a loop with work may take to begin its turn."""
PAUSE_SHARE = 0.15
"""The share of rounds after which a loop yields, so that threads and other loops run in between."""


_Loop: Any = asyncio.AbstractEventLoop
"""Most of its methods are not needed here."""


class SimulatedLoop(_Loop):  # type: ignore[misc]
    """The loop of one process.

    Args:
        monotonic_us: the clock of the process.
        after: runs an action after a delay in microseconds, by that clock.
        enter: runs a function in the process, with this loop as the running one.
        submit: runs a job on a thread of an executor.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        monotonic_us: Callable[[], int],
        after: Callable[[int, Callable[[], object]], object],
        enter: Callable[[Callable[[], object]], object],
        submit: Callable[[Any, Callable[[], None]], None],
    ) -> None:
        self._world = world
        self._label = f"{name} turn"
        self._dice = world.random(f"turns {name}")
        self._monotonic_us = monotonic_us
        self._after = after
        self._enter = enter
        self._submit = submit
        self._ready: deque[asyncio.Handle] = deque()
        self._has_turn = False
        self._on_error: Callable[[Any, dict[str, Any]], object] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_dead = False
        # Turns run in a greenlet, so that the process can die in the middle of one.
        self._greenlet = greenlet.greenlet(self._run_turns)

    # --- Turns -------------------------------------------------------------------------------

    def _want_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            delay = 1 + int(self._dice.random() * (TURN_US_MAX - 1))  # As `randrange`, quicker.
            self._world.after(delay, self._label, self._turn)

    def _turn(self) -> None:
        if not self.is_dead:
            self._enter(self._greenlet.switch)

    def _run_turns(self) -> None:
        ready, draw = self._ready, self._dice.random
        while True:
            self._has_turn = True  # Callbacks that become ready until then need no other turn.
            is_pausing = False
            while ready and not is_pausing:
                for _ in range(len(ready)):
                    handle = ready.popleft()
                    if not handle.cancelled():
                        handle._run()
                is_pausing = draw() < PAUSE_SHARE
            self._has_turn = False
            if ready:
                self._want_turn()
            self._greenlet.parent.switch()

    # --- What asyncio asks of a loop ---------------------------------------------------------

    def time(self) -> float:
        return self._monotonic_us() / 1e6

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._want_turn()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        delay = max(0, int((when - self.time()) * 1e6)) + int(self._dice.random() * TURN_US_MAX)
        self._after(delay, partial(self._on_due, handle))
        return handle

    def _on_due(self, handle: asyncio.TimerHandle) -> None:
        """Take a turn at once: the delay of a turn was drawn when the timer was set."""
        if not handle.cancelled() and not self.is_dead:
            self._ready.append(handle)
            if not self._has_turn:
                self._has_turn = True
                self._turn()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def bury(self) -> None:
        """Drop all tasks: the process is dead, and their futures will never complete."""
        self.is_dead = True
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        future = self.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def job() -> None:
            try:
                result, error = func(*args), None
            except Exception as raised:
                result, error = None, raised
            self.call_soon_threadsafe(settle, result, error)

        self._submit(executor, job)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def set_exception_handler(self, handler: Any) -> None:
        self._on_error = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._on_error is None:
            raise context.get("exception") or RuntimeError(context["message"])
        self._on_error(self, context)
