"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: KIP-848's groups, which are Millrace's own.

The coordinator is the same as that of Millrace's consumers, so members of both kinds share a group.
What they are told differs (`core/coordinator/groups/owned_reports.py`). And Millrace's heartbeat
waits for news; Kafka's is answered at once, as its connection would have to wait as well.

Source: KIP-848; KIP-1082 for member ids that members choose.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from millrace.broker.kafka.coordinators.coordination import (
    GroupNames,
    client_host,
    coordinator_code,
    state_of_consumers,
)
from millrace.broker.kafka.names import uuid_of
from millrace.broker.kafka.operations import allowed_operations, as_bits
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Encoded, Request, Served
from millrace.broker.kafka.wire import consumer_group_messages as messages
from millrace.broker.kafka.wire.codec import ListEncoder
from millrace.broker.kafka.wire.errors import NO_ERROR, Code
from millrace.broker.rpc.hidden_topics import Hidden, hidden_in_group, hidden_topics
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups import owned_reports
from millrace.core.coordinator.groups.assignors import ASSIGNORS
from millrace.core.coordinator.groups.coordinator import CoordinatorRecord, GroupCoordinator
from millrace.core.coordinator.groups.group import (
    JOINING,
    NO_PARTITIONS,
    REBALANCE_TIMEOUT_MS_DEFAULT,
    Current,
    Group,
    Member,
    Partitions,
)
from millrace.core.coordinator.groups.membership import Heartbeat, assignor_of
from millrace.core.coordinator.groups.patterns import check_pattern
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.ids import TopicId, TopicPartition, WallMs
from millrace.runtime import host

# kafka-python makes their attributes of the schemas.
ConsumerGroupHeartbeatResponse: Final[Any] = messages.ConsumerGroupHeartbeatResponse
ConsumerGroupDescribeResponse: Final[Any] = messages.ConsumerGroupDescribeResponse
_LEAVES, _GOES_AWAY = -1, -2
"""Epochs with which a member says that it leaves for good, or for a restart."""


