"""Clients in several languages log in, write, and read in a group, by what each knows of SASL."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from bench.peers.maven import PeerMissingError
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.guarded import GuardedBroker, token_of
from tests.integration.kafka.ends import bootstrap
from tests.integration.kafka.logging_in import SETTINGS, settings_with_tls
from tests.suites import aiokafka, kafka_jars
from tests.suites.programs import run
from tests.suites.suite import SuiteMissingError

from millrace.client import SyncAdmin

TIMEOUT_S = 60
VALUES = ["one", "two", "three"]
WHO = "owner"
JAVA_LOGIN = """\
security.protocol={protocol}
{trust}
sasl.mechanism={mechanism}
sasl.jaas.config=org.apache.kafka.common.security.{module} required username="{name}" \
password="{token}";
auto.offset.reset=earliest
"""
JAVA_MODULES = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return CertificateFiles(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def with_tls(
    tmp_path_factory: pytest.TempPathFactory, certificates: CertificateFiles
) -> Iterator[GuardedBroker]:
    """A guarded broker whose clients connect by TLS."""
    found = GuardedBroker(tmp_path_factory.mktemp("tls"), settings_with_tls(certificates))
    found.start()
    yield found
    found.abandon()


@pytest.fixture(scope="module")
def in_plain_text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """A guarded broker whose clients connect in plain text."""
    found = GuardedBroker(tmp_path_factory.mktemp("plain"), SETTINGS)
    found.start()
    yield found
    found.abandon()


def by_aiokafka(
    broker: GuardedBroker, topic: str, mechanism: str, ca: Path | None, folder: Path
) -> list[str]:
    suite = aiokafka.AIOKAFKA
    try:
        suite.build()
    except SuiteMissingError as error:
        pytest.skip(str(error))
    ended = run(
        [
            *(suite.python(), "-m", "tests.suites.inside.aiokafka_login", bootstrap(broker)),
            *(topic, mechanism, WHO, token_of(WHO), ca or ""),
        ],
        folder / "aiokafka.log",
        TIMEOUT_S,
        variables=aiokafka.VARIABLES,
    )
    assert ended.code == 0, ended.said
    found: list[str] = json.loads(ended.said.splitlines()[-1])
    return found


def by_java(
    broker: GuardedBroker, topic: str, mechanism: str, ca: Path | None, folder: Path
) -> list[str]:
    try:
        scripts = kafka_jars.scripts() / "bin"
    except PeerMissingError as error:
        pytest.skip(str(error))
    login = folder / "login.properties"
    trust = f"ssl.truststore.type=PEM\nssl.truststore.location={ca}" if ca else ""
    login.write_text(
        JAVA_LOGIN.format(
            protocol="SASL_SSL" if ca else "SASL_PLAINTEXT", trust=trust, mechanism=mechanism,
            module=JAVA_MODULES[mechanism], name=WHO, token=token_of(WHO),
        )
    )  # fmt: skip
    at = ("--bootstrap-server", bootstrap(broker), "--topic", topic)
    said_by(
        [scripts / "kafka-console-producer.sh", *at, "--producer.config", login],
        folder / "producer.log",
        "".join(f"{value}\n" for value in VALUES),
    )
    said = said_by(
        [
            *(scripts / "kafka-console-consumer.sh", *at, "--consumer.config", login),
            *("--group", f"{topic}-java", "--max-messages", str(len(VALUES))),
            *("--timeout-ms", "30000"),
        ],
        folder / "consumer.log",
    )
    return [line for line in said.splitlines() if line in VALUES]


def by_kcat(
    broker: GuardedBroker, topic: str, mechanism: str, ca: Path | None, folder: Path
) -> list[str]:
    if shutil.which("kcat") is None:
        pytest.skip("no kcat: sh requirements/install.sh suites")
    settings = {
        "security.protocol": "sasl_ssl" if ca else "sasl_plaintext",
        "sasl.mechanism": mechanism,
        "sasl.username": WHO,
        "sasl.password": token_of(WHO),
        **({"ssl.ca.location": str(ca)} if ca else {}),
        "auto.offset.reset": "earliest",
    }
    login = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
    at = ("-b", bootstrap(broker), *login)
    text = "".join(f"{value}\n" for value in VALUES)
    said_by(["kcat", *at, "-P", "-t", topic], folder / "producer.log", text)
    read = ("-q", "-c", str(len(VALUES)), "-G", f"{topic}-kcat", topic)
    said = said_by(["kcat", *at, *read], folder / "consumer.log")
    return [line for line in said.splitlines() if line in VALUES]


def said_by(command: Sequence[str | Path], log: Path, given: str = "") -> str:
    """Return what a program has printed, which must have ended well."""
    ended = run(command, log, TIMEOUT_S, given=given.encode())
    assert ended.code == 0, ended.said
    return ended.said


Client = Callable[[GuardedBroker, str, str, Path | None, Path], list[str]]


def wrote_and_read(
    client: Client, broker: GuardedBroker, mechanism: str, ca: Path | None, folder: Path
) -> list[str]:
    topic = f"of-{client.__name__}-{mechanism.lower()}"
    security = {"tls_ca_file": str(ca)} if ca else {}
    with SyncAdmin(broker.address, token_file=str(broker.token_file("root")), **security) as admin:
        admin.create_topic(f"team/{topic}", 1, 1)
    return client(broker, topic, mechanism, ca, folder)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_aiokafka_logs_in(
    with_tls: GuardedBroker, certificates: CertificateFiles, mechanism: str, tmp_path: Path
) -> None:
    assert wrote_and_read(by_aiokafka, with_tls, mechanism, certificates.ca, tmp_path) == VALUES


def test_kcat_logs_in(
    with_tls: GuardedBroker, certificates: CertificateFiles, tmp_path: Path
) -> None:
    # By SCRAM it does with librdkafka 2.6.1 and later, which sends no nonce twice.
    assert wrote_and_read(by_kcat, with_tls, "PLAIN", certificates.ca, tmp_path) == VALUES


@pytest.mark.nightly  # Two Java machines each.
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_java_logs_in(
    with_tls: GuardedBroker, certificates: CertificateFiles, mechanism: str, tmp_path: Path
) -> None:
    assert wrote_and_read(by_java, with_tls, mechanism, certificates.ca, tmp_path) == VALUES


@pytest.mark.parametrize("client", [by_aiokafka, pytest.param(by_java, marks=pytest.mark.nightly)])
def test_scram_needs_no_tls(client: Client, in_plain_text: GuardedBroker, tmp_path: Path) -> None:
    assert wrote_and_read(client, in_plain_text, "SCRAM-SHA-256", None, tmp_path) == VALUES
