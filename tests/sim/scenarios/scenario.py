"""Named scenarios: short runs with given faults, each for a known bug or a promise of ours.

A scenario is clean, and each mutant that it names makes it fail in one of its seeds; so it would
find the bug. The bugs are those of Kafka, Redpanda, NATS, etcd and databases from which the rules
of replication come (docs/safety.md, B1 to B23).
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar, Final

from tests.checkers.history import OK
from tests.fakes.log_on_disk import batches_of
from tests.sim.clients.readers_and_writers import Load, Writer
from tests.sim.cluster import SimulatedCluster
from tests.sim.faults.catalogue import FAMILIES
from tests.sim.faults.family import Family, Scene, Undo, all_of, started
from tests.sim.faults.operators import move
from tests.sim.machines import coordination
from tests.sim.machines.machine import BrokerMachine
from tests.sim.machines.network import Weather
from tests.sim.run import Factory, Outcome, run
from tests.sim.settings import CLUSTER, REPLICATION, Settings
from tests.sim.swarm import Plan, crafted
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.core.ids import NO_BROKER, TopicPartition
from millrace.core.records.batch import open_batch
from millrace.core.records.header import parse_header
from millrace.core.replica.replication.rules import ReplicationConfig

Step = tuple[float, str | Family, float]
"""When a fault begins, which one, and for how long, in seconds."""


class ScenarioCluster(SimulatedCluster):
    """A cluster of one topic; subclasses check the result.

    Attributes:
        samples: how many values were acknowledged in all, each with its second.
    """

    topics: Sequence[TopicPlan] = (TopicPlan(partitions=1),)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.samples: dict[int, int] = {}

    def check(self) -> None:
        super().check()
        second = self._world.now // SECOND
        if second not in self.samples:
            self.samples[second] = self.acknowledged()

    def acknowledged(self) -> int:
        """How many values were acknowledged so far."""
        return sum(sum(writer.acknowledged.values()) for writer in self.all_writers())

    def acknowledged_between(self, begin_s: int, end_s: int) -> int:
        return self.samples[end_s] - self.samples[begin_s]

    def told(self, text: str) -> int:
        """How often producers got an error with this text."""
        return sum(text in error for writer in self.all_writers() for error in writer.told)

    def leaders(self) -> list[int]:
        return [state.leader for state in self.states.values()]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One named scenario, in one or more seeds.

    Attributes:
        about: the bug, or the rule.
        name: the situation.
        cluster: the cluster that it needs.
        steps: the faults.
        by_day: `make test` runs it. These are a few for each family of rules (`make nightly`: all).
        quiet_s: the length of the quiet window at the end.
        seeds: how many runs it has.
        mutants: names of the mutants that it catches.
    """

    about: str
    name: str
    cluster: Factory = ScenarioCluster
    steps: Sequence[Step] = ()
    _: KW_ONLY
    by_day: bool = False
    quiet_s: float = 22
    seeds: int = 3
    mutants: Sequence[str] = ()

    def plan(self, seed: int) -> Plan:
        steps = [
            (at, FAMILIES[what] if isinstance(what, str) else what, duration)
            for at, what, duration in self.steps
        ]
        return crafted(seed, steps, self.quiet_s)

    def run(self, seed: int, *, is_detailed: bool = False) -> Outcome:
        return run(self.cluster, self.plan(seed), is_detailed=is_detailed)

    def command(self, seed: int) -> str:
        """The command that repeats it."""
        return f"python -m tests.sim scenarios '{self.about}'  # seed {seed}"


def again(
    what: str | Family, first_s: float, every_s: float, times: int, for_s: float
) -> list[Step]:
    """Return a step that repeats a fault."""
    return [(first_s + at * every_s, what, for_s) for at in range(times)]


def hasty(replica_lag_time_max_ms: int) -> ReplicationConfig:
    """Return settings with which replicas leave the ISR soon, and join it soon."""
    return replace(
        REPLICATION,
        replica_lag_time_max_ms=replica_lag_time_max_ms,
        replica_fetch_backoff_ms=100,
        isr_rejoin_pause_ms=100,
    )


# --- Clusters --------------------------------------------------------------------------------


