"""How a running cluster goes from plain text to TLS, and to access control, and back (G4).

    tls     Disabled   Optional   Required
    access  Disabled   Logged     Enforced

Brokers of neighbouring steps can talk, and clients of each step can talk to brokers of the next.
So all brokers go one step at a time, by a rolling restart: while any of them is two steps away from
what is wanted, the others wait at the step between. The pods themselves say where they are, and a
killed operator goes on at any point.

No broker of a release that knows neither takes the place of one with TLS: it would let everybody
in.

A new Cluster that says nothing has both from the start. One that is in plain text stays so: an
operator that is upgraded cuts nobody off. Once it has left plain text it goes to the last step.

Tokens go over TLS alone, so access never is ahead of TLS. While brokers cannot ask the API server
about callers, a new Cluster that says nothing has no access control, and no running one takes a
step nearer to it: nobody would be allowed anything.

Sources: the modes of MongoDB (`allowTLS`, `preferTLS`, `requireTLS`) and of Istio (`PERMISSIVE`);
Kafka's change of a listener takes three restarts, as its brokers cannot find out how others talk.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import msgspec

from millrace.core.errors import InvalidConfigError
from millrace.operator.model.cluster import Cluster, ClusterSpec
from millrace.operator.model.images import version_of
from millrace.operator.model.objects import Document, broker_container
from millrace.operator.model.pod_tls import security_of
from millrace.operator.model.security import Access, AccessMode, Security, Tls, TlsMode

WITHOUT_TLS: Final = ("0.1.0", "0.2.0")
"""Releases of brokers that know neither."""

_ModeT = TypeVar("_ModeT", TlsMode, AccessMode)

_TLS: Final = list(TlsMode)
_ACCESS: Final = list(AccessMode)


@dataclass(frozen=True, slots=True)
class Secured:
    """Where a cluster is on its way.

    Attributes:
        present: what its brokers do; none: there are none yet.
        wanted: what they are to do in the end.
        next: what they are to do now.
    """

    present: Sequence[Security]
    wanted: Security
    next: Security

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        present: Sequence[Security],
        *,
        is_known: bool = True,
        can_ask: bool = True,
    ) -> Self:
        """Return it for a Cluster as it was written.

        Args:
            can_ask: whether brokers can ask the API server about callers.
            present, is_known: as of `wanted_security`.
        """
        wanted = wanted_security(cluster.spec, present, is_known=is_known and can_ask)
        then = next_security(present, wanted)
        if present and not can_ask:
            reached = slowest_security(present, wanted).access
            then = then._replace(access=min(then.access, reached, key=_ACCESS.index))
        return cls(present, wanted, then)

    @property
    def slowest(self) -> Security:
        """How far all brokers have got."""
        return slowest_security(self.present, self.wanted)

    @property
    def is_done(self) -> bool:
        """Whether all brokers do what is wanted."""
        return self.slowest == self.wanted

    @property
    def has_tls(self) -> bool:
        """Whether every broker has TLS, also those that are restarted next."""
        return all(each.tls is not TlsMode.DISABLED for each in (*self.present, self.next))

    @property
    def has_both(self) -> bool:
        """Whether a broker has TLS beside plain text."""
        return any(each.tls is TlsMode.OPTIONAL for each in (*self.present, self.next))


def present_security(
    pods: Iterable[Document], stateful_sets: Iterable[Document], status: dict[str, Any]
) -> list[Security]:
    """Return what the brokers do that there are; none: the cluster is new.

    Args:
        pods: of brokers.
        stateful_sets: they say it while there are no pods.
        status: of the Cluster: it says it while there is nothing else.
    """
    found = {security_of(broker_container(pod)) for pod in pods}
    if not found:
        templates = [stateful_set["spec"]["template"] for stateful_set in stateful_sets]
        found = {security_of(broker_container(template)) for template in templates}
    said = status.get("security")
    if not found and said:
        found = {Security(TlsMode(said["tls"]), AccessMode(said["access"]))}
    return sorted(found, key=lambda each: (_TLS.index(each.tls), _ACCESS.index(each.access)))


def wanted_security(
    spec: ClusterSpec, present: Sequence[Security], *, is_known: bool = True
) -> Security:
    """Return where a cluster is to get in the end.

    Args:
        spec: of the Cluster.
        present: what its brokers do; none: it is new.
        is_known: whether the operator has an account that brokers can ask about: else it can call
            no broker that asks for one, and asks for access control only if the Cluster does.
    """
    is_plain = any(each.tls is TlsMode.DISABLED for each in present)
    # Brokers that have TLS do not lose it by another version: see `check_release`.
    cannot = not present and _release(spec) in WITHOUT_TLS
    tls = TlsMode.DISABLED if is_plain or cannot else TlsMode.REQUIRED
    if spec.tls is not None:
        tls = spec.tls.mode
    most = _ACCESS[_TLS.index(tls)]
    is_open = any(each.access is AccessMode.DISABLED for each in present)
    access = AccessMode.DISABLED if is_open or not (present or is_known) else most
    if spec.access is not None:
        access = min(spec.access.mode, most, key=_ACCESS.index)
    return Security(tls, access)


def check_release(spec: ClusterSpec, present: Sequence[Security]) -> None:
    """Refuse a release without TLS while brokers have it: `tls.mode` leaves it, and nothing else.

    Raises:
        InvalidConfigError: says what to do first.
    """
    release = _release(spec)
    if release in WITHOUT_TLS and any(each.tls is not TlsMode.DISABLED for each in present):
        raise InvalidConfigError(
            f"spec.{'version' if spec.version else 'image'}: brokers have TLS, which {release} "
            "does not know: name a later release; to leave TLS, set tls.mode to Disabled under "
            "that one first"
        )


def next_security(present: Sequence[Security], wanted: Security) -> Security:
    """Return what all brokers are to do now, on the way to what is wanted."""
    return Security(
        _next([each.tls for each in present], wanted.tls, _TLS),
        _next([each.access for each in present], wanted.access, _ACCESS),
    )


def slowest_security(present: Sequence[Security], wanted: Security) -> Security:
    """Return how far all brokers have got."""
    return Security(
        _farthest([each.tls for each in present], wanted.tls, _TLS),
        _farthest([each.access for each in present], wanted.access, _ACCESS),
    )


def with_security(cluster: Cluster, security: Security) -> Cluster:
    """Return a Cluster whose brokers do this; a part that is disabled is not there."""
    tls, access = cluster.spec.tls or Tls(), cluster.spec.access or Access()
    spec = msgspec.structs.replace(
        cluster.spec,
        tls=None
        if security.tls is TlsMode.DISABLED
        else msgspec.structs.replace(tls, mode=security.tls),
        access=None
        if security.access is AccessMode.DISABLED
        else msgspec.structs.replace(access, mode=security.access),
    )
    return msgspec.structs.replace(cluster, spec=spec)


def _release(spec: ClusterSpec) -> str:
    """Return the release that a Cluster names; empty: none."""
    return spec.version or (version_of(spec.image) if spec.image else "")


def _farthest(present: Sequence[_ModeT], wanted: _ModeT, order: Sequence[_ModeT]) -> _ModeT:
    goal = order.index(wanted)
    return max(present, key=lambda mode: abs(order.index(mode) - goal), default=wanted)


def _next(present: Sequence[_ModeT], wanted: _ModeT, order: Sequence[_ModeT]) -> _ModeT:
    at, goal = order.index(_farthest(present, wanted, order)), order.index(wanted)
    return order[at + (goal > at) - (goal < at)]
