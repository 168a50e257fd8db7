"""How a running cluster goes from plain text to TLS and access control, and back (G4)."""

from typing import Any

import pytest

from millrace.core.errors import InvalidConfigError
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.objects import Decided, Document, desired_objects
from millrace.operator.model.security import AccessMode, Security, TlsMode
from millrace.operator.plan.reviewers import reviewers
from millrace.operator.plan.security import (
    Secured,
    check_release,
    next_security,
    present_security,
    slowest_security,
    wanted_security,
    with_security,
)
from millrace.operator.reconcile.brokers import Way, way_to
from millrace.operator.reconcile.resources import cluster_of

OPEN = Security(TlsMode.DISABLED, AccessMode.DISABLED)
BETWEEN = Security(TlsMode.OPTIONAL, AccessMode.LOGGED)
CLOSED = Security(TlsMode.REQUIRED, AccessMode.ENFORCED)
NO_ACCESS = Security(TlsMode.REQUIRED, AccessMode.DISABLED)


def cluster(**spec: Any) -> Cluster:
    pools = [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}]
    metadata = {"name": "c", "namespace": "ns", "uid": "u", "generation": 1}
    return cluster_of({"metadata": metadata, "spec": {"pools": pools, **spec}})


def template(security: Security) -> Document:
    """Return the template of pods of a cluster whose brokers do this."""
    made = desired_objects(with_security(cluster(), security), Decided(image="millrace:1"))
    (stateful_set,) = (document for document in made if document["kind"] == "StatefulSet")
    found: Document = stateful_set["spec"]["template"]
    return found


@pytest.mark.parametrize("tls", TlsMode)
@pytest.mark.parametrize("access", AccessMode)
def test_pods_say_what_their_brokers_do(tls: TlsMode, access: AccessMode) -> None:
    if tls is TlsMode.DISABLED and access is not AccessMode.DISABLED:
        return
    security = Security(tls, access)
    assert present_security([template(security)], [], {}) == [security]


@pytest.mark.parametrize(
    ("present", "wanted", "then"),
    [
        ([OPEN], CLOSED, BETWEEN),
        ([OPEN, BETWEEN], CLOSED, BETWEEN),
        ([BETWEEN], CLOSED, CLOSED),
        ([BETWEEN, CLOSED], CLOSED, CLOSED),
        ([CLOSED], CLOSED, CLOSED),
        ([], CLOSED, CLOSED),
        ([CLOSED], OPEN, BETWEEN),
        ([BETWEEN, CLOSED], OPEN, BETWEEN),
        ([BETWEEN], OPEN, OPEN),
        ([OPEN, BETWEEN], OPEN, OPEN),
        ([OPEN], OPEN, OPEN),
        ([NO_ACCESS], CLOSED, Security(TlsMode.REQUIRED, AccessMode.LOGGED)),
        # Somebody has changed their mind on the way.
        ([OPEN, BETWEEN], BETWEEN, BETWEEN),
        ([BETWEEN, CLOSED], BETWEEN, BETWEEN),
    ],
)
def test_brokers_go_one_step_at_a_time(
    present: list[Security], wanted: Security, then: Security
) -> None:
    assert next_security(present, wanted) == then


@pytest.mark.parametrize("goal", [OPEN, BETWEEN, CLOSED])
@pytest.mark.parametrize("start", [OPEN, BETWEEN, CLOSED])
@pytest.mark.parametrize("changes_at", range(6))
def test_no_two_brokers_are_ever_two_steps_apart(
    start: Security, goal: Security, changes_at: int
) -> None:
    """Whatever is wanted, and whoever changes their mind: brokers are restarted one by one."""
    order = [OPEN, BETWEEN, CLOSED]
    brokers, wanted = [start] * 3, goal
    for restarts in range(20):
        if restarts == changes_at:
            wanted = order[2 - order.index(goal)]
        then = next_security(brokers, wanted)
        outdated = [number for number, does in enumerate(brokers) if does != then]
        if not outdated:
            break
        brokers[outdated[0]] = then
        steps = [order.index(does) for does in brokers]
        assert max(steps) - min(steps) <= 1
    if restarts > changes_at:
        assert set(brokers) == {wanted}


