"""Ctrl-C, SIGTERM and SIGHUP end every command in order while it runs.

All three raise a `KeyboardInterrupt`. Each has a handler, since a command in a container is
process 1, and the kernel delivers no signal without a handler to that process. What was ignored at
the start stays ignored (`stop_signals`).

A signal may come while Python runs a callback of a weak reference or a `__del__`, as it does in
each import. Python reports what such a function raises, and goes on: the signal is then sent again.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

from millrace.cli.console.failures import ExitCode
from millrace.cli.console.stop_signals import stop_signals

_EXIT_CODES: Final = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}

END_S: Final = 3.0
"""How long a command may still wait for brokers after a signal."""
LAST_STEP_S: Final = 2.0
"""How much longer the step may take that stores how far the command came."""
_AGAIN_S: Final = 0.2
"""Interval at which the alarm repeats: it also ends what the command does after the first alarm and
what may wait for a broker as well, such as `close()` of a client."""
_RESENT_AFTER_S: Final = 0.01
"""How long after an interruption was lost its signal is sent again: the function that lost it has
returned by then."""


class Interrupted(KeyboardInterrupt):
    """Ends the command by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = _EXIT_CODES[signal.Signals(number)]


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let each of the signals raise a `KeyboardInterrupt` here."""
    before: dict[signal.Signals, Any] = {}
    reported = sys.unraisablehook

    def resend(lost: "sys.UnraisableHookArgs") -> None:
        match lost.exc_value:
            case Interrupted(number=number):
                pass
            case KeyboardInterrupt():
                number = signal.SIGINT
            case _:
                reported(lost)
                return
        timer = threading.Timer(_RESENT_AFTER_S, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()

    try:
        sys.unraisablehook = resend
        for number in stop_signals():
            # `asyncio.run` and `click` know Python's own handler of Ctrl-C.
            is_ctrl_c = number == signal.SIGINT
            handler = signal.default_int_handler if is_ctrl_c else _raise
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = reported


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an interruption, or for an error that it caused.

    A `KeyboardInterrupt` of Python itself names no signal: it is Ctrl-C.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Interrupted):
        cause = cause.__context__
    return ExitCode.INTERRUPTED if cause is None else cause.exit_code


class Interruption:
    """Notes the first signal, so that the command can finish a piece of work and its result.

    A second signal ends the command at once. A context manager.

    Args:
        within_s: the work is ended this long after the first signal, as it may wait for a dead
            broker; None: it waits for no broker.
    """

    def __init__(self, within_s: float | None = None) -> None:
        self._within_s = within_s
        self._number: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def came(self) -> bool:
        """Whether a signal has come."""
        return self._number is not None

    def raise_if_came(self) -> None:
        """End the command if a signal has come."""
        if self._number is not None:
            raise Interrupted(self._number)

    def allow(self, seconds: float) -> None:
        """Give what follows at least so long: from now, or from a signal that comes later.

        The alarm may have come before, and a step such as storing positions still needs its time.
        """
        if self._within_s is None:
            return
        self._within_s = max(self._within_s, seconds)
        if self.came:
            left, _ = signal.getitimer(signal.ITIMER_REAL)
            signal.setitimer(signal.ITIMER_REAL, max(left, seconds), _AGAIN_S)

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self.on_signal) for number in stop_signals()}
        if self._within_s is not None:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_alarm)
        return self

    def __exit__(self, *_: object) -> None:
        if self._within_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, before in self._before.items():
            signal.signal(number, before)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal, and end the command at the second."""
        self.raise_if_came()
        self._number = number
        if self._within_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self._within_s, _AGAIN_S)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        self.raise_if_came()


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)
