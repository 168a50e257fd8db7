"""TLS between clients and a broker that ships: by gRPC and DRPC, and what people are told."""

import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.test_callers import lines

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.errors import ConnectionFailedError, InvalidConfigError
from millrace.runtime.transport.credentials import TlsFiles

HOSTS = ("localhost", "127.0.0.1")


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return CertificateFiles(tmp_path / "certificates")


def settings_of(
    made: TlsFiles, *, asks: bool = False, listener: str = "clients"
) -> dict[str, object]:
    found: dict[str, object] = {
        f"listeners.{listener}.tls_certificate_file": made.certificate,
        f"listeners.{listener}.tls_key_file": made.key,
    }
    if asks:
        found[f"listeners.{listener}.tls_client_ca_file"] = made.ca
    return found


def of_client(made: TlsFiles) -> dict[str, Any]:
    return {
        "tls_ca_file": made.ca,
        "tls_certificate_file": made.certificate,
        "tls_key_file": made.key,
    }


def millrace(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **variables},
    )


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_records_go_and_come_by_tls(
    start_broker: StartBroker, files: CertificateFiles, transport: str
) -> None:
    broker = start_broker(settings_of(files.make("b", *HOSTS)))
    settings: Any = {"tls_ca_file": str(files.ca), "transport": transport}
    with SyncAdmin(broker.address, **settings) as admin:
        admin.create_topic("orders")
    with SyncProducer(broker.address, **settings) as producer:
        for number in range(1000):
            producer.send("orders", b"%d" % number)
    with SyncConsumer(broker.address, **settings) as consumer:
        consumer.subscribe(["orders"])
        found = [int(record.value) for _, record in zip(range(1000), consumer, strict=False)]
    assert found == list(range(1000))
    listener = 'millrace_connections{listener="clients_drpc"}'
    wait_until(lambda: broker.metrics()[listener] == 0, "all connections are closed")


def test_the_command_line_goes_by_tls_by_its_options_and_by_the_environment(
    start_broker: StartBroker, files: CertificateFiles
) -> None:
    broker = start_broker(settings_of(files.make("b", *HOSTS), asks=True))
    made = files.make("spark")
    options = ["--tls-ca-file", made.ca, "--tls-certificate-file", made.certificate]
    options += ["--tls-key-file", made.key]
    to = ["--bootstrap", broker.address]
    done = millrace("topic", "create", "orders", *to, *options)
    assert done.returncode == 0, done.stderr
    variables = {
        "MILLRACE_TLS_CA_FILE": made.ca,
        "MILLRACE_TLS_CERTIFICATE_FILE": made.certificate,
        "MILLRACE_TLS_KEY_FILE": made.key,
    }
    done = millrace("topic", "list", *to, **variables)
    assert "orders" in done.stdout
    (created,) = lines(broker, "administrative_request")
    assert created["principal"] == "spark", "the certificate's common name"


def failure(address: str, **settings: Any) -> str:
    with (
        SyncAdmin(address, request_timeout_ms=3000, **settings) as admin,
        pytest.raises(ConnectionFailedError) as caught,
    ):
        admin.list_topics()
    return caught.value.message


def expect_failure(words: str, address: str, **settings: Any) -> None:
    """Expect these words in what is said. A busy broker may not even answer within the time."""
    wait_until(lambda: words in failure(address, **settings), words, 30)


def test_who_cannot_connect_is_told_why_and_what_to_do(
    start_broker: StartBroker, files: CertificateFiles, tmp_path: Path
) -> None:
    made = files.make("b", *HOSTS)
    broker, plain = start_broker(settings_of(made)), start_broker()
    others = CertificateFiles(tmp_path / "others")
    ca = str(files.ca)

    expect_failure("it speaks TLS, and this client does not: set tls_ca_file", broker.address)
    expect_failure("it does not speak TLS: leave tls_ca_file", plain.address, tls_ca_file=ca)
    expect_failure(
        "its certificate is of an authority that is not in tls_ca_file",
        broker.address,
        tls_ca_file=str(others.ca),
    )

    def serve(*hosts: str, days: float = 1) -> None:
        files.make("b", *hosts, days=days)
        said = len(lines(broker, "certificate_renewed"))
        wait_until(lambda: len(lines(broker, "certificate_renewed")) > said, "it is read")

    serve("elsewhere.example.org")
    expect_failure("its certificate is not for '127.0.0.1'", broker.address, tls_ca_file=ca)
    serve(*HOSTS, days=-1)
    expect_failure("its certificate has expired: renew it", broker.address, tls_ca_file=ca)


def test_a_client_without_the_right_certificate_is_told_what_to_set(
    start_broker: StartBroker, files: CertificateFiles, tmp_path: Path
) -> None:
    broker = start_broker(settings_of(files.make("b", *HOSTS), asks=True))
    expect_failure(
        "it asks for a certificate: set tls_certificate_file and tls_key_file",
        broker.address,
        tls_ca_file=str(files.ca),
    )
    strange = CertificateFiles(tmp_path / "others").make("spark")
    said = failure(broker.address, **{**of_client(strange), "tls_ca_file": str(files.ca)})
    assert "tls_certificate_file" in said
    assert "authority" in said


def test_files_of_a_client_that_do_not_fit_are_named_at_once(files: CertificateFiles) -> None:
    made = files.make("spark")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tls_ca_file": "/nonexistent"}, "/nonexistent: No such file"),
        ({"tls_ca_file": made.ca, "tls_key_file": made.key}, "give both, or none"),
        ({**of_client(made), "tls_ca_file": ""}, "tls_ca_file: it must be set"),
    ]
    for settings, message in cases:
        with pytest.raises(InvalidConfigError, match=message):
            SyncAdmin("127.0.0.1:1", **settings)


