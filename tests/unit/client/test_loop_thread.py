"""Calls into the loop that all synchronous clients of a process share."""

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from millrace.client._sync.loop_thread import LoopThread


class TimeIsUpError(Exception):
    """What the handler of a signal raises."""


def raise_it(number: int, frame: object) -> None:
    raise TimeIsUpError


@pytest.fixture
def _handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, raise_it)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("_handler")
def test_what_a_signal_s_handler_raises_cancels_the_call_that_it_interrupts() -> None:
    thread = LoopThread.shared()
    is_cancelled = threading.Event()
    caller = threading.get_ident()

    async def work() -> None:
        try:
            while True:  # One that comes just before Python waits does not end the wait.
                signal.pthread_kill(caller, signal.SIGUSR1)
                await asyncio.sleep(1)
        finally:
            is_cancelled.set()

    with pytest.raises(TimeIsUpError):
        thread.call(work())
    assert is_cancelled.wait(10)


def test_a_call_on_the_loop_s_own_thread_is_refused() -> None:
    """Else it would wait for ever, and all clients with it."""
    thread = LoopThread.shared()

    async def nothing() -> None: ...

    async def work() -> None:
        thread.call(nothing())

    with pytest.raises(RuntimeError, match="in another thread"):
        thread.call(work())
