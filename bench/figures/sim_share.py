"""The share of the lines of broker and client that simulated clusters execute.

Each core runs one named scenario for each kind of cluster, and some seeds of the swarm: of each
module of scenarios in turn, so that also a short time meets all parts. Then come further seeds and
the other scenarios, until its time is up. What is left out: telemetry and its page, which no
simulated cluster has, files of the operating system, and the start of the broker's process.
"""

import logging
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = tuple(ROOT / part / "millrace" / part for part in ("broker", "client", "runtime"))
LEFT_OUT: Final = (
    "storage/posix_file_system.py",
    "telemetry/",
    "broker/process.py",
    "client/metrics.py",
    "client/tracing.py",
    "runtime/page_messages.py",
    "runtime/page_server.py",
    "runtime/telemetry_server.py",
)
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
    from tests.sim.mutants.catalogue import MUTANTS
    from tests.sim.mutants.runs import runs, swarm
    from tests.sim.run import Outcome as RunOutcome
    from tests.sim.scenarios.catalogue import ALL_SCENARIOS

    logging.disable(logging.CRITICAL)
    parts: defaultdict[str, list[tuple[str, Callable[[], RunOutcome]]]] = defaultdict(list)
    of_clusters = {scenario.cluster: scenario for scenario in ALL_SCENARIOS}
    for cluster, scenario in of_clusters.items():
        parts[cluster.__module__].append((scenario.about, partial(scenario.run, 0)))
    parts["swarm"] = [(f"swarm, seed {seed}", partial(swarm, seed)) for seed in range(EARLY_SEEDS)]
    in_turn = [run for turn in zip_longest(*parts.values()) for run in turn if run is not None]
    violations: list[str] = []
    done = 0
    for number, (name, run) in enumerate(chain(in_turn, runs(MUTANTS[0]))):
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
    violations = [violation for share in shares for violation in share.violations]
    if violations:
        raise LoadFailedError("; ".join(violations))
    lines = shares[0].lines
    executed = {
        name: frozenset[int]().union(*(share.executed[name] for share in shares)) for name in lines
    }
    by_file = {name: len(executed[name]) / len(of) for name, of in sorted(lines.items()) if of}
    for name, share in sorted(by_file.items(), key=lambda entry: entry[1])[:20]:
        say(f"{share:6.1%} {name}")
    return Outcome(
        values={
            "share of the lines of broker and client that are executed": sum(
                map(len, executed.values())
            )
            / sum(map(len, lines.values()))
        },
        detail={
            "cores": cores,
            "seconds": seconds,
            "runs": sum(share.runs for share in shares),
            "lines": sum(map(len, lines.values())),
            "share_by_file": by_file,
        },
    )
