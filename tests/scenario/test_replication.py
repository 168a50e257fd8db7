"""Failures that lost records elsewhere, replayed against the leader and its followers.

The letters are those of the list of lessons in the safety reference; each test names the rules that
keep it from happening here.
"""

from dataclasses import replace

import pytest
from tests.fakes.replicated_partition import Batch, Fetch, Fetched, Log, ReplicatedPartition

from millrace.core.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    SafetyViolationError,
)
from millrace.core.ids import NO_BROKER, NO_LEADER_EPOCH, LeaderEpoch, Offset
from millrace.core.metadata.topic_config import Durability
from millrace.core.replication.leader import Acks

LONGER_THAN_THE_LAG = 11_000


def partition_with(*texts: str, min_insync_replicas: int = 2) -> ReplicatedPartition:
    """Return three replicas, led by broker 0, in which these are committed and known to be."""
    partition = ReplicatedPartition(min_insync_replicas=min_insync_replicas)
    for text in texts:
        partition.produce(partition.brokers[0], text)
    partition.replicate()
    partition.check()
    assert [batch.text for batch in partition.acknowledged.values()] == list(texts)
    return partition


def append(partition: ReplicatedPartition, broker: int, text: str, acks: Acks = Acks.ALL) -> None:
    """Write and flush a batch at a leader."""
    partition.produce(partition.brokers[broker], text, acks=acks)
    partition.write(partition.brokers[broker])
    partition.flush(partition.brokers[broker])


def isolate(partition: ReplicatedPartition, leader: int = 0) -> None:
    """Let the leader's followers be silent until the controller has taken them out."""
    for _ in range(2):
        partition.pass_time(LONGER_THAN_THE_LAG)
        partition.deliver_all()
    assert [life.broker_id for life in partition.controller.state.isr] == [leader]


def take_over(partition: ReplicatedPartition, broker: int) -> None:
    """Have the controller move the leadership, and everybody learn it."""
    partition.controller.move(partition.brokers[broker].broker_id)
    partition.learn_all()


def test_b1_a_leader_that_is_left_alone_acknowledges_nothing_and_is_not_replaced_by_less() -> None:
    """P9, P14, P15, P25: Kafka of 2013 acknowledged alone, and then elected who had missed it."""
    partition = partition_with("committed")
    lonely = partition.brokers[0]
    append(partition, 0, "waits")
    isolate(partition)
    assert isinstance(partition.failed["waits"], NotEnoughReplicasAfterAppendError)
    with pytest.raises(NotEnoughReplicasError):
        partition.produce(lonely, "refused")
    append(partition, 0, "for one", Acks.LEADER)
    assert partition.leader_of(0).high_watermark == 1
    partition.crash(lonely)
    partition.controller.fence(lonely.broker_id)
    assert partition.controller.state.leader == NO_BROKER
    partition.settle()
    assert partition.brokers[2].log.texts == ["committed", "waits", "for one"]


def test_b2_a_follower_keeps_what_lies_above_its_high_watermark() -> None:
    """P4, P5: the high watermark that it knows is one fetch behind what was acknowledged."""
    partition = partition_with("first")
    append(partition, 0, "second")
    follower = partition.brokers[2]
    for broker in partition.brokers[1:]:
        partition.fetch(broker)
    partition.deliver_all()
    for broker in partition.brokers[1:]:
        partition.write(broker)
        partition.flush(broker)
        partition.fetch(broker)
    for message in partition.wire:  # Reported, but the answers are lost.
        partition.deliver(message) if isinstance(message, Fetch) else None
    partition.wire.clear()
    assert [batch.text for batch in partition.acknowledged.values()] == ["first", "second"]
    assert follower.high_watermark == 1
    take_over(partition, 1)
    partition.fetch(follower)
    partition.deliver_all()
    partition.write(follower)
    assert follower.log.texts == ["first", "second"]
    partition.crash(partition.brokers[1])
    partition.controller.fence(partition.brokers[1].broker_id)
    partition.controller.fence(partition.brokers[0].broker_id)
    partition.learn(follower)
    assert partition.controller.state.leader == follower.broker_id
    partition.check()
    partition.settle()


