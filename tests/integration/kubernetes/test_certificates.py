"""Certificates that the operator keeps in a real API server."""

import asyncio
import base64
import ssl
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.background import repeated
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.kubernetes.operated import KilledError, Operated
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.test_broker_certificates import CALLS, REPLICA, Stranger, replica_addresses

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.errors import MillraceError
from millrace.operator.kube.api import ApiError
from millrace.operator.kube.applied import Applied
from millrace.operator.plan.certificates import USUAL, Times
from millrace.operator.reconcile.certificates import CertificatesReconciler
from millrace.operator.reconcile.renewals import AUTHORITY, CERTIFICATES
from millrace.operator.reconcile.resources import cluster_of, now
from millrace.runtime import host
from millrace.runtime.certificates import read
from millrace.runtime.transport.credentials import TlsFiles

SECRETS = "/api/v1/%s/secrets"
CONFIG_MAPS = "/api/v1/%s/configmaps"
SPEC = {"pools": [{"name": "b", "replicas": 2, "volumes": [{"name": "data", "size": "1Gi"}]}]}


@pytest.fixture
def encrypted(operated: Operated) -> Operated:
    """A Cluster `c` of two brokers with TLS, at which the operator has looked."""
    operated.apply("clusters", "c", {**SPEC, "tls": {}})
    operated.look()
    return operated


def files(operated: Operated, name: str) -> dict[str, bytes]:
    """Return the files of a Secret."""
    found = operated.get(SECRETS, name)
    assert found is not None, f"there is no Secret {name}"
    return {file: base64.b64decode(text) for file, text in found["data"].items()}


def bundle(operated: Operated) -> str:
    """Return what clients trust."""
    found = operated.get(CONFIG_MAPS, "c-ca")
    assert found is not None
    text: str = found["data"]["ca.crt"]
    return text


def test_each_broker_has_a_certificate_before_its_pod_is_made(encrypted: Operated) -> None:
    found = files(encrypted, "c-b-tls")
    assert found.keys() == {"ca.crt", "c-b-0.crt", "c-b-0.key", "c-b-1.crt", "c-b-1.key"}
    authority = files(encrypted, "c-ca")["1.crt"]
    for broker in ("c-b-0", "c-b-1"):
        certificate = read(found[f"{broker}.crt"])
        assert certificate.is_of(authority)
        where = f"ns/{encrypted.namespace}/cluster/c/broker/{broker}"
        assert certificate.uris == (f"spiffe://cluster.local/{where}",)
        assert f"{broker}.c-brokers.{encrypted.namespace}.svc" in certificate.hosts
    assert found["ca.crt"].decode() == bundle(encrypted) == authority.decode()


