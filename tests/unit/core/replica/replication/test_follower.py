"""A follower: positions, truncation by epochs, what is appended, what readers may see."""

from dataclasses import replace

import pytest
from tests.fakes.batch import PARTITION, Batch
from tests.fakes.replica_log import FakeReplicaLog

from millrace.core.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    SafetyViolationError,
    StorageFullError,
    UnknownLeaderEpochError,
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
    PartitionEpoch,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.replica.log.leader_epochs import UNDEFINED_EPOCH_END, LeaderEpochs
from millrace.core.replica.log.open_transactions import Undecided
from millrace.core.replica.replication.effects import (
    Append,
    Change,
    ChangeLog,
    FetchFrom,
    RecordsLost,
    StopFetching,
)
from millrace.core.replica.replication.events import Changed, Fetched
from millrace.core.replica.replication.follower import PartitionFollower, Phase
from millrace.core.replica.replication.rules import ReplicationConfig

LEADER, OTHER = BrokerId(1), BrokerId(2)
EPOCH = LeaderEpoch(5)
PAUSE = 1000
NOW = MonotonicMs(0)
FIRST_PAUSE = 20
LIVES = tuple(BrokerLife(BrokerId(n), BrokerEpoch(n)) for n in range(3))


def state_of(
    leader: BrokerId = LEADER,
    leader_epoch: int = EPOCH,
    partition_epoch: int = 7,
    *,
    unclean_epoch: int = -1,
) -> PartitionState:
    return PartitionState(
        replicas=tuple(life.broker_id for life in LIVES),
        leader=leader,
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=PartitionEpoch(partition_epoch),
        isr=LIVES,
        unclean_epoch=LeaderEpoch(unclean_epoch),
    )


def follower(
    *epochs: tuple[int, int],
    end: int = 0,
    start: int = 0,
    high_watermark: int = 0,
    known_in: int = 4,
    state: PartitionState | None = None,
) -> PartitionFollower:
    """Return a follower that has opened its first position."""
    machine = PartitionFollower(
        PARTITION,
        LIVES[0],
        FakeReplicaLog(Offset(end), Offset(end), Offset(start), leader_epochs=LeaderEpochs(epochs)),
        high_watermark=Offset(high_watermark),
        high_watermark_epoch=LeaderEpoch(known_in),
        config=ReplicationConfig(
            replica_fetch_backoff_ms=PAUSE, replica_fetch_backoff_min_ms=FIRST_PAUSE
        ),
    )
    machine.on_state(state or state_of(), {}, NOW)
    return machine


def batch(base: int, end: int, epoch: int = EPOCH) -> Batch:
    return Batch(Offset(base), Offset(end), LeaderEpoch(epoch), f"{base}")


def response(
    machine: PartitionFollower,
    *batches: Batch,
    high_watermark: int = 0,
    log_start: int = 0,
    is_damaged: bool = False,
    diverging: tuple[int, int] | None = None,
) -> tuple[FetchFrom, Fetched]:
    """Return the open position and the leader's answer to it."""
    position = machine.position
    assert position is not None
    return position, Fetched(
        handle=1,
        fetch_offset=position.fetch_offset,
        high_watermark=Offset(high_watermark),
        log_start_offset=Offset(log_start),
        batches=batches,
        is_damaged=is_damaged,
        diverging=EpochEnd(LeaderEpoch(diverging[0]), Offset(diverging[1])) if diverging else None,
    )


def truncated(end: int) -> Changed:
    return Changed(Change.TRUNCATE, Offset(0), Offset(end))


def begun(start: int) -> Changed:
    return Changed(Change.START_OVER, Offset(start), Offset(start))


def advanced(start: int) -> Changed:
    return Changed(Change.ADVANCE_START, Offset(start), Offset(9))


def append(*batches: Batch) -> Append:
    return Append(PARTITION, list(batches), 0)


def truncate(offset: int) -> ChangeLog:
    return ChangeLog(PARTITION, Change.TRUNCATE, Offset(offset))


