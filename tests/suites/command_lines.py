"""Programs of others as tests: command lines, and what must be in what they print."""

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.maven import PeerMissingError
from tests.suites.outcome import Outcome, Result
from tests.suites.programs import run, shortened
from tests.suites.suite import SuiteMissingError, Target

_LOGGER = re.compile(r"^SLF4J: .*\n", re.MULTILINE)
"""What Java programs say where no logger is beside them."""

_numbers = itertools.count(1)


class UnexpectedError(Exception):
    """A program did not do what it does against Kafka; the message is its end."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a test runs programs with.

    Attributes:
        test: its name.
        program: where a program is, by its name.
        timeout_s: of each command.
    """

    target: Target
    test: str
    folder: Path
    program: Callable[[str], str | Path]
    timeout_s: float
    prefix: str = field(default_factory=lambda: f"suite-{os.getpid()}-{next(_numbers)}")

    @property
    def topic(self) -> str:
        """A name of a topic that no other test has."""
        return f"{self.prefix}-topic"

    @property
    def group(self) -> str:
        """A name of a group, likewise."""
        return f"{self.prefix}-group"

    def file(self, name: str, text: str) -> str:
        """Write a file for a command, and return its path."""
        path = self.folder / f"{self.test}-{name}"
        path.write_text(text)
        return str(path)

    def run(
        self, name: str, *arguments: str, given: str = "", says: str = "", code: int = 0
    ) -> str:
        """Run a program to its end, and return what it printed.

        Args:
            given: its standard input.
            says: a regular expression that must be in what it prints.
            code: the exit code that it must have.

        Raises:
            UnexpectedError: it did not.
        """
        ended = run(
            [self.program(name), *arguments],
            self.folder / f"{self.test}-{next(_numbers)}.log",
            self.timeout_s,
            given=given.encode(),
        )
        said = _LOGGER.sub("", ended.said)
        if ended.code is None:
            raise UnexpectedError(f"{name} took too long: {said[-300:]}")
        if ended.code != code:
            raise UnexpectedError(f"{name} ended with {ended.code}: {said[-300:]}")
        if says and not re.search(says, said):
            raise UnexpectedError(f"{name} did not print {says!r} but {said[-300:]}")
        return said


Check = Callable[[Bench], None]


@dataclass(frozen=True, kw_only=True)
class CheckedSuite:
    """A suite of such tests, by name.

    Attributes:
        name, version, about, brokers, creates_topics: see `Suite`.
        checks: the tests.
        fetch: fetches what they need, and raises `PeerMissingError` where that cannot be had.
        program: where a program is, by its name.
        timeout_s: of each command.
    """

    name: str
    version: str
    about: str
    checks: Mapping[str, Check]
    fetch: Callable[[], object]
    timeout_s: float
    program: Callable[[str], str | Path] = str
    brokers: int = 1
    creates_topics: bool = False

    def build(self) -> None:
        """Fetch what the tests need."""
        try:
            self.fetch()
        except PeerMissingError as error:
            raise SuiteMissingError(str(error)) from error

    def tests(self) -> Sequence[str]:
        """Return the names of the tests."""
        return list(self.checks)

    def run(self, target: Target, tests: Sequence[str]) -> Iterator[Result]:
        """Run some of them, one after another."""
        folder = target.folder / self.name
        folder.mkdir(parents=True, exist_ok=True)
        for test in tests:
            bench = Bench(
                target=target,
                test=test,
                folder=folder,
                program=self.program,
                timeout_s=self.timeout_s,
            )
            begun, said = time.monotonic(), ""
            try:
                self.checks[test](bench)
            except UnexpectedError as error:
                said = shortened(str(error))
            outcome = Outcome.FAILED if said else Outcome.PASSED
            yield Result(test=test, outcome=outcome, seconds=time.monotonic() - begun, said=said)
