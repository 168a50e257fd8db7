"""What the operator does for clusters in which Kubernetes says who may do what."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import yaml
from tests.api_server.running import ROOT, RunningApiServer
from tests.integration.kubernetes.operated import Operated
from tests.integration.running_broker import wait_until

from millrace.operator.kube.api import ApiError
from millrace.operator.kube.kinds import CLUSTER_ROLE_BINDING
from millrace.runtime.kubernetes.resources import Kind

RBAC = "/apis/rbac.authorization.k8s.io/v1"
BINDING = f"{RBAC}/clusterrolebindings/operator-reviewers"
POOL = {"name": "b", "replicas": 2, "volumes": [{"name": "data", "size": "1Gi"}]}
GUARDED = {"pools": [POOL], "tls": {}, "access": {}}
CHART = yaml.safe_load_all((ROOT / "tests" / "data" / "chart" / "default.yaml").read_text())
RIGHTS = {
    (document["kind"], document["metadata"]["name"]): document["rules"]
    for document in CHART
    if document and document["kind"] in ("ClusterRole", "Role")
}


@pytest.fixture
def guarded(operated: Operated) -> Iterator[Operated]:
    """A Cluster `c` with access control, and what the chart installs for it."""
    server = operated.server
    name = {"metadata": {"name": "operator-reviewers"}}
    role = {**name, "rules": RIGHTS["ClusterRole", "millrace-operator-reviewers"]}
    operated.request("POST", f"{RBAC}/clusterroles", role)
    operated.apply("clusters", "c", GUARDED)
    operated.look()
    yield operated
    server.request("DELETE", f"{RBAC}/clusterroles/operator-reviewers")


def subjects(operated: Operated) -> set[str]:
    """Return the accounts of the test's namespace that may ask; other tests have left others."""
    found = operated.request("GET", BINDING).get("subjects") or ()
    return {each["name"] for each in found if each["namespace"] == operated.namespace}


def test_brokers_of_such_clusters_may_ask_about_callers_and_no_others(guarded: Operated) -> None:
    assert subjects(guarded) == {"c-broker"}
    guarded.apply("clusters", "open", {"pools": [POOL]})
    guarded.look()
    assert subjects(guarded) == {"c-broker"}


@pytest.fixture(params=["not there", "not allowed"])
def unasked(
    request: pytest.FixtureRequest, operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Operated]:
    """An operator under an older chart: it has no binding for brokers, or no right to read it."""
    if request.param == "not there":
        operated.remove_reviewers()
    else:
        get = operated.api.get

        async def refuse(kind: Kind, *where: Any) -> Any:
            if kind is CLUSTER_ROLE_BINDING:
                raise ApiError(403, "forbidden", request="GET")
            return await get(kind, *where)

        monkeypatch.setattr(operated.api, "get", refuse)
    yield operated
    operated.install_reviewers()


def security(operated: Operated) -> tuple[str, str]:
    """Return what the Cluster's brokers do."""
    found = operated.get("/apis/millrace.dev/v1beta1/%s/clusters", "c")
    assert found is not None
    return found["status"]["security"]["tls"], found["status"]["security"]["access"]


def test_a_new_cluster_has_no_access_control_while_brokers_could_not_ask(
    unasked: Operated,
) -> None:
    """Else nobody may do anything, the operator neither."""
    unasked.apply("clusters", "c", {"pools": [POOL], "tls": None})
    unasked.settle()
    assert security(unasked) == ("Required", "Disabled")
    assert "upgrade the chart" in unasked.told()["SecurityAsWanted"][2]


def test_a_cluster_that_asks_for_access_control_is_told_to_upgrade_the_chart(
    unasked: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"pools": [POOL], "tls": {}}
    unasked.apply("clusters", "c", {**spec, "access": {"mode": "Disabled"}})
    unasked.settle()
    unasked.apply("clusters", "c", {**spec, "access": {"mode": "Logged"}})
    for _ in range(3):
        unasked.look()
        unasked.controllers.step()
    status, reason, message = unasked.told()["SecurityAsWanted"]
    assert (status, reason) == ("False", "NoReviewers")
    assert "operator-reviewers" in message
    assert "upgrade the chart" in message
    assert security(unasked) == ("Required", "Disabled")

    monkeypatch.undo()
    unasked.install_reviewers()
    unasked.settle()
    assert security(unasked) == ("Required", "Logged")
    assert subjects(unasked) == {"c-broker"}