def test_a_client_that_trusts_the_bundle_believes_a_broker(
    encrypted: Operated, tmp_path: Path
) -> None:
    found = files(encrypted, "c-b-tls")
    for file in ("c-b-0.crt", "c-b-0.key"):
        (tmp_path / file).write_bytes(found[file])
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "c-b-0.crt", tmp_path / "c-b-0.key")
    client = ssl.create_default_context(cadata=bundle(encrypted))
    for name in (f"c-bootstrap.{encrypted.namespace}.svc", "localhost", "127.0.0.1"):
        shake_hands(client, server, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(client, server, f"c-b-1.c-brokers.{encrypted.namespace}.svc")


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
    assert not ends


def test_only_the_operator_s_own_secret_has_the_authority_s_key(encrypted: Operated) -> None:
    key = files(encrypted, "c-ca")["1.key"]
    assert key not in files(encrypted, "c-b-tls").values()
    pod = encrypted.get("/apis/apps/v1/%s/statefulsets", "c-b")
    assert pod is not None
    assert "'c-ca'" not in str(pod["spec"])


def test_an_idle_operator_changes_no_certificate(encrypted: Operated) -> None:
    before = [encrypted.get(SECRETS, name) for name in ("c-ca", "c-b-tls")]
    encrypted.restart()
    encrypted.look()
    assert [encrypted.get(SECRETS, name) for name in ("c-ca", "c-b-tls")] == before


def test_what_somebody_breaks_is_made_again(encrypted: Operated) -> None:
    secret = encrypted.get(SECRETS, "c-b-tls")
    assert secret is not None
    before = files(encrypted, "c-b-tls")
    secret["data"]["c-b-0.crt"] = base64.b64encode(b"no certificate").decode()
    path = f"/api/v1/namespaces/{encrypted.namespace}/secrets/c-b-tls"
    encrypted.request("PUT", path, secret)
    encrypted.look()
    after = files(encrypted, "c-b-tls")
    assert read(after["c-b-0.crt"]).is_of(after["ca.crt"])
    assert after["c-b-1.crt"] == before["c-b-1.crt"]


def test_brokers_get_certificates_while_something_else_is_wrong(encrypted: Operated) -> None:
    """Else a Cluster that is refused for some weeks is cut off, when they have ended."""
    wrong = {"limits": {"message_bytes_max": 65536}}
    encrypted.apply("clusters", "c", {**SPEC, "tls": {}, "config": wrong})
    path = f"/api/v1/namespaces/{encrypted.namespace}/secrets/c-b-tls"
    encrypted.request("DELETE", path)
    encrypted.look()
    assert encrypted.conditions()["Ready"] == ("False", "InvalidConfig")
    assert "c-b-0.crt" in files(encrypted, "c-b-tls")


def test_certificates_of_a_paused_cluster_are_renewed(
    encrypted: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its brokers know each other no more after some weeks."""
    encrypted.controllers.step()
    encrypted.apply("clusters", "c", {**SPEC, "tls": {}, "paused": True})
    encrypted.look()
    before, authority = files(encrypted, "c-b-tls"), files(encrypted, "c-ca")
    sets = "/apis/apps/v1/%s/statefulsets"
    made = encrypted.get(sets, "c-b")
    begun_ns = host.current.wall_ns()

    def pass_to(days: int) -> None:
        encrypted.ahead = timedelta(days=days)
        later_ns = begun_ns + days * 86_400 * 10**9
        monkeypatch.setattr(host.current, "wall_ns", lambda: later_ns)

    pass_to(21)
    assert encrypted.look(), "it is looked at again, though nothing changes"
    after = files(encrypted, "c-b-tls")
    for broker in ("c-b-0", "c-b-1"):
        old, new = (read(found[f"{broker}.crt"]) for found in (before, after))
        assert (new.begins > old.begins, new.hosts, new.uris) == (True, old.hosts, old.uris)
    assert files(encrypted, "c-ca") == authority
    assert encrypted.conditions()["Ready"] == ("Unknown", "Paused")

    pass_to(241)
    encrypted.look()
    encrypted.look()
    assert len(split(bundle(encrypted).encode())) == 2, "clients trust the next authority"
    found = encrypted.get("/apis/millrace.dev/v1beta1/%s/clusters", "c")
    assert found is not None
    assert found["status"]["authorities"] == bundle(encrypted)
    assert encrypted.get(sets, "c-b") == made, "nothing else changes"


def test_a_paused_cluster_in_plain_text_gets_no_certificate(operated: Operated) -> None:
    """What is written about TLS meanwhile waits."""
    operated.apply("clusters", "c", SPEC)
    operated.settle()
    operated.apply("clusters", "c", {**SPEC, "tls": {"mode": "Optional"}, "paused": True})
    operated.look()
    assert operated.get(SECRETS, "c-ca") is operated.get(SECRETS, "c-b-tls") is None


def test_a_cluster_that_is_paused_before_it_is_made_gets_no_certificate(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {**SPEC, "tls": {}, "paused": True})
    operated.look()
    assert operated.get(SECRETS, "c-ca") is None


def test_a_removed_broker_has_no_certificate_any_more(encrypted: Operated) -> None:
    found = rotate(encrypted, USUAL, {"c-b": 1})
    assert found.keys() == {"ca.crt", "c-b-0.crt", "c-b-0.key"}


QUICK = Times(authority=20, authority_every=3, spread=2, certificate=6, certificate_every=2)


def rotate(operated: Operated, times: Times, replicas: dict[str, int]) -> dict[str, bytes]:
    """Have an operator that knows nothing look at the certificates alone."""
    document = operated.get("/apis/millrace.dev/v1beta1/%s/clusters", "c")
    assert document is not None
    cluster = cluster_of(document)

    async def look() -> None:
        one = CertificatesReconciler(
            operated.api,
            Applied(operated.api),
            lambda: datetime.fromtimestamp(host.current.wall_ns() / 1e9, UTC),
            times,
        )
        await one.ensure(cluster, replicas, {}, await one.observe(cluster, replicas))

    asyncio.run(look())
    return files(operated, "c-b-tls")


def test_authorities_change_while_every_certificate_is_trusted(
    encrypted: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each moment a broker that has yet to hear of a change is believed, and believes."""
    signers = set()
    previous: dict[str, bytes] = files(encrypted, "c-b-tls")
    begun_ns = host.current.wall_ns()
    for halves in range(18):
        passed_ns = halves * 500_000_000
        monkeypatch.setattr(host.current, "wall_ns", lambda now=begun_ns + passed_ns: now)
        found = rotate(encrypted, QUICK, {"c-b": 2})
        for trusting, shown in ((previous, found), (found, previous)):
            certificate = read(shown["c-b-0.crt"])
            assert any(certificate.is_of(each) for each in split(trusting["ca.crt"]))
        signers |= {each for each in split(found["ca.crt"]) if read(found["c-b-0.crt"]).is_of(each)}
        previous = found
    assert len(signers) >= 3


def test_brokers_and_clients_go_on_while_authorities_change(
    encrypted: Operated, tmp_path: Path
) -> None:
    """With what the operator makes: brokers know each other by it, and no write fails."""
    bring(files(encrypted, "c-b-tls"), tmp_path)
    brokers = [encrypted_broker(tmp_path, f"c-b-{number}") for number in range(2)]
    try:
        for broker in brokers:
            broker.start()
        bootstrap = ",".join(broker.address for broker in brokers)
        trusted = str(tmp_path / "ca.crt")
        with SyncAdmin(bootstrap, tls_ca_file=trusted) as admin:
            admin.create_topic("t", partitions=2, replication_factor=2)
        # Beside the writes: one that waits for a connection must not hold up the next certificate.
        with (
            SyncProducer(bootstrap, tls_ca_file=trusted) as producer,
            repeated(lambda: bring(rotate(encrypted, QUICK, {"c-b": 2}), tmp_path), 0.5),
        ):
            shown: set[bytes] = set()
            end = time.monotonic() + 12
            while time.monotonic() < end or len(shown) < 4:
                assert time.monotonic() < end + 40, "certificates change too seldom"
                shown.add((tmp_path / "c-b-0.crt").read_bytes())
                for number in range(20):
                    assert producer.send("t", b"x", partition=number % 2).result(30).offset >= 0
                time.sleep(0.2)
            wait_until(lambda: is_healthy(bootstrap, trusted), "all are in sync", 40)
    finally:
        for broker in brokers:
            broker.abandon()


def is_healthy(bootstrap: str, trusted: str) -> bool:
    """Ask over a new connection; a file may change while it is read."""
    with suppress(MillraceError), SyncAdmin(bootstrap, tls_ca_file=trusted) as admin:
        return admin.describe_health().is_healthy
    return False


def test_a_pod_without_rights_fails_the_handshake_at_the_listener_for_brokers(
    encrypted: Operated, tmp_path: Path
) -> None:
    """G2, where no network policy is enforced: with all that a pod of the namespace can read."""
    bring(files(encrypted, "c-b-tls"), tmp_path)
    broker = encrypted_broker(tmp_path, "c-b-0")
    name = f"spiffe://cluster.local/ns/{encrypted.namespace}/cluster/c/broker/c-b-1"
    forged = CertificateFiles(tmp_path / "forged", f"{encrypted.namespace}/c brokers 1")
    mine = forged.make("c-b-1", "localhost", uri=name)
    trusted = str(tmp_path / "ca.crt")  # As in the ConfigMap for clients.
    strangers = {
        "plain text": None,
        "no certificate": TlsFiles(trusted),
        "an authority of the same name": TlsFiles(trusted, mine.certificate, mine.key),
    }
    try:
        broker.start()
        addresses = replica_addresses(broker)
        for stranger, shown in strangers.items():
            for method, message in CALLS.items():
                said = asyncio.run(
                    Stranger(shown).outcome(addresses, method, message.SerializeToString())
                )
                assert said == set(), (stranger, method)
        own = TlsFiles(trusted, *(str(tmp_path / f"c-b-1.{kind}") for kind in ("crt", "key")))
        fetch = f"{REPLICA}DescribeLags"
        said = asyncio.run(
            Stranger(own).outcome(addresses, fetch, CALLS[fetch].SerializeToString())
        )
        assert said == {"ok"}, "a broker is answered"
    finally:
        broker.abandon()


def bring(found: dict[str, bytes], folder: Path) -> None:
    """Do what a kubelet does: all files of a Secret change at once, by a link."""
    fresh = folder / f"data-{time.monotonic_ns()}"
    fresh.mkdir()
    for name, content in found.items():
        (fresh / name).write_bytes(content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    link = folder / "..new"
    link.symlink_to(fresh.name)
    link.replace(folder / "..data")


def encrypted_broker(folder: Path, name: str) -> RunningBroker:
    files = {"tls_certificate_file": f"{name}.crt", "tls_key_file": f"{name}.key"}
    settings: dict[str, object] = {
        "node.name": name,
        "coordination.path": folder / "coordination.sqlite",
        "coordination.shared": "true",
        "listeners.replicas.tls_client_ca_file": folder / "ca.crt",
    }
    for listener in ("clients", "replicas"):
        for setting, file in files.items():
            settings[f"listeners.{listener}.{setting}"] = folder / file
    return RunningBroker(folder / name, settings)


def split(certificates: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----\n"
    return [each + end for each in certificates.split(end) if each]


def annotate(operated: Operated, name: str, value: str) -> None:
    """Do what `kubectl annotate --overwrite` does."""
    where = f"/apis/millrace.dev/v1beta1/namespaces/{operated.namespace}/clusters/c"
    found = operated.request("GET", where)
    found["metadata"].setdefault("annotations", {})[name] = value
    operated.request("PUT", where, found)


def test_certificates_and_authority_are_renewed_as_people_ask(encrypted: Operated) -> None:
    before = files(encrypted, "c-b-tls")
    time.sleep(1.1)  # A certificate says its second.
    annotate(encrypted, CERTIFICATES, now())
    encrypted.look()
    after = files(encrypted, "c-b-tls")
    assert after["ca.crt"] == before["ca.crt"]
    for broker in ("c-b-0.crt", "c-b-1.crt"):
        assert after[broker] != before[broker]
    encrypted.look()
    assert files(encrypted, "c-b-tls") == after

    annotate(encrypted, AUTHORITY, now())
    encrypted.look()
    both = files(encrypted, "c-b-tls")
    new, old = split(both["ca.crt"])
    assert old == before["ca.crt"]
    assert read(both["c-b-0.crt"]).is_of(old)
    encrypted.ahead = timedelta(minutes=4)
    encrypted.look()
    assert read(files(encrypted, "c-b-tls")["c-b-0.crt"]).is_of(new)
    assert bundle(encrypted) == both["ca.crt"].decode()
    encrypted.ahead = timedelta(minutes=8)
    encrypted.look()
    assert bundle(encrypted) == new.decode()
    assert files(encrypted, "c-ca").keys() == {"2.crt", "2.key"}


def test_a_wish_that_cannot_be_understood_is_answered(encrypted: Operated) -> None:
    before = files(encrypted, "c-b-tls")
    annotate(encrypted, CERTIFICATES, "now")
    encrypted.look()
    assert "'now' is no time in UTC" in str(encrypted.told())
    assert files(encrypted, "c-b-tls") == before


@pytest.mark.parametrize("changes", range(1, 5))
def test_a_killed_operator_goes_on_with_a_new_authority(encrypted: Operated, changes: int) -> None:
    """Killed after each of its changes: what brokers show is of an authority that all trust."""
    times = Times(authority_every=0.1, spread=0, certificate_every=0)
    encrypted.restart(changes)
    with suppress(KilledError):
        rotate(encrypted, times, {"c-b": 2})
    for trusting in (bundle(encrypted).encode(), files(encrypted, "c-b-tls")["ca.crt"]):
        certificate = read(files(encrypted, "c-b-tls")["c-b-0.crt"])
        assert any(certificate.is_of(each) for each in split(trusting))
    encrypted.restart()
    encrypted.look()
    found = files(encrypted, "c-b-tls")
    assert found["ca.crt"].decode() == bundle(encrypted)
    kept = {name for name in files(encrypted, "c-ca") if name.endswith(".crt")}
    assert len(split(found["ca.crt"])) == len(kept)
    assert read(found["c-b-1.crt"]).is_of(split(found["ca.crt"])[-1])


def test_two_operators_do_not_lose_each_other_s_authority(encrypted: Operated) -> None:
    """A lease is a hint: the later one fails, and looks again."""
    document = encrypted.get("/apis/millrace.dev/v1beta1/%s/clusters", "c")
    assert document is not None
    cluster = cluster_of(document)
    times = Times(authority_every=0)

    def operator() -> CertificatesReconciler:
        return CertificatesReconciler(
            encrypted.api, Applied(encrypted.api), lambda: datetime.now(UTC), times
        )

    async def both() -> None:
        first, second = operator(), operator()
        seen = [await one.observe(cluster, ["c-b"]) for one in (first, second)]
        await first.ensure(cluster, {"c-b": 2}, {}, seen[0])
        with pytest.raises(ApiError):
            await second.ensure(cluster, {"c-b": 2}, {}, seen[1])

    asyncio.run(both())
    assert "2.crt" in files(encrypted, "c-ca")


def test_an_issuer_without_cert_manager_is_said(operated: Operated) -> None:
    operated.apply("clusters", "c", {**SPEC, "tls": {"issuerRef": {"name": "company"}}})
    operated.look()
    status, reason, message = operated.told()["Certified"]
    assert (status, reason) == ("False", "NoCertManager")
    assert "install cert-manager" in message
    assert operated.get("/apis/apps/v1/%s/statefulsets", "c-b") is not None
    assert files(operated, "c-b-tls").keys() >= {"ca.crt", "c-b-0.crt"}, "brokers' own go on"
