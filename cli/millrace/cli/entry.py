"""The first code of a process of the command line: signals end it from here on.

Signal handlers are set before anything else is imported, for two reasons. The kernel delivers no
signal without a handler to process 1, and a command in a container is process 1. Ctrl-C during an
import ends with a traceback. Until a command runs there is nothing to finish, so a signal ends the
process at once. While it runs, `interruption` ends it in order. A signal that comes before, while
the interpreter starts, waits if the program that started it has blocked signals, as the image does.
"""

import os
import signal
from types import FrameType

from millrace.cli.console.stop_signals import STOP_SIGNALS, stop_signals


def millrace() -> None:
    """Run `millrace`."""
    end_at_once()
    from millrace.cli.main import main

    main()


def kubectl_millrace() -> None:
    """Run `kubectl millrace`."""
    end_at_once()
    from millrace.cli.kubectl_plugin import main

    main()


def end_at_once() -> None:
    """Let signals end this process without a word; its exit code names the signal."""
    for number in stop_signals():
        signal.signal(number, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
