"""Brokers know each other by certificates: who else comes is refused (rule G2), and nothing is lost
while certificates and authorities change."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster
from tests.integration.test_callers import lines

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.broker_names import BrokerName
from millrace.core.errors import AuthenticationFailedError, ClusterAuthorizationFailedError
from millrace.proto.features import BROKER_PROTOCOL
from millrace.proto.v1 import controller_pb2, fetch_pb2, transactions_pb2
from millrace.runtime.transport.calls import CallError
from millrace.runtime.transport.credentials import ClientCredentials, TlsFiles
from millrace.runtime.transport.drpc import client
from millrace.runtime.transport.drpc.connector import Connector
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.grpc_channel import Channel

HOSTS = ("localhost", "127.0.0.1")
SESSION = "/millrace.proto.v1.Controller/Session"
FETCH = "/millrace.proto.v1.Replica/Fetch"
REPLICA = "/millrace.proto.v1.Replica/"
NAMES = ("broker-0", "broker-1", "broker-2")


def uri(name: str, cluster: str = "orders") -> str:
    return BrokerName("millrace", "team", cluster, name).uri


@dataclass
class Secured:
    """A cluster, and the authorities of its brokers and of its clients."""

    cluster: RunningCluster
    brokers: CertificateFiles
    clients: CertificateFiles

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of a client."""
        return {"tls_ca_file": str(self.clients.ca)}

    def renew(self) -> None:
        """Give all brokers other certificates."""
        for name in NAMES:
            self.brokers.make(name, *HOSTS, uri=uri(name))
            self.clients.make(name, *HOSTS)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    """Three brokers that listen in TLS alone."""
    made = Secured(
        RunningCluster(tmp_path),
        CertificateFiles(tmp_path / "of-brokers", "brokers"),
        CertificateFiles(tmp_path / "of-clients", "clients"),
    )
    made.renew()
    for name, broker in zip(NAMES, made.cluster.brokers, strict=True):
        own, shown = made.brokers.folder / name, made.clients.folder / name
        broker.settings |= {
            "listeners.replicas.tls_certificate_file": f"{own}.crt",
            "listeners.replicas.tls_key_file": f"{own}.key",
            "listeners.replicas.tls_client_ca_file": made.brokers.ca,
            "listeners.clients.tls_certificate_file": f"{shown}.crt",
            "listeners.clients.tls_key_file": f"{shown}.key",
        }
    with made.cluster:
        yield made


def replica_addresses(broker: RunningBroker) -> tuple[str, str]:
    """Return where other brokers connect to one: by gRPC, and by DRPC."""
    from tests.integration.drpc_by_hand import listening_ports

    client_ports = {
        int(address.rpartition(":")[2])
        for address in (broker.address, broker.drpc_address, broker.metrics_address)
    }
    ports = sorted(set(listening_ports(broker.pid)) - client_ports)
    assert len(ports) == 2
    return tuple(f"127.0.0.1:{port}" for port in ports)  # type: ignore[return-value]


def all_in_sync(secured: Secured, topic: str) -> bool:
    with SyncAdmin(secured.cluster.bootstrap, **secured.settings) as admin:
        return all(len(one.isr) == 3 for one in admin.describe_topic(topic).partitions)


