"""From an applied Cluster to a consumed record, and through the life of a cluster.

The pod that stands for a user's programs also runs a load: plain writes, transactions, and a group
that copies them exactly once.
"""

import json
import sys

import pytest
from e2e.installed import Namespace, until
from e2e.load.pod import LoadPod
from e2e.load.program import Settings
from tests.checkers.check import check
from tests.checkers.transactional import judge
from tests.faults.transactional import KEYS

pytestmark = pytest.mark.timeout(1800)  # At first it also builds the Kubernetes that it runs on.

RESTART_NS = 5 * 10**9
"""No transaction takes longer while the operator restarts all brokers: docs/kubernetes.md."""


def test_pods_write_and_read_a_topic_and_nothing_is_lost_when_brokers_go(
    namespace: Namespace,
) -> None:
    settings = {
        "cluster": {"transactions_partitions": 4},
        "transactions": {"timeout_ms_max": "1min"},
    }
    namespace.make_cluster(config=settings)
    namespace.make_topic("orders", partitions=3, config={"retention.ms": "7d"})
    namespace.make_topic("load", partitions=3, replicas=3)
    load = LoadPod(
        namespace,
        Settings(
            bootstrap=f"logs-bootstrap.{namespace.name}.svc:7092",
            topics=(f"{namespace.name}/load",),
            partitions=3,
            transactions_in=namespace.name,
        ),
        name="client",
    )
    load.start()
    described = json.loads(
        namespace.millrace("topic", "describe", "__transactions", "--output", "json")
    )
    assert len(described["partitions"]) == 4
    assert "millrace_transaction_timeout_max_seconds 60.0" in metrics(namespace)
    topic = f"{namespace.name}/orders"
    fruits = [f"fruit {number}" for number in range(100)]
    namespace.produce(topic, fruits)
    assert sorted(namespace.consume(topic, 100)) == sorted(fruits)

    namespace("delete", "pod", "logs-brokers-0", "--grace-period=0", "--force", "--wait=false")
    more = [f"late {number}" for number in range(100)]
    namespace.produce(topic, more)
    assert sorted(namespace.consume(topic, 200)) == sorted(fruits + more)
    namespace.wait("cluster.millrace.dev/logs", "Healthy")

    load.wait_for_all()
    load.window("open")
    before = namespace.broker_uids()
    namespace("rollout", "restart", "statefulset/logs-brokers")
    until(lambda: not (namespace.broker_uids() & before), "every broker was restarted", 300)
    namespace.wait("cluster.millrace.dev/logs", "RolledOut", 300)
    load.wait_for_all()
    load.window("close")
    assert sorted(namespace.consume(topic, 200)) == sorted(fruits + more)

    namespace("delete", "topic.millrace.dev/orders", "--timeout=60s")
    assert "orders" not in namespace.millrace("topic", "list")

    report = check(load.finish(), availability_ns=RESTART_NS)
    assert report.is_good, report.text()
    judged = judge(*load.transactions(), KEYS, commit_ns=RESTART_NS)
    sys.stderr.write(
        f"e2e: {judged}; {judged.in_window} transactions in the restart of all brokers, the "
        f"longest took {judged.longest_s:.2f} s; the longest wait of a plain write was "
        f"{report.measures['longest_wait_s']:.2f} s\n"
    )
    assert not judged.failures, judged.failures
    assert judged.in_window >= 20
    assert judged.copied == judged.committed
    assert json.loads(namespace.millrace("transaction", "hanging", "--output", "json")) == []


def metrics(namespace: Namespace) -> str:
    """The metrics of a broker, as the pod of the load gets them."""
    script = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
    page = f"http://logs-brokers-0.logs-brokers.{namespace.name}.svc:7093/metrics"
    return namespace("exec", "client", "--", "python", "-c", script, page)
