"""One replica: which role it has, and that no role begins while the disk is at work."""

import pytest
from tests.fakes.batch import PARTITION, WALL, Batch, header_of
from tests.fakes.replica_log import FakeReplicaLog
from tests.fakes.two_replicas import HERE, STANDINGS, THERE, replica_of, state_of

from millrace.core.errors import NotLeaderError, StorageFullError
from millrace.core.ids import (
    BrokerEpoch,
    EpochEnd,
    LeaderEpoch,
    MonotonicMs,
    Offset,
)
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.requests import LogEnd
from millrace.core.replica.replication.appends import Acks
from millrace.core.replica.replication.effects import (
    Append,
    Change,
    ChangeLog,
    Complete,
    FetchFrom,
    Halted,
    StopFetching,
    Wake,
)
from millrace.core.replica.replication.events import Changed, Failed, Fetched, Written
from millrace.core.replica.replication.replica import Replica

NOW = MonotonicMs(0)


def leading(log: FakeReplicaLog) -> Replica:
    made = replica_of(log, PARTITION)
    made.on_state(state_of(HERE, 1), STANDINGS, NOW)
    return made


def following(log: FakeReplicaLog, high_watermark: int = 0) -> tuple[Replica, FetchFrom]:
    made = replica_of(log, PARTITION, high_watermark)
    (position,) = made.on_state(state_of(THERE, 1), STANDINGS, NOW)
    assert isinstance(position, FetchFrom)
    return made, position


def response(position: FetchFrom, *ends: int, high_watermark: int = 0) -> Fetched:
    """Return batches that follow on each other up to these ends."""
    batches, at = [], position.fetch_offset
    for end in ends:
        batches.append(Batch(at, Offset(end), LeaderEpoch(1), f"{end}"))
        at = Offset(end)
    return answer(position, *batches, high_watermark=high_watermark)


def answer(
    position: FetchFrom,
    *batches: Batch,
    high_watermark: int = 0,
    diverging: EpochEnd | None = None,
) -> Fetched:
    return Fetched(
        handle=1,
        fetch_offset=position.fetch_offset,
        high_watermark=Offset(high_watermark),
        log_start_offset=Offset(0),
        batches=batches,
        diverging=diverging,
    )


def test_it_leads_if_the_state_names_this_life() -> None:
    made = replica_of(FakeReplicaLog(), PARTITION)
    assert Wake(PARTITION) in made.on_state(state_of(HERE, 1), STANDINGS, NOW)
    assert made.leads
    assert made.follower is None


def test_a_state_of_an_earlier_life_makes_it_no_leader() -> None:
    made = replica_of(FakeReplicaLog(), PARTITION)
    earlier = BrokerLife(HERE.broker_id, BrokerEpoch(9))
    made.on_state(state_of(earlier, 1, here=earlier), STANDINGS, NOW)
    assert not made.leads
    assert made.follower is not None  # P37


def test_only_one_that_leads_has_a_leader_to_ask() -> None:
    made = leading(FakeReplicaLog())
    assert made.leader is not None
    assert made.require_leader() is made.leader
    made.leader.append(header_of(2), Acks.ALL, "owner", WALL)
    made.on_state(state_of(THERE, 2), STANDINGS, NOW)
    for replica_ in (made, replica_of(FakeReplicaLog(), PARTITION)):  # The first one has resigned.
        with pytest.raises(NotLeaderError, match="this broker does not lead it"):
            replica_.require_leader()


def test_without_a_leader_it_waits() -> None:
    made = replica_of(FakeReplicaLog(), PARTITION)
    assert made.on_state(state_of(None, 1), STANDINGS, NOW) == [StopFetching(PARTITION)]
    assert made.follower is not None


def test_an_older_state_changes_nothing() -> None:
    made = leading(FakeReplicaLog())
    assert made.on_state(state_of(THERE, 0), STANDINGS, NOW) == []
    assert made.leads  # P39


