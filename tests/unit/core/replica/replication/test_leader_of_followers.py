"""The leader of several replicas: what followers report, the high watermark, the in-sync set."""

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from tests.fakes.batch import PARTITION, WALL, header_of
from tests.fakes.completed import completed
from tests.fakes.replica_log import FakeReplicaLog

from millrace.core.errors import (
    DuplicateSequenceError,
    FencedLeaderEpochError,
    MalformedRequestError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
    UnknownLeaderEpochError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NOTHING_WRITTEN,
    BrokerEpoch,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionEpoch,
)
from millrace.core.metadata.model import BrokerLife, BrokerRegistration, PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.effects import Change
from millrace.core.replica.replication.events import Changed
from millrace.core.replica.replication.in_sync import BrokerStanding, IsrProposal, standings_of
from millrace.core.replica.replication.isr_states import FollowerState
from millrace.core.replica.replication.leader import PartitionLeader
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.rules import AppendRules, ReplicationConfig

EPOCH = LeaderEpoch(5)
LEADER, FIRST, SECOND = (BrokerLife(BrokerId(n), BrokerEpoch(10 + n)) for n in range(3))
FIRST_REBORN = BrokerLife(FIRST.broker_id, BrokerEpoch(20))
ALL = (LEADER, FIRST, SECOND)
STANDINGS = {life.broker_id: BrokerStanding(life.broker_epoch, can_join=True) for life in ALL}
LAG = 10_000
CONFIG = ReplicationConfig(
    replica_lag_time_max_ms=LAG,
    isr_retry_ms=500,
    isr_rejoin_pause_ms=30_000,
)


def state_of(
    isr: tuple[BrokerLife, ...] = ALL, *, leader_epoch: int = EPOCH, partition_epoch: int = 7
) -> PartitionState:
    return PartitionState(
        replicas=tuple(life.broker_id for life in ALL),
        leader=LEADER.broker_id,
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=PartitionEpoch(partition_epoch),
        isr=isr,
    )


class Leading:
    """A leader, and a clock; the log's disk is perfect."""

    def __init__(
        self,
        isr: tuple[BrokerLife, ...] = ALL,
        *,
        end: int = 0,
        high_watermark: int | None = None,
        epochs: tuple[tuple[int, int], ...] = (),
        min_insync_replicas: int = 2,
        durability: Durability = Durability.FSYNC,
    ) -> None:
        self.now = MonotonicMs(0)
        self.epochs = LeaderEpochs(epochs)
        self.log_start_offset = Offset(0)
        offset = Offset(end)
        self.machine = PartitionLeader(
            PARTITION,
            LEADER,
            state_of(isr),
            FakeReplicaLog(offset, offset),
            AppendRules(durability=durability, min_insync_replicas=min_insync_replicas),
            high_watermark=offset if high_watermark is None else Offset(high_watermark),
            standings=STANDINGS,
            config=CONFIG,
            now=self.now,
        )

    def append(self, owner: str = "a", records: int = 1, acks: Acks = Acks.ALL) -> Waiter:
        """Append, write and flush; the epoch's first batch is noted as the log does it."""
        waiter = self.machine.append(header_of(records), acks, owner, WALL)
        self.epochs.append(self.machine.leader_epoch, waiter.base_offset)
        self.machine.on_written(self.machine.next_offset, self.now)
        self.machine.on_flushed(self.machine.next_offset)
        return waiter

    def report(
        self,
        life: BrokerLife,
        end: int,
        flushed: int | None = None,
        *,
        start: int = 0,
        compacted: int = 0,
        leader_epoch: int | None = None,
        last_epoch: int | None = None,
    ) -> list[Waiter]:
        """Let a follower say how far it is."""
        if last_epoch is None:
            last_epoch = self.epochs.epoch_of(Offset(end - 1)) if end else NO_LEADER_EPOCH
        progress = FollowerProgress(
            Offset(end),
            Offset(end if flushed is None else flushed),
            Offset(start),
            LeaderEpoch(last_epoch),
            Offset(compacted),
        )
        epoch = self.machine.leader_epoch if leader_epoch is None else LeaderEpoch(leader_epoch)
        return completed(
            self.machine.on_follower_fetch(
                life,
                epoch,
                progress,
                self.epochs,
                self.now,
                log_start_offset=self.log_start_offset,
            )
        )

    def pass_time(self, ms: int, step: int = 1000) -> IsrProposal | None:
        """Tick until something is proposed."""
        end = self.now + ms
        while self.now < end:
            self.now = MonotonicMs(min(self.now + step, end))
            _, proposal = self.machine.tick(self.now, self.epochs)
            if proposal is not None:
                return proposal
        return None

    def stand_still(self, ms: int) -> None:
        """Let the process stand still, and find out."""
        self.now = MonotonicMs(self.now + ms)
        self.machine.on_stood_still(self.now)

    def accept(self, proposal: IsrProposal) -> list[Waiter]:
        """Let the controller do what is proposed."""
        state = self.machine.state.successor(leader=LEADER.broker_id, isr=proposal.isr)
        return completed(self.machine.on_isr_accepted(proposal, state, self.now))


# --- The high watermark --------------------------------------------------------------------------


def test_the_slowest_in_sync_replica_holds_the_high_watermark_back() -> None:
    leading = Leading()
    waiter = leading.append(records=3)
    assert leading.report(FIRST, 3) == []
    assert leading.machine.high_watermark == 0
    assert leading.report(SECOND, 3) == [waiter]
    assert leading.machine.high_watermark == 3


def test_a_silent_in_sync_follower_holds_the_high_watermark_back() -> None:
    leading = Leading((LEADER, FIRST))
    waiter = leading.append()
    leading.report(SECOND, 1)
    assert not waiter.is_done
    assert leading.report(FIRST, 1) == [waiter]


def test_acks_of_the_leader_alone_does_not_queue_up_after_acks_of_all() -> None:
    leading = Leading()
    slow = leading.append("slow")
    quick = leading.append("quick", acks=Acks.LEADER)
    assert (slow.is_done, quick.is_done) == (False, True)


def test_with_fsync_only_what_a_follower_has_flushed_counts() -> None:
    leading = Leading(durability=Durability.FSYNC)
    waiter = leading.append()
    leading.report(FIRST, 1)
    assert leading.report(SECOND, 1, flushed=0) == []
    assert leading.report(SECOND, 1, flushed=1) == [waiter]


