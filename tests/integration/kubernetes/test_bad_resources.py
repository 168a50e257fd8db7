"""Resources that are wrong or hostile, against a real API server and the operator's process."""

from collections.abc import Iterator

import pytest
from tests.api_server import binaries
from tests.bad_resources.cases import CASES, NAMESPACE, VOLUME, Document
from tests.bad_resources.world import World
from tests.integration.running_broker import wait_until

LABEL_SECONDS_MAX = 45.0
"""Less than the minute after which the operator looks again without a reason."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An operator with a Cluster, a Topic and a Quota that are good."""
    if not binaries.PROGRAMS.are_built():
        pytest.skip("kube-apiserver and etcd are not built yet: make api-server")
    world = World(tmp_path_factory.mktemp("bad-resources"))
    try:
        yield world.start()
    finally:
        world.stop()


@pytest.mark.timeout(300)
@pytest.mark.nightly
def test_each_is_refused_or_explained_and_troubles_nobody_else(world: World) -> None:
    """One test for the table: all that is accepted stays, as it would beside what others run."""
    wrong = {}
    for case in CASES:
        outcome = world.outcome(case)
        if outcome.missing:
            wrong[case.name] = outcome
    assert wrong == {}
    assert world.problems() == []


@pytest.mark.timeout(300)
def test_a_namespace_that_gets_the_label_may_have_topics_at_once(world: World) -> None:
    def request(method: str, path: str, document: Document | None = None) -> Document:
        status, answer = world.api_server.request(method, path, document)
        assert 200 <= status < 300, answer
        return answer

    def reason() -> str:
        conditions = request("GET", f"{topics}/t").get("status", {}).get("conditions", ())
        return next(
            (condition["reason"] for condition in conditions if condition["type"] == "Ready"), ""
        )

    version, where = "millrace.dev/v1beta1", "/apis/millrace.dev/v1beta1/namespaces"
    namespace = request("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
    selector = {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}
    pool = {"name": "b", "replicas": 1, "volumes": [VOLUME]}
    spec = {"pools": [pool], "allowedTopics": {"namespaces": selector}}
    cluster = {"apiVersion": version, "kind": "Cluster", "metadata": {"name": "choosy"}}
    request("POST", f"{where}/{NAMESPACE}/clusters", {**cluster, "spec": spec})
    topics = f"{where}/shop/topics"
    topic = {"apiVersion": version, "kind": "Topic", "metadata": {"name": "t"}}
    reference = {"name": "choosy", "namespace": NAMESPACE}
    request("POST", topics, {**topic, "spec": {"clusterRef": reference}})
    wait_until(lambda: reason() == "NotAllowed", "the Topic is not allowed", 60)
    namespace["metadata"]["labels"] = {"team": "a"}
    request("PUT", "/api/v1/namespaces/shop", namespace)
    wait_until(lambda: reason() != "NotAllowed", "the Topic is allowed", LABEL_SECONDS_MAX)
