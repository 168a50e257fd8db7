"""The signals that end a command: Ctrl-C, SIGTERM and SIGHUP.

A process that was started with SIGINT or SIGHUP ignored goes on ignoring it. Shells ignore SIGINT
for what a script starts in the background, and `nohup` ignores SIGHUP. SIGTERM always ends a
command.

`entry` imports this module before it has handlers, so it imports next to nothing.
"""

import signal
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_signals() -> list[signal.Signals]:
    """Return those that end this process."""
    return [
        number
        for number in STOP_SIGNALS
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
    ]
