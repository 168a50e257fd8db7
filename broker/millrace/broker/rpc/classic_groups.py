"""Groups of Kafka's classic protocol, described as Millrace's own are.

What a member of the type `consumer` says and is assigned is read for that. Of other types, such as
Kafka Connect's, there is nothing that would be a topic or a partition.
"""

from collections.abc import Callable, Iterable
from heapq import nsmallest

from millrace.broker.rpc.hidden_topics import Hidden
from millrace.core.coordinator.groups.classic_group import ClassicGroup, LiveMember, State
from millrace.core.coordinator.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    assigned_partitions,
    subscribed_topics,
)
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.topics import TopicName
from millrace.proto.v1 import groups_pb2 as pb

TopicIdOf = Callable[[TopicName], TopicId | None]
"""Returns the id of a topic; None: it is not there."""


def assigned_in(group: ClassicGroup, id_of: TopicIdOf) -> frozenset[TopicPartition]:
    """Return all partitions that members are assigned."""
    return frozenset(
        place for member in group.members.values() for place in _assigned(group, member, id_of)
    )


def subscribed_in(group: ClassicGroup) -> set[str]:
    """Return the full names of all topics that members subscribe to."""
    return {name for member in group.members.values() for name in _subscribed(group, member)}


def described(
    group: ClassicGroup,
    id_of: TopicIdOf,
    to_wire: Callable[[frozenset[TopicPartition]], Iterable[pb.TopicPartitions]],
    *,
    after: str,
    members_max: int,
    hidden: Hidden,
) -> pb.DescribeGroupResponse:
    """Return the members after another one, as many as one answer has.

    Args:
        group: theirs.
        id_of: returns the ids of topics.
        to_wire: translates partitions.
        after: id of the last member of the answer before.
        members_max: of one answer.
        hidden: topics that are left out.
    """
    response = pb.DescribeGroupResponse(epoch=group.generation, assignor=group.protocol)
    following = (member_id for member_id in group.members if member_id > after)
    for member_id in nsmallest(members_max + 1, following):
        if len(response.members) == members_max:
            response.has_more = True
            break
        member = group.members[member_id]
        assigned = frozenset(
            place
            for place in _assigned(group, member, id_of)
            if place.topic_id not in hidden.topic_ids
        )
        response.members.add(
            member_id=member_id,
            member=pb.GroupMember(
                instance_id=member.instance_id,
                topics=sorted(_subscribed(group, member).difference(hidden.names)),
                assignor=group.protocol,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
            ),
            client_id=member.client_id,
            address=member.address,
            epoch=group.generation,
            assigned=to_wire(assigned),
            target=to_wire(assigned),
            is_behind=group.state is not State.STABLE,
        )
    return response


def _subscribed(group: ClassicGroup, member: LiveMember) -> set[str]:
    topics = subscribed_topics(member.metadata(group.protocol)) or frozenset()
    return {str(TopicName(member.namespace, topic)) for topic in topics}


def _assigned(
    group: ClassicGroup, member: LiveMember, id_of: TopicIdOf
) -> frozenset[TopicPartition]:
    if group.protocol_type != PROTOCOL_TYPE:
        return frozenset()
    partitions = assigned_partitions(member.assignment) or frozenset()
    ids = {topic: id_of(TopicName(member.namespace, topic)) for topic, _ in partitions}
    return frozenset(
        TopicPartition(topic_id, partition)
        for topic, partition in partitions
        if (topic_id := ids[topic]) is not None
    )
