"""Scenarios of consumer groups: members that are cut off, stand still, work for long, commit late
or return, and coordinators that die at any step. `ownership` has what must hold.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tests.sim.clients.members import GroupPlan
from tests.sim.clients.readers_and_writers import Load
from tests.sim.faults.family import Family, Scene, Undo
from tests.sim.faults.operators import drained
from tests.sim.machines.machine import BrokerMachine
from tests.sim.machines.network import Weather
from tests.sim.scenarios.scenario import Scenario, ScenarioCluster, again
from tests.sim.settings import Settings
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation

from millrace.core.coordinator.positions.position import PositionsConfig
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.topics import POSITIONS_TOPIC

_SOON: Final = 100 * MILLISECOND
_LOAD: Final = (Load(every_us=10 * _SOON, burst_max=2),)
_SETTLED_S: Final = 20
"""All static members have joined by then."""
_ORPHANED_S_MAX: Final = 25
"""A session of 10 s, the kills meanwhile, and the time in which a new coordinator hears members."""
_RETENTION_S: Final = 20
_LATE_COMMIT_US: Final = (2 * SECOND, 4_900 * MILLISECOND)
"""Almost until a client gives a call up, and so ends it at the broker, too."""
_STAYERS: Final = ("member-0-t-0", "member-1-t-0")
"""Those that stay, of a group where two do."""


def grouped_topic(group: GroupPlan) -> TopicPlan:
    return TopicPlan(partitions=4, loads=_LOAD, polls_every_us=3 * _SOON, group=group)


class Grouped(ScenarioCluster):
    """Three members share four partitions."""

    topics = (grouped_topic(GroupPlan()),)


class Steady(ScenarioCluster):
    """They stay for minutes."""

    topics = (grouped_topic(GroupPlan(polls=400)),)


class SlowlyGrouped(ScenarioCluster):
    """They take one record at a time, and after each burst many wait for a while."""

    topics = (
        TopicPlan(
            partitions=4,
            loads=(Load(every_us=120 * _SOON, burst_max=6),),
            polls_every_us=4 * _SOON,
            group=GroupPlan(records_max=1),
        ),
    )


class Working(ScenarioCluster):
    """They often work for longer than a heartbeat waits, commit after that, and come and go."""

    topics = (grouped_topic(GroupPlan(polls=8, works_us=6 * SECOND, commits=1.0)),)


class Interrupted(ScenarioCluster):
    """They are often at work, and commit after that."""

    topics = (grouped_topic(GroupPlan(polls=40, works_us=3 * SECOND, works=0.8, commits=1.0)),)


class AtWork(ScenarioCluster):
    """They are often at work, and leave it to the client to commit what is done."""

    topics = (grouped_topic(GroupPlan(polls=40, works_us=3 * SECOND, works=0.8, commits=0.0)),)


class TooSlow(ScenarioCluster):
    """They work for longer than they promised, so that they leave the group meanwhile."""

    topics = (
        grouped_topic(GroupPlan(polls=20, works_us=5 * SECOND, max_poll_ms=3_000, commits=1.0)),
    )


class Flapping(ScenarioCluster):
    """Some members stay, others come and go all the time, and each commits after each poll."""

    topics = (
        grouped_topic(GroupPlan(members=4, polls=10, away_us=4 * SECOND, stays=2, commits=1.0)),
    )


class Overtaken(ScenarioCluster):
    """Those that stay commit each partition by itself, and do not wait for that."""

    topics = (
        TopicPlan(
            partitions=8,
            loads=(Load(every_us=10 * _SOON, burst_max=1),),
            polls_every_us=2 * _SOON,
            group=GroupPlan(
                members=5,
                polls=3,
                away_us=2 * SECOND,
                stays=len(_STAYERS),
                commits=1.0,
                stayers_wait=False,
            ),
        ),
    )


class Undisturbed(Flapping):
    """Nothing is wrong with members, so none of them loses its partitions."""

    def finish(self) -> Mapping[str, float]:
        """Check that all members kept their sessions while coordinators died (P55)."""
        measures = super().finish()
        if self.ownership.losses:
            raise Violation(f"sessions have ended: {self.ownership.losses}")
        return measures


class Unchanged(Undisturbed):
    """Members stay, so that their heartbeats wait to the end. Times are those of the default."""

    settings = Settings(cluster=ClusterConfig(positions_partitions=3))
    topics = (grouped_topic(GroupPlan(members=3, stays=3, commits=0.0, request_ms=30_000)),)

    def finish(self) -> Mapping[str, float]:
        """Check that members found each coordinator within a session (P61)."""
        measures = super().finish()
        if self.ownership.silences:
            raise Violation(f"living members were not heard: {self.ownership.silences} (P61)")
        return measures


class Shrinking(ScenarioCluster):
    """All members but one leave for good, or die."""

    topics = (grouped_topic(GroupPlan(members=4, polls=15, stays=1, returns=False)),)


class Abandoned(ScenarioCluster):
    """One member dies while coordinators come and go."""

    topics = (grouped_topic(GroupPlan(polls=15, stays=2, returns=False, dies=1.0)),)

    def finish(self) -> Mapping[str, float]:
        """Check that others soon have what it had (P61)."""
        measures = super().finish()
        orphaned_s = self.ownership.orphaned_us / SECOND
        if orphaned_s > _ORPHANED_S_MAX:
            raise Violation(f"a dead member has kept its partitions for {orphaned_s:.0f} s (P61)")
        return {**measures, "orphaned_s": orphaned_s}


class Twins(ScenarioCluster):
    """Two members have one instance id: one of them waits for the other."""

    topics = (grouped_topic(GroupPlan(polls=15, instances=2, dies=0.0)),)


class Static(ScenarioCluster):
    """Members return under their instance ids before their sessions end."""

    topics = (grouped_topic(GroupPlan(polls=15, instances=3, dies=0.0)),)

    def finish(self) -> Mapping[str, float]:
        """Check that nothing moved while members were away (KIP-345)."""
        measures = super().finish()
        moves = [what for at, what in self.ownership.moves if at > _SETTLED_S * SECOND]
        if moves:
            raise Violation(f"partitions of static members have moved: {moves}")
        return measures


class Patterned(ScenarioCluster):
    """Members subscribe to a regular expression, and a second topic comes that it matches."""

    topics = (
        grouped_topic(GroupPlan(polls=200, pattern="t.*")),
        TopicPlan(name="t-later", partitions=2, loads=_LOAD, made_at_us=15 * SECOND),
    )


class Idle(ScenarioCluster):
    """Little is written, and positions of groups without members are soon forgotten."""

    settings = Settings(positions=PositionsConfig(retention_ms=_RETENTION_S * 1000))
    topics = (
        TopicPlan(
            partitions=2,
            loads=(Load(every_us=80 * SECOND, burst_max=6),),
            polls_every_us=5 * _SOON,
            group=GroupPlan(members=2, stays=2, commits=1.0),
        ),
    )


def _member(scene: Scene) -> str:
    return scene.dice.choice([client for client in scene.clients if client.startswith("member")])


def _cut_member(scene: Scene) -> Undo | None:
    return scene.cut([_member(scene)], list(scene.machines))


def _cut_from_coordinator(scene: Scene) -> Undo | None:
    coordinator = scene.pick("coordinator")
    return None if coordinator is None else scene.cut([_member(scene)], [coordinator.name])


def _delay_member(scene: Scene) -> Undo | None:
    member = _member(scene)
    weather = Weather(lateness=0.1)
    links = [(member, machine) for machine in scene.machines]
    return scene.network.impose([*links, *((b, a) for a, b in links)], weather)


def _delay_commits(scene: Scene) -> Undo | None:
    links = [(member, machine) for member in _STAYERS for machine in scene.machines]
    weather = Weather(
        lateness=0.5, late_us=_LATE_COMMIT_US, late_calls=frozenset({"CommitPositions"})
    )
    return scene.network.impose(links, weather)


def _freeze_member(scene: Scene) -> Undo | None:
    machine = scene.clients[_member(scene)]
    machine.freeze()
    return machine.thaw


def _stored(machine: BrokerMachine) -> int:
    """The number of records in the coordinators' logs of a machine."""
    node = machine.node
    image = None if node is None else node.metadata
    topic = None if image is None else image.topics.get(POSITIONS_TOPIC)
    if node is None or topic is None:
        return 0
    logs = node.logs.items()
    return sum(log.log_end_offset for key, log in logs if key.topic_id == topic.topic_id)