class ConsumerGroupRequests:
    """Answers them.

    Args:
        parts: of the listener.
    """

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        self._names = GroupNames(parts)
        self._groups = parts.broker.groups

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: Served(range(2), self._heartbeat),
            ApiKey.CONSUMER_GROUP_DESCRIBE: Served(range(1), self._describe),
        }

    # --- Members -------------------------------------------------------------------------------

    async def _heartbeat(self, request: Request) -> Any:
        message = request.message
        try:
            group = await self._names.full(message.group_id, Operation.CONSUME, request)
            if message.server_assignor not in (None, *ASSIGNORS):
                return _refused(
                    request,
                    Code.UNSUPPORTED_ASSIGNOR,
                    f"choose one of the assignors {', '.join(ASSIGNORS)}",
                )
            if message.member_epoch < 0:
                return await self._leave(group, request)
            return await self._beat(group, request)
        except MillraceError as error:
            return _refused(request, coordinator_code(error), error.message)

    async def _leave(self, group: str, request: Request) -> Any:
        message = request.message
        if message.member_epoch not in (_LEAVES, _GOES_AWAY):
            raise MalformedRequestError(f"there is no epoch {message.member_epoch}")
        await self._groups.leave(
            self._names.known_place(group),
            group,
            [message.member_id],
            for_now=message.member_epoch == _GOES_AWAY,
        )
        return ConsumerGroupHeartbeatResponse(
            version=request.version,
            error_code=NO_ERROR,
            member_id=message.member_id,
            member_epoch=message.member_epoch,
        )

    async def _beat(self, group: str, request: Request) -> Any:
        message, config = request.message, self._groups.config
        place = await self._names.place(group, request)
        member_id = message.member_id or _new_id()
        machine = self._groups.runtime.machine(place)
        kept = None if machine is None else machine.membership.groups.get(group)
        current = Current() if kept is None else kept.current.get(member_id, Current())
        known = None if kept is None else kept.members.get(member_id)
        holder = None if kept is None else kept.instances.get(message.instance_id or "")
        if message.member_epoch != JOINING and holder not in (None, member_id):
            return _refused(
                request,
                Code.FENCED_INSTANCE_ID,
                f"the member {holder!r} has the instance id {message.instance_id!r} by now",
            )
        said = await self._said(known, request)
        owned = _owned(message.topic_partitions)
        confirmed = owned_reports.confirmed(current, message.member_epoch, owned)
        heartbeat = Heartbeat(member_id, confirmed, said)
        told = await self._groups.heartbeat(place, group, heartbeat, 0)
        epoch, assigned = owned_reports.told(told.current)
        hidden = await hidden_topics(request.caller, assigned, self._groups.topic_name)
        is_news = epoch != message.member_epoch or bool(told.current.revoking) or owned is not None
        kind = ConsumerGroupHeartbeatResponse.Assignment
        return ConsumerGroupHeartbeatResponse(
            version=request.version,
            error_code=NO_ERROR,
            member_id=member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            assignment=kind(
                topic_partitions=[
                    kind.TopicPartitions(topic_id=uuid_of(topic_id), partitions=numbers)
                    for topic_id, numbers in self._by_topic(assigned, hidden)
                ]
            )
            if is_news
            else None,
        )

    async def _said(self, known: Member | None, request: Request) -> Member | None:
        """Return what a member says of itself; None: as before.

        Raises:
            MillraceError: it may not know of a topic that it names, or its pattern is none.
        """
        message = request.message
        joins = message.member_epoch == JOINING
        topics, pattern = message.subscribed_topic_names, message.subscribed_topic_regex
        if not joins and topics is None and pattern is None and message.server_assignor is None:
            return None
        member = (
            (known or Member())
            if not joins
            else Member(
                instance_id=message.instance_id or "",
                client_id=request.caller.client_id,
                address=request.caller.address,
                zone=message.rack_id or "",
            )
        )
        names = self._parts.names
        if topics is not None:
            full = sorted({names.full(topic) for topic in topics})
            resources = [named(ResourceKind.TOPICS, topic) for topic in full]
            await request.caller.learn(Operation.DESCRIBE, resources)
            for resource in resources:
                if refusal := request.caller.refusal(Operation.DESCRIBE, resource):
                    raise refusal
            member = replace(member, topics=tuple(full))
        if pattern is not None:
            check_pattern(pattern)  # By itself: `a)|(?:b` would end the group that it stands in.
            member = replace(member, pattern=names.full_pattern(pattern))
        if message.server_assignor is not None:
            member = replace(member, assignor=message.server_assignor)
        if message.rebalance_timeout_ms > 0:
            member = replace(member, rebalance_timeout_ms=message.rebalance_timeout_ms)
        elif joins:
            member = replace(member, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS_DEFAULT)
        return member

    def _by_topic(
        self, partitions: Partitions, hidden: Collection[TopicId]
    ) -> Iterable[tuple[TopicId, list[int]]]:
        """Return partitions of topics in the listener's namespace, by topic."""
        by_topic: dict[TopicId, list[int]] = {}
        for where in sorted(partitions):
            if where.topic_id in hidden:
                continue
            if where.topic_id in by_topic or self._parts.topics.name_of(where.topic_id):
                by_topic.setdefault(where.topic_id, []).append(where.partition)
        return by_topic.items()

    # --- Descriptions ----------------------------------------------------------------------------

    async def _describe(self, request: Request) -> Any:
        # Each once, however often it is named: an answer is much longer than a name.
        names = dict.fromkeys(request.message.group_ids)
        bytes_max = self._parts.broker.config.limits.message_bytes_max
        answer = ListEncoder(ConsumerGroupDescribeResponse(), "groups", request.version)
        work = self._parts.broker.turns.work()
        for name in names:
            await work.give_way()
            is_full = answer.size > bytes_max
            answer.add(_too_much(name) if is_full else await self._described(name, request))
        return Encoded(answer.parts())

    async def _described(self, name: str, request: Request) -> Any:
        kind = ConsumerGroupDescribeResponse.DescribedGroup
        empty = _nothing_of(name)
        try:
            full = await self._names.full(name, Operation.DESCRIBE, request)
            place = self._names.partitions.find(full)
            group: Group | None = None
            if place is not None:
                group = await self._groups.runtime.ask(place, partial(_group_of_ours, full))
            fields = None if group is None else await self._fields(group, request)
        except MillraceError as error:
            return kind(**empty, error_code=coordinator_code(error), error_message=error.message)
        if fields is None:
            why = f"there is no consumer group {name!r}"
            return kind(**empty, error_code=Code.GROUP_ID_NOT_FOUND, error_message=why)
        entry = kind(**(empty | fields), error_code=NO_ERROR)
        if request.message.include_authorized_operations:
            resource = named(ResourceKind.GROUPS, full)
            allowed = await allowed_operations(request.caller, resource)
            entry.authorized_operations = as_bits(allowed)
        return entry

    async def _fields(self, group: Group, request: Request) -> dict[str, Any]:
        told = [current.assigned | current.revoking for current in group.current.values()]
        partitions = NO_PARTITIONS.union(*told, *group.target.values())
        hidden = await hidden_in_group(
            request.caller, partitions, group.subscribed, self._groups.topic_name
        )
        return {
            "group_state": state_of_consumers(group),
            "group_epoch": group.epochs.epoch,
            "assignment_epoch": group.epochs.target_epoch,
            "assignor_name": assignor_of(group.members.values()),
            "members": [
                self._member(member_id, member, group, hidden)
                for member_id, member in group.members.items()
            ],
        }

    def _member(self, member_id: str, member: Member, group: Group, hidden: Hidden) -> Any:
        kind = ConsumerGroupDescribeResponse.DescribedGroup.Member
        current = group.current.get(member_id, Current())
        told = (topic for topic in member.topics if topic not in hidden.names)
        topics = [self._parts.names.known(topic) for topic in told]
        return kind(
            member_id=member_id,
            instance_id=member.instance_id or None,
            rack_id=member.zone or None,
            member_epoch=current.epoch,
            client_id=member.client_id,
            client_host=client_host(member.address),
            subscribed_topic_names=[topic for topic in topics if topic is not None],
            subscribed_topic_regex=self._parts.names.known_pattern(member.pattern) or None,
            assignment=self._assignment(
                kind.Assignment, current.assigned | current.revoking, hidden.topic_ids
            ),
            target_assignment=self._assignment(
                kind.Assignment, group.target.get(member_id, NO_PARTITIONS), hidden.topic_ids
            ),
        )

    def _assignment(self, kind: Any, partitions: Partitions, hidden: Collection[TopicId]) -> Any:
        return kind(
            topic_partitions=[
                kind.TopicPartitions(
                    topic_id=uuid_of(topic_id),
                    topic_name=self._parts.topics.name_of(topic_id),
                    partitions=numbers,
                )
                for topic_id, numbers in self._by_topic(partitions, hidden)
            ]
        )


