"""Whole runs of a toy cluster: plans, faults that fire, what is found, and how small it gets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim.faults import FAMILIES, Family
from tests.sim.run import Outcome, describe, plan_of, run, shrink
from tests.sim.swarm import Plan, crafted, plan
from tests.sim.toy_cluster import CarelessCluster, ToyCluster
from tests.sim.world import MINUTE, SECOND, Violation, World

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


class AnythingCluster(ToyCluster):
    """The toy under every family."""

    families = ALL


def with_one_fault(family: Family) -> Plan:
    return crafted(7, [(6, family, min(family.duration_us[1] / SECOND, 8))])


@pytest.mark.parametrize("family", ALL, ids=lambda family: family.fault_id)
def test_a_fault_fires_once_if_there_is_something_to_hit(family: Family) -> None:
    outcome = run(AnythingCluster, with_one_fault(family))
    # The toy keeps one segment and no other file, nothing in the store, and has no controller.
    has_nothing_to_hit = {"F28", "F29", "F30", "F31", "F32", "F40", "F41", "F45"}
    has_nothing_to_hit |= {"F48", "F70", "F71", "F72", "F73"}
    assert outcome.fired[family.fault_id] == (family.fault_id not in has_nothing_to_hit)
    if family in ToyCluster.families:
        assert outcome.violation is None, outcome.violation


def test_the_same_run_twice_is_the_same_and_a_fault_less_is_another() -> None:
    drawn = plan_of(ToyCluster, 8, MINUTE)
    assert len(drawn.faults) > 5
    first, second = run(ToyCluster, drawn), run(ToyCluster, drawn)
    assert first.digest == second.digest
    assert (first.events, first.handled) == (second.events, second.handled)
    assert run(ToyCluster, drawn.only(range(1, 99))).digest != first.digest


def test_a_run_says_what_happened() -> None:
    outcome = run(ToyCluster, plan_of(ToyCluster, 2, MINUTE))
    assert outcome.violation is None
    assert outcome.measures["acknowledged"] > 100
    assert outcome.handled > 1000


def failure(seed: int = 1) -> tuple[Outcome, Plan]:
    drawn = plan_of(CarelessCluster, seed, MINUTE)
    return run(CarelessCluster, drawn), drawn


def test_an_acknowledgement_before_the_flush_is_found_and_needs_one_fault_only() -> None:
    outcome, drawn = failure()
    assert outcome.violation is not None
    assert "lost-write" in outcome.violation
    small = shrink(CarelessCluster, outcome)
    assert small.violation is not None
    assert len(drawn.faults) > 5
    [fault] = small.plan.faults
    assert fault in drawn.faults
    text = describe(small, "the command")
    assert text.endswith("\n  the command")
    assert f"{fault.family.fault_id}, {fault.family.name}" in text
    assert "lost-write" in text
    again = run(CarelessCluster, small.plan, is_detailed=True)
    assert again.digest == small.digest


def test_most_seeds_with_power_cuts_find_it() -> None:
    families = [FAMILIES[fault_id] for fault_id in ("F02", "F04", "F06", "F27")]
    found = sum(
        run(CarelessCluster, plan(seed, MINUTE, families)).violation is not None
        for seed in range(10)
    )
    assert found >= 6


class FailingCluster(ToyCluster):
    """Breaks an invariant after a while, whatever the faults."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._clock = world

    def check(self) -> None:
        if self._clock.now >= 30 * SECOND:
            raise Violation("thirty seconds are enough")


def test_a_failure_without_faults_shrinks_to_none() -> None:
    outcome = run(FailingCluster, plan_of(FailingCluster, 8, MINUTE))
    assert outcome.violation == "thirty seconds are enough"
    assert shrink(FailingCluster, outcome).plan.faults == ()


class CrashingCluster(ToyCluster):
    """Its product code has a mistake."""

    def begin_quiet(self) -> None:
        raise KeyError("a mistake")


def test_an_exception_is_a_violation() -> None:
    outcome = run(CrashingCluster, plan_of(CrashingCluster, 1, MINUTE))
    assert outcome.violation is not None
    assert "KeyError: 'a mistake'" in outcome.violation


class StuckCluster(ToyCluster):
    """Its leader never comes back."""

    def start(self) -> None:
        super().start()
        self.machines["toy-0"].kill()


def test_what_does_not_move_on_in_quiet_is_a_violation() -> None:
    outcome = run(StuckCluster, plan_of(StuckCluster, 1, MINUTE).only([]))
    assert outcome.violation == "the leader does not acknowledge, though all is quiet"


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", "--minutes", "1", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_failing_seed_prints_one_line_that_repeats_it() -> None:
    careless = ("--cluster", "tests.sim.toy_cluster:CarelessCluster")
    failed = simulate("--seed", "1", *careless)
    assert failed.returncode == 1, failed.stderr
    command = failed.stdout.splitlines()[-1].split()
    assert command[:3] == ["python", "-m", "tests.sim"]
    assert {"--seed", "--commit", "--faults", *careless} <= set(command)
    again = simulate(*command[3:], "--no-shrink")
    assert again.returncode == 1, again.stderr
    # The same violation at the same time, by the same fault.
    assert again.stdout.split("\nseed 1 fails", 1)[1] == failed.stdout.split("\nseed 1 fails", 1)[1]
