"""All replicas of one broker: what images make of them, sessions, credit, and proposals."""

from collections.abc import Mapping, Sequence

import pytest
from tests.fakes.batch import WALL, Batch, header_of
from tests.fakes.calls import calls_in
from tests.fakes.cluster import Cluster, registration
from tests.fakes.replica_log import FakeReplicaLog

from millrace.core.errors import (
    CorruptLogError,
    EligibleLeadersNotAvailableError,
    IneligibleReplicaError,
    LogDirFailedError,
    MillraceError,
    NotControllerError,
    NotLeaderError,
    SafetyViolationError,
    StorageFullError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import (
    AlterTopics,
    DeleteTopics,
    LogEnd,
    Reassignment,
    ReassignPartitions,
    RenewReplicas,
    TopicChange,
    TopicRef,
)
from millrace.core.replica.replication.appends import Acks
from millrace.core.replica.replication.effects import (
    Append,
    Change,
    ChangeLog,
    CloseReplica,
    Complete,
    Configure,
    DropReplica,
    Effect,
    Halted,
    OpenLog,
    ProposeIsr,
    ProposeRenewals,
    SetAside,
    Wake,
)
from millrace.core.replica.replication.events import Changed, Failed, Fetched, Flushed, Written
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.replicas import Replicas
from millrace.core.replica.replication.rules import ReplicationConfig

CONFIG = ReplicationConfig(replica_lag_time_max_ms=1000, isr_retry_ms=100)
NOW = MonotonicMs(0)
MANY = 5000


class World:
    """A cluster with one topic, and the machine of one of its brokers.

    Attributes:
        leader: who leads the partition.
    """

    def __init__(
        self,
        *,
        leads: bool,
        replication_factor: int = 3,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = Cluster(4)
        self.topic_id = self.cluster.create(replication_factor=replication_factor, config=config)
        self.partition = TopicPartition(self.topic_id, 0)
        state = self.cluster.state(self.topic_id)
        self.leader = state.leader
        self.here = next(
            replica for replica in state.replicas if (replica == state.leader) is leads
        )
        self.machine = Replicas(self.cluster.life(self.here), CONFIG)
        self.log = FakeReplicaLog()

    @property
    def image(self) -> MetadataImage:
        return self.cluster.driver.image

    def learn(self, now: MonotonicMs = NOW) -> list[Effect]:
        return self.machine.on_image(self.image, now)

    def open(self) -> "World":
        """Let the machine learn the metadata and open the log."""
        self.learn()
        self.machine.on_opened(self.partition, self.log, self.log.log_end_offset, NOW)
        return self

    def handle(self) -> int:
        """Say what is to be said to the leader; return the handle of the position in it."""
        request = self.machine.sessions[self.leader].take_request(NOW)
        assert request is not None
        return request.added[-1][0]

    def fetched(self, handle: int, *ends: int, size: int = 0, at: int = 0) -> list[Effect]:
        batches, begin = [], Offset(at)
        for end in ends:
            batches.append(Batch(begin, Offset(end), LeaderEpoch(0), f"{end}"))
            begin = Offset(end)
        return self.machine.on_fetched(
            self.leader,
            Fetched(
                handle=handle,
                fetch_offset=Offset(at),
                high_watermark=Offset(0),
                log_start_offset=Offset(0),
                batches=batches,
                size=size,
            ),
            NOW,
        )

    def fail(self, broker_id: BrokerId) -> None:
        """Let a broker die."""
        self.cluster.driver.kill(broker_id)


@pytest.fixture
def follower() -> World:
    return World(leads=False).open()


@pytest.fixture
def leader() -> World:
    return World(leads=True).open()


def kinds(effects: Sequence[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


# --- Images ----------------------------------------------------------------------------------


def test_a_partition_that_is_new_here_is_opened_once() -> None:
    world = World(leads=True)
    topic = world.image.topics_by_id[world.topic_id]
    assert world.learn() == [OpenLog(world.partition, topic, is_first=True)]
    other = world.cluster.create("other")
    opened = {
        each.topic_partition: each.is_first for each in world.learn() if isinstance(each, OpenLog)
    }
    assert opened.get(TopicPartition(other, 0), False) is False
    assert world.partition not in opened
    with pytest.raises(UnknownTopicOrPartitionError):
        world.machine.get(world.partition)


def test_an_opened_log_leads_where_the_image_says_so(leader: World) -> None:
    assert leader.machine.get(leader.partition).leads
    assert list(leader.machine) == [leader.partition]


def test_an_opened_log_follows_the_leader_that_the_image_names(follower: World) -> None:
    assert list(follower.machine.sessions) == [follower.leader]
    assert follower.machine.get(follower.partition).leader is None


def test_an_earlier_life_of_the_broker_makes_nobody_a_leader() -> None:
    world = World(leads=True)
    life = world.cluster.life(world.here)
    world.machine = Replicas(BrokerLife(life.broker_id, BrokerEpoch(life.broker_epoch + 1)), CONFIG)
    world.open()
    assert world.machine.get(world.partition).leader is None  # P37


def test_settings_that_change_reach_the_replica_and_its_log(leader: World) -> None:
    change = TopicChange(
        topic=TopicRef(topic_id=leader.topic_id), set_config={"min.insync.replicas": "3"}
    )
    leader.cluster.ask_each(AlterTopics(changes=[change]))
    assert Configure in kinds(leader.learn())
    replica = leader.machine.get(leader.partition)
    assert replica.leader is not None
    assert replica.leader.rules.min_insync_replicas == 3


def test_settings_that_changed_while_a_log_was_opened_reach_it_with_its_opening() -> None:
    world = World(leads=True)
    world.learn()
    change = TopicChange(
        topic=TopicRef(topic_id=world.topic_id), set_config={"min.insync.replicas": "3"}
    )
    world.cluster.ask_each(AlterTopics(changes=[change]))
    assert world.learn() == []
    effects = world.machine.on_opened(world.partition, world.log, Offset(0), NOW)
    assert Configure(world.partition, world.image.topics_by_id[world.topic_id]) in effects


def test_a_deleted_topic_is_closed_and_not_dropped(leader: World) -> None:
    waiter = leader.machine.get(leader.partition).leader.append(  # type: ignore[union-attr]
        header_of(1), Acks.ALL, "owner", WALL
    )
    leader.cluster.ask_each(
        DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(topic_id=leader.topic_id)])
    )
    effects = leader.learn()
    assert [Complete(leader.partition, [waiter]), Wake(leader.partition)] == effects[:2]
    assert effects[-1] == CloseReplica(leader.partition)
    assert isinstance(waiter.error, UnknownTopicOrPartitionError)
    assert list(leader.machine) == []


def test_a_replica_that_others_have_is_dropped_only_when_the_image_says_so() -> None:
    world = World(leads=False)
    world.open()
    state = world.cluster.state(world.topic_id)
    spare = next(n for n in range(4) if BrokerId(n) not in state.replicas)
    target = tuple(
        BrokerId(spare) if replica == world.here else replica for replica in state.replicas
    )
    world.cluster.ask_each(
        ReassignPartitions(reassignments=[Reassignment(
            topic_id=world.topic_id, partition=0, replicas=target)])
    )  # fmt: skip
    assert DropReplica not in kinds(world.learn())  # It is to go, and holds on until it may (P33).
    assert list(world.machine) == [world.partition]
    world.cluster.change_isr(world.topic_id, *state.replicas, spare)
    world.cluster.driver.pass_time(1000)
    assert world.here not in world.cluster.state(world.topic_id).replicas
    assert DropReplica(world.partition) in world.learn()
    assert list(world.machine) == []
    assert len(world.machine.sessions[world.leader]) == 0


def test_what_was_given_to_others_while_the_broker_was_down_is_dropped_at_the_first_image() -> None:
    """And not what the image does not know (P39, P70)."""
    world = World(leads=False)
    orphan = TopicPartition(TopicId(b"o" * 16), 0)
    state = world.cluster.state(world.topic_id)
    spare = next(n for n in range(4) if BrokerId(n) not in state.replicas)
    for here, expected in ((world.here, OpenLog), (spare, DropReplica)):
        life = world.cluster.life(here)
        world.machine = Replicas(life, CONFIG, [world.partition, orphan])
        (effect,) = [each for each in world.learn() if not isinstance(each, Wake)]
        assert isinstance(effect, expected)
        assert effect.topic_partition == world.partition
        world.cluster.driver.tick()
        assert world.learn() == []  # It is said once.


def test_a_log_that_opens_after_its_topic_was_deleted_is_closed() -> None:
    world = World(leads=True)
    world.learn()
    world.cluster.ask_each(
        DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(topic_id=world.topic_id)])
    )
    world.learn()
    opened = world.machine.on_opened(world.partition, world.log, Offset(0), NOW)
    assert opened == [CloseReplica(world.partition)]


