"""Mutants are planted and removed, invalid ones are detected, and the report says so."""

from collections.abc import Callable, Iterator

import pytest
from tests.sim.cluster import SimulatedCluster
from tests.sim.mutants import report
from tests.sim.mutants.catalogue import MUTANTS
from tests.sim.mutants.hunt import Budget, Found, hunt, hunt_within
from tests.sim.mutants.mutant import Mutant, NoMutantError, mutant, planted
from tests.sim.run import Outcome, run
from tests.sim.swarm import crafted
from tests.sim.topics import TopicPlan

from millrace.core.controller.brokers import registration
from millrace.core.controller.brokers.registration import kind_of
from millrace.core.ids import EpochEnd, LeaderEpoch, Offset
from millrace.core.replica.log import leader_epochs
from millrace.core.replica.log.leader_epochs import LeaderEpochs

pytestmark = pytest.mark.timeout(600)  # Whole clusters, on busy machines.

EPOCHS = "millrace.core.replica.log.leader_epochs:LeaderEpochs"


BROKEN = "def begin_quiet(self) -> None:\n    nowhere()"


def ends() -> EpochEnd:
    epochs = LeaderEpochs([(1, 0), (3, 10)])
    return epochs.end_offset_for(LeaderEpoch(1), Offset(20))


def test_a_property_stays_one() -> None:
    changed = mutant(
        "no epoch", "P3", f"{EPOCHS}.latest_epoch", "if self.entries else", "if 0 else"
    )
    with planted(changed):
        assert LeaderEpochs([(1, 0)]).latest_epoch == -1
    assert LeaderEpochs([(1, 0)]).latest_epoch == 1


def test_a_function_is_replaced_wherever_it_was_imported() -> None:
    target = "millrace.core.controller.brokers.registration:kind_of"
    changed = mutant("all is clean", "P27", target, "if known is None:", "if True:")
    here = globals()
    original = kind_of
    with planted(changed):
        assert registration.kind_of is here["kind_of"] is not original
    assert registration.kind_of is here["kind_of"] is original


def test_a_planted_mutant_is_there_with_what_holds_its_rule_elsewhere_and_then_gone() -> None:
    other = mutant(
        "all is clean",
        "P27",
        "millrace.core.controller.brokers.registration:kind_of",
        "if known is None:",
        "if True:",
    )
    changed = mutant(
        "wrong end", "P3", f"{EPOCHS}.end_offset_for", "if at == 0:", "if at == 1:", also=other
    )
    original = kind_of
    with planted(changed) as executions:
        assert ends() == EpochEnd(LeaderEpoch(1), Offset(0))
        assert registration.kind_of is not original
        assert executions.count == 1
    assert ends() == EpochEnd(LeaderEpoch(1), Offset(10))
    assert registration.kind_of is original
    assert not hasattr(leader_epochs, "_mutant_is_executed")


@pytest.mark.parametrize(
    ("target", "old"),
    [
        ("millrace.core.replica.log.gone:LeaderEpochs.append", "assert"),
        (f"{EPOCHS}.gone", "assert"),
        (f"{EPOCHS}.append", "this text is not there"),
        (f"{EPOCHS}.append", "assert"),  # It occurs twice.
    ],
)
def test_a_mutant_whose_target_is_gone_is_an_error(target: str, old: str) -> None:
    with pytest.raises(NoMutantError), planted(mutant("gone", "P1", target, old, "pass")):
        pass


@pytest.mark.parametrize("known", MUTANTS, ids=lambda known: f"{known.rule} {known.name}")
def test_every_mutant_of_the_catalogue_can_be_planted(known: Mutant) -> None:
    with planted(known):
        pass


def test_names_are_each_of_one_mutant_and_many_rules_are_broken() -> None:
    assert len({changed.name for changed in MUTANTS}) == len(MUTANTS) >= 30
    assert len({changed.rule for changed in MUTANTS}) >= 30


class OnePartition(SimulatedCluster):
    topics = (TopicPlan(partitions=1),)


def short_runs(_: Mutant) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    plan = crafted(1, [], quiet_s=10)
    for number in range(99):
        yield f"run {number}", lambda: run(OnePartition, plan)


def test_a_mutant_that_never_runs_is_none() -> None:
    found = hunt(
        mutant(
            "unused",
            "P1",
            "millrace.core.controller.partitions.unclean_recovery:best_replica",
            "max(",
            "min(",
        ),
        short_runs,
        Budget(simulated_s=1),
    )
    assert found.problem.endswith("is never executed")
    assert report.problems([found]) == [found]
    assert report.caught([found]) == []


def test_a_hunt_ends_with_its_budget() -> None:
    survives = mutant("nothing", "P1", "tests.sim.world:World.note", "self.now", "(self.now)")
    found = hunt(survives, short_runs, Budget(simulated_s=60))
    assert found.caught_by is None
    assert found.problem == ""
    assert 60 <= found.simulated_s < 200
    assert "survivors" in report.summary([found])


def test_a_mutant_that_is_no_sound_code_is_no_catch() -> None:
    target = "tests.sim.cluster:SimulatedCluster.begin_quiet"
    found = hunt(
        mutant("a name", "P1", target, "def begin_quiet(self) -> None:", BROKEN),
        short_runs,
        Budget(simulated_s=60),
    )
    assert "NameError" in found.problem


def test_the_report_counts_what_is_caught_in_time() -> None:
    one, other = MUTANTS[:2]
    found = [Found(one, "seed 1", "bad", cpu_s=5), Found(other, "seed 2", "bad", cpu_s=50)]
    assert len(report.caught(found)) == 2
    assert len(report.caught(found, within_s=10)) == 1
    assert "2 of 2" in report.summary(found)


@pytest.mark.nightly
def test_a_hunt_for_many_goes_on_in_rounds_until_its_time_is_over() -> None:
    survives = mutant("nothing", "P1", "tests.sim.world:World.note", "self.now", "(self.now)")
    gone = mutant("gone", "P1", f"{EPOCHS}.gone", "a", "b")
    first, last = hunt_within([survives, gone], short_runs, 30, processes=2)
    assert (first.mutant, last.mutant) == (gone, survives)
    assert first.problem.startswith("there is no")
    assert last.caught_by is None
    assert last.runs > 1
