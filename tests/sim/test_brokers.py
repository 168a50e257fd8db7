"""Simulated clusters: what works without faults, and which faults they survive."""

import pytest
from tests.sim.cluster import SimulatedCluster
from tests.sim.drawn_clusters import BrokerCluster
from tests.sim.faults.catalogue import FAMILIES
from tests.sim.run import Outcome, plan_of, run
from tests.sim.swarm import crafted
from tests.sim.world import MINUTE

pytestmark = pytest.mark.timeout(600)  # Whole clusters, on busy machines.


def good(outcome: Outcome) -> Outcome:
    assert outcome.violation is None, f"{outcome.trace.text()}\n{outcome.violation}"
    return outcome


def test_a_cluster_without_faults_keeps_and_serves_everything() -> None:
    outcome = good(run(SimulatedCluster, crafted(1, [], quiet_s=10)))
    assert outcome.measures["acknowledged"] > 100
    assert outcome.measures["leader_changes"] == outcome.measures["isr_changes"] == 0


@pytest.mark.parametrize("fault_id", ["F28", "F29", "F30", "F31", "F32", "F48", "F71", "F72"])
def test_what_only_a_whole_cluster_can_be_hit_by_fires_and_loses_nothing(fault_id: str) -> None:
    steps = [(at, FAMILIES[fault_id], 3.0) for at in (16.0, 24.0, 32.0)]
    outcome = good(run(BrokerCluster, crafted(2, steps)))
    assert outcome.fired[fault_id] > 0


@pytest.mark.parametrize("seed", range(2))
def test_a_swarm_of_faults_breaks_nothing(seed: int) -> None:
    outcome = good(run(BrokerCluster, plan_of(BrokerCluster, seed, MINUTE)))
    assert outcome.measures["acknowledged"] > 100