def test_a_log_end_is_told_when_nobody_leads_and_nothing_is_being_written(follower: World) -> None:
    machine, partition = follower.machine, follower.partition
    assert machine.log_end(partition) is None
    follower.fetched(follower.handle(), 3)
    for replica in follower.cluster.state(follower.topic_id).replicas:
        follower.fail(replica)
    assert follower.cluster.state(follower.topic_id).leader == NO_BROKER
    assert machine.log_end(partition) is None
    follower.learn()
    assert machine.log_end(partition) is None
    machine.on_disk(partition, Written(Offset(3)), NOW)
    end = follower.log.log_end_offset
    assert machine.log_end(partition) == LogEnd(partition, NO_LEADER_EPOCH, end, Offset(0))


@pytest.mark.parametrize(("end", "epoch", "shown"), [(3, 0, 3), (4, 0, 3), (2, 0, -1), (4, 1, -1)])
def test_an_eligible_replica_tells_whether_its_log_has_what_it_is_counted_on_for(
    leader: World, end: int, epoch: int, shown: int
) -> None:
    """P26. Records of another leader epoch are not those that were committed."""
    cluster, topic = leader.cluster, leader.topic_id
    committed_end = EpochEnd(LeaderEpoch(0), Offset(3))
    cluster.change_isr(topic, leader.here, committed_end=committed_end)
    for replica in cluster.state(topic).replicas:
        leader.fail(replica)
    machine = Replicas(cluster.restart(leader.here, "2"), CONFIG)
    machine.on_image(leader.image, NOW)
    assert cluster.state(topic).committed_end == committed_end
    assert machine.log_end(leader.partition) is None  # It is not open yet.
    log = FakeReplicaLog()
    log.end_at(end, epoch)
    machine.on_opened(leader.partition, log, Offset(0), NOW)
    told = LogEnd(leader.partition, LeaderEpoch(epoch), Offset(end), Offset(shown))
    assert machine.log_end(leader.partition) == told
    why = [error.message for error in machine.lacking().values()]
    assert bool(why) == (shown < 0)
    assert all(f"ends at {end} (leader epoch {epoch}), lacks some" in each for each in why)
    assert (machine.get(leader.partition).lack() is not None) == (shown < 0)


