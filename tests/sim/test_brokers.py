"""Simulated clusters of brokers of the product: what works, and what survives which faults."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from tests.sim.__main__ import ROOT
from tests.sim.cluster import BrokerCluster, SimulatedCluster, TopicPlan
from tests.sim.faults import FAMILIES
from tests.sim.run import Outcome, plan_of, run
from tests.sim.swarm import crafted
from tests.sim.world import MINUTE, World

from millrace.core.replication.in_sync import InSyncReplicas


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


class WritesGoOn(SimulatedCluster):
    """Notes how many values are acknowledged while the most brokers are dead."""

    most_dead = 0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.acknowledged_then: list[int] = []

    def check(self) -> None:
        super().check()
        if len(self.nodes()) == self.brokers - self.most_dead:
            self.acknowledged_then.append(sum(each.acknowledged for each in self.producers))

    def finish(self) -> Mapping[str, float]:
        seen = self.acknowledged_then
        return {**super().finish(), "acknowledged_then": seen[-1] - seen[0]}


class FiveOfWhichTwoMustBeInSync(WritesGoOn):
    brokers = 5
    most_dead = 3
    topics = (TopicPlan(replication_factor=5, config={"min.insync.replicas": "2"}),)


class ThreeOfWhichOneMustBeInSync(WritesGoOn):
    most_dead = 2
    topics = (TopicPlan(config={"min.insync.replicas": "1"}),)


@pytest.mark.parametrize("cluster", [FiveOfWhichTwoMustBeInSync, ThreeOfWhichOneMustBeInSync])
def test_writes_go_on_while_as_many_are_in_sync_as_must_be(cluster: type[WritesGoOn]) -> None:
    steps = [(8.0 + 10 * n, FAMILIES["F02"], 60.0 - 10 * n) for n in range(cluster.most_dead)]
    outcome = good(run(cluster, crafted(5, steps)))
    assert outcome.measures["acknowledged_then"] > 100


@pytest.mark.parametrize("seed", range(4))
def test_a_swarm_of_faults_breaks_nothing(seed: int) -> None:
    outcome = good(run(BrokerCluster, plan_of(BrokerCluster, seed, MINUTE)))
    assert outcome.measures["acknowledged"] > 100


def test_the_same_seed_is_the_same_run_under_any_hash_seed() -> None:
    digests = [digest_under(hash_seed) for hash_seed in ("1", "2")]
    assert digests[0] == digests[1] != ""


def digest_under(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--seed", "6", "--minutes", "0.5"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[0].rpartition("trace ")[2]


def test_a_leader_that_counts_on_itself_alone_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InSyncReplicas, "smallest_end", lambda self, durability: None)
    for seed in range(8):
        outcome = run(BrokerCluster, plan_of(BrokerCluster, seed, MINUTE))
        if outcome.violation is not None:
            return
    pytest.fail("nobody noticed")
