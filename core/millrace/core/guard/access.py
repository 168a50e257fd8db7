"""What is asked of an authority: may somebody do an operation on a resource.

A call demands operations on resources, whatever protocol it came by: another protocol with other
calls has the same demands. No operation includes another one: a role lists all that it has.

Resources lie in namespaces, as topics do (G3). A group, a transactional id or an application id is
`namespace/name`, too; without a namespace it is in `default`. The cluster is one resource.

Sources: Kafka's AclOperation and ResourceType; verbs of Kubernetes' RBAC.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from millrace.core.errors import (
    AccessDeniedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from millrace.core.topics import DEFAULT_NAMESPACE

_NAME_TOLD_MAX: Final = 120
"""Characters of a name that an error repeats."""


class Operation(StrEnum):
    """What somebody wants to do."""

    PRODUCE = "produce"
    CONSUME = "consume"
    DESCRIBE = "describe"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    TRANSACT = "transact"
    ADMINISTER = "administer"


class ResourceKind(StrEnum):
    """On what it is done."""

    TOPICS = "topics"
    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    CLUSTER = "cluster"


OPERATIONS: Final = {
    ResourceKind.TOPICS: (
        Operation.PRODUCE,
        Operation.CONSUME,
        Operation.DESCRIBE,
        Operation.CREATE,
        Operation.ALTER,
        Operation.DELETE,
    ),
    ResourceKind.GROUPS: (Operation.CONSUME, Operation.DESCRIBE, Operation.DELETE),
    ResourceKind.TRANSACTIONS: (Operation.TRANSACT, Operation.DESCRIBE, Operation.ALTER),
    ResourceKind.CLUSTER: (Operation.DESCRIBE, Operation.ADMINISTER),
}
"""Which operations there are on each kind."""


class Resource(NamedTuple):
    """A thing that something is done with.

    Attributes:
        kind: of the resource.
        namespace: that it lies in; of the cluster, empty.
        name: in the namespace; of the cluster, empty.
    """

    kind: ResourceKind
    namespace: str
    name: str

    def __str__(self) -> str:
        return self.name if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{self.name}"


CLUSTER: Final = Resource(ResourceKind.CLUSTER, "", "")


class Demand(NamedTuple):
    """An operation on a resource."""

    operation: Operation
    resource: Resource


_ERRORS: Final[dict[ResourceKind, tuple[str, type[AccessDeniedError]]]] = {
    ResourceKind.TOPICS: ("topic", TopicAuthorizationFailedError),
    ResourceKind.GROUPS: ("group", GroupAuthorizationFailedError),
    ResourceKind.TRANSACTIONS: ("transactional id", TransactionalIdAuthorizationFailedError),
    ResourceKind.CLUSTER: ("", ClusterAuthorizationFailedError),
}


def named(kind: ResourceKind, text: str) -> Resource:
    """Return the resource of a name as clients write it, valid or not."""
    namespace, slash, name = text.partition("/")
    return Resource(kind, namespace, name) if slash else Resource(kind, DEFAULT_NAMESPACE, text)


def refusal(principal: str, demand: Demand, *, is_named: bool = True) -> AccessDeniedError:
    """Return the error for somebody who may not do something.

    It is the same for a resource that is there and for one that is not.

    Args:
        principal: who may not.
        demand: what.
        is_named: whether the name of the resource may be told: the caller knows it.
    """
    operation, resource = demand
    what, error = _ERRORS[resource.kind]
    on = f"the {what or resource.kind}"
    if is_named and what:
        on = f"{what} {_told(resource)}"
    return error(
        f"{principal!r} may not {operation} {on}: ask who runs the cluster for a rule that allows "
        f"`{operation}` on {resource.kind}"
    )


def refusal_of_all(principal: str, operation: Operation, kind: ResourceKind) -> AccessDeniedError:
    """Return the error for a question about all that there is, of somebody who may not see all."""
    what, error = _ERRORS[kind]
    return error(
        f"{principal!r} may not {operation} all {what}s, and the question is about all: ask who "
        f"runs the cluster for a rule that allows `{operation}` on all {kind}"
    )


def _told(resource: Resource) -> str:
    text = str(resource)
    return repr(text if len(text) <= _NAME_TOLD_MAX else f"{text[:_NAME_TOLD_MAX]}...")