def test_a_damaged_replica_is_reported_until_the_metadata_does_without_it(leader: World) -> None:
    assert leader.machine.unopened.offline() == []
    leader.machine.on_failed(leader.partition, CorruptLogError("damaged"))
    assert leader.machine.unopened.offline() == [leader.partition]
    leader.cluster.driver.beat(
        leader.cluster.life(leader.here), offline=leader.machine.unopened.offline()
    )
    leader.learn()
    assert leader.machine.unopened.offline() == []


def test_a_replica_whose_log_cannot_be_opened_yet_is_offline_until_it_is() -> None:
    world = World(leads=True)
    world.learn()
    world.machine.unopened.on_refused(world.partition, StorageFullError("full"))
    assert world.machine.unopened.offline() == [world.partition]
    with pytest.raises(StorageFullError):
        world.machine.get(world.partition)
    assert world.machine.tick(NOW) == []  # It is not damaged, and not fetched anew.
    world.machine.on_opened(world.partition, world.log, Offset(0), NOW)
    assert world.machine.get(world.partition).leads
    assert list(world.machine.unopened.errors) == []


def test_a_replica_that_is_given_up_is_not_waited_for_any_more() -> None:
    world = World(leads=True)
    world.learn()
    world.machine.unopened.on_refused(world.partition, StorageFullError("full"))
    world.cluster.ask_each(
        DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(topic_id=world.topic_id)])
    )
    world.learn()
    world.machine.unopened.on_refused(world.partition, StorageFullError("full"))
    assert list(world.machine.unopened.errors) == []


def test_a_damaged_replica_that_is_the_only_one_is_not_reported() -> None:
    world = World(leads=True)
    topic_id = world.cluster.create("alone", replication_factor=1)
    alone = TopicPartition(topic_id, 0)
    machine = Replicas(world.cluster.life(world.cluster.state(topic_id).leader), CONFIG)
    machine.on_image(world.image, NOW)
    machine.on_failed(alone, CorruptLogError("damaged"))
    assert machine.unopened.offline() == []
    assert machine.unopened.leaderships_failed == 1


def test_a_damaged_replica_that_should_lead_is_counted_until_somebody_else_does(
    leader: World,
) -> None:
    assert leader.machine.unopened.leaderships_failed == 0
    leader.machine.on_failed(leader.partition, CorruptLogError("damaged"))
    assert leader.machine.unopened.leaderships_failed == 1
    say_so(leader)
    assert leader.machine.unopened.leaderships_failed == 0
    assert list(leader.machine.unopened.errors) == [leader.partition]


def test_a_damaged_log_says_why_anew_each_time(leader: World) -> None:
    leader.machine.on_failed(leader.partition, CorruptLogError("damaged"))
    for _ in range(2):
        with pytest.raises(CorruptLogError, match="damaged"):
            leader.machine.get(leader.partition)
    leader.cluster.create("other")
    opened = [each for each in leader.learn() if isinstance(each, OpenLog)]
    assert all(each.topic_partition != leader.partition for each in opened)


# --- Damaged replicas ------------------------------------------------------------------------


def say_so(world: World) -> None:
    """Let the controller hear of what is damaged, and the machine of what follows."""
    world.cluster.driver.beat(
        world.cluster.life(world.here), offline=world.machine.unopened.offline()
    )
    world.learn()


def renew(world: World, effects: Sequence[Effect]) -> list[Effect]:
    """Ask the controller for the renewals that are among the effects, and take its answers."""
    (renewals,) = [effect.renewals for effect in effects if isinstance(effect, ProposeRenewals)]
    life = world.cluster.life(world.here)
    answers = world.cluster.ask_each(RenewReplicas(replica=life, renewals=renewals))
    world.learn()
    return world.machine.unopened.on_answers(
        [answer if isinstance(answer, MillraceError) else None for answer in answers], NOW
    )


@pytest.mark.parametrize("leads", [True, False])
def test_a_damaged_replica_begins_anew_once_nobody_counts_on_it(leads: bool) -> None:
    world = World(leads=leads).open()
    world.machine.on_failed(world.partition, CorruptLogError("damaged"))
    assert world.machine.tick(NOW) == []  # It is in sync, for all that the metadata says.
    say_so(world)
    asked = world.machine.tick(NOW)
    assert kinds(asked) == [ProposeRenewals]
    assert world.machine.tick(NOW) == []
    assert renew(world, asked) == [SetAside(world.partition)]
    assert world.machine.tick(NOW) == []
    with pytest.raises(CorruptLogError):
        world.machine.get(world.partition)
    topic = world.image.topics_by_id[world.topic_id]
    assert world.machine.unopened.on_set_aside(world.partition) == [OpenLog(world.partition, topic)]
    world.machine.on_opened(world.partition, FakeReplicaLog(), Offset(0), NOW)
    follower = world.machine.get(world.partition).follower
    assert follower is not None
    assert follower.progress.log_end_offset == 0
    state = world.cluster.state(world.topic_id)
    assert follower.leader_epoch == state.leader_epoch
    assert (world.here in {life.broker_id for life in state.isr}) is False
    assert list(world.machine.unopened.errors) == []


def refused_and_opened() -> World:
    """A follower whose log could not be opened when the broker started, and is open now."""
    world = World(leads=False)
    world.learn()
    world.machine.unopened.on_refused(world.partition, StorageFullError("full"))
    say_so(world)
    world.machine.on_opened(world.partition, world.log, world.log.log_end_offset, NOW)
    return world


