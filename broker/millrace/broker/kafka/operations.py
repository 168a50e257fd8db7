"""What a caller may do with a resource, in the words of Kafka's ACLs.

Source: KIP-430.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from millrace.broker.guard.callers import GuardedCaller
from millrace.core.guard.access import Operation, Resource, ResourceKind

_NUMBERS: Final[Mapping[ResourceKind, Mapping[Operation, frozenset[int]]]] = {
    ResourceKind.TOPICS: {
        Operation.CONSUME: frozenset({3}),
        Operation.PRODUCE: frozenset({4}),
        Operation.CREATE: frozenset({5}),
        Operation.DELETE: frozenset({6}),
        Operation.ALTER: frozenset({7, 11}),
        Operation.DESCRIBE: frozenset({8, 10}),
    },
    ResourceKind.GROUPS: {
        Operation.CONSUME: frozenset({3}),
        Operation.DELETE: frozenset({6}),
        Operation.DESCRIBE: frozenset({8}),
    },
    ResourceKind.CLUSTER: {
        Operation.DESCRIBE: frozenset({8, 10}),
        Operation.ADMINISTER: frozenset({5, 7, 9, 11, 12}),
    },
}
"""The numbers of Kafka's AclOperations that each of ours includes: 10 and 11 are those on settings.
"""


async def allowed_operations(caller: GuardedCaller, resource: Resource) -> set[int]:
    """Return the numbers of Kafka's operations that a caller may do with a resource."""
    found: set[int] = set()
    for operation, meant in _NUMBERS[resource.kind].items():
        await caller.learn(operation, [resource])
        if caller.may(operation, resource):
            found |= meant
    return found


def as_bits(operations: Iterable[int]) -> int:
    """Return operations as one number with a bit for each."""
    return sum(1 << number for number in operations)
