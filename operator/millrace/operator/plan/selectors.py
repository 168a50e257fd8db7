"""Selectors of labels: which namespaces may name a Cluster, which nodes a volume can be used on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millrace.operator.model.cluster import Cluster, NamespacesFrom
from millrace.operator.model.objects import Document


def allows(cluster: Cluster, namespace: str, labels: Mapping[str, str]) -> bool:
    """Return whether Topics and Quotas of a namespace with these labels may name the cluster.

    Those of the Cluster's own namespace always may, whatever labels it has.
    """
    allowed = cluster.spec.allowed_topics.namespaces
    if namespace == cluster.namespace:
        return True
    match allowed.from_:
        case NamespacesFrom.ALL:
            return True
        case NamespacesFrom.SAME:
            return False
        case NamespacesFrom.SELECTOR:
            return selects(msgspec.to_builtins(allowed.selector), labels)


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a label selector of Kubernetes selects these labels; an empty one does."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_meets(expression, labels) for expression in selector.get("matchExpressions") or ())


def can_be_used_on(volume: Document, node_labels: Mapping[str, str]) -> bool:
    """Return whether a PersistentVolume can be used on a node with these labels."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    if required is None:
        return True
    return any(selects(term, node_labels) for term in required.get("nodeSelectorTerms") or ())


def outlives_nodes(volume: Document) -> bool:
    """Return whether a PersistentVolume is bound to a zone or a region, and to no single node.

    Each driver has a label of its own for zones, as `topology.ebs.csi.aws.com/zone`.
    """
    required = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    return any(
        all(
            expression["key"].rpartition("/")[2].endswith(("zone", "region"))
            for expression in term.get("matchExpressions") or ()
        )
        and not term.get("matchFields")
        for term in required.get("nodeSelectorTerms") or ()
    )


def _meets(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key: str = expression.get("key", "")
    values: Sequence[str] = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt":  # Like the next one, of nodes only.
            return _number(labels.get(key)) > _number(values[0])
        case "Lt":
            return _number(labels.get(key)) < _number(values[0])
        case _:
            return False  # Unknown: refuse rather than allow by mistake.


def _number(text: str | None) -> float:
    """Return a whole number; of anything else one that is neither more nor less than another."""
    try:
        return int(text or "")
    except ValueError:
        return math.nan