class OneMustBeInSync(ScenarioCluster):
    topics = (TopicPlan(partitions=1, config={"min.insync.replicas": "1"}),)


class Written(ScenarioCluster):
    """Records count once they are written, flushed or not."""

    topics = (TopicPlan(partitions=2, config={"durability": "replicated"}),)


class Busy(ScenarioCluster):
    """Bursts in flight all the time, and a short lag time for followers."""

    topics = (
        TopicPlan(
            partitions=1,
            loads=(
                Load(every_us=40 * MILLISECOND, burst_max=5),
                Load(every_us=200 * MILLISECOND, is_patient=False),
            ),
            asks_ends=True,
            reads_followers=True,
        ),
    )
    settings = Settings(replication=hasty(1_000))


class Rotting(Busy):
    """Damaged replicas fetch their logs again, without an operator."""

    def finish(self) -> Mapping[str, float]:
        measures = super().finish()
        if self.operator.replaced:
            raise Violation(f"disks were replaced: {self.operator.replaced}")
        if not self.invariants.renewed:
            raise Violation("no replica was fetched anew")
        return measures


class Unscrubbed(Rotting):
    """Nobody finds damage but those who read."""

    settings = replace(Busy.settings, scrub_bytes_per_second=0)


class BusyAndOneMustBeInSync(Busy):
    topics = (
        TopicPlan(partitions=1, config={"min.insync.replicas": "1"}, loads=Busy.topics[0].loads),
    )


class Newcomers(Busy):
    """Bursts come from new producers; a dead replica blocks all writes.

    The pauses are so long that most bursts begin while a broker is gone.
    """

    topics = (
        TopicPlan(
            partitions=1,
            config={"min.insync.replicas": "3"},
            loads=12 * (Load(every_us=SECOND, burst_max=5, is_new=True),),
        ),
    )


class BusyOfFour(Busy):
    brokers = 4


class Alone(ScenarioCluster):
    brokers = 1
    topics = (TopicPlan(partitions=2, replication_factor=1, loads=Busy.topics[0].loads),)


class FiveOfWhichTwoMustBeInSync(ScenarioCluster):
    """Records the acknowledgements while most brokers are dead."""

    brokers = 5
    topics = (TopicPlan(replication_factor=5, config={"min.insync.replicas": "2"}),)
    most_dead = 3

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.acknowledged_then: list[int] = []

    def check(self) -> None:
        super().check()
        if len(self.nodes()) == self.brokers - self.most_dead:
            self.acknowledged_then.append(self.acknowledged())

    def finish(self) -> Mapping[str, float]:
        measures = super().finish()
        if self.acknowledged_then[-1] - self.acknowledged_then[0] < 100:
            raise Violation("nothing is acknowledged while as many as may be are dead")
        return measures


class AllDeadAndOneBack(ScenarioCluster):
    """Three brokers die. The first to come back was not in sync; then the others follow."""

    def finish(self) -> Mapping[str, float]:
        measures = super().finish()
        if self.acknowledged_between(21, 29):
            raise Violation("somebody led who may lack what was acknowledged")
        if any(map(self.may_be_cut, self.states)):
            raise Violation("an unclean election, though nobody wanted one")
        return measures


