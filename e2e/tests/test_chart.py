"""The chart for users: helm tests what it installs, and Clusters survive its removal."""

import pytest
from e2e.cluster.providers import Cluster
from e2e.installed import SYSTEM, Namespace, helm, install_operator

pytestmark = pytest.mark.timeout(900)

_RELEASE = ("millrace", f"--namespace={SYSTEM}")


def test_helm_tests_the_release_whose_end_brokers_and_topics_outlive(
    operator: Cluster, namespace: Namespace
) -> None:
    helm(operator, "test", *_RELEASE, "--timeout=120s")

    namespace.make_cluster()
    namespace.make_topic("orders", partitions=3)
    namespace.make_client()
    topic = f"{namespace.name}/orders"
    fruits = [f"fruit {number}" for number in range(100)]
    namespace.produce(topic, fruits)
    before = namespace.broker_uids()

    helm(operator, "uninstall", *_RELEASE, "--wait", "--timeout=120s")
    try:
        assert namespace.get("clusters.millrace.dev")["items"], "the Cluster went with the release"
        assert sorted(namespace.consume(topic, 100)) == sorted(fruits)
    finally:
        install_operator(operator)
    namespace.make_topic("invoices", partitions=1)
    namespace.wait("cluster.millrace.dev/logs", "RolledOut")
    assert namespace.broker_uids() == before
    assert sorted(namespace.consume(topic, 100)) == sorted(fruits)
