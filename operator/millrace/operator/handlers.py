"""Watches, by kopf: each event only names the cluster to look at again."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import kopf

from millrace.operator.kube.kinds import CLUSTER, NAMESPACE, QUOTA, STATEFUL_SET, TOPIC
from millrace.operator.model.objects import CLUSTER_LABEL
from millrace.runtime.kubernetes.access import ApiAccess
from millrace.runtime.kubernetes.resources import Kind

Changed = Callable[[str, str, str], None]
"""Called with the kind of work, `cluster`, `topics` or `quotas`, and the namespace and name of a
Cluster."""

Heard = Callable[[str, int], bool]
"""Called with uid and generation of each Cluster, Topic and Quota in a watch's events; returns
whether this generation is new."""

WATCH_SECONDS_MAX: Final = 300
"""Time after which the API server ends a watch, and another one begins: none is silent for ever."""
_CONNECT_SECONDS_MAX: Final = 30


def settings() -> kopf.OperatorSettings:
    """Return how kopf works: it watches, and leaves nothing on any object."""
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True  # A Lease of our own decides which operator acts.
    chosen.posting.enabled = False
    chosen.watching.server_timeout = WATCH_SECONDS_MAX
    chosen.watching.client_timeout = WATCH_SECONDS_MAX + 10
    chosen.watching.connect_timeout = _CONNECT_SECONDS_MAX
    return chosen


def registry(access: ApiAccess, on_event: Changed, on_heard: Heard) -> kopf.OperatorRegistry:
    """Return the handlers.

    Pods are not watched: in a large Kubernetes cluster nearly all of them belong to others, and
    kopf filters by labels only after it has received them. Their StatefulSets show when one is not
    ready.
    """
    made = kopf.OperatorRegistry()
    choosing: set[tuple[str, str]] = set()  # Clusters that choose namespaces by labels.
    known_labels: dict[str, dict[str, str]] = {}

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(server=access.server, aiohttp_session=_session(access))

    def watch(kind: Kind, handle: Callable[..., None], **options: Any) -> None:
        group, _, version = kind.api_version.rpartition("/")
        kopf.on.event(group, version, kind.plural, registry=made, id=kind.name, **options)(handle)

    def on_cluster(
        type: str | None, namespace: str, name: str, spec: Any, meta: Any, **_: Any
    ) -> None:
        if type != "DELETED" and _chooses_namespaces(spec):
            choosing.add((namespace, name))
        else:
            choosing.discard((namespace, name))
        on_heard(meta["uid"], meta["generation"])
        on_event("cluster", namespace, name)
        on_event("topics", namespace, name)
        on_event("quotas", namespace, name)

    def on_topic(namespace: str, spec: Any, meta: Any, **_: Any) -> None:
        on_heard(meta["uid"], meta["generation"])
        reference = spec.get("clusterRef") or {}
        on_event("topics", reference.get("namespace") or namespace, reference.get("name", ""))

    def on_quota(type: str | None, namespace: str, spec: Any, meta: Any, **_: Any) -> None:
        is_new = on_heard(meta["uid"], meta["generation"])
        # A measurement changes the status, which is no reason for another one.
        if is_new or type == "DELETED":
            reference = spec.get("clusterRef") or {}
            on_event("quotas", reference.get("namespace") or namespace, reference.get("name", ""))

    def on_namespace(type: str | None, name: str, labels: Any, **_: Any) -> None:
        if type == "DELETED":
            known_labels.pop(name, None)
        elif known_labels.get(name) != {**labels}:
            known_labels[name] = {**labels}
            for cluster in sorted(choosing):
                on_event("topics", *cluster)
                on_event("quotas", *cluster)

    def on_part(namespace: str, labels: Any, **_: Any) -> None:
        on_event("cluster", namespace, labels[CLUSTER_LABEL])

    watch(CLUSTER, on_cluster)
    watch(TOPIC, on_topic)
    watch(QUOTA, on_quota)
    watch(NAMESPACE, on_namespace)
    watch(STATEFUL_SET, on_part, labels={CLUSTER_LABEL: kopf.PRESENT})
    return made


def _session(access: ApiAccess) -> aiohttp.ClientSession:
    """Return kopf's connections: each request has the token of its moment."""

    async def authorize(
        request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        request.server_hostname = access.tls_server_name
        if (token := await asyncio.to_thread(access.token)) is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        return await send(request)

    connector = aiohttp.TCPConnector(limit=0, ssl=access.tls or True)
    return aiohttp.ClientSession(connector=connector, middlewares=(authorize,))


def _chooses_namespaces(spec: Any) -> bool:
    namespaces = (spec.get("allowedTopics") or {}).get("namespaces") or {}
    return namespaces.get("selector") is not None
