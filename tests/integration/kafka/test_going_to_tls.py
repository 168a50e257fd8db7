"""Clients of Kafka change to TLS one after the other: a port for either, beside each other (G4)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.kafka.ends import closing
from tests.integration.running_broker import RunningBroker, free_ports

from millrace.client import SyncAdmin

TOPIC = "t"
STARTS_MAX = 5


def started_on_free_ports(
    folder: Path, settings_of: Callable[[list[int]], dict[str, object]]
) -> tuple[RunningBroker, list[int]]:
    """Start a broker on two ports that are chosen before; return the ports as well.

    Somebody else may get one of them before the broker does: then on two others.
    """
    for attempt in range(STARTS_MAX):
        ports = free_ports(2)
        broker = RunningBroker(folder / f"broker-{attempt}", settings_of(ports))
        try:
            return broker.start(), ports
        except RuntimeError:
            if not broker.log_has("Address already in use"):
                raise
    raise AssertionError(f"{STARTS_MAX} times somebody else got a port")


def test_clients_of_kafka_that_come_by_tls_are_told_that_port_and_others_keep_theirs(
    tmp_path: Path,
) -> None:
    shown = CertificateFiles(tmp_path / "certificates").make("b-0", "127.0.0.1")

    def settings_of(ports: list[int]) -> dict[str, object]:
        return {
            "listeners.clients.tls_port": 0,
            "listeners.clients.tls_certificate_file": shown.certificate,
            "listeners.clients.tls_key_file": shown.key,
            "listeners.clients_kafka.port": ports[0],
            "listeners.clients_kafka.tls_port": ports[1],
        }

    broker, ports = started_on_free_ports(tmp_path, settings_of)
    by_tls = {"security_protocol": "SSL", "ssl_cafile": str(shown.ca)}
    both: list[tuple[int, dict[str, Any]]] = [(ports[0], {}), (ports[1], by_tls)]
    try:
        with SyncAdmin(broker.address) as admin:
            admin.create_topic(TOPIC)
        for port, credentials in both:
            first = {"bootstrap_servers": f"127.0.0.1:{port}", **credentials}
            with closing(KafkaAdminClient(**first)) as client:
                (told,) = client.describe_cluster()["brokers"]
                assert (told["host"], told["port"]) == ("127.0.0.1", port)
            with closing(KafkaProducer(acks="all", **first)) as producer:
                producer.send(TOPIC, str(port).encode()).get(30)
        for port, credentials in both:
            first = {"bootstrap_servers": f"127.0.0.1:{port}", **credentials}
            settings_of_reader = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 30_000}
            with closing(KafkaConsumer(TOPIC, **first, **settings_of_reader)) as consumer:
                values = [next(consumer).value.decode() for _ in both]
            assert values == [str(each) for each in ports]
    finally:
        broker.abandon()