def start_over(offset: int) -> ChangeLog:
    return ChangeLog(PARTITION, Change.START_OVER, Offset(offset))


def advance_start(offset: int) -> ChangeLog:
    return ChangeLog(PARTITION, Change.ADVANCE_START, Offset(offset))


def position(
    offset: int,
    last_epoch: int,
    number: int,
    *,
    epoch: int = EPOCH,
    pause_ms: int = 0,
    verify_until: int = 0,
) -> FetchFrom:
    return FetchFrom(
        PARTITION,
        LEADER,
        LeaderEpoch(epoch),
        Offset(offset),
        LeaderEpoch(last_epoch),
        number,
        pause_ms,
        Offset(verify_until),
    )


# --- Positions -----------------------------------------------------------------------------------


def test_a_position_names_the_end_of_the_log_and_the_epoch_of_its_last_batch() -> None:
    assert follower((1, 0), (3, 4), end=6).position == position(6, 3, 1)


def test_an_empty_log_has_no_last_epoch() -> None:
    assert follower().position == position(0, NO_LEADER_EPOCH, 1)
    assert follower((3, 8), end=8, start=8).position == position(8, NO_LEADER_EPOCH, 1)


def test_an_epoch_that_was_noted_for_a_batch_that_was_never_written_is_not_claimed() -> None:
    assert follower((1, 0), (3, 6), end=6).position == position(6, 1, 1)


def test_without_a_leader_nothing_is_fetched() -> None:
    machine = follower()
    assert machine.on_state(state_of(NO_BROKER, 6, 8), {}, NOW) == [StopFetching(PARTITION)]
    assert machine.position is None


def test_a_state_from_the_past_and_one_that_changes_nothing_here_open_nothing() -> None:
    machine = follower()
    assert machine.on_state(state_of(OTHER, 4, 6), {}, NOW) == []
    assert machine.on_state(state_of(partition_epoch=8), {}, NOW) == []
    assert machine.position == position(0, NO_LEADER_EPOCH, 1)


def test_a_position_at_another_leader_is_opened_when_all_appends_are_written() -> None:
    machine = follower()
    machine.on_fetched(*response(machine, batch(0, 2), batch(2, 3)))
    assert machine.on_state(state_of(leader_epoch=6, partition_epoch=8), {}, NOW) == [
        StopFetching(PARTITION)
    ]
    assert machine.on_written(Offset(2), NOW) == []
    assert machine.on_written(Offset(3), NOW) == [position(3, 5, 2, epoch=6)]


def test_a_refused_position_is_opened_again_after_a_pause_that_grows() -> None:
    machine = follower()
    assert machine.position is not None
    again = position(0, NO_LEADER_EPOCH, 2, pause_ms=FIRST_PAUSE)
    assert machine.on_fetch_failed(machine.position) == [again]
    assert machine.on_fetch_failed(position(0, NO_LEADER_EPOCH, 1)) == [], "the earlier one"

    def pauses(count: int) -> list[int]:
        found = []
        for _ in range(count):
            assert machine.position is not None
            (opened,) = machine.on_fetch_failed(machine.position)
            assert isinstance(opened, FetchFrom)
            found.append(opened.pause_ms)
        return found

    assert pauses(7) == [40, 80, 160, 320, 640, PAUSE, PAUSE]
    machine.on_fetched(*response(machine))
    assert pauses(2) == [FIRST_PAUSE, 40]
    machine.on_state(state_of(leader_epoch=6, partition_epoch=8), {}, NOW)
    assert pauses(1) == [FIRST_PAUSE]


# --- What is appended ----------------------------------------------------------------------------


def test_batches_are_handed_over_and_the_position_moves_on_before_they_are_written() -> None:
    machine = follower((1, 0), end=2)
    first, second = batch(2, 4, epoch=1), batch(4, 5)
    assert machine.on_fetched(*response(machine, first, second)) == [append(first, second)]
    assert (machine.next_offset, machine.written_offset) == (5, 2)
    third = batch(5, 9)
    assert machine.on_fetched(*response(machine, third)) == [append(third)]


