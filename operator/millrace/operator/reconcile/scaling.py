"""Carries out the plan of the number of brokers (`plan/scaling`).

The claims of a broker are deleted once the controller has unregistered it. The controller refuses
that while the broker is alive, or is to hold a replica, whatever the plan was made from. No plan
knows a broker that is unregistered; so its claims are marked with its id before, by which an
operator that was killed finds them.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from millrace.client import Admin
from millrace.core.errors import BrokerIdNotRegisteredError, MillraceError
from millrace.core.events import AUDIT_LOGGER
from millrace.core.topics import PartitionName
from millrace.operator import events
from millrace.operator.kube.api import Api
from millrace.operator.kube.kinds import CLAIM, CONFIG_MAP, POD, STATEFUL_SET
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.objects import (
    CLUSTER_LABEL,
    Document,
    broker_of_claim,
    pool_object_name,
)
from millrace.operator.plan.scaling import SHARING, Scaling
from millrace.operator.reconcile.brokers import Brokers, Found
from millrace.operator.reconcile.resources import is_owned, now, unless_changed

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT_LOGGER)

BROKER_ANNOTATION: Final = "millrace.dev/broker-that-goes"
"""Annotation of a claim: it is deleted once the broker of this id is unregistered."""


class ScalingReconciler:
    """Has brokers of one Cluster at a time come and go."""

    def __init__(self, api: Api, brokers: Brokers) -> None:
        self._api = api
        self._brokers = brokers

    async def reconcile(
        self,
        cluster: Cluster,
        document: Document,
        scale: Scaling,
        found: Found,
        *,
        stateful_sets: Sequence[Document],
        pods: Sequence[Document],
    ) -> None:
        """Carry out the plan.

        Args:
            found: what the plan was made from.
            stateful_sets: that the Cluster owns.
            pods: of its brokers.

        Raises:
            MillraceError: the brokers refuse a step for now, or all moves, or do not answer.
            ApiError: the API server refuses one, or does not answer.
        """
        admin = self._brokers.admin(cluster)
        refused: MillraceError | None = None
        moves: dict[PartitionName, Sequence[int] | None] = {
            **scale.moves,
            **dict.fromkeys(scale.recall),
        }
        if scale.drain or scale.undrain or scale.unregister or moves:
            events.BROKERS_SCALED.log(
                _audit,
                drained=list(scale.drain),
                undrained=list(scale.undrain),
                unregistered=list(scale.unregister),
                partitions=len(moves),
            )
        for broker in scale.drain:
            await admin.drain_broker(broker)
        for broker in scale.undrain:
            await admin.undrain_broker(broker)
        if moves:
            answers = await admin.reassign_partitions(moves)
            for (topic, number), error in answers.items():
                if error is None:
                    continue
                refused = refused or error
                events.REPLICA_NOT_MOVABLE.log(
                    _log, partition=f"{topic}-{number}", error=str(error)
                )
            if None in answers.values():
                refused = None
                await self._api.record(
                    document, reason="ReplicasMove", message=scale.message or SHARING, now=now()
                )
        for stateful_set in stateful_sets:
            if scale.replicas.get(stateful_set["metadata"]["name"]) == 0:
                await self._remove_pool(cluster, stateful_set, scale)
        for name in scale.empty:
            await self._delete_orphan(cluster, name, pods)
        await self._unregister(cluster, admin, scale, found.names)
        if refused is not None:
            raise refused

    async def _remove_pool(self, cluster: Cluster, stateful_set: Document, scale: Scaling) -> None:
        """End the brokers of a pool that was removed; delete it when none of them is registered."""
        metadata = stateful_set["metadata"]
        if any(
            metadata["name"] == pool_object_name(cluster.name, pool.name)
            for pool in cluster.spec.pools
        ):
            return
        if any(name.rpartition("-")[0] == metadata["name"] for name in scale.leaving):
            # With `volumeDeletion: Delete` their claims go with the StatefulSet.
            if stateful_set["spec"]["replicas"] > 0:
                change = {"metadata": {"uid": metadata["uid"]}, "spec": {"replicas": 0}}
                await unless_changed(
                    self._api.patch(STATEFUL_SET, cluster.namespace, metadata["name"], change)
                )
            return
        config = await self._api.get(CONFIG_MAP, cluster.namespace, metadata["name"])
        if config is not None and is_owned(config, cluster):
            await self._api.delete(
                CONFIG_MAP, cluster.namespace, metadata["name"], uid=config["metadata"]["uid"]
            )
        await self._api.delete(
            STATEFUL_SET, cluster.namespace, metadata["name"], uid=metadata["uid"]
        )

    async def _delete_orphan(self, cluster: Cluster, broker: str, pods: Sequence[Document]) -> None:
        """Delete the pod of a broker that is gone for good, where no StatefulSet does that."""
        for pod in pods:
            metadata = pod["metadata"]
            if metadata["name"] == broker and not metadata.get("ownerReferences"):
                await self._api.delete(POD, cluster.namespace, broker, uid=metadata["uid"])

    async def _unregister(
        self, cluster: Cluster, admin: Admin, scale: Scaling, names: Mapping[int, str]
    ) -> None:
        """Unregister brokers that are gone for good, and delete the claims of those that are.

        Args:
            names: of registered brokers, by id.
        """
        empty = {name: broker for broker, name in names.items() if name in scale.empty}
        staying = {*names.values()}.difference(scale.leaving)
        goes: dict[int, list[Document]] = {broker: [] for broker in scale.unregister}
        for claim in await self._api.list(CLAIM, cluster.namespace, {CLUSTER_LABEL: cluster.name}):
            if "deletionTimestamp" in claim["metadata"]:
                continue
            mark = _mark_of(claim)
            broker = empty.get(broker_of_claim(claim["metadata"]["name"]))
            if broker is not None and mark != broker:
                mark = broker
                await self._mark(claim, broker)
            elif mark is not None and names.get(mark, "") in staying:
                await self._mark(claim, None)  # It stays after all.
            if mark is not None and (mark in scale.unregister or mark not in names):
                goes.setdefault(mark, []).append(claim)
        for broker, claims in goes.items():
            with suppress(BrokerIdNotRegisteredError):
                await admin.unregister_broker(broker)
            for claim in claims:
                metadata = claim["metadata"]
                await self._api.delete(
                    CLAIM, cluster.namespace, metadata["name"], uid=metadata["uid"]
                )

    async def _mark(self, claim: Document, broker: int | None) -> None:
        metadata = claim["metadata"]
        annotations = {BROKER_ANNOTATION: None if broker is None else str(broker)}
        change = {"metadata": {"uid": metadata["uid"], "annotations": annotations}}
        await self._api.patch(CLAIM, metadata["namespace"], metadata["name"], change)


def _mark_of(claim: Document) -> int | None:
    text = (claim["metadata"].get("annotations") or {}).get(BROKER_ANNOTATION, "")
    return int(text) if text.isdecimal() else None
