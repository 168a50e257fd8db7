import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from millrace.cli.console.failures import ExitCode
from millrace.cli.console.interruption import (
    Interrupted,
    Interruption,
    ending_in_order,
    exit_code_of,
)
from millrace.cli.console.stop_signals import STOP_SIGNALS, stop_signals


@pytest.fixture
def ignored() -> Iterator[None]:
    """Ignore all three signals, as a process may have to from its start."""
    before = {
        stop_signal: signal.signal(stop_signal, signal.SIG_IGN) for stop_signal in STOP_SIGNALS
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def nothing(*_: object) -> None:
    """Handle a signal."""


@pytest.mark.parametrize("around", [ending_in_order, Interruption], ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("ignored")
def test_what_a_shell_and_nohup_ignore_stays_ignored(
    around: Callable[[], AbstractContextManager[object]],
) -> None:
    with around():
        assert stop_signals() == [signal.SIGTERM]
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)]
        assert handlers == [signal.SIG_IGN] * 2
        assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


@pytest.mark.usefixtures("ignored")
def test_signals_that_nobody_ignores_end_a_command() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, nothing)
    assert stop_signals() == list(STOP_SIGNALS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda kind: kind.name)
def test_a_signal_that_comes_in_a_callback_whose_errors_python_ignores_ends_the_command(
    number: signal.Signals,
) -> None:
    class Module:
        """What a weak reference points to."""

    modules = [Module()]
    lock = weakref.ref(modules[0], lambda _: os.kill(os.getpid(), number))

    def go_on_without() -> None:
        modules.clear()
        threading.Event().wait(60)

    with pytest.raises(KeyboardInterrupt) as ended, ending_in_order():
        go_on_without()
    assert lock() is None
    expected = {signal.SIGTERM: ExitCode.TERMINATED, signal.SIGINT: ExitCode.INTERRUPTED}
    assert exit_code_of(ended.value) == expected[number]


def test_the_first_signal_is_noted_and_the_second_one_ends_the_work() -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.came
        with pytest.raises(Interrupted) as ended:
            os.kill(os.getpid(), signal.SIGINT)
    assert exit_code_of(ended.value) == ExitCode.TERMINATED


def test_a_wait_for_a_dead_broker_ends_soon_after_a_signal_and_so_do_the_steps_after_it() -> None:
    ended = []
    answer = threading.Event()
    with Interruption(within_s=0.05):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(3):
            with pytest.raises(Interrupted) as each:
                answer.wait(60)
            ended.append(exit_code_of(each.value))
    assert ended == [ExitCode.TERMINATED] * 3
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_step_after_the_alarm_gets_the_time_that_it_is_allowed_and_no_more() -> None:
    answer = threading.Event()
    with Interruption(within_s=0.01) as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            answer.wait(60)
        interruption.allow(0.5)
        assert not answer.wait(0.3), "the alarm would have come again by now"
        with pytest.raises(Interrupted):
            answer.wait(60)


def test_time_that_is_allowed_before_a_signal_counts_from_the_signal() -> None:
    with Interruption(within_s=0.01) as interruption:
        interruption.allow(60)
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1


def test_an_error_that_came_of_a_signal_has_its_exit_code() -> None:
    error = RuntimeError("release unlocked lock")  # As Python's locks raise it.
    error.__context__ = Interrupted(signal.SIGHUP)
    assert exit_code_of(error) == ExitCode.HUNG_UP
    assert exit_code_of(KeyboardInterrupt()) == ExitCode.INTERRUPTED
