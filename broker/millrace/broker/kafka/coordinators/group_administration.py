"""FindCoordinator, ListGroups, DescribeGroups and DeleteGroups.

All groups are told: those of Kafka's classic protocol, those whose members speak Millrace's own,
and readers that only commit positions, which Kafka calls simple ones.

Source: KIP-518, KIP-699, KIP-848, KIP-1043.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from kafka.protocol.admin import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse

from millrace.broker.kafka.coordinators.coordination import (
    GroupNames,
    client_host,
    coordinator_code,
    state_of_consumers,
)
from millrace.broker.kafka.operations import allowed_operations, check
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Request, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code
from millrace.broker.rpc.hidden_topics import Hidden, hidden_in_group, hidden_names
from millrace.broker.rpc.name_partitions import TRANSACTIONS, NamePartitions
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.classic_group import ClassicGroup, State
from millrace.core.coordinator.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    assigned_partitions,
    assignment_of,
    subscribed_topics,
    subscription_of,
)
from millrace.core.coordinator.groups.coordinator import CoordinatorRecord, GroupCoordinator
from millrace.core.coordinator.groups.group import NO_PARTITIONS, Current, Group
from millrace.core.coordinator.groups.membership import assignor_of
from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.errors import CoordinatorLoadInProgressError, MillraceError
from millrace.core.guard.access import Operation, Resource, ResourceKind, named
from millrace.core.ids import BrokerId, WallMs
from millrace.core.topics import TopicName
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import positions_pb2

_GROUP, _TRANSACTION = 0, 1
"""Types of what is coordinated."""
_FIRST_WITH_KEYS: Final = 4
_FIRST_WITH_NOT_FOUND: Final = 6
"""From here on a group that is not there is an error, and no dead group."""
_DEAD: Final = "Dead"


class _Listed(NamedTuple):
    """A group in a list."""

    name: str
    protocol_type: str
    state: str
    type: str


class _Found(NamedTuple):
    """What there is under a name."""

    ours: Group | None
    classic: ClassicGroup | None
    is_there: bool


class GroupAdministrationRequests:
    """Answers the requests of tools about groups, and where their coordinators are.

    Args:
        parts: of the listener.
    """

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        self._names = GroupNames(parts)
        broker = parts.broker
        self._groups = broker.groups
        self._ids = NamePartitions(
            broker.partitions, broker.channel, parts.calls.listener, TRANSACTIONS
        )

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.FIND_COORDINATOR: Served(range(7), self._find),
            ApiKey.LIST_GROUPS: Served(range(6), self._list),
            ApiKey.DESCRIBE_GROUPS: Served(range(7), self._describe),
            ApiKey.DELETE_GROUPS: Served(range(3), self._delete),
        }

    # --- Coordinators ----------------------------------------------------------------------------

    async def _find(self, request: Request) -> Any:
        message, version = request.message, request.version
        if version < _FIRST_WITH_KEYS:
            code, why, node, (host, port) = await self._coordinator(
                message.key, message.key_type, request
            )
            return FindCoordinatorResponse(
                version=version,
                error_code=code,
                error_message=why,
                node_id=node,
                host=host,
                port=port,
            )
        found = []
        work = self._parts.broker.turns.work()
        for key in message.coordinator_keys:
            await work.give_way()
            code, why, node, (host, port) = await self._coordinator(key, message.key_type, request)
            found.append(
                FindCoordinatorResponse.Coordinator(
                    key=key,
                    node_id=node,
                    host=host,
                    port=port,
                    error_code=code,
                    error_message=why,
                )
            )
        return FindCoordinatorResponse(version=version, coordinators=found)

    async def _coordinator(
        self, key: str, kind: int, request: Request
    ) -> tuple[int, str | None, int, tuple[str, int]]:
        """Return the error and why, or the coordinator's id and address."""
        nowhere = -1, ("", -1)
        try:
            if kind == _GROUP:
                group = await self._names.full(key, Operation.DESCRIBE, request)
                place = await self._names.place(group, request)
            elif kind == _TRANSACTION:
                name = full_id(self._parts.names.full(key))
                resource = named(ResourceKind.TRANSACTIONS, name)
                await check(self._parts, request, Operation.DESCRIBE, [resource])
                place = await self._ids.find_or_make(name, request.caller)
            else:
                return Code.INVALID_REQUEST, f"nothing has type {kind}", *nowhere
        except MillraceError as error:
            return coordinator_code(error), error.message, *nowhere
        state = self._parts.image.partition(place)
        address = None if state is None else self._parts.addresses.of(BrokerId(state.leader))
        if state is None or address is None:
            return Code.COORDINATOR_NOT_AVAILABLE, "its partition has no leader now", *nowhere
        return NO_ERROR, None, state.leader, address

    # --- Lists -----------------------------------------------------------------------------------

    async def _list(self, request: Request) -> Any:
        message, version = request.message, request.version
        states = {state.lower() for state in message.states_filter or ()}
        types = {kind.lower() for kind in message.types_filter or ()}
        found: list[_Listed] = []
        try:
            if self._groups.runtime.unready():
                raise CoordinatorLoadInProgressError("groups are loaded here: try again shortly")
            for place, _ in list(self._groups.runtime.machines()):
                listed: list[_Listed] = await self._groups.runtime.ask(place, _listed)
                found += listed
        except MillraceError as error:
            return ListGroupsResponse(
                version=version, error_code=coordinator_code(error), groups=[]
            )
        seen = await request.caller.seen(Operation.DESCRIBE, found, _resource)
        told = []
        for group in seen:
            known = self._parts.names.known_group(group.name)
            if known is None or (states and group.state.lower() not in states):
                continue
            if types and group.type.lower() not in types:
                continue
            told.append(
                ListGroupsResponse.ListedGroup(
                    group_id=known,
                    protocol_type=group.protocol_type,
                    group_state=group.state,
                    group_type=group.type,
                )
            )
        return ListGroupsResponse(version=version, error_code=NO_ERROR, groups=told)

    # --- One group -------------------------------------------------------------------------------

    async def _describe(self, request: Request) -> Any:
        described: list[Any] = []
        room = self._parts.broker.config.limits.message_bytes_max
        work = self._parts.broker.turns.work()
        # Each once, however often it is named: an answer is a thousand times as long as a name.
        for name in dict.fromkeys(request.message.groups):
            await work.give_way()
            if room < 0:
                described.append(_too_much(name))
                continue
            group = await self._described(name, request)
            room -= sum(
                len(member.member_metadata) + len(member.member_assignment)
                for member in group.members
            )
            described.append(group)
        return DescribeGroupsResponse(version=request.version, groups=described)

    async def _described(self, name: str, request: Request) -> Any:
        kind = DescribeGroupsResponse.DescribedGroup
        empty: dict[str, Any] = {
            "group_id": name,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
        }
        try:
            group = await self._names.full(name, Operation.DESCRIBE, request)
            place = self._names.partitions.find(group)
            fields = None
            if place is not None:
                found = await self._groups.runtime.ask(place, partial(_found, group))
                fields = await self._fields(found, request)
        except MillraceError as error:
            return kind(**empty, error_code=coordinator_code(error), error_message=error.message)
        if fields is None:
            is_error = request.version >= _FIRST_WITH_NOT_FOUND
            code = Code.GROUP_ID_NOT_FOUND if is_error else NO_ERROR
            why = f"there is no group {name!r}" if is_error else None
            return kind(**(empty | {"group_state": _DEAD}), error_code=code, error_message=why)
        entry = kind(**(empty | fields), error_code=NO_ERROR)
        if request.message.include_authorized_operations:
            entry.authorized_operations = await allowed_operations(
                request.caller, named(ResourceKind.GROUPS, group)
            )
        return entry

    async def _fields(self, found: "_Found", request: Request) -> dict[str, Any] | None:
        """Return what is told of a group; None: there is none."""
        ours, classic = found.ours, found.classic
        if ours is not None and not ours.is_empty:
            owned = NO_PARTITIONS.union(*(current.assigned for current in ours.current.values()))
            hidden = await hidden_in_group(
                request.caller, owned, ours.subscribed, self._groups.topic_name
            )
            return self._fields_of_ours(ours, hidden)
        if classic is not None:
            is_told = classic.state is State.STABLE
            if is_told and request.caller.access is not None:
                topics = _topics_of(classic)
                is_told = topics is not None and not await hidden_names(request.caller, topics)
            return _fields_of(classic, is_told=is_told)
        if not found.is_there:
            return None
        kept = PROTOCOL_TYPE if ours is not None else ""
        return {"group_state": State.EMPTY.value, "protocol_type": kept}

    def _fields_of_ours(self, group: Group, hidden: Hidden) -> dict[str, Any]:
        """Return a group of Millrace's own protocol as if it were one of consumers of Kafka."""
        kind = DescribeGroupsResponse.DescribedGroup.DescribedGroupMember
        names = self._parts.names
        members = []
        for member_id, member in group.members.items():
            current = group.current.get(member_id, Current())
            assigned = [
                (known, where.partition)
                for where in sorted(current.assigned)
                if where.topic_id not in hidden.topic_ids
                and (known := self._parts.topics.name_of(where.topic_id)) is not None
            ]
            topics = [
                known
                for topic in member.topics
                if topic not in hidden.names and (known := names.known(topic)) is not None
            ]
            members.append(
                kind(
                    member_id=member_id,
                    group_instance_id=member.instance_id or None,
                    client_id=member.client_id,
                    client_host=client_host(member.address),
                    member_metadata=subscription_of(topics),
                    member_assignment=assignment_of(assigned),
                )
            )
        return {
            "group_state": (State.STABLE if group.has_its_target else State.PREPARING).value,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_data": assignor_of(group.members.values()),
            "members": members,
        }

    # --- Deletion --------------------------------------------------------------------------------

    async def _delete(self, request: Request) -> Any:
        results = []
        work = self._parts.broker.turns.work()
        for name in request.message.groups_names:
            await work.give_way()
            results.append(
                DeleteGroupsResponse.DeletableGroupResult(
                    group_id=name, error_code=await self._deleted(name, request)
                )
            )
        return DeleteGroupsResponse(version=request.version, results=results)

    async def _deleted(self, name: str, request: Request) -> int:
        try:
            group = await self._names.full(name, Operation.DELETE, request)
            place = self._names.partitions.find(group)
            if place is None:
                return Code.GROUP_ID_NOT_FOUND
            is_there = await self._groups.runtime.ask(
                place, lambda machine, _: Result([], machine.has(group))
            )
            if not is_there:
                return Code.GROUP_ID_NOT_FOUND
            asked = positions_pb2.DeletePositionsRequest(name=group)
            answer = await self._parts.local.call("DeletePositions", asked, request.caller)
            if answer.error.code:
                raise error_from_wire(answer.error)
        except MillraceError as error:
            return coordinator_code(error)
        return NO_ERROR


