"""What is left to move, and how far copies are, from what the cluster says."""

from collections.abc import Sequence

from millrace.cli.moves.moves import Handover, copies, wait_until, yet_to_return
from millrace.client import (
    FollowerDescription,
    LogDescription,
    PartitionDescription,
    TopicDescription,
)
from millrace.core.ids import BrokerId, LeaderEpoch, Offset, PartitionEpoch, TopicId


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def partition(
    number: int,
    leader: int,
    replicas: Sequence[int],
    isr: Sequence[int],
    *,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
) -> PartitionDescription:
    return PartitionDescription(
        number,
        BrokerId(leader),
        LeaderEpoch(1),
        "",
        PartitionEpoch(1),
        ids(*replicas),
        ids(*isr),
        (),
        (),
        ids(*adding),
        ids(*removing),
    )


def topic(*partitions: PartitionDescription) -> TopicDescription:
    return TopicDescription("t", TopicId(b"t" * 16), False, partitions, {})


def log(partition: int, start: int, end: int, **ends: int) -> LogDescription:
    followers = tuple(
        FollowerDescription(BrokerId(int(name[1:])), Offset(at), Offset(at), 0, False)
        for name, at in ends.items()
    )
    offsets = (Offset(start), Offset(end), Offset(end), Offset(end))
    return LogDescription("t", partition, BrokerId(0), *offsets, 1, 1, "", True, followers)


def test_what_nobody_else_holds_is_not_waited_for() -> None:
    topics = [
        topic(
            partition(0, leader=1, replicas=(1, 2), isr=(1,)),
            partition(1, leader=1, replicas=(1,), isr=(1,)),
            partition(2, leader=2, replicas=(1, 2), isr=(1, 2)),
        )
    ]
    left = Handover.of(topics, 1)
    assert left.awaited == {("t", 0): (1,)}
    assert left.alone == [("t", 1)]
    assert left.count == 2


def test_a_broker_is_back_when_it_leads_what_it_should() -> None:
    topics = [
        topic(
            partition(0, leader=2, replicas=(1, 2), isr=(1, 2)),
            partition(1, leader=1, replicas=(1, 2), isr=(1, 2)),
            # It leads this one once the reassignment is done.
            partition(2, leader=2, replicas=(1, 2), isr=(1, 2), removing=(2,)),
        )
    ]
    assert yet_to_return(topics, 1) == [("t", 0), ("t", 2)]
    assert yet_to_return(topics, 2) == []


def test_a_copy_is_as_far_as_its_leader_says() -> None:
    moving = partition(0, 0, replicas=(3, 0), isr=(0,), adding=(3,), removing=(0,))
    (copy,) = copies([topic(moving)], [log(0, start=100, end=200, b3=150)])["t", 0]
    assert (copy.broker_id, copy.copied, copy.total, copy.share) == (3, 50, 100, 0.5)
    assert not copy.is_in_sync


def test_a_copy_that_has_not_begun_or_of_which_nobody_tells_is_at_nothing() -> None:
    moving = partition(0, 0, replicas=(3, 0), isr=(0,), adding=(3,), removing=(0,))
    (copy,) = copies([topic(moving)], [log(0, start=100, end=200, b3=-1)])["t", 0]
    assert (copy.copied, copy.share) == (0, 0.0)
    (copy,) = copies([topic(moving)], [])["t", 0]
    assert (copy.copied, copy.total, copy.share) == (0, 0, 0.0)


def test_a_copy_is_done_only_when_it_is_in_sync() -> None:
    moving = partition(0, 0, replicas=(3, 0), isr=(0,), adding=(3,), removing=(0,))
    (copy,) = copies([topic(moving)], [log(0, start=0, end=200, b3=200)])["t", 0]
    assert copy.share < 1
    in_sync = partition(0, 0, replicas=(3, 0), isr=(0, 3), adding=(3,), removing=(0,))
    (copy,) = copies([topic(in_sync)], [log(0, start=0, end=200, b3=200)])["t", 0]
    assert copy.share == 1


def test_partitions_that_stay_are_not_shown() -> None:
    assert copies([topic(partition(0, 0, replicas=(0,), isr=(0,)))], []) == {}


def test_waiting_ends_with_the_condition_or_the_time() -> None:
    looks = iter([False, True])
    assert wait_until(lambda: next(looks), 10)
    assert not wait_until(lambda: False, 0)
