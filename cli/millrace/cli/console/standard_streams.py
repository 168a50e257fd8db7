"""Standard output and standard error of the command: each byte is written, or the command fails.

Every command and every format writes through one writer: text, tables, JSON, CSV, Arrow and bytes.
Python's own streams may lose output. With `PYTHONUNBUFFERED`, which images of containers
set, a short `write(2)` passes for a whole one, and on a descriptor that another process has made
non-blocking a full pipe loses output.

| what happens | what the command does |
|---|---|
| the kernel takes a part: a full pipe, a limit of file size | writes the rest |
| a pipe is full and non-blocking | waits for room |
| the disk or a limit leaves no room, or any other error | fails, `OutputFailure` |
| the reader has left, as `head` does | ends quietly with 141, as by SIGPIPE: `ReaderLeft` |

After the first error nothing more is written, so a reader never gets output with a hole: each later
write raises the same error. Errors of standard error itself are ignored, as there is no other place
to report them.
"""

import errno
import io
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final, TextIO, cast

import click

from millrace.cli.console.failures import ExitCode, Failure

_LEFT: Final = (errno.EPIPE, errno.ECONNRESET)
_BUFFER_BYTES: Final = 1 << 16


class OutputFailure(Failure):
    """Standard output cannot be written: the disk is full, for example."""


class ReaderLeft(click.exceptions.Exit):
    """Ends the command quietly: no process reads its standard output any more."""

    def __init__(self) -> None:
        super().__init__(ExitCode.READER_LEFT)


class DescriptorWriter(io.RawIOBase):
    """Writes every byte to a descriptor, or raises; it never closes the descriptor."""

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self._name = descriptor, name
        self._failed: OutputFailure | ReaderLeft | None = None
        self._is_dropped = self._is_hurried = self._is_unsure = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write a part of the data, at least a byte; a buffer above it writes the whole.

        Raises:
            OutputFailure: nothing more can be written.
            ReaderLeft: no process reads it.
        """
        while not self._is_dropped:
            self.check()
            if self._is_hurried:
                if self._is_unsure or not _poll(self._descriptor, select.POLLOUT, 0):
                    self.drop()
                    break
                # `poll` promises room for this many bytes.
                data = memoryview(data)[: select.PIPE_BUF]
            try:
                return os.write(self._descriptor, data)
            except KeyboardInterrupt:  # How much of the data was written is unknown.
                self._is_unsure = True
                raise
            except BlockingIOError:
                _poll(self._descriptor, select.POLLOUT, None)
            except OSError as error:
                self._fail(error)
        return memoryview(data).nbytes

    def check(self) -> None:
        """Raise the error of an earlier write again."""
        if self._failed is not None:
            raise self._failed.with_traceback(None)  # It would grow with each line.

    def check_reader(self, seconds: float) -> None:
        """Wait for this time; end early if the reader leaves.

        Raises:
            ReaderLeft: it has left.
        """
        if _poll(self._descriptor, 0, seconds) & (select.POLLERR | select.POLLHUP):
            self._failed = self._failed or ReaderLeft()
        self.check()

    def hurry(self) -> None:
        """From now on write only while there is room, and drop the rest without an error.

        A file always has room. After an interrupted write everything is dropped: a second attempt
        could write a part of the data twice.
        """
        self._is_hurried = True

    def drop(self) -> None:
        """Write nothing from now on, without an error."""
        self._failed, self._is_dropped = None, True

    def _fail(self, error: OSError) -> None:
        if error.errno in _LEFT:
            self._failed = ReaderLeft()
        else:
            self._failed = OutputFailure(f"{self._name} cannot be written: {error.strerror}")


class ErrorWriter(DescriptorWriter):
    """Writes to standard error without a buffer, and writes nothing more after an error.

    A buffer has a lock. If a thread holds it while the process ends, Python aborts the process.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "standard error")

    def write(self, data: Any) -> int:
        """Write all of the data."""
        left = memoryview(data)
        size = left.nbytes
        while left:
            left = left[super().write(left) :]
        return size

    def _fail(self, error: OSError) -> None:
        self.drop()


@contextmanager
def standard_streams() -> Iterator[None]:
    """Put the writer below `sys.stdout` and `sys.stderr`, to the end of the process."""
    if sys.stdout is None:  # As after `>&-`.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # To the end.
    else:
        writer = DescriptorWriter(sys.stdout.fileno(), "standard output")
        sys.stdout = _text(sys.stdout, io.BufferedWriter(writer, _BUFFER_BYTES))
    if sys.stderr is not None:
        sys.stderr = _text(sys.stderr, cast(BinaryIO, ErrorWriter(sys.stderr.fileno())))
    try:
        yield
    finally:
        _write_the_rest()


def check_output() -> None:
    """Flush standard output.

    Raises:
        OutputFailure: it, or an earlier part, was not written.
        ReaderLeft: the reader has left, also when nothing is to be written.
    """
    sys.stdout.flush()
    wait(0)


def wait(seconds: float) -> None:
    """Sleep. End early if the reader of standard output leaves.

    Raises:
        ReaderLeft: it has left.
    """
    writer = _writer_of(sys.stdout)
    if writer is not None:
        writer.check_reader(seconds)
    else:  # In a test, or standard output is closed.
        time.sleep(seconds)


def check_written() -> None:
    """Flush standard output; raise the error of an earlier write that a caller has suppressed."""
    sys.stdout.flush()
    writer = _writer_of(sys.stdout)
    if writer is not None:
        writer.check()


def end_output() -> None:
    """Write what standard output takes without waiting, and drop the rest.

    A reader that has stopped reading must not keep the process from its end.
    """
    writer = _writer_of(sys.stdout)
    if writer is not None:
        writer.hurry()
        with suppress(OutputFailure, ReaderLeft):
            sys.stdout.flush()
        writer.drop()


def drop_output() -> None:
    """Drop the rest of standard output."""
    writer = _writer_of(sys.stdout)
    if writer is not None:
        writer.drop()


def _text(before: TextIO, stream: BinaryIO) -> TextIO:
    """Return a text stream with the settings of the one that it replaces."""
    return io.TextIOWrapper(
        stream,
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.isatty(),
        write_through=True,
    )


def _writer_of(stream: TextIO) -> DescriptorWriter | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, DescriptorWriter) else None


def _write_the_rest() -> None:
    """Flush here: at its end the interpreter would print a traceback of an error."""
    try:
        check_written()
    except (OutputFailure, ReaderLeft):  # The command has reported it, or another failure.
        drop_output()


def _poll(descriptor: int, events: int, seconds: float | None) -> int:
    """Wait for events of a descriptor; return those that came, errors and hang-ups included."""
    waiting = select.poll()  # `select.select` takes no descriptor above 1023.
    waiting.register(descriptor, events)
    came = waiting.poll(None if seconds is None else seconds * 1000)
    return came[0][1] if came else 0