@pytest.mark.parametrize(
    "bad",
    [
        batch(5, 6),  # A gap.
        batch(3, 5),  # Begins before the end.
        batch(4, 4),  # Holds nothing.
        batch(4, 6, epoch=1),  # An epoch that is over.
        batch(4, 6, epoch=6),  # One that its leader cannot know.
    ],
)
def test_what_does_not_follow_on_is_not_appended_and_fetched_again(bad: Batch) -> None:
    machine = follower((3, 0), end=2)
    good = batch(2, 4)
    effects = machine.on_fetched(*response(machine, good, bad, batch(6, 7)))
    assert effects[0] == append(good)
    assert machine.next_offset == 4
    # At the other position once what is good is written.
    assert effects[1:] == [StopFetching(PARTITION)]
    assert machine.on_written(Offset(4), NOW) == [position(4, 5, 2, pause_ms=PAUSE)]


def test_of_a_batch_that_begins_before_the_end_the_rest_is_taken() -> None:
    """A leader whose log is compacted puts batches together."""
    machine = follower((1, 0), (3, 1), end=4)
    joined, following = batch(2, 7, epoch=3), batch(7, 9)
    effects = machine.on_fetched(*response(machine, joined, following))
    assert effects == [append(joined.cut(PARTITION, Offset(4)), following)]
    assert machine.next_offset == 9
    # An earlier one does not hold the next offset, and is not taken.
    effects = machine.on_fetched(*response(machine, batch(2, 9)))
    assert not any(isinstance(effect, Append) for effect in effects)


def test_batches_before_a_damaged_one_are_kept_and_it_is_fetched_again() -> None:
    machine = follower()
    damaged = response(machine, is_damaged=True)
    again = position(0, NO_LEADER_EPOCH, 2, pause_ms=PAUSE, verify_until=1)
    assert machine.on_fetched(*damaged) == [again]


def test_the_leader_verifies_a_batch_that_came_damaged_and_the_next_leader_does_not() -> None:
    machine = follower()
    damaged = response(machine, batch(0, 2), is_damaged=True)
    assert machine.on_fetched(*damaged) == [append(batch(0, 2)), StopFetching(PARTITION)]
    (again,) = machine.on_written(Offset(2), NOW)
    assert again == position(2, 5, 2, pause_ms=PAUSE, verify_until=3)
    (after,) = machine.on_state(state_of(OTHER, 6, 8), {}, NOW)
    assert isinstance(after, FetchFrom)
    assert (after.fetch_offset, after.verify_until) == (2, 0)


def test_an_answer_is_dropped_when_leader_epoch_or_offset_have_moved_on() -> None:
    machine = follower()
    answer = response(machine, batch(0, 2))
    machine.on_fetched(*answer)
    machine.on_written(Offset(2), NOW)
    assert machine.on_fetched(*answer) == [], "it comes twice"
    late = response(machine, batch(2, 3))
    machine.on_state(state_of(OTHER, 6, 8), {}, NOW)
    assert machine.on_fetched(*late) == [], "of the last leader"
    assert machine.next_offset == 2
    opened = machine.position
    assert opened is not None
    for forged in (
        replace(opened, leader=LEADER),
        replace(opened, leader_epoch=EPOCH),
        replace(opened, number=opened.number - 1),
    ):
        assert machine.on_fetched(forged, late[1]) == []


def test_a_write_that_failed_is_fetched_again_after_a_pause() -> None:
    machine = follower((1, 0), end=2)
    machine.on_fetched(*response(machine, batch(2, 4), batch(4, 5)))
    machine.on_written(Offset(4), NOW)
    assert machine.on_write_failed(Offset(4), StorageFullError("full")) == [
        position(4, 5, 2, pause_ms=PAUSE)
    ]
    assert machine.generation == 1
    machine = follower((1, 0), end=2)
    machine.on_fetched(*response(machine, batch(2, 4)))
    assert machine.on_write_failed(Offset(2), StorageFullError("full")) == [
        position(2, 1, 2, pause_ms=PAUSE)
    ]


