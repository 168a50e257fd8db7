"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: members of groups of the classic protocol.

The coordinator is Millrace's own (`coordinator/classic_members.py`): what members say is opaque to
it. A request to join, or to get an assignment, waits for other members, and its connection for it,
as in Kafka: a client has a connection of its own for its coordinator. Its client pays, within its
quota of time, for what the event itself takes, and not for the wait.

Source: KIP-62, KIP-345, KIP-394, KIP-559, KIP-800, KIP-814.
"""

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

from millrace.broker.kafka.coordinators.coordination import (
    GroupNames,
    code_of_refused,
    coordinator_code,
    unless_draining,
)
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Request, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code
from millrace.broker.rpc.audit import printable
from millrace.core.coordinator.groups.classic_events import (
    Joined,
    JoinRequest,
    Leaving,
    Refusal,
    Refused,
    Synced,
    SyncRequest,
)
from millrace.core.coordinator.groups.classic_group import Protocol
from millrace.core.errors import InvalidGroupError, MillraceError
from millrace.core.guard.access import Operation
from millrace.core.metadata.broker_levels import check_kafka_groups
from millrace.runtime import host

_FIRST_WITH_ID: Final = 4
"""From here on a member joins with an id that it was given before (KIP-394)."""
_FIRST_WITHOUT_PROTOCOL: Final = 7
"""From here on an answer need not name a protocol."""
_FIRST_WITH_SKIPPING: Final = 9
_FIRST_WITH_PROTOCOLS_TO_SYNC: Final = 5
_FIRST_WITH_MANY_LEAVING: Final = 3
_TEXT_MAX: Final = 255
"""Characters of an id or a name; of a reason less is kept."""
_REASON_MAX: Final = 100
_LEAVING_MAX: Final = 1000


class GroupRequests:
    """Answers the requests of members.

    Args:
        parts: of the listener.
    """

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        self._names = GroupNames(parts)
        self._members = parts.broker.groups.classic

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.JOIN_GROUP: Served(range(10), self._join),
            ApiKey.SYNC_GROUP: Served(range(6), self._sync),
            ApiKey.HEARTBEAT: Served(range(5), self._heartbeat),
            ApiKey.LEAVE_GROUP: Served(range(6), self._leave),
        }

    async def _join(self, request: Request) -> Any:
        message = request.message
        try:
            group = await self._names.full(message.group_id, Operation.CONSUME, request)
            instance_id = _text("group instance id", message.group_instance_id)
            member_id = _text("member id", message.member_id)
            place = await self._names.place(group, request)
            self._check_level()
            session_ms, rebalance_ms = message.session_timeout_ms, message.rebalance_timeout_ms
            caller = request.caller
            reply = await unless_draining(
                request.connection,
                self._members.join(
                    place,
                    JoinRequest(
                        group=group,
                        member_id=member_id,
                        instance_id=instance_id,
                        client_id=caller.client_id,
                        address=caller.address,
                        namespace=self._parts.names.namespace,
                        reason=printable(message.reason or "")[:_REASON_MAX],
                        session_timeout_ms=session_ms,
                        rebalance_timeout_ms=rebalance_ms if rebalance_ms >= 0 else session_ms,
                        protocol_type=_text("protocol type", message.protocol_type),
                        protocols=_protocols(message.protocols),
                        new_id=_new_id(instance_id or caller.client_id),
                        needs_id=request.version >= _FIRST_WITH_ID,
                        can_skip=request.version >= _FIRST_WITH_SKIPPING,
                    ),
                    self._charged(request),
                ),
            )
        except MillraceError as error:
            return _not_joined(request, coordinator_code(error), message.member_id)
        if isinstance(reply, Joined):
            return _joined(request, reply)
        assert isinstance(reply, Refusal)
        keeps_id = reply.why is Refused.MEMBER_ID_REQUIRED
        member_id = reply.member_id if keeps_id else message.member_id
        return _not_joined(request, code_of_refused(reply.why), member_id)

    def _charged(self, request: Request) -> Callable[[int], None]:
        """Return what charges a client for time that is taken for its request by another task."""
        return partial(self._parts.calls.charge, request.caller)

    def _check_level(self) -> None:
        """Refuse a cluster in which a broker could not read what would be stored."""
        check_kafka_groups(self._parts.image.cluster)

    async def _sync(self, request: Request) -> Any:
        message = request.message
        try:
            group = await self._names.full(message.group_id, Operation.CONSUME, request)
            lacks = message.protocol_type is None or message.protocol_name is None
            if request.version >= _FIRST_WITH_PROTOCOLS_TO_SYNC and lacks:
                return _not_synced(request, Code.INCONSISTENT_GROUP_PROTOCOL)
            reply = await unless_draining(
                request.connection,
                self._members.sync(
                    self._names.known_place(group),
                    SyncRequest(
                        group=group,
                        member_id=message.member_id,
                        instance_id=message.group_instance_id or "",
                        generation=message.generation_id,
                        protocol_type=message.protocol_type,
                        protocol=message.protocol_name,
                        assignments={
                            assigned.member_id: bytes(assigned.assignment or b"")
                            for assigned in message.assignments
                        },
                    ),
                    self._charged(request),
                ),
            )
        except MillraceError as error:
            return _not_synced(request, coordinator_code(error))
        if isinstance(reply, Refusal):
            return _not_synced(request, code_of_refused(reply.why))
        assert isinstance(reply, Synced)
        return SyncGroupResponse(
            version=request.version,
            error_code=NO_ERROR,
            protocol_type=reply.protocol_type,
            protocol_name=reply.protocol,
            assignment=reply.assignment,
        )

    async def _heartbeat(self, request: Request) -> Any:
        message = request.message
        try:
            group = await self._names.full(message.group_id, Operation.CONSUME, request)
            refused = await self._members.heartbeat(
                self._names.known_place(group),
                group,
                message.member_id,
                message.group_instance_id or "",
                message.generation_id,
            )
            code = code_of_refused(refused)
        except MillraceError as error:
            code = coordinator_code(error)
        return HeartbeatResponse(version=request.version, error_code=code)

    async def _leave(self, request: Request) -> Any:
        message, version = request.message, request.version
        if version < _FIRST_WITH_MANY_LEAVING:
            leaving = [Leaving(message.member_id)]
        else:
            leaving = [
                Leaving(member.member_id or "", member.group_instance_id or "")
                for member in message.members
            ]
        try:
            group = await self._names.full(message.group_id, Operation.CONSUME, request)
            if len(leaving) > _LEAVING_MAX:
                raise InvalidGroupError(f"at most {_LEAVING_MAX} members leave in one request")
            place = self._names.known_place(group)
            told = await self._members.leave(place, group, leaving, self._charged(request))
        except MillraceError as error:
            code = coordinator_code(error)
            return LeaveGroupResponse(version=version, error_code=code, members=[])
        codes = [code_of_refused(refused) for refused in told]
        if version < _FIRST_WITH_MANY_LEAVING:
            return LeaveGroupResponse(version=version, error_code=codes[0])
        return LeaveGroupResponse(
            version=version,
            error_code=NO_ERROR,
            members=[
                LeaveGroupResponse.MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id or None,
                    error_code=code,
                )
                for member, code in zip(leaving, codes, strict=True)
            ],
        )


def _joined(request: Request, joined: Joined) -> Any:
    return JoinGroupResponse(
        version=request.version,
        error_code=NO_ERROR,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id or None,
                metadata=member.metadata,
            )
            for member in joined.members
        ],
    )


def _not_joined(request: Request, code: int, member_id: str) -> Any:
    has_none = request.version >= _FIRST_WITHOUT_PROTOCOL
    return JoinGroupResponse(
        version=request.version,
        error_code=code,
        generation_id=-1,
        protocol_name=None if has_none else "",
        leader="",
        member_id=member_id,
        members=[],
    )


def _not_synced(request: Request, code: int) -> Any:
    return SyncGroupResponse(version=request.version, error_code=code, assignment=b"")


def _protocols(said: Any) -> tuple[Protocol, ...]:
    """Return the protocols that a member knows, each once."""
    protocols = {
        _text("protocol", protocol.name): bytes(protocol.metadata or b"") for protocol in said
    }
    return tuple(Protocol(name, metadata) for name, metadata in protocols.items())


def _text(what: str, text: str | None) -> str:
    """Return a text of a member, which is kept.

    Raises:
        InvalidGroupError: it is too long, or cannot be printed.
    """
    text = text or ""
    if len(text) > _TEXT_MAX or (text and not text.isprintable()):
        raise InvalidGroupError(
            f"the {what} {text[:_TEXT_MAX]!r}: at most {_TEXT_MAX} printable characters"
        )
    return text


def _new_id(begin: str) -> str:
    """Return a member id that nobody has: what Kafka's tools show begins with a name."""
    random = uuid.UUID(bytes=host.current.random_bytes(16), version=4)
    return f"{begin[: _TEXT_MAX - 37]}-{random}"
