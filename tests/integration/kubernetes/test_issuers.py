"""An issuer of cert-manager signs what brokers show to clients; cert-manager is played."""

import base64
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.api_server import cert_manager
from tests.api_server.cert_manager import CertManager
from tests.api_server.controllers import PODS
from tests.api_server.running import RunningApiServer
from tests.integration.kubernetes.operated import KilledError, Operated
from tests.integration.kubernetes.test_certificates import bring, bundle, files, shake_hands
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import SyncAdmin, SyncProducer
from millrace.operator.reconcile.outside import WAITING_S
from millrace.runtime.certificates import new_authority, read

CERTIFICATES = "/apis/cert-manager.io/v1/%s/certificates"
CONFIG_MAPS = "/api/v1/%s/configmaps"
POOL = {"name": "b", "replicas": 2, "volumes": [{"name": "data", "size": "1Gi"}]}
SPEC: dict[str, Any] = {"pools": [POOL], "tls": {"issuerRef": {"name": "company"}}}
CONDITION = "Certified"


@pytest.fixture(scope="module", autouse=True)
def kinds_of_cert_manager(api_server: RunningApiServer) -> Iterator[None]:
    """The API server knows them in this module alone."""
    cert_manager.install(api_server)
    yield
    cert_manager.uninstall(api_server)


@pytest.fixture
def manager(operated: Operated) -> CertManager:
    return CertManager(operated.server, operated.namespace)


@pytest.fixture
def issued(operated: Operated, manager: CertManager) -> Operated:
    """A Cluster `c` whose brokers have a certificate of the issuer `company`."""
    manager.make_issuer("company")
    operated.apply("clusters", "c", SPEC)
    operated.look()
    manager.step()
    operated.look()
    return operated


def test_cert_manager_is_asked_for_all_names_of_the_brokers(issued: Operated) -> None:
    found = issued.get(CERTIFICATES, "c-clients")
    assert found is not None
    spec, where = found["spec"], issued.namespace
    assert spec["issuerRef"] == {"name": "company", "kind": "Issuer", "group": "cert-manager.io"}
    assert {f"c-bootstrap.{where}.svc", f"*.c-brokers.{where}.svc"} <= {*spec["dnsNames"]}
    assert spec["uris"] == [f"spiffe://cluster.local/ns/{where}/cluster/c"]
    assert (spec["duration"], spec["privateKey"]["rotationPolicy"]) == ("720h", "Always")
    assert spec["usages"] == ["digital signature", "server auth"]
    (owner,) = found["metadata"]["ownerReferences"]
    assert owner["kind"] == "Cluster"
    status, reason, message = issued.told()[CONDITION]
    assert (status, reason) == ("True", "Issued")
    assert "until 2" in message


