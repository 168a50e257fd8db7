"""What requests to a group's coordinator share: the partition of a name, words, and errors.

Groups lie in the listener's namespace, as topics do (K7).
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from millrace.broker.kafka.operations import check
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import KafkaConnectionState, Request
from millrace.broker.kafka.wire.errors import NO_ERROR, Code, code_of
from millrace.broker.rpc.name_partitions import NamePartitions
from millrace.core.coordinator.groups.classic_events import Refused
from millrace.core.coordinator.groups.group import Group
from millrace.core.coordinator.groups.member_checks import check_group_name
from millrace.core.errors import BrokerShuttingDownError, MillraceError, NotLeaderError
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.ids import TopicPartition

_T = TypeVar("_T")

_REFUSED: Final = {
    Refused.UNKNOWN_MEMBER: Code.UNKNOWN_MEMBER_ID,
    Refused.FENCED_INSTANCE: Code.FENCED_INSTANCE_ID,
    Refused.ILLEGAL_GENERATION: Code.ILLEGAL_GENERATION,
    Refused.REBALANCING: Code.REBALANCE_IN_PROGRESS,
    Refused.INCONSISTENT_PROTOCOL: Code.INCONSISTENT_GROUP_PROTOCOL,
    Refused.MEMBER_ID_REQUIRED: Code.MEMBER_ID_REQUIRED,
    Refused.FULL: Code.GROUP_MAX_SIZE_REACHED,
    Refused.SESSION_TIMEOUT: Code.INVALID_SESSION_TIMEOUT,
    Refused.NOT_STORED: Code.COORDINATOR_NOT_AVAILABLE,
    Refused.NOT_COORDINATOR: Code.NOT_COORDINATOR,
}
_AT_COORDINATORS: Final = {
    Code.NOT_LEADER_OR_FOLLOWER: Code.NOT_COORDINATOR,
    Code.KAFKA_STORAGE_ERROR: Code.NOT_COORDINATOR,
    Code.UNKNOWN_TOPIC_OR_PARTITION: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Code.COORDINATOR_NOT_AVAILABLE,
    Code.REQUEST_TIMED_OUT: Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_CONTROLLER: Code.COORDINATOR_NOT_AVAILABLE,
}
"""What an error about the coordinators' topic means to a client of a group."""


def code_of_refused(refused: Refused | None) -> int:
    """Return Kafka's number of a refusal; 0: there is none."""
    return NO_ERROR if refused is None else _REFUSED[refused]


def coordinator_code(error: MillraceError) -> int:
    """Return Kafka's number of an error of a coordinator.

    Clients look for another coordinator, or try again, only at its own numbers.
    """
    code = Code(code_of(error))
    return _AT_COORDINATORS.get(code, code)


class GroupNames:
    """Finds the partition of a group, for callers that may do something with it.

    Args:
        parts: of the listener.
    """

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        broker = parts.broker
        self.partitions = NamePartitions(broker.partitions, broker.channel, parts.calls.listener)

    async def full(self, name: str | None, operation: Operation, request: Request) -> str:
        """Return the full name of a group.

        Raises:
            MillraceError: that is no name, or the caller may not do this with the group.
        """
        full = self._parts.names.full(name or "")
        check_group_name(full if name else "")
        await check(self._parts, request, operation, [named(ResourceKind.GROUPS, full)])
        return full

    async def place(self, full: str, request: Request) -> TopicPartition:
        """Return the partition of a group; the topic is made for the first one.

        Raises:
            MillraceError: it cannot be made.
        """
        return await self.partitions.find_or_make(full, request.caller)

    def known_place(self, full: str) -> TopicPartition:
        """Return the partition of a group that somebody has joined.

        Raises:
            NotLeaderError: there is none yet, so this broker does not coordinate it.
        """
        place = self.partitions.find(full)
        if place is None:
            raise NotLeaderError("nothing was ever kept: no broker coordinates the group yet")
        return place


async def unless_draining(connection: KafkaConnectionState, answer: Awaitable[_T]) -> _T:
    """Return an answer that may take minutes, unless the connection is to end before.

    Raises:
        BrokerShuttingDownError: it is.
    """
    waited = asyncio.ensure_future(answer)
    draining = asyncio.ensure_future(connection.draining.wait())
    try:
        await asyncio.wait((waited, draining), return_when=asyncio.FIRST_COMPLETED)
        if waited.done():
            return waited.result()
        raise BrokerShuttingDownError("this broker stops: find the next coordinator")
    finally:
        waited.cancel()
        draining.cancel()


def state_of_consumers(group: Group) -> str:
    """Return the state of a group whose members speak Millrace's protocol, in KIP-848's words."""
    if group.is_empty:
        return "Empty"
    if group.epochs.target_epoch != group.epochs.epoch:
        return "Assigning"
    return "Stable" if group.has_its_target else "Reconciling"


def client_host(address: str) -> str:
    """Return the host of a member's address, as Kafka's tools show it."""
    return f"/{address.rpartition(':')[0] or address}"
