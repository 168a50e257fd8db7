"""Two sides as slices of one run: a producer sends all the time, and something is on, or off.

Other load on the machine affects neighbours alike, so a share is the median over all pairs of
them. Pairs have either order in turn: on, off, off, on. The log is in memory, where that is
possible: the rate of a disk varies by many times of what is measured.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.directories import run_directory
from bench.loads.spec import Load, command_line
from bench.measure import Bench, Outcome, ratios
from bench.millrace_broker import Millrace, running_millrace
from bench.processes import LoadFailedError, start, stop, until, usage
from bench.records import write_random_records
from bench.settings import MILLRACE_PRODUCER, MILLRACE_TOPIC
from bench.sides import GRACE_S, fresh_topic

from millrace.client import SyncAdmin

MEMORY = Path("/dev/shm")
RECORD_BYTES = 1000
PARTITIONS = 4
WARM_UP_S = 2.0
START_TIMEOUT_S = 30
SWITCH_S = 0.2
"""How long it may take to turn on or off."""
TOPIC_CONFIG = {
    **MILLRACE_TOPIC["replicated"],
    "segment.bytes": str(64 << 20),
    "retention.bytes": str(64 << 20),
}
"""All of it fits into memory, however long it runs."""


class Slice(NamedTuple):
    """A part of a run: how much was appended, and the broker's time of the processor."""

    size: float
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """How much in a second."""
        return self.size / self.seconds


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The slices of both sides, in pairs of neighbours."""

    on: list[Slice] = field(default_factory=list)
    off: list[Slice] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        broker: Millrace,
        records: Path,
        seconds: float,
        slice_s: float,
        *,
        appended: Callable[[SyncAdmin, str], float],
        switch: Callable[[SyncAdmin, bool], None],
    ) -> "Sides":
        """Measure for so many seconds with it on, and for as many with it off.

        Args:
            appended: how much was appended to a topic so far.
            switch: turns it on or off.

        Raises:
            LoadFailedError: the producer ended too early.
        """
        pairs = max(1, round(seconds / slice_s))
        sides = cls()
        with (
            SyncAdmin(broker.address) as admin,
            fresh_topic(broker, PARTITIONS, TOPIC_CONFIG) as topic,
            _producing(broker, topic, records, WARM_UP_S + 2 * pairs * (slice_s + SWITCH_S)),
        ):
            until(lambda: appended(admin, topic) or None, "the first record", START_TIMEOUT_S)
            time.sleep(WARM_UP_S)
            sides.add_pairs(
                pairs,
                partial(switch, admin),
                lambda: measured(lambda: appended(admin, topic), broker.pids, slice_s),
            )
        return sides

    @classmethod
    def together(cls, rounds: "Sequence[Sides]") -> "Sides":
        """Return the slices of all rounds."""
        return cls(
            on=[part for sides in rounds for part in sides.on],
            off=[part for sides in rounds for part in sides.off],
        )

    def add_pairs(
        self, pairs: int, switch: Callable[[bool], None], measured: Callable[[], Slice]
    ) -> None:
        """Measure so many pairs.

        Args:
            pairs: how many.
            switch: turns it on or off.
            measured: measures a slice.
        """
        for number in range(2 * pairs):
            is_on = number % 4 in {0, 3}
            switch(is_on)
            (self.on if is_on else self.off).append(measured())
        switch(False)

    def lost(self) -> float:
        """Return the share of the rate that is lost while it is on."""
        rates = [[part.rate for part in side] for side in (self.on, self.off)]
        return 1 - median(ratios(*rates))

    def cpu_lost(self) -> float:
        """Return the share of the broker's time of the processor that it takes."""
        return 1 - _cpu(self.off) / _cpu(self.on)


def cost(what: str, rounds: Sequence[Sides], rate: str, **detail: Any) -> Outcome:
    """Return the share of the throughput that it costs, over the slices of all rounds.

    Args:
        rate: the name of the rate without it, with its unit.
    """
    both = Sides.together(rounds)
    return Outcome(
        values={f"share of the throughput that {what}": both.lost()},
        detail={
            "rounds": [sides.lost() for sides in rounds],
            "pairs": len(both.off),
            rate: median(part.rate for part in both.off),
            "broker_cpu_lost": both.cpu_lost(),
            **detail,
        },
    )


def measured(size: Callable[[], float], pids: Sequence[int], seconds: float) -> Slice:
    """Measure a slice of so many seconds.

    Args:
        size: how much was appended so far.
        pids: of the broker.
        seconds: to wait.
    """
    began_at, before, used = time.monotonic(), size(), usage(*pids)
    time.sleep(seconds)
    grown, took = size() - before, time.monotonic() - began_at
    return Slice(grown, took, usage(*pids).since(used).cpu_seconds)


@contextmanager
def broker_in_memory(bench: Bench) -> Iterator[tuple[Millrace, Path]]:
    """Run a broker with its log in memory, where that is possible; yield it and some records."""
    records = write_random_records(bench.directory / "records", RECORD_BYTES)
    with (
        run_directory(MEMORY if MEMORY.is_dir() else bench.directory) as directory,
        running_millrace(directory / "millrace") as broker,
    ):
        yield broker, records


@contextmanager
def _producing(broker: Millrace, topic: str, records: Path, seconds: float) -> Iterator[None]:
    """Produce to a topic in the block; at its end see that all has arrived."""
    load = Load(
        address=broker.address,
        topic=topic,
        partitions=PARTITIONS,
        seconds=seconds,
        records_file=str(records),
        way="batch",
        settings=MILLRACE_PRODUCER,
    )
    log = records.with_suffix(".log")
    log.unlink(missing_ok=True)
    process = start(command_line("millrace_produce", load), log)
    try:
        yield
        is_early = process.poll() is not None
        process.wait(seconds + GRACE_S)
        printed = log.read_text(errors="replace")
        if is_early or process.returncode:
            raise LoadFailedError(f"the producer ended too early:\n{printed[-4000:]}")
    finally:
        stop(process, 0)


def _cpu(slices: Sequence[Slice]) -> float:
    return sum(part.cpu_seconds for part in slices) / sum(part.size for part in slices)
