"""The writer below standard output, on real descriptors: it writes everything, or it fails."""

import fcntl
import io
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from millrace.cli.commands.consume import FORMATS
from millrace.cli.failures import ExitCode
from millrace.cli.records.record_format import parse_format
from millrace.cli.records.writers import FormatWriter, open_writer
from millrace.cli.standard_streams import (
    DescriptorWriter,
    ErrorWriter,
    OutputFailure,
    ReaderLeft,
)
from millrace.core.records.columns import SCHEMA

ROWS = 3000
ALL_FORMATS = (*FORMATS, "format")
RECORDS = pa.RecordBatch.from_pylist(
    [
        {"offset": i, "timestamp": 1000, "key": b"k", "value": os.urandom(48).hex().encode(),
         "headers": []}
        for i in range(ROWS)
    ],
    SCHEMA,
)  # fmt: skip


def write(file_format: str, stream: Any) -> None:
    """Write more than a pipe holds, in several batches."""
    writer: Any
    if file_format == "format":
        writer = FormatWriter(stream, parse_format(r"%o %s\n"), None)
    else:
        writer = open_writer(file_format, stream, key_separator=None, null_value=None)
    for start in range(0, ROWS, 1000):
        writer.write("flights", 0, RECORDS.slice(start, 1000))
        stream.flush()
    writer.close()
    stream.flush()


def expected(file_format: str) -> bytes:
    stream = io.BytesIO()
    write(file_format, stream)
    return stream.getvalue()


@contextmanager
def output(descriptor: int) -> "Iterator[io.BufferedWriter[DescriptorWriter]]":
    writer = DescriptorWriter(descriptor, "standard output")
    stream = io.BufferedWriter(writer)
    yield stream
    writer.drop()


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
def test_a_limit_of_file_size_is_an_error_and_leaves_no_hole(
    file_format: str, tmp_path: Path
) -> None:
    whole = expected(file_format)
    limit = len(whole) // 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open(tmp_path / "out", "wb") as file, output(file.fileno()) as stream:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OutputFailure, match="standard output cannot be written: File too"):
                write(file_format, stream)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        stream.write(b"more")
        with pytest.raises(OutputFailure):  # There would be room again.
            stream.flush()
    assert (tmp_path / "out").read_bytes() == whole[:limit]


@pytest.mark.parametrize("file_format", ALL_FORMATS)
def test_a_full_disk_is_an_error(file_format: str) -> None:
    with (
        open("/dev/full", "wb") as file,
        output(file.fileno()) as stream,
        pytest.raises(OutputFailure, match="No space left"),
    ):
        write(file_format, stream)


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


def test_a_file_and_a_device_have_no_reader_that_could_leave(tmp_path: Path) -> None:
    for path in (tmp_path / "out", Path(os.devnull)):
        with open(path, "wb") as file:
            DescriptorWriter(file.fileno(), "standard output").check_reader(0)


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


PROBE = """
import json, signal, sys
import click
from millrace.cli.command import Command
from millrace.cli.main import cli, main

@click.command("probe", cls=Command)
@click.argument("what")
def probe(what):
    if what == "handlers":
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        print(json.dumps([callable(signal.getsignal(each)) for each in numbers]))
    elif what == "lines":
        click.echo("x" * 99 + "\\n", nl=False)
        sys.stdout.buffer.write(b"y" * 1_000_000)
    elif what == "interrupted":
        sys.stdout.buffer.write(b"y" * 50_000)  # The buffer has it.
        signal.raise_signal(signal.SIGINT)
    else:
        signal.raise_signal(getattr(signal, what))
        print("ignored")

cli.add_command(probe)
sys.argv[0] = "millrace"
main()
"""


