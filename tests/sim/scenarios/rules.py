"""Named scenarios in which a rule decides: without the rule a broker breaks it at once.

Those of `scenarios` are bugs of other systems. These are made for the witnesses: each creates, as
directly as possible, a situation in which only one rule prevents a forbidden step. The hunt tries
them first for a mutant of that rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tests.sim.clients.admin import TrimRecords
from tests.sim.clients.readers_and_writers import Load
from tests.sim.faults.family import Family, Scene, Undo, all_of, started
from tests.sim.machines.coordination import BlockingStore, SimulatedStore
from tests.sim.machines.machine import BrokerMachine
from tests.sim.machines.network import Weather
from tests.sim.scenarios.scenario import (
    AWAY,
    CUT_A_FOLLOWER,
    Busy,
    BusyOfFour,
    Forward,
    Restless,
    Scenario,
    ScenarioCluster,
    Step,
    Unscrubbed,
    again,
    hasty,
)
from tests.sim.settings import CLUSTER, Settings
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.broker.storage.recovery_checkpoint import FILE_NAME as CHECKPOINT
from millrace.core.controller.lease import LeaseRecord
from millrace.core.ids import TopicPartition
from millrace.core.records.batch import walk
from millrace.core.records.header import HEADER_BYTES
from millrace.core.topics import POSITIONS_TOPIC, TopicName

_DATA: Final = "/data"
_MARKER: Final = f"{_DATA}/clean-shutdown"
_ANY: Final = (SECOND, SECOND)


# --- Clusters --------------------------------------------------------------------------------


class Everyday(BusyOfFour):
    """All kinds of clients at once."""

    topics = (
        TopicPlan(
            partitions=1,
            loads=(
                *Busy.topics[0].loads,
                Load(every_us=100 * MILLISECOND, acks=1),
            ),
            asks_ends=True,
            reads_followers=True,
        ),
    )


class HeedlessStore(BlockingStore):
    """Never tells a broker that it has lost the lease."""

    sane_from_us = 26 * SECOND

    def __init__(self, store: SimulatedStore, owner: str) -> None:
        super().__init__(store, owner)
        self._own: LeaseRecord | None = None

    @property
    def _lies(self) -> bool:
        return self._own is not None and self._store.world.now < self.sane_from_us

    def read_lease(self) -> LeaseRecord | None:
        return self._own if self._lies else super().read_lease()

    def compare_and_swap_lease(self, new: LeaseRecord) -> bool:
        if self._lies:
            self._own = new
            return True
        is_written = super().compare_and_swap_lease(new)
        if is_written and new.holder == self._owner:
            self._own = new
        return is_written


class Heedless(Busy):
    """Several controllers at a time: each acts until the store refuses its write (P34)."""

    new_store = HeedlessStore
    settings = Settings(
        replication=hasty(1_000), cluster=replace(CLUSTER, broker_reconnect_grace_ms=3_000)
    )


class Witnesses(ScenarioCluster):
    """Only the checkpoint and the last segment are damaged: other files tell of both."""

    topics = (TopicPlan(partitions=1, loads=(Load(every_us=150 * MILLISECOND),)),)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.witness.logs.believes_witnesses = True


class RestlessOfFour(Restless):
    """One broker, which may be the controller, has no replica."""

    brokers = 4


class InAHurry(BusyOfFour):
    """Producers do not wait for an answer for long."""

    topics = (
        TopicPlan(
            partitions=1,
            loads=4 * (Load(every_us=50 * MILLISECOND, burst_max=3, request_timeout_ms=100),),
        ),
    )


class Ahead(BusyOfFour):
    """What is written counts, and leaders are always ahead of their followers."""

    topics = (
        TopicPlan(
            partitions=1,
            config={"durability": "replicated"},
            loads=(
                Load(every_us=100 * MILLISECOND, burst_max=5),
                Load(every_us=40 * MILLISECOND, acks=1),
            ),
        ),
    )


class Neighbours(Busy):
    """Several partitions, so that some are led elsewhere than in the zone of the reader."""

    topics = (
        TopicPlan(
            partitions=3,
            loads=(Load(every_us=40 * MILLISECOND, burst_max=2),),
            polls_every_us=20 * MILLISECOND,
            reads_followers=True,
        ),
    )


class NeverShort(BusyOfFour):
    """Two replicas are always in sync, though one lags and another asks to stop."""

    def check(self) -> None:
        super().check()
        if self._world.now > 6 * SECOND and any(len(s.isr) < 2 for s in self.states.values()):
            raise Violation(f"too few are in sync, and nobody died: {self.states}")


class SoonGivenUp(ScenarioCluster):
    """Few records and a short retention, so that logs are empty now and then."""

    topics = (
        TopicPlan(
            partitions=1,
            config={
                "unclean.leader.election.enable": "true",
                "message.timestamp.type": "LogAppendTime",
                "retention.ms": "1000",
            },
            loads=(Load(every_us=1500 * MILLISECOND, burst_max=5),),
        ),
    )


class SoonDeleted(ScenarioCluster):
    """Records are deleted while nothing is written, and disks take their time for that."""

    settings = Settings(slow_flush_ms=1000)
    topics = (
        TopicPlan(
            partitions=3,
            config={"message.timestamp.type": "LogAppendTime", "retention.ms": "1000"},
            loads=(Load(every_us=6 * SECOND, burst_max=5),),
        ),
    )

    def __init__(self, world: World) -> None:
        super().__init__(world)
        for machine in self.machines.values():
            machine.disk.times.flush_us_min = 100 * MILLISECOND


class BroughtBack(ScenarioCluster):
    """A topic is deleted and brought back, whatever its records count for."""

    topics = (
        TopicPlan(
            partitions=2,
            loads=(Load(every_us=150 * MILLISECOND, burst_max=3),),
            comes_back=True,
        ),
        TopicPlan(
            name="written",
            config={"durability": "replicated"},
            loads=(Load(every_us=150 * MILLISECOND, burst_max=3),),
            comes_back=True,
        ),
    )


class ManyDisks(ScenarioCluster):
    """In the end each record and each position is on three disks, in sync."""

    topics = (TopicPlan(partitions=2, replication_factor=0, keeps_positions=True),)

    def _is_judged(self, name: TopicName) -> bool:
        return True

    def finish(self) -> Mapping[str, float]:
        measures = super().finish()
        images = [node.metadata for node in self.nodes().values() if node.metadata is not None]
        topics = max(images, key=lambda image: image.epoch).topics
        for topic in filter(lambda topic: self._is_judged(topic.name), topics.values()):
            for state in topic.partitions:
                if len(state.replicas) != 3 or len(state.isr) != 3:
                    raise Violation(f"{topic.name} is not on three disks: {state}")
        if POSITIONS_TOPIC not in topics:
            raise Violation("no position was ever kept")
        return measures


class MadeInAnOutage(ManyDisks):
    """A topic, and the first position, are made while most brokers are away."""

    topics = (replace(ManyDisks.topics[0], made_at_us=8 * SECOND),)

    def _is_time_for_topics(self) -> bool:
        return self.stored_brokers() < len(self.machines)


class Growing(ManyDisks):
    """A cluster begins with one broker, which keeps the first positions; two more come later."""

    topics = (replace(ManyDisks.topics[0], replication_factor=1),)

    def _is_judged(self, name: TopicName) -> bool:
        return name.is_internal

    def start(self) -> None:
        first, *others = self.machines.values()
        first.start()
        self._create_topics()
        for number, other in enumerate(others):
            self._world.after((10 + 5 * number) * SECOND, "another broker comes", other.start)

    def _is_time_for_topics(self) -> bool:
        return True


class JustStarting(Growing):
    """A cluster that begins with three brokers is asked for a topic when one of them is there."""

    settings = Settings(cluster=replace(CLUSTER, initial_brokers=3))
    topics = ManyDisks.topics

    def _is_judged(self, name: TopicName) -> bool:
        return True


# --- Faults ----------------------------------------------------------------------------------


def _follower(scene: Scene, *, may_control: bool = True) -> BrokerMachine | None:
    """A replica's machine that leads no partition."""
    names = [name for name in scene.role("follower") if name not in scene.role("leader")]
    if not may_control:
        names = [name for name in names if name not in scene.role("controller")]
    return scene.machines[scene.dice.choice(names)] if names else None