def test_a_replica_that_could_not_be_opened_for_a_while_may_be_in_sync_again() -> None:
    world = refused_and_opened()
    replicas = world.cluster.state(world.topic_id).replicas
    assert isinstance(world.cluster.change_isr(world.topic_id, *replicas), IneligibleReplicaError)
    asked = world.machine.tick(NOW)
    assert kinds(asked) == [ProposeRenewals]
    assert renew(world, asked) == []  # It keeps its log.
    assert world.machine.tick(MonotonicMs(10_000)) == []
    follower = world.machine.get(world.partition).follower
    assert follower is not None
    assert follower.leader_epoch == world.cluster.state(world.topic_id).leader_epoch
    state = world.cluster.change_isr(world.topic_id, *replicas)
    assert isinstance(state, PartitionState)
    assert world.here in {life.broker_id for life in state.isr}


def test_what_was_granted_to_a_log_that_is_kept_is_not_for_one_that_is_damaged() -> None:
    world = refused_and_opened()
    asked = world.machine.tick(NOW)
    world.machine.on_failed(world.partition, CorruptLogError("damaged"))
    effects = renew(world, asked)  # The answer comes late: it may have been in sync since.
    assert kinds(effects) == [ProposeRenewals]
    assert renew(world, effects) == [SetAside(world.partition)]


def test_a_damaged_replica_that_is_the_only_one_left_keeps_what_it_has(leader: World) -> None:
    for broker_id in leader.cluster.state(leader.topic_id).replicas:
        if broker_id != leader.here:
            leader.fail(broker_id)
    leader.machine.on_failed(leader.partition, CorruptLogError("damaged"))
    say_so(leader)
    for at in range(0, 5000, 100):
        assert leader.machine.tick(MonotonicMs(at)) == []
    assert list(leader.machine.unopened.errors) == [leader.partition]


def test_a_replica_whose_directory_failed_does_not_begin_anew(follower: World) -> None:
    follower.machine.on_failed(follower.partition, LogDirFailedError("gone"))
    say_so(follower)
    assert follower.machine.tick(NOW) == []


@pytest.mark.parametrize(
    "answers", [NotControllerError("elsewhere"), [EligibleLeadersNotAvailableError("nobody")]]
)
def test_a_renewal_that_was_refused_or_lost_is_asked_for_again(
    follower: World, answers: object
) -> None:
    follower.machine.on_failed(follower.partition, CorruptLogError("damaged"))
    say_so(follower)
    follower.machine.tick(NOW)
    assert follower.machine.unopened.on_answers(answers, NOW) == []  # type: ignore[arg-type]
    assert follower.machine.tick(MonotonicMs(CONFIG.isr_retry_ms - 1)) == []
    assert kinds(follower.machine.tick(MonotonicMs(CONFIG.isr_retry_ms))) == [ProposeRenewals]


def test_a_disk_that_refuses_to_set_a_log_aside_is_asked_again(follower: World) -> None:
    follower.machine.on_failed(follower.partition, CorruptLogError("damaged"))
    say_so(follower)
    renew(follower, follower.machine.tick(NOW))
    follower.machine.on_set_aside_failed(follower.partition, StorageFullError("full"), NOW)
    with pytest.raises(StorageFullError):
        follower.machine.get(follower.partition)
    later = MonotonicMs(CONFIG.isr_retry_ms)
    assert follower.machine.tick(later) == [SetAside(follower.partition)]


def test_a_damaged_replica_that_is_moved_away_is_dropped_and_does_not_begin_anew() -> None:
    world = World(leads=False).open()
    world.machine.on_failed(world.partition, CorruptLogError("damaged"))
    say_so(world)
    asked = world.machine.tick(NOW)
    state = world.cluster.state(world.topic_id)
    spare = next(n for n in range(4) if BrokerId(n) not in state.replicas)
    others = [replica for replica in state.replicas if replica != world.here]
    world.cluster.ask_each(
        ReassignPartitions(reassignments=[Reassignment(
            topic_id=world.topic_id, partition=0, replicas=(*others, BrokerId(spare)))])
    )  # fmt: skip
    world.cluster.change_isr(world.topic_id, *others, spare)
    world.cluster.driver.pass_time(1000)
    assert DropReplica(world.partition) in world.learn()
    assert kinds(asked) == [ProposeRenewals]
    assert world.machine.unopened.on_answers([None], NOW) == []
    assert world.machine.unopened.on_set_aside(world.partition) == []
    assert list(world.machine.unopened.errors) == []


# --- Following -------------------------------------------------------------------------------


def test_what_is_fetched_is_appended_and_its_credit_comes_back_when_it_is_written(
    follower: World,
) -> None:
    handle = follower.handle()
    session = follower.machine.sessions[follower.leader]
    size = CONFIG.replica_fetch_window_bytes
    (change,) = follower.fetched(handle, 3, 5, size=size)
    assert isinstance(change, Append)
    request = session.take_request(NOW)
    assert request is None or not request.credit_bytes
    follower.log.end_at(5)
    follower.machine.on_disk(follower.partition, Written(Offset(5)), NOW)
    request = session.take_request(NOW)
    assert request is not None
    assert request.credit_bytes == size
    assert request.progress[0][1].log_end_offset == 5


def test_what_is_written_and_flushed_is_reported_once(follower: World) -> None:
    handle = follower.handle()
    session = follower.machine.sessions[follower.leader]
    follower.fetched(handle, 3)
    follower.log.end_at(3)
    follower.machine.on_disk(follower.partition, Flushed(Offset(3)), NOW)
    request = session.take_request(NOW)
    assert request is not None
    ((_, told),) = request.progress
    assert (told.log_end_offset, told.flushed_offset) == (3, 3)
    assert not session.has_news