def run(
    what: str, *, is_unbuffered: bool = False, begin: str = "", **options: Any
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command that is made for the test, in the process of `millrace`."""
    return subprocess.run(
        [sys.executable, "-c", begin + PROBE, "probe", what],
        stderr=subprocess.PIPE,
        env=os.environ | ({"PYTHONUNBUFFERED": "1"} if is_unbuffered else {}),
        check=False,
        **options,
    )


def test_every_command_handles_the_signals_that_end_it() -> None:
    # The kernel keeps signals without a handler from process 1.
    ran = run("handlers", stdout=subprocess.PIPE)
    assert json.loads(ran.stdout) == [True, True, True]


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("SIGINT", ExitCode.INTERRUPTED, b"\n"),  # Behind the terminal's `^C`.
        ("SIGTERM", ExitCode.TERMINATED, b""),
        ("SIGHUP", ExitCode.HUNG_UP, b""),
    ],
)
def test_each_signal_ends_a_command_quietly_and_the_exit_code_names_it(
    name: str, code: ExitCode, told: bytes
) -> None:
    ran = run(name, stdout=subprocess.PIPE)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, b"", told)


def test_what_was_written_before_ctrl_c_arrives(tmp_path: Path) -> None:
    ran = run("interrupted", stdout=subprocess.PIPE)
    assert (ran.returncode, len(ran.stdout)) == (ExitCode.INTERRUPTED, 50_000)
    with open(tmp_path / "out", "wb") as file:
        ran = run("interrupted", stdout=file)
    assert (ran.returncode, (tmp_path / "out").stat().st_size) == (ExitCode.INTERRUPTED, 50_000)


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


def test_what_an_interrupted_write_has_left_is_not_written_twice() -> None:
    ours, theirs = os.pipe()
    room = fcntl.fcntl(theirs, fcntl.F_GETPIPE_SZ)
    writer = DescriptorWriter(theirs, "standard output")
    stream = io.BufferedWriter(writer, 2 * room)
    stream.write(b"".join(b"%07d\n" % each for each in range(room // 8 + 10)))
    main = threading.main_thread().ident or 0
    looks = select.poll()
    looks.register(theirs, select.POLLOUT)

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while looks.poll(0) and time.monotonic() < deadline:
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)

    def flush() -> None:
        interrupting.start()
        stream.flush()  # The pipe takes a part, and the write waits.
        interrupting.join()

    with pytest.raises(KeyboardInterrupt):
        flush()
    interrupting.join()
    os.read(ours, room)
    writer.hurry()
    stream.flush()
    os.close(theirs)
    with open(ours, "rb") as reader:
        assert reader.read() == b""


def test_a_command_under_nohup_outlives_its_terminal() -> None:
    begin = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    ran = run("SIGHUP", begin=begin, stdout=subprocess.PIPE)
    assert (ran.returncode, ran.stdout) == (ExitCode.DONE, b"ignored\n")


@pytest.mark.parametrize("is_unbuffered", [False, True], ids=["buffered", "unbuffered"])
def test_output_that_is_cut_short_is_no_success(is_unbuffered: bool, tmp_path: Path) -> None:
    limit = (500_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    with open(tmp_path / "out", "wb") as file:
        ran = run(
            "lines",
            is_unbuffered=is_unbuffered,
            stdout=file,
            begin=f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, {limit})\n",
        )
    assert ran.returncode == ExitCode.FAILED
    assert ran.stderr == b"error: standard output cannot be written: File too large\n"
    with open("/dev/full", "wb") as full:
        ran = run("lines", is_unbuffered=is_unbuffered, stdout=full)
    assert ran.returncode == ExitCode.FAILED
    assert ran.stderr == b"error: standard output cannot be written: No space left on device\n"


def test_the_writer_knows_what_a_stream_is_asked() -> None:
    ours, theirs = os.pipe()
    stream = cast(Any, io.TextIOWrapper(io.BufferedWriter(DescriptorWriter(theirs, "output"))))
    assert (stream.fileno(), stream.isatty(), stream.writable()) == (theirs, False, True)
    stream.close()
    os.write(theirs, b"still open")
    os.close(ours)
    os.close(theirs)
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
