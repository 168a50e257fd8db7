"""Public resources: read from documents of the API server; and their status, written there."""

from collections.abc import Awaitable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from millrace.operator.kube.api import Api, ApiError
from millrace.operator.model.cluster import Cluster, ClusterSpec
from millrace.operator.model.conditions import Condition, Reason, merged
from millrace.operator.model.objects import Document
from millrace.operator.model.quota import Quota, QuotaSpec
from millrace.operator.model.topic import Topic, TopicSpec

_WRITTEN_ALWAYS = frozenset({"observedGeneration", "conditions"})
"""Fields of every status."""

_S = TypeVar("_S", ClusterSpec, TopicSpec, QuotaSpec)


def cluster_of(document: Document) -> Cluster:
    """Return a Cluster.

    Raises:
        msgspec.ValidationError: the API server's definition is not of this release.
    """
    annotations = document["metadata"].get("annotations") or {}
    spec = _spec(document, ClusterSpec)
    return Cluster(spec=spec, annotations=annotations, **_identity(document))


def topic_of(document: Document) -> Topic:
    """Return a Topic.

    Raises:
        msgspec.ValidationError: as `cluster_of`.
    """
    return Topic(spec=_spec(document, TopicSpec), **_identity(document))


def quota_of(document: Document) -> Quota:
    """Return a Quota.

    Raises:
        msgspec.ValidationError: as `cluster_of`.
    """
    return Quota(spec=_spec(document, QuotaSpec), **_identity(document))


def is_observed(document: Document) -> bool:
    """Whether the status is about the resource as it is now."""
    status = document.get("status") or {}
    return bool(status.get("observedGeneration") == document["metadata"]["generation"])


def is_true(document: Document, type: str) -> bool:
    """Whether a condition is true, and about the resource as it is now."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return is_observed(document) and any(
        condition["type"] == type and condition["status"] == "True" for condition in conditions
    )


def has_reason(document: Document, type: str, reason: Reason) -> bool:
    """Whether a condition has this reason."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    return any(
        condition["type"] == type and condition["reason"] == reason for condition in conditions
    )


def is_owned(document: Document, cluster: Cluster) -> bool:
    """Whether an object belongs to the Cluster."""
    owners = document["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == cluster.uid for owner in owners)


def if_owned(document: Document | None, cluster: Cluster) -> Document | None:
    """Return an object if it belongs to the Cluster: what is somebody else's says nothing of it."""
    return document if document is not None and is_owned(document, cluster) else None


def known_before(document: Document) -> dict[str, object]:
    """Return the last status without its conditions."""
    status = document.get("status") or {}
    return {name: value for name, value in status.items() if name not in _WRITTEN_ALWAYS}


async def write_status(
    api: Api, document: Document, conditions: Iterable[Condition], content: Mapping[str, object]
) -> None:
    """Write the status if it has changed."""
    metadata = document["metadata"]
    before: dict[str, Any] = document.get("status") or {}
    status = {
        "observedGeneration": metadata["generation"],
        "conditions": merged(
            before.get("conditions") or (),
            conditions,
            generation=metadata["generation"],
            now=now(),
        ),
        **{name: value for name, value in content.items() if value is not None},
    }
    if status == before:
        return
    await api.apply(
        {
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "status": status,
        },
        subresource="status",
    )


async def unless_changed(patch: Awaitable[Document]) -> bool:
    """Wait for a change of an object; return whether it is made: not if that has changed.

    Raises:
        ApiError: the API server refuses it otherwise, or did not answer.
    """
    try:
        await patch
    except ApiError as error:
        if error.status not in (404, 409):
            raise
        return False
    return True


def now() -> str:
    """Return the time as the API server writes it."""
    return written(datetime.now(UTC))


def written(time: datetime) -> str:
    """Return a time, of UTC, as the API server writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _spec(document: Document, cls: type[_S]) -> _S:
    return msgspec.convert(document.get("spec") or {}, cls)


def _identity(document: Document) -> dict[str, Any]:
    metadata = document["metadata"]
    return {name: metadata[name] for name in ("namespace", "name", "uid", "generation")}