def test_a_log_start_is_reported_and_readers_are_woken_once_it_is_durable(follower: World) -> None:
    handle = follower.handle()
    follower.log.end_at(5)
    follower.log.log_start_offset = Offset(2)
    # The disk may be ahead of what the follower has ordered.
    advanced = Changed(Change.ADVANCE_START, Offset(2), Offset(5))
    woken = follower.machine.on_disk(follower.partition, advanced, NOW)
    assert woken == [Wake(follower.partition)]
    (change,) = follower.fetched(handle, 5)
    assert isinstance(change, Append)
    follower.machine.on_disk(follower.partition, Written(Offset(5)), NOW)
    fetched = Fetched(
        handle=handle,
        fetch_offset=Offset(5),
        high_watermark=Offset(5),
        log_start_offset=Offset(2),
        batches=(),
        size=0,
    )
    effects = follower.machine.on_fetched(follower.leader, fetched, NOW)
    assert ChangeLog(follower.partition, Change.ADVANCE_START, Offset(2)) in effects
    session = follower.machine.sessions[follower.leader]
    request = session.take_request(NOW)
    assert request is not None
    assert request.progress[0][1].log_start_offset == 0
    follower.machine.on_disk(follower.partition, advanced, NOW)
    request = session.take_request(NOW)
    assert request is not None
    assert request.progress[0][1].log_start_offset == 2


def test_what_comes_for_a_position_that_was_left_is_dropped_and_its_credit_comes_back(
    follower: World,
) -> None:
    handle = follower.handle()
    size = CONFIG.replica_fetch_window_bytes
    follower.machine.on_fetch_error(follower.leader, handle, None, NOW)
    assert follower.fetched(handle, 3, size=size) == []  # P7
    request = follower.machine.sessions[follower.leader].take_request(NOW)
    assert request is not None
    assert (request.removed, request.credit_bytes) == ([handle], size)


def test_a_failed_write_gives_its_credit_back_and_voids_what_was_ordered(follower: World) -> None:
    handle = follower.handle()
    size = CONFIG.replica_fetch_window_bytes
    (first,) = follower.fetched(handle, 3, size=size)
    assert isinstance(first, Append)
    follower.machine.on_disk(follower.partition, Failed(Offset(0), StorageFullError("full")), NOW)
    request = follower.machine.sessions[follower.leader].take_request(NOW)
    assert request is not None
    assert request.credit_bytes == size
    again = follower.machine.sessions[follower.leader].take_request(
        MonotonicMs(CONFIG.replica_fetch_backoff_ms)
    )
    assert again is not None
    (second,) = follower.fetched(again.added[0][0], 3, size=size)
    assert isinstance(second, Append)
    assert second.generation > first.generation


def test_a_broken_session_is_begun_anew_from_where_the_log_ends(follower: World) -> None:
    handle = follower.handle()
    follower.fetched(handle, 3)
    follower.log.end_at(3)
    follower.machine.on_disk(follower.partition, Written(Offset(3)), NOW)
    assert follower.machine.on_session_broken(follower.leader, NOW) == []
    request = follower.machine.sessions[follower.leader].take_request(
        MonotonicMs(CONFIG.replica_fetch_backoff_ms)
    )
    assert request is not None
    assert [(each[1].topic_partition, each[1].fetch_offset) for each in request.added] == [
        (follower.partition, 3)
    ]


def test_a_session_that_breaks_over_unwritten_batches_waits_for_them(follower: World) -> None:
    follower.fetched(follower.handle(), 3)
    follower.machine.on_session_broken(follower.leader, NOW)
    session = follower.machine.sessions[follower.leader]
    assert len(session) == 0
    follower.log.end_at(3)
    follower.machine.on_disk(follower.partition, Written(Offset(3)), NOW)
    assert len(session) == 1


def test_a_new_leader_gets_the_position_and_the_old_one_loses_it(follower: World) -> None:
    follower.handle()
    follower.fail(follower.leader)
    follower.learn()
    new = follower.cluster.state(follower.topic_id).leader
    assert len(follower.machine.sessions[follower.leader]) == 0
    if new == follower.here:
        assert follower.machine.get(follower.partition).leads
    else:
        assert len(follower.machine.sessions[new]) == 1


def test_a_log_that_diverges_is_cut(follower: World) -> None:
    handle = follower.handle()
    follower.fetched(handle, 3)
    follower.log.end_at(3)
    follower.machine.on_disk(follower.partition, Written(Offset(3)), NOW)
    effects = follower.machine.on_fetched(
        follower.leader,
        Fetched(
            handle=handle,
            fetch_offset=Offset(3),
            high_watermark=Offset(0),
            log_start_offset=Offset(0),
            diverging=EpochEnd(LeaderEpoch(0), Offset(1)),
        ),
        NOW,
    )
    assert effects == [ChangeLog(follower.partition, Change.TRUNCATE, Offset(1))]
    follower.log.end_at(0)
    follower.machine.on_disk(
        follower.partition, Changed(Change.TRUNCATE, Offset(0), Offset(0)), NOW
    )
    assert follower.machine.sessions[follower.leader].take_request(NOW) is not None


