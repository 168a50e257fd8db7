"""Resources that refer to a Cluster, maybe of another namespace: what Topics and Quotas share."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from millrace.operator.kube.api import Api, ApiError
from millrace.operator.kube.kinds import NAMESPACE, kind_of
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.conditions import Condition, Reason, not_known, not_ready
from millrace.operator.model.objects import Document
from millrace.operator.reconcile.resources import cluster_of, known_before, write_status, written

NAMESPACE_WAITS: Final = timedelta(minutes=1)
"""How long a namespace that is being deleted waits for a cluster that is paused or does not answer.
After that its Topics and Quotas are deleted without the cluster, which keeps the topics and
quotas."""
NO_BROKER_ANSWERS: Final = Condition(
    "Ready",
    None,
    Reason.NO_BROKER_ANSWERS,
    "none of the cluster's brokers answers: see the Cluster's conditions",
)
"""While it is so, a resource that was ready stays ready."""
_AT_ONCE: Final = 16
"""How many resources are worked on side by side."""


def cluster_key(document: Document) -> tuple[str, str]:
    """Return namespace and name of the Cluster that a resource names."""
    reference = document["spec"]["clusterRef"]
    return reference.get("namespace") or document["metadata"]["namespace"], reference["name"]


def age(document: Document) -> tuple[str, str]:
    """Return a key that sorts the oldest resource first."""
    metadata = document["metadata"]
    return metadata["creationTimestamp"], metadata["name"]


def has_finalizer(document: Document, finalizer: str) -> bool:
    """Whether the resource waits for this finalizer when it is deleted."""
    return finalizer in (document["metadata"].get("finalizers") or ())


async def for_each(
    documents: Iterable[Document], work: Callable[[Document], Awaitable[bool]]
) -> list[bool]:
    """Work on resources side by side; return whether each is settled.

    Raises:
        ApiError: the first of those that there were, once the work on all of them has ended: none
            goes on beside the next look.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(document: Document) -> bool:
        async with room:
            try:
                return await work(document)
            except ApiError as error:
                if error.status not in (404, 409):  # It changed meanwhile: the next look.
                    raise
                return False

    outcomes = await asyncio.gather(*map(one, documents), return_exceptions=True)
    settled = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        settled.append(outcome)
    return settled


async def without_cluster(
    api: Api, document: Document, finalizer: str, *, types: Iterable[str] = ()
) -> bool:
    """Report that there is no Cluster, or let a deleted resource go; return that it is settled.

    Args:
        types: the resource's conditions beside Ready.
    """
    if "deletionTimestamp" in document["metadata"]:
        await release(api, document, finalizer)
        return True
    namespace, name = cluster_key(document)
    condition = not_ready(
        Reason.NO_CLUSTER,
        f"there is no Cluster {name} in namespace {namespace}: create it, or correct "
        f"spec.clusterRef in another {document['kind']}",
    )
    await write_status(api, document, [condition, *not_known(types, condition)], {})
    return True


def not_allowed(cluster: Cluster, document: Document) -> Condition:
    """Return the condition of a resource whose namespace the Cluster does not allow."""
    return not_ready(
        Reason.NOT_ALLOWED,
        f"Cluster {cluster.namespace}/{cluster.name} takes no {document['kind']}s of namespace "
        f"{document['metadata']['namespace']}: have its spec.allowedTopics.namespaces allow it",
    )


async def namespace_labels(
    api: Api, cluster: Cluster, documents: Iterable[Document]
) -> Mapping[str, Mapping[str, str]]:
    """Return labels of the resources' namespaces, if the cluster needs them."""
    if cluster.spec.allowed_topics.namespaces.selector is None:
        return {}
    names = {document["metadata"]["namespace"] for document in documents}
    found = {name: await api.get(NAMESPACE, None, name) for name in names}
    return {
        name: namespace["metadata"].get("labels") or {}
        for name, namespace in found.items()
        if namespace is not None
    }


async def say_why_not(
    api: Api, document: Document, because: Condition, *, types: Iterable[str] = ()
) -> None:
    """Report why no work is done for a resource now; the rest of its status stays.

    Args:
        types: its conditions beside Ready.
    """
    conditions = [because, *not_known(types, because)]
    await write_status(api, document, conditions, known_before(document))


def usable_cluster(document: Document) -> Cluster | Condition:
    """Return a Cluster, or why nothing may be done for its resources.

    Args:
        document: of the Cluster.
    """
    metadata = document["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    try:
        cluster = cluster_of(document)
    except msgspec.ValidationError:
        message = f"Cluster {name} is of another release than the operator: see its conditions"
        return Condition("Ready", None, Reason.CLUSTER_INVALID, message)
    if cluster.spec.paused:
        message = f"Cluster {name} is paused: nothing is done until its spec.paused is false"
        return Condition("Ready", None, Reason.PAUSED, message)
    return cluster


async def namespaces_that_go(
    api: Api, documents: Iterable[Document], now: datetime
) -> frozenset[str]:
    """Return the deleted namespaces that have waited long enough for one of these resources."""
    long_ago = written(now - NAMESPACE_WAITS)
    waiting = {
        document["metadata"]["namespace"]
        for document in documents
        if document["metadata"].get("deletionTimestamp", long_ago) < long_ago
    }
    found = {name: await api.get(NAMESPACE, None, name) for name in sorted(waiting)}
    return frozenset(
        name
        for name, namespace in found.items()
        if namespace is not None and "deletionTimestamp" in namespace["metadata"]
    )


async def hold(api: Api, document: Document, finalizer: str) -> Document:
    """Have the deletion of a resource wait for the operator; return the resource."""
    if has_finalizer(document, finalizer):
        return document
    return await _patch_finalizers(api, document, finalizer, add=True)


async def release(api: Api, document: Document, finalizer: str) -> None:
    """Let the deletion of a resource wait no longer."""
    if has_finalizer(document, finalizer):
        await _patch_finalizers(api, document, finalizer, add=False)


async def _patch_finalizers(api: Api, document: Document, finalizer: str, *, add: bool) -> Document:
    metadata = document["metadata"]
    others = [other for other in metadata.get("finalizers") or () if other != finalizer]
    change = {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],  # No other change gets lost.
            "finalizers": [*others, finalizer] if add else others,
        }
    }
    return await api.patch(kind_of(document), metadata["namespace"], metadata["name"], change)
