"""The controller against a model of who has which committed records.

Brokers die, come back with or without what they had, or with a part of it, are drained, stopped in
good order, get other partitions, and empty damaged replicas; controllers are replaced, and topics
are flushed from some time on, or not any more. The model says of each replica how many of the
committed records it has. No leader may lack one, unless the election was reported as unclean (P25,
P26, P30, P31); and epochs, ISR and ELR keep their rules in every image that is published.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.fakes.controller_driver import ControllerDriver, Objects

from millrace.core.controller.partitions.elections import Rules
from millrace.core.errors import MillraceError
from millrace.core.ids import (
    NO_BROKER,
    UNKNOWN_OFFSET,
    BrokerEpoch,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife, PartitionState, Topic
from millrace.core.metadata.requests import (
    AlterPartition,
    AlterPartitions,
    AlterTopics,
    CreateTopics,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    LogEnd,
    NewTopic,
    Reassignment,
    ReassignPartitions,
    RegisterBroker,
    RenewReplicas,
    ReplicaRenewal,
    TopicChange,
    TopicRef,
)
from millrace.core.metadata.topic_config import Durability

CONFIG = ClusterConfig()
TOPICS = [
    NewTopic(name="safe", partitions=3, replication_factor=3),
    NewTopic(name="fast", partitions=3, replication_factor=3, config={"durability": "replicated"}),
    NewTopic(
        name="lax",
        partitions=2,
        replication_factor=2,
        config={"durability": "replicated", "min.insync.replicas": "1"},
    ),
    NewTopic(
        name="open",
        partitions=2,
        replication_factor=2,
        config={"unclean.leader.election.enable": "true"},
    ),
    NewTopic(name="alone", partitions=2, replication_factor=1),
]
BROKERS = [BrokerId(number) for number in range(4)]

brokers = st.sampled_from(BROKERS)
picks = st.integers(0, 1000)


@dataclass
class Process:
    """One broker as it really is."""

    life: BrokerLife | None = None  # None: it does not run.
    starts: int = 0
    disks: int = 1
    marker: BrokerEpoch | None = None


@dataclass
class Records:
    """The committed records of one partition, as a number, and how many of them each broker has."""

    committed: int = 0
    held: dict[BrokerId, int] = field(default_factory=dict)


class ControllerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.objects = Objects()
        self.processes = {broker_id: Process() for broker_id in BROKERS}
        self.records: dict[TopicPartition, Records] = {}
        self.leaders: dict[tuple[TopicPartition, int], BrokerLife] = {}
        self.seen: MetadataImage | None = None
        self.looked_at = 0
        # Whether a replica may leave an ISR although the others are fewer than min ISR then.
        self.may_shrink = True
        self.given_up: set[TopicPartition] = set()  # A person wants a leader, whatever it lacks.

    # What the model derives.

    @property
    def image(self) -> MetadataImage:
        return self.driver.image

    def partitions(self) -> list[tuple[TopicPartition, PartitionState, Topic]]:
        return [
            (TopicPartition(topic.topic_id, number), state, topic)
            for topic in self.image.topics_by_id.values()
            for number, state in enumerate(topic.partitions)
        ]

    def pick(self, number: int) -> tuple[TopicPartition, PartitionState, Topic]:
        every = self.partitions()
        return every[number % len(every)]

    def is_running(self, broker_id: BrokerId) -> bool:
        """Whether a process runs, and is the one that the cluster knows."""
        life = self.processes[broker_id].life if broker_id != NO_BROKER else None
        registered = self.image.broker(broker_id)
        return life is not None and registered is not None and registered.life == life

    def serves(self, broker_id: BrokerId) -> bool:
        broker = self.image.broker(broker_id)
        return self.is_running(broker_id) and broker is not None and not broker.is_fenced

    def silent(self) -> list[BrokerId]:
        return [broker for broker in BROKERS if not self.is_running(broker)]

    # Brokers.

    def register(self, broker_id: BrokerId) -> None:
        process = self.processes[broker_id]
        process.starts += 1
        request = RegisterBroker(
            name=f"b{broker_id}",
            rack=f"r{broker_id % 2}",
            host="h",
            port=1,
            incarnation_id=f"{broker_id}-{process.starts}",
            directory_ids=[f"d{broker_id}-{process.disks}"],
            broker_id=None,
            previous_broker_epoch=process.marker,
        )
        answer = self.driver.ask(request)
        self.look()
        if isinstance(answer, MillraceError):
            return  # Its last life may still be alive, for all that the controller knows.
        process.life = answer.life  # type: ignore[attr-defined]
        process.marker = None
        assert process.life is not None
        assert not self.driver.beat(process.life).is_fenced

    @initialize()
    def start(self) -> None:
        self.driver = ControllerDriver(self.objects, CONFIG).take_over()
        for broker_id in BROKERS:
            self.register(broker_id)
        ids = [TopicId(bytes([number]) * 16) for number in range(1, 1 + len(TOPICS))]
        for result in self.driver.ask(CreateTopics(topics=TOPICS, topic_ids=ids)):  # type: ignore[attr-defined]
            assert isinstance(result, Topic), result
        self.driver.tick()

    @rule(broker_id=brokers, is_noticed=st.booleans())
    def die(self, broker_id: BrokerId, is_noticed: bool) -> None:
        """Kill -9, and whatever was not on disk is gone."""
        process = self.processes[broker_id]
        if process.life is None:
            return
        process.life = None
        for key, state, topic in self.partitions():
            if topic.config.durability is Durability.REPLICATED or state.is_unflushed:
                self.records.setdefault(key, Records()).held[broker_id] = 0
        if is_noticed:
            self.may_shrink = True
            self.driver.kill(broker_id)
        self.look()

    @rule(broker_id=brokers)
    def stop(self, broker_id: BrokerId) -> None:
        """A controlled shutdown, whether it is granted in time or not (P32)."""
        process = self.processes[broker_id]
        if process.life is None or not self.is_running(broker_id):
            return
        for _ in range(3):
            self.may_shrink = False
            answer = self.driver.beat(process.life, wants_shutdown=True)
            self.look()
            if answer.may_stop:
                break
            for other in self.driver.live():
                if other.broker_id != broker_id and self.is_running(other.broker_id):
                    self.driver.beat(other)
        process.marker = process.life.broker_epoch
        process.life = None
        self.may_shrink = True
        self.driver.kill(broker_id)

    @rule(broker_id=brokers)
    def restart(self, broker_id: BrokerId) -> None:
        if self.processes[broker_id].life is None:
            self.may_shrink = True
            self.register(broker_id)

    @rule(broker_id=brokers)
    def lose_disk(self, broker_id: BrokerId) -> None:
        """The disk of a broker that does not run is replaced by an empty one."""
        process = self.processes[broker_id]
        if process.life is None:
            process.disks += 1
            process.marker = None
            for key, state, _ in self.partitions():
                if broker_id in state.replicas:
                    self.records.setdefault(key, Records()).held[broker_id] = 0

    @rule(broker_id=brokers, number=picks, lost=st.integers(1, 2))
    def put_back(self, broker_id: BrokerId, number: int, lost: int) -> None:
        """The disk of an eligible broker that does not run is one of earlier in the same life.

        Its leader has said what is committed; where none could, nothing can be known (P26).
        """
        key, state, _ = self.pick(number)
        records = self.records.setdefault(key, Records())
        process = self.processes[broker_id]
        is_eligible = broker_id in {life.broker_id for life in state.elr}
        if (
            process.life is None
            and is_eligible
            and state.committed_end.end_offset == records.committed > 0
        ):
            records.held[broker_id] = max(0, self.held(key, broker_id) - lost)
            process.marker = None

    @rule()
    def tell(self) -> None:
        """Leaders say what is committed, to whom that is of use (P26)."""
        self.may_shrink = False
        for key, state, _ in self.partitions():
            if state.elr and self.serves(state.leader):
                self.ask_for_isr(key, state, state.isr)

    @rule(broker_id=brokers, is_drained=st.booleans())
    def drain(self, broker_id: BrokerId, is_drained: bool) -> None:
        self.may_shrink = False
        self.driver.ask(DrainBroker(broker_id=broker_id, is_drained=is_drained))

    @rule(ms=st.sampled_from([100, 600, 5000]))
    def wait(self, ms: int) -> None:
        """Time passes: sessions end, leaderships move, log ends are reported."""
        self.may_shrink = bool({life.broker_id for life in self.driver.live()} & {*self.silent()})
        for _ in range(ms // 100):
            self.driver.pass_time(100, self.silent())
            self.look()
            asks, self.driver.asks = self.driver.asks, []
            for ask in asks:
                if self.processes[ask.broker.broker_id].life == ask.broker:
                    self.driver.beat(ask.broker, log_ends=self.log_ends(ask.broker, ask.partitions))

    def log_ends(self, life: BrokerLife, keys: tuple[TopicPartition, ...]) -> list[LogEnd]:
        return [self.log_end(key, self.held(key, life.broker_id)) for key in keys]

    def log_end(self, key: TopicPartition, held: int) -> LogEnd:
        state = self.image.partition(key)
        assert state is not None
        counted_on = state.committed_end.end_offset
        shown = counted_on if held >= counted_on else UNKNOWN_OFFSET
        return LogEnd(key, LeaderEpoch(0), Offset(held), shown)

    @rule()
    def replace_controller(self) -> None:
        """Another one takes over; it has heard of nobody."""
        now = self.driver.now
        self.may_shrink = True  # It mends what was left half done.
        self.driver = ControllerDriver(self.objects, CONFIG)
        self.looked_at = 0
        self.driver.now = now
        self.driver.take_over()
        self.driver.tick()

    @rule(broker_id=brokers, is_after_first_write=st.booleans())
    def replace_controller_in_mid_registration(
        self, broker_id: BrokerId, is_after_first_write: bool
    ) -> None:
        """The first phase may be stored in part, and the second is not (P37)."""
        process = self.processes[broker_id]
        if process.life is None:
            request = RegisterBroker(
                name=f"b{broker_id}",
                rack="",
                host="h",
                port=1,
                incarnation_id=f"{broker_id}-lost-{process.starts}",
                directory_ids=[f"d{broker_id}-{process.disks}"],
                broker_id=None,
            )
            self.may_shrink = True
            self.driver.send(request)
            if is_after_first_write and self.driver.writes:
                self.driver.writes.reverse()
                self.driver.write()
            self.look()
            self.replace_controller()

    # Partitions.

    def held(self, key: TopicPartition, broker_id: BrokerId) -> int:
        return self.records.setdefault(key, Records()).held.get(broker_id, 0)

    @rule()
    def produce(self) -> None:
        """Every partition that can commits one more record (P9, P14)."""
        for key, state, topic in self.partitions():
            in_sync = [life.broker_id for life in state.isr]
            min_isr = self.rules_of(topic).min_isr(state)
            if len(in_sync) >= min_isr and all(map(self.serves, in_sync)) and state.leader >= 0:
                records = self.records.setdefault(key, Records())
                records.committed += 1
                records.held.update(dict.fromkeys(in_sync, records.committed))

    def rules_of(self, topic: Topic) -> Rules:
        return Rules.of(topic, self.image.cluster.brokers, CONFIG)

    def ask_for_isr(
        self,
        key: TopicPartition,
        state: PartitionState,
        isr: tuple[BrokerLife, ...],
        *,
        is_flushed: bool = False,
    ) -> object:
        assert state.leader_life is not None
        change = AlterPartition(
            topic_id=key.topic_id,
            partition=key.partition,
            leader=state.leader_life,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            isr=isr,
            is_unflushed=state.is_unflushed and not is_flushed,
            committed_end=self.committed_end(key),
        )
        answers = self.driver.ask(AlterPartitions(changes=[change]))
        assert isinstance(answers, list)
        return answers[0]

    def committed_end(self, key: TopicPartition) -> EpochEnd:
        committed = self.records.setdefault(key, Records()).committed
        return EpochEnd(LeaderEpoch(0), Offset(committed))

    @rule(number=picks)
    def shrink(self, number: int) -> None:
        """A leader leaves its last follower behind."""
        key, state, _ = self.pick(number)
        if self.serves(state.leader) and len(state.isr) > 1:
            keeps = [life for life in state.isr if life != state.leader_life][:-1]
            self.may_shrink = True
            assert state.leader_life is not None
            self.ask_for_isr(key, state, (state.leader_life, *keeps))

    @rule()
    def catch_up(self) -> None:
        """Every follower that can copies its leader's log and joins the ISR (P22)."""
        for key, state, _ in self.partitions():
            if not self.serves(state.leader):
                continue
            records = self.records.setdefault(key, Records())
            joined = list(state.isr)
            for broker_id in state.replicas:
                if broker_id not in {life.broker_id for life in state.isr} and self.serves(
                    broker_id
                ):
                    life = self.processes[broker_id].life
                    assert life is not None
                    joined.append(life)
                    records.held[broker_id] = self.held(key, state.leader)
            self.ask_for_isr(key, state, tuple(joined))
            self.look()

    @rule(number=picks, broker_id=brokers)
    def renew(self, number: int, broker_id: BrokerId) -> None:
        """A replica is damaged, and is emptied once nobody counts on it (P65)."""
        key, state, _ = self.pick(number)
        life = self.processes[broker_id].life
        if life is None or not self.is_running(broker_id):
            return
        self.may_shrink = True
        renewal = ReplicaRenewal(key, state.partition_epoch)
        answers = self.driver.ask(RenewReplicas(replica=life, renewals=[renewal]))
        assert isinstance(answers, list)
        self.look()
        answer = answers[0]
        if isinstance(answer, PartitionState):
            self.records.setdefault(key, Records()).held[broker_id] = 0
            counted = (*answer.isr, *answer.elr)
            assert broker_id not in (*answer.last_known_elr, *(life.broker_id for life in counted))
            if state.leader != NO_BROKER:  # What the leader asked for before comes too late.
                late = self.ask_for_isr(key, state, (*{*state.isr, life},))
                assert isinstance(late, MillraceError)

    @rule(number=picks, durability=st.sampled_from(["fsync", "replicated"]))
    def alter_durability(self, number: int, durability: str) -> None:
        _, _, topic = self.pick(number)
        self.may_shrink = False
        change = TopicChange(
            topic=TopicRef(topic_id=topic.topic_id), set_config={"durability": durability}
        )
        self.driver.ask(AlterTopics(changes=[change]))

    @rule(number=picks)
    def flush(self, number: int) -> None:
        """A leader says that all in sync have flushed what is committed (P27)."""
        key, state, topic = self.pick(number)
        in_sync = [life.broker_id for life in state.isr]
        is_known = state.leader != NO_BROKER and all(map(self.serves, in_sync))
        if topic.config.durability is Durability.FSYNC and is_known and not state.elr:
            self.may_shrink = False
            self.ask_for_isr(key, state, state.isr, is_flushed=True)

    @rule(number=picks, replicas=st.permutations(BROKERS), count=st.integers(1, 3))
    def reassign(self, number: int, replicas: list[BrokerId], count: int) -> None:
        key, _, _ = self.pick(number)
        self.may_shrink = False
        asked = Reassignment(
            topic_id=key.topic_id, partition=key.partition, replicas=tuple(replicas[:count])
        )
        self.driver.ask(ReassignPartitions(reassignments=[asked]))

    @rule(number=picks)
    def cancel(self, number: int) -> None:
        key, _, _ = self.pick(number)
        self.may_shrink = False
        asked = Reassignment(topic_id=key.topic_id, partition=key.partition, replicas=None)
        self.driver.ask(ReassignPartitions(reassignments=[asked]))

    @rule(number=picks)
    def elect_preferred(self, number: int) -> None:
        key, _, _ = self.pick(number)
        self.may_shrink = True  # What is not served any more may be noticed by the way.
        self.driver.ask(ElectLeaders(kind=ElectionKind.PREFERRED, partitions=[key]))

    # What must hold, of every image that was published.

    @invariant()
    def look(self) -> None:
        for image in self.driver.images[self.looked_at :]:
            if self.seen is not None:
                assert image.epoch >= self.seen.epoch
            for topic in image.topics_by_id.values():
                for number, state in enumerate(topic.partitions):
                    self.check(image, topic, TopicPartition(topic.topic_id, number), state)
            self.seen = image
        self.looked_at = len(self.driver.images)

    def check(
        self, image: MetadataImage, topic: Topic, key: TopicPartition, state: PartitionState
    ) -> None:
        before = None if self.seen is None else self.seen.partition(key)
        if state is before:
            return
        min_isr = Rules.of(topic, image.cluster.brokers, CONFIG).min_isr(state)
        assert not (state.elr and len(state.isr) >= min_isr)
        leader = state.leader_life
        if leader is not None:
            assert self.leaders.setdefault((key, state.leader_epoch), leader) == leader
        if before is None or state == before:
            return
        assert state.partition_epoch > before.partition_epoch
        is_new = leader is not None and state.leader_epoch > before.leader_epoch
        if is_new and leader is not None:
            self.check_leader(topic, key, before, state, leader)
        if not self.may_shrink and len(state.isr) < len(before.isr):
            assert len(state.isr) >= min_isr, (before, state)

    def check_leader(
        self,
        topic: Topic,
        key: TopicPartition,
        before: PartitionState,
        state: PartitionState,
        leader: BrokerLife,
    ) -> None:
        records = self.records.setdefault(key, Records())
        if state.unclean_epoch == before.unclean_epoch:
            safe = {life.broker_id for life in (*before.isr, *before.elr)}
            assert leader.broker_id in safe
            # One that has died and is not missed yet may be elected; it will never serve.
            if self.processes[leader.broker_id].life == leader:
                assert self.held(key, leader.broker_id) == records.committed, (before, state)
            return
        reported = [report for report in self.driver.unclean if report.topic_partition == key]
        assert reported
        assert reported[-1].leader == leader
        allowed = topic.overrides.get("unclean.leader.election.enable") == "true"
        assert allowed or not (before.isr or before.elr) or key in self.given_up
        records.committed = self.held(key, leader.broker_id)

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        for broker_id in BROKERS:
            self.driver.ask(DrainBroker(broker_id=broker_id, is_drained=False))
        for _ in range(3):  # Everybody comes back: everything must be led again.
            self.wait(5000)
            for broker_id in BROKERS:
                self.restart(broker_id)
            self.wait(600)
            self.catch_up()
        self.give_up()
        self.wait(5000)
        self.catch_up()
        self.wait(5000)
        for key, state, _ in self.partitions():
            assert state.leader != NO_BROKER, (key, state)
            assert state.leader == state.replicas[0]
            assert not state.elr
            assert not state.adding

    def give_up(self) -> None:
        """Elect where every eligible replica was put back from earlier: nobody else comes."""
        for key, state, _ in self.partitions():
            if state.leader == NO_BROKER:
                ends = [self.held(key, life.broker_id) for life in state.elr]
                assert ends
                assert max(ends) < state.committed_end.end_offset, (key, state, ends)
                self.given_up.add(key)
                self.driver.ask(ElectLeaders(kind=ElectionKind.UNCLEAN, partitions=[key]))
                self.look()


TestController = ControllerModel.TestCase
TestController.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
