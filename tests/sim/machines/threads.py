"""Threads of simulated processes: greenlets, which wait in virtual time.

A thread yields only where it would block: at an empty queue, a held lock, an event, or a call to
the disk. The seed decides which thread continues, and when. So synchronous code runs here
unchanged, in any order that real threads could have, and each order can be repeated.
"""

import queue
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import greenlet
from tests.sim.world import World

SWITCH_US_MAX = 50
"""How long a thread that could go on may have to wait for the processor."""


class SimulatedThread:
    """One thread of a process.

    Args:
        enter: runs a function in the process, unless that is dead; waits while it is paused.
        after: runs an action after a delay in microseconds, by the clock of the machine.
    """

    current: "SimulatedThread | None" = None
    """The running thread; None: an event loop runs."""

    def __init__(
        self,
        world: World,
        name: str,
        run: Callable[[], None],
        enter: Callable[[Callable[[], object]], object],
        after: Callable[[int, Callable[[], object]], object],
    ) -> None:
        self.name = name
        self._world = world
        self._enter = enter
        self._after = after
        self._dice = world.random(f"thread {name}")
        self._label = f"{name} goes on"
        self._greenlet = greenlet.greenlet(run)
        self._waits = 0  # The number of the present wait.
        self.wake_after(0, self._waits)

    @property
    def is_over(self) -> bool:
        return bool(self._greenlet.dead)

    def wake_after(self, delay_us: int, wait: int) -> None:
        """Wake it after a delay, if it is still in that wait."""
        delay_us += 1 + int(self._dice.random() * (SWITCH_US_MAX - 1))  # `randrange` is slow.
        self._world.after(delay_us, self._label, self._go_on, wait)

    def wake_in(self, seconds: float, wait: int) -> None:
        """As `wake_after`, by the clock of its machine."""
        self._after(int(seconds * 1e6), partial(self._go_on, wait))

    def _go_on(self, wait: int) -> None:
        if wait == self._waits:
            self._enter(partial(self._resume_if, wait))

    def _resume_if(self, wait: int) -> None:
        if wait == self._waits and not self.is_over:
            self.resume()

    def resume(self) -> None:
        """Run it until it waits, or ends."""
        before, SimulatedThread.current = SimulatedThread.current, self
        assert before is None, "an event loop alone lets threads run"
        self._waits += 1
        self._greenlet.parent = greenlet.getcurrent()
        try:
            self._greenlet.switch()
        finally:
            SimulatedThread.current = before

    def begin_wait(self) -> int:
        """Return the number of the next wait, for `wake_after`."""
        return self._waits

    def wait(self) -> None:
        """Yield until another thread wakes it."""
        self._greenlet.parent.switch()

    def sleep(self, delay_us: int) -> None:
        """Yield for some time."""
        self.wake_after(delay_us, self.begin_wait())
        self.wait()

    def join(self) -> None:
        """Wait for its end; an event loop blocks meanwhile, and lets it run."""
        waiting = SimulatedThread.current
        while not self.is_over:
            if waiting is None:
                self.resume()
            else:
                waiting.sleep(SWITCH_US_MAX)


def never_return() -> NoReturn:
    """Abandon the running thread or event loop for ever: its process died at this point."""
    SimulatedThread.current = None
    outermost = greenlet.getcurrent()
    while outermost.parent is not None:
        outermost = outermost.parent
    outermost.switch()
    raise AssertionError("the dead went on")


class SimulatedQueue:
    """As `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: deque[tuple[SimulatedThread, int]] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            thread, wait = self._waiting.popleft()
            thread.wake_after(0, wait)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block:
            thread = SimulatedThread.current
            assert thread is not None, "an event loop must not wait for a queue"
            while not self._items:
                wait = thread.begin_wait()
                self._waiting.append((thread, wait))
                if timeout is not None:
                    thread.wake_in(timeout, wait)
                thread.wait()
                if timeout is not None:
                    break
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)


class SimulatedEvent:
    """As `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[tuple[SimulatedThread, int]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread, wait in waiting:
            thread.wake_after(0, wait)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        thread = SimulatedThread.current
        assert thread is not None, "an event loop must not wait for an event of threads"
        if not self._is_set:
            wait = thread.begin_wait()
            self._waiting.append((thread, wait))
            if timeout is not None:
                thread.wake_in(timeout, wait)
            thread.wait()
        return self._is_set


class SimulatedLock:
    """As `threading.Lock`. An event loop that finds it held runs the holder until the release."""

    def __init__(self) -> None:
        self._is_held = False
        self._holder: SimulatedThread | None = None
        self._waiting: deque[tuple[SimulatedThread, int]] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        assert timeout == -1
        thread = SimulatedThread.current
        while self._is_held:
            if not blocking:
                return False
            if thread is None:
                assert self._holder is not None, "the event loop holds this lock already"
                self._holder.resume()
            else:
                self._waiting.append((thread, thread.begin_wait()))
                thread.wait()
        self._is_held, self._holder = True, thread
        return True

    def release(self) -> None:
        assert self._is_held
        self._is_held, self._holder = False, None
        if self._waiting:
            thread, wait = self._waiting.popleft()
            thread.wake_after(0, wait)

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