def test_progress_is_of_what_is_written_and_flushed() -> None:
    machine = follower((1, 0), end=2)
    machine.on_fetched(*response(machine, batch(2, 4), batch(4, 5)))
    assert machine.progress == (2, 2, 0, 1, 0)
    machine.on_written(Offset(4), NOW)
    assert machine.progress == (4, 2, 0, 5, 0)
    machine.on_flushed(Offset(4))
    assert machine.progress == (4, 4, 0, 5, 0)


# --- Truncation ----------------------------------------------------------------------------------


def test_a_diverging_log_is_cut_where_the_named_epoch_ends_in_the_shorter_of_both() -> None:
    machine = follower((1, 0), (2, 3), (4, 6), end=9)
    assert machine.on_fetched(*response(machine, diverging=(2, 5))) == [truncate(5)]
    machine = follower((1, 0), (2, 3), (4, 6), end=9)
    assert machine.on_fetched(*response(machine, diverging=(2, 8))) == [truncate(6)]
    machine = follower((1, 0), (4, 6), end=9)
    assert machine.on_fetched(*response(machine, diverging=(3, 8))) == [truncate(6)]


def test_after_a_truncation_it_is_asked_again_whether_the_rest_diverges() -> None:
    machine = follower((1, 0), (3, 4), end=9)
    machine.on_fetched(*response(machine, diverging=(2, 8)))
    assert machine.phase is Phase.CHANGING
    assert machine.on_changed(truncated(4)) == [position(4, 1, 2)]
    assert machine.on_fetched(*response(machine, diverging=(1, 2))) == [truncate(2)]
    assert machine.on_changed(truncated(2)) == [position(2, 1, 3)]
    assert machine.progress == (2, 2, 0, 1, 0)


def test_a_truncation_does_not_go_by_the_high_watermark() -> None:
    machine = follower((1, 0), (2, 7), end=9, high_watermark=3)
    assert machine.on_fetched(*response(machine, diverging=(1, 7))) == [truncate(7)]


def test_below_the_high_watermark_nothing_is_cut_and_the_replica_is_halted() -> None:
    machine = follower((1, 0), (2, 3), end=9, high_watermark=6)
    with pytest.raises(SafetyViolationError):
        machine.on_fetched(*response(machine, diverging=(2, 5)))
    assert machine.phase is Phase.HALTED
    assert machine.on_state(state_of(partition_epoch=8), {}, NOW) == []
    assert machine.position is None
    with pytest.raises(NotLeaderError):
        machine.check_readable(Offset(1))


def test_a_halted_replica_goes_on_with_another_leader_or_leads_itself() -> None:
    """The leader may have been wrong; Kafka tries a failed partition again in a new epoch, too."""
    machine = follower((1, 0), (2, 3), end=9, high_watermark=6)
    with pytest.raises(SafetyViolationError):
        machine.on_fetched(*response(machine, diverging=(2, 5)))
    assert machine.phase is Phase.HALTED
    (opened,) = machine.on_state(state_of(OTHER, 6, 8), {}, NOW)
    assert opened == machine.position
    with pytest.raises(SafetyViolationError):
        machine.on_fetched(*response(machine, diverging=(2, 5)))
    itself = state_of(LIVES[0].broker_id, 7, 9)
    assert machine.on_state(itself, {}, NOW) == [StopFetching(PARTITION)]
    assert machine.is_settled
    assert (machine.next_offset, machine.high_watermark) == (9, 6)


def test_a_committed_batch_that_would_be_cut_through_halts_the_replica_too() -> None:
    machine = follower((1, 0), (2, 5), end=9, high_watermark=5)
    machine.on_fetched(*response(machine, diverging=(1, 5)))
    with pytest.raises(SafetyViolationError):
        machine.on_changed(truncated(4))
    assert machine.on_state(state_of(OTHER, 6, 8), {}, NOW) == [], (
        "its log lacks what was committed"
    )
    assert not machine.is_settled


