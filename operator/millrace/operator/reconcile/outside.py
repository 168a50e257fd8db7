"""Access for clients outside of the Kubernetes cluster: the Services, and brokers' addresses.

A Service that the API server refuses, or whose name is taken, does not affect clients inside: it is
reported, and the rest goes on.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from millrace.core.errors import InvalidConfigError
from millrace.operator.kube.api import REFUSALS, Api, ApiError
from millrace.operator.kube.applied import Applied, NameTakenError
from millrace.operator.kube.kinds import CONFIG_MAP, NODE, SECRET, SERVICE, kind_of
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.conditions import Condition, Reason
from millrace.operator.model.listeners import ClientsAuthorities, NodeAddress, OutsideListener
from millrace.operator.model.objects import Document, brokers_of, outside_name
from millrace.operator.model.outside import (
    address_map,
    bootstrap_service,
    broker_service,
    outside_selector,
)
from millrace.operator.model.security import mode_of
from millrace.operator.plan.outside import Outside, hosts_outside, outside, told_outside
from millrace.operator.reconcile.certificates import SeenCertificates
from millrace.runtime.certificates import each_of
from millrace.runtime.kubernetes.resources import Kind

WAITING_S = 10.0
"""Pause before the next look at a cluster that lacks only an outside address."""
OUTSIDE_CONDITION = "OutsideAddressed"
_TOLD_MAX = 5


class OutsideReconciler:
    """Looks at the access of clients outside to one Cluster at a time."""

    def __init__(self, api: Api, applied: Applied) -> None:
        self._api = api
        self._applied = applied

    async def reconcile(
        self,
        cluster: Cluster,
        replicas: Mapping[str, int],
        pods: Sequence[Document],
        held: SeenCertificates | None,
    ) -> tuple[Outside, Mapping[str, frozenset[str]]] | None:
        """Bring the objects into their wanted state.

        Args:
            replicas: brokers of each pool, by the name of its StatefulSet.
            pods: of the brokers.
            held: the certificates of brokers; None: there is no TLS.

        Returns:
            The addresses, and the names of each broker that its certificate needs; None: clients
            outside are not wanted.

        Raises:
            ApiError: the API server did not answer.
        """
        listener = cluster.spec.listeners.outside
        brokers = () if listener is None else brokers_of(replicas)
        await self._remove_others(cluster, brokers, is_wanted=listener is not None)
        if listener is None:
            return None
        problems: list[str] = []
        if listener.clients_ca is not None:
            problems += await self._authority_problems(cluster, listener.clients_ca)
        bootstrap = await self._ensure(bootstrap_service(cluster), problems)
        services = {}
        for broker in brokers:
            service = await self._ensure(broker_service(cluster, broker), problems)
            if service is not None:
                services[broker] = service
        nodes = await self._nodes_of(pods, listener)
        config = await self._api.get(CONFIG_MAP, cluster.namespace, outside_name(cluster.name))
        told = {} if config is None else config.get("data") or {}
        found = outside(
            *(cluster.spec.listeners, bootstrap, services, pods, nodes),
            told=told,
            tls=mode_of(cluster.spec.tls),
        )
        hosts: Mapping[str, frozenset[str]] = {}
        if held is not None:
            present = {broker: held.present(broker) for broker in brokers}
            hosts = hosts_outside(found, brokers, present)
            certified = {broker: held.known(broker) for broker in brokers}
            found = told_outside(found, brokers, certified, told, mode_of(cluster.spec.tls))
        await self._ensure(address_map(cluster, found.addresses), problems)
        return replace(found, waits=[*problems, *found.waits]), hosts

    async def _authority_problems(self, cluster: Cluster, of: ClientsAuthorities) -> list[str]:
        """Return what is wrong with the authorities of clients: brokers do not start with it."""
        kind = SECRET if of.kind == "Secret" else CONFIG_MAP
        found = await self._api.get(kind, cluster.namespace, of.name)
        if found is None:
            return [f"there is no {of.kind} {of.name} for listeners.outside.clientsCA: create it"]
        text = (found.get("data") or {}).get(of.key)
        if text is None:
            return [f"{of.kind} {of.name} has no {of.key} for listeners.outside.clientsCA: add it"]
        try:
            each_of(base64.b64decode(text) if kind is SECRET else text.encode())
        except InvalidConfigError as error:
            return [f"{of.key} of {of.kind} {of.name}, for listeners.outside.clientsCA: {error}"]
        return []

    async def _ensure(self, document: Document, problems: list[str]) -> Document | None:
        try:
            return await self._applied.ensure(document)
        except NameTakenError as error:
            problems.append(str(error))
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            name = document["metadata"]["name"]
            problems.append(f"{document['kind']} {name} is refused: {error.message}")
            return await self._present(document)
        return None

    async def _present(self, document: Document) -> Document | None:
        """Return an object as it was before a refused change: its addresses are still right."""
        metadata = document["metadata"]
        found = await self._api.get(kind_of(document), metadata["namespace"], metadata["name"])
        ours = metadata["ownerReferences"][0]["uid"]
        owners = [] if found is None else found["metadata"].get("ownerReferences") or []
        return found if any(owner["uid"] == ours for owner in owners) else None

    async def _nodes_of(
        self, pods: Sequence[Document], listener: OutsideListener
    ) -> list[Document]:
        """Return the nodes of the brokers' pods, if another than their internal address is told."""
        if listener.node_address is NodeAddress.INTERNAL_IP:
            return []
        names = sorted({pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")})
        nodes = [await self._api.get(NODE, None, name) for name in names]
        return [node for node in nodes if node is not None]

    async def _remove_others(
        self, cluster: Cluster, brokers: Iterable[str], *, is_wanted: bool
    ) -> None:
        """Delete Services of brokers that are gone, and all others that are no longer wanted."""
        where, shared = cluster.namespace, outside_name(cluster.name)
        wanted = {shared, *map(outside_name, brokers)} if is_wanted else set()
        for service in await self._api.list(SERVICE, where, outside_selector(cluster.name)):
            if service["metadata"]["name"] not in wanted:
                await self._delete(cluster, SERVICE, service)
        if not is_wanted:
            config = await self._api.get(CONFIG_MAP, where, shared)
            if config is not None:
                await self._delete(cluster, CONFIG_MAP, config)

    async def _delete(self, cluster: Cluster, kind: Kind, document: Document) -> None:
        metadata = document["metadata"]
        if any(owner["uid"] == cluster.uid for owner in metadata.get("ownerReferences") or ()):
            await self._api.delete(kind, cluster.namespace, metadata["name"], uid=metadata["uid"])


def outside_condition(found: Outside) -> Condition:
    """Return whether all brokers have an address for clients outside."""
    if not found.waits:
        message = f"clients outside connect to {found.bootstrap}"
        return Condition(OUTSIDE_CONDITION, True, Reason.ADDRESSED, message)
    told = "; ".join(found.waits[:_TOLD_MAX])
    more = len(found.waits) - _TOLD_MAX
    message = told + (f"; and {more} more" if more > 0 else "")
    return Condition(OUTSIDE_CONDITION, False, Reason.ADDRESSES_MISSING, message)
