"""A running Cluster goes to TLS and access control, and back, with a real API server (G4)."""

from datetime import timedelta
from typing import Any

import pytest
from tests.integration.kubernetes.operated import Operated

from millrace.operator.model.security import AccessMode, TlsMode
from millrace.operator.plan.security import present_security

PODS = "/api/v1/namespaces"
POOL = {"name": "b", "replicas": 3, "volumes": [{"name": "data", "size": "1Gi"}]}
STEPS: dict[str, dict[str, Any]] = {
    "plain": {"tls": {"mode": "Disabled"}},
    "both": {"tls": {"mode": "Optional"}, "access": {"mode": "Logged"}},
    "tls": {"tls": {"mode": "Required"}, "access": {"mode": "Enforced"}},
}
NOTHING = {"tls": None}
"""A Cluster that does not say how it is secured."""
ORDER = list(TlsMode)


@pytest.fixture
def plain(operated: Operated) -> Operated:
    """A Cluster `c` of three brokers in plain text, as the release before made it."""
    operated.apply("clusters", "c", {"pools": [POOL], **STEPS["plain"]})
    operated.settle()
    return operated


def steps(operated: Operated) -> list[int]:
    """Return how far each step is that a pod does."""
    path = f"{PODS}/{operated.namespace}/pods?labelSelector=millrace.dev/cluster%3Dc"
    pods = operated.request("GET", path)["items"]
    return [ORDER.index(each.tls) for each in present_security(pods, [], {})]


def go(operated: Operated, step: dict[str, Any]) -> None:
    """Ask for a step, and let everything come to rest; no two pods are ever two steps apart."""
    operated.apply("clusters", "c", {"pools": [POOL], **step})

    def is_there() -> bool:
        found = steps(operated)
        assert not found or max(found) - min(found) <= 1
        return operated.is_settled()

    operated.until(is_there)


def security(operated: Operated) -> tuple[str, str]:
    found = operated.get("/apis/millrace.dev/v1beta1/%s/clusters", "c")
    assert found is not None
    said = found["status"]["security"]
    return said["tls"], said["access"]


def refused(operated: Operated, step: dict[str, Any]) -> str:
    """Return why the API server refuses a step."""
    where = f"/apis/millrace.dev/v1beta1/namespaces/{operated.namespace}/clusters/c"
    found = operated.request("GET", where)
    spec = {"pools": [POOL], **step}
    status, answer = operated.server.request("PUT", where, {**found, "spec": spec})
    assert status == 422, answer
    message: str = answer["message"]
    return message


def test_a_pool_does_not_take_the_objects_of_the_authorities(operated: Operated) -> None:
    pool = {**POOL, "name": "ca"}
    with pytest.raises(AssertionError, match="a pool cannot be called ca"):
        operated.apply("clusters", "c", {"pools": [pool], **NOTHING})
    operated.apply("clusters", "c", {"pools": [pool], **STEPS["plain"]})
    operated.settle()
    operated.apply("clusters", "c", {"pools": [pool], **NOTHING})
    operated.settle()
    assert security(operated) == (TlsMode.DISABLED, AccessMode.DISABLED)
    with pytest.raises(AssertionError, match="a pool cannot be called ca"):
        operated.apply("clusters", "c", {"pools": [pool], **STEPS["both"]})
    outside = {"listeners": {"outside": {"type": "NodePort"}}, **STEPS["plain"]}
    with pytest.raises(AssertionError, match="a pool cannot be called outside"):
        operated.apply("clusters", "d", {"pools": [{**POOL, "name": "outside"}], **outside})
    issuer = {"tls": {"issuerRef": {"name": "letsencrypt"}}}
    with pytest.raises(AssertionError, match="a pool cannot be called clients"):
        operated.apply("clusters", "d", {"pools": [{**POOL, "name": "clients"}], **issuer})


def test_all_steps_are_gone_and_the_way_back_too(plain: Operated) -> None:
    assert security(plain) == (TlsMode.DISABLED, AccessMode.DISABLED)
    assert "set tls.mode to Optional first" in refused(plain, STEPS["tls"])
    assert "set access.mode to Logged first" in refused(plain, {"access": {}})
    assert "set tls.mode to Optional, too" in refused(plain, {"access": {"mode": "Logged"}})
    go(plain, STEPS["both"])
    assert security(plain) == (TlsMode.OPTIONAL, AccessMode.LOGGED)
    go(plain, NOTHING)
    assert security(plain) == (TlsMode.REQUIRED, AccessMode.ENFORCED)
    assert "set tls.mode to Optional first" in refused(plain, STEPS["plain"])
    go(plain, STEPS["both"])
    go(plain, STEPS["plain"])
    assert security(plain) == (TlsMode.DISABLED, AccessMode.DISABLED)


def test_who_turns_round_on_the_way_back_hears_how_far_brokers_are(plain: Operated) -> None:
    """Brokers are behind what the Cluster says by then, and its status has to say so."""
    go(plain, STEPS["both"])
    plain.apply("clusters", "c", {"pools": [POOL], **STEPS["plain"]})
    for _ in range(50):
        plain.look()
        plain.controllers.step()
        if 0 in steps(plain):
            break
    assert sorted(set(steps(plain))) == [0, 1]
    go(plain, STEPS["tls"])
    assert security(plain) == (TlsMode.REQUIRED, AccessMode.ENFORCED)
    assert plain.conditions()["SecurityAsWanted"] == ("True", "AsWanted")