def test_a_replica_that_would_lose_what_is_committed_halts() -> None:
    world = World(leads=False)
    world.log.end_at(5)
    world.open()  # The high watermark is at the end.
    effects = world.machine.on_fetched(
        world.leader,
        Fetched(
            handle=world.handle(),
            fetch_offset=Offset(5),
            high_watermark=Offset(0),
            log_start_offset=Offset(0),
            diverging=EpochEnd(LeaderEpoch(0), Offset(1)),
        ),
        NOW,
    )
    (halted,) = effects
    assert isinstance(halted, Halted)  # P5
    assert isinstance(halted.error, SafetyViolationError)
    assert len(world.machine.sessions[world.leader]) == 0


# --- Leading ---------------------------------------------------------------------------------


def report(world: World, broker_id: BrokerId, end: int, now: int = 0) -> list[Effect]:
    replica = world.machine.get(world.partition)
    assert replica.leader is not None
    return world.machine.on_follower_progress(
        world.partition,
        world.cluster.life(broker_id),
        replica.leader.leader_epoch,
        FollowerProgress(Offset(end), Offset(end), Offset(0), LeaderEpoch(0 if end else -1)),
        MonotonicMs(now),
    )


def test_an_append_is_completed_when_all_in_sync_replicas_have_it(leader: World) -> None:
    machine = leader.machine.get(leader.partition).leader
    assert machine is not None
    waiter = machine.append(header_of(2), Acks.ALL, "owner", WALL)
    leader.log.end_at(2)
    leader.machine.on_disk(leader.partition, Written(Offset(2)), NOW)
    assert leader.machine.on_disk(leader.partition, Flushed(Offset(2)), NOW) == []
    others = [n for n in leader.cluster.state(leader.topic_id).replicas if n != leader.here]
    assert report(leader, others[0], 2) == []
    effects = report(leader, others[1], 2)
    assert effects == [Complete(leader.partition, [waiter]), Wake(leader.partition)]
    assert waiter.error is None


def test_followers_hear_of_what_is_written_before_it_is_committed(leader: World) -> None:
    machine = leader.machine.get(leader.partition).leader
    assert machine is not None
    machine.append(header_of(2), Acks.ALL, "owner", WALL)
    leader.log.end_at(2)
    written = leader.machine.on_disk(leader.partition, Written(Offset(2)), NOW)
    assert written == [Wake(leader.partition, only_followers=True)]
    assert machine.high_watermark == 0


def test_one_that_does_not_lead_takes_no_report(follower: World) -> None:
    with pytest.raises(NotLeaderError):
        follower.machine.on_follower_progress(
            follower.partition,
            follower.cluster.life(follower.leader),
            LeaderEpoch(0),
            FollowerProgress(Offset(0), Offset(0), Offset(0), LeaderEpoch(-1)),
            NOW,
        )


def test_one_that_leads_only_once_its_disk_is_done_knows_who_may_join_by_then(
    follower: World,
) -> None:
    follower.fetched(follower.handle(), 3)
    others = [
        replica
        for replica in follower.cluster.state(follower.topic_id).replicas
        if replica != follower.here
    ]
    for other in others:
        follower.fail(other)
    follower.learn()
    assert follower.cluster.state(follower.topic_id).leader == follower.here
    assert not follower.machine.get(follower.partition).leads
    back = follower.cluster.driver.start_broker(registration(others[0], "2")).broker_id
    follower.learn()
    follower.log.end_at(3)
    follower.machine.on_disk(follower.partition, Written(Offset(3)), NOW)
    follower.machine.on_disk(follower.partition, Flushed(Offset(3)), NOW)
    machine = follower.machine.get(follower.partition).leader
    assert machine is not None
    effects = report(follower, back, 3)
    for at in range(100, 1000, 100):
        effects += follower.machine.tick(MonotonicMs(at))
    (proposed,) = (effect for effect in effects if isinstance(effect, ProposeIsr))
    ((_, proposal),) = proposed.proposals
    assert {life.broker_id for life in proposal.isr} == {follower.here, back}


def silent(leader: World) -> list[Effect]:
    """Let the followers of a leader with an append say nothing for too long."""
    machine = leader.machine.get(leader.partition).leader
    assert machine is not None
    machine.append(header_of(1), Acks.LEADER, "owner", WALL)
    leader.log.end_at(1)
    leader.machine.on_disk(leader.partition, Written(Offset(1)), NOW)
    effects: list[Effect] = []
    for at in range(0, 1500, 100):
        effects += leader.machine.tick(MonotonicMs(at))
    return effects


def test_readers_hear_of_what_is_committed_because_nobody_waits_for_the_silent(
    leader: World,
) -> None:
    member, joiner = (n for n in leader.cluster.state(leader.topic_id).replicas if n != leader.here)
    leader.cluster.change_isr(leader.topic_id, leader.here, member)
    leader.learn()
    silent(leader)  # A proposal is in flight, so that the joiner cannot be proposed.
    leader.machine.on_disk(leader.partition, Flushed(Offset(1)), MonotonicMs(1500))
    report(leader, member, 1, now=1500)
    report(leader, joiner, 1, now=1500)
    machine = leader.machine.get(leader.partition).leader
    assert machine is not None
    machine.append(header_of(1), Acks.LEADER, "owner", WALL)
    leader.log.end_at(2)
    leader.machine.on_disk(leader.partition, Written(Offset(2)), MonotonicMs(1500))
    leader.machine.on_disk(leader.partition, Flushed(Offset(2)), MonotonicMs(1500))
    report(leader, member, 2, now=1500)
    assert machine.high_watermark == 1
    effects: list[Effect] = []
    for at in range(1500, 3000, 100):
        effects += leader.machine.tick(MonotonicMs(at))
    assert machine.high_watermark == 2
    assert Wake(leader.partition) in effects


