"""The share of the lines of broker and client that simulated clusters execute.

Each core runs one named scenario for each kind of cluster, and some seeds of the swarm, in an order
that is drawn once so that also a short time meets all parts; then further seeds and the other
scenarios in turn, until its time is up. What is left out: telemetry and its page, which no
simulated cluster has, files of the operating system, and the start of the broker's process.
"""

import logging
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from bench.measure import Bench, Bound, Outcome, figure, say
from bench.processes import LoadFailedError

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = (ROOT / "broker" / "millrace" / "broker", ROOT / "client" / "millrace" / "client")
LEFT_OUT: Final = (
    "storage/posix_file_system.py",
    "telemetry/",
    "broker/app.py",
    "client/metrics.py",
    "client/tracing.py",
    "client/page_server.py",
)
SHARE_MIN: Final = 0.85
SECONDS: Final = 240
EARLY_SEEDS: Final = 8
"""Of the swarm; half of them store their metadata at an API server."""


@dataclass(frozen=True)
class Share:
    """The lines that one process has executed, by file, and all lines of each file."""

    runs: int
    violations: list[str]
    lines: dict[str, frozenset[int]]
    executed: dict[str, frozenset[int]]


def run_for(first: int, step: int, seconds: float) -> Share:
    """Run every `step`-th of all runs, until the time is up."""
    from coverage import Coverage

    ends = time.monotonic() + seconds
    coverage = Coverage(
        data_file=None, config_file=False, source=list(map(str, SOURCES)), concurrency="greenlet"
    )
    coverage.start()
    # Imported only now, so that the lines that run at import count.
    from tests.sim.all_scenarios import ALL_SCENARIOS
    from tests.sim.mutants.catalogue import MUTANTS
    from tests.sim.mutants.runs import runs, swarm
    from tests.sim.run import Outcome as RunOutcome

    logging.disable(logging.CRITICAL)
    by_cluster = {each.cluster: each for each in ALL_SCENARIOS}
    of_each: list[tuple[str, Callable[[], RunOutcome]]] = [
        *((each.about, partial(each.run, 0)) for each in by_cluster.values()),
        *((f"swarm, seed {seed}", partial(swarm, seed)) for seed in range(EARLY_SEEDS)),
    ]
    random.Random(0).shuffle(of_each)
    violations: list[str] = []
    done = 0
    for number, (name, run) in enumerate(chain(of_each, runs(MUTANTS[0]))):
        if number % step != first:
            continue
        outcome = run()
        done += 1
        if outcome.violation is not None:
            violations.append(f"{name}: {outcome.violation.splitlines()[0]}")
        if time.monotonic() >= ends:
            break
    coverage.stop()
    lines, executed = {}, {}
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            name = str(path.relative_to(source.parents[1]))
            if any(part in name for part in LEFT_OUT):
                continue
            _, statements, _, missing, _ = coverage.analysis2(str(path))
            lines[name] = frozenset(statements)
            executed[name] = frozenset(statements) - frozenset(missing)
    return Share(done, violations, lines, executed)


def measure(bench: Bench) -> Outcome:
    """Run on every core for as long as all rounds take, and count the lines of all together."""
    cores = os.cpu_count() or 1
    seconds = bench.rounds * bench.seconds
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        shares = pool.starmap(run_for, [(core, cores, seconds) for core in range(cores)])
    violations = [each for share in shares for each in share.violations]
    if violations:
        raise LoadFailedError("; ".join(violations))
    lines = shares[0].lines
    executed = {
        name: frozenset[int]().union(*(share.executed[name] for share in shares)) for name in lines
    }
    by_file = {name: len(executed[name]) / len(of) for name, of in sorted(lines.items()) if of}
    for name, share in sorted(by_file.items(), key=lambda each: each[1])[:20]:
        say(f"{share:6.1%} {name}")
    return Outcome(
        bounds=[
            Bound(
                what="share of the lines of broker and client that are executed",
                value=sum(map(len, executed.values())) / sum(map(len, lines.values())),
                at_least=SHARE_MIN,
            )
        ],
        detail={
            "cores": cores,
            "seconds": seconds,
            "runs": sum(share.runs for share in shares),
            "lines": sum(map(len, lines.values())),
            "share_by_file": by_file,
        },
    )


if __name__ == "__main__":
    figure("sim_share", unit="share", goal=">= 0.85", measure=measure, seconds=SECONDS)