def test_with_replicated_what_a_follower_has_written_counts() -> None:
    leading = Leading(durability=Durability.REPLICATED)
    waiter = leading.append()
    leading.report(FIRST, 1, flushed=0)
    assert leading.report(SECOND, 1, flushed=0) == [waiter]


def test_the_leaders_own_flush_is_waited_for_as_well() -> None:
    leading = Leading()
    waiter = leading.machine.append(header_of(1), Acks.ALL, "a", WALL)
    leading.epochs.append(EPOCH, Offset(0))
    leading.machine.on_written(Offset(1), leading.now)
    leading.report(FIRST, 1)
    leading.report(SECOND, 1)
    assert leading.machine.high_watermark == 0
    assert completed(leading.machine.on_flushed(Offset(1))) == [waiter]


def test_while_too_few_are_in_sync_the_high_watermark_stands_still() -> None:
    leading = Leading((LEADER,), min_insync_replicas=2)
    leading.append(acks=Acks.LEADER)
    assert leading.machine.high_watermark == 0
    leading = Leading((LEADER,), min_insync_replicas=1)
    leading.append(acks=Acks.LEADER)
    assert leading.machine.high_watermark == 1


def test_min_insync_replicas_never_asks_for_more_replicas_than_there_are() -> None:
    leading = Leading(min_insync_replicas=9)
    waiter = leading.append()
    leading.report(FIRST, 1)
    assert leading.report(SECOND, 1) == [waiter]


def test_a_report_that_says_less_than_before_does_not_move_the_high_watermark_back() -> None:
    leading = Leading()
    leading.append()
    leading.report(FIRST, 1)
    leading.report(SECOND, 1)
    leading.report(SECOND, 0)
    assert leading.machine.high_watermark == 1
    leading.append("next")
    leading.report(FIRST, 2)
    assert leading.machine.high_watermark == 1


def test_a_leader_that_waits_for_nobody_knows_its_high_watermark_at_once() -> None:
    leading = Leading((LEADER,), end=8, high_watermark=3, min_insync_replicas=1)
    assert leading.machine.high_watermark == 8


def test_the_high_watermark_waits_for_a_caught_up_follower_that_is_about_to_join() -> None:
    leading = Leading((LEADER, FIRST))
    leading.append("first")
    leading.report(SECOND, 1)
    waiter = leading.append("second")
    leading.report(FIRST, 2)
    assert leading.machine.high_watermark == 1
    assert leading.report(SECOND, 2) == [waiter]


def test_nobody_waits_for_one_that_falls_silent_before_it_joined_or_may_not_join() -> None:
    leading = Leading((LEADER, FIRST))
    leading.append("first")
    leading.report(SECOND, 1)
    waiter = leading.append("second")
    leading.report(FIRST, 2)
    assert not waiter.is_done
    fenced = STANDINGS | {SECOND.broker_id: BrokerStanding(SECOND.broker_epoch, can_join=False)}
    assert completed(leading.machine.on_state(state_of((LEADER, FIRST)), fenced, leading.now)) == [
        waiter
    ]
    leading = Leading((LEADER,), min_insync_replicas=1)
    leading.append("first")
    leading.report(FIRST, 1)
    assert leading.pass_time(1000) is not None, "while this is in flight SECOND cannot join"
    leading.report(SECOND, 1)
    waiter = leading.append("second")
    leading.report(FIRST, 2)
    for seconds in range(2, 14):
        effects, _ = leading.machine.tick(MonotonicMs(1000 * seconds), leading.epochs)
        assert completed(effects) == ([waiter] if seconds == 12 else [])


# --- What eligible replicas are counted on for (P26) ---------------------------------------------


def short(leading: Leading, *, committed: EpochEnd = NOTHING_WRITTEN) -> PartitionState:
    """Let the controller fence the followers, after which FIRST is eligible."""
    before = leading.machine.state
    state = before.successor(
        leader=LEADER.broker_id, isr=(LEADER,), elr=(FIRST,), committed_end=committed
    )
    fenced = {
        life.broker_id: BrokerStanding(life.broker_epoch, can_join=life == LEADER) for life in ALL
    }
    leading.machine.on_state(state, fenced, leading.now)
    return state


def test_a_leader_says_what_is_committed_when_the_controller_has_taken_a_follower_out() -> None:
    leading = Leading()
    leading.append(records=3)
    for follower in (FIRST, SECOND):
        leading.report(follower, 3)
    leading.append()  # Nobody else has it.
    state = short(leading)
    assert leading.machine.due_at(leading.now) == leading.now
    end = EpochEnd(EPOCH, Offset(3))
    proposal = leading.pass_time(100)
    assert proposal == proposed(state.partition_epoch, (LEADER,), end)
    assert leading.pass_time(1000) is None, "one is in flight"
    said = state.successor(leader=LEADER.broker_id, isr=(LEADER,), elr=(FIRST,), committed_end=end)
    leading.machine.on_isr_accepted(proposal, said, leading.now)
    assert leading.pass_time(60_000) is None


def test_one_who_lags_leaves_with_the_high_watermark_of_then() -> None:
    leading = Leading((LEADER, FIRST))
    leading.append(records=3)
    leading.report(FIRST, 3)
    leading.append()
    proposal = leading.pass_time(LAG + 1000)
    assert proposal == proposed(7, (LEADER,), EpochEnd(EPOCH, Offset(3)))
    leading.report(FIRST, 4)  # It has caught up while that is under way, and counts until then.
    assert leading.machine.high_watermark == 4
    state = short(leading, committed=proposal.committed_end)
    end = EpochEnd(EPOCH, Offset(4))
    assert leading.pass_time(1000) == proposed(state.partition_epoch, (LEADER,), end)


def test_what_is_committed_is_named_by_the_leader_that_wrote_it() -> None:
    leading = Leading(end=5, high_watermark=4, epochs=((1, 0), (3, 4)))
    state = short(leading)
    assert leading.pass_time(100) == proposed(
        state.partition_epoch, (LEADER,), EpochEnd(LeaderEpoch(1), Offset(4))
    )