def test_one_request_with_proposals_is_in_flight_at_a_time(leader: World) -> None:
    proposed = [each for each in silent(leader) if isinstance(each, ProposeIsr)]
    assert len(proposed) == 1
    ((partition, proposal),) = proposed[0].proposals
    assert partition == leader.partition
    assert [life.broker_id for life in proposal.isr] == [leader.here]


def test_a_proposal_that_waits_is_forgotten_with_the_log_that_its_leader_had(leader: World) -> None:
    """It could make a broker the only member that has nothing of the partition any more."""
    led = [leader.partition]
    for number in range(12):
        topic = leader.cluster.create(f"t{number}")
        if leader.cluster.state(topic).leader == leader.here:
            led.append(TopicPartition(topic, 0))
    leader.machine.configure(request_partitions_max=1)
    leader.learn()
    for partition in led[1:]:
        leader.machine.on_opened(partition, FakeReplicaLog(), Offset(0), NOW)
    for partition in led:
        machine = leader.machine.get(partition).leader
        assert machine is not None
        machine.append(header_of(1), Acks.LEADER, "owner", WALL)
        leader.machine.on_disk(partition, Written(Offset(1)), NOW)
    effects: list[Effect] = []
    for at in range(0, 1500, 100):
        effects += leader.machine.tick(MonotonicMs(at))
    (asked,) = effects
    assert isinstance(asked, ProposeIsr)
    ((first, _),) = asked.proposals
    assert len(led) > 1
    for partition in led:
        if partition != first:
            leader.machine.on_failed(partition, CorruptLogError("damaged"))
    assert leader.machine.on_isr_answers([NotControllerError("later")], MonotonicMs(1500)) == []


def test_an_accepted_proposal_rests_on_the_metadata_that_came_before(leader: World) -> None:
    silent(leader)
    leader.cluster.change_isr(leader.topic_id, leader.here)
    leader.learn(MonotonicMs(1500))
    leader.machine.on_isr_answers([None], MonotonicMs(1500))
    machine = leader.machine.get(leader.partition).leader
    assert machine is not None
    assert machine.in_sync.proposal is None
    assert machine.in_sync.maximal_isr == (leader.cluster.life(leader.here),)


@pytest.mark.parametrize(
    ("answers", "stays"),
    [
        ([IneligibleReplicaError("no")], False),
        (NotControllerError("elsewhere"), True),
        ([NotControllerError("elsewhere")], True),
    ],
)
def test_only_an_answer_that_proves_it_takes_a_proposal_back(
    leader: World, answers: object, stays: bool
) -> None:
    silent(leader)
    leader.machine.on_isr_answers(answers, MonotonicMs(1500))  # type: ignore[arg-type]
    machine = leader.machine.get(leader.partition).leader
    assert machine is not None
    assert (machine.in_sync.proposal is not None) is stays  # P21
    asked = [
        each
        for at in range(1500, 1800, 50)
        for each in leader.machine.tick(MonotonicMs(at))
        if isinstance(each, ProposeIsr)
    ]
    assert len(asked) == 1


@pytest.mark.parametrize("replication_factor", [1, 3])
def test_a_topic_that_becomes_durable_is_so_for_all_once_its_last_flush_is_done(
    replication_factor: int,
) -> None:
    world = World(
        leads=True, replication_factor=replication_factor, config={"durability": "replicated"}
    ).open()
    others = [n for n in world.cluster.state(world.topic_id).replicas if n != world.here]
    machine = world.machine.get(world.partition).leader
    assert machine is not None
    machine.append(header_of(2), Acks.ALL, "owner", WALL)
    world.log.end_at(2)
    world.machine.on_disk(world.partition, Written(Offset(2)), NOW)
    for other in others:
        report(world, other, 2)
    assert machine.high_watermark == 2
    for at in range(100, 2000, 100):  # Nobody has anything to look at any more.
        world.machine.tick(MonotonicMs(at))
    durable = TopicChange(
        topic=TopicRef(topic_id=world.topic_id), set_config={"durability": "fsync"}
    )
    world.cluster.ask_each(AlterTopics(changes=[durable]))
    assert world.cluster.state(world.topic_id).is_unflushed
    world.learn(MonotonicMs(2000))
    for at in range(2100, 5000, 100):
        assert world.machine.tick(MonotonicMs(at)) == []
    world.machine.on_disk(world.partition, Flushed(Offset(2)), MonotonicMs(5000))
    effects: list[Effect] = []
    for at in range(5000, 5300, 100):
        effects += world.machine.tick(MonotonicMs(at))
    (propose,) = effects
    assert isinstance(propose, ProposeIsr)
    ((_, proposal),) = propose.proposals
    assert not proposal.is_unflushed  # P13, P27


def test_followers_of_a_process_that_stood_still_get_their_time_anew(leader: World) -> None:
    machine = leader.machine.get(leader.partition).leader
    assert machine is not None
    leader.machine.tick(NOW)
    machine.append(header_of(1), Acks.LEADER, "owner", WALL)
    leader.log.end_at(1)
    leader.machine.on_disk(leader.partition, Written(Offset(1)), NOW)
    for at in (60_000, *range(60_100, 61_000, 100)):
        assert leader.machine.tick(MonotonicMs(at)) == []  # P23
    assert ProposeIsr in kinds(leader.machine.tick(MonotonicMs(61_100)))


