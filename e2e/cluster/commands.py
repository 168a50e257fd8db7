"""Runs system programs for a cluster."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_SECONDS_MAX = 600.0

# The shell writes its own id and becomes the program. `setsid --fork` ends at once, so process 1
# adopts the program and waits for it: a long test run leaves no zombies.
_DETACHED = 'echo $$ >"$0"; log=$1; shift; exec "$@" >>"$log" 2>&1 </dev/null'


class CommandError(Exception):
    """A program failed; the message says which one, and has its output."""


class UnableError(CommandError):
    """This machine lacks a requirement; the message says what to do."""


def run(*command: str | Path, input: str | None = None, seconds_max: float = _SECONDS_MAX) -> str:
    """Run a program; return what it wrote to standard output.

    Raises:
        CommandError: it failed, does not exist, or took too long.
    """
    said = " ".join(map(str, command))
    try:
        done = subprocess.run(
            command,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds_max,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{said}: {error}") from error
    if done.returncode != 0:
        raise CommandError(f"{said}: exit code {done.returncode}\n{done.stderr}{done.stdout}")
    return done.stdout


def wait_until(condition: Callable[[], bool], what: str, seconds_max: float = 300.0) -> None:
    """Return once a condition holds.

    Raises:
        CommandError: it did not in time.
    """
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise CommandError(f"waited for {seconds_max:.0f} s: {what}")
        time.sleep(0.05)


def detached(pid_file: Path, log: Path, command: Sequence[str | Path]) -> list[str]:
    """Return the command that starts a program in the background.

    Args:
        pid_file: gets its process id, as seen in its own process namespace.
        log: its output is appended here.
    """
    starting = ["setsid", "--fork", "sh", "-c", _DETACHED, pid_file, log, *command]
    return [str(part) for part in starting]


def read_pid(pid_file: Path) -> int | None:
    """Return the process id in the file, if there is one."""
    try:
        return int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


class Background:
    """A background program on this machine itself.

    Args:
        folder: for its log and its process id.
        mark: an argument of its command that no other program has.
    """

    def __init__(self, folder: Path, name: str, mark: str) -> None:
        self._pid_file = folder / f"{name}.pid"
        self._log = folder / f"{name}.log"
        self._mark = mark

    @property
    def pid(self) -> int | None:
        """Its process id, if it runs."""
        pid = read_pid(self._pid_file)
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            return None
        return pid if self._mark in arguments else None

    def start(self, *command: str | Path) -> None:
        """Start it, unless it runs."""
        if self.pid is None:
            self._pid_file.unlink(missing_ok=True)
            run(*detached(self._pid_file, self._log, command))
            wait_until(lambda: self.pid is not None, f"{command[0]} starts; see {self._log}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal that ends it; return when it has ended."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)
            wait_until(lambda: self.pid is None, f"process {pid} ends")