def test_a_leader_that_knows_no_more_than_the_metadata_says_nothing() -> None:
    """It may have been elected since, and know an older high watermark."""
    leading = Leading(end=5, high_watermark=4, epochs=((1, 0),))
    short(leading, committed=EpochEnd(LeaderEpoch(1), Offset(5)))
    assert leading.pass_time(LAG) is None
    empty = Leading()
    short(empty)
    assert empty.pass_time(LAG) is None


# --- Whose reports count -------------------------------------------------------------------------


def test_a_report_of_another_leader_epoch_is_refused() -> None:
    leading = Leading()
    leading.append()
    with pytest.raises(FencedLeaderEpochError):
        leading.report(FIRST, 1, leader_epoch=EPOCH - 1)
    with pytest.raises(UnknownLeaderEpochError):
        leading.report(FIRST, 1, leader_epoch=EPOCH + 1)
    with pytest.raises(MalformedRequestError):
        leading.report(FIRST, 1, leader_epoch=NO_LEADER_EPOCH)
    assert leading.machine.in_sync.followers[0].life is None


def test_a_report_of_a_broker_that_is_no_replica_is_refused() -> None:
    with pytest.raises(MalformedRequestError):
        Leading().report(BrokerLife(BrokerId(9), BrokerEpoch(1)), 0)


def test_a_log_that_is_no_prefix_of_the_leaders_counts_for_nothing() -> None:
    leading = Leading(end=3, high_watermark=0, epochs=((1, 0), (3, 2)))
    leading.report(SECOND, 3)
    leading.report(FIRST, 3, last_epoch=2)  # Epoch 2 is unknown here: it ended at 2.
    assert leading.machine.high_watermark == 0
    leading.report(FIRST, 3, last_epoch=1)  # Epoch 1 ended at 2.
    assert leading.machine.high_watermark == 0
    leading.report(FIRST, 2, last_epoch=1)
    assert leading.machine.high_watermark == 2


def emptied(leading: Leading, life: BrokerLife, end: int) -> tuple[int, int] | None:
    """Let a follower report an empty log; return what its leader answers to its position."""
    leading.report(life, end, last_epoch=NO_LEADER_EPOCH)
    return leading.machine.diverging_follower(
        life, Offset(end), NO_LEADER_EPOCH, leading.epochs, leading.log_start_offset
    )


def test_an_empty_log_counts_for_what_was_given_up_only_of_who_is_counted_on() -> None:
    """P4, P22: since an unclean election something else may stand in its place."""
    leading = Leading((LEADER, FIRST), end=5, high_watermark=0, epochs=((1, 0),))
    leading.log_start_offset = Offset(2)
    assert emptied(leading, SECOND, 4) == (NO_LEADER_EPOCH, 5)
    assert leading.machine.in_sync.followers[1].life is None, "nothing was taken of it"
    assert emptied(leading, FIRST, 4) is None
    assert leading.machine.high_watermark == 4
    eligible = replace(state_of((LEADER, FIRST), partition_epoch=8), elr=(SECOND,))
    leading.machine.on_state(eligible, STANDINGS, leading.now)
    assert emptied(leading, SECOND, 4) is None


def test_an_empty_log_that_begins_where_the_leaders_does_counts() -> None:
    leading = Leading((LEADER,), end=5, epochs=((1, 0),))
    leading.log_start_offset = Offset(5)
    assert emptied(leading, FIRST, 5) is None
    assert leading.machine.in_sync.followers[0].state is FollowerState.CAUGHT_UP
    assert emptied(leading, SECOND, 3) is None, "its position is out of range, and says so"


def test_a_report_that_goes_beyond_the_leaders_end_counts_for_nothing() -> None:
    leading = Leading(end=5, epochs=((1, 0),))
    for life in (FIRST, SECOND):
        assert emptied(leading, life, 6) == (NO_LEADER_EPOCH, 5)
    leading.append(records=3, acks=Acks.LEADER)
    assert leading.machine.high_watermark == 5


def test_a_member_of_another_life_is_waited_for_and_not_taken_for_the_present_one() -> None:
    leading = Leading()
    leading.append()
    leading.report(SECOND, 1)
    reborn = STANDINGS | {FIRST.broker_id: BrokerStanding(FIRST_REBORN.broker_epoch, can_join=True)}
    leading.machine.on_state(state_of(), reborn, leading.now)
    leading.report(FIRST, 1)
    assert leading.machine.high_watermark == 0, "that life is over"
    leading.report(FIRST_REBORN, 1)
    assert leading.machine.high_watermark == 0, "that life is not in sync"
    leading.report(FIRST, 1)
    assert leading.machine.in_sync.followers[0].life == FIRST_REBORN, (
        "a late report of the old life"
    )
    proposal = leading.pass_time(1000)
    assert proposal is not None
    assert proposal.isr == (LEADER, SECOND, FIRST_REBORN)
    leading.accept(proposal)
    assert leading.machine.high_watermark == 1


def test_a_life_that_the_metadata_does_not_know_yet_counts_for_nothing() -> None:
    leading = Leading()
    leading.machine.on_state(state_of(), {}, leading.now)
    leading.append()
    leading.report(FIRST, 1)
    leading.report(SECOND, 1)
    assert leading.machine.high_watermark == 0


# --- Producing -----------------------------------------------------------------------------------


def test_with_too_few_in_sync_an_append_for_all_is_refused_before_it_takes_an_offset() -> None:
    leading = Leading((LEADER,))
    with pytest.raises(NotEnoughReplicasError) as refused:
        leading.append()
    assert refused.value.appended.name == "NO"
    assert leading.machine.next_offset == 0
    leading.append(acks=Acks.LEADER)
    assert leading.machine.next_offset == 1


def test_when_too_few_are_left_what_waits_ends_and_may_be_in_the_log() -> None:
    leading = Leading()
    waiter = leading.append()
    alone = state_of((LEADER,), partition_epoch=8)
    assert completed(leading.machine.on_state(alone, STANDINGS, leading.now)) == [waiter]
    assert isinstance(waiter.error, NotEnoughReplicasAfterAppendError)
    assert waiter.error.appended.name == "MAYBE"