def test_b3_an_offset_that_two_leaders_wrote_holds_the_later_leaders_batch() -> None:
    """P3, P4: lengths alone would not show that the logs differ."""
    partition = partition_with("shared", min_insync_replicas=1)
    append(partition, 0, "lost with its leader")
    partition.crash(partition.brokers[0], power=True)
    partition.controller.fence(partition.brokers[0].broker_id)
    partition.learn_all()
    append(partition, 1, "in its place")
    append(partition, 1, "and more")
    partition.replicate(2)
    partition.settle()
    for broker in partition.brokers:
        assert broker.log.texts == ["shared", "in its place", "and more"]


def test_b4_after_two_quick_changes_the_epochs_are_compared_until_both_know_one() -> None:
    """P3, P4: neither log has the epoch of the other one's last batch."""
    partition = partition_with("shared")
    append(partition, 0, "a1", Acks.LEADER)  # In epoch 0, and nowhere else.
    append(partition, 0, "a2", Acks.LEADER)
    take_over(partition, 1)
    append(partition, 1, "b1", Acks.LEADER)  # In epoch 1, and nowhere else.
    partition.crash(partition.brokers[1])
    partition.controller.fence(partition.brokers[1].broker_id)
    assert partition.controller.state.leader == 0
    partition.learn_all()  # Broker 0 has not asked broker 1 for anything.
    append(partition, 0, "a3", Acks.LEADER)
    assert partition.brokers[0].log.texts == ["shared", "a1", "a2", "a3"]
    partition.restart(partition.brokers[1])
    partition.fetch(partition.brokers[1])
    partition.deliver_all()
    partition.write(partition.brokers[1])
    assert partition.brokers[1].log.texts == ["shared"]
    partition.settle()
    assert partition.brokers[1].log.texts == ["shared", "a1", "a2", "a3"]


def test_b5_a_follower_with_old_metadata_is_refused_and_does_not_come_back_into_the_isr() -> None:
    """P6, P9, P22: it goes on fetching from a leader that was another one meanwhile."""
    partition = partition_with("first")
    zombie = partition.brokers[2]
    partition.controller.fence(zombie.broker_id)
    partition.controller.unfence(zombie.broker_id)
    for leader in (1, 0):
        partition.controller.move(partition.brokers[leader].broker_id)
        for broker in partition.brokers[:2]:
            partition.learn(broker)
    partition.fetch(zombie)
    (request,) = partition.wire
    assert isinstance(request, Fetch)
    assert request.position.leader_epoch == 0
    with pytest.raises(FencedLeaderEpochError):
        partition.leader_of(0).check_epoch(request.position.leader_epoch)
    partition.deliver_all()
    partition.pass_time(1000)
    partition.deliver_all()
    assert zombie.life not in partition.controller.state.isr
    partition.learn(zombie)
    partition.replicate(1, 2)
    partition.pass_time(1000)
    partition.deliver_all()
    assert zombie.life in partition.controller.state.isr


def test_b6_a_report_of_an_earlier_epoch_does_not_move_the_high_watermark() -> None:
    """P9, P4: what a follower had before it cut its log says nothing of what it has now."""
    partition = partition_with("shared")
    append(partition, 0, "given up")
    late = partition.brokers[2]
    partition.fetch(late)
    partition.deliver_all()
    partition.write(late)
    partition.flush(late)
    partition.fetch(late)
    old_report = partition.wire.pop()  # It has two batches.
    assert isinstance(old_report, Fetch)
    assert old_report.progress.flushed_offset == 2
    take_over(partition, 1)
    partition.replicate()
    assert late.log.texts == ["shared"]
    append(partition, 1, "in its place")
    partition.replicate(0)
    take_over(partition, 0)
    partition.replicate(1)
    assert partition.brokers[0].log.texts == ["shared", "in its place"]
    partition.deliver(old_report)
    assert partition.leader_of(0).high_watermark == 1
    partition.check()
    partition.settle()


