"""The alarm of a moment that moves."""

import asyncio
from typing import Any

from millrace.client._producer.alarm import Alarm
from millrace.core.ids import MonotonicMs


class Timers(asyncio.AbstractEventLoop):
    """A loop that only keeps its timers."""

    def __init__(self) -> None:
        self.timers: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return 0.0

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(delay, callback, args, self, context)
        self.timers.append(timer)
        return timer

    def due(self) -> list[float]:
        return [timer.when() for timer in self.timers if not timer.cancelled()]

    def fire(self) -> None:
        (timer,) = (timer for timer in self.timers if not timer.cancelled())
        self.timers.clear()
        timer._run()


def test_an_earlier_time_replaces_a_later_one_and_no_other() -> None:
    loop = Timers()
    alarm = Alarm(loop, lambda: None)
    alarm.set(MonotonicMs(1_500), MonotonicMs(1_000))
    alarm.set(MonotonicMs(1_700), MonotonicMs(1_100))
    assert loop.due() == [0.5]
    alarm.set(MonotonicMs(1_300), MonotonicMs(1_100))
    assert loop.due() == [0.2]
    alarm.cancel()
    assert not loop.due()


def test_an_alarm_that_came_early_is_set_anew() -> None:
    loop = Timers()
    called = []

    def on_due() -> None:
        called.append(len(called))
        if len(called) == 1:
            alarm.set(MonotonicMs(1_700), MonotonicMs(1_500))

    alarm = Alarm(loop, on_due)
    alarm.set(MonotonicMs(1_500), MonotonicMs(1_000))
    loop.fire()
    assert loop.due() == [0.2]
    loop.fire()
    assert called == [0, 1]
    assert not loop.due()


def test_a_time_that_has_passed_is_due_soon() -> None:
    loop = Timers()
    Alarm(loop, lambda: None).set(MonotonicMs(900), MonotonicMs(1_000))
    assert loop.due() == [0.0005]
