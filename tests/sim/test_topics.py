"""Topics of simulated clusters that are kept short, deleted, or set otherwise while they run."""

from collections.abc import Mapping

import pytest
from tests.sim.client import Load
from tests.sim.cluster import SimulatedCluster, TopicPlan
from tests.sim.faults import FAMILIES, Family
from tests.sim.run import Outcome, run
from tests.sim.swarm import crafted
from tests.sim.world import MILLISECOND, Violation, World

from millrace.core.ids import TopicId, TopicPartition

STEADY = Load(every_us=60 * MILLISECOND, burst_max=3)


def ran(
    cluster: type[SimulatedCluster], *steps: tuple[float, Family, float], quiet_s: float = 25
) -> tuple[SimulatedCluster, Outcome, list[str]]:
    """Run faults on a cluster; return it, what came out, and all that was noted."""
    made: list[SimulatedCluster] = []
    notes: list[str] = []

    class Noting(cluster):  # type: ignore[misc, valid-type]
        def __init__(self, world: World) -> None:
            note = world.note

            def keep(text: str) -> None:
                notes.append(text)
                note(text)

            world.note = keep  # type: ignore[method-assign]
            super().__init__(world)
            made.append(self)

    outcome = run(Noting, crafted(3, steps, quiet_s))
    assert outcome.violation is None, f"{outcome.trace.text()}\n{outcome.violation}"
    return made[0], outcome, notes


def of_one_topic(config: Mapping[str, str]) -> type[SimulatedCluster]:
    class OneTopic(SimulatedCluster):
        topics = (TopicPlan(partitions=1, config=config, loads=(STEADY,), asks_ends=True),)

    return OneTopic


BY_SIZE = {"retention.bytes": "10000"}
BY_TIME = {"retention.ms": "8000", "message.timestamp.type": "LogAppendTime"}


@pytest.mark.parametrize("config", [BY_SIZE, BY_TIME], ids=["by size", "by time"])
def test_what_retention_gives_up_is_gone_everywhere_and_nothing_else(
    config: Mapping[str, str],
) -> None:
    cluster, outcome, _ = ran(
        of_one_topic(config), (30, FAMILIES["F02"], 3), (40, FAMILIES["F04"], 3)
    )
    assert outcome.fired.total() == 2
    [start] = cluster.invariants.log_starts.values()
    logs = [log for node in cluster.nodes().values() for log in node.logs.values()]
    assert len(logs) == 3
    assert all(0 < log.log_start_offset <= start for log in logs)
    assert outcome.measures["acknowledged"] > start > 100


def test_a_replica_that_was_away_for_too_long_begins_anew() -> None:
    cluster, outcome, notes = ran(of_one_topic(BY_SIZE), (10, FAMILIES["F01"], 60), quiet_s=30)
    assert outcome.fired["F01"] == 1
    assert any(" begins " in note for note in notes)
    logs = [log for node in cluster.nodes().values() for log in node.logs.values()]
    assert min(log.log_start_offset for log in logs) > 0


class LateReaders(SimulatedCluster):
    topics = (TopicPlan(partitions=1, config=BY_SIZE, loads=(STEADY,), polls_every_us=16_000_000),)


def test_a_reader_that_is_late_goes_on_where_the_log_begins() -> None:
    cluster, _, _ = ran(LateReaders, quiet_s=120)
    [recorder] = cluster.recorders.values()
    assert any(op.f == "seek" and op.process.startswith("consumer") for op in recorder.ops)


class Disposable(SimulatedCluster):
    """One topic is deleted and made again; nothing may happen to the other."""

    topics = (
        TopicPlan(partitions=1),
        TopicPlan(name="again", partitions=2, loads=(STEADY,), is_disposable=True),
    )


def test_a_topic_that_is_made_again_begins_empty_and_the_old_one_s_data_goes() -> None:
    steps = [(at, FAMILIES["F70"], 4.0) for at in (10.0, 20.0, 30.0)]
    cluster, outcome, _ = ran(Disposable, *steps)
    assert outcome.fired["F70"] == 3
    assert len(cluster.deleted) == 3
    assert {each.incarnation for each in cluster.wanted()} == {0, 3}
    for machine in cluster.machines.values():
        held = {path.split("/")[2] for path in machine.disk.files() if path.endswith(".log")}
        assert held == {str(key) for each in cluster.wanted() for key in each.keys}


def test_data_that_nobody_has_deleted_on_record_must_not_go() -> None:
    cluster, _, _ = ran(SimulatedCluster, quiet_s=10)
    unknown = TopicPartition(TopicId(b"nobody knows it."), 0)
    for topic_partition in (unknown, *cluster.states):
        with pytest.raises(Violation, match="deletes"):
            cluster.invariants.on_deleting("broker-0", topic_partition)


def test_settings_that_change_while_records_come_lose_nothing() -> None:
    steps = [(10.0 + 5 * at, FAMILIES["F72"], 4.0) for at in range(12)]
    steps += [(11.0 + 9 * at, FAMILIES["F02"], 2.0) for at in range(6)]
    _, outcome, _ = ran(of_one_topic({"min.insync.replicas": "2"}), *steps)
    assert outcome.fired["F72"] == 12
