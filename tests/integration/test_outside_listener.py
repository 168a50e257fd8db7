"""Clients who came through an outside listener are told outside addresses, and no others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.raw_client import RawClient, batch_of, request_of
from tests.integration.running_broker import RunningBroker, free_ports, wait_until
from tests.integration.running_cluster import RunningCluster, read_all

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.errors import NotLeaderError
from millrace.core.ids import TopicPartition
from millrace.proto.v1 import cluster_pb2

INSIDE = 'millrace_connections{listener="clients"}'
OUTSIDE = 'millrace_connections{listener="outside"}'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """Three brokers; `localhost` is what they are called outside."""
    settings = {"listeners.outside.port": 0, "listeners.outside.advertised_host": "localhost"}
    with RunningCluster(tmp_path_factory.mktemp("outside"), settings) as brokers:
        yield brokers


def outside_addresses(cluster: RunningCluster) -> set[str]:
    return {broker.outside_address for broker in cluster.brokers}


def test_who_begins_outside_only_ever_connects_to_outside_ports(cluster: RunningCluster) -> None:
    assert all(
        outside_address.startswith("localhost:") for outside_address in outside_addresses(cluster)
    )
    bootstrap = cluster.brokers[0].outside_address
    with SyncAdmin(bootstrap) as admin, SyncProducer(bootstrap, acks="all") as producer:
        created = admin.create_topic("far", partitions=6, replication_factor=3)
        for number in range(60):
            producer.send("far", b"%d" % number).result(30)
        assert len(read_all(bootstrap, "far", 60)) == 60
        brokers = admin.describe_cluster().brokers
        assert {broker.address for broker in brokers} == outside_addresses(cluster)
        for described in (created, admin.describe_topic("far")):
            found = {partition.leader_address for partition in described.partitions}
            assert found == outside_addresses(cluster)
        # Producer and admin keep their connections; the page shows them within a second or two.
        wait_until(
            lambda: all(broker.metrics()[OUTSIDE] for broker in cluster.brokers), "all are seen"
        )
        assert [broker.metrics()[INSIDE] for broker in cluster.brokers] == [0, 0, 0]


def test_who_begins_inside_is_told_nothing_of_outside(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.brokers[0].address) as admin:
        created = admin.create_topic("near", partitions=6, replication_factor=3)
        addresses = {broker.address for broker in cluster.brokers}
        assert {broker.address for broker in admin.describe_cluster().brokers} == addresses
        for described in (created, admin.describe_topic("near")):
            assert {partition.leader_address for partition in described.partitions} == addresses


def test_a_refusal_names_the_leader_by_the_address_of_the_callers_side(
    cluster: RunningCluster,
) -> None:
    topic = cluster.create_topic("refusals", replication_factor=3)
    place = TopicPartition(topic.topic_id, 0)
    leader = next(
        broker for broker in cluster.brokers if broker.address == topic.partitions[0].leader_address
    )
    other = next(broker for broker in cluster.brokers if broker is not leader)
    sides = [
        (other.address, leader.address),
        (other.outside_address, leader.outside_address),
    ]
    for asked, expected in sides:
        with RawClient(asked) as client:
            (answer,) = client.produce(request_of((place, batch_of(place))))
            produced = answer.results[0].error
            listed = client.list_offset(place, latest=True).error
            session = client.fetch()
            session.ask([(1, place, 0)], credit=1 << 20)
            for error in (produced, listed, session.next_error()):
                assert error.code == NotLeaderError.code
                assert error.leader.address == expected


def test_a_broker_that_starts_again_is_found_outside_by_who_knew_it(
    cluster: RunningCluster,
) -> None:
    bootstrap = ",".join(broker.outside_address for broker in cluster.brokers)
    with SyncAdmin(bootstrap) as admin, SyncProducer(bootstrap, acks="all") as producer:
        admin.create_topic("again", partitions=3, replication_factor=3)
        for number in range(6):
            producer.send("again", b"%d" % number, partition=number % 3).result(30)
        moved = cluster.brokers[1]
        before = moved.outside_address
        moved.kill()
        moved.start()
        assert moved.outside_address != before  # The system chose another port.

        def addresses() -> set[str]:
            return {broker.address for broker in admin.describe_cluster().brokers}

        wait_until(lambda: addresses() == outside_addresses(cluster), "its new address is known")
        for number in range(6):
            producer.send("again", b"%d" % number, partition=number % 3).result(30)


def test_the_address_may_come_and_change_while_the_broker_runs(tmp_path: Path) -> None:
    file = tmp_path / "address"

    def told(address: str) -> str:
        with RawClient(address) as client:
            answer = client.cluster.GetMetadata(cluster_pb2.GetMetadataRequest(), timeout=20)
        return str(answer.brokers[0].address)

    with RunningBroker(tmp_path / "broker", {"listeners.outside.port": 0}) as broker:
        port = broker.outside_address.rpartition(":")[2]
        broker.stop()
        broker.settings = {
            "listeners.outside.port": port,
            "listeners.outside.address_file": file,
        }
        broker.start()
        assert broker.outside_address == ""
        assert told(broker.address) == broker.address
        assert told(f"127.0.0.1:{port}") == ""
        with RawClient(broker.address) as client:
            client.create_topic("waiting")
        with SyncProducer(f"127.0.0.1:{port}") as producer:
            waits = producer.send("waiting", b"v")
            with pytest.raises(TimeoutError):
                waits.result(1)
            file.write_text(f":{port}")
            waits.result(30)
        wait_until(lambda: told(f"127.0.0.1:{port}") == f"127.0.0.1:{port}", "it is told")
        file.write_text(f"localhost:{port}")
        wait_until(lambda: told(f"127.0.0.1:{port}") == f"localhost:{port}", "it is told")
        with SyncAdmin(f"127.0.0.1:{port}") as admin, SyncProducer(f"localhost:{port}") as producer:
            admin.create_topic("t")
            producer.send("t", b"v").result(30)
        assert told(broker.address) == broker.address


def test_who_comes_by_tls_is_told_addresses_by_tls_and_others_keep_theirs(tmp_path: Path) -> None:
    """G4: on the way to TLS each has a port, and a file with its address."""
    shown = CertificateFiles(tmp_path / "certificates").make("b-0", "localhost")
    ports = free_ports(2)
    plain, by_tls = (f"localhost:{port}" for port in ports)
    addresses = {"address_file": tmp_path / "plain", "tls_address_file": tmp_path / "tls"}
    addresses["address_file"].write_text(plain)
    settings = {
        "port": ports[0],
        "tls_port": ports[1],
        "tls_certificate_file": shown.certificate,
        "tls_key_file": shown.key,
        **addresses,
    }
    listener = {f"listeners.outside.{name}": value for name, value in settings.items()}

    def told(address: str, **credentials: Any) -> str:
        with SyncAdmin(address, **credentials) as admin:
            return admin.describe_cluster().brokers[0].address

    with RunningBroker(tmp_path / "broker", listener) as broker:
        assert told(plain) == plain
        assert told(by_tls, tls_ca_file=shown.ca) == "", "its certificate has yet to get the name"
        addresses["tls_address_file"].write_text(by_tls)
        wait_until(lambda: told(by_tls, tls_ca_file=shown.ca) == by_tls, "it is told")
        assert told(plain) == plain
        assert told(broker.address) == broker.address
        with (
            SyncAdmin(plain) as admin,
            SyncProducer(by_tls, tls_ca_file=shown.ca) as producer,
        ):
            admin.create_topic("t")
            producer.send("t", b"v").result(30)
