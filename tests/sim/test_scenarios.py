"""The named scenarios of the day: each is clean, and some of them fail if the product lacks a rule.

`python -m tests.sim scenarios`, a part of `make nightly`, runs all, each with all its seeds.

`make mutants` runs the scenarios against each mutant, first those that name it, until one catches
it.
"""

import pytest
from tests.sim.mutants.catalogue import MUTANTS
from tests.sim.mutants.mutant import planted
from tests.sim.run import describe
from tests.sim.scenarios.catalogue import ALL_SCENARIOS
from tests.sim.scenarios.scenario import Scenario

pytestmark = pytest.mark.timeout(600)  # Whole clusters, on busy machines.

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
QUICK = ("P14, P15", "B22")


def id_of(scenario: Scenario) -> str:
    return f"{scenario.about} {scenario.name}"


@pytest.mark.parametrize(
    "scenario", [scenario for scenario in ALL_SCENARIOS if scenario.by_day], ids=id_of
)
def test_it_is_survived(scenario: Scenario) -> None:
    outcome = scenario.run(0)
    assert outcome.violation is None, describe(outcome, scenario.command(0))
    assert outcome.fired or not scenario.steps  # Else it catches no mutant, either.


@pytest.mark.parametrize("scenario", ALL_SCENARIOS, ids=id_of)
def test_it_names_mutants_that_there_are(scenario: Scenario) -> None:
    assert all(name in BY_NAME for name in scenario.mutants)


@pytest.mark.parametrize(
    ("scenario", "mutant"),
    [
        (scenario, mutant)
        for scenario in ALL_SCENARIOS
        if scenario.about in QUICK
        for mutant in scenario.mutants
    ],
    ids=lambda value: value if isinstance(value, str) else value.about,
)
def test_without_its_rule_it_is_not(scenario: Scenario, mutant: str) -> None:
    with planted(BY_NAME[mutant]) as executions:
        outcomes = (scenario.run(seed) for seed in range(scenario.seeds))
        assert any(outcome.violation is not None for outcome in outcomes)
    assert executions.count