@pytest.mark.parametrize("is_applied", [True, False])
def test_b7_while_an_expansion_is_in_flight_nothing_is_committed_without_the_joiner(
    is_applied: bool,
) -> None:
    """P20, P21: the controller may elect it already, and its leader has not heard so."""
    partition = partition_with("first")
    joiner = partition.brokers[2]
    partition.controller.fence(joiner.broker_id)
    partition.controller.unfence(joiner.broker_id)
    partition.learn_all()
    partition.replicate(2)
    partition.tick(partition.brokers[0])
    (alter,) = partition.wire
    if is_applied:
        partition.deliver(alter)
    partition.wire.clear()
    partition.pass_time(LONGER_THAN_THE_LAG * 2)  # Nobody expects the joiner any more.
    partition.wire.clear()
    append(partition, 0, "needs all three")
    partition.replicate(1)
    assert partition.leader_of(0).high_watermark == 1
    assert joiner.life in partition.leader_of(0).maximal_isr
    if is_applied:
        partition.crash(partition.brokers[0])
        partition.controller.fence(partition.brokers[0].broker_id)
        take_over(partition, 2)
        partition.check()
    partition.settle()


def test_b7_while_a_shrink_is_in_flight_nothing_is_committed_without_those_who_leave() -> None:
    """P20: the controller may elect one of them still."""
    partition = partition_with("first")
    append(partition, 0, "second")
    partition.replicate(1)
    partition.pass_time(LONGER_THAN_THE_LAG)
    assert len(partition.wire) == 1
    partition.wire.clear()
    partition.replicate(1)
    assert [batch.text for batch in partition.acknowledged.values()] == ["first"]
    take_over(partition, 2)
    partition.check()
    partition.settle()


def test_b8_a_broker_that_came_back_empty_is_not_added_by_a_proposal_of_its_last_life() -> None:
    """P19, P22, P28: in-sync entries name the life, and the controller compares."""
    partition = partition_with("first", "second")
    rebooted = partition.brokers[2]
    partition.controller.fence(rebooted.broker_id)
    partition.controller.unfence(rebooted.broker_id)
    partition.learn_all()
    partition.replicate(2)
    partition.tick(partition.brokers[0])
    (alter,) = partition.wire
    partition.crash(rebooted)
    rebooted.log.start_anew(Offset(0))
    partition.restart(rebooted)
    partition.wire = [alter]
    partition.deliver_all()
    assert [life.broker_id for life in partition.controller.state.isr] == [0, 1]
    assert partition.leader_of(0).proposal is None, "it was proved that nothing was applied"
    partition.learn(partition.brokers[0])
    append(partition, 0, "third")
    partition.replicate(1)
    assert partition.leader_of(0).high_watermark == 3
    partition.settle()
    assert rebooted.log.texts == ["first", "second", "third"]


def test_b9_the_last_replica_standing_loses_only_what_nobody_was_promised() -> None:
    """P9, P13: alone it commits nothing, so its tail is nobody's loss."""
    partition = partition_with("committed")
    last = partition.brokers[0]
    append(partition, 0, "flushed", Acks.LEADER)
    isolate(partition)
    partition.produce(last, "not flushed", acks=Acks.LEADER)
    partition.write(last)
    partition.crash(last, power=True)
    assert last.log.texts == ["committed", "flushed"]
    partition.controller.fence(last.broker_id)
    partition.restart(last)
    assert partition.controller.state.leader == last.broker_id
    partition.check()
    partition.settle()
    assert partition.brokers[1].log.texts == ["committed", "flushed"]


def test_b10_a_replica_that_was_taken_away_and_given_back_has_to_report_anew() -> None:
    """P22, P33: both came in one state, so all that shows is the higher leader epoch."""
    partition = partition_with("first")
    state = partition.controller.state
    without = state.successor(leader=state.leader, isr=state.isr[:2], replicas=state.replicas[:2])
    again = without.successor(leader=state.leader, isr=without.isr, replicas=state.replicas)
    partition.controller.state = again
    partition.learn_all()
    emptied = partition.leader_of(0).followers[1]
    assert (emptied.life, emptied.has_caught_up) == (None, False)
    partition.tick(partition.brokers[0])
    assert partition.wire == [], "what it had before its removal does not count"
    partition.settle()