def test_a_leader_that_resigns_follows_only_when_its_appends_are_done() -> None:
    log = FakeReplicaLog()
    made = leading(log)
    assert made.leader is not None
    made.leader.append(header_of(2), Acks.ALL, "owner", WALL)
    effects = made.on_state(state_of(THERE, 2), STANDINGS, NOW)
    completed = [effect for effect in effects if isinstance(effect, Complete)]
    assert [type(waiter.error) for waiter in completed[0].waiters] == [NotLeaderError]  # P17
    assert Wake(PARTITION) in effects
    assert not made.leads
    assert made.follower is None  # The append is still on its way to the disk.
    log.end_at(2, epoch=1)
    (position,) = made.on_disk(Written(Offset(2)), NOW)
    assert isinstance(position, FetchFrom)
    assert (position.fetch_offset, position.last_fetched_epoch) == (2, 1)


def test_a_leader_that_resigns_follows_when_its_last_append_failed() -> None:
    log = FakeReplicaLog()
    made = leading(log)
    assert made.leader is not None
    made.leader.append(header_of(2), Acks.ALL, "owner", WALL)
    made.on_state(state_of(THERE, 2), STANDINGS, NOW)
    (position,) = made.on_disk(Failed(Offset(0), StorageFullError("full")), NOW)
    assert isinstance(position, FetchFrom)
    assert position.fetch_offset == 0


def test_a_leader_in_one_epoch_and_again_in_a_later_one_is_another_machine() -> None:
    log = FakeReplicaLog()
    made = leading(log)
    first = made.leader
    made.on_state(state_of(None, 2), STANDINGS, NOW)
    assert made.follower is not None
    made.on_state(state_of(HERE, 3), STANDINGS, NOW)
    assert made.leads
    assert made.leader is not first


def test_a_follower_leads_only_when_its_writes_are_done() -> None:
    log = FakeReplicaLog()
    made, position = following(log)
    effects = made.on_fetched(position, response(position, 3, 5))
    assert [type(effect) for effect in effects] == [Append]
    assert made.on_state(state_of(HERE, 2), STANDINGS, NOW) == [StopFetching(PARTITION)]
    assert not made.leads
    assert made.on_disk(Written(Offset(3)), NOW) == []
    assert not made.leads
    log.end_at(5, epoch=1)
    assert made.on_disk(Written(Offset(5)), NOW) == [Wake(PARTITION)]
    assert made.leader is not None
    assert made.leader.next_offset == 5


def test_who_has_yet_to_hear_of_an_epoch_or_to_write_may_yet_lead() -> None:
    log = FakeReplicaLog()
    made, position = following(log)
    assert made.may_yet_lead(LeaderEpoch(2)), "whoever asks has heard of more"
    assert not made.may_yet_lead(LeaderEpoch(1)), "another leads in this one"
    assert not made.may_yet_lead(LeaderEpoch(-1)), "it is not known what is asked for"
    made.on_fetched(position, response(position, 3))
    made.on_state(state_of(HERE, 2), STANDINGS, NOW)
    assert made.may_yet_lead(LeaderEpoch(2)), "what it fetched is not written yet"
    log.end_at(3, epoch=1)
    made.on_disk(Written(Offset(3)), NOW)
    assert not made.may_yet_lead(LeaderEpoch(2)), "it leads"
    assert made.may_yet_lead(LeaderEpoch(3))
    made.resign(StorageFullError("gone"))
    assert not made.may_yet_lead(LeaderEpoch(3)), "it never will"


def test_a_leader_that_leads_on_in_a_later_epoch_has_its_readers_look_again() -> None:
    made = leading(FakeReplicaLog())
    assert made.on_state(state_of(HERE, 2), STANDINGS, NOW) == [Wake(PARTITION)]
    assert made.on_state(state_of(HERE, 2), STANDINGS, NOW) == []


def test_a_new_leader_begins_with_the_high_watermark_that_it_knew_as_a_follower() -> None:
    log = FakeReplicaLog()
    made, position = following(log)
    made.on_fetched(position, response(position, 3, 5, high_watermark=3))
    log.end_at(5, epoch=1)
    made.on_disk(Written(Offset(5)), NOW)
    made.on_state(state_of(HERE, 2), STANDINGS, NOW)
    assert made.high_watermark == 3
    assert made.leader is not None
    assert not made.leader.is_high_watermark_known  # P11


def test_a_follower_leads_only_when_its_log_is_cut() -> None:
    log = FakeReplicaLog()
    log.end_at(5)
    made, position = following(log)
    diverging = answer(position, diverging=EpochEnd(LeaderEpoch(0), Offset(3)))
    assert made.on_fetched(position, diverging) == [
        ChangeLog(PARTITION, Change.TRUNCATE, Offset(3))
    ]
    made.on_state(state_of(HERE, 2), STANDINGS, NOW)
    assert not made.leads
    log.end_at(3)
    made.on_disk(Changed(Change.TRUNCATE, Offset(0), Offset(3)), NOW)
    assert made.leader is not None
    assert made.leader.next_offset == 3


