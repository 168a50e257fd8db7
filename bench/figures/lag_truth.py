"""Seconds until the lag of a group is the truth after a change: the slowest of all changes.

Three brokers with default settings. Records are written to a partition, and later the group commits
that it has read them, again and again at random times. Time begins with the acknowledgement. It
ends when the number of records and the age of the oldest one are right, both as
`Admin.describe_lags` returns them and on the metrics page of the group's coordinator.
"""

import random
import time
from dataclasses import dataclass
from statistics import median

from bench.measure import Bench, Outcome, say
from bench.metrics_page import samples
from bench.millrace_cluster import MillraceCluster, running_millrace_cluster
from bench.processes import until
from bench.settings import MILLRACE_TOPIC

from millrace.client import Lag, Position, SyncAdmin, SyncProducer

PARTITIONS = 12
RECORDS = 100
GROUP, TOPIC = "g", "t"
SHOWN_FOR_S = 2.0
"""The age of what is shown: a lag in seconds may be that much smaller than it is by now."""
TIMEOUT_S = 30
POLL_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What the lag should be.

    Attributes:
        records: that are not read.
        since: when they were written, by the wall clock; they have no other age.
    """

    records: int
    since: float

    def fits(self, records: float | None, seconds: float | None) -> bool:
        """Whether this is the lag now."""
        if records != self.records or seconds is None:
            return False
        if not self.records:
            return seconds == 0
        age = time.time() - self.since
        return max(0.0, age - SHOWN_FOR_S) < seconds <= age + 0.01


def measure(bench: Bench) -> Outcome:
    """Change the lag for as long as a round takes, round after round."""
    times: dict[str, list[float]] = {"admin": [], "metrics": []}
    with (
        running_millrace_cluster(bench.directory / "millrace") as cluster,
        SyncProducer(cluster.address) as producer,
    ):
        cluster.create_topic(TOPIC, PARTITIONS, MILLRACE_TOPIC["replicated"])
        ends = dict.fromkeys(((TOPIC, number) for number in range(PARTITIONS)), 0)
        _commit(cluster.admin, ends)
        chance = random.Random(1)
        for number in range(bench.rounds):
            ends_at = time.monotonic() + bench.seconds
            changes = 0
            while time.monotonic() < ends_at:
                time.sleep(chance.random())
                place = (TOPIC, chance.randrange(PARTITIONS))
                since = time.time()
                producer.send_batch(TOPIC, [b"x" * 100] * RECORDS, partition=place[1])
                producer.flush()
                ends[place] += RECORDS
                _wait(cluster, Truth(records=RECORDS, since=since), times)
                time.sleep(chance.random())
                _commit(cluster.admin, ends)
                _wait(cluster, Truth(records=0, since=0), times)
                changes += 2
            say(f"round {number + 1}/{bench.rounds} {changes} changes, slowest {_slowest(times)}")
    slowest = _slowest(times)
    return Outcome(
        values={
            "s on the metrics page": slowest["metrics"],
            "s by describe_lags": slowest["admin"],
        },
        detail={
            "changes": len(times["metrics"]),
            "median_s": {name: median(seconds) for name, seconds in times.items()},
        },
    )


def _slowest(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: max(seconds) for name, seconds in times.items()}


def _commit(admin: SyncAdmin, ends: dict[tuple[str, int], int]) -> None:
    admin.commit_positions(GROUP, {place: Position(offset) for place, offset in ends.items()})


def _wait(cluster: MillraceCluster, truth: Truth, times: dict[str, list[float]]) -> None:
    """Note how long it takes until the truth is seen in either way.

    Raises:
        LoadFailedError: it is not seen.
    """
    began_at = time.monotonic()
    missing = {"admin": _by_admin, "metrics": _by_metrics}

    def seen() -> bool | None:
        for name, look in list(missing.items()):
            if truth.fits(*look(cluster)):
                times[name].append(time.monotonic() - began_at)
                del missing[name]
        return not missing or None

    until(seen, f"{truth} by {' and '.join(missing)}", TIMEOUT_S, POLL_S)


def _by_admin(cluster: MillraceCluster) -> tuple[float | None, float | None]:
    group = cluster.admin.describe_group(GROUP)
    lags = {} if group is None else cluster.admin.describe_lags(group.positions)
    known = [lag for lag in lags.values() if isinstance(lag, Lag)]
    ages = [lag.milliseconds for lag in known if lag.milliseconds is not None]
    if len(ages) < PARTITIONS:
        return None, None
    return sum(lag.records for lag in known), max(ages) / 1000


def _by_metrics(cluster: MillraceCluster) -> tuple[float | None, float | None]:
    found = samples(cluster.metrics_addresses)
    labels = f'{{group="{GROUP}",topic="{TOPIC}"}}'
    return (
        found.get(f"millrace_group_lag_records{labels}"),
        found.get(f"millrace_group_lag_seconds_max{labels}"),
    )
