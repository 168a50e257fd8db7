"""What a reader may be sent of a replica that leads or follows."""

from dataclasses import replace

import pytest
from tests.fakes.cluster import Cluster, registration
from tests.fakes.replica_log import FakeReplicaLog

from millrace.core.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    EpochEnd,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicPartition,
)
from millrace.core.metadata.model import PartitionState
from millrace.core.replica.fetch.catch_up import CatchUpAllowance
from millrace.core.replica.fetch.session import NO_END, FetchPosition
from millrace.core.replica.fetch.session_reader import (
    AtEnd,
    Decision,
    LookBack,
    Pause,
    ReadElsewhere,
    SendBatches,
    SessionReader,
)
from millrace.core.replica.log.open_transactions import NOTHING_UNDECIDED, Undecided
from millrace.core.replica.replication.in_sync import standings_of
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.replica import Replica
from millrace.core.replica.replication.rules import AppendRules, ReplicationConfig

NOW = MonotonicMs(0)
START, COMMITTED, WRITTEN = Offset(2), Offset(4), Offset(6)
CONSUMER = SessionReader()


class Served:
    """A replica with the offsets 2 to 6, of which those before 4 are committed.

    Of the two brokers each is in a zone of its own; both replicas are in sync.

    Args:
        leads: whether it is the leader's replica, or the follower's.
    """

    def __init__(self, *, leads: bool = True) -> None:
        self.cluster = Cluster(0)
        for broker_id in range(2):
            self.cluster.driver.start_broker(registration(broker_id, rack=f"zone-{broker_id}"))
        self.cluster.driver.tick()
        self.topic_id = self.cluster.create(replication_factor=2)
        self.epoch = LeaderEpoch(3)
        state = replace(self.cluster.state(self.topic_id), leader_epoch=self.epoch)
        self.leader = self.cluster.life(state.leader)
        (self.follower,) = (broker for broker in state.isr if broker != self.leader)
        self.log = FakeReplicaLog(WRITTEN, WRITTEN, START)
        self.log.leader_epochs.append(LeaderEpoch(1), START)
        self.log.leader_epochs.append(self.epoch, COMMITTED)
        self.replica = Replica(
            TopicPartition(self.topic_id, 0),
            self.leader if leads else self.follower,
            self.log,
            AppendRules(),
            high_watermark=COMMITTED,
            config=ReplicationConfig(),
        )
        self.replica.on_state(state, standings_of(self.cluster.driver.image.cluster.brokers), NOW)
        assert self.replica.leads is leads
        # Readers of it.
        self.consumer_nearby = SessionReader(zone=f"zone-{self.follower.broker_id}")
        self.follower_of_it = SessionReader(follower=self.follower)

    def position(
        self,
        offset: int = COMMITTED,
        *,
        epoch: int | None = None,
        last_epoch: int | None = None,
        end: int = NO_END,
        may_be_sent_on: bool = False,
    ) -> FetchPosition:
        return FetchPosition(
            1,
            self.replica.topic_partition,
            Offset(offset),
            self.epoch if epoch is None else LeaderEpoch(epoch),
            self.epoch if last_epoch is None else LeaderEpoch(last_epoch),
            0,
            Offset(end),
            may_be_sent_on=may_be_sent_on,
        )

    def report(self, end_offset: int) -> None:
        """Let the follower say how far it is."""
        end = Offset(end_offset)
        self.replica.require_leader().on_follower_fetch(
            self.follower,
            self.epoch,
            FollowerProgress(end, end, START, self.epoch),
            self.log.leader_epochs,
            NOW,
            log_start_offset=START,
        )

    def decide(self, reader: SessionReader, position: FetchPosition, now: int = 0) -> Decision:
        image = self.cluster.driver.image
        return reader.decide(position, self.replica, self.log, image, MonotonicMs(now))


@pytest.fixture
def led() -> Served:
    return Served()


@pytest.fixture
def followed() -> Served:
    return Served(leads=False)


# --- How far -----------------------------------------------------------------------------------


def test_a_consumer_is_sent_what_is_committed(led: Served) -> None:
    assert led.decide(CONSUMER, led.position(START)) == SendBatches(COMMITTED, COMMITTED)
    assert led.decide(CONSUMER, led.position(COMMITTED)) == AtEnd()
    assert led.decide(SessionReader(read_committed=True), led.position(START)) == SendBatches(
        COMMITTED, COMMITTED
    )


@pytest.mark.parametrize("leads", [True, False])
def test_a_reader_of_committed_records_is_sent_those_before_the_last_stable_offset(
    leads: bool,
) -> None:
    served = Served(leads=leads)
    zone = "" if leads else served.consumer_nearby.zone
    committed = SessionReader(zone=zone, read_committed=True)
    uncommitted = SessionReader(zone=zone)
    served.log.undecided = Undecided(open_offset=Offset(3))
    assert served.decide(committed, served.position(START)) == SendBatches(Offset(3), Offset(3))
    assert served.decide(committed, served.position(3)) == AtEnd()
    assert served.decide(committed, served.position(COMMITTED)) == AtEnd(), "it is in the log"
    assert served.decide(uncommitted, served.position(START)) == SendBatches(COMMITTED, COMMITTED)


