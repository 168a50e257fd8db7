"""Runs the fuzzer on a target, and says how many executions there were and how memory grew."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

GROWTH_MB_MAX: Final = 32
"""Of a process whose inputs begin to repeat: its corpus grows, too, by some MB."""
_WARM_SHARE: Final = 4
"""Caches of a bounded size are full after one in so many of the executions."""
_EXECUTED: Final = re.compile(r"^stat::number_of_executed_units: *(\d+)", re.MULTILINE)
_MEMORY: Final = re.compile(r"^memory after (\d+) executions: (\d+) bytes", re.MULTILINE)


class FuzzFailedError(Exception):
    """An input broke the target, or its memory grew; the text has the end of what was printed."""


class Fuzzed(NamedTuple):
    """One run.

    Attributes:
        executions: of the target.
        growth_mb: how much more memory the process had in the end than at a quarter of them.
    """

    executions: int
    growth_mb: int


def fuzz(target: str, seconds: int) -> Fuzzed:
    """Fuzz a target for a time.

    Raises:
        FuzzFailedError: it broke.
    """
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", target, str(seconds)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if run.returncode != 0:
        raise FuzzFailedError(f"{target}: {run.stdout[-3000:]}\n{run.stderr[-6000:]}")
    fuzzed = read_statistics(run.stderr)
    if fuzzed.growth_mb > GROWTH_MB_MAX:
        raise FuzzFailedError(
            f"{target}: memory grew by {fuzzed.growth_mb} MB\n{run.stderr[-6000:]}"
        )
    return fuzzed


def memory_line(executions: int, size: int) -> str:
    """Return what a target prints of its process's memory, which `read_statistics` reads."""
    return f"memory after {executions} executions: {size} bytes"


def read_statistics(printed: str) -> Fuzzed:
    """Return what libFuzzer and the target have printed: executions, and memory again and again."""
    (executions,) = map(int, _EXECUTED.findall(printed))
    seen = [(int(count), int(size)) for count, size in _MEMORY.findall(printed)]
    last = seen[-1][1]
    warm = next((size for count, size in seen if count >= executions // _WARM_SHARE), last)
    return Fuzzed(executions, max(last - warm, 0) >> 20)