def test_a_report_that_comes_before_the_first_look_after_a_standstill_finds_it_out(
    leader: World,
) -> None:
    machine = leader.machine.get(leader.partition).leader
    assert machine is not None
    machine.append(header_of(1), Acks.LEADER, "owner", WALL)
    leader.log.end_at(1)
    leader.machine.on_disk(leader.partition, Written(Offset(1)), NOW)
    first, second = (n for n in leader.cluster.state(leader.topic_id).replicas if n != leader.here)
    leader.fail(first)
    leader.learn()
    leader.cluster.restart(first, "2")
    leader.learn()
    (propose,) = report(leader, first, 1, now=60_000)
    assert isinstance(propose, ProposeIsr)
    assert leader.cluster.life(second) in propose.proposals[0][1].isr  # P23


# --- Thousands of partitions -----------------------------------------------------------------


class Crowd:
    """A broker of three with thousands of partitions, of which it leads a third; all are quiet."""

    def __init__(self) -> None:
        self.cluster = Cluster(3)
        for shard in range(10):
            self.cluster.create(f"many-{shard}", partitions=MANY // 10, shard=shard)
        self.machine = Replicas(self.cluster.life(0), CONFIG)
        for effect in self.learn(NOW):
            assert isinstance(effect, OpenLog)
            self.machine.on_opened(effect.topic_partition, FakeReplicaLog(), Offset(0), NOW)
        self.led = [each for each in self.machine if self.machine.get(each).leads]
        for partition in self.led:
            for broker_id in (1, 2):
                self.report(partition, broker_id, 0, NOW)
        for at in (100, 600, 1100):  # Everybody has had a look since.
            self.machine.tick(MonotonicMs(at))

    def learn(self, now: MonotonicMs) -> list[Effect]:
        return self.machine.on_image(self.cluster.driver.image, now)

    def append(self, partition: TopicPartition, now: MonotonicMs) -> None:
        """Write a first record, which no follower has."""
        leader = self.machine.get(partition).leader
        assert leader is not None
        leader.append(header_of(1), Acks.LEADER, "owner", WALL)
        self.machine.on_disk(partition, Written(Offset(1)), now)

    def report(self, partition: TopicPartition, broker_id: int, end: int, now: MonotonicMs) -> None:
        replica = self.machine.get(partition)
        assert replica.leader is not None
        self.machine.on_follower_progress(
            partition,
            self.cluster.life(broker_id),
            replica.leader.leader_epoch,
            FollowerProgress(Offset(end), Offset(end), Offset(0), LeaderEpoch(-1)),
            now,
        )


def test_among_thousands_of_quiet_partitions_only_those_cost_anything_where_something_is() -> None:
    crowd = Crowd()
    assert len(crowd.led) > MANY // 4
    for at in range(1200, 5000, 100):
        assert calls_in(lambda: crowd.machine.tick(MonotonicMs(at))) < 20  # noqa: B023

    busy = crowd.led[0]
    crowd.append(busy, MonotonicMs(5000))
    proposed: list[Effect] = []
    for at in range(5000, 6200, 100):
        assert calls_in(lambda: proposed.extend(crowd.machine.tick(MonotonicMs(at)))) < 200  # noqa: B023
    (propose,) = proposed
    assert isinstance(propose, ProposeIsr)
    assert [proposal for proposal, _ in propose.proposals] == [busy]


def test_what_is_asked_of_the_controller_is_split_as_the_cluster_bounds_requests() -> None:
    crowd = Crowd()
    crowd.machine.configure(request_partitions_max=1000)
    for busy in crowd.led:
        crowd.append(busy, MonotonicMs(1200))
    effects: list[Effect] = []
    for at in range(1200, 3000, 100):
        effects += crowd.machine.tick(MonotonicMs(at))
    asked: list[TopicPartition] = []
    while effects:
        (propose,) = effects
        assert isinstance(propose, ProposeIsr)
        assert len(propose.proposals) <= 1000
        asked += [proposal for proposal, _ in propose.proposals]
        answers = [NotControllerError("later")] * len(propose.proposals)
        effects = crowd.machine.on_isr_answers(answers, MonotonicMs(3000))
    assert sorted(asked) == sorted(crowd.led)
    assert len(crowd.led) > 1000


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_damaged_replicas_begin_anew_at_once_than_a_request_may_name(most: int) -> None:
    follower = World(leads=False, replication_factor=4).open()
    other = TopicPartition(follower.cluster.create("other", replication_factor=4), 0)
    follower.machine.configure(request_partitions_max=most)
    follower.learn()
    for each in (follower.partition, other):
        follower.cluster.report_offline(follower.here, each.topic_id)
        follower.machine.on_failed(each, CorruptLogError("damaged"))
    follower.learn()
    (ask,) = follower.machine.tick(MonotonicMs(100))
    assert isinstance(ask, ProposeRenewals)
    assert len(ask.renewals) == most


def test_an_image_costs_the_partitions_that_it_alters_and_not_those_beside_them() -> None:
    crowd = Crowd()
    altered = crowd.led[0]
    crowd.cluster.change_isr(altered.topic_id, 0, 1, partition=altered.partition)
    assert calls_in(lambda: crowd.learn(MonotonicMs(1200))) < 400
    replica = crowd.machine.get(altered)
    assert replica.state is not None
    assert len(replica.state.isr) == 2


def test_a_leader_that_is_tried_again_and_again_costs_nothing_for_each_partition() -> None:
    crowd = Crowd()
    session = crowd.machine.sessions[BrokerId(1)]
    while session.take_request(NOW) is not None:
        pass
    count = len(session)
    crowd.machine.on_session_broken(BrokerId(1), NOW)
    assert len(session) == count > MANY // 4
    assert calls_in(lambda: crowd.machine.on_session_broken(BrokerId(1), NOW)) < 20
    assert len(session) == count