def test_a_transaction_whose_marker_is_not_committed_is_not_sent(led: Served) -> None:
    committed = SessionReader(read_committed=True)
    led.log.undecided = Undecided(marker_offsets=(COMMITTED,), first_offsets=(START,))
    assert led.decide(committed, led.position(START)) == AtEnd()


def test_a_reader_of_committed_records_hears_when_the_last_stable_offset_moves(
    led: Served,
) -> None:
    committed, uncommitted = SessionReader(read_committed=True), CONSUMER
    led.log.undecided = Undecided(open_offset=Offset(3))
    position = led.position(3)
    position.told_high_watermark, position.told_log_start_offset = COMMITTED, START
    position.told_last_stable_offset = 3
    for reader in (committed, uncommitted):
        assert not reader.has_news(position, led.replica, led.log)
    assert committed.has_everything(position, led.replica, led.log)
    assert not uncommitted.has_everything(position, led.replica, led.log)
    led.log.undecided = NOTHING_UNDECIDED
    assert committed.has_news(position, led.replica, led.log)
    assert not committed.has_everything(position, led.replica, led.log)
    assert not uncommitted.has_news(position, led.replica, led.log)


def test_a_follower_is_sent_what_is_written(led: Served) -> None:
    assert led.decide(led.follower_of_it, led.position()) == SendBatches(WRITTEN, WRITTEN)
    assert led.decide(led.follower_of_it, led.position(WRITTEN)) == AtEnd()


def test_a_reader_that_names_an_end_is_sent_nothing_after_the_batch_that_holds_it(
    led: Served,
) -> None:
    assert led.decide(CONSUMER, led.position(START, end=3)) == SendBatches(COMMITTED, Offset(3))


def test_a_position_outside_of_the_log_is_refused(led: Served) -> None:
    for reader, offset in ((CONSUMER, START - 1), (CONSUMER, 7), (led.follower_of_it, START - 1)):
        with pytest.raises(OffsetOutOfRangeError, match=f"offsets 2 to 6, not {offset}"):
            led.decide(reader, led.position(offset, last_epoch=NO_LEADER_EPOCH))


def test_a_consumer_beyond_the_high_watermark_waits(led: Served) -> None:
    assert led.decide(CONSUMER, led.position(WRITTEN)) == AtEnd()  # P11


# --- Which replica -----------------------------------------------------------------------------


def test_a_request_of_another_leader_epoch_is_refused(led: Served) -> None:
    for reader in (CONSUMER, led.follower_of_it, led.consumer_nearby):
        with pytest.raises(FencedLeaderEpochError):
            led.decide(reader, led.position(epoch=led.epoch - 1))
        with pytest.raises(UnknownLeaderEpochError):
            led.decide(reader, led.position(epoch=led.epoch + 1))
        led.decide(reader, led.position(epoch=NO_LEADER_EPOCH))


def test_a_replica_that_follows_serves_only_consumers_that_name_their_zone(
    followed: Served,
) -> None:
    for reader in (CONSUMER, SessionReader(follower=followed.leader)):
        with pytest.raises(NotLeaderError, match="this broker does not lead it"):
            followed.decide(reader, followed.position(START))
    decision = followed.decide(followed.consumer_nearby, followed.position(START))
    assert decision == SendBatches(COMMITTED, COMMITTED)


def test_a_replica_that_follows_another_epoch_says_so(followed: Served) -> None:
    with pytest.raises(UnknownLeaderEpochError):
        followed.decide(followed.consumer_nearby, followed.position(epoch=followed.epoch + 1))


def test_a_replica_that_is_out_of_sync_sends_its_readers_back(followed: Served) -> None:
    followed.cluster.change_isr(followed.topic_id, followed.leader.broker_id)
    with pytest.raises(NotLeaderError, match="not in sync"):  # P12
        followed.decide(followed.consumer_nearby, followed.position())
    with pytest.raises(NotLeaderError, match="not in sync"):
        followed.consumer_nearby.check_epoch(followed.replica, followed.epoch, None)


def test_a_replica_that_follows_cannot_judge_what_it_does_not_know(followed: Served) -> None:
    with pytest.raises(OffsetNotAvailableError):
        followed.decide(followed.consumer_nearby, followed.position(WRITTEN))


def test_a_consumer_is_sent_to_a_replica_in_its_zone(led: Served) -> None:
    led.report(WRITTEN)
    sent_on = led.position(may_be_sent_on=True)
    assert led.decide(led.consumer_nearby, sent_on) == ReadElsewhere(led.follower.broker_id)
    for position in (led.position(START), led.position(START, may_be_sent_on=True)):
        reader = SessionReader(zone="elsewhere") if position.may_be_sent_on else led.consumer_nearby
        assert led.decide(reader, position) == SendBatches(WRITTEN, WRITTEN)


