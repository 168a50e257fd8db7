"""Three brokers of the release before go from plain text to TLS under load, one by one (G4).

The first restart of each is its upgrade, too: the release before knows no TLS. Both rolls go on
beside clients that write and read all the time, and one broker is killed in each. Ports are those
of a test, not of pods: the last step listens where TLS was before.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api_server.running import RunningApiServer
from tests.checkers.check import check
from tests.checkers.report import Expectations
from tests.fakes.certificate_files import CertificateFiles
from tests.faults.history import History
from tests.faults.load import Load, Places
from tests.integration.running_broker import RunningBroker, wait_until
from tests.releases.last import unpacked

from millrace.client import SyncAdmin
from millrace.core.errors import MillraceError

HOSTS = ("localhost", "127.0.0.1")
NAMES = ("b-0", "b-1", "b-2")
SIDES = ("clients", "replicas")
FILES = ("certificate", "key", "client_ca")


class Changing:
    """The brokers, and their certificates."""

    def __init__(self, folder: Path, settings: dict[str, object], cluster: str) -> None:
        self.files = CertificateFiles(folder / "certificates")
        self.brokers = {
            name: RunningBroker(folder / name, {**settings, "node.name": name}) for name in NAMES
        }
        self._cluster = cluster
        self._before = unpacked(folder / "release")

    def start(self) -> None:
        """Start all of them, of the release before."""
        for broker in self.brokers.values():
            broker.release = self._before
            broker.start()

    def give_both(self, name: str) -> None:
        """Let a broker be of this release, with TLS beside plain text, from its next start on."""
        self.brokers[name].release = None
        uri = f"spiffe://cluster.local/ns/default/cluster/{self._cluster}/broker/{name}"
        made = self.files.make(name, *HOSTS, uri=uri)
        settings = self.brokers[name].settings
        for side in SIDES:
            settings[f"listeners.{side}.tls_certificate_file"] = made.certificate
            settings[f"listeners.{side}.tls_key_file"] = made.key
            settings[f"listeners.{side}.tls_port"] = 0
        settings["listeners.replicas.tls_client_ca_file"] = made.ca

    def close_plain(self, name: str) -> None:
        """Let a broker have TLS alone from its next start on."""
        broker = self.brokers[name]
        for side in SIDES:
            del broker.settings[f"listeners.{side}.tls_port"]
        broker.settings["listeners.clients.port"] = broker.tls_address.rpartition(":")[2]

    def healthy(self, **settings: Any) -> bool:
        bootstrap = self.tls_bootstrap if settings else self.bootstrap
        with contextlib.suppress(MillraceError), SyncAdmin(bootstrap, **settings) as admin:
            return admin.describe_health().is_healthy
        return False

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def tls_bootstrap(self) -> str:
        return ",".join(broker.tls_address for broker in self.brokers.values())


@pytest.fixture
def changing(api_server: RunningApiServer, tmp_path: Path, cluster_name: str) -> Iterator[Changing]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api_server.kubeconfig())
    settings = {
        "coordination.kind": "kubernetes",
        "coordination.kubernetes.kubeconfig": kubeconfig,
        "coordination.kubernetes.cluster_name": cluster_name,
        "cluster.broker_session_timeout_ms": 3000,
    }
    made = Changing(tmp_path, settings, cluster_name)
    try:
        yield made
    finally:
        for broker in made.brokers.values():
            broker.abandon()


@contextlib.contextmanager
def load(bootstrap: str, topic: str, **client: Any) -> Iterator[Load]:
    """Write and read a topic for the time of the block, and judge what came of it."""
    with SyncAdmin(bootstrap, **client) as admin:
        admin.create_topic(topic, partitions=3, replication_factor=3)
    with History() as history:
        places = Places(topics=(topic,), partitions=3)
        clients = Load(bootstrap, history, 1, places, client=client)
        clients.start()
        try:
            clients.begin()
            clients.wait_for_all()
            yield clients
            clients.read_all()
            assert clients.failure is None
        finally:
            clients.stop()
        report = check(history.ops, expectations=Expectations(ok_shares={"send": 0.9, "poll": 0.9}))
        assert report.is_good, report.text()


def roll(changing: Changing, clients: Load, change: Any, killed: str, **admin: Any) -> None:
    """Restart the brokers one after the other, one of them by a crash."""
    for name, broker in changing.brokers.items():
        wait_until(lambda: changing.healthy(**admin), "the cluster is healthy", 60)
        change(name)
        if name == killed:
            broker.kill()
        else:
            assert broker.stop() == 0
        broker.start()
        clients.wait_for_all(seconds=60)


@pytest.mark.timeout(400)  # Two rolls of three brokers, each of which waits for the cluster.
def test_brokers_and_clients_go_to_tls_and_nothing_is_lost(changing: Changing) -> None:
    changing.start()
    with load(changing.bootstrap, "plain") as clients:
        roll(changing, clients, changing.give_both, "b-1")
        trusted = {"tls_ca_file": str(changing.files.ca)}
        with load(changing.tls_bootstrap, "tls", **trusted) as moved:
            wait_until(changing.healthy, "the cluster is healthy", 60)
            # Any broker may answer, also one that has yet to hear of the last one's.
            by_tls = {broker.tls_address for broker in changing.brokers.values()}
            wait_until(lambda: addresses(changing.tls_bootstrap, **trusted) == by_tls, "all by TLS")
            plain = {broker.address for broker in changing.brokers.values()}
            wait_until(lambda: addresses(changing.bootstrap) == plain, "all in plain text")
            clients.wait_for_all()
            moved.wait_for_all()
    with load(changing.tls_bootstrap, "closing", **trusted) as clients:
        roll(changing, clients, changing.close_plain, "b-1", **trusted)
        wait_until(lambda: changing.healthy(**trusted), "the cluster is healthy", 60)
    for broker in changing.brokers.values():
        assert broker.tls_address == broker.address


def addresses(bootstrap: str, **client: Any) -> set[str]:
    """Return the brokers' addresses that a client is told."""
    with SyncAdmin(bootstrap, **client) as admin:
        return {broker.address for broker in admin.describe_cluster().brokers}
