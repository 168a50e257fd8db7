"""Brokers that share a node, though another one could take one of them."""

from typing import Any

import pytest

from millrace.operator.plan.spread import Crowd, crowds, shared_nodes

HOST = "kubernetes.io/hostname"


def pod(name: str, node: str = "", **spec: Any) -> dict[str, Any]:
    claim = {"persistentVolumeClaim": {"claimName": f"data-{name}"}}
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": node, "volumes": [claim, {"emptyDir": {}}], **spec},
    }


def node(name: str, *, is_ready: bool = True, **spec: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True" if is_ready else "Unknown"}
    return {
        "metadata": {"name": name, "labels": {HOST: name}},
        "spec": spec,
        "status": {"conditions": [ready]},
    }


def only_on(host: str) -> dict[str, Any]:
    expression = {"key": HOST, "operator": "In", "values": [host]}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def found(
    pods: list[dict[str, Any]],
    *nodes: dict[str, Any],
    local_to: dict[str, str] | None = None,
) -> list[Crowd]:
    local = local_to or {}
    claims = [
        {"metadata": {"name": f"data-{broker}"}, "spec": {"volumeName": broker}} for broker in local
    ]
    volumes = {
        broker: {"spec": {"nodeAffinity": {"required": only_on(host)}}}
        for broker, host in local.items()
    }
    return crowds(pods, nodes, claims, volumes)


TWO_ON_ONE = [pod("c-b-0", "n1"), pod("c-b-1", "n2"), pod("c-b-2", "n1")]
ALL = node("n1"), node("n2"), node("n3")
CROWD = Crowd("n1", ("c-b-0", "c-b-2"), "c-b-2", "n3")


def test_brokers_on_one_node_are_found_when_another_node_has_none() -> None:
    assert list(shared_nodes(TWO_ON_ONE)) == ["n1"]
    assert found(TWO_ON_ONE, *ALL) == [CROWD]


def test_where_each_has_a_node_or_no_node_is_free_all_is_well() -> None:
    assert shared_nodes([pod("c-b-0", "n1"), pod("c-b-1"), pod("c-b-2")]) == {}
    assert found([pod("c-b-0", "n1"), pod("c-b-1", "n2")], *ALL) == []
    assert found(TWO_ON_ONE, node("n1"), node("n2")) == []


def test_a_broker_that_is_about_to_go_does_not_count() -> None:
    going = pod("c-b-2", "n1")
    going["metadata"]["deletionTimestamp"] = "now"
    assert found([*TWO_ON_ONE[:2], going], *ALL) == []


@pytest.mark.parametrize(
    "free",
    [
        node("n3", is_ready=False),
        node("n3", unschedulable=True),
        node("n3", taints=[{"key": "db", "effect": "NoSchedule"}]),
        node("n3", taints=[{"key": "db", "value": "x", "effect": "NoExecute"}]),
    ],
)
def test_a_node_that_takes_no_pod_is_not_free(free: dict[str, Any]) -> None:
    assert found(TWO_ON_ONE, *ALL[:2], free) == []


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "db", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "db", "value": "x"},
    ],
)
def test_a_taint_that_brokers_tolerate_keeps_none_off(toleration: dict[str, str]) -> None:
    taint = {"key": "db", "value": "x", "effect": "NoSchedule"}
    pods = [pod(name, "n1", tolerations=[toleration]) for name in ("c-b-0", "c-b-1")]
    assert found(pods, node("n2", taints=[taint])) == [
        Crowd("n1", ("c-b-0", "c-b-1"), "c-b-1", "n2")
    ]
    other = taint | {"key": "other"}
    if toleration.get("key"):
        assert found(pods, node("n2", taints=[other])) == []


def test_a_volume_that_stays_on_its_node_keeps_its_broker_there() -> None:
    assert found(TWO_ON_ONE, *ALL, local_to={"c-b-0": "n1", "c-b-2": "n1"}) == []
    (crowd,) = found(TWO_ON_ONE, *ALL, local_to={"c-b-2": "n1"})
    assert crowd.movable == "c-b-0"


def test_brokers_stay_where_their_pools_rules_hold_them() -> None:
    chosen = [pod(name, "n1", nodeSelector={HOST: "n1"}) for name in ("c-b-0", "c-b-1")]
    assert found(chosen, *ALL) == []
    required = {"requiredDuringSchedulingIgnoredDuringExecution": only_on("n1")}
    affine = [pod(name, "n1", affinity={"nodeAffinity": required}) for name in ("c-b-0", "c-b-1")]
    assert found(affine, *ALL) == []
