"""`kubectl millrace`, with a kubectl that notes what it is asked for."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.cli import kubectl_plugin
from millrace.cli.console.failures import Failure
from millrace.operator.model import bootstrap, objects
from millrace.operator.model.objects import Decided, desired_objects
from millrace.operator.reconcile.resources import cluster_of

KUBECTL = """#!/bin/sh
echo "$@" >> {folder}/calls
case " $* " in
  *" get pods "*) cat {folder}/pods ;;
  *" create token "*) echo "a.secret.token" ;;
  *" sh -c "*) while [ "$1" != "--" ]; do shift; done; shift; exec "$@" ;;
  *) cat; echo "ran"; exit 7 ;;
esac
"""


def pod(name: str, ready: str, **metadata: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "shop", **metadata},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def run(
    folder: Path, pods: list[dict[str, Any]], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    kubectl = folder / "kubectl"
    kubectl.write_text(KUBECTL.format(folder=folder))
    kubectl.chmod(0o755)
    (folder / "pods").write_text(json.dumps({"items": pods}))
    program = "from millrace.cli.kubectl_plugin import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        input="hello\n",
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
    )


def test_a_command_runs_in_a_ready_broker_s_pod(tmp_path: Path) -> None:
    pods = [
        pod("logs-b-0", "False"),
        pod("logs-b-1", "True", deletionTimestamp="now"),
        pod("logs-b-2", "True"),
    ]
    done = run(tmp_path, pods, "-n", "shop", "logs", "produce", "-o", "json", "orders")
    assert (done.stdout, done.returncode) == ("hello\nran\n", 7)
    found, ran = (tmp_path / "calls").read_text().splitlines()
    assert found == (
        "--namespace=shop get pods "
        "--selector=millrace.dev/cluster=logs,app.kubernetes.io/component=broker --output=json"
    )
    assert ran == (
        "--namespace=shop exec --stdin --namespace=shop --container=broker logs-b-2 -- env "
        "MILLRACE_BOOTSTRAP=logs-bootstrap.shop.svc:7092 millrace produce -o json orders"
    )


def test_with_an_account_its_token_goes_with_the_command_and_nothing_else_has_it(
    tmp_path: Path,
) -> None:
    """G1."""
    millrace = tmp_path / "millrace"
    millrace.write_text(
        '#!/bin/sh\necho "$MILLRACE_TOKEN_FILE" $(cat "$MILLRACE_TOKEN_FILE") "$@"\ncat\nexit 5\n'
    )
    millrace.chmod(0o755)
    done = run(tmp_path, [pod("logs-b-2", "True")], "--account", "ci/bot", "logs", "produce", "a b")
    file, token, *rest = done.stdout.split()
    assert (token, rest, done.returncode) == ("a.secret.token", ["produce", "a", "b", "hello"], 5)
    assert not Path(file).exists()
    calls = (tmp_path / "calls").read_text()
    assert (
        "create token bot --namespace=ci --audience=logs.shop.millrace.dev --duration=10m" in calls
    )
    assert "secret" not in calls


def test_without_a_ready_broker_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, [pod("logs-b-0", "False")], "logs", "topic", "list")
    assert done.returncode == 3
    assert "no broker of a Cluster logs is ready" in done.stderr


def test_without_kubectl_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Failure, match="kubectl is not on the PATH"):
        kubectl_plugin.command.main(["logs", "topic", "list"], standalone_mode=False)


def test_it_finds_what_the_operator_makes() -> None:
    labels = objects.selector("logs")
    assert kubectl_plugin.BROKERS.format("logs") == ",".join(
        f"{name}={value}" for name, value in labels.items()
    )
    spec = {"pools": [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}]}
    metadata = {"namespace": "shop", "name": "logs", "uid": "u", "generation": 1}
    cluster = cluster_of({"metadata": metadata, "spec": spec})
    assert bootstrap.bootstrap_address(cluster) == kubectl_plugin.BOOTSTRAP.format(
        cluster="logs", namespace="shop"
    )
    (pods,) = (
        desired_object["spec"]["template"]
        for desired_object in desired_objects(cluster, Decided(image="millrace"))
        if desired_object["kind"] == "StatefulSet"
    )
    assert labels.items() <= pods["metadata"]["labels"].items()
    names = [container["name"] for container in pods["spec"]["containers"]]
    assert kubectl_plugin.CONTAINER in names


def test_it_speaks_tls_with_a_broker_that_has_both() -> None:
    """As the command line in the pod does, which trusts the authorities, and sends the token."""
    spec = {
        "pools": [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}],
        "tls": {"mode": "Optional"},
    }
    metadata = {"namespace": "shop", "name": "logs", "uid": "u", "generation": 1}
    cluster = cluster_of({"metadata": metadata, "spec": spec})
    (template,) = (
        desired_object["spec"]["template"]
        for desired_object in desired_objects(cluster, Decided(image="millrace"))
        if desired_object["kind"] == "StatefulSet"
    )
    pod = {**template, "metadata": {"name": "logs-b-0", "namespace": "shop"}}
    arguments = kubectl_plugin.exec_arguments(pod, "logs", ["topic", "list"])
    assert f"MILLRACE_BOOTSTRAP={bootstrap.tls_bootstrap_address(cluster)}" in arguments
