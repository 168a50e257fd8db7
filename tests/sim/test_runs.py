"""Whole runs of small clusters: plans, injected faults, violations, and shrinking."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim.clients.readers_and_writers import Load
from tests.sim.cluster import SimulatedCluster
from tests.sim.faults.catalogue import FAMILIES
from tests.sim.mutants.catalogue import MUTANTS
from tests.sim.mutants.mutant import planted
from tests.sim.run import describe, plan_of, run, shrink
from tests.sim.swarm import crafted, plan
from tests.sim.topics import TopicPlan
from tests.sim.world import MINUTE, SECOND, Violation

pytestmark = pytest.mark.timeout(600)  # Whole clusters, on busy machines.

ROOT = Path(__file__).resolve().parents[2]

ALL = tuple(FAMILIES.values())


def test_a_plan_is_its_seed_s() -> None:
    assert plan(3, 5 * MINUTE, ALL) == plan(3, 5 * MINUTE, ALL)
    assert plan(3, 5 * MINUTE, ALL) != plan(4, 5 * MINUTE, ALL)


@pytest.mark.parametrize("seed", range(30))
def test_faults_begin_outside_quiet_windows_and_a_plan_ends_quiet(seed: int) -> None:
    drawn = plan(seed, 10 * MINUTE, ALL)
    assert drawn.quiet_us[-1][1] == drawn.end_us >= 10 * MINUTE
    assert [fault.number for fault in drawn.faults] == list(range(len(drawn.faults)))
    for fault in drawn.faults:
        assert 0 < fault.at_us < drawn.end_us
        assert not any(begin <= fault.at_us < end for begin, end in drawn.quiet_us)
        least, most = fault.family.duration_us
        assert least <= fault.duration_us <= most


def test_seeds_choose_few_families_and_together_all() -> None:
    chosen = [
        {fault.family.fault_id for fault in plan(seed, MINUTE, ALL).faults} for seed in range(300)
    ]
    assert set().union(*chosen) == FAMILIES.keys()
    sizes = sorted(map(len, chosen))
    assert sizes[len(sizes) // 2] <= 8
    assert sizes[-1] >= 12


class OnePartition(SimulatedCluster):
    """A small cluster that loses power now and then."""

    families = tuple(FAMILIES[fault_id] for fault_id in ("F02", "F04", "F06", "F10", "F33"))
    topics = (
        TopicPlan(
            partitions=1, config={"durability": "fsync"}, loads=(Load(every_us=SECOND // 20),)
        ),
    )


BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_the_same_run_twice_is_the_same_and_a_fault_less_or_another_seed_is_another() -> None:
    drawn = plan_of(OnePartition, 8, MINUTE // 2)
    assert len(drawn.faults) > 2
    first, second = run(OnePartition, drawn), run(OnePartition, drawn)
    assert first.violation is None
    assert first.digest == second.digest
    assert (first.events, first.handled) == (second.events, second.handled)
    assert run(OnePartition, drawn.only(range(1, 99))).digest != first.digest
    assert run(OnePartition, plan_of(OnePartition, 9, MINUTE // 2)).digest != first.digest


@pytest.mark.nightly
def test_a_violation_is_found_and_shrinks_to_the_faults_that_it_takes() -> None:
    with planted(BY_NAME["all replicas are asked for, and only the leader is waited for"]):
        outcomes = (run(OnePartition, plan_of(OnePartition, n, MINUTE // 2)) for n in range(2, 30))
        outcome = next(outcome for outcome in outcomes if outcome.violation is not None)
        faults = set(outcome.plan.faults)
        small = shrink(OnePartition, outcome)
        assert small.violation is not None
        assert len(small.plan.faults) < len(faults)
        assert faults.issuperset(small.plan.faults)
        text = describe(small, "the command")
        assert text.endswith("\n  the command")
        assert small.violation in text
        again = run(OnePartition, small.plan, is_detailed=True)
        assert again.digest == small.digest


class FailingCluster(OnePartition):
    """Breaks an invariant after a while, whatever the faults."""

    def check(self) -> None:
        super().check()
        if self.now >= 15 * SECOND:
            raise Violation("fifteen seconds are enough")


def test_a_failure_without_faults_shrinks_to_none() -> None:
    outcome = run(FailingCluster, plan_of(FailingCluster, 8, MINUTE // 2))
    assert outcome.violation == "fifteen seconds are enough"
    assert shrink(FailingCluster, outcome).plan.faults == ()


class CrashingCluster(OnePartition):
    """The code that judges has a mistake."""

    def begin_quiet(self) -> None:
        raise KeyError("a mistake")


def test_an_exception_is_a_violation() -> None:
    outcome = run(CrashingCluster, crafted(1, [], quiet_s=5))
    assert outcome.violation is not None
    assert "KeyError: 'a mistake'" in outcome.violation


class StuckCluster(OnePartition):
    """All but one of its brokers never come back."""

    def begin_quiet(self) -> None:
        super().begin_quiet()
        for machine in list(self.machines.values())[1:]:
            machine.kill()


def test_what_does_not_move_on_in_quiet_is_a_violation() -> None:
    outcome = run(StuckCluster, crafted(1, [], quiet_s=20))
    assert outcome.violation is not None
    assert "though all is quiet" in outcome.violation


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", "--minutes", "0.3", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_failing_seed_prints_one_line_that_repeats_it() -> None:
    failing = ("--cluster", "tests.sim.test_runs:FailingCluster")
    failed = simulate("--seed", "1", *failing)
    assert failed.returncode == 1, failed.stderr
    command = failed.stdout.splitlines()[-1].split()
    assert command[:3] == ["python", "-m", "tests.sim"]
    assert {"--seed", "--commit", "--faults", *failing} <= set(command)
    again = simulate(*command[3:], "--no-shrink")
    assert again.returncode == 1, again.stderr
    # The same violation at the same time, by the same fault.
    assert again.stdout.split("\nseed 1 fails", 1)[1] == failed.stdout.split("\nseed 1 fails", 1)[1]