def test_after_an_unclean_election_the_high_watermark_goes_back_with_the_log() -> None:
    unclean = state_of(unclean_epoch=5)
    machine = follower((1, 0), (2, 3), end=9, high_watermark=6, state=unclean)
    _, cut = machine.on_fetched(*response(machine, diverging=(2, 5)))
    assert cut == truncate(5)
    machine.on_changed(truncated(5))
    assert machine.high_watermark == 5


def lost(start: int, end: int, committed: int) -> RecordsLost:
    return RecordsLost(PARTITION, EPOCH, Offset(start), Offset(end), Offset(committed))


def test_what_an_unclean_election_has_cost_is_reported_before_it_is_cut() -> None:
    """P30: all of it may have been committed; up to the high watermark it was."""
    unclean = state_of(unclean_epoch=5)
    machine = follower((1, 0), (2, 3), (4, 7), end=9, high_watermark=6, state=unclean)
    effects = machine.on_fetched(*response(machine, diverging=(3, 8)))
    assert effects == [lost(7, 9, committed=7), truncate(7)]
    machine.on_changed(truncated(7))
    effects = machine.on_fetched(*response(machine, diverging=(1, 2)))
    assert effects == [lost(2, 7, committed=6), truncate(2)]


def test_a_log_that_lies_before_and_after_all_that_the_leader_shares_is_lost_as_a_whole() -> None:
    machine = follower((2, 4), start=4, end=9, state=state_of(unclean_epoch=5))
    effects = machine.on_fetched(*response(machine, diverging=(1, 2)))
    assert effects == [lost(4, 9, committed=4), start_over(0)]


def test_a_log_is_not_cut_before_what_this_broker_deleted_when_it_led() -> None:
    """The disk may finish a deletion after its leader has become a follower."""
    unclean = state_of(unclean_epoch=5)
    machine = follower((1, 0), (2, 5), end=9, high_watermark=8, state=unclean)
    machine.on_changed(advanced(6))
    effects = machine.on_fetched(*response(machine, diverging=(1, 4)))
    assert effects == [lost(6, 9, committed=8), start_over(0)]


def test_a_tail_that_was_never_committed_is_nothing_lost() -> None:
    """No unclean election, or none since: what goes lay above the high watermark (P5)."""
    for unclean_epoch in (-1, 3):
        state = state_of(unclean_epoch=unclean_epoch)
        machine = follower((1, 0), (3, 5), end=9, high_watermark=5, state=state)
        effects = machine.on_fetched(*response(machine, diverging=(2, 5)))
        assert effects == [truncate(5)]


def test_an_unclean_election_is_no_excuse_for_what_was_committed_after_it() -> None:
    unclean = state_of(unclean_epoch=5)
    machine = follower((1, 0), (2, 3), end=9, high_watermark=6, known_in=5, state=unclean)
    with pytest.raises(SafetyViolationError):
        machine.on_fetched(*response(machine, diverging=(2, 5)))
    machine = follower((1, 0), (2, 3), end=9, high_watermark=6, state=unclean)
    machine.on_fetched(*response(machine))
    machine.on_state(state_of(OTHER, 6, 8, unclean_epoch=5), {}, NOW)
    with pytest.raises(SafetyViolationError):
        machine.on_fetched(*response(machine, diverging=(2, 5)))


def test_a_follower_that_forgot_when_goes_by_its_last_batch() -> None:
    since = follower(
        (1, 0), (5, 3), end=9, high_watermark=6, known_in=-1, state=state_of(unclean_epoch=5)
    )
    with pytest.raises(SafetyViolationError):
        since.on_fetched(*response(since, diverging=(1, 3)))
    before = follower(
        (1, 0), (2, 3), end=9, high_watermark=6, known_in=-1, state=state_of(unclean_epoch=5)
    )
    assert truncate(3) in before.on_fetched(*response(before, diverging=(1, 3)))