def test_while_an_expansion_is_in_flight_what_waits_goes_on_waiting() -> None:
    leading = Leading((LEADER, FIRST))
    waiter = leading.append()
    leading.report(FIRST, 0)
    leading.report(SECOND, 1)
    proposal = leading.pass_time(1000)
    assert proposal is not None
    assert proposal.isr == ALL
    leading.machine.rules = replace(leading.machine.rules, min_insync_replicas=3)
    leading.report(SECOND, 1)
    assert not waiter.is_done, "three may be in sync already"
    leading.machine.on_isr_refused(proposal, leading.now)
    assert isinstance(waiter.error, NotEnoughReplicasAfterAppendError)


def test_a_repetition_is_acknowledged_with_its_original_also_when_too_few_are_in_sync() -> None:
    leading = Leading()
    header = header_of(1, producer_id=1, sequence=0)
    for _ in range(2):
        leading.machine.append(header, Acks.ALL, "original, and while it waits", WALL)
    leading.epochs.append(EPOCH, Offset(0))
    leading.machine.on_written(Offset(1), leading.now)
    leading.machine.on_flushed(Offset(1))
    leading.report(FIRST, 1)
    leading.report(SECOND, 1)
    later = leading.machine.append(
        header_of(1, producer_id=1, sequence=1), Acks.ALL, "not committed", WALL
    )
    leading.machine.on_state(state_of((LEADER,), partition_epoch=8), STANDINGS, leading.now)
    assert later.error is not None
    assert leading.machine.append(header, Acks.ALL, "again", WALL).is_done
    with pytest.raises(NotEnoughReplicasAfterAppendError):
        leading.machine.append(header_of(1, producer_id=1, sequence=1), Acks.ALL, "again", WALL)


def test_nothing_that_waits_is_acknowledged_by_another_epoch() -> None:
    leading = Leading()
    waiter = leading.append()
    leading.report(SECOND, 1)
    next_epoch = state_of(leader_epoch=EPOCH + 1, partition_epoch=8)
    assert completed(leading.machine.on_state(next_epoch, STANDINGS, leading.now)) == [waiter]
    assert isinstance(waiter.error, NotLeaderError)
    assert leading.machine.leader_epoch == EPOCH + 1
    assert leading.machine.leader_epoch_start_offset == 1


def test_a_resigned_leader_advances_nothing() -> None:
    leading = Leading()
    waiter = leading.append()
    leading.report(FIRST, 1)
    next_epoch = state_of(leader_epoch=EPOCH + 1, partition_epoch=8)
    other = replace(next_epoch, leader=FIRST.broker_id)
    assert completed(leading.machine.on_state(other, STANDINGS, leading.now)) == [waiter]
    assert leading.machine.is_resigned
    assert isinstance(waiter.error, NotLeaderError)
    with pytest.raises(NotLeaderError):
        leading.report(SECOND, 1)
    assert completed(leading.machine.on_flushed(Offset(1))) == []
    assert leading.machine.high_watermark == 0
    assert leading.machine.tick(MonotonicMs(60_000), leading.epochs) == ([], None)


def test_another_life_of_the_same_broker_does_not_lead_on() -> None:
    leading = Leading()
    reborn = BrokerLife(LEADER.broker_id, BrokerEpoch(99))
    state = state_of((reborn, FIRST), leader_epoch=EPOCH + 1, partition_epoch=8)
    leading.machine.on_state(state, STANDINGS, leading.now)
    assert leading.machine.is_resigned


def test_a_state_from_the_past_changes_nothing() -> None:
    leading = Leading()
    old = state_of((LEADER,), partition_epoch=6)
    leading.machine.on_state(old, STANDINGS, leading.now)
    assert leading.machine.state.isr == ALL


# --- The in-sync replicas ------------------------------------------------------------------------


def proposed(
    partition_epoch: int,
    isr: tuple[BrokerLife, ...],
    committed_end: EpochEnd,
    *,
    is_unflushed: bool = False,
) -> IsrProposal:
    return IsrProposal(EPOCH, PartitionEpoch(partition_epoch), isr, is_unflushed, committed_end)


def test_a_follower_that_has_caught_up_is_proposed() -> None:
    leading = Leading((LEADER, FIRST))
    leading.append()
    leading.report(FIRST, 1)
    leading.report(SECOND, 0)
    assert not leading.machine.is_expansion_due(leading.now)
    assert leading.pass_time(3000) is None
    leading.report(SECOND, 1)
    assert leading.machine.is_expansion_due(leading.now)
    assert leading.pass_time(1000) == proposed(7, ALL, EpochEnd(EPOCH, Offset(1)))
    assert not leading.machine.is_expansion_due(leading.now), "one is in flight"


def unflushed(leading: Leading) -> None:
    """Let the topic be `fsync` from now on, which was not before."""
    leading.machine.rules = replace(leading.machine.rules, durability=Durability.FSYNC)
    state = replace(state_of(partition_epoch=8), is_unflushed=True)
    leading.machine.on_state(state, STANDINGS, leading.now)


def test_a_leader_says_when_all_have_flushed_what_was_committed_before_they_had_to() -> None:
    leading = Leading(durability=Durability.REPLICATED)
    leading.machine.append(header_of(1), Acks.ALL, "a", WALL)
    leading.epochs.append(EPOCH, Offset(0))
    leading.machine.on_written(Offset(1), leading.now)
    for follower in (FIRST, SECOND):
        leading.report(follower, 1, flushed=0)
    assert leading.machine.high_watermark == 1
    unflushed(leading)
    assert leading.pass_time(1000) is None
    leading.machine.on_flushed(Offset(1))
    leading.report(FIRST, 1)
    assert leading.pass_time(1000) is None
    leading.report(SECOND, 1)
    assert leading.pass_time(1000) == proposed(8, ALL, EpochEnd(EPOCH, Offset(1)))


def test_who_leaves_before_that_takes_the_doubt_along() -> None:
    leading = Leading(durability=Durability.REPLICATED)
    leading.append()
    leading.report(FIRST, 1)
    leading.report(SECOND, 1, flushed=0)
    unflushed(leading)
    proposal = None
    for _ in range(30):
        leading.report(FIRST, 1)
        proposal = proposal or leading.pass_time(1000)
    end = EpochEnd(EPOCH, Offset(1))
    assert proposal == proposed(8, (LEADER, FIRST), end, is_unflushed=True)