def test_clients_trust_the_issuer_and_brokers_trust_the_operator_alone(
    issued: Operated, manager: CertManager, tmp_path: Path
) -> None:
    """G2: what the issuer signs for others is worth nothing among brokers."""
    import ssl

    assert bundle(issued) == manager.authority.certificate.decode()
    of_brokers = files(issued, "c-b-tls")
    assert read(of_brokers["c-b-0.crt"]).is_of(files(issued, "c-ca")["1.crt"])
    assert of_brokers["ca.crt"] == files(issued, "c-ca")["1.crt"]
    shown = files(issued, "c-clients-tls")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_bytes(shown[name])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cadata=bundle(issued))
    for name in ("c-bootstrap", "c-b-0.c-brokers", "c-b-17.c-brokers"):
        shake_hands(client, server, f"{name}.{issued.namespace}.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(client, server, f"d-b-0.d-brokers.{issued.namespace}.svc")


def test_pods_have_the_secret_as_cert_manager_writes_it(issued: Operated) -> None:
    found = issued.get("/apis/apps/v1/%s/statefulsets", "c-b")
    assert found is not None
    pod = found["spec"]["template"]["spec"]
    sources = {each["name"]: each.get("secret", {}).get("secretName") for each in pod["volumes"]}
    assert sources["clients-tls"] == "c-clients-tls"
    assert sources["broker-tls"] == "c-b-tls"
    variables = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    prefix = "MILLRACE_BROKER__LISTENERS__"
    assert (
        variables[f"{prefix}CLIENTS__TLS_CERTIFICATE_FILE"] == "/etc/millrace-clients-tls/tls.crt"
    )
    assert variables[f"{prefix}REPLICAS__TLS_CERTIFICATE_FILE"].startswith("/etc/millrace-tls/")
    assert variables["MILLRACE_TLS_CA_FILE"] == "/etc/millrace-clients-tls/ca.crt"


def test_an_idle_operator_asks_for_nothing_anew(issued: Operated) -> None:
    def versions() -> list[Any]:
        return [issued.get(CERTIFICATES, "c-clients"), issued.get(CONFIG_MAPS, "c-ca")]

    before = versions()
    issued.restart()
    issued.look()
    assert versions() == before


def told(operated: Operated) -> tuple[str, str, str]:
    assert operated.look() <= WAITING_S  # type: ignore[operator]
    return operated.told()[CONDITION]


def test_an_issuer_that_is_missing_or_not_ready_is_said(
    operated: Operated, manager: CertManager
) -> None:
    operated.apply("clusters", "c", SPEC)
    status, reason, message = told(operated)
    assert (status, reason) == ("False", "NoIssuer")
    assert message.startswith("there is no Issuer company in the Cluster's namespace: create it")
    manager.make_issuer("company", is_ready=False, message="no Secret root")
    status, reason, message = told(operated)
    assert (status, reason) == ("False", "IssuerNotReady")
    assert "no Secret root" in message
    manager.settle_issuer(manager.get("issuers", "company"), is_ready=True)
    assert told(operated)[1] == "Issuing"
    manager.fail("c-clients", "the policy forbids *.c-brokers")
    status, reason, message = told(operated)
    assert (status, reason) == ("False", "Issuing")
    assert "the policy forbids *.c-brokers" in message
    assert "kubectl describe certificate c-clients" in message
    manager.sign(manager.get("certificates", "c-clients"))
    assert told(operated)[:2] == ("True", "Issued")


def test_an_issuer_that_leaves_names_out_or_says_no_authority_is_said(
    operated: Operated, manager: CertManager
) -> None:
    manager.make_issuer("company")
    manager.says_authority = False
    operated.apply("clusters", "c", SPEC)
    operated.look()
    manager.step()
    status, reason, message = told(operated)
    assert (status, reason) == ("False", "NoAuthority")
    assert "has no ca.crt" in message
    assert operated.get(CONFIG_MAPS, "c-ca") is None
    manager.says_authority = True
    made = manager.get("certificates", "c-clients")
    left_out = f"*.c-brokers.{operated.namespace}"
    made["spec"]["dnsNames"].remove(left_out)
    manager.sign(made)
    status, reason, message = told(operated)
    assert (status, reason) == ("False", "Issuing")
    assert f"left out the names {left_out};" in message


def test_an_issuer_of_another_group_is_asked_and_not_looked_up(
    operated: Operated, manager: CertManager
) -> None:
    reference = {"name": "company", "kind": "StepIssuer", "group": "certmanager.step.sm"}
    operated.apply("clusters", "c", {**SPEC, "tls": {"issuerRef": reference}})
    assert told(operated)[1] == "Issuing"
    assert manager.get("certificates", "c-clients")["spec"]["issuerRef"] == reference


def test_a_cluster_may_name_another_issuer(issued: Operated, manager: CertManager) -> None:
    manager.make_issuer("new")
    earlier, manager.authority = manager.authority, new_authority("new", days=10)
    issued.apply("clusters", "c", {**SPEC, "tls": {"issuerRef": {"name": "new"}}})
    assert told(issued)[1] == "Issuing"
    assert manager.get("certificates", "c-clients")["spec"]["issuerRef"]["name"] == "new"
    assert bundle(issued) == earlier.certificate.decode(), "brokers show what they have"
    manager.step()
    assert told(issued)[1] == "Issued"
    both = manager.authority.certificate + earlier.certificate
    assert bundle(issued) == both.decode()


@pytest.mark.parametrize("changes", range(1, 5))
def test_a_killed_operator_goes_on_to_ask_for_a_certificate(
    operated: Operated, manager: CertManager, changes: int
) -> None:
    manager.make_issuer("company")
    operated.apply("clusters", "c", SPEC)
    operated.restart(changes)
    with suppress(KilledError):
        operated.look()
    operated.restart()
    operated.look()
    manager.step()
    assert told(operated)[1] == "Issued"
    assert bundle(operated) == manager.authority.certificate.decode()


def test_another_authority_of_the_issuer_is_trusted_beside_the_earlier_one_for_a_while(
    issued: Operated, manager: CertManager
) -> None:
    earlier = manager.authority.certificate.decode()
    manager.authority = new_authority("issuer 2", days=10)
    manager.sign(manager.get("certificates", "c-clients"))
    later = manager.authority.certificate.decode()
    for minutes in (0, 2):
        issued.ahead = timedelta(minutes=minutes)
        issued.look()
        assert bundle(issued) == later + earlier
    issued.ahead = timedelta(minutes=4)
    issued.look()
    assert bundle(issued) == later


def test_clients_of_a_paused_cluster_are_told_of_the_issuer_s_next_authority(
    issued: Operated, manager: CertManager
) -> None:
    """cert-manager renews the certificate meanwhile, and nothing else that is written counts."""
    issued.controllers.step()
    issued.apply("clusters", "c", {**SPEC, "paused": True})
    issued.look()
    earlier = manager.authority.certificate.decode()
    manager.authority = new_authority("issuer 2", days=10)
    manager.sign(manager.get("certificates", "c-clients"))
    issued.look()
    assert bundle(issued) == manager.authority.certificate.decode() + earlier
    assert issued.conditions()["Ready"] == ("Unknown", "Paused")


def test_an_address_outside_is_told_after_the_issuer_has_signed_it(
    operated: Operated, manager: CertManager
) -> None:
    """G9."""
    manager.make_issuer("company")
    brokers = [
        {
            "name": f"c-b-{number}",
            "advertisedHost": f"{number}.example.org",
            "advertisedPort": 9000,
            "tlsAdvertisedPort": 9001,
        }
        for number in range(2)
    ]
    outside = {"type": "NodePort", "brokers": brokers}
    operated.apply("clusters", "c", {**SPEC, "listeners": {"outside": outside}})
    for _ in range(4):
        operated.look()
        operated.controllers.step()
    asked = manager.get("certificates", "c-clients")["spec"]
    assert {"0.example.org", "1.example.org"} <= {*asked["dnsNames"]}
    manager.step()
    operated.look()

    def addresses() -> dict[str, str]:
        found = operated.get(CONFIG_MAPS, "c-outside")
        assert found is not None
        data: dict[str, str] = found.get("data") or {}
        return data

    assert addresses() == {}, "kubelets have yet to bring it"
    operated.ahead = timedelta(minutes=4)
    operated.look()
    assert addresses() == {
        "c-b-0": "0.example.org:9000",
        "c-b-0.tls": "0.example.org:9001",
        "c-b-1": "1.example.org:9000",
        "c-b-1.tls": "1.example.org:9001",
    }


def refused(operated: Operated, **spec: Any) -> str:
    """Return why the API server refuses another spec of the Cluster."""
    where = f"/apis/millrace.dev/v1beta1/namespaces/{operated.namespace}/clusters/c"
    found = operated.request("GET", where)
    found["spec"] = {"pools": [POOL], **spec}
    status, answer = operated.server.request("PUT", where, found)
    assert status == 422, answer
    message: str = answer["message"]
    return message


def test_brokers_with_tls_do_not_change_to_an_issuer_or_back(
    operated: Operated, manager: CertManager
) -> None:
    """Their clients trust the other authority, also where the spec is silent about TLS."""
    manager.make_issuer("company")
    operated.apply("clusters", "c", SPEC)
    operated.look()
    manager.step()
    operated.settle()
    others: tuple[dict[str, Any], ...] = ({}, {"tls": {}})
    for other in others:
        assert "tls.issuerRef can be neither added nor taken away" in refused(operated, **other)


def test_brokers_of_the_operator_s_own_authority_get_no_issuer(operated: Operated) -> None:
    operated.apply("clusters", "c", {**SPEC, "tls": {}})
    operated.settle()
    operated.apply("clusters", "c", {"pools": [POOL], "tls": None})
    told = refused(operated, tls=SPEC["tls"])
    assert "tls.issuerRef can be neither added nor taken away" in told


def test_a_cluster_in_plain_text_waits_for_its_issuer(
    operated: Operated, manager: CertManager
) -> None:
    """No broker is restarted before it can have a certificate."""
    operated.apply("clusters", "c", {"pools": [POOL], "tls": {"mode": "Disabled"}})
    operated.settle()
    before = [pod["metadata"]["uid"] for pod in operated.controllers.items(PODS)]
    both = {"mode": "Optional", **SPEC["tls"]}
    operated.apply("clusters", "c", {"pools": [POOL], "tls": both})
    for _ in range(5):
        operated.look()
        operated.controllers.step()
    assert operated.told()[CONDITION][:2] == ("False", "NoIssuer")
    assert [pod["metadata"]["uid"] for pod in operated.controllers.items(PODS)] == before
    manager.make_issuer("company")
    operated.look()
    manager.step()
    operated.settle()
    assert operated.told()[CONDITION][:2] == ("True", "Issued")
    assert bundle(operated) == manager.authority.certificate.decode()
    after = [pod["metadata"]["uid"] for pod in operated.controllers.items(PODS)]
    assert not set(before) & set(after)


def test_brokers_and_clients_go_on_while_the_issuer_renews(
    issued: Operated, manager: CertManager, tmp_path: Path
) -> None:
    made = manager.get("certificates", "c-clients")
    made["spec"]["dnsNames"].append("localhost")
    made["spec"]["ipAddresses"] = ["127.0.0.1"]

    def renew() -> None:
        manager.sign(made)
        made["metadata"] = manager.get("certificates", "c-clients")["metadata"]
        bring(files(issued, "c-clients-tls"), tmp_path)

    renew()
    settings: dict[str, object] = {
        "listeners.clients.tls_certificate_file": tmp_path / "tls.crt",
        "listeners.clients.tls_key_file": tmp_path / "tls.key",
    }
    broker = RunningBroker(tmp_path / "broker", settings)
    shown: set[bytes] = set()
    broker.start()
    try:
        client: Any = {"tls_ca_file": str(tmp_path / "ca.crt")}
        with SyncAdmin(broker.address, **client) as admin:
            admin.create_topic("t")
        with SyncProducer(broker.address, **client) as producer:
            end = time.monotonic() + 8
            while time.monotonic() < end or len(shown) < 4:
                assert time.monotonic() < end + 40, "the writes take too long"
                renew()
                shown.add((tmp_path / "tls.crt").read_bytes())
                for _ in range(20):
                    assert producer.send("t", b"x").result(30).offset >= 0
                time.sleep(0.5)
        with SyncAdmin(broker.address, **client) as admin:
            wait_until(lambda: admin.describe_health().is_healthy, "all is well")
    finally:
        broker.abandon()


def test_the_secret_holds_what_a_broker_reads(issued: Operated) -> None:
    found = issued.get("/api/v1/%s/secrets", "c-clients-tls")
    assert found is not None
    assert found["metadata"]["labels"]["millrace.dev/cluster"] == "c"
    assert b"PRIVATE KEY" in base64.b64decode(found["data"]["tls.key"])
