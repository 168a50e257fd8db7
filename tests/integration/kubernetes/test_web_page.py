"""The web page of the chart: with its own rights, and no others, it shows all Clusters."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from charts.generate import rendered
from tests.api_server.running import NAMESPACE, RunningApiServer
from tests.integration.running_broker import wait_until

NAME = "millrace-web"
_RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
_CLUSTERS = f"/apis/millrace.dev/v1beta1/namespaces/{NAMESPACE}/clusters"

# The first run builds helm.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def token(api_server: RunningApiServer) -> str:
    """A token of the page's own account, as the chart makes it."""
    roots = {
        "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
        "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    }
    chart = rendered("--set", "webPage.enabled=true", "--namespace", NAMESPACE)
    for document in yaml.safe_load_all(chart):
        if document and document["kind"] in _RIGHTS and document["metadata"]["name"] == NAME:
            path = f"{roots[document['kind']]}/{NAME}?fieldManager=tests&force=true"
            status, answer = api_server.request("PATCH", path, document)
            assert status in (200, 201), answer
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"{roots['ServiceAccount']}/{NAME}/token"
    status, answer = api_server.request("POST", path, request)
    assert status == 201, answer
    return str(answer["status"]["token"])


@pytest.fixture
def address(api_server: RunningApiServer, token: str, tmp_path: Path) -> Iterator[str]:
    """Where the page is."""
    config = yaml.safe_load(api_server.kubeconfig())
    config["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "millrace.cli", "web", "--kubernetes"),
            *("--port", "0", "--output", "json"),
        ],
        stdout=subprocess.PIPE,
        env=os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig")},
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["web_address"]
        process.terminate()
        assert process.wait(30) == 0


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_clusters_are_shown_as_they_come_and_go(
    api_server: RunningApiServer, address: str, cluster_name: str
) -> None:
    assert cluster_name not in get(address)[1]
    cluster = {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": cluster_name},
        "spec": {"pools": [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}]},
    }
    status, answer = api_server.request("POST", _CLUSTERS, cluster)
    assert status == 201, answer
    path = f"/clusters/{NAMESPACE}/{cluster_name}"
    wait_until(lambda: path in get(address)[1], "the new Cluster")
    status, body = get(f"{address}{path}/topics")  # No broker runs here.
    assert status in (502, 504)
    assert "No answer from the brokers" in body
    api_server.request("DELETE", f"{_CLUSTERS}/{cluster_name}")
    wait_until(lambda: path not in get(address)[1], "the Cluster is gone")


def test_the_page_may_do_nothing_else(api_server: RunningApiServer, token: str) -> None:
    api_server.tokens["page"] = token
    listed = "/apis/millrace.dev/v1beta1/clusters"
    # The API server's authorizer hears of new roles a little later.
    wait_until(
        lambda: api_server.request("GET", listed, user="page")[0] == 200, "the page's rights"
    )
    for method, path in (
        ("GET", _CLUSTERS + "/x"),
        ("DELETE", _CLUSTERS + "/x"),
        ("GET", "/apis/millrace.dev/v1beta1/topics"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/pods"),
    ):
        assert api_server.request(method, path, user="page")[0] == 403, path
