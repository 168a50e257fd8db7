"""A process that ends when its standard input does.

Its parent holds the other end of a pipe and never writes to it. When the parent ends in any way,
also by SIGKILL, the kernel closes that end, and this process gets SIGTERM. The kernel's own signal
for that (`PR_SET_PDEATHSIG`) exists only on Linux, and comes already when the *thread* ends that
started the process.
"""

import os
import signal
import threading
from contextlib import suppress


def stop_when_it_ends() -> None:
    """Send this process SIGTERM when its standard input has ended; returns at once."""
    # Not `sys.stdin`: its lock would be held by a thread that Python ends last.
    threading.Thread(target=_watch, name="standard-input", daemon=True).start()


def _watch() -> None:
    with suppress(OSError):  # It was closed from the beginning.
        while os.read(0, 1 << 16):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
