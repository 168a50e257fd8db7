"""The command line beside a broker."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from click.testing import CliRunner, Result

from millrace.cli.main import cli
from millrace.cli.transfer.stall_notices import Reading, Sending

_NOTICES = ("waiting for ", Sending.again, Reading.again, "all partitions are read again")


def without_waits(said: str | bytes) -> str:
    """Return what a command says on standard error, without that it waits and goes on again.

    It says so when nothing comes for a second, which is how busy the machine is.
    """
    text = said if isinstance(said, str) else said.decode()
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_NOTICES))


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Runs commands against one broker."""

    address: str

    def run(self, *words: str, stdin: bytes | str = b"") -> Result:
        """Run a command in this process."""
        return CliRunner(env={"MILLRACE_BOOTSTRAP": self.address}).invoke(
            cli, words, input=stdin, prog_name="millrace"
        )

    def ok(self, *words: str, stdin: bytes | str = b"") -> str:
        """Run a command that must succeed; return its standard output."""
        result = self.run(*words, stdin=stdin)
        assert result.exit_code == 0, f"{words}: {result.output} {result.exception!r}"
        return result.stdout

    def start(
        self,
        *words: str,
        stdout: int | BinaryIO = subprocess.PIPE,
        under: Sequence[str] = (),
        is_unbuffered: bool = False,
    ) -> "subprocess.Popen[bytes]":
        """Start a command as a process of its own.

        Args:
            words: the command.
            stdout: its standard output.
            under: the program that starts it, as `prlimit`.
            is_unbuffered: with PYTHONUNBUFFERED, as in a container.
        """
        program = [*under, sys.executable, "-m", "millrace.cli"]
        return subprocess.Popen(
            [*program, *words, "--bootstrap", self.address],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=os.environ | ({"PYTHONUNBUFFERED": "1"} if is_unbuffered else {}),
        )
