import os
import signal
import threading

import pytest

from millrace.cli.failures import ExitCode
from millrace.cli.interruption import Interrupted, Interruption, exit_code_of


def test_the_first_signal_is_noted_and_the_second_one_ends_the_work() -> None:
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.came
        with pytest.raises(Interrupted) as ended:
            os.kill(os.getpid(), signal.SIGINT)
    assert exit_code_of(ended.value) == ExitCode.TERMINATED


def test_a_wait_for_a_dead_broker_ends_soon_after_a_signal_and_so_do_the_steps_behind_it() -> None:
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


def test_an_error_that_came_of_a_signal_has_its_exit_code() -> None:
    error = RuntimeError("release unlocked lock")  # As Python's locks raise it.
    error.__context__ = Interrupted(signal.SIGHUP)
    assert exit_code_of(error) == ExitCode.HUNG_UP
    assert exit_code_of(KeyboardInterrupt()) == ExitCode.INTERRUPTED
