"""States of groups, in the words of Kafka's tools."""

from dataclasses import replace

from millrace.broker.kafka.coordinators.coordination import state_of_consumers
from millrace.core.coordinator.groups.group import Current, Group, Member
from millrace.core.ids import TopicId, TopicPartition

PLACE = TopicPartition(TopicId(b"t" * 16), 0)


def test_a_group_is_stable_once_each_member_owns_its_target() -> None:
    group = Group("g")
    assert state_of_consumers(group) == "Empty"
    group.members["m"] = Member()
    group.epochs = replace(group.epochs, epoch=2, target_epoch=1)
    assert state_of_consumers(group) == "Assigning"
    group.epochs = replace(group.epochs, target_epoch=2)
    group.target["m"] = frozenset({PLACE})
    assert state_of_consumers(group) == "Reconciling"
    group.current["m"] = Current(2, frozenset({PLACE}))
    assert state_of_consumers(group) == "Stable"


def test_a_group_is_not_stable_while_a_member_gives_something_up() -> None:
    group = Group("g", members={"m": Member()})
    group.current["m"] = Current(2, frozenset(), revoking=frozenset({PLACE}))
    assert state_of_consumers(group) == "Reconciling"