def test_a_broker_with_an_expired_certificate_starts_and_says_so(
    start_broker: StartBroker, files: CertificateFiles
) -> None:
    broker = start_broker(settings_of(files.make("b", *HOSTS, days=-1)))
    assert lines(broker, "certificate_expired")[0]["listener"] == "clients"
    left = 'millrace_certificate_seconds{listener="clients"}'
    lifetime = 'millrace_certificate_lifetime_seconds{listener="clients"}'
    assert -100_000 < broker.metrics()[left] < -80_000
    assert broker.metrics()[lifetime] == 300
    files.make("b", *HOSTS)
    wait_until(lambda: broker.metrics()[left] > 80_000, "the new certificate counts")
    assert broker.metrics()[lifetime] == 86_700
    assert lines(broker, "certificate_expires") == []
    with SyncAdmin(broker.address, tls_ca_file=str(files.ca)) as admin:
        assert admin.list_topics() == []


def test_a_broker_whose_files_do_not_fit_does_not_start_and_names_them(
    tmp_path: Path, files: CertificateFiles
) -> None:
    made, other = files.make("b", *HOSTS), files.make("other", *HOSTS)
    settings = {**settings_of(made), "listeners.clients.tls_key_file": other.key}
    _, said = RunningBroker(tmp_path / "broker", settings).refused_start()
    assert "listeners.clients: " in said
    assert other.key in said
    assert "the key is of another certificate" in said
    _, said = RunningBroker(
        tmp_path / "another", {"listeners.clients.tls_key_file": other.key}
    ).refused_start()
    assert "clients.tls_certificate_file: it must be set, as tls_key_file is" in said


# --- Certificates change under load --------------------------------------------------------------


def test_nothing_is_lost_while_certificates_and_authorities_change(
    start_broker: StartBroker, files: CertificateFiles
) -> None:
    broker = start_broker(
        {**settings_of(files.make("b", *HOSTS), asks=True), "limits.connection_age_ms_max": 2000}
    )
    settings = of_client(files.make("spark"))
    with SyncAdmin(broker.address, **settings) as admin:
        admin.create_topic("orders")
    handles: list[Any] = []
    with (
        SyncProducer(broker.address, **settings) as producer,
        SyncConsumer(broker.address, **settings) as consumer,
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
            # Both authorities are trusted, then certificates change, then the old one goes.
            old = files.change_authority(f"authority {turn}")
            files.ca.write_bytes(old + files.authority.certificate)
            work(2)
            files.make("b", *HOSTS)
            files.make("spark")
            work(2)
            files.ca.write_bytes(files.authority.certificate)
            work(2)
        producer.flush()
        assert [handle.result(30) for handle in handles]
        while len(found) < len(handles):
            found.extend(int(record.value) for record in consumer.poll(1000))
    assert found == list(range(len(handles)))
    assert lines(broker, "certificate_unusable") == []


# --- Hostile peers -------------------------------------------------------------------------------


def test_handshakes_that_stop_cost_others_nothing(
    start_broker: StartBroker, files: CertificateFiles
) -> None:
    broker = start_broker(settings_of(files.make("b", *HOSTS)))
    settings: Any = {"tls_ca_file": str(files.ca)}
    with SyncAdmin(broker.address, **settings) as admin:
        admin.create_topic("orders")
    before = broker.rss_bytes()
    stalled = []
    for address in (broker.address, broker.drpc_address) * 300:
        host, port = address.split(":")
        one = socket.create_connection((host, int(port)))
        one.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        stalled.append(one)
    with SyncProducer(broker.address, **settings) as producer:
        begun = time.monotonic()
        for _ in range(20):
            producer.send("orders", b"x").result(10)
        assert time.monotonic() - begun < 10
    assert broker.rss_bytes() - before < 128 << 20
    for one in stalled:
        with one, suppress(ConnectionError):
            one.settimeout(15)
            while one.recv(4096):
                pass


def greeting(address: str, most: ssl.TLSVersion, files: CertificateFiles) -> str:
    context = ssl.create_default_context(cafile=str(files.ca))
    context.maximum_version = most
    host, port = address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as raw,
        context.wrap_socket(raw, server_hostname=host) as connection,
    ):
        return connection.version() or ""


def test_drpc_has_tls_1_3_alone_and_grpc_prefers_it(
    start_broker: StartBroker, files: CertificateFiles
) -> None:
    broker = start_broker(settings_of(files.make("b", *HOSTS)))
    best, last = ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2
    assert greeting(broker.address, best, files) == "TLSv1.3"
    assert greeting(broker.drpc_address, best, files) == "TLSv1.3"
    with pytest.raises(OSError):  # noqa: PT011
        greeting(broker.drpc_address, last, files)
    wait_until(lambda: broker.log_has("it does not know TLS 1.3"), "it is logged")


@pytest.mark.parametrize(
    "plain", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64]
)
def test_plain_text_at_a_port_of_tls_ends_at_once(
    start_broker: StartBroker, files: CertificateFiles, plain: bytes
) -> None:
    broker = start_broker(settings_of(files.make("b", *HOSTS)))
    for address in (broker.address, broker.drpc_address):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as one:
            one.sendall(plain)
            begun = time.monotonic()
            with suppress(ConnectionError):
                while one.recv(4096):
                    pass
            assert time.monotonic() - begun < 5
