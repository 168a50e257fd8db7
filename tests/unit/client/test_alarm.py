"""The alarm of a moment that moves."""

from collections.abc import Callable

from millrace.client._producer.alarm import Alarm
from millrace.core.ids import MonotonicMs
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now


class Timers:
    """The timers of a loop."""

    def __init__(self) -> None:
        self.waiting: list[OneTimer] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> "OneTimer":
        timer = OneTimer(self, delay, callback)
        self.waiting.append(timer)
        return timer

    def delays(self) -> list[float]:
        return [timer.delay for timer in self.waiting]

    def fire(self) -> None:
        (timer,) = self.waiting
        self.waiting.clear()
        timer.callback()


class OneTimer:
    """One of them."""

    def __init__(self, timers: Timers, delay: float, callback: Callable[[], None]) -> None:
        self.delay = delay
        self.callback = callback
        self._timers = timers

    def cancel(self) -> None:
        self._timers.waiting.remove(self)


def test_an_earlier_time_replaces_a_later_one_and_no_other() -> None:
    timers = Timers()
    alarm = Alarm(timers.call_later, lambda: None)
    begun = monotonic_now()
    alarm.set(MonotonicMs(begun + 60_000))
    alarm.set(MonotonicMs(begun + 70_000))
    (delay,) = timers.delays()
    assert 50 < delay <= 60
    alarm.set(MonotonicMs(begun + 30_000))
    (delay,) = timers.delays()
    assert 20 < delay <= 30
    alarm.cancel()
    assert not timers.waiting


def test_an_alarm_that_came_early_is_set_anew() -> None:
    timers = Timers()
    calls: list[int] = []
    begun = monotonic_now()

    def on_due() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            alarm.set(MonotonicMs(begun + 30_000))

    alarm = Alarm(timers.call_later, on_due)
    alarm.set(MonotonicMs(begun + 60_000))
    timers.fire()
    (delay,) = timers.delays()
    assert 20 < delay <= 30
    timers.fire()
    assert calls == [0, 1]
    assert not timers.waiting


def test_a_time_that_has_passed_is_due_soon() -> None:
    timers = Timers()
    Alarm(timers.call_later, lambda: None).set(MonotonicMs(monotonic_now() - 100))
    assert timers.delays() == [0.0005]


def test_the_part_of_the_present_millisecond_that_has_passed_is_not_waited_for_again() -> None:
    timers = Timers()
    before = host.monotonic_s()
    at = MonotonicMs(monotonic_now() + 60_000)
    Alarm(timers.call_later, lambda: None).set(at)
    (delay,) = timers.delays()
    assert delay <= at / 1000 - before
