"""Scenarios of disks that are restored from a backup, and of brokers that are reluctant to lead."""

from collections.abc import Callable, Mapping
from typing import Final

from tests.fakes.disk import Disk
from tests.sim.faults.family import Family, Scene, Undo, started
from tests.sim.machines.machine import BrokerMachine
from tests.sim.scenarios.scenario import (
    AWAY,
    CUT_A_FOLLOWER,
    Busy,
    Scenario,
    ScenarioCluster,
    again,
)
from tests.sim.settings import Settings
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.core.metadata.model import PartitionState
from millrace.core.records.batch import walk


class Unwilling(ScenarioCluster):
    """All brokers but one have slow disks and are reluctant to lead; all are in sync."""

    settings = Settings(slow_flush_ms=10)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        for name, machine in self.machines.items():
            if name != "broker-0":
                machine.disk.times.flush_us_min = 15 * MILLISECOND


class LedByTheQuick(Unwilling):
    """The broker with the quick disk leads all partitions."""

    topics = (TopicPlan(partitions=3),)

    def finish(self) -> Mapping[str, float]:
        assert self.stored_cluster is not None
        brokers = self.stored_cluster.brokers
        for topic_partition, state in self.states.items():
            if brokers[state.leader].name != "broker-0":
                raise Violation(f"{topic_partition} is led on a slow disk: {state}")
        return super().finish()


def _directory_epoch(scene: Scene, machine: BrokerMachine) -> int:
    """The last life of a machine's broker that, as far as the cluster knows, its disk remembers."""
    assert scene.administered is not None
    assert scene.administered.stored_cluster is not None
    brokers = scene.administered.stored_cluster.brokers.values()
    return max(broker.directory_epoch for broker in brokers if broker.name == machine.name)