def _give_the_lease_away(scene: Scene) -> Undo | None:
    """The lease names a broker without a replica, which becomes the controller at once."""
    playing = {*scene.role("leader"), *scene.role("follower")}
    others = [name for name in scene.machines if name not in playing]
    if not others:
        return None
    _steal_lease(scene, others[0])
    return lambda: None


def _steal_lease(scene: Scene, name: str) -> None:
    """Write a broker into the lease; it takes up only one that has its address, too."""
    cluster = None if scene.administered is None else scene.administered.stored_cluster
    broker = None if cluster is None else cluster.broker_named(name)
    scene.store.steal_lease(name, "" if broker is None else broker.replica_address)


LEASE_GIVEN: Final = Family(
    "F40", "a broker without replicas is given the lease", _give_the_lease_away, _ANY
)


def _give_the_lease_back(scene: Scene) -> Undo | None:
    """The lease names the former controller; then a broker starts, and follows it."""
    lease = scene.store.lease
    old = [name for name in scene.role("controller") if lease and name != lease.holder]
    starting = [name for name in scene.machines if name not in scene.role("controller")]
    if not old or not starting:
        return None
    machine = scene.machines[scene.dice.choice(starting)]
    _steal_lease(scene, old[0])
    machine.kill()
    return machine.start