def test_a_new_leader_knows_what_was_committed_only_once_its_own_epoch_is() -> None:
    leading = Leading(end=5, high_watermark=2, epochs=((1, 0),))
    unflushed(leading)
    for follower in (FIRST, SECOND):
        leading.report(follower, 5, flushed=3)
    assert leading.machine.high_watermark == 3
    assert leading.pass_time(1000) is None
    for follower in (FIRST, SECOND):
        leading.report(follower, 5)
    assert leading.pass_time(1000) == proposed(8, ALL, EpochEnd(LeaderEpoch(1), Offset(5)))


def test_a_follower_below_the_high_watermark_does_not_join() -> None:
    leading = Leading((LEADER, FIRST))
    leading.append("first")
    leading.report(SECOND, 1)
    fenced = STANDINGS | {SECOND.broker_id: BrokerStanding(SECOND.broker_epoch, can_join=False)}
    leading.machine.on_state(state_of((LEADER, FIRST)), fenced, leading.now)
    leading.append("second")
    leading.report(FIRST, 2)
    leading.machine.on_state(state_of((LEADER, FIRST)), STANDINGS, leading.now)
    assert leading.machine.high_watermark == 2
    assert leading.pass_time(1000) is None
    leading.report(SECOND, 2)
    assert leading.pass_time(1000) is not None


def test_nobody_joins_below_the_start_of_the_leaders_epoch() -> None:
    leading = Leading((LEADER, FIRST), end=5, high_watermark=2, epochs=((1, 0), (2, 3)))
    leading.report(SECOND, 5)
    leading.report(SECOND, 4)  # Of what it had, it has lost some.
    assert leading.machine.high_watermark == 2
    assert leading.pass_time(1000) is None
    leading.report(SECOND, 5)
    assert leading.pass_time(1000) is not None


def test_a_follower_joins_only_without_the_records_that_its_leader_has_deleted() -> None:
    leading = Leading((LEADER, FIRST), end=5, epochs=((1, 0),))
    leading.machine.log_start_offset = Offset(3)
    leading.report(SECOND, 5, start=2)
    assert leading.pass_time(1000) is None
    leading.report(SECOND, 5, start=3)
    proposal = leading.pass_time(1000)
    assert proposal is not None
    assert proposal.isr == ALL


def test_the_low_watermark_waits_for_all_replicas_that_may_lead() -> None:
    leading = Leading((LEADER, FIRST), end=5, epochs=((1, 0),))
    leading.machine.log_start_offset = Offset(5)
    assert leading.machine.low_watermark < 0, "a member is silent"
    leading.report(FIRST, 5, start=4)
    leading.report(SECOND, 5, start=1)
    assert leading.machine.low_watermark == 4, "one that is not in sync does not count"
    leading.report(SECOND, 5, start=5)
    leading.pass_time(1000)  # It is proposed, so it may be in sync by now.
    leading.report(FIRST, 5, start=5)
    assert leading.machine.low_watermark == 5
    short = replace(state_of((LEADER,), partition_epoch=8), elr=(FIRST,))
    leading.machine.on_state(short, STANDINGS, leading.now)
    leading.report(FIRST, 5, start=2)
    assert leading.machine.low_watermark == 2, "an eligible one counts"
    alone = replace(state_of((LEADER,), partition_epoch=9), elr=())
    leading.machine.on_state(alone, STANDINGS, leading.now)
    assert leading.machine.low_watermark == 5


def test_a_log_counts_as_compacted_up_to_where_every_replica_has_done_it() -> None:
    leading = Leading((LEADER, FIRST), end=9, epochs=((1, 0),))
    leading.machine.log.compacted_offset = Offset(8)  # type: ignore[misc]
    leading.report(FIRST, 9, compacted=7)
    assert leading.machine.compacted_offset == 0, "one that is not in sync counts, and is silent"
    leading.report(SECOND, 5, compacted=4)
    assert leading.machine.compacted_offset == 4
    leading.report(SECOND, 9, compacted=9)
    assert leading.machine.compacted_offset == 7
    leading.report(FIRST, 9, compacted=9)
    assert leading.machine.compacted_offset == 8


def test_a_log_without_other_replicas_counts_as_compacted_from_the_start() -> None:
    log = FakeReplicaLog(Offset(9), Offset(9), compacted_offset=Offset(5))
    state = replace(state_of((LEADER,)), replicas=(LEADER.broker_id,))
    machine = PartitionLeader(
        PARTITION,
        LEADER,
        state,
        log,
        AppendRules(),
        high_watermark=Offset(9),
        now=MonotonicMs(0),
    )
    assert machine.compacted_offset == 5
    log.compacted_offset = Offset(9)
    machine.on_changed(Changed(Change.ADVANCE_START, Offset(0), Offset(9)))
    assert machine.compacted_offset == 9


def test_records_are_deleted_only_up_to_the_high_watermark_and_with_enough_replicas() -> None:
    leading = Leading(end=5, high_watermark=4, epochs=((1, 0),))
    with pytest.raises(OffsetNotAvailableError):
        leading.machine.check_deletable(Offset(3))
    for follower in (FIRST, SECOND):
        leading.report(follower, 5)
    leading.append()
    for offset in (0, 5):
        leading.machine.check_deletable(Offset(offset))
    for offset in (-1, 6):
        with pytest.raises(OffsetOutOfRangeError, match="up to offset 5"):
            leading.machine.check_deletable(Offset(offset))
    fallen_short = replace(state_of((LEADER,), partition_epoch=8), elr=(FIRST,))
    leading.machine.on_state(fallen_short, STANDINGS, leading.now)
    with pytest.raises(NotEnoughReplicasError, match="nothing was deleted"):
        leading.machine.check_deletable(Offset(1))


def test_a_fenced_follower_and_one_of_another_life_do_not_join() -> None:
    leading = Leading((LEADER, FIRST))
    fenced = STANDINGS | {SECOND.broker_id: BrokerStanding(SECOND.broker_epoch, can_join=False)}
    leading.machine.on_state(state_of((LEADER, FIRST)), fenced, leading.now)
    leading.report(SECOND, 0)
    assert leading.pass_time(2000) is None
    leading.machine.on_state(state_of((LEADER, FIRST)), STANDINGS, leading.now)
    leading.report(BrokerLife(SECOND.broker_id, BrokerEpoch(99)), 0)
    assert leading.pass_time(2000) is None