# --- What the reader has -----------------------------------------------------------------------


def test_a_reader_whose_log_is_no_prefix_looks_back(led: Served) -> None:
    for reader in (CONSUMER, led.follower_of_it):
        look_back = LookBack(EpochEnd(LeaderEpoch(1), COMMITTED))
        assert led.decide(reader, led.position(WRITTEN, last_epoch=1)) == look_back  # P4
        assert led.decide(reader, led.position(COMMITTED, last_epoch=1)) != look_back


def test_a_follower_that_has_more_than_its_leader_looks_back(led: Served) -> None:
    decision = led.decide(led.follower_of_it, led.position(WRITTEN + 1))
    assert decision == LookBack(EpochEnd(led.epoch, WRITTEN))


def test_a_reader_is_asked_for_its_epoch_once(led: Served) -> None:
    position = led.position(WRITTEN, last_epoch=led.epoch + 1)
    with pytest.raises(UnknownLeaderEpochError):
        led.decide(CONSUMER, position)
    position.told_high_watermark = COMMITTED
    assert led.decide(CONSUMER, position) == AtEnd()


# --- How much ----------------------------------------------------------------------------------


def test_a_follower_that_catches_up_is_held_back_and_one_in_sync_is_not(led: Served) -> None:
    follower = SessionReader(follower=led.follower, catch_up=CatchUpAllowance(1000, NOW))
    position = led.position()
    assert led.decide(follower, position) == SendBatches(WRITTEN, WRITTEN)
    assert not follower.on_sent(position, 10_000), "it is in sync"
    assert led.decide(follower, position) == SendBatches(WRITTEN, WRITTEN)

    state = led.cluster.change_isr(led.topic_id, led.leader.broker_id)
    assert isinstance(state, PartitionState)
    led.replica.on_state(state, standings_of(led.cluster.driver.image.cluster.brokers), NOW)
    assert led.decide(follower, position) == SendBatches(WRITTEN, WRITTEN)
    assert follower.on_sent(position, 1100)
    assert led.decide(follower, position) == Pause(1001)  # 100 were left over, 1000 a second come.
    led.log.size_bytes += 1001  # What is appended meanwhile is sent on top.
    assert led.decide(follower, position) == SendBatches(WRITTEN, WRITTEN)


# --- What it was told --------------------------------------------------------------------------


def test_offsets_that_moved_are_news(led: Served) -> None:
    position = led.position(WRITTEN)
    assert CONSUMER.has_news(position, led.replica, led.log)
    position.told_high_watermark, position.told_log_start_offset = COMMITTED, START
    assert not CONSUMER.has_news(position, led.replica, led.log)
    led.log.log_start_offset = Offset(3)
    assert CONSUMER.has_news(position, led.replica, led.log)
    led.log.log_start_offset = START
    led.report(WRITTEN)
    assert CONSUMER.has_news(position, led.replica, led.log)


def test_followers_hear_how_far_all_replicas_have_compacted_their_logs(led: Served) -> None:
    position = led.position(WRITTEN)
    position.told_high_watermark, position.told_log_start_offset = COMMITTED, START
    led.replica.role.compacted_offset = COMMITTED
    assert led.follower_of_it.has_news(position, led.replica, led.log)
    assert not CONSUMER.has_news(position, led.replica, led.log)
    assert led.replica.take_news() is not None
    assert led.replica.take_news() is None


def test_a_follower_that_has_all_need_not_be_looked_at_again(led: Served) -> None:
    position = led.position(WRITTEN)
    assert not led.follower_of_it.has_everything(position, led.replica, led.log)
    position.told_high_watermark, position.told_log_start_offset = COMMITTED, START
    assert led.follower_of_it.has_everything(position, led.replica, led.log)
    position.fetch_offset = COMMITTED
    assert not led.follower_of_it.has_everything(position, led.replica, led.log)


def test_a_consumer_that_has_all_that_is_committed_need_not_be_looked_at_again(led: Served) -> None:
    position = led.position(COMMITTED)
    assert not CONSUMER.has_everything(position, led.replica, led.log)
    position.told_high_watermark, position.told_log_start_offset = COMMITTED, START
    assert CONSUMER.has_everything(position, led.replica, led.log)
    position.fetch_offset = Offset(COMMITTED - 1)
    assert not CONSUMER.has_everything(position, led.replica, led.log)


def test_a_reader_is_looked_at_again_after_what_came_since_the_last_look(led: Served) -> None:
    position = led.position(COMMITTED)
    position.told_high_watermark, position.told_log_start_offset = COMMITTED, START
    position.has_advanced = True
    assert not CONSUMER.has_everything(position, led.replica, led.log)
    CONSUMER.decide(position, led.replica, led.log, None, MonotonicMs(0))
    assert CONSUMER.has_everything(position, led.replica, led.log)
