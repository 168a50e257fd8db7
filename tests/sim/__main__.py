"""`python -m tests.sim --seed N`: run seeds; shrink a run that fails, and print how to repeat it.

`python -m tests.sim mutants`: remove one rule of the product after another, and see whether the
runs find it. `python -m tests.sim scenarios`: run the named scenarios.
"""

import argparse
import importlib
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.sim.mutants import report
from tests.sim.mutants.catalogue import MUTANTS
from tests.sim.mutants.hunt import Found, hunt_within
from tests.sim.mutants.runs import runs
from tests.sim.run import Factory, Outcome, describe, plan_of, run, shrink
from tests.sim.scenarios.catalogue import ALL_SCENARIOS
from tests.sim.swarm import Plan
from tests.sim.world import MINUTE, SECOND

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "tests.sim.drawn_clusters:BrokerCluster"
_CHANGES = ("leader_changes", "isr_changes")
_SEEDS_THAT_PROVE = 10


def commit() -> str:
    """The commit that is checked out; a plus when files were changed since."""
    described = subprocess.run(
        ["git", "-c", "safe.directory=*", "describe", "--always", "--dirty=+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def load(cluster: str) -> Factory:
    module, _, name = cluster.partition(":")
    factory: Factory = getattr(importlib.import_module(module), name)
    return factory


def command(arguments: argparse.Namespace, plan: Plan) -> str:
    """The one line that repeats a run."""
    numbers = ",".join(str(fault.number) for fault in plan.faults) or "none"
    cluster = "" if arguments.cluster == CLUSTER else f" --cluster {arguments.cluster}"
    return (
        f"python -m tests.sim --seed {plan.seed} --commit {commit()} "
        f"--minutes {arguments.minutes:g}{cluster} --faults {numbers}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after another")
    parser.add_argument("--minutes", type=float, default=5, help="simulated minutes of each")
    parser.add_argument("--cluster", default=CLUSTER, help="module:factory of what is simulated")
    parser.add_argument("--faults", help="only these faults of the plan, or none: 3,17")
    parser.add_argument("--commit", help="where the seed failed; other code makes another run")
    parser.add_argument("--trace", action="store_true", help="print the end of the trace")
    parser.add_argument("--no-shrink", action="store_true", help="leave a failing run as it is")
    return parser.parse_args()


def look_for_mutants(options: list[str]) -> int:
    """Print each mutant's result; fail when a mutant survives or is not a valid mutant."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim mutants")
    parser.add_argument("--minutes", type=float, default=10, help="for all of them together")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at a time")
    parser.add_argument("names", nargs="*", help="parts of names, or rules such as P13")
    arguments = parser.parse_args(options)
    mutants = [
        mutant
        for mutant in MUTANTS
        if not arguments.names
        or any(name == mutant.rule or name in mutant.name for name in arguments.names)
    ]
    found: list[Found] = []
    for outcome in hunt_within(mutants, runs, arguments.minutes * 60, arguments.processes):
        print(report.line(outcome), flush=True)
        found.append(outcome)
    print(report.summary(found))
    return int(len(report.caught(found)) < len(found))


def play_scenarios(options: list[str]) -> int:
    """Run the named scenarios, or those about something."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim scenarios")
    parser.add_argument("about", nargs="*", help="such as B9 or P23")
    arguments = parser.parse_args(options)
    failed = 0
    for scenario in ALL_SCENARIOS:
        if arguments.about and scenario.about not in arguments.about:
            continue
        for seed in range(scenario.seeds):
            outcome = scenario.run(seed)
            end = "" if outcome.violation is None else f" FAILS: {outcome.violation}"
            print(f"{scenario.about}: {scenario.name}, seed {seed}{end}", flush=True)
            failed += outcome.violation is not None
    return int(failed > 0)


def main() -> int:
    logging.disable(logging.CRITICAL)  # Killed brokers log a lot.
    if sys.argv[1:2] == ["mutants"]:
        return look_for_mutants(sys.argv[2:])
    if sys.argv[1:2] == ["scenarios"]:
        return play_scenarios(sys.argv[2:])
    arguments = parse()
    if arguments.commit not in (None, commit()):
        print(f"The seed is of {arguments.commit}, but this is {commit()}: it may run otherwise.")
    factory = load(arguments.cluster)
    fired: Counter[str] = Counter()
    changes: Counter[str] = Counter()
    simulated_us = handled = 0
    began = time.process_time()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        plan = plan_of(factory, seed, int(arguments.minutes * MINUTE))
        if arguments.faults is not None:
            plan = plan.only(int(n) for n in arguments.faults.split(",") if n != "none")
        outcome = run(factory, plan, is_detailed=arguments.trace)
        if outcome.violation is not None:
            return fail(arguments, factory, outcome)
        print(
            f"seed {seed}: {outcome.simulated_us / SECOND:.0f} s, {outcome.events} events, "
            f"{outcome.fired.total()} faults, trace {outcome.digest}"
        )
        if arguments.trace:
            print(outcome.trace.text())
        fired += outcome.fired
        changes.update({name: round(outcome.measures.get(name, 0)) for name in _CHANGES})
        simulated_us += outcome.simulated_us
        handled += outcome.handled
    seconds = max(time.process_time() - began, 1e-9)
    print(
        f"{arguments.seeds} seeds, {simulated_us / SECOND / 3600:.2f} simulated hours without a "
        f"violation; {handled / seconds:,.0f} events a second handled by nodes\n"
        + " ".join(f"{fault_id}:{count}" for fault_id, count in sorted(fired.items()))
    )
    return _judge_changes(changes, arguments)


def _judge_changes(changes: Counter[str], arguments: argparse.Namespace) -> int:
    """Require leader changes and ISR changes over many seeds: runs without them prove little.

    A single seed may have none.
    """
    missing = [name for name in _CHANGES if not changes[name]]
    is_whole = arguments.cluster == CLUSTER and arguments.faults is None
    if not missing or not is_whole or arguments.seeds < _SEEDS_THAT_PROVE:
        return 0
    print(f"expected, but did not happen in any seed: {', '.join(missing)}")
    return 1


def fail(arguments: argparse.Namespace, factory: Factory, outcome: Outcome) -> int:
    if not arguments.no_shrink:
        print(f"Seed {outcome.plan.seed} fails; looking for the faults that it takes ...")
        outcome = shrink(factory, outcome)
    print(describe(outcome, command(arguments, outcome.plan)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