def test_a_new_cluster_that_asks_for_access_control_is_closed_and_says_why(
    unasked: Operated,
) -> None:
    unasked.apply("clusters", "c", GUARDED)
    unasked.look()
    status, reason, message = unasked.told()["SecurityAsWanted"]
    assert (status, reason) == ("False", "NoReviewers")
    assert message.startswith("access is Enforced, and all is refused: ")
    assert unasked.fake().tokens == [], "no broker could ask about one"


def test_brokers_of_a_deleted_cluster_may_not_ask_any_more(guarded: Operated) -> None:
    where = f"/apis/millrace.dev/v1beta1/namespaces/{guarded.namespace}/clusters/c"
    guarded.request("DELETE", where)
    guarded.look()
    assert subjects(guarded) == set()


def test_the_operator_shows_a_token_for_this_cluster_alone(guarded: Operated) -> None:
    """G1."""
    token = guarded.fake().tokens[-1]
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["aud"] == [f"c.{guarded.namespace}.millrace.dev"]
    assert claims["sub"] == f"system:serviceaccount:{guarded.namespace}:operator"
    count = len(guarded.fake().tokens)
    guarded.look()
    assert len(guarded.fake().tokens) == count


def test_brokers_are_told_to_ask(guarded: Operated) -> None:
    found = guarded.get("/apis/apps/v1/%s/statefulsets", "c-b")
    assert found is not None
    (container,) = found["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["MILLRACE_BROKER__ACCESS__KUBERNETES"] == "true"
    probed = container["readinessProbe"]["httpGet"]
    assert (probed["path"], probed["port"]) == ("/ready", 7093)


def may(server: RunningApiServer, who: str, verb: str, group: str, resource: str) -> bool:
    """Return whether an account may do something in every namespace."""
    about = {"verb": verb, "group": group, "resource": resource}
    namespace = who.split(":")[2]
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    spec = {"user": who, "groups": groups, "resourceAttributes": about}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    status, answer = server.request("POST", path, {"spec": spec})
    assert status == 201, answer
    allowed: bool = answer["status"]["allowed"]
    return allowed


def wait_until_all(allowed: Iterable[Callable[[], bool]]) -> None:
    """Wait for each of them: the API server's authorizer hears of new roles a little later."""
    for each in allowed:
        wait_until(each, "the API server allows what the roles say")


def test_the_account_for_operators_sees_and_mends_and_neither_writes_nor_reads_records(
    operated: Operated,
) -> None:
    where = f"/api/v1/namespaces/{operated.namespace}/serviceaccounts"
    for document in yaml.safe_load_all((ROOT / "charts" / "operators.yaml").read_text()):
        for subject in document.get("subjects", ()):
            subject["namespace"] = operated.namespace
        kind = document["kind"]
        operated.request(
            "POST", where if kind == "ServiceAccount" else f"{RBAC}/{kind.lower()}s", document
        )
    who = f"system:serviceaccount:{operated.namespace}:operators"

    def allowed(verb: str, resource: str) -> bool:
        return may(operated.server, who, verb, "millrace.dev", resource)

    mends = (
        ("alter", "topics"),
        ("delete", "groups"),
        ("alter", "transactions"),
        ("administer", "clusters"),
    )
    sees = [("describe", each) for each in ("topics", "groups", "transactions", "clusters")]
    wait_until_all(partial(allowed, *each) for each in (*sees, *mends))
    for verb, resource in (
        ("produce", "topics"),
        ("consume", "topics"),
        ("create", "topics"),
        ("transact", "transactions"),
        ("delete", "clusters"),
    ):
        assert not allowed(verb, resource)


def test_brokers_have_the_two_reviews_and_nothing_else_of_the_whole_cluster(
    guarded: Operated,
) -> None:
    """G10."""
    who = f"system:serviceaccount:{guarded.namespace}:c-broker"
    reviews = {
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
    }
    wait_until_all(partial(may, guarded.server, who, "create", *each) for each in reviews)
    for verb, group, resource in (
        ("get", "", "secrets"),
        ("list", "", "secrets"),
        ("create", "", "serviceaccounts/token"),
        ("get", "", "pods"),
        ("get", "millrace.dev", "clusters"),
        ("produce", "millrace.dev", "topics"),
        ("patch", "rbac.authorization.k8s.io", "clusterrolebindings"),
        ("impersonate", "", "users"),
    ):
        assert not may(guarded.server, who, verb, group, resource), (verb, resource)


def test_the_operator_s_rights_that_could_give_others_are_bound_to_names() -> None:
    """G10: it can neither list Secrets, nor bind other roles, nor ask for others' tokens."""
    rules = RIGHTS["ClusterRole", "millrace-operator"]
    own = RIGHTS["Role", "millrace-operator"]

    def found(resource: str, some: list[Any]) -> list[Any]:
        return [rule for rule in some if resource in rule["resources"]]

    (secrets,) = found("secrets", rules)
    assert secrets["verbs"] == ["get", "create", "patch"]
    (binding,) = found("clusterrolebindings", rules)
    assert binding["resourceNames"] == ["millrace-operator-reviewers"]
    assert binding["verbs"] == ["get", "patch"]
    (role,) = found("clusterroles", rules)
    assert (role["resourceNames"], role["verbs"]) == (["millrace-operator-reviewers"], ["bind"])
    assert not found("serviceaccounts/token", rules)
    (token,) = found("serviceaccounts/token", own)
    assert (token["resourceNames"], token["verbs"]) == (["millrace-operator"], ["create"])
    for rule in [*rules, *own]:
        assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
        assert not {"escalate", "impersonate"} & set(rule["verbs"])


def test_access_without_tls_is_refused(operated: Operated) -> None:
    where = f"/apis/millrace.dev/v1beta1/namespaces/{operated.namespace}/clusters"
    document = {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": "c"},
        "spec": {"pools": [POOL], "tls": {"mode": "Disabled"}, "access": {}},
    }
    status, answer = operated.server.request("POST", where, document)
    assert status == 422
    assert "tokens are sent over TLS only" in answer["message"]


def test_the_account_of_the_sample_may_write_and_read_its_topic_and_no_other(
    operated: Operated,
) -> None:
    where = f"namespaces/{operated.namespace}"
    paths = {
        "Cluster": f"/apis/millrace.dev/v1beta1/{where}/clusters",
        "Topic": f"/apis/millrace.dev/v1beta1/{where}/topics",
        "ServiceAccount": f"/api/v1/{where}/serviceaccounts",
        "Role": f"{RBAC}/{where}/roles",
        "RoleBinding": f"{RBAC}/{where}/rolebindings",
    }
    for document in yaml.safe_load_all((ROOT / "charts" / "sample.yaml").read_text()):
        for subject in document.get("subjects", ()):
            assert subject["namespace"] == "default", "the API server demands one"
            subject["namespace"] = operated.namespace
        operated.request("POST", paths[document["kind"]], document)

    def allowed(verb: str, topic: str) -> bool:
        user = f"system:serviceaccount:{operated.namespace}:orders"
        about = {"verb": verb, "group": "millrace.dev", "resource": "topics", "name": topic}
        about["namespace"] = operated.namespace
        review = {"spec": {"user": user, "resourceAttributes": about}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer: bool = operated.request("POST", path, review)["status"]["allowed"]
        return answer

    wait_until_all(partial(allowed, verb, "orders") for verb in ("describe", "produce", "consume"))
    assert not any(allowed(verb, "invoices") for verb in ("describe", "produce", "consume"))
    assert not allowed("delete", "orders")