def test_an_answer_that_no_leader_gives_is_not_obeyed() -> None:
    machine = follower((1, 0), end=9)
    for diverging in (UNDEFINED_EPOCH_END, (4, 3), (NO_LEADER_EPOCH, 9)):
        effects = machine.on_fetched(*response(machine, diverging=diverging))
        assert [type(effect) for effect in effects] == [FetchFrom]
    assert machine.next_offset == 9


def test_what_a_flush_tells_while_the_log_is_being_cut_does_not_count_beyond_the_cut() -> None:
    machine = follower((1, 0), (2, 7), end=9)
    machine.flushed_offset = Offset(5)
    assert machine.on_fetched(*response(machine, diverging=(1, 7))) == [truncate(7)]
    assert machine.on_written(Offset(7), NOW) == []  # Of the log that is cut already.
    machine.on_flushed(Offset(7))
    machine.on_changed(truncated(7))
    assert (machine.written_offset, machine.flushed_offset) == (7, 7)


def test_what_arrives_while_the_log_is_being_cut_is_dropped() -> None:
    machine = follower((1, 0), (2, 3), end=9)
    answer = response(machine, batch(9, 10), high_watermark=9)
    machine.on_fetched(*response(machine, diverging=(1, 3)))
    assert machine.on_fetched(*answer) == []
    assert machine.on_state(state_of(OTHER, 6, 8), {}, NOW) == []
    (opened,) = machine.on_changed(truncated(3))
    assert isinstance(opened, FetchFrom)
    assert (opened.leader, opened.leader_epoch, opened.fetch_offset) == (OTHER, 6, 3)


# --- Starting anew -------------------------------------------------------------------------------


def test_a_log_that_ends_before_the_leaders_begins_is_begun_anew_there() -> None:
    machine = follower((1, 0), end=4, high_watermark=4)
    assert machine.position is not None
    assert machine.on_out_of_range(machine.position, Offset(10)) == [start_over(10)]
    assert machine.on_changed(begun(10)) == [position(10, NO_LEADER_EPOCH, 2)]
    assert (machine.log_start_offset, machine.high_watermark) == (10, 10)
    assert machine.progress == (10, 10, 10, NO_LEADER_EPOCH, 0)
    machine = follower((1, 0), end=4)
    effects = machine.on_fetched(*response(machine, log_start=10))
    assert effects == [start_over(10)]


def test_a_position_after_the_leaders_end_cuts_nothing() -> None:
    machine = follower((1, 0), end=4)
    assert machine.position is not None
    assert machine.on_out_of_range(machine.position, Offset(0)) == [
        position(4, 1, 2, pause_ms=PAUSE)
    ]
    assert machine.on_out_of_range(position(4, 1, 1), Offset(10)) == [], "an earlier position"


def test_a_log_that_shares_nothing_with_the_leaders_is_begun_anew() -> None:
    machine = follower((3, 5), end=9, start=5, high_watermark=5)
    effects = machine.on_fetched(*response(machine, diverging=(2, 3), log_start=6))
    assert effects == [start_over(6)]
    machine = follower((3, 5), end=9, start=5, high_watermark=8)
    with pytest.raises(SafetyViolationError):
        machine.on_fetched(*response(machine, diverging=(2, 3), log_start=6))


def test_an_empty_log_that_the_leader_cannot_place_is_begun_anew() -> None:
    machine = follower(end=8, start=8, high_watermark=8)
    effects = machine.on_fetched(*response(machine, diverging=(-1, 9), log_start=6))
    assert effects == [start_over(6)]
    assert machine.on_changed(begun(6)) == [position(6, NO_LEADER_EPOCH, 2)]
    assert machine.progress == (6, 6, 6, NO_LEADER_EPOCH, 0)


