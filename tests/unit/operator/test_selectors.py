"""Selectors of labels: of namespaces whose Topics a cluster takes."""

from typing import Any

import pytest

from millrace.operator.plan.selectors import allows, selects
from millrace.operator.reconcile.resources import cluster_of


def allowed(namespaces: dict[str, Any] | None, namespace: str, **labels: str) -> bool:
    spec: dict[str, Any] = {"pools": [{"name": "b", "volumes": [{"name": "d", "size": 1}]}]}
    if namespaces is not None:
        spec["allowedTopics"] = {"namespaces": namespaces}
    metadata = {"namespace": "logs", "name": "c", "uid": "u", "generation": 1}
    return allows(cluster_of({"metadata": metadata, "spec": spec}), namespace, labels)


def test_only_the_cluster_s_own_namespace_is_allowed_unless_it_says_more() -> None:
    assert allowed(None, "logs")
    assert not allowed(None, "shop")
    assert allowed({"from": "All"}, "shop")


def test_a_selector_allows_namespaces_by_their_labels() -> None:
    selector = {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}
    assert allowed(selector, "shop", team="a")
    assert not allowed(selector, "shop", team="b")
    assert allowed(selector, "logs"), "the own namespace needs no label"


@pytest.mark.parametrize(
    ("expression", "is_met"),
    [
        ({"key": "team", "operator": "In", "values": ["a", "b"]}, True),
        ({"key": "team", "operator": "NotIn", "values": ["a"]}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "operator": "DoesNotExist"}, False),
        ({"key": "team", "operator": "Guess"}, False),
        ({"key": "cores", "operator": "Gt", "values": ["7"]}, True),
        ({"key": "cores", "operator": "Lt", "values": ["8"]}, False),
        ({"key": "team", "operator": "Gt", "values": ["7"]}, False),
    ],
)
def test_an_expression_selects_as_kubernetes_does(expression: dict[str, Any], is_met: bool) -> None:
    assert selects({"matchExpressions": [expression]}, {"team": "a", "cores": "8"}) is is_met