def _kill_coordinator_at_a_step(scene: Scene) -> Undo | None:
    """Kill the coordinator right after it has written some more records, before it can answer."""
    coordinator = scene.pick("coordinator")
    if coordinator is None:
        return None
    wanted = _stored(coordinator) + scene.dice.randrange(1, 12)
    life = coordinator.node
    is_over = False

    def look() -> None:
        if is_over or coordinator.node is not life:
            return
        if _stored(coordinator) >= wanted:
            coordinator.kill()
        else:
            scene.world.after(MILLISECOND // 2, "a step of the coordinator", look)

    def undo() -> None:
        nonlocal is_over
        is_over = True
        coordinator.start()

    look()
    return undo


def _end_coordinator(end: Callable[[BrokerMachine], object], scene: Scene) -> Undo | None:
    coordinator = scene.pick("coordinator")
    if coordinator is None:
        return None
    end(coordinator)
    return coordinator.start


_LONG: Final = (12 * SECOND, 20 * SECOND)
CUT_OFF: Final = Family(
    "F14", "a member is cut off for longer than its session", _cut_member, _LONG
)
FROM_COORDINATOR: Final = Family(
    "F14", "a member is cut off from its coordinator alone", _cut_from_coordinator, _LONG
)
LATE: Final = Family(
    "F18", "what a member says and hears comes up to half a minute late", _delay_member, _LONG
)
LATE_COMMITS: Final = Family(
    "F18", "commits of members that stay come seconds late", _delay_commits, _LONG
)
STANDS_STILL: Final = Family(
    "F66", "a member stands still for longer than its session", _freeze_member, _LONG
)


def _drain_coordinator(scene: Scene) -> Undo | None:
    coordinator = scene.pick("coordinator")
    node = None if coordinator is None else coordinator.node
    if node is None or node.replicas is None:
        return None
    return drained(scene, node.replicas.broker.broker_id)


DRAINED: Final = Family(
    "F48", "the coordinator is drained, and taken back", _drain_coordinator, _LONG
)
POWERLESS: Final = Family(
    "F04", "the coordinator loses power", partial(_end_coordinator, BrokerMachine.cut_power), _LONG
)
KILLED: Final = Family(
    "F67", "the coordinator is killed", partial(_end_coordinator, BrokerMachine.kill), _LONG
)
COORDINATOR: Final = Family(
    "F67", "the coordinator is killed at some step", _kill_coordinator_at_a_step, _LONG
)

# fmt: off
GROUP_SCENARIOS: Final = (
    Scenario("P61", "members are cut off for longer than their session, with records that wait",
             SlowlyGrouped, again(CUT_OFF, 6, 20, 2, 14), seeds=3, quiet_s=40,
             mutants=["a member that is not heard stays for ever"]),
    Scenario("P61, P62", "members work for longer than a heartbeat waits, and others come and go",
             Working, by_day=True, seeds=4, quiet_s=70,
             mutants=["a partition is free before its owner has confirmed that it gave it up",
                      "a member confirms an assignment before it has taken it"]),
    Scenario("P61: slow members", "members do not poll for longer than they promised", TooSlow,
             seeds=3, quiet_s=50, mutants=["a member that leaves as it is slow reads on"]),
    Scenario("P61: sessions",
             "members are cut off from their coordinator, and from no other broker", Steady,
             again(FROM_COORDINATOR, 8, 20, 2, 16), seeds=3, quiet_s=25,
             mutants=["a member whose session has ended reads on",
                      "a member that has lost its partitions reads on"]),
    Scenario("P62: zombies", "members stand still for longer than their session, and go on",
             Interrupted, again(STANDS_STILL, 8, 24, 3, 20), seeds=3, quiet_s=35,
             mutants=["a commit of a member that is gone counts"]),
    Scenario("P62: automatic commits", "members are at work while the client commits by itself",
             AtWork, [(15, "F17", 1)], seeds=2, quiet_s=35,
             mutants=["a poll commits records that it hands out itself"]),
    Scenario("P58", "what members say and hear comes late", Grouped, again(LATE, 4, 16, 2, 15),
             by_day=True, seeds=3, quiet_s=25,
             mutants=["a commit that comes late takes back the next one of its member",
                      "a member commits a record that it has not handed out"]),
    Scenario("P58, P62", "commits come late, while partitions go to and fro", Overtaken,
             again(LATE_COMMITS, 4, 20, 4, 18), seeds=4, quiet_s=30,
             mutants=["a member commits with any assignment",
                      "a member commits for partitions of others"]),
    Scenario("P59", "coordinators are killed again and again", Undisturbed,
             again("F02", 5, 6, 4, 3), by_day=True, seeds=3, quiet_s=25,
             mutants=["an assignment is not in the log", "a heartbeat does not prolong a session"]),
    Scenario("P59, P60", "coordinators are killed at any step of joins, assignments and commits",
             Undisturbed, again(COORDINATOR, 6, 7, 8, 4), seeds=4, quiet_s=30,
             mutants=["a new coordinator ends sessions that it has not heard of",
                      "a new owner begins where nobody has committed"]),
    Scenario("P55: resignations",
             "coordinators hand their group over and take it back, and nobody restarts",
             Undisturbed, again(DRAINED, 5, 16, 6, 12), by_day=True, seeds=2, quiet_s=25,
             mutants=["a coordinator keeps the sessions of the time before it was replaced"]),
    Scenario("P61: power losses", "coordinators lose power while heartbeats of their members wait",
             Unchanged, again(POWERLESS, 20, 45.7, 5, 24), seeds=2, quiet_s=25,
             mutants=["a member asks a coordinator that is silent for as long as any broker"]),
    Scenario("P61: kills in a row",
             "a member dies while its coordinators are killed one after the other", Abandoned,
             again(KILLED, 6, 6, 9, 2), by_day=True, seeds=3, quiet_s=25,
             mutants=["a new coordinator forgets for how long a member was silent"]),
    Scenario("P61: departures", "members leave for good, or die", Shrinking, [(30, "F17", 1)],
             seeds=2, quiet_s=35, mutants=["what a member had stays taken when it is gone",
                      "the target stays as it was when a member goes"]),
    Scenario("P61: twins", "two members have one instance id", Twins, seeds=2, quiet_s=40,
             mutants=["a static member takes what a living one has"]),
    Scenario("P61: static members", "static members are restarted, and a coordinator dies", Static,
             again("F02", 25, 12, 2, 3), seeds=3, quiet_s=40,
             mutants=["a static member that closes loses its partitions"]),
    Scenario("P61: patterns", "a topic comes that members have subscribed to by a pattern",
             Patterned, [(25, "F17", 1)], seeds=2, quiet_s=25,
             mutants=["a topic that comes later is not found by a pattern"]),
    Scenario("P60", "a group reads nothing for longer than positions are kept", Idle, by_day=True,
             seeds=2, quiet_s=140, mutants=["positions of a group with members are forgotten"]),
)
# fmt: on