def test_an_empty_log_is_not_begun_anew_where_its_leader_has_lost_what_was_committed() -> None:
    machine = follower(end=8, start=8, high_watermark=8)
    with pytest.raises(SafetyViolationError):
        machine.on_fetched(*response(machine, diverging=(-1, 7), log_start=6))
    machine = follower(end=8, start=8, high_watermark=8, state=state_of(unclean_epoch=5))
    effects = machine.on_fetched(*response(machine, diverging=(-1, 7), log_start=6))
    assert effects == [start_over(6)]


def test_the_log_start_follows_the_leaders_as_far_as_the_log_is_committed() -> None:
    machine = follower((1, 0), end=4)
    effects = machine.on_fetched(*response(machine, batch(4, 8), high_watermark=8, log_start=3))
    assert effects == [append(batch(4, 8)), advance_start(3)]
    assert machine.log_start_offset == 3
    effects = machine.on_fetched(*response(machine, high_watermark=8, log_start=6))
    assert effects == [advance_start(4)], "the rest is not written yet"
    assert machine.on_written(Offset(8), NOW) == [advance_start(6)]
    assert machine.on_fetched(*response(machine, high_watermark=8, log_start=2)) == []
    assert machine.position == position(8, 5, 1)


def test_a_follower_reports_a_log_start_once_it_is_durable() -> None:
    machine = follower((1, 0), end=4, high_watermark=4)
    machine.on_fetched(*response(machine, high_watermark=4, log_start=3))
    assert (machine.log_start_offset, machine.progress.log_start_offset) == (3, 0)
    machine.on_changed(advanced(2))  # An earlier one.
    assert machine.progress.log_start_offset == 2
    machine.on_changed(advanced(3))
    assert machine.progress.log_start_offset == 3


def test_a_log_start_that_is_durable_while_the_log_starts_over_is_not_taken_for_the_new_one() -> (
    None
):
    machine = follower((1, 0), end=4, high_watermark=4)
    assert machine.on_fetched(*response(machine, log_start=9)) == [start_over(9)]
    machine.on_changed(advanced(9))  # The disk is ahead of its report.
    assert machine.progress.log_start_offset == 0
    machine.on_changed(begun(9))
    assert machine.progress.log_start_offset == 9


def test_an_empty_log_starts_over_where_the_batch_begins_that_holds_the_leaders_start() -> None:
    machine = follower(high_watermark=0)
    assert machine.on_fetched(*response(machine, log_start=5)) == [start_over(5)]
    machine.on_changed(begun(5))
    first, second = batch(3, 8), batch(8, 9)
    answer = response(machine, first, second, high_watermark=9, log_start=5)
    assert machine.on_fetched(*answer) == [start_over(3)]
    # It does not ask for what its leader has deleted: that would be out of its range.
    assert machine.on_changed(begun(3)) == [position(5, NO_LEADER_EPOCH, 3)]
    answer = response(machine, first, second, high_watermark=9, log_start=5)
    assert machine.on_fetched(*answer) == [append(first, second)]
    assert machine.on_written(Offset(9), NOW) == [advance_start(5)]
    assert machine.position == position(9, EPOCH, 3)
    assert machine.progress.log_start_offset == 3
    machine.on_changed(advanced(5))
    assert machine.progress.log_start_offset == 5


def test_a_first_batch_that_was_not_written_is_asked_for_again() -> None:
    machine = follower()
    machine.on_fetched(*response(machine, log_start=5))
    machine.on_changed(begun(5))
    machine.on_fetched(*response(machine, batch(3, 8), high_watermark=8, log_start=5))
    machine.on_changed(begun(3))
    machine.on_fetched(*response(machine, batch(3, 8), high_watermark=8, log_start=5))
    assert machine.on_write_failed(Offset(3), StorageFullError("full")) == [
        position(5, NO_LEADER_EPOCH, 4, pause_ms=PAUSE),
    ]
    # Another leader may begin earlier.
    assert machine.on_state(state_of(OTHER, 6, 8), {}, NOW) == [
        FetchFrom(PARTITION, OTHER, LeaderEpoch(6), Offset(3), NO_LEADER_EPOCH, 5)
    ]


