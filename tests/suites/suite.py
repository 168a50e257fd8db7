"""A suite of tests of a client of Kafka: what a module of it offers.

Nobody here wrote the tests; those of clients that come without any are what their documentation
shows.

Invariants: the sources come by a registry's ordinary client, with the version and the hash that are
pinned here, and are kept in the user's cache; every run of one of its programs has a bound, and
takes all of its processes with it when it ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.suites.outcome import Result


class SuiteMissingError(Exception):
    """A suite cannot be had on this machine; the message says what is lacking."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The cluster that a suite is run against.

    Attributes:
        bootstrap: `host:port` of brokers, with commas between them.
        replication: of the topics that tests make.
        records: how many records the tests that move many of them move.
        version: of Kafka, that clients take the brokers for.
        folder: for whatever a suite writes; one for this run.
    """

    bootstrap: str
    folder: Path
    replication: int = 1
    records: int = 20_000
    version: str = "4.1.1"


class Suite(Protocol):
    """One suite.

    Attributes:
        brokers: how many the cluster should have.
        creates_topics: whether it should create topics that are looked up.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def brokers(self) -> int: ...

    @property
    def creates_topics(self) -> bool: ...

    def build(self) -> None:
        """Fetch and build it; does nothing where that is done.

        Raises:
            SuiteMissingError: a tool for it is lacking here.
        """

    def tests(self) -> Sequence[str]:
        """Return the tests that may be asked for, after `build`.

        Each may have others within it, which only a run shows.
        """

    def run(self, target: Target, tests: Sequence[str]) -> Iterator[Result]:
        """Run some of its tests, one after another."""
