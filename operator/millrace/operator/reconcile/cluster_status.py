"""The status of a Cluster, from the state of the cluster. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from millrace.core.words import count, some
from millrace.operator.model.bootstrap import (
    bootstrap_address,
    kafka_bootstrap_address,
    kafka_tls_bootstrap_address,
    tls_bootstrap_address,
)
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.conditions import Condition, Reason
from millrace.operator.model.images import version_of
from millrace.operator.model.security import AccessMode, TlsMode
from millrace.operator.plan.growth import Growth
from millrace.operator.plan.lost import LostBroker
from millrace.operator.plan.outside import Outside
from millrace.operator.plan.rolling import BrokerPod, Done, Restart, Wait
from millrace.operator.plan.scaling import Scaling
from millrace.operator.plan.security import Secured
from millrace.operator.plan.spread import Crowd
from millrace.operator.reconcile.brokers import Found

CONDITIONS: Final = (
    "Ready",
    "Healthy",
    "RolledOut",
    "Scaled",
    "VolumesPresent",
    "VolumesSized",
    "SecurityAsWanted",
    "Spread",
)
"""Types of the conditions that every Cluster has."""
FOR_PEOPLE: Final = frozenset({"Spread"})
"""Those of work that the operator leaves to people, so that it need not look again soon."""
_Verdict: TypeAlias = tuple[bool | None, Reason, str]
"""Whether a condition is true, the reason, and the message."""


@dataclass(frozen=True, slots=True)
class Look:
    """The state of a cluster, and the work on it.

    Attributes:
        not_made: why missing pods cannot be created.
        authorities: that clients trust, as PEM; empty: none, or none is known yet.
        access_problem: why brokers cannot ask about callers; empty: they can.
        crowds: brokers that share a node without need.
    """

    pods: Sequence[BrokerPod]
    not_made: str
    found: Found | None
    scaling: Scaling
    lost: Sequence[LostBroker]
    step: Restart | Wait | Done
    growth: Growth
    is_placing: bool
    outside: Outside | None
    certified: Condition | None
    secured: Secured
    authorities: str = ""
    access_problem: str = ""
    crowds: Sequence[Crowd] = ()

    @property
    def pods_wanted(self) -> int:
        """How many brokers there should be now."""
        return sum(self.scaling.replicas.values())


def status_summary(cluster: Cluster, look: Look) -> Mapping[str, object]:
    """Return the status without the conditions."""
    found = look.found
    return {
        "brokers": look.pods_wanted,
        "version": ", ".join(sorted({version_of(pod.image) for pod in look.pods})) or None,
        "readyBrokers": sum(pod.is_ready for pod in look.pods),
        "bootstrap": bootstrap_address(cluster),
        "tlsBootstrap": tls_bootstrap_address(cluster) if look.secured.has_both else None,
        "kafkaBootstrap": kafka_bootstrap_address(cluster),
        "kafkaTlsBootstrap": kafka_tls_bootstrap_address(cluster)
        if look.secured.has_both
        else None,
        "security": look.secured.slowest._asdict(),
        "outsideBootstrap": None if look.outside is None else look.outside.bootstrap or None,
        "outsideTlsBootstrap": look.outside.tls_bootstrap or None
        if look.outside is not None and look.secured.has_both
        else None,
        "outsideKafkaBootstrap": None
        if look.outside is None
        else look.outside.kafka_bootstrap or None,
        "outsideKafkaTlsBootstrap": look.outside.kafka_tls_bootstrap or None
        if look.outside is not None and look.secured.has_both
        else None,
        "authorities": look.authorities or None,
        "clusterId": None if found is None else found.cluster.cluster_id,
        "controller": None if found is None else found.controller,
        "leaving": list(look.scaling.leaving) or None,
    }


def status_conditions(look: Look) -> list[Condition]:
    """Return the conditions; the operator looks again soon unless all of them are true.

    Those `FOR_PEOPLE` are left out of that. Each is true only when its part of the work for the
    Cluster as it is now is done.
    """
    judges = (_ready, _healthy, _rolled_out, _scaled, _lost, _sized, _secured, _spread)
    return [Condition(type_, *judge(look)) for type_, judge in zip(CONDITIONS, judges, strict=True)]


def _ready(look: Look) -> _Verdict:
    ready = sum(pod.is_ready for pod in look.pods)
    problems = (f"{pod.name}: {pod.problem}" for pod in look.pods if pod.problem)
    why = next(problems, look.not_made)
    if look.found is None:
        return False, Reason.NO_BROKER_ANSWERS, why or "no broker answers yet"
    if ready < look.pods_wanted:
        told = f"{ready} of {count(look.pods_wanted, 'broker is', 'brokers are')} ready"
        return False, Reason.BROKERS_MISSING, f"{told}; {why}" if why else told
    return True, Reason.BROKERS_READY, f"{count(ready, 'broker is', 'brokers are')} ready"


def _healthy(look: Look) -> _Verdict:
    if look.found is None:
        return None, Reason.NO_BROKER_ANSWERS, "no broker says how partitions are"
    if look.found.controller is None:
        why = look.found.cluster.controller_problem or "no broker is the controller just now"
        return False, Reason.NO_CONTROLLER, why
    short = [
        partition.place
        for partition in look.found.partitions()
        if len(partition.in_sync) < partition.min_in_sync
    ]
    if short:
        return (
            False,
            Reason.UNDER_MIN_IN_SYNC,
            f"{count(len(short), 'partition is', 'partitions are')} under min.insync.replicas, as "
            f"{short[0]}: "
            "`millrace cluster health` says what helps",
        )
    behind = [
        partition.place
        for partition in look.found.partitions()
        if len(partition.in_sync) < len(partition.replicas)
    ]
    if behind:
        return (
            False,
            Reason.UNDER_REPLICATED,
            f"{count(len(behind), 'partition has', 'partitions have')} replicas that are not in "
            f"sync, as {behind[0]}",
        )
    return True, Reason.IN_SYNC, "every replica is in sync"


def _scaled(look: Look) -> _Verdict:
    scaling = look.scaling
    if look.found is None:
        return None, Reason.NO_BROKER_ANSWERS, "no broker says which brokers have joined"
    if scaling.problem:
        return False, Reason.CANNOT_SHRINK, scaling.problem
    if scaling.missing:
        message = f"yet to join the cluster: {', '.join(scaling.missing)}"
        return False, Reason.BROKERS_MISSING, message
    if scaling.message:
        return False, Reason.MOVING, scaling.message
    if len(look.pods) > look.pods_wanted:
        message = f"{count(len(look.pods) - look.pods_wanted, 'pod has', 'pods have')} yet to go"
        return False, Reason.MOVING, message
    return True, Reason.AS_WANTED, "there are as many brokers as there should be"


def _lost(look: Look) -> _Verdict:
    if not look.lost:
        return True, Reason.PRESENT, "no broker waits for a lost volume"
    told = []
    for broker in look.lost:
        claims = ", ".join(claim["metadata"]["name"] for claim in broker.claims)
        needed = (
            f", and no other broker is known to have all records of {some(broker.needed_for)}"
            if broker.needed_for
            else ""
        )
        told.append(f"{broker.name} waits for the volumes of {claims}, whose node is gone{needed}")
    advice = (
        "without it, records that only these volumes have are lost"
        if any(broker.needed_for for broker in look.lost)
        else "or set spec.lostVolumes to Replace, or delete these claims and the pod: the broker "
        "then begins again and copies what others have"
    )
    return False, Reason.NODE_GONE, f"{'; '.join(told)}. Bring the node back; {advice}"


def _sized(look: Look) -> _Verdict:
    volumes = look.growth
    if volumes.problem:
        return (
            False,
            Reason.CANNOT_GROW,
            f"{volumes.problem}. Where its driver can, set allowVolumeExpansion of the storage "
            "class; or add a pool with larger volumes, and remove this one",
        )
    if volumes.under_way:
        growing = count(len(volumes.under_way), "claim grows", "claims grow")
        return False, Reason.GROWING, f"{growing}, as {volumes.under_way[0]}"
    if volumes.recreate:
        names = ", ".join(stateful_set["metadata"]["name"] for stateful_set in volumes.recreate)
        message = f"{names}: the StatefulSet is made again, so that new brokers get larger volumes"
        return False, Reason.GROWING, message
    return True, Reason.AS_WANTED, "volumes are as large as they should be"


def _secured(look: Look) -> _Verdict:
    secured = look.secured
    slowest, step, wanted = secured.slowest, secured.next, secured.wanted
    if look.access_problem and wanted.access is not AccessMode.DISABLED:
        if slowest.access is AccessMode.DISABLED:
            return False, Reason.NO_REVIEWERS, f"access stays Disabled: {look.access_problem}"
        told = (
            "what would be refused is done"
            if step.access is AccessMode.LOGGED
            else "all is refused"
        )
        return (
            False,
            Reason.NO_REVIEWERS,
            f"access is {step.access}, and {told}: {look.access_problem}",
        )
    if not secured.is_done and step == slowest:
        told = (
            "brokers stay as they are until an issuer has signed their certificate: see Certified"
        )
        return False, Reason.SECURITY_CHANGES, told
    if not secured.is_done:
        told = "; ".join(
            f"{what} goes from {now} to {then}{'' if then == goal else f', and then to {goal}'}"
            for what, now, then, goal in zip(("TLS", "access"), slowest, step, wanted, strict=True)
            if now != goal
        )
        return False, Reason.SECURITY_CHANGES, f"{told}, a broker after the other"
    if wanted.tls is TlsMode.DISABLED:
        told = (
            "in plain text, and clients may do everything: docs/security.md says how to change it"
        )
    elif wanted.access is AccessMode.LOGGED:
        told = "the brokers' audit logs have what will be refused when access is Enforced"
    else:
        told = f"TLS is {wanted.tls}, and access {wanted.access}"
        if look.access_problem:
            told += f"; before you ask for access control: {look.access_problem}"
    return True, Reason.AS_WANTED, told


def _spread(look: Look) -> _Verdict:
    if not look.crowds:
        return True, Reason.AS_WANTED, "no broker shares a node that could have one of its own"
    crowd, *others = look.crowds
    more = f" ({count(len(others), 'more node is', 'more nodes are')} shared)" if others else ""
    return (
        False,
        Reason.NODE_SHARED,
        f"{' and '.join(crowd.brokers)} run on the node {crowd.node}, whose loss takes them all, "
        f"and {crowd.free} has no broker{more}. While Healthy is true, let one move: kubectl "
        f"delete pod {crowd.movable}",
    )


def _rolled_out(look: Look) -> _Verdict:
    match look.step:
        case Done():
            return True, Reason.CURRENT, "every broker runs what it should"
        case Restart(pod, why):
            return False, Reason.RESTARTING, f"{pod.name}: {why}"
        case Wait(why, is_stuck):
            return False, Reason.STUCK if is_stuck else Reason.WAITING, why
