"""Which pods are told of the zone of their node."""

from typing import Any

from millrace.operator.plan import zones


def pod(node: str = "", *, waits: bool = True, told: str = "", unscheduled: bool = False) -> Any:
    scheduled = {"type": "PodScheduled", "status": "False" if unscheduled else "True"}
    return {
        "metadata": {"annotations": {"millrace.dev/node": told} if told else None},
        "spec": {"nodeName": node, "initContainers": [{"name": "zone"}] if waits else None},
        "status": {"conditions": [scheduled]},
    }


def test_a_pod_that_has_a_node_is_told_once() -> None:
    new = pod("n1")
    assert zones.untold([new, pod(), pod("n1", told="n1"), pod("n1", waits=False)]) == [new]


def test_a_node_without_a_zone_is_told_as_well_so_that_nobody_waits_for_one() -> None:
    there = {"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}}}
    assert zones.annotations(there) == {"millrace.dev/zone": "a", "millrace.dev/node": "n1"}
    without = {"metadata": {"name": "n2"}}
    assert zones.annotations(without) == {"millrace.dev/zone": "", "millrace.dev/node": "n2"}


def test_pods_that_no_node_is_found_for_are_no_reason_to_look_again_at_once() -> None:
    assert zones.is_any_to_come([pod("n1"), pod()])
    assert not zones.is_any_to_come([pod("n1"), pod(unscheduled=True), pod(waits=False)])