def _nothing_of(name: str) -> dict[str, Any]:
    """Return the fields of a group of which nothing is told."""
    return {
        "group_id": name,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
    }


def _too_much(name: str) -> Any:
    return ConsumerGroupDescribeResponse.DescribedGroup(
        **_nothing_of(name),
        error_code=Code.INVALID_REQUEST,
        error_message="the answer would be larger than the setting limits.message_bytes_max "
        "allows: ask for fewer groups at a time",
    )


def _group_of_ours(
    name: str, machine: GroupCoordinator, _: WallMs
) -> Result[CoordinatorRecord, Group | None]:
    """Return a group whose members speak Millrace's protocol; None: there is none."""
    has_others = machine.classic.members(name) > 0
    return Result([], None if has_others else machine.membership.groups.get(name))


def _owned(said: Any) -> Partitions | None:
    """Return the partitions that a member says it owns; None: it does not say."""
    if said is None:
        return None
    return frozenset(
        TopicPartition(TopicId(topic.topic_id.bytes), number)
        for topic in said
        for number in topic.partitions
    )


def _refused(request: Request, code: int, why: str) -> Any:
    message = request.message
    return ConsumerGroupHeartbeatResponse(
        version=request.version,
        error_code=code,
        error_message=why,
        member_id=message.member_id,
        member_epoch=message.member_epoch,
    )


def _new_id() -> str:
    return str(uuid.UUID(bytes=host.current.random_bytes(16), version=4))
