"""Carries out the plan of the number of brokers (`plan/scaling`)."""

import logging
from collections.abc import Sequence

from millrace.core.events import AUDIT_LOGGER
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
from millrace.operator.plan.scaling import Scaling
from millrace.operator.reconcile.brokers import Brokers
from millrace.operator.reconcile.resources import is_owned, now

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT_LOGGER)


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
        stateful_sets: Sequence[Document],
        pods: Sequence[Document],
    ) -> None:
        """Carry out the plan; delete the claims of removed brokers last of all.

        Args:
            stateful_sets: that the Cluster owns.
            pods: of its brokers.

        Raises:
            MillraceError: the brokers refuse a step for now, or do not answer.
            ApiError: the API server refuses one, or does not answer.
        """
        admin = self._brokers.admin(cluster)
        if scale.drain or scale.undrain or scale.unregister or scale.moves:
            events.BROKERS_SCALED.log(
                _audit,
                drained=list(scale.drain),
                undrained=list(scale.undrain),
                unregistered=list(scale.unregister),
                partitions=len(scale.moves),
            )
        for broker in scale.drain:
            await admin.drain_broker(broker)
        for broker in scale.undrain:
            await admin.undrain_broker(broker)
        if scale.moves:
            refused = await admin.reassign_partitions(scale.moves)
            message = scale.message or "new brokers get a share"
            await self._api.record(document, reason="ReplicasMove", message=message, now=now())
            for place, error in refused.items():
                if error is not None:
                    topic, number = place
                    events.REPLICA_NOT_MOVABLE.log(
                        _log, partition=f"{topic}-{number}", error=str(error)
                    )
        for stateful_set in stateful_sets:
            if scale.replicas.get(stateful_set["metadata"]["name"]) == 0:
                await self._remove_pool(cluster, stateful_set)
        for name in scale.empty:
            await self._delete_orphan(cluster, name, pods)
            await self._delete_claims(cluster, name)
        for broker in scale.unregister:
            await admin.unregister_broker(broker)

    async def _remove_pool(self, cluster: Cluster, stateful_set: Document) -> None:
        metadata = stateful_set["metadata"]
        if any(
            metadata["name"] == pool_object_name(cluster.name, pool.name)
            for pool in cluster.spec.pools
        ):
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

    async def _delete_claims(self, cluster: Cluster, broker: str) -> None:
        """Delete the claims of a broker that is gone for good; its pod, if any, ends first."""
        claims = await self._api.list(CLAIM, cluster.namespace, {CLUSTER_LABEL: cluster.name})
        for claim in claims:
            metadata = claim["metadata"]
            is_of_broker = broker_of_claim(metadata["name"]) == broker
            if is_of_broker and "deletionTimestamp" not in metadata:
                await self._api.delete(
                    CLAIM, cluster.namespace, metadata["name"], uid=metadata["uid"]
                )