def test_a_cluster_in_plain_text_that_says_nothing_stays_so() -> None:
    """An operator of a later release cuts no client off."""
    assert wanted_security(cluster().spec, [OPEN]) == OPEN
    assert wanted_security(cluster().spec, [NO_ACCESS]) == NO_ACCESS


@pytest.mark.parametrize("release", [{"version": "0.2.0"}, {"image": "our/millrace:0.2.0"}])
def test_brokers_with_tls_go_to_no_release_without_it(release: dict[str, str]) -> None:
    """It would start in plain text, and let everybody in, or not at all."""
    for present in ([BETWEEN], [OPEN, BETWEEN], [CLOSED]):
        with pytest.raises(InvalidConfigError, match=r"which 0\.2\.0 does not know"):
            check_release(cluster(**release).spec, present)
        check_release(cluster(version="0.3.0").spec, present)
    check_release(cluster(**release).spec, [OPEN])
    check_release(cluster(**release).spec, [])
    assert wanted_security(cluster(**release).spec, []) == OPEN


def test_a_cluster_that_has_left_plain_text_and_says_nothing_more_goes_on() -> None:
    assert wanted_security(cluster().spec, [BETWEEN]) == CLOSED
    assert wanted_security(cluster().spec, [OPEN, BETWEEN]) == OPEN, "the change is taken back"


def test_access_is_never_ahead_of_tls() -> None:
    """Tokens are sent over TLS only."""
    spec = cluster(tls={"mode": "Optional"}, access={"mode": "Enforced"}).spec
    assert wanted_security(spec, [OPEN]) == BETWEEN
    assert wanted_security(cluster(access={}).spec, [OPEN]) == OPEN


def test_a_new_cluster_has_both_unless_it_says_otherwise() -> None:
    assert wanted_security(cluster().spec, []) == CLOSED
    assert wanted_security(cluster(tls={}).spec, []) == CLOSED
    assert wanted_security(cluster(tls={"mode": "Optional"}).spec, []) == BETWEEN
    assert wanted_security(cluster(tls={"mode": "Disabled"}).spec, []) == OPEN
    assert wanted_security(cluster(access={"mode": "Disabled"}).spec, []) == NO_ACCESS


def test_a_new_cluster_of_brokers_without_tls_is_in_plain_text() -> None:
    assert wanted_security(cluster(version="0.2.0").spec, []) == OPEN


def test_a_cluster_does_not_lose_tls_by_another_version() -> None:
    """Brokers that know none do not start: no broker is restarted for them."""
    assert wanted_security(cluster(version="0.2.0").spec, [CLOSED]) == CLOSED


def test_an_operator_without_an_account_asks_for_access_control_only_where_it_is_wanted() -> None:
    """It could not call the brokers."""
    assert wanted_security(cluster().spec, [], is_known=False) == NO_ACCESS
    assert wanted_security(cluster(access={}).spec, [], is_known=False) == CLOSED
    assert wanted_security(cluster().spec, [CLOSED], is_known=False) == CLOSED


def test_no_cluster_goes_nearer_to_access_control_while_brokers_cannot_ask() -> None:
    """Nobody would be allowed anything."""

    def then(present: list[Security], **spec: Any) -> Security:
        return Secured.of(cluster(**spec), present, can_ask=False).next

    assert then([]) == NO_ACCESS
    assert then([], access={}) == CLOSED, "it asks for it by name: better closed than open"
    assert then([NO_ACCESS], access={"mode": "Logged"}) == NO_ACCESS
    assert then([BETWEEN]).access is AccessMode.LOGGED
    assert then([BETWEEN, CLOSED]).access is AccessMode.LOGGED
    assert then([CLOSED]) == CLOSED
    assert then([CLOSED], access={"mode": "Disabled"}).access is AccessMode.LOGGED


