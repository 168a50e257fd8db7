"""The Groups service: heartbeats of members, at the leader of the group's partition.

A pattern may match topics that a member may not see. They are left out of what it is told, so that
a pattern finds out nothing; a topic that the member names is refused by name.
"""

from collections.abc import Callable, Collection, Iterable
from heapq import nsmallest
from typing import Final

from millrace.broker.coordinator.groups import Groups
from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.guard.demands import whole
from millrace.broker.rpc import classic_groups
from millrace.broker.rpc.calls import Calls, ServiceMethods
from millrace.broker.rpc.hidden_topics import Hidden, hidden_in_group, hidden_topics
from millrace.broker.rpc.name_partitions import NamePartitions
from millrace.broker.rpc.resources import group
from millrace.core.callers import Caller
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.classic_group import ClassicGroup
from millrace.core.coordinator.groups.group import (
    NO_PARTITIONS,
    REBALANCE_TIMEOUT_MS_DEFAULT,
    Current,
    Group,
    Member,
    Partitions,
)
from millrace.core.coordinator.groups.member_checks import check_group_name
from millrace.core.coordinator.groups.membership import Heartbeat, assignor_of
from millrace.core.coordinator.positions.position import check_name
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.core.guard.access import Operation, Resource, ResourceKind, named
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.topics import TopicName
from millrace.proto.v1 import groups_pb2 as pb

_LEAVING_MAX = 1000
_MEMBERS_AT_ONCE = 250
"""Members in one answer: more of them would keep the loop for longer."""
_DESCRIBED_BYTES = 1 << 20
"""Bytes of members after which an answer ends."""


def _subscribed(request: pb.GroupHeartbeatRequest) -> Iterable[Resource]:
    return (named(ResourceKind.TOPICS, topic) for topic in request.member.topics)


DEMANDS: Final = {
    "GroupHeartbeat": whole(Operation.CONSUME, ResourceKind.GROUPS, group)
    & whole(Operation.DESCRIBE, ResourceKind.TOPICS, _subscribed, "that it names"),
    "LeaveGroup": whole(Operation.CONSUME, ResourceKind.GROUPS, group),
    "DescribeGroup": whole(Operation.DESCRIBE, ResourceKind.GROUPS, group),
}
"""What each call demands."""


class GroupsService:
    """Serves `millrace.proto.v1.Groups`."""

    NAME = pb.DESCRIPTOR.services_by_name["Groups"].full_name

    def __init__(self, *, groups: Groups, names: NamePartitions, calls: Calls) -> None:
        self._groups = groups
        self._names = names
        self._calls = calls

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""
        return self._calls.methods(
            self.NAME,
            unary={
                "GroupHeartbeat": (
                    self._heartbeat,
                    pb.GroupHeartbeatRequest,
                    DEMANDS["GroupHeartbeat"],
                ),
                "LeaveGroup": (self._leave, pb.LeaveGroupRequest, DEMANDS["LeaveGroup"]),
                "DescribeGroup": (
                    self._describe,
                    pb.DescribeGroupRequest,
                    DEMANDS["DescribeGroup"],
                ),
            },
        )

    async def _heartbeat(
        self, request: pb.GroupHeartbeatRequest, caller: GuardedCaller
    ) -> pb.GroupHeartbeatResponse:
        name, config = request.group, self._groups.config
        said = _member(request.member, caller) if request.HasField("member") else None
        wait_ms = min(request.wait_ms, config.heartbeat_interval_ms)
        try:
            check_group_name(name)
            place = await self._names.find_or_make(name, caller)
            heartbeat = Heartbeat(request.member_id, request.confirmed, said)
            told = await self._groups.heartbeat(place, name, heartbeat, wait_ms / 1000)
            hidden = await self._hidden(caller, told.current.assigned | told.current.revoking)
            if hidden:
                hidden -= await self._named(place, request, caller, hidden)
        except MillraceError as error:
            return pb.GroupHeartbeatResponse(error=self._names.error(name, error))
        return pb.GroupHeartbeatResponse(
            epoch=told.current.epoch,
            assigned=_to_wire(
                _without(told.current.assigned, hidden),
                self._groups.topic_name,
                told.epochs.first_later,
            ),
            revoking=_to_wire(_without(told.current.revoking, hidden), self._groups.topic_name),
            session_timeout_ms=config.session_timeout_ms,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            waited_ms=int(told.waited_seconds * 1000),
        )

    async def _hidden(self, caller: GuardedCaller, partitions: Partitions) -> set[TopicId]:
        return await hidden_topics(caller, partitions, self._groups.topic_name)

    async def _named(
        self,
        place: TopicPartition,
        request: pb.GroupHeartbeatRequest,
        caller: GuardedCaller,
        hidden: Collection[TopicId],
    ) -> set[TopicId]:
        """Return the hidden topics that the member names, and may see: it asks by name.

        Raises:
            TopicAuthorizationFailedError: it names one that it may not see any more.
        """
        group = await self._groups.runtime.ask(
            place, lambda machine, _: Result([], machine.membership.groups.get(request.group))
        )
        member = None if group is None else group.members.get(request.member_id)
        topics = () if member is None else member.topics
        # All of them are asked about before one is refused.
        refusals = {
            topic_id: caller.refusal(Operation.DESCRIBE, named(ResourceKind.TOPICS, name))
            for topic_id in hidden
            if (name := self._groups.topic_name(topic_id)) in topics
        }
        for refused in refusals.values():
            if refused is not None:
                raise refused
        return set(refusals)

    async def _leave(self, request: pb.LeaveGroupRequest, _: Caller) -> pb.LeaveGroupResponse:
        name = request.group
        try:
            check_group_name(name)
            if len(request.member_ids) > _LEAVING_MAX:
                raise MalformedRequestError(f"at most {_LEAVING_MAX} members leave in one request")
            place = self._names.find(name)
            if place is None:
                return pb.LeaveGroupResponse()
            gone = await self._groups.leave(
                place, name, list(request.member_ids), for_now=request.for_now
            )
        except MillraceError as error:
            return pb.LeaveGroupResponse(error=self._names.error(name, error))
        return pb.LeaveGroupResponse(member_ids=gone)

    async def _describe(
        self, request: pb.DescribeGroupRequest, caller: GuardedCaller
    ) -> pb.DescribeGroupResponse:
        name = request.group
        try:
            check_name(name)
            place = self._names.find(name)
            if place is None:
                return pb.DescribeGroupResponse()
            group, classic = await self._groups.runtime.ask(
                place,
                lambda machine, _: Result(
                    [], (machine.membership.groups.get(name), machine.classic.group(name))
                ),
            )
        except MillraceError as error:
            return pb.DescribeGroupResponse(error=self._names.error(name, error))
        if classic is not None:
            return await self._described_classic(classic, request.after, caller)
        if group is None:
            return pb.DescribeGroupResponse()
        hidden = Hidden()
        if caller.access is not None:
            told = [current.assigned | current.revoking for current in group.current.values()]
            hidden = await hidden_in_group(
                caller,
                NO_PARTITIONS.union(*told, *group.target.values()),
                group.subscribed,
                self._groups.topic_name,
            )
        response = _described(group, request.after, hidden)
        for member in response.members:
            is_confirmed = self._groups.is_confirmed(place, name, member.member_id)
            member.is_behind = not (member.is_away or is_confirmed)
        return response

    def _topic_id(self, name: TopicName) -> TopicId | None:
        found = self._groups.find(str(name))
        return None if found is None else found.topic_id

    async def _described_classic(
        self, group: ClassicGroup, after: str, caller: GuardedCaller
    ) -> pb.DescribeGroupResponse:
        hidden = Hidden()
        if caller.access is not None:
            hidden = await hidden_in_group(
                caller,
                classic_groups.assigned_in(group, self._topic_id),
                classic_groups.subscribed_in(group),
                self._groups.topic_name,
            )
        return classic_groups.described(
            group,
            self._topic_id,
            _to_wire,
            after=after,
            members_max=_MEMBERS_AT_ONCE,
            hidden=hidden,
        )