@pytest.mark.parametrize("why", ["is_fenced", "is_draining"])
def test_a_broker_that_is_fenced_or_about_to_go_does_not_join(why: str) -> None:
    broker = BrokerRegistration(
        broker_id=SECOND.broker_id,
        name="second",
        rack="",
        host="localhost",
        port=1,
        incarnation_id="i",
        directory_ids=(),
        broker_epoch=SECOND.broker_epoch,
        is_fenced=False,
    )
    leaving = replace(broker, is_fenced=why == "is_fenced", is_draining=why == "is_draining")
    assert standings_of({SECOND.broker_id: broker}) == {
        SECOND.broker_id: BrokerStanding(SECOND.broker_epoch, can_join=True)
    }
    assert standings_of({SECOND.broker_id: leaving}) == {
        SECOND.broker_id: BrokerStanding(SECOND.broker_epoch, can_join=False)
    }


def test_a_follower_that_does_not_catch_up_leaves_after_the_lag_time_and_not_before() -> None:
    leading = Leading()
    leading.append()
    leading.report(FIRST, 1)
    assert leading.pass_time(LAG) is None
    proposal = leading.pass_time(1000)
    assert proposal is not None
    assert proposal.isr == (LEADER, FIRST)


def test_a_follower_that_is_a_little_behind_all_the_time_stays() -> None:
    leading = Leading()
    for second in range(60):
        leading.append()
        leading.report(FIRST, second + 1)
        leading.report(SECOND, max(0, second - 2))
        assert leading.pass_time(1000) is None
    assert leading.machine.high_watermark == 57


def test_a_follower_that_falls_behind_for_ever_leaves_though_it_reports() -> None:
    leading = Leading()
    proposal = None
    for second in range(30):
        leading.append(records=10)
        leading.report(FIRST, 10 * (second + 1))
        leading.report(SECOND, second)
        proposal = leading.pass_time(1000)
        if proposal is not None:
            break
    assert proposal is not None
    assert proposal.isr == (LEADER, FIRST)


def test_an_idle_follower_that_has_everything_stays_and_gets_its_whole_time_afterwards() -> None:
    leading = Leading()
    leading.append("first")
    leading.report(FIRST, 1)
    leading.report(SECOND, 1)
    assert leading.pass_time(10 * LAG) is None
    leading.append("second")
    assert leading.pass_time(LAG) is None
    assert leading.pass_time(1000) is not None


def test_a_leader_that_stood_still_gives_its_followers_their_time_anew() -> None:
    leading = Leading()
    leading.append()
    assert leading.pass_time(8000) is None
    leading.stand_still(60_000)
    assert leading.pass_time(LAG) is None
    assert leading.pass_time(1000) is not None


def test_a_leader_that_stood_still_does_not_take_a_silent_stranger_for_caught_up() -> None:
    leading = Leading(min_insync_replicas=1)
    leading.append("first")
    leading.report(FIRST, 1)
    leading.report(SECOND, 1)
    leading.append("second", acks=Acks.LEADER)
    shrink = leading.pass_time(2 * LAG)
    assert shrink is not None
    assert shrink.isr == (LEADER,)
    leading.machine.rules = replace(leading.machine.rules, min_insync_replicas=2)
    leading.accept(shrink)
    assert leading.machine.high_watermark == 1, "which both of them have"
    leading.stand_still(60_000)
    assert leading.pass_time(5000) is None


def test_a_member_whose_life_is_over_leaves_at_once_though_the_broker_is_back() -> None:
    leading = Leading()
    leading.report(FIRST, 0)
    leading.report(SECOND, 0)
    back = STANDINGS | {FIRST.broker_id: BrokerStanding(FIRST_REBORN.broker_epoch, can_join=False)}
    leading.machine.on_state(state_of(), back, leading.now)
    leading.report(FIRST_REBORN, 0)
    proposal = leading.pass_time(1000)
    assert proposal is not None
    assert proposal.isr == (LEADER, SECOND)


def test_the_leader_never_removes_itself() -> None:
    leading = Leading()
    leading.append()
    proposal = leading.pass_time(2 * LAG)
    assert proposal is not None
    assert proposal.isr == (LEADER,)


def test_a_leader_that_was_elected_uncleanly_says_that_it_has_recovered() -> None:
    leading = Leading((LEADER,), min_insync_replicas=1)
    recovering = replace(state_of((LEADER,), partition_epoch=8), is_recovering=True)
    leading.machine.on_state(recovering, STANDINGS, leading.now)
    proposal = leading.pass_time(1000)
    assert proposal is not None
    assert proposal.isr == (LEADER,)
    recovered = recovering.successor(leader=LEADER.broker_id, isr=proposal.isr, is_recovering=False)
    leading.machine.on_isr_accepted(proposal, recovered, leading.now)
    assert leading.pass_time(2000) is None


def test_one_proposal_is_in_flight_and_an_unknown_answer_repeats_the_same() -> None:
    leading = Leading((LEADER, FIRST))
    leading.report(SECOND, 0)
    proposal = leading.pass_time(1000)
    assert proposal is not None
    leading.append()
    assert leading.pass_time(3 * LAG) is None
    leading.machine.on_isr_unknown(proposal, leading.now)
    assert leading.machine.in_sync.maximal_isr == ALL
    assert leading.pass_time(400, step=100) is None
    assert leading.pass_time(200, step=100) == proposal
    assert leading.machine.in_sync.proposal == proposal


def test_a_refused_proposal_is_taken_back_and_not_made_again_at_once() -> None:
    leading = Leading((LEADER, FIRST))
    leading.report(SECOND, 0)
    proposal = leading.pass_time(1000)
    assert proposal is not None
    leading.machine.on_isr_refused(proposal, leading.now)
    assert leading.machine.in_sync.maximal_isr == (LEADER, FIRST)
    waiter = leading.append()
    assert leading.report(FIRST, 1) == [waiter], "it is not about to join"
    leading.report(SECOND, 1)
    assert leading.pass_time(400, step=100) is None
    assert leading.pass_time(200, step=100) is not None


