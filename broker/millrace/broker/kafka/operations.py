"""What a caller may do with a resource: refusals, and lists in the words of Kafka's ACLs.

Source: KIP-430.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import Request
from millrace.core.errors import MillraceError
from millrace.core.guard.access import Demand, Operation, Resource, ResourceKind


class AclOperation(IntEnum):
    """Kafka's numbers of operations."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_KAFKAS: Final[Mapping[ResourceKind, Mapping[Operation, frozenset[AclOperation]]]] = {
    ResourceKind.TOPICS: {
        Operation.CONSUME: frozenset({AclOperation.READ}),
        Operation.PRODUCE: frozenset({AclOperation.WRITE}),
        Operation.CREATE: frozenset({AclOperation.CREATE}),
        Operation.DELETE: frozenset({AclOperation.DELETE}),
        Operation.ALTER: frozenset({AclOperation.ALTER, AclOperation.ALTER_CONFIGS}),
        Operation.DESCRIBE: frozenset({AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS}),
    },
    ResourceKind.GROUPS: {
        Operation.CONSUME: frozenset({AclOperation.READ}),
        Operation.DELETE: frozenset({AclOperation.DELETE}),
        Operation.DESCRIBE: frozenset({AclOperation.DESCRIBE}),
    },
    ResourceKind.CLUSTER: {
        Operation.DESCRIBE: frozenset({AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS}),
        Operation.ADMINISTER: frozenset(
            {
                AclOperation.CREATE,
                AclOperation.ALTER,
                AclOperation.CLUSTER_ACTION,
                AclOperation.ALTER_CONFIGS,
                AclOperation.IDEMPOTENT_WRITE,
            }
        ),
    },
}
"""What each of our operations includes of Kafka's."""


async def check(
    parts: KafkaParts, request: Request, operation: Operation, resources: Iterable[Resource]
) -> None:
    """Refuse a request as a whole whose caller may not do something; that is recorded.

    Raises:
        MillraceError: the caller may not.
    """
    access = request.caller.access
    if access is None:
        return
    demands = [Demand(operation, resource) for resource in resources]
    try:
        await access.learn(demands)
        for demand in demands:
            refusal = access.refusal(demand.operation, demand.resource)
            if refusal is not None:
                raise refusal
    except MillraceError as error:
        parts.calls.refusals.on_refused(error, request.caller, _method_of(request))
        raise


def _method_of(request: Request) -> str:
    """Return the name of a request, as records of refusals have it."""
    return f"Kafka{type(request.message).__name__.removesuffix('Request')}"


async def allowed_operations(caller: GuardedCaller, resource: Resource) -> set[int]:
    """Return the numbers of Kafka's operations that a caller may do with a resource."""
    found: set[int] = set()
    for operation, meant in _KAFKAS[resource.kind].items():
        await caller.learn(operation, [resource])
        if caller.may(operation, resource):
            found |= meant
    return found


def as_bits(operations: Iterable[int]) -> int:
    """Return operations as one number with a bit for each."""
    return sum(1 << number for number in operations)
