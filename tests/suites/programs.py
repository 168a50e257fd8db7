"""Runs a program of a suite: bounded in time, with its output in a file, nothing left running."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

SAID_BYTES_MAX = 400
"""Of a failure, in a table."""
_FOLDERS = re.compile(r"(?<![\w/])/(?:[\w.@+~-]+/)+")
READ_BYTES_MAX = 64 << 20
"""Of a program's output: the last ones."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A program that has ended.

    Attributes:
        code: its exit code; None: it was still running at the end of its time.
        said: what it wrote, to both outputs.
    """

    code: int | None
    said: str
    seconds: float


def run(
    command: Sequence[str | Path],
    log: Path,
    timeout_s: float,
    *,
    variables: Mapping[str, str] = MappingProxyType({}),
    given: bytes = b"",
    folder: Path | None = None,
) -> Ended:
    """Run a program, for so long at most; all processes of its session end with it.

    Args:
        log: the file of its output, written anew.
        variables: of its environment, besides ours.
        given: its standard input.
        folder: where it runs; None: that of `log`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    setpriv = shutil.which("setpriv")  # It ends with this process, also where this one is killed.
    prefix = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    begun = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*prefix, *map(str, command)],
            stdin=subprocess.PIPE if given else subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder or log.parent,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        try:
            process.communicate(given or None, timeout=timeout_s)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ended(code=code, said=_tail(log), seconds=time.monotonic() - begun)


def shortened(text: str) -> str:
    """Return a failure's words in one line, and of paths the names of files alone."""
    words = _FOLDERS.sub("", " ".join(text.split()))
    return words if len(words) <= SAID_BYTES_MAX else f"{words[: SAID_BYTES_MAX - 3]}..."


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - READ_BYTES_MAX))
        return file.read().decode(errors="replace")
