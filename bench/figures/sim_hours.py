"""Hours of simulated clusters under faults without a violation, for each hour of running.

Each core runs seed after seed until its time is up, except those whose plan shows that they cannot
count. A seed counts with at least three brokers, eight partitions, five acknowledged records a
second, twenty faults an hour, and one leader change. One violation in any seed, counted or not, and
there is no value; the other seeds run all the same, so that a run shows all violations.
"""

import logging
import multiprocessing
import os
import time
from collections import Counter
from dataclasses import dataclass

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from tests.sim.hours import HoursCluster, may_count
from tests.sim.run import plan_of, run
from tests.sim.world import MINUTE, SECOND

LENGTH_US = 10 * MINUTE

BROKERS_MIN = 3
PARTITIONS_MIN = 8
RECORDS_PER_SECOND_MIN = 5
FAULTS_PER_HOUR_MIN = 20


@dataclass(frozen=True)
class Seed:
    """The result of one seed."""

    number: int
    hours: float
    counts: bool
    violation: str | None
    handled: int
    operations: float
    acknowledged: float
    leader_changes: float
    faults: Counter[str]


def run_seed(number: int) -> Seed:
    """Run one seed, and decide whether it counts."""
    outcome = run(HoursCluster, plan_of(HoursCluster, number, LENGTH_US))
    seconds = outcome.simulated_us / SECOND
    measures = outcome.measures
    counts = outcome.violation is None and (
        measures["brokers"] >= BROKERS_MIN
        and measures["partitions"] >= PARTITIONS_MIN
        and measures["acknowledged"] / seconds >= RECORDS_PER_SECOND_MIN
        and outcome.fired.total() / (seconds / 3600) >= FAULTS_PER_HOUR_MIN
        and measures["leader_changes"] >= 1
    )
    return Seed(
        number,
        seconds / 3600,
        counts,
        outcome.violation,
        outcome.handled,
        measures.get("operations", 0),
        measures.get("acknowledged", 0),
        measures.get("leader_changes", 0),
        outcome.fired,
    )


def run_seeds(first: int, step: int, seconds: float) -> list[Seed]:
    """Run every `step`-th seed until the time is up."""
    logging.disable(logging.CRITICAL)  # Killed brokers log a lot.
    ends = time.monotonic() + seconds
    done: list[Seed] = []
    number = first - step
    while time.monotonic() < ends:
        number += step
        if not may_count(plan_of(HoursCluster, number, LENGTH_US), FAULTS_PER_HOUR_MIN):
            continue
        done.append(run_seed(number))
        if done[-1].violation is not None:
            say(f"seed {number}: {done[-1].violation}")
    return done


def measure(bench: Bench) -> Outcome:
    """Run seeds on every core, round after round."""
    cores = os.cpu_count() or 1
    done: list[Seed] = []
    began_at = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        for number in range(bench.rounds):
            first = 1 + max((seed.number for seed in done), default=0)
            shares = [(first + core, cores, bench.seconds) for core in range(cores)]
            done += [seed for share in pool.starmap(run_seeds, shares) for seed in share]
            hours = sum(seed.hours for seed in done if seed.counts)
            ran_hours = (time.monotonic() - began_at) / 3600
            say(f"round {number + 1}/{bench.rounds} {hours:.1f} h in {ran_hours * 60:.0f} minutes")
    failed = [seed for seed in done if seed.violation is not None]
    if failed:
        others = "".join(f", {seed.number}" for seed in failed[1:])
        raise LoadFailedError(f"seed {failed[0].number}{others}: {failed[0].violation}")
    counted = [seed for seed in done if seed.counts]
    faults: Counter[str] = sum((seed.faults for seed in counted), Counter())
    return Outcome(
        values={"simulated hours of seeds that count, for each hour of running": hours / ran_hours},
        detail={
            "cores": cores,
            "seeds": len(done),
            "seeds_that_count": len(counted),
            "hours_of_seeds_that_count": hours,
            "hours_of_all_seeds": sum(seed.hours for seed in done),
            "operations": sum(seed.operations for seed in counted),
            "acknowledged_records": sum(seed.acknowledged for seed in counted),
            "leader_changes": sum(seed.leader_changes for seed in counted),
            "handled_events": sum(seed.handled for seed in counted),
            "faults": faults.total(),
            "fault_ids": dict(sorted(faults.items())),
        },
    )
