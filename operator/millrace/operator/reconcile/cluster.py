"""One Cluster: its objects are there, its brokers run what they should, its status says how it is.

Every look begins at the beginning and knows nothing of the one before, so an operator that is
killed anywhere goes on where it was. What needs a decision is decided by `plan`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from millrace.operator.kube.api import Api, ApiError
from millrace.operator.kube.applied import Applied, NameTakenError
from millrace.operator.kube.kinds import CLUSTER, POD, STATEFUL_SET
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.conditions import Condition
from millrace.operator.model.objects import (
    Decided,
    Document,
    bootstrap_address,
    desired_objects,
    pool_object_name,
    selector,
)
from millrace.operator.plan.pods import broker_pods
from millrace.operator.plan.rolling import (
    BrokerPod,
    Done,
    Restart,
    Wait,
    may_be_disrupted,
    next_step,
)
from millrace.operator.reconcile.brokers import Brokers, Found
from millrace.operator.reconcile.resources import cluster_of, now, write_status

_log = logging.getLogger(__name__)

STEADY_S = 60.0
"""Until a cluster of which nothing is to be done is looked at again."""
BUSY_S = 2.0
"""Until one that is under way is."""


@dataclass(frozen=True, slots=True)
class _Look:
    """How a cluster was found."""

    pods: Sequence[BrokerPod]
    found: Found | None
    pods_wanted: int
    step: Restart | Wait | Done


class ClusterReconciler:
    """See the module.

    Args:
        image: of brokers where a Cluster names none.
    """

    def __init__(self, api: Api, brokers: Brokers, image: str) -> None:
        self._api = api
        self._brokers = brokers
        self._image = image
        self._applied = Applied(api)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """Bring a cluster a step nearer to what it should be.

        Returns:
            In how many seconds to look again; None: not before something changes.

        Raises:
            ApiError: the API server did not answer, or refuses what should be possible.
        """
        document = await self._api.get(CLUSTER, namespace, name)
        if document is None or "deletionTimestamp" in document["metadata"]:
            await self._brokers.forget(namespace, name)  # Its objects go with it.
            return None
        try:
            cluster = cluster_of(document)
        except msgspec.ValidationError as error:
            await self._refuse(document, "Invalid", f"{error}: apply the definitions in crds/")
            return None
        if cluster.spec.paused:
            reason = "spec.paused is true: the operator changes nothing until it is false"
            await write_status(
                self._api, document, [Condition("Ready", None, "Paused", reason)], {}
            )
            return None
        try:
            look = await self._work(cluster, document)
        except NameTakenError as error:
            await self._refuse(document, "NameTaken", str(error))
            return STEADY_S
        except ApiError as error:
            if error.status not in (400, 403, 422):
                raise
            await self._refuse(document, "Refused", f"{error}")
            return STEADY_S
        conditions = _conditions(look)
        await write_status(self._api, document, conditions, _summary(cluster, look))
        is_steady = all(each.is_true for each in conditions)
        return STEADY_S if is_steady else BUSY_S

    async def _work(self, cluster: Cluster, document: Document) -> _Look:
        stateful_sets, pods = await self._observe(cluster)
        found = await self._brokers.find(cluster) if any(each.is_ready for each in pods) else None
        partitions = None if found is None else found.partitions()
        replicas = _replicas(cluster, stateful_sets)
        wanted = sum(replicas.values())
        decided = Decided(
            image=self._image,
            replicas=replicas,
            may_be_disrupted=may_be_disrupted(pods, partitions, pods_wanted=wanted),
        )
        for each in desired_objects(cluster, decided):
            await self._applied.ensure(each)
        _, pods = await self._observe(cluster)
        step = next_step(
            pods,
            partitions,
            pods_wanted=wanted,
            controller=None if found is None else found.controller,
        )
        if isinstance(step, Restart):
            await self._restart(document, step)
        return _Look(pods, found, wanted, step)

    async def _observe(self, cluster: Cluster) -> tuple[list[Document], list[BrokerPod]]:
        chosen = selector(cluster.name)
        stateful_sets = []
        for pool in cluster.spec.pools:
            name = pool_object_name(cluster.name, pool.name)
            if (each := await self._api.get(STATEFUL_SET, cluster.namespace, name)) is not None:
                stateful_sets.append(each)
        pods = await self._api.list(POD, cluster.namespace, chosen)
        return stateful_sets, broker_pods(pods, stateful_sets)

    async def _restart(self, document: Document, step: Restart) -> None:
        pod = step.pod
        _log.info("restarting a broker", extra={"pod": pod.name, "why": step.why})
        await self._api.delete(POD, document["metadata"]["namespace"], pod.name, uid=pod.uid)
        await self._api.record(
            document, reason="BrokerRestarted", message=f"{pod.name}: {step.why}", now=now()
        )

    async def _refuse(self, document: Document, reason: str, message: str) -> None:
        await write_status(self._api, document, [Condition("Ready", False, reason, message)], {})


def _replicas(cluster: Cluster, stateful_sets: Sequence[Document]) -> dict[str, int]:
    """Return how many brokers each pool has now: never fewer than there are."""
    there = {each["metadata"]["name"]: each["spec"]["replicas"] for each in stateful_sets}
    return {
        pool.name: max(pool.replicas, there.get(pool_object_name(cluster.name, pool.name), 0))
        for pool in cluster.spec.pools
    }


def _summary(cluster: Cluster, look: _Look) -> Mapping[str, object]:
    found = look.found
    return {
        "brokers": look.pods_wanted,
        "readyBrokers": sum(each.is_ready for each in look.pods),
        "bootstrap": bootstrap_address(cluster),
        "clusterId": None if found is None else found.cluster.cluster_id,
        "controller": None if found is None else found.controller,
    }


def _conditions(look: _Look) -> list[Condition]:
    return [_ready(look), _healthy(look), _rolled_out(look)]


def _ready(look: _Look) -> Condition:
    ready = sum(each.is_ready for each in look.pods)
    if look.found is None:
        why = next((f"{each.name}: {each.problem}" for each in look.pods if each.problem), "")
        return Condition("Ready", False, "NoBrokerAnswers", why or "no broker answers yet")
    if ready < look.pods_wanted:
        return Condition(
            "Ready", False, "BrokersMissing", f"{ready} of {look.pods_wanted} brokers are ready"
        )
    return Condition("Ready", True, "BrokersReady", f"{ready} brokers are ready")


def _healthy(look: _Look) -> Condition:
    if look.found is None:
        return Condition("Healthy", None, "NoBrokerAnswers", "no broker says how partitions are")
    if look.found.controller is None:
        why = look.found.cluster.controller_problem or "no broker is the controller just now"
        return Condition("Healthy", False, "NoController", why)
    short = [each.place for each in look.found.partitions() if len(each.in_sync) < each.min_in_sync]
    if short:
        return Condition(
            "Healthy",
            False,
            "UnderMinInSync",
            f"{len(short)} partitions are under min.insync.replicas, as {short[0]}: "
            "`millrace cluster health` says what helps",
        )
    behind = [
        each.place for each in look.found.partitions() if len(each.in_sync) < len(each.replicas)
    ]
    if behind:
        return Condition(
            "Healthy",
            False,
            "UnderReplicated",
            f"{len(behind)} partitions have replicas that are not in sync, as {behind[0]}",
        )
    return Condition("Healthy", True, "InSync", "every replica is in sync")


def _rolled_out(look: _Look) -> Condition:
    match look.step:
        case Done():
            return Condition("RolledOut", True, "Current", "every broker runs what it should")
        case Restart(pod, why):
            return Condition("RolledOut", False, "Restarting", f"{pod.name}: {why}")
        case Wait(why, is_stuck):
            return Condition("RolledOut", False, "Stuck" if is_stuck else "Waiting", why)
