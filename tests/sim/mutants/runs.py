"""The runs against a mutant: the named scenarios, and seeds of the swarm, in turn.

Scenarios that name the mutant go first. Then come the others and the swarm, which test for mistakes
without a scenario.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tests.sim.drawn_clusters import BrokerCluster
from tests.sim.mutants.mutant import Mutant
from tests.sim.run import Outcome, plan_of, run
from tests.sim.scenarios.catalogue import ALL_SCENARIOS
from tests.sim.scenarios.scenario import Scenario
from tests.sim.world import MINUTE

_SEEDS_BETWEEN: Final = 4
_LENGTH_US: Final = MINUTE


def swarm(seed: int) -> Outcome:
    """Run one seed of the swarm."""
    return run(BrokerCluster, plan_of(BrokerCluster, seed, _LENGTH_US))


def runs(mutant: Mutant) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """Yield names and runs, without end; each run is clean if there is no mutant."""
    logging.disable(logging.CRITICAL)
    made_for = [scenario for scenario in ALL_SCENARIOS if mutant.name in scenario.mutants]
    made_for.sort(key=_length)  # The cheapest first.
    for seed in range(max((scenario.seeds for scenario in made_for), default=0)):
        for scenario in made_for:
            if seed < scenario.seeds:
                yield f"{scenario.about}, seed {seed}", partial(scenario.run, seed)
    turn = 0
    while True:
        for seed in range(turn * _SEEDS_BETWEEN, (turn + 1) * _SEEDS_BETWEEN):
            yield f"swarm, seed {seed}", partial(swarm, seed)
        for scenario in ALL_SCENARIOS:
            if turn < scenario.seeds and mutant.name not in scenario.mutants:
                yield f"{scenario.about}, seed {turn}", partial(scenario.run, turn)
        turn += 1


def _length(scenario: Scenario) -> float:
    return max((at + duration for at, _, duration in scenario.steps), default=0.0)
