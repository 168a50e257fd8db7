"""Standard input that waits for bytes, even if another process has made it non-blocking.

`O_NONBLOCK` belongs to the open pipe or terminal and not to a process: a parent such as Node.js or
an ssh client may set it for all. Python's own reader then takes "nothing yet" for the end, and the
rest of the input would be lost in silence.
"""

import io
import os
import select
import sys
from typing import Any, BinaryIO, cast

from millrace.cli.console.failures import Failure


class PatientInput(io.RawIOBase):
    """Reads a file descriptor, waits while it has nothing, and never closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def readinto(self, buffer: Any) -> int:
        while True:
            try:
                return os.readv(self._descriptor, [buffer])
            except BlockingIOError:
                self.wait()

    def wait(self) -> None:
        """Wait until there is something to read, or the end."""
        select.select([self._descriptor], [], [])

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def seekable(self) -> bool:
        try:
            os.lseek(self._descriptor, 0, os.SEEK_CUR)
        except OSError:
            return False
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return os.lseek(self._descriptor, offset, whence)


def standard_input() -> BinaryIO:
    """Return standard input.

    Raises:
        Failure: it is closed.
    """
    if sys.stdin is None:  # As after `<&-`.
        raise Failure("standard input is closed", "name a file, or write into a pipe")
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # It is no file, as in a test.
        return sys.stdin.buffer
    return cast(BinaryIO, io.BufferedReader(PatientInput(descriptor), io.DEFAULT_BUFFER_SIZE))
