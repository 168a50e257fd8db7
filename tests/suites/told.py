"""Checks that are programs of their own: in another virtual environment, or in Java.

Such a program is called with the brokers, the replication of topics, a file, and the names of
checks; it runs them one after another, and writes a line of JSON to the file for each that has
ended. `inside/checks.py` does so for those in Python, `java/Checks.java` for those in Java.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.suites.outcome import Outcome, Result
from tests.suites.programs import run, shortened
from tests.suites.suite import Target

_IN_PYTHON = re.compile(r"^(?:async )?def check_(\w+)\(", re.MULTILINE)
_IN_JAVA = re.compile(r"^    static void (\w+)\(Checks\.Bench bench\)", re.MULTILINE)


def checks_of(program: Path) -> list[str]:
    """Return the names of the checks of a program's source."""
    pattern = _IN_JAVA if program.suffix == ".java" else _IN_PYTHON
    return pattern.findall(program.read_text())


def told_by(
    command: Sequence[str | Path],
    tests: Sequence[str],
    target: Target,
    *,
    folder: Path,
    test_timeout_s: float,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Result]:
    """Run checks in one process, and yield what it told of them.

    Args:
        command: the program, with what comes before the brokers.
        folder: for its files; made here.
        test_timeout_s: for all tests together, times their number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = folder / "said.jsonl"
    lines.unlink(missing_ok=True)
    ended = run(
        [*command, target.bootstrap, str(target.replication), lines, *tests],
        folder / "program.log",
        test_timeout_s * len(tests),
        variables=variables,
    )
    told = {line["test"]: line for line in map(json.loads, _lines(lines))}
    for test in tests:
        if test in told:
            yield Result(
                test=test,
                outcome=Outcome(told[test]["outcome"]),
                seconds=told[test]["seconds"],
                said=shortened(told[test]["said"]),
            )
            continue
        what = "the run took too long" if ended.code is None else f"it ended: {ended.code}"
        said = shortened(f"{what}: {ended.said[-500:]}")
        yield Result(test=test, outcome=Outcome.FAILED, said=said)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
