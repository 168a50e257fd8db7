"""A running Cluster goes to TLS and access control under load, and back, a step at a time (G4)."""

import json
import sys

import pytest
from e2e.guard.accounts import GUARDED, Account, allow
from e2e.installed import Namespace
from e2e.load.pod import LoadPod
from e2e.load.program import Settings
from tests.checkers.check import check
from tests.checkers.history import FAIL, INFO

pytestmark = pytest.mark.timeout(1800)  # At first it also builds the Kubernetes that it runs on.

CLUSTER = "cluster.millrace.dev/logs"
RESTART_NS = 5 * 10**9
"""No write waits longer while the operator restarts all brokers: docs/kubernetes.md."""
_STEP_S = 400


@pytest.mark.parametrize("is_outside", [False, True], ids=["inside", "outside"])
def test_a_running_cluster_goes_to_tls_and_access_control_and_no_write_fails(
    namespace: Namespace, is_outside: bool
) -> None:
    """Those outside come by Services of their own, each of which has a port for either."""
    outside = {"outside": {"type": "ClusterIP"}, "outsideDrpc": {}} if is_outside else {}
    namespace.make_cluster(listeners=outside)
    for_plain, for_tls = (
        ("outsideBootstrap", "outsideTlsBootstrap") if is_outside else ("bootstrap", "tlsBootstrap")
    )
    conditions = ["OutsideAddressed"] if is_outside else []
    for condition in conditions:
        namespace.wait(CLUSTER, condition)
    plain = load_of(namespace, "plain", namespace.get(CLUSTER)["status"][for_plain])
    go_to(namespace, "Optional", "Logged", *conditions)
    plain.wait_for_all()

    account = Account(namespace.name, "load")
    account.make(namespace.kubectl)
    allow(namespace, account, ["*"], ["topics", "groups", "transactions"])
    address = namespace.get(CLUSTER)["status"][for_tls]
    changed = load_of(namespace, "changed", address, account.name)
    judge(plain)
    go_to(namespace, "Required", "Enforced", *conditions)
    changed.wait_for_all()
    judge(changed)


def test_a_running_cluster_goes_back_to_plain_text_and_no_write_fails(namespace: Namespace) -> None:
    """Clients that have a token go on until all are in plain text; those without begin between."""
    namespace.make_cluster(**GUARDED)
    account = Account(namespace.name, "load")
    account.make(namespace.kubectl)
    allow(namespace, account, ["*"], ["topics", "groups", "transactions"])
    # The Service's port that has TLS at each step but the last one, and is there already.
    address = f"logs-bootstrap.{namespace.name}.svc:7192"
    guarded = load_of(namespace, "guarded", address, account.name)
    go_to(namespace, "Optional", "Logged")
    guarded.wait_for_all()
    plain = load_of(namespace, "plain", namespace.get(CLUSTER)["status"]["bootstrap"])
    judge(guarded)
    go_to(namespace, "Disabled", "Disabled")
    plain.wait_for_all()
    judge(plain)


def load_of(namespace: Namespace, name: str, bootstrap: str, account: str = "") -> LoadPod:
    """Start a load on a topic of its own."""
    namespace.make_topic(name, partitions=3, replicas=3)
    topic = f"{namespace.name}/{name}"
    settings = Settings(bootstrap=bootstrap, topics=(topic,), partitions=3, pause_s=0.05)
    load = LoadPod(namespace, settings, name=name, account=account)
    load.start()
    load.window("open")
    return load


def go_to(namespace: Namespace, tls: str, access: str, *conditions: str) -> None:
    """Write a step, and wait until all brokers have gone there, and for more conditions."""
    spec = {"tls": {"mode": tls}, "access": {"mode": access}}
    patch = json.dumps({"spec": spec})
    namespace("patch", CLUSTER, "--type=merge", f"--patch={patch}")
    namespace.wait(CLUSTER, f"jsonpath={{.status.security.tls}}={tls}", _STEP_S)
    for condition in ("SecurityAsWanted", "RolledOut", "Healthy", *conditions):
        namespace.wait(CLUSTER, condition, _STEP_S)
    assert namespace.get(CLUSTER)["status"]["security"] == {"tls": tls, "access": access}


def judge(load: LoadPod) -> None:
    """End a load, and look whether all of it was done, and nothing is lost."""
    load.window("close")
    history = load.finish()
    report = check(history, availability_ns=RESTART_NS)
    sys.stderr.write(f"e2e: {load.name}: {report.measures}\n")
    assert report.is_good, report.text()
    failed = [op for op in history if op.f == "send" and op.type in (FAIL, INFO)]
    assert not failed, failed[:3]
