"""Simulated clusters of brokers of the product: what works, and what survives which faults."""

import pytest
from tests.sim.cluster import SimulatedCluster
from tests.sim.faults import FAMILIES
from tests.sim.run import Outcome, run
from tests.sim.swarm import crafted


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
