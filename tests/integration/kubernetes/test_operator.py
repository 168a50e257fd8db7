"""The operator on a real API server; the rest of Kubernetes, and the brokers, are played."""

from typing import Any

from tests.integration.kubernetes.operated import Operated

VOLUME = {"name": "data", "size": "1Gi"}


def pool(name: str = "b", replicas: int = 3, **more: Any) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "volumes": [VOLUME], **more}


def test_a_cluster_gets_ready_and_its_brokers_know_the_zones_of_their_nodes(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.settle()
    zones = {each.name: each.rack for each in operated.fake().brokers.values()}
    assert zones == {"c-b-0": "a", "c-b-1": "b", "c-b-2": "c"}


def test_a_pod_that_is_about_to_get_its_node_is_looked_at_again_at_once(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool(replicas=1)]})
    operated.look()
    operated.controllers.step()
    (pod,) = operated.controllers.items("/api/v1/%s/pods")
    assert "millrace.dev/node" not in pod["metadata"]["annotations"]
    operated.look()
    (pod,) = operated.controllers.items("/api/v1/%s/pods")
    annotations = pod["metadata"]["annotations"]
    assert (annotations["millrace.dev/node"], annotations["millrace.dev/zone"]) == ("node-0", "a")