def test_no_broker_of_a_release_without_tls_takes_the_place_of_one_with_it(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [POOL], **NOTHING})
    operated.settle()
    operated.apply("clusters", "c", {"pools": [POOL], "version": "0.2.0", **NOTHING})
    for _ in range(10):
        operated.look()
        operated.controllers.step()
    assert steps(operated) == [2]
    status, reason, message = operated.told()["Ready"]
    assert (status, reason) == ("False", "InvalidConfig")
    assert message.startswith("spec.version: brokers have TLS, which 0.2.0 does not know")
    go(operated, {"version": None, **NOTHING})
    assert security(operated) == (TlsMode.REQUIRED, AccessMode.ENFORCED)


def test_a_new_cluster_has_both_from_the_start(operated: Operated) -> None:
    operated.apply("clusters", "c", {"pools": [POOL], **NOTHING})
    operated.settle()
    assert security(operated) == (TlsMode.REQUIRED, AccessMode.ENFORCED)
    assert steps(operated) == [2]
    assert operated.fake().tokens, "the operator shows a token"


def test_a_cluster_of_the_release_before_stays_in_plain_text(plain: Operated) -> None:
    go(plain, NOTHING)
    assert security(plain) == (TlsMode.DISABLED, AccessMode.DISABLED)
    assert "in plain text" in plain.told()["SecurityAsWanted"][2]


def test_clients_outside_are_led_to_tls_and_keep_what_they_were_told(plain: Operated) -> None:
    """Ports stay, and no address that they have leads nowhere before they had time to change."""
    outside = {
        "listeners": {
            "kafka": {"enabled": True},
            "outside": {"type": "NodePort"},
            "outsideDrpc": {},
            "outsideKafka": {},
        }
    }

    def told() -> tuple[dict[str, str], dict[str, Any]]:
        config = plain.get("/api/v1/%s/configmaps", "c-outside")
        found = plain.get("/apis/millrace.dev/v1beta1/%s/clusters", "c")
        assert config is not None
        assert found is not None
        return config["data"], found["status"]

    go(plain, {**STEPS["plain"], **outside})
    before, status = told()
    first, by_kafka = status["outsideBootstrap"], status["outsideKafkaBootstrap"]
    tls_only = {"outsideTlsBootstrap", "outsideKafkaTlsBootstrap", "kafkaTlsBootstrap"}
    assert not tls_only & status.keys()
    plain.apply("clusters", "c", {"pools": [POOL], **STEPS["both"], **outside})
    for _ in range(8):
        plain.look()
        plain.controllers.step()
        assert told()[0].items() >= before.items(), "no client in plain text loses an address"
    plain.ahead = timedelta(minutes=10)
    go(plain, {**STEPS["both"], **outside})
    between, status = told()
    assert between.keys() == before.keys() | {
        f"c-b-{number}.{kind}" for number in range(3) for kind in ("tls", "kafka-tls")
    }
    assert (status["outsideBootstrap"], status["outsideKafkaBootstrap"]) == (first, by_kafka)
    by_tls, kafka_tls = status["outsideTlsBootstrap"], status["outsideKafkaTlsBootstrap"]
    assert status["kafkaTlsBootstrap"].endswith(".svc:9192")
    go(plain, {**NOTHING, **outside})
    after, status = told()
    assert after.keys() == between.keys()
    ports = {file: address.rpartition(":")[2] for file, address in between.items()}
    assert {file: address.rpartition(":")[2] for file, address in after.items()} == ports
    assert not tls_only & status.keys()
    assert status["outsideKafkaBootstrap"] == by_kafka
    service = plain.get("/api/v1/%s/services", "c-outside")
    assert service is not None
    node_ports = {str(each["nodePort"]) for each in service["spec"]["ports"]}
    connected = f"{first},{by_tls},{by_kafka},{kafka_tls}".split(",")
    assert {address.rpartition(":")[2] for address in connected} == node_ports
    go(plain, {**STEPS["both"], **outside})
    go(plain, {**STEPS["plain"], **outside})
    assert told()[0] == before


def test_a_killed_operator_goes_on_where_brokers_are(plain: Operated) -> None:
    plain.apply("clusters", "c", {"pools": [POOL], **STEPS["both"]})
    for _ in range(200):
        plain.restart()
        plain.look()
        plain.controllers.step()
        if plain.is_settled():
            break
    assert security(plain) == (TlsMode.OPTIONAL, AccessMode.LOGGED)


def test_a_broker_that_does_not_start_holds_the_change_where_it_is(plain: Operated) -> None:
    plain.controllers.bad_images.add("millrace:2")
    broken = {"image": "millrace:2", **STEPS["both"]}
    plain.apply("clusters", "c", {"pools": [POOL], **broken})
    for _ in range(20):
        plain.look()
        plain.controllers.step()
    assert sorted(steps(plain)) == [0, 1], "one broker has tried"
    assert plain.conditions()["RolledOut"] == ("False", "Stuck")
    status, reason, message = plain.told()["SecurityAsWanted"]
    assert (status, reason) == ("False", "SecurityChanges")
    assert message.startswith("TLS goes from Disabled to Optional; access goes from Disabled to")
    assert security(plain) == (TlsMode.DISABLED, AccessMode.DISABLED)
    go(plain, STEPS["both"])
    assert security(plain) == (TlsMode.OPTIONAL, AccessMode.LOGGED)


def test_what_does_not_go_together_is_refused(plain: Operated) -> None:
    both, enforced = STEPS["both"]["tls"], {"mode": "Enforced"}
    assert "goes with tls.mode Required" in refused(plain, {"tls": both, "access": enforced})
    logged = {"tls": {"mode": "Disabled"}, "access": {"mode": "Logged"}}
    assert "goes without tls.mode Disabled" in refused(plain, logged)