class AllDeadAndAnyMayLead(ScenarioCluster):
    topics = (
        TopicPlan(
            partitions=1,
            config={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
        ),
    )

    def finish(self) -> Mapping[str, float]:
        measures = super().finish()
        if not self.acknowledged_between(21, 29):
            raise Violation("nobody led, though anybody may")
        if not any(map(self.may_be_cut, self.states)):
            raise Violation("an unclean election, and none is on record")
        (topic_partition,) = self.states
        lost = self._lost(topic_partition)
        reports = self.invariants.lost.get(topic_partition, [])
        told = [range(report.start_offset, report.end_offset) for report in reports]
        if not lost or any(not any(offset in offsets for offsets in told) for offset in lost):
            raise Violation(f"the offsets {lost} were acknowledged and are gone; told: {reports}")
        return measures

    def _lost(self, topic_partition: TopicPartition) -> list[int]:
        """Return the offsets of acknowledged records that are not in the leader's log."""
        leader = self.states[topic_partition].leader
        (log,) = (
            node.logs[topic_partition]
            for node in self.nodes().values()
            if node.life is not None and node.life.broker_id == leader
        )
        entries: dict[int, int] = {}
        for batch in batches_of(log).values():
            entries.update(entries_of(topic_partition, batch))
        return [
            send.offset
            for op in self.running[topic_partition.topic_id].recorder.ops
            if op.type == OK
            for send in op.sends
            if send.offset is not None and entries.get(send.offset) != send.value
        ]


class Placed(ScenarioCluster):
    """Four brokers, three topics of three replicas."""

    brokers = 4
    topics = tuple(TopicPlan(name=f"t{number}", partitions=4) for number in range(3))

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.led_while_one_was_dead: dict[int, int] = {}

    def check(self) -> None:
        super().check()
        if self._world.now // SECOND == 15 and not self.led_while_one_was_dead:
            self.led_while_one_was_dead = self._led()

    def _led(self) -> dict[int, int]:
        counts = dict.fromkeys(range(self.brokers), 0)
        for leader in self.leaders():
            counts[leader] += 1
        return counts

    def finish(self) -> Mapping[str, float]:
        measures = super().finish()
        held = dict.fromkeys(range(self.brokers), 0)
        for state in self.states.values():
            for broker_id in state.replicas:
                held[broker_id] += 1
            if state.leader != state.replicas[0]:
                raise Violation(f"a leadership did not return: {state}")
        then = sorted(self.led_while_one_was_dead.values())
        if set(held.values()) != {9} or set(self._led().values()) != {3}:
            raise Violation(f"replicas or leaderships lie unevenly: {held}, {self._led()}")
        if then != [0, 4, 4, 4]:
            raise Violation(f"a dead broker's leaderships did not spread evenly: {then}")
        return measures


class NobodyLags(ScenarioCluster):
    """No leader removes an in-sync replica for lag: only the end of a session may do that.

    Followers are behind at most moments, so a rule by lag would remove them.
    """

    topics = (TopicPlan(partitions=1, loads=(Load(every_us=10 * MILLISECOND, burst_max=5),) * 3),)

    def finish(self) -> Mapping[str, float]:
        for topic_partition, proposals in self.witness.replicas.proposals.items():
            for proposal in proposals:
                if len(proposal.isr) < len(self.states[topic_partition].replicas):
                    raise Violation(f"a leader asked for {proposal}, though nobody lagged")
        return super().finish()


class WithoutALaggard(ScenarioCluster):
    """Writes continue without a follower that lags."""

    def finish(self) -> Mapping[str, float]:
        measures = super().finish()
        if not self.acknowledged_between(16, 24):
            raise Violation("writes wait for a follower that lags")
        return measures


class TooFewInSync(ScenarioCluster):
    """Producers get the reason why writes stop, before and after their append."""

    topics = (
        TopicPlan(partitions=1, loads=(Load(every_us=20 * MILLISECOND, is_patient=False),) * 3),
    )
    settings = Settings(replication=hasty(150))

    def finish(self) -> Mapping[str, float]:
        measures = super().finish()
        for text in ("nothing was appended", "the batch is in the leader's log"):
            if not self.told(text):
                raise Violation(f"no producer was told {text!r}")
        return measures


class LeftInOrder(ScenarioCluster):
    """Brokers are restarted cleanly, one after another; no write waits for a lease or a session."""

    topics = (TopicPlan(partitions=2, loads=(Load(every_us=50 * MILLISECOND),)),)
    _waits_max_us = SECOND

    def check(self) -> None:
        super().check()
        now = self._world.now
        if now < 6 * SECOND:
            return
        for writer in self.all_writers():
            waits = [now - since for since in writer.waits_since.values()]
            if max(waits, default=0) > self._waits_max_us:
                raise Violation(f"{writer.name} waits for longer than a second")


class Restless(Busy):
    """Sessions and lag times are short."""

    settings = Settings(
        replication=hasty(1_000),
        cluster=replace(CLUSTER, broker_session_timeout_ms=1_000, broker_heartbeat_interval_ms=100),
    )


class Impatient(Busy):
    """Lag times are very short, sessions long; one broker has no replica."""

    brokers = 4
    topics = (
        TopicPlan(partitions=1, config={"min.insync.replicas": "1"}, loads=Busy.topics[0].loads),
    )
    settings = Settings(
        replication=hasty(300), cluster=replace(CLUSTER, broker_reconnect_grace_ms=3_000)
    )


class Forward(Restless):
    """Producers with `acks=1`, so that the leader is always ahead of its followers."""

    topics = (
        TopicPlan(
            partitions=1,
            loads=(
                Load(every_us=30 * MILLISECOND, acks=1),
                Load(every_us=30 * MILLISECOND, acks=0),
            ),
        ),
    )


class KilledInTurn(ScenarioCluster):
    """Records count once written; no partition stands still while brokers keep dying."""

    topics = (TopicPlan(partitions=4, config={"durability": "replicated"}),)
    still_us_max: ClassVar[int] = 25 * SECOND

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._moved: dict[tuple[Writer, int], tuple[int, int]] = {}  # How much, and when.

    def check(self) -> None:
        super().check()
        for writer in self.all_writers():
            for key, now in writer.acknowledged.items():
                count, since = self._moved.get((writer, key), (-1, self.now))
                if now != count:
                    self._moved[writer, key] = now, self.now
                elif self.now - since > self.still_us_max:
                    raise Violation(f"{writer.name} was told of nothing for {self.still_us_max} us")


class LeaseSeen(ScenarioCluster):
    """No broker writes as controller after it could know that another broker holds the lease."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.store.checks_writers = True


def entries_of(topic_partition: TopicPartition, batch: bytes) -> list[tuple[int, int]]:
    """Return offset and value of each record of a batch, whose checksums must hold."""
    records = open_batch(topic_partition, parse_header(batch), batch, 1 << 20)
    offsets, values = records.column(0).to_pylist(), records.column(3).to_pylist()
    return [
        (offset, int.from_bytes(value, "big"))
        for offset, value in zip(offsets, values, strict=True)
    ]


# --- Faults of scenarios ---------------------------------------------------------------------


def _slow_to_the_controller(scene: Scene) -> Undo | None:
    """Delay a leader's messages to the controller by seconds; all else is normal."""
    leader = scene.pick("leader")
    controllers = scene.role("controller")
    if leader is None or not controllers:
        return None
    pairs = [(leader.name, name) for name in controllers if name != leader.name]
    return scene.network.impose(pairs, Weather(delay_us=scene.dice.randrange(SECOND, 3 * SECOND)))


SLOW_PROPOSALS: Final = Family(
    "F18", "what a leader proposes arrives late", _slow_to_the_controller, (SECOND, SECOND)
)


def _followers(scene: Scene) -> list[BrokerMachine]:
    names = scene.role("leader")
    return [machine for name, machine in scene.machines.items() if name not in names]


def _freeze_followers(scene: Scene) -> Undo | None:
    frozen = _followers(scene)
    for machine in frozen:
        machine.freeze()
    return all_of([machine.thaw for machine in frozen])


FREEZE_FOLLOWERS: Final = Family(
    "F09", "all followers stand still", _freeze_followers, (SECOND, SECOND)
)


def _cut_a_follower_from_its_leader(scene: Scene) -> Undo | None:
    leader, controllers = scene.pick("leader"), scene.role("controller")
    others = [follower.name for follower in _followers(scene) if follower.name not in controllers]
    if leader is None or leader.name in controllers or not others:
        return None
    return scene.cut([leader.name], [scene.dice.choice(others)])


CUT_A_FOLLOWER: Final = Family(
    "F15",
    "a follower does not see its leader, but the controller does",
    _cut_a_follower_from_its_leader,
    (SECOND, SECOND),
)


def _kill_all_but_keep_the_laggard(scene: Scene) -> Undo | None:
    """Kill all brokers; one that was not in sync comes back soon, the others at the end."""
    assert scene.administered is not None
    [state] = scene.administered.states.values()
    in_sync = {life.broker_id for life in state.isr}
    cluster = scene.administered.stored_cluster
    assert cluster is not None
    if state.leader == NO_BROKER or len(in_sync) == len(state.replicas):
        return None
    keep = [scene.machines[cluster.brokers[broker_id].name] for broker_id in sorted(in_sync)]
    back = [machine for machine in scene.machines.values() if machine not in keep]
    for machine in scene.machines.values():
        machine.kill()
    for machine in back:
        scene.world.after(SECOND, "the one that was not in sync is back", machine.start)

    return started(scene.machines.values())


ALL_DIE: Final = Family(
    "F03",
    "all processes die, and who was not in sync is back first",
    _kill_all_but_keep_the_laggard,
    (SECOND, SECOND),
)


def _restart_all_in_order(scene: Scene) -> Undo | None:
    """SIGTERM for one broker after another; each waits until the one before is in sync again."""
    step = scene.duration_us // len(scene.machines)
    for number, machine in enumerate(scene.machines.values()):
        scene.world.after(1 + number * step, "leave", machine.terminate)
        scene.world.after(1 + number * step + step // 2, "come", machine.start)
    return lambda: None


RESTART_IN_TURN: Final = Family(
    "F47", "all machines are restarted in order, in turn", _restart_all_in_order, (SECOND, SECOND)
)


def _kill_in_turn(scene: Scene) -> Undo | None:
    """Overloaded machines: all is slow, and a broker that comes back dies again."""
    slow, store = Weather(delay_us=200 * MILLISECOND), Weather(delay_us=20 * MILLISECOND)
    names = [*scene.machines, *scene.clients]
    pairs = [(a, b) for a in names for b in names if a != b]
    to_store = [pair for a in names for pair in ((a, coordination.NAME), (coordination.NAME, a))]
    undos = [scene.network.impose(pairs, slow), scene.network.impose(to_store, store)]

    def kill(number: int) -> None:
        others = [machine for machine in scene.machines if machine not in scene.role("controller")]
        machine = scene.machines[others[number % len(others)]]
        machine.kill()
        scene.world.after(4 * SECOND, f"{machine.name} is back", machine.start)

    for number in range(scene.duration_us // (5 * SECOND)):
        scene.world.after(1 + number * 5 * SECOND, "one dies", kill, number)
    return all_of(undos)


KILL_IN_TURN: Final = Family(
    "F01",
    "all is slow, and those that are not the controller die in turn",
    _kill_in_turn,
    (SECOND, SECOND),
)


def _scatter_bursts(scene: Scene) -> Undo | None:
    """What producers send takes so long that the batches of a burst arrive far apart."""
    producers = [f"producer-{number}" for number in range(len(Newcomers.topics[0].loads))]
    pairs = [(producer, name) for producer in producers for name in scene.machines]
    return scene.network.impose(pairs, Weather(delay_us=60 * MILLISECOND))


SCATTER_BURSTS: Final = Family(
    "F16", "the batches of a burst arrive far apart", _scatter_bursts, (SECOND, SECOND)
)


def _joins_unheard(scene: Scene) -> Undo | None:
    """A follower has just joined when its leader loses the link to it and to the controller.

    So the leader does not learn that its proposal was applied.
    """
    leader, controllers, others = scene.pick("leader"), scene.role("controller"), _followers(scene)
    assert scene.administered is not None
    if leader is None or not others or leader.name in controllers:
        return None
    states, stored = scene.administered.states, scene.administered.stored_cluster
    assert stored is not None
    held = {stored.brokers[replica].name for state in states.values() for replica in state.replicas}
    if held.intersection(controllers):
        return None  # It would be cut off from a member, too.
    joiner = scene.dice.choice([other for other in others if other.name in held])
    undos: list[Undo] = [joiner.start]
    joiner.kill()
    scene.world.after(SECOND, "the joiner is back", joiner.start)

    def look(tries: int) -> None:
        cluster = scene.administered.stored_cluster if scene.administered else None
        assert cluster is not None
        broker = cluster.broker_named(joiner.name)
        has_joined = broker is not None and not broker.is_fenced
        if has_joined and broker and any(broker.life in state.isr for state in states.values()):
            scene.network.reset_streams(scene.dice, 1.0, [leader.name])
            undos.append(scene.cut([leader.name], [*controllers, joiner.name]))
        elif tries:
            scene.world.after(200, "has it joined?", look, tries - 1)

    scene.world.after(1_100 * MILLISECOND, "has it joined?", look, 15_000)

    return all_of(undos)


JOINS_UNHEARD: Final = Family(
    "F13", "a follower joins, and its leader does not hear of it", _joins_unheard, (SECOND, SECOND)
)


def _given_back_at_once(scene: Scene) -> Undo | None:
    """Remove a replica and add it again, so that its leader learns of both at the same time."""
    leader, controllers = scene.pick("leader"), scene.role("controller")
    administered = scene.administered
    if administered is None or leader is None or leader.name in controllers:
        return None
    [(topic_partition, state)] = administered.states.items()
    cluster = administered.stored_cluster
    assert cluster is not None
    names = {replica: cluster.brokers[replica].name for replica in state.replicas}
    gone = next(
        (number for number, name in names.items() if name not in (leader.name, *controllers)), None
    )
    if gone is None:
        return None

    scene.network.reset_streams(scene.dice, 1.0, [leader.name])
    undos = [
        scene.cut([leader.name], controllers),
        scene.network.impose([(names[gone], leader.name)], Weather(delay_us=4 * SECOND)),
    ]
    rest = tuple(replica for replica in state.replicas if replica != gone)
    away, back = move(topic_partition, rest), move(topic_partition, state.replicas)
    scene.world.after(50 * MILLISECOND, "it is taken away", administered.administer, away)
    scene.world.after(350 * MILLISECOND, "it is given back", administered.administer, back)
    scene.world.after(700 * MILLISECOND, "the leader hears of it", undos[0])

    return all_of(undos)


GIVEN_BACK: Final = Family(
    "F71", "a replica is taken away and given back at once", _given_back_at_once, (SECOND, SECOND)
)


AWAY: Final[Step] = (4.0, "F38", 2.6)
"""Moves the controller away from the leader: the first step where the roles must not coincide."""


# --- The scenarios ---------------------------------------------------------------------------

# fmt: off
SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario("promise",
             "of five replicas three die one after another, with two that must be in sync",
             FiveOfWhichTwoMustBeInSync, [(8.0 + 10 * n, "F02", 60.0 - 10 * n) for n in range(3)],
             seeds=1),
    Scenario("promise", "all die, and the first that is back lacks something: it waits",
             AllDeadAndOneBack, [(6, "F09", 13.5), (18, ALL_DIE, 12)],
             mutants=["any live replica may be elected", "unclean elections need no permission"]),
    Scenario("promise",
             "all die, the first that is back lacks something and may lead: that is reported",
             AllDeadAndAnyMayLead, [(6, "F09", 13.5), (18, ALL_DIE, 12)],
             mutants=["an unclean election is not on record",
                      "nobody hears which records an unclean election has cost"]),
    Scenario("promise", "four brokers, three topics of three replicas: placement and balance",
             Placed, [(8, "F02", 12)], seeds=1),
    Scenario("B1", "a leader alone in sync dies, and the others are back in touch", OneMustBeInSync,
             [(6, "F12", 8.5), (14, "F02", 8)],
             mutants=["any live replica may be elected", "unclean elections need no permission"]),
    Scenario("B2", "a follower bounces, and leads a moment later", Busy,
             [*again("F01", 6, 3, 8, 0.3), *again("F02", 7.5, 3, 8, 1)],
             mutants=["a follower cuts its log at its high watermark"]),
    Scenario("B3", "all lose power, and other leaders write other records at the same offsets",
             Written, again("F06", 6, 5, 6, 0.5), by_day=True,
             mutants=["the replica whose log is shortest is elected",
                      "the first replica that is back is elected",
                      "an unclean election is not on record",
                      "unclean elections need no permission",
                      "who may have lost records stays eligible",
                      "a broker that crashed is taken for one that was shut down",
                      "the earlier life stays in sync until it is missed",
                      "batches of another partition, and changed ones, pass recovery"]),
    Scenario("B4", "leaders stand still in turn, each with batches that nobody else has", Forward,
             [*again("F08", 6, 1.2, 20, 1.5), (6, "F34", 24), (6, "F16", 24)], seeds=6,
             mutants=["a follower cuts its log once, and does not ask again whether it diverges",
                      "a leader serves followers whose log is no prefix of its own",
                      "a follower takes the leader's high watermark beyond its own log"]),
    Scenario("B5", "a leader stands still, is replaced, and goes on as if nothing were", Busy,
             again("F08", 6, 7, 4, 6)),
    Scenario("B6", "leaders change while followers' reports are under way", BusyOfFour,
             [*again("F71", 6, 0.7, 30, 0.3), (6, "F16", 18)],
             mutants=["an answer to a position that was left is taken for one to the open position",
                      "reports of sessions of another leader epoch count",
                      "what a follower reported in an earlier leader epoch counts"]),
    Scenario("B7", "nobody knows which replicas are in sync, while some lag and the store is slow",
             BusyAndOneMustBeInSync, [AWAY, *again(CUT_A_FOLLOWER, 11, 4, 6, 2.5), (11, "F43", 24)],
             mutants=["a follower joins below the high watermark",
                      "a proposal without an answer is taken back"]),
    Scenario("B7", "a leader does not hear that a follower has joined, and loses touch with it",
             Impatient, [AWAY, *again(JOINS_UNHEARD, 11, 6, 4, 4.5)], seeds=6,
             mutants=[
                 "a member that is being added is not waited for before its addition is known"]),
    Scenario("B8", "a late proposal names a broker that came back with an empty disk",
             BusyAndOneMustBeInSync,
             [AWAY, *again("F36", 11, 5, 6, 0.1), *again(SLOW_PROPOSALS, 10.5, 5, 6, 3)]),
    Scenario("B9", "the last replica in sync loses what it had not flushed, and is back first",
             Written, again("F07", 6, 16, 3, 12)),
    Scenario("B10", "replicas are taken away and given back at once", BusyOfFour,
             again("F71", 6, 0.8, 30, 0.2),
             mutants=["old replicas go before the new ones are there"]),
    # The last records may take half a minute to arrive.
    Scenario("B10", "a replica is taken away and given back, and its leader hears of both at once",
             Impatient, [AWAY, *again(GIVEN_BACK, 11, 6, 4, 4)], quiet_s=45, seeds=6,
             mutants=["what a follower reported in an earlier leader epoch counts"]),
    Scenario("B11", "readers ask new leaders where the log ends", Busy,
             [*again("F02", 6, 3, 8, 1), (6, "F34", 24)],
             mutants=["a new leader says where the log ends before it knows"]),
    Scenario("B15", "a leader is elected, and serves before it knows what is committed", Restless,
             [*again("F10", 6, 1.5, 16, 1.2), (6, "F34", 24)]),
    Scenario("B16", "a minority is damaged, and leaders die", Busy,
             [*again("F31", 6, 6, 4, 0.5), *again("F29", 8, 6, 4, 0.1), *again("F02", 9, 6, 4, 1)]),
    Scenario("P65", "closed segments rot, and are fetched again", Rotting,
             [*again("F28", 8, 6, 4, 0.1), *again("F10", 9, 6, 3, 1)],
             mutants=["a damaged replica is emptied before anybody else knows"]),
    Scenario("B17", "all lose power at once, again and again", Busy,
             [*again("F06", 6, 3, 8, 0.5), *again("F33", 6.5, 3, 8, 3)],
             mutants=["a leader counts what it has not flushed",
                      "what a follower has not flushed counts", "a flush only tells"]),
    Scenario("B18", "flushes fail, and the page cache is dropped", Busy,
             again("F24", 6, 1.5, 16, 0.4), by_day=True, mutants=["a failed flush is repeated",
                      "what a failed flush left behind is believed after a restart"]),
    Scenario("B22", "one broker alone loses power", Alone, again("F04", 6, 3, 8, 0.5), by_day=True,
             mutants=["a flush is told of and not done"]),
    Scenario("B23", "news of the metadata has gaps, while leaders change", Busy,
             again("F02", 6, 3, 6, 1),
             mutants=["a broker may lead before it knows that it is registered"]),
    Scenario("P14, P15", "too few are in sync, before an append and after it", TooFewInSync,
             again(FREEZE_FOLLOWERS, 6, 12, 2, 9), by_day=True,
             mutants=["a leader appends although too few are in sync",
                      "nobody is told that too few are in sync since the append"]),
    Scenario("P19", "a leader that is cut off proposes, and is heard when another one leads", Busy,
             again("F11", 6, 9, 3, 6), by_day=True),
    Scenario("P23", "a machine sleeps, and wakes much later by its clock", NobodyLags,
             again("F21", 6, 1, 16, 0.1),
             mutants=["a leader whose clock jumped takes its followers for silent"]),
    Scenario("P23", "a follower does not see its leader, but the controller does", WithoutALaggard,
             [AWAY, (11, CUT_A_FOLLOWER, 15)], by_day=True, mutants=["who lags stays in sync"]),
    Scenario("P32", "all are restarted in order, in turn, and nobody waits for a second",
             LeftInOrder, [(8, RESTART_IN_TURN, 30)], mutants=["a broker may stop at once"]),
    Scenario("P27", "of the last two in sync one gets an empty disk, and the other one dies",
             ScenarioCluster,
             [
                 step
                 for at in (6, 24)
                 for step in ((at, "F09", 12), (at + 8, "F36", 0.3), (at + 8.2, "F02", 3))
             ],
             seeds=6, mutants=["a broker with another disk is taken for the same",
                      "a broker with another disk stays last known"]),
    Scenario("P27", "a machine is restarted in order, and loses power soon after", Written,
             [*again("F47", 6, 4, 8, 1), *again("F04", 7.4, 4, 8, 0.4)], by_day=True, seeds=6,
             mutants=["the clean-shutdown marker stays when the directory is used again"]),
    Scenario("P31",
             "after all have died at once, one after another goes on dying, and never all are back",
             KilledInTurn, [(7, "F03", 1), (8.5, KILL_IN_TURN, 60)],
             mutants=["all replicas are waited for at one time"]),
    Scenario("P42", "connections of leaders are reset, and bursts are repeated", Busy,
             again("F17", 6, 0.3, 60, 0.1), by_day=True,
             mutants=["four batches of a producer are remembered",
                      "a repeated batch is appended again"]),
    Scenario("P43",
             "producers begin while a leader is short of followers, and it gets them amid a burst",
             Newcomers, [(5, SCATTER_BURSTS, 24), *again("F01", 6, 4, 6, 2.5)],
             mutants=["a producer that is not known begins with the successor of an open batch"]),
    Scenario("P45", "leaders change, and logs are cut, while producers repeat what they have sent",
             Restless, [*again("F08", 6, 1.3, 18, 1.5), (6, "F34", 24), *again("F02", 8, 5, 4, 1)],
             mutants=["producer states are those of before the log was cut",
                      "producer states of what was cut stay on the disk",
                      "producer states end with the newest snapshot"]),
    Scenario("P64", "disks are full, between batches and within them", Busy,
             [*again("F22", 6, 2, 12, 0.7), *again("F23", 7, 1, 24, 0.6)], by_day=True,
             mutants=["sequences of batches that were not written stay taken",
                      "what was half written stays in the file",
                      "a batch is taken before the one that goes before it"]),
    Scenario("P68", "files that are no segments are damaged", Busy,
             [*again("F30", 6, 1, 24, 0.1), *again("F01", 6.5, 2, 12, 0.4)],
             mutants=["small files are believed whatever their checksum"]),
    Scenario("P69", "power goes in the middle of a write", Busy, again("F27", 6, 1.2, 20, 0.8),
             by_day=True, mutants=["small files are renamed before they are flushed",
                      "a renamed file's directory is not flushed",
                      "a new segment's name is not flushed"]),
    Scenario("P38", "controllers lose touch with the store, and stop before others begin",
             LeaseSeen, [*again("F13", 6, 5, 4, 3), *again("F39", 8, 5, 4, 2.9)], by_day=True,
             mutants=["a controller goes on when its lease has run out"]),
)
# fmt: on
