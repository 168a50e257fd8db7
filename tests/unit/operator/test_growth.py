"""Which volumes grow, and what is done about those that do not."""

from typing import Any

from millrace.operator.plan.growth import Growth, growth
from millrace.operator.reconcile.resources import cluster_of

LONG_AGO = "2026-01-01T11:57:00Z"
CAN = {"fast": {"allowVolumeExpansion": True}}


def plan(claims: list[Any], *, size: str = "2Gi", classes: Any = CAN, **more: Any) -> Growth:
    volumes = [{"name": "data", "size": size}]
    cluster = cluster_of(
        {
            "metadata": {"namespace": "n", "name": "c", "uid": "u", "generation": 1},
            "spec": {"pools": [{"name": "b", "volumes": volumes}]},
        }
    )
    pods = more.get("pods", [pod()])
    return growth(cluster, more.get("sets", ()), pods, claims, classes, long_ago=LONG_AGO)


def pod(made: str = "2026-01-01T10:00:00Z") -> Any:
    return {"metadata": {"name": "c-b-0", "creationTimestamp": made}}


def claim(asks: str = "1Gi", has: str = "1Gi", phase: str = "Bound", **conditions: str) -> Any:
    return {
        "metadata": {"name": "data-c-b-0"},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": asks}}},
        "status": {
            "phase": phase,
            "capacity": {"storage": has},
            "conditions": [
                {"type": type, "status": "True", "lastTransitionTime": since, "message": "no room"}
                for type, since in conditions.items()
            ],
        },
    }


def stateful_set(size: str, **metadata: str) -> Any:
    template = {
        "metadata": {"name": "data"},
        "spec": {"resources": {"requests": {"storage": size}}},
    }
    return {
        "metadata": {"name": "c-b", **metadata},
        "spec": {"volumeClaimTemplates": [template]},
    }


def test_a_claim_grows_where_its_storage_class_lets_it() -> None:
    small = claim()
    assert plan([small]).grow == ((small, "2Gi"),)
    assert plan([claim(asks="2048Mi", has="2Gi")]) == Growth()
    assert plan([claim(asks="3Gi", has="3Gi")]) == Growth()
    refused = plan([small], classes={"fast": {}})
    assert refused.grow == ()
    assert "'fast' lets no claim grow" in refused.problem


def test_a_claim_that_is_not_bound_waits_until_it_is() -> None:
    step = plan([claim(phase="Pending")])
    assert (step.grow, step.under_way, step.problem) == ((), ("data-c-b-0",), "")


def test_a_stateful_set_that_asks_for_less_is_made_anew_once() -> None:
    outgrown = stateful_set("1Gi")
    assert plan([], sets=[outgrown]).recreate == (outgrown,)
    assert plan([], sets=[stateful_set("1Gi", deletionTimestamp="now")]).recreate == ()
    assert plan([], sets=[stateful_set("2Gi")]).recreate == ()


def test_a_volume_that_grows_when_it_is_mounted_has_its_broker_restarted_after_a_while() -> None:
    def pending(since: str) -> Any:
        return claim(asks="2Gi", FileSystemResizePending=since)

    assert plan([pending("2026-01-01T11:59:00Z")]).restart == {}
    long = pending("2026-01-01T11:50:00Z")
    assert list(plan([long]).restart) == ["c-b-0"]
    restarted = plan([long], pods=[pod("2026-01-01T11:55:00Z")])
    assert restarted.restart == {}
    assert "did not grow when it was mounted again" in restarted.problem


def test_a_driver_that_cannot_is_quoted() -> None:
    failed = claim(asks="2Gi", ControllerResizeError="2026-01-01T11:50:00Z")
    assert "no room" in plan([failed]).problem