def test_a_replica_that_was_emptied_is_not_counted_for_what_its_old_log_had() -> None:
    """P22, P65: a report of the old log was on its way when the replica began anew."""
    partition = partition_with("first", "second")
    leader, damaged = partition.brokers[0], partition.brokers[2]
    partition.fetch(damaged)
    state = partition.controller.state
    partition.controller.state = state.successor(
        leader=state.leader, isr=state.isr[:2], is_renewed=True
    )
    partition.learn(leader)
    partition.learn(partition.brokers[1])
    partition.deliver_all()
    partition.tick(leader)
    assert partition.wire == [], "the old log counts for nothing"
    damaged.log, damaged.follower = Log(), None
    partition.learn(damaged)
    partition.fetch(damaged)
    partition.deliver_all()
    partition.tick(leader)
    assert partition.wire == [], "it has yet to write what it was sent"
    partition.check()
    partition.settle()
    assert damaged.life in partition.controller.state.isr
    assert damaged.log.texts == leader.log.texts


def test_b11_a_new_leader_does_not_say_where_the_log_ends_before_it_knows() -> None:
    """P11: readers were shown more by the last leader."""
    partition = partition_with("first")
    append(partition, 0, "second")
    for broker in partition.brokers[1:]:
        partition.fetch(broker)
        partition.deliver_all()
        partition.write(broker)
        partition.flush(broker)
        partition.fetch(broker)
        partition.deliver(partition.wire.pop())
        partition.wire.clear()
    assert partition.leader_of(0).high_watermark == 2
    take_over(partition, 1)
    leader = partition.leader_of(1)
    assert leader.high_watermark == 1
    with pytest.raises(OffsetNotAvailableError):
        leader.check_end_offset()
    leader.check_readable(Offset(2), Offset(0))  # Waited with, not sent back.
    partition.replicate(0, 2)
    leader.check_end_offset()
    assert leader.high_watermark == 2


def test_an_old_answer_is_not_taken_twice_within_one_epoch() -> None:
    """P7: cut back by the first copy, filled again, and the second copy arrives."""
    partition = partition_with("shared")
    append(partition, 0, "given up")
    follower = partition.brokers[2]
    partition.fetch(follower)
    partition.deliver_all()
    partition.write(follower)
    partition.flush(follower)
    take_over(partition, 1)
    append(partition, 1, "in its place")
    partition.fetch(follower)
    partition.deliver(partition.wire.pop())
    (answer,) = partition.wire
    assert isinstance(answer, Fetched)
    assert answer.response is not None
    assert answer.response.diverging == (0, 1)
    partition.deliver(answer)
    partition.wire.clear()
    partition.write(follower)
    partition.replicate(2, 0)
    assert follower.log.texts == ["shared", "in its place"]
    partition.deliver(answer)
    partition.write(follower)
    assert follower.log.texts == ["shared", "in its place"]
    partition.check()


def test_a_zombie_leader_acknowledges_nothing_after_it_was_replaced() -> None:
    """P17, P24: it may be the last to learn that it is none."""
    partition = partition_with("first")
    zombie = partition.brokers[0]
    append(partition, 0, "waits")
    partition.controller.fence(zombie.broker_id)
    for broker in partition.brokers[1:]:
        partition.learn(broker)
    partition.replicate(1, 2)
    partition.pass_time(LONGER_THAN_THE_LAG)
    partition.deliver_all()
    assert partition.leader_of(0).high_watermark == 1
    assert "waits" not in [batch.text for batch in partition.acknowledged.values()]
    partition.learn(zombie)
    assert isinstance(partition.failed["waits"], NotLeaderError)
    partition.settle()
    assert zombie.log.texts == ["first"]