def _member(member: pb.GroupMember, caller: Caller) -> Member:
    return Member(
        instance_id=member.instance_id,
        client_id=caller.client_id,
        address=caller.address,
        zone=member.zone,
        topics=tuple(sorted(set(member.topics))),
        pattern=member.pattern,
        assignor=member.assignor,
        rebalance_timeout_ms=member.rebalance_timeout_ms or REBALANCE_TIMEOUT_MS_DEFAULT,
    )


def _without(partitions: Partitions, hidden: Collection[TopicId]) -> Partitions:
    """Return partitions without those of some topics."""
    if not hidden:
        return partitions
    return frozenset(place for place in partitions if place[0] not in hidden)


def _described(group: Group, after: str, hidden: Hidden) -> pb.DescribeGroupResponse:
    """Return the members after another one, as many as one answer has.

    Args:
        group: theirs.
        after: id of that one.
        hidden: topics that are left out.
    """
    response = pb.DescribeGroupResponse(
        epoch=group.epochs.epoch, assignor=assignor_of(group.members.values())
    )
    following = (member_id for member_id in group.members if member_id > after)
    size = 0
    for member_id in nsmallest(_MEMBERS_AT_ONCE + 1, following):
        if len(response.members) == _MEMBERS_AT_ONCE or size > _DESCRIBED_BYTES:
            response.has_more = True
            break
        member = group.members[member_id]
        current = group.current.get(member_id, Current())
        described = response.members.add(
            member_id=member_id,
            member=pb.GroupMember(
                instance_id=member.instance_id,
                zone=member.zone,
                topics=[topic for topic in member.topics if topic not in hidden.names],
                pattern=member.pattern,
                assignor=member.assignor,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
            ),
            client_id=member.client_id,
            address=member.address,
            is_away=member.is_away,
            epoch=current.epoch,
            assigned=_to_wire(_without(current.assigned, hidden.topic_ids)),
            revoking=_to_wire(_without(current.revoking, hidden.topic_ids)),
            target=_to_wire(_without(group.target.get(member_id, NO_PARTITIONS), hidden.topic_ids)),
        )
        size += described.ByteSize()
    return response


def _to_wire(
    partitions: Partitions,
    name_of: Callable[[TopicId], str] = lambda _: "",
    first_later: Callable[[TopicId], int | None] = lambda _: None,
) -> Iterable[pb.TopicPartitions]:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(partition)
    return [
        pb.TopicPartitions(
            topic_id=topic_id,
            partitions=some,
            topic=name_of(topic_id),
            later_from=first_later(topic_id),
        )
        for topic_id, some in by_topic.items()
    ]
