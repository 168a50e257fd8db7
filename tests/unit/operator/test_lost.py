"""Brokers whose volumes are gone with their node."""

from typing import Any

import pytest

from millrace.operator.plan.lost import LostBroker, lost_brokers
from millrace.operator.plan.rolling import PartitionHealth


def pod(name: str = "c-b-0", *, is_scheduled: bool = False) -> dict[str, Any]:
    status = "True" if is_scheduled else "False"
    return {
        "metadata": {"name": name},
        "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": f"data-{name}"}}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": status}]},
    }


def claim(broker: str) -> dict[str, Any]:
    return {"metadata": {"name": f"data-{broker}"}, "spec": {"volumeName": "v"}}


CLAIM = claim("c-b-0")


def volume(host: str) -> dict[str, Any]:
    term = {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]
    }
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}}


def node(host: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"kubernetes.io/hostname": host}}}


def found(
    partitions: list[PartitionHealth] | None,
    *,
    of: tuple[dict[str, Any], ...] = (),
    nodes: tuple[str, ...] = ("other",),
    fenced: tuple[str, ...] = ("c-b-0",),
) -> list[LostBroker]:
    return lost_brokers(
        of or [pod()],
        [CLAIM, claim("c-b-1")],
        {"v": volume("gone")},
        list(map(node, nodes)),
        partitions,
        fenced=fenced,
    )


def partition(*in_sync: str) -> PartitionHealth:
    return PartitionHealth(place="t-0", replicas=["c-b-0", "c-b-1"], in_sync=in_sync, min_in_sync=1)


def test_a_broker_whose_volume_no_node_can_use_is_lost() -> None:
    (lost,) = found([partition("c-b-1")])
    assert (lost.name, lost.claims, lost.needed_for) == ("c-b-0", (CLAIM,), ())


def test_a_broker_waits_for_a_node_that_is_only_away() -> None:
    assert found([partition("c-b-1")], nodes=("other", "gone")) == []


def test_a_broker_that_runs_is_not_lost() -> None:
    assert found([partition("c-b-1")], of=(pod(is_scheduled=True),)) == []


@pytest.mark.parametrize(
    ("keys", "is_lost"),
    [
        (["topology.kubernetes.io/zone"], False),
        (["topology.ebs.csi.aws.com/zone"], False),
        (["topology.kubernetes.io/region", "topology.csi.vmware.com/k8s-zone"], False),
        (["topology.kubernetes.io/zone", "kubernetes.io/hostname"], True),
        (["topology.topolvm.io/node"], True),
    ],
)
def test_a_volume_of_a_zone_is_not_lost_while_the_zone_has_no_node(
    keys: list[str], is_lost: bool
) -> None:
    wanted = [{"key": key, "operator": "In", "values": ["gone"]} for key in keys]
    required = {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
    of_zone = {"spec": {"nodeAffinity": {"required": required}}}
    for nodes in ([], [node("other")]):
        told = lost_brokers([pod()], [CLAIM], {"v": of_zone}, nodes, None)
        assert bool(told) == is_lost


def test_what_nobody_else_has_is_named() -> None:
    (lost,) = found([partition("c-b-0")])
    assert lost.needed_for == ("t-0",)
    (unknown,) = found(None)
    assert unknown.needed_for


def test_brokers_that_are_lost_together_do_not_count_for_each_other() -> None:
    """Nobody could say yet that they are gone."""
    both = pod("c-b-0"), pod("c-b-1")
    stale = partition("c-b-0", "c-b-1")
    assert [lost.needed_for for lost in found([stale], of=both, fenced=())] == [("t-0",)] * 2


def test_a_broker_that_is_fenced_does_not_count() -> None:
    (lost,) = found([partition("c-b-0", "c-b-1")], fenced=("c-b-0", "c-b-1"))
    assert lost.needed_for == ("t-0",)
    (lost,) = found([partition("c-b-0", "c-b-1")])
    assert not lost.needed_for