def test_nothing_is_lost_while_the_certificates_of_brokers_change(secured: Secured) -> None:
    bootstrap, settings = secured.cluster.bootstrap, secured.settings
    with SyncAdmin(bootstrap, **settings) as admin:
        admin.create_topic("orders", partitions=3, replication_factor=3)
    handles: list[Any] = []
    with (
        SyncProducer(bootstrap, **settings) as producer,
        SyncConsumer(bootstrap, **settings) as consumer,
    ):
        consumer.subscribe(["orders"])
        found: list[int] = []

        def work(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                handles.append(producer.send("orders", b"%d" % len(handles)))
                found.extend(int(record.value) for record in consumer.poll(2))

        for turn in range(2):
            work(1)
            for files in (secured.brokers, secured.clients):
                old = files.change_authority(f"authority {turn}")
                files.ca.write_bytes(old + files.authority.certificate)
            work(2)
            secured.renew()
            work(2)
            for files in (secured.brokers, secured.clients):
                files.ca.write_bytes(files.authority.certificate)
            work(2)
        producer.flush()
        for handle in handles:
            handle.result(30)
        deadline = time.monotonic() + 30
        while len(found) < len(handles) and time.monotonic() < deadline:
            found.extend(int(record.value) for record in consumer.poll(500))
    assert sorted(found) == list(range(len(handles)))
    wait_until(lambda: all_in_sync(secured, "orders"), "all replicas are in sync")
    # All trust the new authority by now: a broker that starts anew joins.
    secured.cluster.brokers[1].stop()
    secured.cluster.brokers[1].start()
    wait_until(lambda: all_in_sync(secured, "orders"), "the broker that started is in sync")
    for broker in secured.cluster.brokers:
        assert lines(broker, "certificate_unusable") == []


class Stranger:
    """Calls the listener of brokers with some credentials."""

    def __init__(self, files: TlsFiles | None) -> None:
        self._files = files

    async def outcome(self, addresses: tuple[str, str], method: str, message: bytes) -> set[str]:
        """Return what a call's first answer is, by gRPC and by DRPC: an error's name, or `ok`."""
        credentials = None if self._files is None else ClientCredentials(self._files, print)
        found = set()
        for address in addresses:
            async with Channel(address, (), client_id="x", credentials=credentials) as channel:
                found.add(await self._said(channel.stream(method), message))
            connector = Connector(
                ConnectionLimits(message_bytes_max=1 << 20, keepalive_ms=0, dead_after_ms=5000),
                received_bytes_max=1 << 20,
                client_id="x",
                credentials=credentials,
            )
            connection: client.DrpcConnection | None = await connector.connect(address)
            if connection is not None:
                stream = connection.stream(method, connector.metadata_for(address))
                found.add(await self._said(stream, message))
                connection.abort("asked")
        # One of the two ports speaks the other protocol.
        return found - {"UNAVAILABLE", "UNKNOWN", "INVALID_ARGUMENT", "UNIMPLEMENTED", "INTERNAL"}

    async def _said(self, stream: Any, message: bytes) -> str:
        try:
            async with asyncio.timeout(5):
                await stream.write(message)
                await stream.end_writing()
                said = await stream.read()
        except TimeoutError:
            return "silence"
        except CallError as error:
            return error.refusal.name() if error.refusal is not None else error.status.name
        finally:
            stream.cancel()
        return "nothing" if said is None else "ok"


CALLS = {
    SESSION: controller_pb2.SessionRequest(
        opening=controller_pb2.SessionOpening(features=[BROKER_PROTOCOL])
    ),
    FETCH: fetch_pb2.FetchRequest(
        settings=fetch_pb2.FetchSettings(replica_id=1, features=[BROKER_PROTOCOL])
    ),
    REPLICA + "DescribeLags": fetch_pb2.DescribeLagsRequest(),
    REPLICA + "JoinTransaction": transactions_pb2.JoinTransactionRequest(transactional_id="d/t"),
    REPLICA + "WriteMarkers": transactions_pb2.WriteMarkersRequest(),
}


def test_only_brokers_of_the_cluster_are_answered_at_the_listener_of_brokers(
    secured: Secured, tmp_path: Path
) -> None:
    addresses = replica_addresses(secured.cluster.brokers[0])
    ca = secured.brokers.ca
    made = secured.brokers.make
    without = TlsFiles(ca=str(ca))
    of_clients = secured.clients.make("spark")

    def is_told(stranger: Stranger, method: str, message: bytes, refusal: set[str]) -> bool:
        return asyncio.run(stranger.outcome(addresses, method, message)) == refusal

    for stranger, refusal in (
        (None, set()),  # Plain text: it does not even get so far.
        (without, set()),
        (TlsFiles(str(ca), of_clients.certificate, of_clients.key), set()),
        # The same authority signed them, as a shared issuer does.
        (made("spark"), {AuthenticationFailedError.name()}),
        (made("other", *HOSTS, uri=uri("broker-1", "another")), {AuthenticationFailedError.name()}),
    ):
        for method, message in CALLS.items():
            asked = Stranger(stranger), method, message.SerializeToString()
            # A busy broker may not answer within the time of a connection.
            wait_until(partial(is_told, *asked, refusal), f"{stranger} is told {refusal}")
    assert lines(secured.cluster.brokers[0], "caller_refused")


def test_a_broker_cannot_speak_for_another_one(secured: Secured) -> None:
    broker = secured.cluster.brokers[0]
    addresses = replica_addresses(broker)
    one = Stranger(secured.brokers.make("one", *HOSTS, uri=uri("broker-1")))

    def fetch_as(broker_id: int) -> set[str]:
        settings = fetch_pb2.FetchSettings(replica_id=broker_id, features=[BROKER_PROTOCOL])
        message = fetch_pb2.FetchRequest(settings=settings).SerializeToString()
        return asyncio.run(one.outcome(addresses, FETCH, message))

    # A busy broker may not answer within the time of a connection.
    wait_until(lambda: fetch_as(2) == {ClusterAuthorizationFailedError.name()}, "it is refused", 60)
    assert ClusterAuthorizationFailedError.name() not in fetch_as(1)

    def controllers() -> list[RunningBroker]:
        return [
            broker
            for broker in secured.cluster.brokers
            if broker.metrics().get("millrace_controller_active")
        ]

    wait_until(lambda: len(controllers()) == 1, "a broker is the controller")
    (controller,) = controllers()

    async def answers() -> list[Any]:
        credentials = ClientCredentials(
            secured.brokers.make("one", *HOSTS, uri=uri("broker-1")), print
        )
        for address in replica_addresses(controller):
            async with Channel(address, (), client_id="x", credentials=credentials) as channel:
                stream = channel.stream(SESSION)
                found: list[Any] = []
                try:
                    async with asyncio.timeout(10):
                        await stream.write(CALLS[SESSION].SerializeToString())
                        for request in requests():
                            await stream.write(request.SerializeToString())
                        while len(found) < 2:
                            message = controller_pb2.SessionResponse.FromString(
                                await stream.read() or b""
                            )
                            if message.HasField("response"):
                                found.append(message.response.error)
                except (CallError, TimeoutError):
                    continue
                return found
        raise AssertionError("no controller")

    def requests() -> Iterator[controller_pb2.SessionRequest]:
        register = controller_pb2.RegisterBrokerRequest(name="broker-2")
        yield controller_pb2.SessionRequest(
            request=controller_pb2.ControllerRequest(correlation_id=1, register_broker=register)
        )
        heartbeat = controller_pb2.HeartbeatRequest(broker_id=2, broker_epoch=1)
        yield controller_pb2.SessionRequest(
            request=controller_pb2.ControllerRequest(correlation_id=2, heartbeat=heartbeat)
        )

    codes = {error.code for error in asyncio.run(answers())}
    assert codes == {ClusterAuthorizationFailedError.code}


@pytest.mark.parametrize("other", [uri("broker-2"), uri("broker-1", "another"), ""])
def test_a_certificate_with_another_name_does_not_take_the_place_of_a_broker_s_own(
    secured: Secured, other: str
) -> None:
    broker = secured.cluster.brokers[1]
    with SyncAdmin(secured.cluster.bootstrap, **secured.settings) as admin:
        admin.create_topic("orders", partitions=3, replication_factor=3)
    secured.brokers.make("broker-1", *HOSTS, uri=other)
    wait_until(lambda: lines(broker, "certificate_unusable"), "it is refused")
    (said,) = lines(broker, "certificate_unusable")
    assert uri("broker-1") in said["error"]
    # The connections that are made from now on show the good one.
    secured.cluster.brokers[0].stop()
    secured.cluster.brokers[0].start()
    wait_until(lambda: all_in_sync(secured, "orders"), "all replicas are in sync")
    secured.brokers.make("broker-1", *HOSTS, uri=uri("broker-1"))
    wait_until(lambda: lines(broker, "certificate_renewed"), "the next one counts")


def test_a_broker_whose_certificate_has_another_name_does_not_start(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "certificates")
    made = files.make("b", *HOSTS, uri=uri("broker-7"))
    settings: dict[str, object] = {
        "node.name": "broker-0",
        "listeners.replicas.tls_certificate_file": made.certificate,
        "listeners.replicas.tls_key_file": made.key,
        "listeners.replicas.tls_client_ca_file": made.ca,
    }
    _, said = RunningBroker(tmp_path / "broker", settings).refused_start()
    assert "the certificate has to name this broker, node.name 'broker-0'" in said
    assert uri("broker-7") in said
    del settings["listeners.replicas.tls_client_ca_file"]
    _, said = RunningBroker(tmp_path / "another", settings).refused_start()
    assert "brokers know each other by certificates" in said