def _put_an_older_copy_back(scene: Scene) -> Undo | None:
    """Restart a machine; later restore its disk to the state before that restart, until the end."""
    names = [
        name
        for name in scene.role("follower")
        if name not in (*scene.role("leader"), *scene.role("controller"))
    ]
    if not names:
        return None
    machine = scene.machines[scene.dice.choice(names)]
    disk, since = machine.disk, _directory_epoch(scene, machine)
    newest: list[Disk] = []
    machine.kill()
    older = disk.copy()
    machine.start()

    def put_back() -> None:
        if _directory_epoch(scene, machine) > since:  # Else the copy lacks nothing.
            machine.kill()
            newest.append(disk.copy())
            disk.put_back(older, is_older=True)
            machine.start()

    scene.world.after(scene.duration_us // 2, "an older copy of a disk is put back", put_back)

    def undo() -> None:
        if newest:
            machine.kill()
            disk.put_back(newest[0], is_older=False)
        machine.start()

    return undo


OLDER_COPY: Final = Family(
    "F36", "an older copy of a disk is put back", _put_an_older_copy_back, (SECOND, SECOND)
)


class LedAgain(ScenarioCluster):
    """Records are written one at a time; losing one replica must not lose the partition."""

    def begin_quiet(self) -> None:
        super().begin_quiet()
        if any(map(self.may_be_cut, self.states)):
            raise Violation("an unclean election, though nobody wanted one")


def _let_only_an_eligible_one_live(
    scene: Scene, change: Callable[[BrokerMachine, Disk, PartitionState], None]
) -> Undo | None:
    """Kill one broker, then another, which is eligible and comes back alone with an older disk.

    The leader lives long enough to report what is committed, once there is a controller.

    Args:
        change: removes something from its disk that was there when it died. It gets an earlier
            snapshot, and the partition's state.
    """
    leaders, followers = scene.role("leader"), scene.role("follower")
    if scene.administered is None or len(leaders) != 1 or len(followers) != 2:
        return None
    leader = scene.machines[leaders[0]]
    third, eligible = (scene.machines[name] for name in scene.dice.sample(followers, 2))
    snapshots: list[Disk] = []
    third.kill()

    def put_back(state: PartitionState) -> None:
        leader.kill()
        change(eligible, snapshots[0], state)
        eligible.start()

    def look(last: PartitionState | None = None, looks: int = 12) -> None:
        assert scene.administered is not None
        (state,) = scene.administered.states.values()
        is_said = state is last and state.committed_end.end_offset > 0
        if is_said or not looks:
            put_back(state)
        else:
            scene.world.after(SECOND, "the leader has yet to say it", look, state, looks - 1)

    scene.world.after(SECOND, "a snapshot", lambda: snapshots.append(eligible.disk.copy()))
    scene.world.after(3 * SECOND, "the last follower dies", eligible.kill)
    scene.world.after(4 * SECOND, "the leader may have said it", look)

    return started((leader, third))


def _put_a_snapshot_back(scene: Scene) -> Undo | None:
    def change(machine: BrokerMachine, snapshot: Disk, state: PartitionState) -> None:
        machine.disk.set_back(snapshot)

    return _let_only_an_eligible_one_live(scene, change)


def _cut_a_committed_batch_off(scene: Scene) -> Undo | None:
    def change(machine: BrokerMachine, snapshot: Disk, state: PartitionState) -> None:
        end = state.committed_end.end_offset
        disk = machine.disk
        for path in disk.files():
            kept = 0
            for header, batch in walk(disk.contents(path)) if path.endswith(".log") else ():
                if header.base_offset < end <= header.next_offset:
                    scene.world.note(f"{path} of {machine.name} is cut at {header.base_offset}")
                    disk.write(path, disk.contents(path)[:kept])
                    disk.set_backs += 1
                kept += len(batch)

    return _let_only_an_eligible_one_live(scene, change)


SNAPSHOT: Final = Family(
    "F36", "a snapshot of the same life is put back", _put_a_snapshot_back, (SECOND, SECOND)
)
CUT_TAIL: Final = Family(
    "F29", "damage cuts the last committed batch off", _cut_a_committed_batch_off, (SECOND, SECOND)
)

# fmt: off
PUT_BACK_SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario("P25", "all disks but one are slow", LedByTheQuick, seeds=2,
             mutants=["a broker with a bad disk leads as gladly as any other"]),
    Scenario("P28", "an older copy of a log directory is put back, and then the newest", Busy,
             [AWAY, *again(OLDER_COPY, 10, 14, 2, 12)],
             mutants=["an older copy of a log directory is taken for the newest"]),
    Scenario("P26",
             "an eligible replica is put back from a snapshot of the same life, and the others die",
             Busy, again(SNAPSHOT, 6, 60, 2, 35),
             mutants=["what is committed is not kept for eligible replicas",
                      "a leader does not say what is committed",
                      "an eligible replica need not show its log",
                      "an eligible replica of whose log nothing is known has shown enough"]),
    Scenario("P26", "damage cuts the last committed record of an eligible replica off", LedAgain,
             again(CUT_TAIL, 6, 60, 2, 35), by_day=True,
             mutants=["an eligible replica may lack one record",
                      "an eligible replica must have one record more than it had"]),
    Scenario("P39", "the store is put back to an older state while its controller dies", Busy,
             [
                 step
                 for at, fault_id in ((8.0, "F45"), (20.0, "F41"))
                 for step in ((at, fault_id, 8.0), (at + 1, "F38", 2.0))
             ],
             by_day=True, mutants=["a controller goes on from a store that was set back"]),
    # One that has just started joins before it knows that its disk is slow.
    Scenario("P25", "brokers that would rather not lead die or lose touch, and come in sync again",
             Unwilling, [AWAY, *again("F01", 8, 4, 2, 1), *again("F02", 10, 4, 2, 1),
              (22, CUT_A_FOLLOWER, 9)],
             mutants=["a broker that is reluctant to lead does not come in sync"]),
)
# fmt: on
