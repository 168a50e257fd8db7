"""Simulated clusters of brokers of the product: what works, and what survives which faults."""

from tests.sim.cluster import SimulatedCluster
from tests.sim.run import Outcome, run
from tests.sim.swarm import crafted


def good(outcome: Outcome) -> Outcome:
    assert outcome.violation is None, f"{outcome.trace.text()}\n{outcome.violation}"
    return outcome


def test_a_cluster_without_faults_keeps_and_serves_everything() -> None:
    outcome = good(run(SimulatedCluster, crafted(1, [], quiet_s=10)))
    assert outcome.measures["acknowledged"] > 100
    assert outcome.measures["leader_changes"] == outcome.measures["isr_changes"] == 0
