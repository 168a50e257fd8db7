"""How commands end: when their output cannot be written, when its reader leaves, by signals."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.integration.cli.command_line import CommandLine, without_waits
from tests.integration.running_broker import wait_until

from millrace.cli.console.failures import ExitCode

LINES = [f"{number:06}{'x' * 193}".encode() for number in range(500)]
"""More than a pipe holds."""
WITHIN_S = 60.0

both_ways = pytest.mark.parametrize("is_unbuffered", [False, True], ids=["buffered", "unbuffered"])


@pytest.fixture
def filled(millrace: CommandLine, topic: str) -> str:
    """The topic, with some lines in it."""
    millrace.ok("produce", topic, stdin=b"\n".join([*LINES, b""]))
    return topic


def cut_short(
    millrace: CommandLine, out: Path, size: int, *words: str, is_unbuffered: bool
) -> bytes:
    """Return what a command says whose output file takes only so many bytes."""
    under = ("prlimit", f"--fsize={size}")
    with (
        open(out, "wb") as file,
        millrace.start(*words, stdout=file, under=under, is_unbuffered=is_unbuffered) as command,
    ):
        assert command.wait(WITHIN_S) == ExitCode.FAILED
        assert command.stderr is not None
        return command.stderr.read()


def read_on(millrace: CommandLine, topic: str) -> list[bytes]:
    """Return the lines that the group gets until nothing is left."""
    lines: list[bytes] = []

    def has_all() -> bool:
        words = ("consume", topic, "--group", topic, "--timeout", "3")
        lines.extend(millrace.run(*words).stdout_bytes.splitlines())
        (group,) = json.loads(millrace.ok("group", "lag", topic, "-o", "json"))
        return bool(group["lag"] == 0)

    wait_until(has_all, "the group has read all", WITHIN_S)
    return lines


@both_ways
def test_a_group_commits_nothing_that_a_full_disk_did_not_take(
    millrace: CommandLine, filled: str, tmp_path: Path, is_unbuffered: bool
) -> None:
    words = ("consume", filled, "--group", filled)
    told = cut_short(millrace, tmp_path / "out", 50_000, *words, is_unbuffered=is_unbuffered)
    assert without_waits(told).startswith("error: standard output cannot be written: File")
    written = (tmp_path / "out").read_bytes().split(b"\n")[:-1]
    assert written == LINES[:250]
    assert LINES[: len(LINES) - len(again := read_on(millrace, filled))] + again == LINES
    assert len(again) >= len(LINES) - len(written)


@both_ways
def test_a_pipe_that_does_not_block_gets_everything(
    millrace: CommandLine, filled: str, is_unbuffered: bool
) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    words = ("consume", filled, "--group", filled, "--max", str(len(LINES)))
    with (
        open(ours, "rb") as stream,
        open(theirs, "wb") as output,
        millrace.start(*words, stdout=output, is_unbuffered=is_unbuffered) as command,
    ):
        output.close()
        assert stream.read() == b"\n".join([*LINES, b""])
        assert command.wait(WITHIN_S) == ExitCode.DONE
    assert read_on(millrace, filled) == []


@both_ways
def test_following_ends_when_its_reader_leaves_though_nothing_comes(
    millrace: CommandLine, topic: str, is_unbuffered: bool
) -> None:
    millrace.ok("produce", topic, stdin=b"1\n2\n3\n")
    words = ("consume", topic, "--follow")
    with millrace.start(*words, is_unbuffered=is_unbuffered) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert [command.stdout.readline() for _ in range(3)] == [b"1\n", b"2\n", b"3\n"]
        command.stdout.close()
        assert command.wait(WITHIN_S) == ExitCode.READER_LEFT
        assert without_waits(command.stderr.read()) == ""


@pytest.mark.parametrize("words", [("top",), ("group", "lag", "--watch")], ids=" ".join)
def test_a_watch_ends_when_its_reader_leaves(millrace: CommandLine, words: tuple[str, ...]) -> None:
    with millrace.start(*words, "--output", "json", "--interval", "0.5") as command:
        assert command.stdout is not None
        json.loads(command.stdout.readline())
        command.stdout.close()
        assert command.wait(WITHIN_S) == ExitCode.READER_LEFT


@both_ways
def test_a_list_that_is_cut_short_is_no_success(
    millrace: CommandLine, topic: str, tmp_path: Path, is_unbuffered: bool
) -> None:
    words = ("topic", "describe", topic, "--output", "json")
    told = cut_short(millrace, tmp_path / "out", 100, *words, is_unbuffered=is_unbuffered)
    assert json.loads(told)["message"] == "standard output cannot be written: File too large"


def handles_sigterm(pid: int) -> bool:
    """Return whether a process has a handler of SIGTERM, and its client runs by now."""
    status = Path(f"/proc/{pid}/status").read_text()
    handled = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    threads = next(line for line in status.splitlines() if line.startswith("Threads:"))
    is_handled = int(handled.split()[1], 16) >> (signal.SIGTERM - 1) & 1
    return bool(is_handled) and int(threads.split()[1]) > 1


def wait_until_it_handles_sigterm(pid: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not handles_sigterm(pid):
        assert time.monotonic() < deadline, "SIGTERM has no handler"
        time.sleep(0.02)


def child_of(process: "subprocess.Popen[bytes]") -> int:
    """Return the only child of a process."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + WITHIN_S
    while not (found := children.read_text().split()):
        assert time.monotonic() < deadline, "it has started nothing"
        time.sleep(0.02)
    return int(found[0])


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes namespaces of processes")
@pytest.mark.parametrize(
    "words",
    [
        ("produce", "{}"),
        ("consume", "{}", "--follow"),
        ("consume", "{}", "--group", "{}"),
        ("copy", "{}", "{}-2", "--create", "--follow"),
        ("perf", "consume", "{}", "--records", "9", "--timeout", "60"),
        ("top", "--output", "json"),
    ],
    ids=" ".join,
)
def test_sigterm_ends_a_command_that_is_process_1(
    millrace: CommandLine, topic: str, words: tuple[str, ...]
) -> None:
    under = ("unshare", "--pid", "--fork", "--kill-child")
    named = [word.format(topic) for word in words]
    with millrace.start(*named, under=under, is_unbuffered=True) as command:
        try:
            pid = child_of(command)
            wait_until_it_handles_sigterm(pid)
            os.kill(pid, signal.SIGTERM)
            _, told = command.communicate(timeout=WITHIN_S)
        finally:
            command.kill()
        assert command.returncode == ExitCode.TERMINATED
        assert b"Traceback" not in told
