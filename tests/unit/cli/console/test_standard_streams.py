"""The writer below standard output, on pipes: it writes everything, or it fails."""

import fcntl
import io
import os
import signal
import threading
from typing import Any, cast

import pytest
from tests.formatted_records import ALL_FORMATS, expected, output, write

from millrace.cli.console.failures import ExitCode
from millrace.cli.console.standard_streams import (
    DescriptorWriter,
    ErrorWriter,
    ReaderLeft,
)


@pytest.mark.parametrize("file_format", ALL_FORMATS)
def test_a_full_pipe_that_does_not_block_loses_nothing(file_format: str) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    pieces: list[bytes] = []

    def read() -> None:
        with open(ours, "rb", buffering=0) as stream:
            pieces.extend(iter(lambda: stream.read(5000), b""))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with output(theirs) as stream:
            write(file_format, stream)
    finally:
        os.close(theirs)
        reader.join()
    assert b"".join(pieces) == expected(file_format)


@pytest.mark.parametrize("file_format", ALL_FORMATS)
def test_a_reader_that_has_left_ends_the_command(file_format: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with pytest.raises(ReaderLeft) as ended, output(theirs) as stream:
        write(file_format, stream)
    os.close(theirs)
    assert ended.value.exit_code == ExitCode.READER_LEFT


def test_a_reader_that_leaves_is_noticed_without_a_write() -> None:
    ours, theirs = os.pipe()
    writer = DescriptorWriter(theirs, "standard output")
    writer.check_reader(0)
    leaving = threading.Timer(0.01, os.close, (ours,))
    leaving.start()
    with pytest.raises(ReaderLeft):
        writer.check_reader(60)
    os.close(theirs)


def test_what_cannot_be_told_on_standard_error_stops_nothing() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    assert ErrorWriter(theirs).write(b"message") == len(b"message")
    os.close(theirs)


def test_a_long_message_is_told_as_a_whole() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    message = b"x" * 300_000  # A pipe holds less.
    writing = threading.Thread(target=lambda: ErrorWriter(theirs).write(message))
    writing.start()
    with open(ours, "rb") as stream:
        assert stream.read(len(message)) == message
    writing.join()
    os.close(theirs)


def test_after_ctrl_c_only_what_would_wait_for_its_reader_is_dropped() -> None:
    ours, theirs = os.pipe()
    room = fcntl.fcntl(theirs, fcntl.F_GETPIPE_SZ)
    writer = DescriptorWriter(theirs, "standard output")
    stream = io.BufferedWriter(writer, 2 * room)
    stream.write(b"x" * (room + 100))
    writer.hurry()
    stream.flush()
    os.close(theirs)
    with open(ours, "rb") as reader:
        assert reader.read() == b"x" * room


def test_the_writer_knows_what_a_stream_is_asked() -> None:
    ours, theirs = os.pipe()
    stream = cast(Any, io.TextIOWrapper(io.BufferedWriter(DescriptorWriter(theirs, "output"))))
    assert (stream.fileno(), stream.isatty(), stream.writable()) == (theirs, False, True)
    stream.close()
    os.write(theirs, b"still open")
    os.close(ours)
    os.close(theirs)
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