def test_an_answer_that_comes_when_it_leads_is_passed_over() -> None:
    made, position = following(FakeReplicaLog())
    made.on_state(state_of(HERE, 2), STANDINGS, NOW)
    assert made.leads
    assert made.on_fetched(position, response(position, 3)) == []  # P7


@pytest.mark.parametrize(("unclean_epoch", "is_cut"), [(0, False), (2, True)])
def test_what_a_leader_committed_is_void_only_by_an_unclean_election_after_it(
    unclean_epoch: int, is_cut: bool
) -> None:
    log = FakeReplicaLog()
    log.end_at(5, epoch=1)
    made = replica_of(log, PARTITION, 5)
    made.on_state(state_of(HERE, 1, unclean_epoch=min(unclean_epoch, 1) - 1), STANDINGS, NOW)
    (position,) = (
        each
        for each in made.on_state(state_of(THERE, 2, unclean_epoch=unclean_epoch), STANDINGS, NOW)
        if isinstance(each, FetchFrom)
    )
    diverging = answer(position, diverging=EpochEnd(LeaderEpoch(1), Offset(2)))
    if is_cut:
        assert made.on_fetched(position, diverging)[-1] == ChangeLog(
            PARTITION, Change.TRUNCATE, Offset(2)
        )
    else:
        (halted,) = made.on_fetched(position, diverging)
        assert isinstance(halted, Halted)  # P5


def test_a_halted_replica_that_is_elected_leads_with_all_that_it_has() -> None:
    log = FakeReplicaLog()
    log.end_at(5)
    made, position = following(log, 5)
    (halted,) = made.on_fetched(
        position, answer(position, diverging=EpochEnd(LeaderEpoch(0), Offset(2)))
    )
    assert isinstance(halted, Halted)
    made.on_state(state_of(HERE, 2), STANDINGS, NOW)
    assert made.leads
    assert made.require_leader().next_offset == 5


def test_a_log_end_is_not_told_while_appends_of_the_time_as_leader_are_being_written() -> None:
    """P31. The end, and its epoch, would be those of a log that grows meanwhile."""
    log = FakeReplicaLog()
    made = leading(log)
    assert made.leader is not None
    made.leader.append(header_of(2), Acks.LEADER, "owner", WALL)
    made.on_state(state_of(None, 2), STANDINGS, NOW)
    assert made.log_end() is None
    log.end_at(2, epoch=1)
    made.on_disk(Written(Offset(2)), NOW)
    assert made.log_end() == LogEnd(PARTITION, LeaderEpoch(1), Offset(2), Offset(0))


def test_failed_writes_are_counted_on_from_role_to_role() -> None:
    log = FakeReplicaLog()
    made = leading(log)
    assert made.leader is not None
    made.leader.append(header_of(1), Acks.LEADER, "owner", WALL)
    made.on_disk(Failed(Offset(0), StorageFullError("full")), NOW)
    (_, position) = made.on_state(state_of(THERE, 2), STANDINGS, NOW)
    assert isinstance(position, FetchFrom)
    assert made.follower is not None
    assert made.follower.generation == 1
    made.on_fetched(position, response(position, 3))
    made.on_disk(Failed(Offset(0), StorageFullError("full")), NOW)
    made.on_state(state_of(HERE, 3), STANDINGS, NOW)
    assert made.leader is not None
    assert made.leader.generation == 2


def test_one_that_goes_offline_has_no_role_and_fails_what_waits() -> None:
    made = leading(FakeReplicaLog())
    assert made.leader is not None
    waiter = made.leader.append(header_of(1), Acks.LEADER, "owner", WALL)
    effects = made.resign(StorageFullError("gone"))
    assert effects == [Complete(PARTITION, [waiter]), Wake(PARTITION)]
    assert isinstance(waiter.error, StorageFullError)
    assert not made.leads


def test_only_a_leader_proposes() -> None:
    made, _ = following(FakeReplicaLog())
    assert made.role.tick(NOW, made.log.leader_epochs) == ([], None)
