"""Simulated clusters: what works without faults, and which faults they survive."""

import pytest
from tests.sim.cluster import BrokerCluster, SimulatedCluster
from tests.sim.faults import FAMILIES
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


@pytest.mark.parametrize("fault_id", ["F01", "F02", "F03", "F38", "F47", "F49"])
def test_processes_that_end_and_come_back_lose_nothing(fault_id: str) -> None:
    steps = [(at, FAMILIES[fault_id], 3.0) for at in (6.0, 12.0, 18.0)]
    outcome = good(run(SimulatedCluster, crafted(2, steps)))
    assert outcome.fired[fault_id] == 3
    assert outcome.measures["leader_changes"] > 0


@pytest.mark.parametrize("fault_id", ["F28", "F29", "F30", "F31", "F32", "F48", "F71", "F72"])
def test_what_only_a_whole_cluster_can_be_hit_by_fires_and_loses_nothing(fault_id: str) -> None:
    steps = [(at, FAMILIES[fault_id], 3.0) for at in (16.0, 24.0, 32.0)]
    outcome = good(run(BrokerCluster, crafted(2, steps)))
    assert outcome.fired[fault_id] > 0


class SetBackCluster(SimulatedCluster):
    """Objects of its store are deleted, or older ones restored, until an undo.

    No broker may continue from there; the end of each fault checks it.
    """


def with_a_store_set_back(fault_id: str) -> Outcome:
    """Set the store back twice, kill the controller meanwhile, and restore the newest state."""
    steps = [(8.0, FAMILIES[fault_id], 6.0), (9.0, FAMILIES["F38"], 2.0)]
    steps += [(20.0, FAMILIES[fault_id], 8.0), (21.0, FAMILIES["F38"], 2.0)]
    return run(SetBackCluster, crafted(2, steps))


@pytest.mark.parametrize("fault_id", ["F41", "F45"])
def test_nobody_goes_on_from_a_store_that_was_set_back(fault_id: str) -> None:
    assert good(with_a_store_set_back(fault_id)).fired[fault_id] == 2


@pytest.mark.parametrize("seed", range(2))
def test_a_swarm_of_faults_breaks_nothing(seed: int) -> None:
    outcome = good(run(BrokerCluster, plan_of(BrokerCluster, seed, MINUTE)))
    assert outcome.measures["acknowledged"] > 100
