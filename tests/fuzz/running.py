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
_STATUS: Final = re.compile(r"^#(\d+)\t.* rss: (\d+)Mb", re.MULTILINE)


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


def read_statistics(printed: str) -> Fuzzed:
    """Return what libFuzzer has printed: executions and memory, again and again."""
    seen = [(int(executions), int(mb)) for executions, mb in _STATUS.findall(printed)]
    executions, last_mb = seen[-1]
    warm_mb = next(mb for count, mb in seen if count >= executions // _WARM_SHARE)
    return Fuzzed(executions, last_mb - warm_mb)
