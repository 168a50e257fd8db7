"""Standard output of processes, and on files: it gets everything, or the command fails."""

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
from pathlib import Path
from typing import Any

import pytest
from tests.formatted_records import ALL_FORMATS, expected, output, write

from millrace.cli.console.failures import ExitCode
from millrace.cli.console.standard_streams import DescriptorWriter, OutputFailure

ROOT = Path(__file__).resolve().parents[3]


def test_a_limit_of_file_size_is_an_error_and_leaves_no_hole(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "tests.integration.cli.limited_writer", tmp_path)
    told = json.loads(subprocess.check_output(words, cwd=ROOT))
    message = "standard output cannot be written: File too large"
    assert told == {kind: [message, message] for kind in ALL_FORMATS}
    for kind in ALL_FORMATS:
        whole = expected(kind)
        assert (tmp_path / kind).read_bytes() == whole[: len(whole) // 2]


@pytest.mark.parametrize("file_format", ALL_FORMATS)
def test_a_full_disk_is_an_error(file_format: str) -> None:
    with (
        open("/dev/full", "wb") as file,
        output(file.fileno()) as stream,
        pytest.raises(OutputFailure, match="No space left"),
    ):
        write(file_format, stream)


def test_a_file_and_a_device_have_no_reader_that_could_leave(tmp_path: Path) -> None:
    for path in (tmp_path / "out", Path(os.devnull)):
        with open(path, "wb") as file:
            DescriptorWriter(file.fileno(), "standard output").check_reader(0)


def test_what_an_interrupted_write_has_left_is_not_written_twice() -> None:
    ours, theirs = os.pipe()
    room = fcntl.fcntl(theirs, fcntl.F_GETPIPE_SZ)
    writer = DescriptorWriter(theirs, "standard output")
    stream = io.BufferedWriter(writer, 2 * room)
    stream.write(b"".join(b"%07d\n" % number for number in range(room // 8 + 10)))
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
        print(json.dumps([callable(signal.getsignal(number)) for number in numbers]))
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