def test_after_an_unclean_election_followers_give_up_what_was_committed_and_else_never() -> None:
    """P5, P30."""
    partition = partition_with("first", "second")
    behind = partition.brokers[2]
    partition.crash(behind)
    behind.log.truncate_to(Offset(1))
    partition.restart(behind)
    partition.controller.elect_uncleanly(behind.broker_id)
    partition.learn_all()
    append(partition, 2, "other", Acks.LEADER)
    partition.replicate(0)
    assert partition.brokers[0].log.texts == ["first", "other"]
    other = partition_with("first", "second")
    behind = other.brokers[2]
    other.crash(behind)
    behind.log.truncate_to(Offset(1))
    other.restart(behind)
    other.controller.elect_uncleanly(behind.broker_id)
    other.controller.state = replace(
        other.controller.state, is_recovering=False, unclean_epoch=NO_LEADER_EPOCH
    )
    other.learn_all()
    append(other, 2, "other", Acks.LEADER)
    with pytest.raises(SafetyViolationError):
        other.replicate(0)
    assert other.brokers[0].log.batches == [
        Batch(Offset(0), Offset(1), LeaderEpoch(0), "first"),
        Batch(Offset(1), Offset(2), LeaderEpoch(0), "second"),
    ]


def test_with_replicated_durability_the_page_cache_of_all_in_sync_replicas_is_enough() -> None:
    """P13: no flush is waited for, and a process may die."""
    partition = ReplicatedPartition(durability=Durability.REPLICATED)
    partition.produce(partition.brokers[0], "first")
    partition.write(partition.brokers[0])
    for broker in partition.brokers[1:]:
        partition.fetch(broker)
        partition.deliver_all()
        partition.write(broker)
        partition.fetch(broker)
        partition.deliver_all()
    assert partition.leader_of(0).high_watermark == 1
    assert all(broker.log.flushed_offset == 0 for broker in partition.brokers)
    partition.crash(partition.brokers[0])
    partition.check()
    partition.settle()


@pytest.mark.parametrize("since", [1, 4], ids=["it ends before", "it has gone on"])
def test_who_gave_all_up_before_an_unclean_election_has_nothing_of_what_came_instead(
    since: int,
) -> None:
    """P4, P22, P30: an empty log has no epoch that would tell, and ends where others' once did."""
    partition = partition_with("first")
    first, emptied, behind = partition.brokers
    partition.crash(behind)
    partition.controller.fence(behind.broker_id)
    partition.learn_all()
    for text in ("second", "third"):
        append(partition, 0, text)
    partition.replicate(1)
    for broker in (first, emptied):  # Nothing is written for longer than it is kept.
        broker.log.advance_start(Offset(3))
        partition.crash(broker)
        partition.controller.fence(broker.broker_id)
    partition.restart(behind)
    partition.controller.elect_uncleanly(behind.broker_id)
    partition.acknowledged.clear()
    partition.committed = {Offset(0): partition.committed[Offset(0)]}
    partition.learn_all()
    for number in range(since):
        append(partition, 2, f"other {number}", Acks.LEADER)
    partition.restart(emptied)
    partition.fetch(emptied)
    partition.deliver(partition.wire.pop())
    assert not partition.leader_of(2).followers[1].has_caught_up
    partition.wire.clear()
    partition.replicate(1)
    partition.tick(behind)
    partition.deliver_all()
    assert emptied.log.texts == behind.log.texts == ["first", *map("other {}".format, range(since))]
    partition.settle()


def test_who_is_in_sync_goes_on_though_all_of_it_was_given_up() -> None:
    """P5: its leader may not have given up as much yet, and counts on it as it is."""
    partition = partition_with("first", "second")
    emptied = partition.brokers[1]
    emptied.log.advance_start(Offset(2))
    emptied.follower = None
    partition.learn(emptied)
    take_over(partition, 2)
    append(partition, 2, "third")
    partition.replicate(0, 1)
    assert emptied.log.texts == ["third"]
    assert [batch.text for batch in partition.acknowledged.values()] == ["first", "second", "third"]
