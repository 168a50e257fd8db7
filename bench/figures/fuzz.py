"""Executions of all targets of the fuzzer, of which none crashes, hangs, or takes memory for good.

Each target is fuzzed for the time of a round, in every round, and goes on with what it has learned
(`tests/fuzz`). As many run at once as there are processors.
"""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from tests.fuzz.running import FuzzFailedError, fuzz
from tests.fuzz.targets import TARGETS


def measure(bench: Bench) -> Outcome:
    """Fuzz one target after another."""
    executions: Counter[str] = Counter()
    growth_mb: Counter[str] = Counter()
    seconds = max(round(bench.seconds), 1)
    processes = os.cpu_count() or 1
    for number in range(bench.rounds):
        with ThreadPoolExecutor(processes) as threads:
            try:
                runs = list(threads.map(lambda target: fuzz(target, seconds), TARGETS))
            except FuzzFailedError as error:
                raise LoadFailedError(str(error)) from error
        for target, run in zip(TARGETS, runs, strict=True):
            executions[target] += run.executions
            growth_mb[target] = max(growth_mb[target], run.growth_mb)
        say(f"round {number + 1}/{bench.rounds} {executions.total():12,} executions")
    spent = bench.rounds * seconds * len(TARGETS)
    return Outcome(
        values={"executions without a crash": float(executions.total())},
        detail={
            "executions": dict(executions.most_common()),
            "growth_mb": dict(growth_mb),
            "executions_per_core_second": executions.total() / spent,
            "processes": processes,
        },
    )