def test_what_a_cluster_was_is_known_while_it_has_no_pods() -> None:
    status = {"security": {"tls": "Optional", "access": "Logged"}}
    sets = [{"spec": {"template": template(CLOSED)}}]
    assert present_security([], sets, status) == [CLOSED]
    assert present_security([], [], status) == [BETWEEN]
    assert present_security([], [], {}) == []


def test_the_slowest_broker_says_how_far_a_cluster_is() -> None:
    assert slowest_security([OPEN, BETWEEN], CLOSED) == OPEN
    assert slowest_security([BETWEEN, CLOSED], OPEN) == CLOSED


@pytest.mark.parametrize(
    ("present", "then", "way"),
    [
        ([OPEN], BETWEEN, Way("c-bootstrap.ns.svc:7092", False, False)),
        ([OPEN, BETWEEN], BETWEEN, Way("c-bootstrap.ns.svc:7092", False, False)),
        ([BETWEEN], BETWEEN, Way("c-bootstrap.ns.svc:7192", True, True)),
        ([BETWEEN, CLOSED], CLOSED, Way("c-bootstrap.ns.svc:7192", True, True)),
        ([CLOSED], CLOSED, Way("c-bootstrap.ns.svc:7092", True, True)),
        ([BETWEEN], OPEN, Way("c-bootstrap.ns.svc:7092", False, False)),
    ],
)
def test_the_operator_reaches_brokers_in_a_way_that_all_of_them_have(
    present: list[Security], then: Security, way: Way
) -> None:
    secured = Secured(present, then, then)
    assert way_to(with_security(cluster(), then), secured) == way


def objects(security: Security) -> dict[tuple[str, str], Document]:
    made = desired_objects(with_security(cluster(), security), Decided(image="millrace:1"))
    return {(document["kind"], document["metadata"]["name"]): document for document in made}


def listening(security: Security) -> dict[str, int]:
    (container,) = template(security)["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def test_a_service_finds_the_port_with_tls_in_pods_of_both_steps() -> None:
    """So clients that have changed to TLS are served while the plain ports are closed."""
    for security in (BETWEEN, CLOSED):
        ports = objects(security)["Service", "c-bootstrap"]["spec"]["ports"]
        found = {port["port"]: port["targetPort"] for port in ports}
        assert found == {7092: 7092, 7192: "client-tls"}
    assert listening(BETWEEN)["client-tls"] == 7192
    assert listening(CLOSED)["client-tls"] == 7092
    assert listening(BETWEEN)["client"] == listening(OPEN)["client"] == 7092


def test_the_network_policy_admits_to_pods_of_all_steps_beside() -> None:
    for security in (BETWEEN, CLOSED):
        policy = objects(security)["NetworkPolicy", "c"]
        clients, replicas, _ = (
            {port["port"] for port in rule["ports"]} for rule in policy["spec"]["ingress"]
        )
        out = {port["port"] for port in policy["spec"]["egress"][0]["ports"]}
        assert {7092, 7094, 7192, 7194} <= out
        for beside in (OPEN, BETWEEN, CLOSED):
            ports = listening(beside).keys()
            assert {name for name in ports if name.startswith("client")} <= clients
            assert {name for name in ports if name.startswith("replica")} <= replicas


def test_brokers_may_ask_about_callers_before_they_do_and_as_long_as_they_do() -> None:
    def document(spec: Document, **security: str) -> Document:
        metadata = {"name": "c", "namespace": "ns"}
        return {"metadata": metadata, "spec": spec, "status": {"security": security}}

    assert reviewers([document({"access": {"mode": "Logged"}}, access="Disabled")])
    assert reviewers([document({}, access="Enforced")])
    assert reviewers([document({"access": {"mode": "Disabled"}}, access="Logged")])
    assert not reviewers([document({}, access="Disabled")])
