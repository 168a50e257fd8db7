"""Who reaches the listener of Kafka's protocol, by which way, and what they may do there."""

import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.certificate_files import CertificateFiles
from tests.fakes.kafka_ends import request_frame
from tests.integration.conftest import StartBroker
from tests.integration.guarded import replace_file
from tests.integration.kafka.ends import KAFKA, bootstrap
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.test_callers import lines
from tests.integration.test_tls import HOSTS, settings_of

from millrace.broker.kafka.requests import ApiKey
from millrace.client import SyncAdmin
from millrace.runtime.transport.credentials import TlsFiles

confluent = pytest.importorskip("confluent_kafka")

TIMEOUT_MS = 30_000
"""For a connection by TLS, two look-ups and a write: a record that is late has no other outcome."""
RULES = """
[[rules]]
who = ["writer"]
may = ["produce", "describe"]
topics = ["default/orders"]

[[rules]]
who = ["root"]
may = ["create", "describe"]
topics = ["*/*"]
"""


def by_tls(broker: RunningBroker, made: TlsFiles, *, shows: bool = True) -> dict[str, Any]:
    """Return settings of librdkafka."""
    found = {
        "bootstrap.servers": bootstrap(broker),
        "security.protocol": "SSL",
        "ssl.ca.location": made.ca,
        "socket.timeout.ms": 20_000,
        "message.timeout.ms": TIMEOUT_MS,
    }
    if shows:
        found |= {"ssl.certificate.location": made.certificate, "ssl.key.location": made.key}
    return found


def outcome(settings: dict[str, Any], topic: str, value: bytes = b"x") -> Any:
    """Return the error of a record that is written; None: it is acknowledged."""
    producer = confluent.Producer(settings)
    outcomes: list[Any] = []
    producer.produce(topic, value, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(2 * TIMEOUT_MS / 1000)
    return outcomes[0]


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return CertificateFiles(tmp_path / "certificates")


def test_librdkafka_writes_by_tls(start_broker: StartBroker, files: CertificateFiles) -> None:
    broker = start_broker({**KAFKA, **settings_of(files.make("b", *HOSTS))})
    with SyncAdmin(broker.address, tls_ca_file=str(files.ca)) as admin:
        admin.create_topic("orders", 1, 1)
    assert outcome(by_tls(broker, files.make("c"), shows=False), "orders") is None
    plain = {"bootstrap.servers": bootstrap(broker), "message.timeout.ms": 1000}
    assert outcome(plain, "orders") is not None


def test_a_certificate_says_who_a_client_is_and_rules_what_it_may(
    start_broker: StartBroker, files: CertificateFiles, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    replace_file(rules, RULES)
    tls = settings_of(files.make("b", *HOSTS), asks=True)
    broker = start_broker({**KAFKA, **tls, "access.rules_file": rules})
    root = files.make("root")
    settings: Any = {
        "tls_ca_file": root.ca,
        "tls_certificate_file": root.certificate,
        "tls_key_file": root.key,
    }
    with SyncAdmin(broker.address, **settings) as admin:
        admin.create_topic("orders", 1, 1)
        admin.create_topic("secrets", 1, 1)
    writer = by_tls(broker, files.make("writer"))
    assert outcome(writer, "orders") is None
    # By the connection to the leader it is the first request after ApiVersions.
    assert outcome(writer, "orders", bytes(900_000)) is None
    assert outcome(writer, "secrets").code() == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert outcome(writer, "nowhere").code() == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED
    reader = outcome(by_tls(broker, root), "orders")
    assert reader.code() == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED
    refused = [line["principal"] for line in lines(broker, "caller_refused")]
    assert "root" in refused


def test_who_proves_nothing_learns_what_is_spoken_and_no_more(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    replace_file(rules, RULES)
    broker = start_broker({**KAFKA, "access.rules_file": rules})
    host, _, port = broker.kafka_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        reader = connection.makefile("rb")
        connection.sendall(request_frame(ApiKey.API_VERSIONS, 0))
        (length,) = struct.unpack(">i", reader.read(4))
        assert len(reader.read(length)) == length
        connection.sendall(request_frame(ApiKey.METADATA, 4))
        assert reader.read(1) == b""
        reader.close()
    wait_until(lambda: lines(broker, "caller_refused"), "the refusal is in the log")
    (line,) = lines(broker, "caller_refused")
    assert (line["principal"], line["client_id"], line["method"]) == ("anonymous", "me", "Metadata")


def test_a_stranger_may_not_ask_without_end(start_broker: StartBroker, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    replace_file(rules, RULES)
    broker = start_broker({**KAFKA, "access.rules_file": rules})
    host, _, port = broker.kafka_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        reader = connection.makefile("rb")
        for _ in range(20):
            connection.sendall(request_frame(ApiKey.API_VERSIONS, 0))
            (length,) = struct.unpack(">i", reader.read(4))
            assert len(reader.read(length)) == length
        connection.sendall(request_frame(ApiKey.API_VERSIONS, 0))
        assert reader.read(1) == b""
        reader.close()


def test_a_quota_of_time_holds_back_who_asks_without_end(start_broker: StartBroker) -> None:
    broker = start_broker(dict(KAFKA))
    with SyncAdmin(broker.address) as admin:
        admin.set_quota("each", client_id="me", request_percent=1)
        host, _, port = broker.kafka_address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(request_frame(ApiKey.METADATA, 4) * 1000)

            def delayed() -> bool:
                (quota,) = admin.describe_quotas(["each"]).values()
                return any(use.throttled_ms for use in quota.uses)

            wait_until(delayed, "it is delayed")


def test_a_stranger_may_not_send_much_before_it_is_known(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    replace_file(rules, RULES)
    broker = start_broker({**KAFKA, "access.rules_file": rules})
    host, _, port = broker.kafka_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(struct.pack(">i", 100_000))
        assert connection.recv(1) == b""


def test_what_a_client_does_is_in_the_log_with_its_name_and_library(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(dict(KAFKA))
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("strict", config={"message.timestamp.before.max.ms": "1000"})
    settings = {
        "bootstrap.servers": bootstrap(broker),
        "client.id": "billing@7",
        "message.timeout.ms": TIMEOUT_MS,
    }
    producer = confluent.Producer(settings)
    failed: list[Any] = []
    producer.produce(
        "strict", b"old", timestamp=1000, on_delivery=lambda error, _: failed.append(error)
    )
    producer.flush(2 * TIMEOUT_MS / 1000)
    assert failed[0].code() == confluent.KafkaError.INVALID_TIMESTAMP
    (line,) = lines(broker, "caller_refused")
    assert (line["principal"], line["client_id"]) == ("anonymous", "billing@7")
    assert line["method"] == "Produce"
    assert "kafka" in line["software"]
    assert "timestamps" in line["error"]


def test_the_connections_and_requests_of_clients_of_kafka_are_counted(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(dict(KAFKA))
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("orders", 1, 1)
    producer = confluent.Producer({"bootstrap.servers": bootstrap(broker)})
    producer.produce("orders", b"x")
    assert producer.flush(2 * TIMEOUT_MS / 1000) == 0
    found = broker.metrics()
    assert found['millrace_connections{listener="clients_kafka"}'] >= 1
    assert found['millrace_call_seconds_count{method="KafkaProduce"}'] == 1
    assert found['millrace_call_seconds_count{method="KafkaMetadata"}'] >= 1