def test_an_answer_to_an_old_proposal_changes_nothing() -> None:
    leading = Leading((LEADER, FIRST))
    leading.report(SECOND, 0)
    old = leading.pass_time(1000)
    assert old is not None
    leading.machine.on_state(state_of((LEADER, FIRST), partition_epoch=9), STANDINGS, leading.now)
    assert leading.machine.in_sync.proposal is None, "newer metadata wins"
    new = leading.pass_time(1000)
    assert new is not None
    leading.machine.on_isr_refused(old, leading.now)
    leading.machine.on_isr_unknown(old, leading.now)
    leading.machine.on_isr_accepted(old, state_of(partition_epoch=8), leading.now)
    assert leading.machine.in_sync.proposal == new


def test_an_answer_that_everything_was_so_already_ends_the_proposal() -> None:
    leading = Leading((LEADER, FIRST))
    leading.report(SECOND, 0)
    proposal = leading.pass_time(1000)
    assert proposal is not None
    leading.machine.on_isr_accepted(proposal, state_of((LEADER, FIRST)), leading.now)
    assert leading.machine.in_sync.proposal is None


def test_a_new_epoch_forgets_what_followers_reported_in_the_last_one() -> None:
    leading = Leading()
    leading.append()
    leading.report(FIRST, 1)
    leading.report(SECOND, 1)
    next_epoch = state_of(leader_epoch=EPOCH + 1, partition_epoch=8)
    leading.machine.on_state(next_epoch, STANDINGS, leading.now)
    assert [follower.life for follower in leading.machine.in_sync.followers] == [None, None]
    leading.append("next")
    leading.report(FIRST, 2)
    assert leading.machine.high_watermark == 1


