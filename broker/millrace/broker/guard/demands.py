"""What each method demands of its callers: data beside its service, with words for people.

A demand that a request names is checked before the handler runs, and refuses the whole request. One
that is checked entry by entry is the handler's work: the declaration says that it is.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from millrace.core.guard.access import CLUSTER, Demand, Operation, Resource, ResourceKind


class ById(NamedTuple):
    """A resource of which a request has only the id: its caller may not know the name."""

    resource: Resource


class Demanded(NamedTuple):
    """One of the things that a request demands as a whole.

    Attributes:
        demand: what.
        is_named: whether the request has the name of the resource, so that an error may repeat it.
    """

    demand: Demand
    is_named: bool


_Found = Callable[[Any], Iterable[Resource | ById | None]]
"""Returns the resources of a request; None for one that is not there, which the handler answers."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One of the things that a method demands.

    Attributes:
        operation: that the caller must be allowed.
        kind: of the resources.
        resources: of a request; None: the handler asks for each entry.
        condition: when it is demanded, in words; empty: always.
    """

    operation: Operation
    kind: ResourceKind
    resources: _Found | None
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Demands:
    """All that a method demands.

    Attributes:
        clauses: each has to be met.
        is_for_known: whether callers must be known; else the method is for brokers.
    """

    clauses: tuple[Clause, ...] = ()
    is_for_known: bool = True

    def __and__(self, other: "Demands") -> "Demands":
        return Demands((*self.clauses, *other.clauses), self.is_for_known)

    def of(self, request: Any) -> Iterator[Demanded]:
        """Yield what a request demands as a whole."""
        for clause in self.clauses:
            if clause.resources is None:
                continue
            for found in clause.resources(request):
                if isinstance(found, ById):
                    yield Demanded(Demand(clause.operation, found.resource), is_named=False)
                elif found is not None:
                    yield Demanded(Demand(clause.operation, found), is_named=True)


KNOWN: Final = Demands()
"""It is for everybody who is known."""
OF_BROKERS: Final = Demands(is_for_known=False)
"""It is served to other brokers, on the replica listener."""


def whole(
    operation: Operation, kind: ResourceKind, resources: _Found, condition: str = ""
) -> Demands:
    """Demand an operation on all resources of a request."""
    return Demands((Clause(operation, kind, resources, condition),))


def each(operation: Operation, kind: ResourceKind, condition: str = "") -> Demands:
    """Demand an operation on a resource for each entry: the others are answered."""
    return Demands((Clause(operation, kind, None, condition),))


def cluster(
    operation: Operation,
    condition: str = "",
    demanded: Callable[[Any], bool] = lambda _: True,
) -> Demands:
    """Demand an operation on the cluster.

    Args:
        operation: that is demanded.
        condition: in words; empty: always.
        demanded: by which requests.
    """

    def resources(request: Any) -> Iterable[Resource]:
        return (CLUSTER,) if demanded(request) else ()

    return Demands((Clause(operation, ResourceKind.CLUSTER, resources, condition),))