def _listed(machine: GroupCoordinator, _: WallMs) -> Result[CoordinatorRecord, list[_Listed]]:
    found = []
    for name in machine.names():
        ours, classic = machine.membership.groups.get(name), machine.classic.group(name)
        if ours is not None and not ours.is_empty:
            found.append(_Listed(name, PROTOCOL_TYPE, state_of_consumers(ours), "consumer"))
        elif classic is not None:
            state = classic.state.value
            found.append(_Listed(name, classic.protocol_type, state, "classic"))
        elif ours is not None:
            found.append(_Listed(name, PROTOCOL_TYPE, state_of_consumers(ours), "consumer"))
        else:
            found.append(_Listed(name, "", State.EMPTY.value, "classic"))
    return Result([], found)


def _resource(group: _Listed) -> Resource:
    return named(ResourceKind.GROUPS, group.name)


def _found(name: str, machine: GroupCoordinator, _: WallMs) -> Result[CoordinatorRecord, _Found]:
    return Result(
        [],
        _Found(machine.membership.groups.get(name), machine.classic.group(name), machine.has(name)),
    )


def _topics_of(group: ClassicGroup) -> set[str] | None:
    """Return the topics that members of a classic group name; None: they cannot be read."""
    found: set[str] = set()
    if group.protocol_type != PROTOCOL_TYPE:
        return found
    for member in group.members.values():
        topics = subscribed_topics(member.metadata(group.protocol))
        partitions = assigned_partitions(member.assignment)
        if topics is None or partitions is None:
            return None
        named_topics = {*topics, *(topic for topic, _ in partitions)}
        found.update(str(TopicName(member.namespace, topic)) for topic in named_topics)
    return found


def _fields_of(group: ClassicGroup, *, is_told: bool) -> dict[str, Any]:
    """Return what is told of a classic group.

    Args:
        group: it.
        is_told: whether what members say and are assigned is told: not between two generations, nor
            to callers that may not see all of the topics in it.
    """
    kind = DescribeGroupsResponse.DescribedGroup.DescribedGroupMember
    return {
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol if group.state is State.STABLE else "",
        "members": [
            kind(
                member_id=member.member_id,
                group_instance_id=member.instance_id or None,
                client_id=member.client_id,
                client_host=client_host(member.address),
                member_metadata=member.metadata(group.protocol) if is_told else b"",
                member_assignment=member.assignment if is_told else b"",
            )
            for member in group.members.values()
        ],
    }


def _too_much(name: str) -> Any:
    return DescribeGroupsResponse.DescribedGroup(
        group_id=name,
        error_code=Code.INVALID_REQUEST,
        error_message="the answer would be larger than the setting limits.message_bytes_max "
        "allows: ask for fewer groups at a time",
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
    )