def test_a_follower_that_falls_behind_again_and_again_waits_longer_each_time() -> None:
    leading = Leading()
    pauses = []
    for _ in range(7):
        leading.append(acks=Acks.LEADER)
        leading.report(FIRST, leading.machine.next_offset)
        shrink = leading.pass_time(2 * LAG)
        assert shrink is not None
        leading.accept(shrink)
        left_at = leading.now
        expand = None
        while expand is None:  # It is back at once, and keeps up from now on.
            leading.report(FIRST, leading.machine.next_offset)
            leading.report(SECOND, leading.machine.next_offset)
            expand = leading.pass_time(1000)
        pauses.append((leading.now - left_at) // 1000)
        leading.accept(expand)
    assert pauses == [1, 30, 60, 120, 240, 300, 300]


def test_with_too_few_in_sync_nobody_waits_to_come_back() -> None:
    leading = Leading((LEADER, SECOND))
    for _ in range(3):
        leading.append(acks=Acks.LEADER)
        shrink = leading.pass_time(2 * LAG)
        assert shrink is not None
        assert shrink.isr == (LEADER,)
        leading.accept(shrink)
        leading.report(SECOND, leading.machine.next_offset)
        expand = leading.pass_time(1000)
        assert expand is not None
        leading.accept(expand)


# --- When to look at the time --------------------------------------------------------------------


def test_a_leader_whose_followers_have_everything_waits_for_nothing() -> None:
    leading = Leading()
    leading.append()
    leading.report(FIRST, 1)
    leading.report(SECOND, 1)
    assert leading.machine.due_at(leading.now) is None


def test_a_leader_looks_when_a_follower_that_is_behind_has_to_leave() -> None:
    leading = Leading()
    leading.append()
    leading.report(FIRST, 1)
    leading.now = MonotonicMs(3000)
    assert leading.machine.due_at(leading.now) == LAG + 1
    leading.report(SECOND, 1)
    leading.append("next")
    assert leading.machine.due_at(leading.now) == 3000 + LAG + 1


def test_a_leader_does_not_wait_for_one_that_is_out_of_sync_and_silent() -> None:
    leading = Leading((LEADER, FIRST))
    leading.append()
    leading.report(FIRST, 1)
    leading.now = MonotonicMs(LAG + 1)
    assert leading.machine.due_at(leading.now) is None


def decide(leading: Leading, random: Random, proposal: IsrProposal | None) -> list[Waiter]:
    """Let something happen to a leader, drawn from `random`."""
    machine = leading.machine
    match random.choice(["append", "report", "report", "answer", "standing", "settings", "epoch"]):
        case "append":
            with suppress(NotEnoughReplicasError):
                leading.append(records=random.randint(1, 3), acks=random.choice([*Acks]))
        case "report":
            life = random.choice([FIRST, SECOND, SECOND, FIRST_REBORN])
            behind = random.choice([0, 0, 0, 1, 5])
            end = max(0, machine.written_offset - behind)
            return leading.report(life, end, max(0, end - random.choice([0, 0, 2])))
        case "answer" if proposal is not None and proposal == machine.in_sync.proposal:
            match random.choice(["accepted", "accepted", "refused", "unknown"]):
                case "accepted":
                    return leading.accept(proposal)
                case "refused":
                    return completed(machine.on_isr_refused(proposal, leading.now))
                case "unknown":
                    machine.on_isr_unknown(proposal, leading.now)
        case "standing":
            can_join = random.random() < 0.8
            standings = STANDINGS | {
                SECOND.broker_id: BrokerStanding(SECOND.broker_epoch, can_join=can_join)
            }
            if random.random() < 0.2:
                epoch = FIRST_REBORN.broker_epoch
                standings[FIRST.broker_id] = BrokerStanding(epoch, can_join=can_join)
            return completed(machine.on_state(machine.state, standings, leading.now))
        case "settings":
            durability, fewest = random.choice([*Durability]), random.randint(1, 3)
            rules = AppendRules(durability=durability, min_insync_replicas=fewest)
            machine.configure(rules, leading.now)
            return completed(machine.on_state(machine.state, STANDINGS, leading.now))
        case "epoch" if random.random() < 0.1:
            state = machine.state
            again = replace(
                state,
                leader_epoch=LeaderEpoch(state.leader_epoch + 1),
                partition_epoch=PartitionEpoch(state.partition_epoch + 1),
                is_recovering=random.random() < 0.5,
                is_unflushed=random.random() < 0.5,
            )
            return completed(machine.on_state(again, STANDINGS, leading.now))
    return []


@pytest.mark.parametrize("seed", range(60))
def test_a_leader_that_looks_when_it_is_time_decides_as_one_that_looks_always(seed: int) -> None:
    always, in_time = Leading(), Leading()
    random = Random(seed)
    proposal: IsrProposal | None = None
    looked = 0
    for _ in range(300):
        now = MonotonicMs(always.now + random.choice([100, 500, 2000]))
        due_at = in_time.machine.due_at(in_time.now)
        always.now = in_time.now = now
        done, proposed = always.machine.tick(now, always.epochs)
        told = [(each.base_offset, each.error) for each in completed(done)]
        if due_at is not None and due_at <= now:
            looked += 1
            in_time_done, in_time_proposed = in_time.machine.tick(now, in_time.epochs)
            in_time_told = [(each.base_offset, each.error) for each in completed(in_time_done)]
            assert in_time_told == told
            assert in_time_proposed == proposed
        else:
            assert (told, proposed) == ([], None), f"it was not looked at before {due_at}"
        proposal = proposed or proposal
        drawn = random.random()
        both = [decide(each, Random(drawn), proposal) for each in (always, in_time)]
        assert [each.base_offset for each in both[0]] == [each.base_offset for each in both[1]]
        assert always.machine.high_watermark == in_time.machine.high_watermark
        assert always.machine.in_sync.maximal_isr == in_time.machine.in_sync.maximal_isr
    assert looked < 250, "most of the time there is nothing to look at"


# --- A new leader, and what it answers -----------------------------------------------------------


def test_a_new_leader_knows_the_end_once_its_high_watermark_reaches_its_epochs_start() -> None:
    leading = Leading(end=5, high_watermark=2, epochs=((4, 0),))
    assert not leading.machine.is_high_watermark_known
    with pytest.raises(OffsetNotAvailableError):
        leading.machine.check_end_offset()
    with pytest.raises(OffsetNotAvailableError):
        leading.machine.end_offset_for(LeaderEpoch(4), leading.epochs)
    leading.report(FIRST, 5)
    leading.report(SECOND, 5)
    leading.machine.check_end_offset()
    assert leading.machine.end_offset_for(LeaderEpoch(4), leading.epochs) == (4, 5)


def test_a_reign_that_wrote_nothing_yet_ends_the_one_before_it() -> None:
    leading = Leading(end=5, epochs=((1, 0), (3, 2)))
    machine = leading.machine

    def diverging(offset: int, epoch: int) -> tuple[int, int] | None:
        return machine.diverging(Offset(offset), LeaderEpoch(epoch), leading.epochs)

    assert diverging(5, 3) is None
    assert diverging(5, 5) is None, "the leader's own epoch"
    assert diverging(6, 3) == (3, 5)
    assert diverging(6, 4) == (3, 5), "an epoch that only the follower knows"
    assert diverging(4, 2) == (1, 2)
    assert diverging(9, NO_LEADER_EPOCH) is None, "it has nothing"
    with pytest.raises(UnknownLeaderEpochError):
        diverging(5, 6)


def test_a_readers_position_between_the_high_watermark_and_the_end_is_waited_with() -> None:
    leading = Leading(end=5, high_watermark=2, epochs=((1, 0),))
    for offset in (1, 2, 5):
        leading.machine.check_readable(Offset(offset), Offset(1))
    for offset in (0, 6):
        with pytest.raises(OffsetOutOfRangeError):
            leading.machine.check_readable(Offset(offset), Offset(1))


def test_an_epoch_that_began_after_a_write_that_failed_begins_where_the_file_ends() -> None:
    leading = Leading()
    leading.machine.append(header_of(3), Acks.ALL, "a", WALL)
    next_epoch = state_of(leader_epoch=EPOCH + 1, partition_epoch=8)
    leading.machine.on_state(next_epoch, STANDINGS, leading.now)
    assert leading.machine.leader_epoch_start_offset == 3
    leading.machine.on_write_failed(Offset(0), NotLeaderError("the disk is full"))
    assert leading.machine.leader_epoch_start_offset == 0
    assert leading.machine.is_high_watermark_known


def leading_with_producer(isr: tuple[BrokerLife, ...] = ALL, *, high_watermark: int = 4) -> Leading:
    """A new leader that knows producer 9 up to sequence 0, from the epoch before."""
    leading = Leading(isr, end=4, high_watermark=high_watermark, epochs=((4, 0),))
    leading.machine.producers.update(header_of(1, 9, 0), Offset(3), WALL)
    return leading


def test_batches_are_missing_only_once_all_in_sync_replicas_are_known_to_lack_them() -> None:
    """The producer numbers what comes after them again; one that has both would lead with both."""
    leading = leading_with_producer()
    gap = header_of(1, 9, 5)
    leading.report(FIRST, 4)
    leading.report(SECOND, 6, last_epoch=4)  # It has more of the epoch before, and must cut it off.
    with pytest.raises(NotEnoughReplicasError, match="sequence 5, expected is 1") as refusal:
        leading.machine.append(gap, Acks.ALL, "a", WALL)
    assert refusal.value.retriable
    leading.report(SECOND, 4)
    with pytest.raises(OutOfOrderSequenceError, match="sequence 5, expected is 1"):
        leading.machine.append(gap, Acks.ALL, "a", WALL)
    assert leading.machine.next_offset == 4


def test_what_an_earlier_leader_passed_on_counts_as_written_once_all_in_sync_have_it() -> None:
    """A client of Kafka may have batches with two leaders. One that lacks them may lead next."""
    leading = leading_with_producer(high_watermark=3)
    first = header_of(1, 9, 0)
    for sequence in range(1, 6):
        leading.machine.append(header_of(1, 9, sequence), Acks.ALL, "a", WALL)
    leading.report(FIRST, 4)
    with pytest.raises(RequestTimedOutError, match="not committed") as refusal:
        leading.machine.append(first, Acks.ALL, "a", WALL)
    assert refusal.value.retriable
    leading.report(SECOND, 4)
    with pytest.raises(DuplicateSequenceError):
        leading.machine.append(first, Acks.ALL, "a", WALL)


def test_with_too_few_in_sync_another_may_have_what_is_missing() -> None:
    leading = leading_with_producer((LEADER,))
    with pytest.raises(NotEnoughReplicasError):
        leading.machine.append(header_of(1, 9, 5), Acks.ALL, "a", WALL)
    with pytest.raises(OutOfOrderSequenceError):
        leading.machine.append(header_of(1, 9, 5), Acks.LEADER, "a", WALL)