LEASE_GIVEN_BACK: Final = Family(
    "F40", "a controller that was replaced has the lease again", _give_the_lease_back, _ANY
)


def _two_die(scene: Scene, *, is_slow: bool) -> Undo | None:
    """A follower dies, then the leader, and only the follower comes back.

    The third broker alone has some batches, and leads; it does not know what is committed. With
    `is_slow` the batches reach the follower late, when the controller would let it join.
    """
    leader, follower = scene.pick("leader"), _follower(scene)
    if leader is None or follower is None:
        return None
    names = scene.role("follower")
    third = [name for name in names if name not in (leader.name, follower.name)]
    undos = [follower.start, leader.start]
    if is_slow:
        if {leader.name, follower.name, *third}.intersection(scene.role("controller")):
            return None  # The controller's own messages would be late, too.
        links = [(name, follower.name) for name in third]
        undos.append(scene.network.impose(links, Weather(delay_us=2 * SECOND)))
    follower.kill()
    scene.world.after(150 * MILLISECOND, "the leader dies, too", leader.kill)
    scene.world.after(scene.duration_us * 2 // 3, "the follower is back", follower.start)

    return all_of(undos)


def _two_are_away(scene: Scene) -> Undo:
    """Two brokers are killed, and stay away."""
    away = [scene.machines[name] for name in scene.dice.sample(list(scene.machines), 2)]
    for machine in away:
        machine.kill()

    return started(away)


TWO_ARE_AWAY: Final = Family("F02", "two brokers are away", _two_are_away, _ANY)
TWO_DIE: Final = Family(
    "F02", "a follower dies, and then its leader", partial(_two_die, is_slow=False), _ANY
)
TWO_DIE_AND_ONE_IS_SLOW: Final = Family(
    "F02",
    "a follower dies, and then its leader, and it is back and slow",
    partial(_two_die, is_slow=True),
    _ANY,
)


def _restore_an_old_marker(scene: Scene) -> Undo | None:
    """Stop a machine cleanly, start it, kill it, and restore the marker of the clean stop."""
    machine = _follower(scene, may_control=False)
    if machine is None:
        return None
    machine.terminate()
    step = scene.duration_us // 10

    def start() -> None:
        if machine.node is None and machine.disk.exists(_MARKER):
            marker = machine.disk.contents(_MARKER)
            scene.world.after(7 * step, "it dies", crash, marker)
        machine.start()

    def crash(marker: bytes) -> None:
        machine.kill()
        machine.disk.write(_MARKER, marker)
        machine.start()

    scene.world.after(2 * step, "it is started again", start)
    return machine.start


OLD_MARKER: Final = Family("F30", "an old marker is put back", _restore_an_old_marker, _ANY)


def _segments(machine: BrokerMachine, suffix: str = ".log") -> list[str]:
    return [path for path in machine.disk.files() if path.endswith(suffix)]


def _lose_the_last_segment(scene: Scene, *, with_checkpoint: bool) -> Undo | None:
    disk = scene.victim.disk
    segments, indexes = _segments(scene.victim), _segments(scene.victim, ".index")
    checkpoint = f"{_DATA}/{CHECKPOINT}"
    last = segments[-1] if segments else ""
    is_known = last.replace(".log", ".index") in indexes and disk.exists(checkpoint)
    if disk.is_damaged or len(segments) < 2 or not is_known or scene.victim.node is None:
        return None
    scene.victim.kill()
    for path in (last, checkpoint) if with_checkpoint else (last,):
        disk.damaged.append(path)
        disk.unlink(path)
        disk.fsync_directory(path.rpartition("/")[0])
    return scene.victim.start


LOST_LAST: Final = Family(
    "F31", "the last segment is gone", partial(_lose_the_last_segment, with_checkpoint=False), _ANY
)
LOST_TOGETHER: Final = Family(
    "F31",
    "the checkpoint and the last segment are gone",
    partial(_lose_the_last_segment, with_checkpoint=True),
    _ANY,
)


def _cut_a_closed_segment(scene: Scene) -> Undo | None:
    disk, closed = scene.victim.disk, _segments(scene.victim)[:-1]
    if disk.is_damaged or not closed or scene.victim.node is None:
        return None
    scene.victim.kill()
    path = scene.dice.choice(closed)
    disk.damaged.append(path)
    disk.write(path, disk.contents(path)[: disk.size(path) // 2])
    return scene.victim.start


CUT_CLOSED: Final = Family("F31", "a closed segment is cut short", _cut_a_closed_segment, _ANY)


def _flip_after_a_follower(scene: Scene) -> Undo | None:
    """Damage records at the leader that a follower has yet to fetch."""
    leader, follower = scene.pick("leader"), _follower(scene)
    if leader is None or follower is None:
        return None
    follower.kill()
    sizes = {path: leader.disk.size(path) for path in _segments(leader)}

    def flip() -> None:
        path = _segments(leader)[-1]
        begin = sizes.get(path, 0)
        batches = [bytes(batch) for _, batch in walk(leader.disk.contents(path)[begin:])]
        if batches and leader.node is not None:
            before = sum(map(len, batches[: len(batches) // 2]))
            leader.disk.damaged.append(path)
            leader.disk.flip_bit(path, begin + before + HEADER_BYTES)
        follower.start()

    scene.world.after(scene.duration_us // 2, "a bit flips", flip)
    return follower.start


FLIP_UNFETCHED: Final = Family(
    "F29", "a bit flips that a follower has yet to fetch", _flip_after_a_follower, _ANY
)


def _lag_and_stop(scene: Scene) -> Undo | None:
    """One follower is cut off from its leader, and the other one asks to stop."""
    leader, laggard = scene.pick("leader"), _follower(scene, may_control=False)
    if leader is None or laggard is None or leader.name in scene.role("controller"):
        return None
    names = [name for name in scene.role("follower") if name not in (leader.name, laggard.name)]
    if not names:
        return None
    other = scene.machines[names[0]]
    heal = scene.cut([leader.name], [laggard.name])
    scene.world.after(scene.duration_us // 2, "the other one wants to stop", other.terminate)

    def undo() -> None:
        heal()
        scene.world.after(6 * SECOND, "it is started again", other.start)

    return undo


def _only_the_oldest_is_back(scene: Scene) -> Undo | None:
    """A follower dies, much later all others; then it comes back alone, and the others after it."""
    behind = _follower(scene)
    if behind is None:
        return None
    others = [scene.machines[name] for name in scene.others(behind)]
    behind.kill()

    def exchange() -> None:
        for other in others:
            other.kill()
        behind.start()

    scene.world.after(scene.duration_us * 2 // 3, "the others die", exchange)
    return started([behind, *others])


OLDEST_IS_BACK: Final = Family(
    "F07", "a follower dies, later all others, and it alone is back", _only_the_oldest_is_back, _ANY
)


def _join_and_start_again(scene: Scene) -> Undo | None:
    """A follower starts again while its leader's proposal that it joins is on its way."""
    leader, controllers = scene.pick("leader"), scene.role("controller")
    joiner = _follower(scene, may_control=False)
    assert scene.administered is not None
    states = scene.administered.states
    if leader is None or joiner is None or len(controllers) != 1 or leader.name in controllers:
        return None
    undos: list[Undo] = [joiner.start]
    joiner.kill()
    scene.world.after(SECOND, "the follower is back", joiner.start)

    def look(tries: int) -> None:
        if any(map(is_proposed, states)):
            joiner.kill()
            joiner.start()
            scene.world.after(3 * SECOND, "the proposal arrives", undos[-1])
        elif tries:
            scene.world.after(MILLISECOND, "is it proposed?", look, tries - 1)

    def is_proposed(topic_partition: TopicPartition) -> bool:
        if leader.node is None or leader.node.replicas is None or joiner.node is None:
            return False
        replica = leader.node.replicas.find(topic_partition)
        proposal = (
            None if replica is None or replica.leader is None else replica.leader.in_sync.proposal
        )
        return proposal is not None and joiner.node.life in proposal.isr

    def hold() -> None:
        undos.append(scene.cut([leader.name], controllers, both_ways=False))
        look(2_000)

    def look_for_life(tries: int) -> None:
        cluster = scene.administered.stored_cluster if scene.administered else None
        broker = None if cluster is None else cluster.broker_named(joiner.name)
        life = None if joiner.node is None else joiner.node.life
        if broker is not None and broker.life == life and not broker.is_fenced:
            hold()
        elif tries:
            scene.world.after(200, "is it back?", look_for_life, tries - 1)

    scene.world.after(SECOND, "is it back?", look_for_life, 10_000)

    return all_of(undos)


JOIN_AND_START_AGAIN: Final = Family(
    "F18", "a follower starts again before its joining is granted", _join_and_start_again, _ANY
)


def _slow_news(scene: Scene) -> Undo | None:
    """What the controller says reaches replicas late; clients hear of it from the controller."""
    pairs = [(here, there) for here in scene.role("controller") for there in scene.machines]
    links = [(here, there) for here, there in pairs if here != there]
    return scene.network.impose(links, Weather(delay_us=250 * MILLISECOND)) if links else None


SLOW_NEWS: Final = Family("F18", "what the controller says arrives late", _slow_news, _ANY)


def _best_says_its_end(scene: Scene, *, loses_disk: bool) -> Undo | None:
    """All replicas die, the leader ahead of the others; each is back, and nobody is eligible.

    One follower was back first, and is gone again when the others say where their logs end. Then it
    is back to say so, too, and the best replica is not: its broker is dead, or has an empty disk.
    """
    leaders, controllers = scene.role("leader"), scene.role("controller")
    names = [name for name in scene.role("follower") if name not in leaders]
    if len(leaders) != 1 or len(names) != 2 or {*leaders, *names}.intersection(controllers):
        return None
    best = scene.machines[leaders[0]]
    first, other = (scene.machines[name] for name in names)
    heal = scene.cut(leaders, names)

    def kill_all() -> None:
        heal()
        for machine in (best, first, other):
            machine.kill()

    def exchange() -> None:
        first.kill()
        best.start()
        other.start()

    def lose_the_best() -> None:
        best.kill()
        if loses_disk:
            best.disk.wipe()
            best.start()

    scene.world.after(400 * MILLISECOND, "all die, the leader ahead of its followers", kill_all)
    scene.world.after(2 * SECOND, "the first one is back", first.start)
    scene.world.after(5 * SECOND, "the first one is gone, and the others are back", exchange)
    scene.world.after(9 * SECOND, "the best one is gone", lose_the_best)
    scene.world.after(12 * SECOND, "the first one is back again", first.start)

    return started((best, first, other))


BEST_IS_DEAD: Final = Family(
    "F03",
    "all die, and the best one again when it has said where its log ends",
    partial(_best_says_its_end, loses_disk=False),
    _ANY,
)
BEST_IS_EMPTY: Final = Family(
    "F36",
    "all die, and the best one loses its disk when it has said where its log ends",
    partial(_best_says_its_end, loses_disk=True),
    _ANY,
)


def _slow_between_brokers(scene: Scene) -> Undo | None:
    """Followers hear late of what is committed, and readers do not."""
    pairs = [(here, there) for here in scene.machines for there in scene.machines if here != there]
    return scene.network.impose(pairs, Weather(delay_us=60 * MILLISECOND))


SLOW_BETWEEN_BROKERS: Final = Family(
    "F16", "the network between brokers is slow", _slow_between_brokers, _ANY
)


def _reset_the_neighbour(scene: Scene) -> Undo | None:
    """A reader of its zone's replica asks the leader again, which sends it back."""
    broken = scene.network.reset_streams(scene.dice, 1.0, ["neighbour-t-0"])
    return (lambda: None) if broken else None


RESET_THE_NEIGHBOUR: Final = Family(
    "F17", "the streams of a reader of followers are reset", _reset_the_neighbour, _ANY
)


def _trim(scene: Scene) -> Undo | None:
    """Delete all records while a broker is about to be killed; another one dies right after."""
    if scene.administered is None:
        return None
    for place in scene.administered.states:
        scene.administered.administer(TrimRecords(place))
    first, second = scene.any_machine(), scene.any_machine()
    scene.world.after(scene.dice.randrange(1, 60) * MILLISECOND, "one dies", first.kill)
    scene.world.after(scene.duration_us // 3, "and is back", first.start)
    scene.world.after(scene.duration_us // 3 + 300 * MILLISECOND, "one dies", second.kill)

    return started((first, second))


TRIMMED: Final = Family("F01", "records are deleted, and brokers are killed", _trim, _ANY)


LAG_AND_STOP: Final = Family("F49", "one lags, and another one wants to stop", _lag_and_stop, _ANY)


# --- The scenarios ---------------------------------------------------------------------------

_BOUNCES: Final[Sequence[Step]] = (
    (5.0, "F01", 0.3),
    *again("F17", 6.0, 0.2, 5, 0.1),
    (7.2, "F02", 2.5),
    *again("F71", 10.5, 0.7, 8, 0.3),
    *again("F17", 11.0, 0.5, 8, 0.1),
    (16.5, "F01", 0.4),
    (17.0, "F02", 1.0),
    (19.5, "F02", 0.2),
    (20.0, "F01", 0.3),
    (21.0, "F09", 2.2),
)

_WHEN_THE_LAST_HAS_AN_INDEX: Final = (30, 1.1, 20)
"""A segment is full after some 25 s here, and covered by a checkpoint 10 s after its begin."""

# fmt: off
RULE_SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario("P1 to P45", "brokers bounce, connections are reset and replicas are moved", Everyday,
             _BOUNCES, by_day=True, seeds=4, mutants=["batches are stamped with no leader's epoch",
                      "where an epoch began is not on the disk before its batches are",
                      "requests of any leader epoch are answered",
                      "what a follower reported in an earlier leader epoch counts",
                      "a member that has said nothing in this epoch is not waited for",
                      "the high watermark goes back", "a leader counts on itself alone",
                      "readers see what is not committed",
                      "a follower takes the leader's high watermark beyond its own log",
                      "a leader counts what it has not flushed",
                      "what a follower has not flushed counts", "a flush only tells",
                      "acks=all is acknowledged when the leader has it",
                      "who no longer leads says that nothing was appended",
                      "who no longer leads acknowledges what waits",
                      "a repetition is acknowledged before its original is committed",
                      "a repeated batch is appended again",
                      "four batches of a producer are remembered",
                      "a member that is being added is not waited for before its addition is known",
                      "a member that is being removed is not waited for any more",
                      "a follower joins below the high watermark", "a leader proposes to leave",
                      "the leader epoch stays when the leader changes",
                      "who is fenced goes on leading",
                      "old replicas go before the new ones are there",
                      "producer states are not kept while following",
                      "producer states end with the newest snapshot",
                      "small files are renamed before they are flushed",
                      "a renamed file's directory is not flushed",
                      "a new segment's name is not flushed"]),
    Scenario("P19, P21", "what leaders ask for is looked at late, when much is otherwise",
             RestlessOfFour,
             [AWAY, *again("F01", 7, 1.3, 14, 0.3), *again("F02", 9.5, 4, 4, 0.6),
              *again("F17", 8, 1.7, 9, 0.1), *again("F71", 12, 3, 4, 0.6)], seeds=6,
             mutants=["a proposal on an older state is applied",
                      "a proposal of an older leader is applied"]),
    Scenario("P19, P37", "a follower starts again while the proposal that it joins is on its way",
             BusyOfFour, [AWAY, *again(JOIN_AND_START_AGAIN, 11, 8, 2, 6)],
             mutants=["a proposal may name who is fenced, or an earlier life",
                      "entries of earlier lives count"]),
    Scenario("P16", "producers hear of new leaders before these do, and give their requests up",
             InAHurry, [AWAY, (10, SLOW_NEWS, 16), *again("F02", 11, 3, 5, 1)],
             mutants=["a batch is appended though its request was answered"]),
    Scenario("P28, P37",
             "leaders are back at once, and hear of themselves before they hear of others", Busy,
             again("F02", 6, 2.5, 10, 0.15), by_day=True, seeds=6,
             mutants=["a broker leads because an earlier life of it does",
                      "a broker may lead before it knows that it is registered"]),
    Scenario("P34 to P39", "controllers do not notice that others have taken over", Heedless,
             [*again("F01", 7, 2.1, 8, 0.3), *again("F02", 8, 4, 4, 0.4), (24, "F17", 2.5)],
             by_day=True, seeds=6, mutants=["each controller takes the epoch of the one before",
                      "what another controller wrote counts as the own write",
                      "a write that was refused, or has no answer, counts as done"]),
    Scenario("P39", "a controller that was replaced has the lease again, and a broker starts",
             Heedless, again(LEASE_GIVEN_BACK, 5, 1.3, 14, 0.1),
             mutants=["a broker follows a controller that was replaced"]),
    Scenario("P36", "the store refuses, and loses answers, while brokers come and go", Busy,
             [(6, "F43", 12), (18.5, "F43", 8), *again("F01", 6.5, 1.5, 12, 0.3)],
             mutants=["a write that was refused, or has no answer, counts as done"]),
    Scenario("P9, P11, P26, P37",
             "a follower dies, then its leader; the third has more than the follower that is back",
             Restless, again(TWO_DIE, 6, 12, 2, 9), by_day=True,
             mutants=["who is eligible stays so when enough are in sync without it",
                      "nobody stays eligible who leaves the in-sync replicas",
                      "the earlier life stays in sync until it is missed",
                      "the high watermark moves while too few are in sync",
                      "a leader appends although too few are in sync"]),
    Scenario("P22", "likewise, and what the new leader has comes late to the follower that is back",
             RestlessOfFour,
             [(4.5, LEASE_GIVEN, 0.1), *again(TWO_DIE_AND_ONE_IS_SLOW, 8, 12, 2, 9)],
             mutants=["a follower joins below where the epoch began"]),
    Scenario("P25", "a leader dies while one of its followers is out of touch with it", Busy,
             [AWAY, (10, CUT_A_FOLLOWER, 5), (13, "F02", 1.5)], by_day=True, seeds=6,
             mutants=["any live replica may be elected"]),
    Scenario("P3, P4, P5, P45", "a leader goes on alone for long, and has to cut what it has",
             Forward, again("F11", 6, 13, 2, 8), by_day=True,
             mutants=["a follower cuts its log once, and does not ask again whether it diverges",
                      "a leader serves followers whose log is no prefix of its own",
                      "a follower cuts its log at its high watermark",
                      "producer states are those of before the log was cut",
                      "producer states of what was cut stay on the disk"]),
    Scenario("P4, P22",
             "all was given up, who missed it is elected uncleanly, and the others are back",
             SoonGivenUp, again(OLDEST_IS_BACK, 8, 18, 3, 15), by_day=True, seeds=6,
             mutants=[
                 "an empty log counts for all that it has given up, whatever came in its place"]),
    Scenario("P71", "brokers are away while records are deleted, and are back", SoonDeleted,
             [*again("F01", 6, 4, 8, 3), *again(TRIMMED, 39, 6, 4, 5)], by_day=True, seeds=6,
             mutants=["a follower joins with records that its leader has deleted",
                      "a deletion of records counts although only its leader knows of it"]),
    Scenario("P31", "all die, and the best one again when it has said where its log ends", Ahead,
             [(4.5, LEASE_GIVEN, 0.1), (8, BEST_IS_DEAD, 15)],
             mutants=["the best replica is not waited for while its broker is dead"]),
    Scenario("P31", "all die, and the best one loses its disk when it has said where its log ends",
             Ahead, [(4.5, LEASE_GIVEN, 0.1), (8, BEST_IS_EMPTY, 15)], by_day=True,
             mutants=["a replica is as good as its broker's earlier life said"]),
    Scenario("P12", "a reader is ahead of the follower that it is sent to", Neighbours,
             [(5, SLOW_BETWEEN_BROKERS, 20), *again(RESET_THE_NEIGHBOUR, 6, 1.3, 14, 0.1)],
             by_day=True,
             mutants=[
                 "a follower tells a reader that is ahead of it that its offset does not exist"]),
    Scenario("P8", "what a follower has yet to fetch is damaged at its leader", Busy,
             [(7, FLIP_UNFETCHED, 4)], by_day=True,
             mutants=["a follower keeps batches whose checksums do not hold"]),
    Scenario("P65", "what a follower has yet to fetch is damaged, and no scrub finds it",
             Unscrubbed, [(7, FLIP_UNFETCHED, 4)],
             mutants=["what came damaged is sent again without a look at it"]),
    Scenario("P27", "the marker of an earlier stop is put back", Busy, [(6, OLD_MARKER, 12)],
             mutants=["any clean-shutdown marker counts"]),
    Scenario("P32", "one follower lags, and the other one wants to stop", NeverShort,
             [AWAY, (12, LAG_AND_STOP, 5)], by_day=True, seeds=6,
             mutants=["who stops leaves the in-sync replicas though too few remain"]),
    Scenario("P65", "the last segment is gone", Witnesses,
             again(LOST_LAST, *_WHEN_THE_LAST_HAS_AN_INDEX, 0.3), by_day=True,
             mutants=["a log that lost flushed batches is cut to what is left"]),
    Scenario("P65", "the checkpoint and the last segment are gone", Witnesses,
             again(LOST_TOGETHER, *_WHEN_THE_LAST_HAS_AN_INDEX, 0.3),
             mutants=[
                 "the recovery point is the checkpoint's alone, not the highest of its witnesses"]),
    Scenario("P68", "a closed segment is cut short", Busy, [(10, CUT_CLOSED, 0.3)], by_day=True,
             mutants=["a closed segment is what its index says, whatever the file is"]),
    Scenario("P75", "topics are deleted and brought back, and brokers die meanwhile", BroughtBack,
             again("F74", 6, 9, 5, 6), by_day=True, seeds=6,
             mutants=["no replica stays eligible when its topic is deleted",
                      "a deleted topic keeps the states of its partitions",
                      "a broker that starts keeps its earlier life in deleted topics",
                      "a broker that crashed has all records of deleted topics",
                      "brokers delete the files of a topic that may be brought back",
                      "a deleted topic is gone before its time"]),
    Scenario("P75", "topics are deleted and brought back, and clocks jump meanwhile", BroughtBack,
             [*again("F74", 6, 9, 5, 6), *again("F19", 8, 9, 5, 3), *again("F21", 9, 9, 5, 0)],
             seeds=6),
    Scenario("P77", "a topic and the first position are made while most brokers are away",
             MadeInAnOutage, [(6, TWO_ARE_AWAY, 8)], by_day=True,
             mutants=["only living brokers count for the usual number of replicas"]),
    Scenario("P77", "a cluster of one broker keeps positions, and grows", Growing,
             mutants=["positions stay on the disks that there were at first"]),
    Scenario("P77", "a topic is asked for while the first brokers start", JustStarting,
             mutants=["a cluster does not wait for its first brokers"]),
)
# fmt: on
