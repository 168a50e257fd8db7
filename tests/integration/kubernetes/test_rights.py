"""The rights of each pod's account are those that docs/security.md lists, and no others.

Asked as `kubectl auth can-i --list` does, of a real API server. What every account may do, such as
asking for its own rights, is left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from charts.generate import rendered, rendered_job
from tests.api_server.running import NAMESPACE, RunningApiServer
from tests.integration.kubernetes.test_chart import Document, documents
from tests.integration.running_broker import wait_until

from millrace.operator.model.objects import Decided, desired_objects
from millrace.operator.plan.reviewers import reviewers
from millrace.operator.reconcile.resources import cluster_of

# A run without `make helm` builds it first.
pytestmark = pytest.mark.timeout(1200)

PAGE: Final = Path(__file__).parents[3] / "docs" / "security.md"
BEGIN, END = "<!-- rights: tested -->\n\n```\n", "```\n\n<!-- end of rights -->"
ELSEWHERE: Final = "default"
ACCOUNTS: Final = {
    "operator": "millrace-operator",
    "broker of a Cluster": "open-broker",
    "broker of a Cluster with `access`": "guarded-broker",
    "web page": "millrace-web",
    "driver of a Spark job": "delays",
    "driver of a Spark job that is submitted": "submitted",
}
LAST: Final = {"last-here", "last-everywhere"}
_RIGHTS: Final = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def cluster(name: str, **spec: Any) -> Document:
    volumes = [{"name": "data", "size": "1Gi"}]
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "uid": "u", "generation": 1},
        "spec": {"pools": [{"name": "b", "volumes": volumes}], **spec},
    }


def installed() -> Iterator[Document]:
    """Yield the objects of the charts, and those that the operator makes for Clusters."""
    here = ("--namespace", NAMESPACE)
    chart = documents(rendered(*here, "--set", "webPage.enabled=true", "--no-hooks"))
    clusters = [cluster("open"), cluster("guarded", tls={}, access={})]
    for document in chart:
        if document["kind"] == "ClusterRoleBinding" and "reviewers" in document["metadata"]["name"]:
            document["subjects"] = reviewers(clusters)
        yield document
    for each in clusters:
        yield from desired_objects(cluster_of(each), Decided(image="millrace:1"))
    yield from documents(rendered_job("delays", *here))
    yield from documents(rendered_job("submitted", *here, "--set", "submission=cluster"))


def last_rights() -> Iterator[Document]:
    """Yield one more role and binding of each kind, for everybody.

    The API server's authorizer hears of each kind's objects in their order, a little later.
    """
    api = "rbac.authorization.k8s.io"
    everybody = {"apiGroup": api, "kind": "Group", "name": "system:serviceaccounts"}
    for role, resource in (("Role", "last-here"), ("ClusterRole", "last-everywhere")):
        common = {"apiVersion": f"{api}/v1", "metadata": {"name": "last", "namespace": NAMESPACE}}
        if role == "ClusterRole":
            common["metadata"] = {"name": "last"}
        rule = {"apiGroups": [""], "resources": [resource], "verbs": ["get"]}
        yield {**common, "kind": role, "rules": [rule]}
        reference = {"apiGroup": api, "kind": role, "name": "last"}
        yield {**common, "kind": f"{role}Binding", "roleRef": reference, "subjects": [everybody]}


@pytest.fixture(scope="module")
def accounts(api_server: RunningApiServer) -> RunningApiServer:
    """An API server with all accounts and their rights, whose tokens are those of `ACCOUNTS`."""
    nobody = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "nobody", "namespace": NAMESPACE},
    }
    for document in [nobody, *installed(), *last_rights()]:
        if document["kind"] in _RIGHTS:
            root = _RIGHTS[document["kind"]].format(namespace=NAMESPACE)
            path = f"{root}/{document['metadata']['name']}?fieldManager=rights&force=true"
            written = {**document, "metadata": dict(document["metadata"])}
            written["metadata"].pop("ownerReferences", None)
            status, answer = api_server.request("PATCH", path, written)
            assert status in (200, 201), answer
    root = _RIGHTS["ServiceAccount"].format(namespace=NAMESPACE)
    for account in ("nobody", *ACCOUNTS.values()):
        status, answer = api_server.request("POST", f"{root}/{account}/token", {"spec": {}})
        assert status == 201, answer
        api_server.tokens[account] = answer["status"]["token"]
    wait_until(
        lambda: rights(api_server, "nobody", NAMESPACE).keys() >= LAST, "the last rights are known"
    )
    return api_server


def rights(server: RunningApiServer, account: str, namespace: str) -> dict[str, set[str]]:
    """Return the verbs of an account, by what they are for."""
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    status, answer = server.request("POST", path, {"spec": {"namespace": namespace}}, user=account)
    assert status == 201, answer
    assert not answer["status"]["incomplete"]
    found: dict[str, set[str]] = {}
    for rule in answer["status"]["resourceRules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames") or [""]:
                    what = f"{resource}.{group}" if group else resource
                    found.setdefault(f"{what} {name}".strip(), set()).update(rule["verbs"])
    for rule in answer["status"]["nonResourceRules"]:
        for url in rule["nonResourceURLs"]:
            found.setdefault(url, set()).update(rule["verbs"])
    return found


def own(server: RunningApiServer, account: str, namespace: str) -> dict[str, set[str]]:
    """Likewise, without what every account may do."""
    everybody = rights(server, "nobody", namespace)
    found = {
        what: verbs - everybody.get(what, set())
        for what, verbs in rights(server, account, namespace).items()
    }
    return {what: verbs for what, verbs in found.items() if verbs}


def written(server: RunningApiServer) -> str:
    """Return the rights of all accounts as the document has them."""
    lines = []
    for title, account in ACCOUNTS.items():
        everywhere, here = own(server, account, ELSEWHERE), own(server, account, NAMESPACE)
        inside = {
            what: verbs - everywhere.get(what, set())
            for what, verbs in here.items()
            if verbs - everywhere.get(what, set())
        }
        for where, found in (("everywhere", everywhere), ("in its namespace", inside)):
            if found:
                lines.append(f"{title}, {where}")
                lines += [f"  {what}: {verbs}" for what, verbs in _joined(found).items()]
    return "\n".join([*lines, ""])


def _joined(found: dict[str, set[str]]) -> dict[str, str]:
    """Return verbs in words; names that differ by a number alone are joined."""
    joined: dict[str, str] = {}
    spans: dict[tuple[str, str], list[str]] = {}
    for what in sorted(found):
        verbs = " ".join(sorted(found[what]))
        if numbered := re.fullmatch(r"(.* .*-)(\d\d)", what):
            spans.setdefault((numbered[1], verbs), []).append(numbered[2])
        else:
            joined[what] = verbs
    for (name, verbs), numbers in spans.items():
        assert numbers == [f"{number:02}" for number in range(len(numbers))]
        joined[f"{name}{numbers[0]} to {numbers[-1]}"] = verbs
    return dict(sorted(joined.items()))


def test_each_account_may_do_what_the_document_lists_and_nothing_else(
    accounts: RunningApiServer,
) -> None:
    _, _, rest = PAGE.read_text().partition(BEGIN)
    listed, is_there, _ = rest.partition(END)
    assert is_there
    assert written(accounts) == listed


def test_no_pod_may_read_secrets_but_the_operator(accounts: RunningApiServer) -> None:
    for account in ACCOUNTS.values():
        for namespace in (NAMESPACE, ELSEWHERE):
            found = own(accounts, account, namespace)
            assert ("secrets" in found) == (account == "millrace-operator")
            assert not {what for what, verbs in found.items() if "*" in what or "*" in verbs}
            assert not found.keys() & {"pods/exec", "pods/attach", "pods/portforward"}


def test_pods_that_do_not_use_the_api_server_have_no_token_for_it() -> None:
    for document in documents(rendered_job("delays", "--set", "submission=cluster")):
        if document["kind"] == "ConfigMap":
            executor = document["data"]["executor.yaml"]
            assert "automountServiceAccountToken: false" in executor
