"""The share of the throughput of `produce_1kb` that quotas cost which no client exceeds.

One producer sends as fast as it can to one broker. Meanwhile quotas are set and deleted again, in
turn, of each kind that counts for it: for its client id, its topic and the topic's namespace, of
bytes and of request time. So both sides are parts of the same run, a quarter of a second each, and
load affects them alike. The value is the median over all pairs of neighbours. The log is in memory,
where that is possible: a disk's rate varies by many times of what quotas cost.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.directories import run_directory
from bench.loads.spec import Load, command_line
from bench.measure import Bench, Bound, Outcome, figure, ratios, say
from bench.metrics_page import appended_bytes
from bench.millrace_broker import Millrace, running_millrace
from bench.processes import LoadFailedError, start, stop, until, usage
from bench.records import write_random_records
from bench.settings import MILLRACE_PRODUCER, MILLRACE_TOPIC
from bench.sides import GRACE_S, fresh_topic

from millrace.client import SyncAdmin

RECORD_BYTES = 1000
PARTITIONS = 4
SLICE_S = 0.25
MEMORY = Path("/dev/shm")
TOPIC_CONFIG = {
    **MILLRACE_TOPIC["replicated"],
    "segment.bytes": str(64 << 20),
    "retention.bytes": str(64 << 20),
}
"""All of it fits into memory, however long it runs."""
WARM_UP_S = 2.0
SHARE_MAX = 0.02
START_TIMEOUT_S = 30
SWITCH_S = 0.2
"""How long all quotas may take to be set or deleted."""
_BYTES = {"produce_bytes_per_second": 1 << 40, "fetch_bytes_per_second": 1 << 40}
QUOTAS: dict[str, dict[str, Any]] = {
    "client": {"client_id": "", "request_percent": 10_000, **_BYTES},
    "topic": {"topic": "", **_BYTES},
    "namespace": {"namespace": "", **_BYTES},
}
"""For each client, topic and namespace, the largest that there can be."""


class Slice(NamedTuple):
    """A part of a run: bytes in the log, and the broker's time of the processor."""

    size: float
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.size / self.seconds


@dataclass(frozen=True, kw_only=True)
class Sides:
    """The slices of both sides, in pairs of neighbours."""

    quotas: list[Slice] = field(default_factory=list)
    none: list[Slice] = field(default_factory=list)

    def lost(self) -> float:
        """Return the share that quotas cost."""
        rates = [[each.rate for each in side] for side in (self.quotas, self.none)]
        return 1 - median(ratios(*rates))


def measure(bench: Bench) -> Outcome:
    """Let a producer run once a round, and compare its slices with and without quotas."""
    records = write_random_records(bench.directory / "records", RECORD_BYTES)
    rounds: list[Sides] = []
    with (
        run_directory(MEMORY if MEMORY.is_dir() else bench.directory) as directory,
        running_millrace(directory / "millrace") as broker,
    ):
        for number in range(bench.rounds):
            rounds.append(_round(broker, records, bench.seconds))
            say(f"round {number + 1}/{bench.rounds} {rounds[-1].lost():.4f} lost")
    both = Sides(
        quotas=[each for sides in rounds for each in sides.quotas],
        none=[each for sides in rounds for each in sides.none],
    )
    return Outcome(
        bounds=[
            Bound(
                what="share of the throughput that quotas cost",
                value=both.lost(),
                at_most=SHARE_MAX,
            )
        ],
        detail={
            "rounds": [each.lost() for each in rounds],
            "pairs": len(both.none),
            "mb_per_second": median(each.rate for each in both.none) / 1e6,
            "broker_cpu_lost": 1 - _cpu_per_byte(both.none) / _cpu_per_byte(both.quotas),
        },
    )


def _cpu_per_byte(slices: Sequence[Slice]) -> float:
    return sum(each.cpu_seconds for each in slices) / sum(each.size for each in slices)


def _round(broker: Millrace, records: Path, seconds: float) -> Sides:
    """Measure for so many seconds with quotas, and for as many without."""
    pairs = max(1, round(seconds / SLICE_S))
    sides = Sides()
    with (
        SyncAdmin(broker.address) as admin,
        fresh_topic(broker, PARTITIONS, TOPIC_CONFIG) as topic,
        _producing(broker, topic, records, WARM_UP_S + 2 * pairs * (SLICE_S + SWITCH_S)),
    ):
        until(lambda: _bytes(broker, topic) or None, "the first record", START_TIMEOUT_S)
        time.sleep(WARM_UP_S)
        for number in range(2 * pairs):
            # In pairs of either order: with, without, without, with.
            has_quotas = number % 4 in {0, 3}
            _switch(admin, has_quotas=has_quotas)
            (sides.quotas if has_quotas else sides.none).append(_slice(broker, topic))
        _switch(admin, has_quotas=False)
    return sides


def _slice(broker: Millrace, topic: str) -> Slice:
    began_at, size, used = time.monotonic(), _bytes(broker, topic), usage(*broker.pids)
    time.sleep(SLICE_S)
    size, seconds = _bytes(broker, topic) - size, time.monotonic() - began_at
    return Slice(size, seconds, usage(*broker.pids).since(used).cpu_seconds)


def _bytes(broker: Millrace, topic: str) -> float:
    return appended_bytes(broker.metrics_addresses, topic)


def _switch(admin: SyncAdmin, *, has_quotas: bool) -> None:
    """Have all quotas, or none."""
    if has_quotas:
        for name, quota in QUOTAS.items():
            admin.set_quota(name, **quota)
    else:
        for name in admin.describe_quotas():
            admin.delete_quota(name)


@contextmanager
def _producing(broker: Millrace, topic: str, records: Path, seconds: float) -> Iterator[None]:
    """Produce to a topic in the block; at its end see that all has arrived.

    Raises:
        LoadFailedError: it has not, or the block took longer.
    """
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


if __name__ == "__main__":
    figure("quota_cost", unit="share", goal="<= 0.02", measure=measure)
