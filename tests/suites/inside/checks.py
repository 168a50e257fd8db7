"""Runs checks of a client, one after another, and tells what became of each in a line of JSON.

It runs in the virtual environment of the suite, so it may use nothing else of this checkout. The
program is called with the brokers, the replication of topics, the file for the lines, and the names
of checks.
"""

import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a check has.

    Attributes:
        bootstrap: `host:port` of brokers, with commas between them.
        folder: for its files.
        prefix: of names that no other check has.
    """

    bootstrap: str
    replication: int
    folder: Path
    prefix: str = field(default_factory=lambda: f"suite-{os.getpid()}-{next(_numbers)}")

    @property
    def topic(self) -> str:
        """A name of a topic."""
        return f"{self.prefix}-topic"

    @property
    def group(self) -> str:
        """A name of a group."""
        return f"{self.prefix}-group"


Check = Callable[[Bench], None]


def expect(found: object, expected: object) -> None:
    """Fail where something is not as it is against Kafka."""
    if found != expected:
        raise AssertionError(f"{str(found)[:200]}, and not {str(expected)[:200]}")


def named(module: Mapping[str, object]) -> dict[str, Callable[[Bench], object]]:
    """Return the checks of a module: functions whose names begin with `check_`."""
    return {
        name.removeprefix("check_"): function
        for name, function in module.items()
        if name.startswith("check_") and callable(function)
    }


def main(checks: Mapping[str, Check]) -> None:
    """Run the checks that the command line names."""
    bootstrap, replication, lines, *tests = sys.argv[1:]
    for test in tests:
        bench = Bench(bootstrap=bootstrap, replication=int(replication), folder=Path(lines).parent)
        begun, said, outcome = time.monotonic(), "", "passed"
        try:
            checks[test](bench)
        except Exception as error:
            traceback.print_exc()
            outcome, said = "failed", f"{type(error).__name__}: {error}"
        line = {
            "test": test,
            "outcome": outcome,
            "seconds": time.monotonic() - begun,
            "said": said,
        }
        with Path(lines).open("a") as out:
            out.write(json.dumps(line) + "\n")