def test_a_log_with_records_never_starts_over_for_a_batch_that_begins_before_its_end() -> None:
    machine = follower((1, 0), end=4, high_watermark=2)
    answer = response(machine, batch(3, 8), high_watermark=8)
    assert machine.on_fetched(*answer) == [append(batch(3, 8).cut(PARTITION, Offset(4)))]


# --- The high watermark --------------------------------------------------------------------------


def test_the_high_watermark_is_the_leaders_as_far_as_the_own_log_is_written() -> None:
    machine = follower((1, 0), end=2)
    machine.on_fetched(*response(machine, batch(2, 4), high_watermark=9))
    assert machine.high_watermark == 2
    machine.on_written(Offset(4), NOW)
    assert machine.high_watermark == 4
    machine.on_fetched(*response(machine, high_watermark=3))
    assert machine.high_watermark == 4, "a new leader's may be late"


def test_the_leader_says_how_far_all_replicas_have_compacted_and_only_for_its_own_log() -> None:
    machine = follower((1, 0), end=2)
    assert machine.compacted_offset == 0
    position, fetched = response(machine, batch(2, 4))
    machine.on_fetched(position, replace(fetched, compacted_offset=Offset(2)))
    assert machine.compacted_offset == 2
    machine.on_state(state_of(OTHER, 6, 8), {}, NOW)
    assert machine.compacted_offset == 0


def test_a_follower_reports_how_far_its_log_is_compacted() -> None:
    machine = follower((1, 0), end=2)
    assert machine.progress.compacted_offset == 0
    machine.log.compacted_offset = Offset(1)  # type: ignore[misc]
    assert machine.progress.compacted_offset == 1


def test_what_a_diverging_answer_says_is_committed_is_not_what_lies_here() -> None:
    machine = follower((1, 0), (2, 3), end=9)
    machine.on_fetched(*response(machine, diverging=(1, 3), high_watermark=6))
    assert machine.high_watermark == 0
    machine.on_changed(truncated(3))
    assert machine.high_watermark == 0


def test_what_the_last_leader_said_does_not_commit_what_is_written_under_the_next() -> None:
    machine = follower()
    machine.on_fetched(*response(machine, batch(0, 2), high_watermark=2))
    machine.on_state(state_of(OTHER, 6, 8), {}, NOW)
    machine.on_written(Offset(2), NOW)
    assert machine.high_watermark == 0


def test_readers_of_another_leader_epoch_are_refused_and_told_which_is_later() -> None:
    machine = follower()
    epoch = machine.leader_epoch
    machine.check_epoch(epoch)
    machine.check_epoch(NO_LEADER_EPOCH)
    with pytest.raises(FencedLeaderEpochError):
        machine.check_epoch(LeaderEpoch(epoch - 1))
    with pytest.raises(UnknownLeaderEpochError):
        machine.check_epoch(LeaderEpoch(epoch + 1))


def test_readers_are_served_below_the_high_watermark_and_otherwise_asked_to_wait() -> None:
    machine = follower((1, 0), end=9, start=2, high_watermark=5)
    for offset in (2, 5):
        machine.check_readable(Offset(offset))
    for offset in (6, 9, 100):
        with pytest.raises(OffsetNotAvailableError):
            machine.check_readable(Offset(offset))
    with pytest.raises(OffsetOutOfRangeError):
        machine.check_readable(Offset(1))


def test_readers_of_a_follower_are_told_of_nothing_undecided() -> None:
    machine = follower((5, 0), end=50, high_watermark=40)
    assert machine.last_stable_offset == 40
    log = FakeReplicaLog(Offset(50), Offset(50), undecided=Undecided(Offset(30)))
    machine.log = log
    assert machine.last_stable_offset == 30
    log.log_start_offset = Offset(35)
    assert machine.last_stable_offset == 35
