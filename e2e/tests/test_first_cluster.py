"""From an applied Cluster to a consumed record, and through the life of a cluster."""

import pytest
from e2e.installed import Namespace, until

pytestmark = pytest.mark.timeout(1800)  # At first it also builds the Kubernetes that it runs on.


def test_pods_write_and_read_a_topic_and_nothing_is_lost_when_brokers_go(
    namespace: Namespace,
) -> None:
    namespace.make_cluster()
    namespace.make_topic("orders", partitions=3, config={"retention.ms": "7d"})
    namespace.make_client()
    topic = f"{namespace.name}/orders"
    fruits = [f"fruit {number}" for number in range(100)]
    namespace.produce(topic, fruits)
    assert sorted(namespace.consume(topic, 100)) == sorted(fruits)

    namespace("delete", "pod", "logs-brokers-0", "--grace-period=0", "--force", "--wait=false")
    more = [f"late {number}" for number in range(100)]
    namespace.produce(topic, more)
    assert sorted(namespace.consume(topic, 200)) == sorted(fruits + more)
    namespace.wait("cluster.millrace.dev/logs", "Healthy")

    before = namespace.broker_uids()
    namespace("rollout", "restart", "statefulset/logs-brokers")
    until(lambda: not (namespace.broker_uids() & before), "every broker was restarted", 300)
    namespace.wait("cluster.millrace.dev/logs", "RolledOut", 300)
    assert sorted(namespace.consume(topic, 200)) == sorted(fruits + more)

    namespace("delete", "topic.millrace.dev/orders", "--timeout=60s")
    assert "orders" not in namespace.millrace("topic", "list")
