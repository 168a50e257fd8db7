"""Who a client of Kafka is: PLAIN, SCRAM and OAUTHBEARER, with tokens of the file."""

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TopicAuthorizationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.admin import (
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeTopicPartitionsRequest,
    ListConfigResourcesRequest,
)
from kafka.protocol.metadata import MetadataRequest
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.guarded import ROLES, GuardedBroker, replace_file, token_of
from tests.integration.kafka.ends import bootstrap, closing
from tests.integration.kafka.logging_in import SETTINGS, Connection, proof, settings_with_tls

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.guard.token_file import new_entry, tokens_to_text
from millrace.core.ids import WallMs

confluent = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")

SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
MECHANISMS = ("PLAIN", *SCRAM, "OAUTHBEARER")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return CertificateFiles(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, certificates: CertificateFiles
) -> Iterator[GuardedBroker]:
    """A guarded broker whose clients of Kafka connect by TLS; `orders` is a topic of `team`."""
    found = GuardedBroker(tmp_path_factory.mktemp("guarded"), settings_with_tls(certificates))
    found.start()
    with Connection(found, certificates.ca) as connection:
        connection.log_in("root")
        connection.create("orders")
    yield found
    found.abandon()


@pytest.fixture(scope="module")
def plain_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """A guarded broker whose clients of Kafka connect in plain text."""
    found = GuardedBroker(tmp_path_factory.mktemp("plain"), SETTINGS)
    found.start()
    yield found
    found.abandon()


class Tokens(AbstractTokenProvider):
    """Gives kafka-python a token."""

    def __init__(self, current: Callable[[], str]) -> None:
        self._current = current

    def token(self) -> str:
        """Return it."""
        return self._current()


def of_librdkafka(mechanism: str, name: str, ca: Path | None, token: str = "") -> dict[str, Any]:
    """Return librdkafka's settings of a log-in."""
    token = token or token_of(name)
    found: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT" if ca is None else "SASL_SSL",
        "sasl.mechanism": mechanism,
    }
    if ca is not None:
        found["ssl.ca.location"] = str(ca)
    if mechanism == "OAUTHBEARER":
        return {**found, "oauth_cb": lambda _: (token, time.time() + 3600)}
    return {**found, "sasl.username": name, "sasl.password": token}


def of_kafka_python(mechanism: str, name: str, ca: Path | None, token: str = "") -> dict[str, Any]:
    """Return kafka-python's settings of a log-in."""
    token = token or token_of(name)
    found: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT" if ca is None else "SASL_SSL",
        "sasl_mechanism": mechanism,
    }
    if ca is not None:
        found["ssl_cafile"] = str(ca)
    if mechanism == "OAUTHBEARER":
        return {**found, "sasl_oauth_token_provider": Tokens(lambda: token)}
    return {**found, "sasl_plain_username": name, "sasl_plain_password": token}


# Real clients.


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in(
    broker: GuardedBroker, certificates: CertificateFiles, mechanism: str
) -> None:
    settings = of_librdkafka(mechanism, "describer", certificates.ca)
    client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap(broker), **settings})
    client.poll(0)  # Has the callback called that gives the token.
    assert "orders" in client.list_topics(timeout=20).topics
    (future,) = client.delete_topics(["orders"]).values()
    with pytest.raises(confluent.KafkaException) as caught:
        future.result(20)
    assert caught.value.args[0].code() == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(
    broker: GuardedBroker, certificates: CertificateFiles, mechanism: str
) -> None:
    settings = of_kafka_python(mechanism, "describer", certificates.ca)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap(broker), **settings)) as client:
        assert "orders" in client.list_topics()
        with pytest.raises(TopicAuthorizationFailedError):
            client.delete_topics(["orders"])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_with_a_wrong_token_are_refused(
    broker: GuardedBroker, certificates: CertificateFiles, mechanism: str
) -> None:
    wrong = token_of("describer")[:-1] + "y"
    settings = of_kafka_python(mechanism, "describer", certificates.ca, wrong)
    with pytest.raises(KafkaError):
        KafkaAdminClient(
            bootstrap_servers=bootstrap(broker), api_version_auto_timeout_ms=2000, **settings
        )
    told: list[int] = []
    settings = of_librdkafka(mechanism, "describer", certificates.ca, wrong)
    settings["error_cb"] = lambda error: told.append(error.code())
    client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap(broker), **settings})
    deadline = time.monotonic() + 20
    while confluent.KafkaError._AUTHENTICATION not in told:
        client.poll(0.2)
        assert time.monotonic() < deadline, told


def test_scram_needs_no_tls(plain_broker: GuardedBroker) -> None:
    settings = of_librdkafka("SCRAM-SHA-256", "root", None)
    client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap(plain_broker), **settings})
    topic = confluent_admin.NewTopic("by-scram", 1, 1)
    (future,) = client.create_topics([topic]).values()
    future.result(20)
    python = of_kafka_python("SCRAM-SHA-256", "root", None)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap(plain_broker), **python)) as other:
        assert "by-scram" in other.list_topics()


# The exchange.


def test_tokens_are_not_sent_in_plain_text(plain_broker: GuardedBroker) -> None:
    for mechanism in ("PLAIN", "OAUTHBEARER", "SCRAM-SHA-1", "GSSAPI", ""):
        with Connection(plain_broker) as connection:
            answer = connection.shake(mechanism)
            assert answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM
            assert answer.mechanisms == SCRAM
            refused = connection.step(f"\0root\0{token_of('root')}".encode())
            assert refused.error_code == Code.ILLEGAL_SASL_STATE


def test_with_tls_there_are_all_mechanisms(
    broker: GuardedBroker, certificates: CertificateFiles
) -> None:
    with Connection(broker, certificates.ca) as connection:
        assert connection.shake("GSSAPI").mechanisms == ["PLAIN", "OAUTHBEARER", *SCRAM]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", range(3))
def test_every_version_and_mechanism_logs_in(
    broker: GuardedBroker, certificates: CertificateFiles, mechanism: str, version: int
) -> None:
    with Connection(broker, certificates.ca) as connection:
        answer = connection.log_in("describer", mechanism=mechanism, version=version)
        assert (answer.error_code, answer.session_lifetime_ms or 0) == (0, 0)
        assert connection.topics() == ["orders"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_messages_without_a_frame_of_kafka_log_in_too(
    broker: GuardedBroker, certificates: CertificateFiles, mechanism: str
) -> None:
    """Version 0 of SaslHandshake."""

    def step(connection: Connection, sent: bytes) -> bytes | None:
        connection.send_bytes(struct.pack(">i", len(sent)) + sent)
        return connection.frame()

    token = token_of("describer")
    with Connection(broker, certificates.ca) as connection:
        assert connection.shake(mechanism, version=0).error_code == 0
        if mechanism == "PLAIN":
            assert step(connection, f"\0describer\0{token}".encode()) == b""
        elif mechanism == "OAUTHBEARER":
            assert step(connection, f"n,,\1auth=Bearer {token}\1\1".encode()) == b""
        else:
            challenge = step(connection, b"n,,n=describer,r=abc")
            assert challenge is not None
            said = step(connection, proof(token, challenge, "describer", mechanism))
            assert said is not None
            assert said.startswith(b"v=")
        assert connection.topics() == ["orders"]
    with Connection(broker, certificates.ca) as connection:
        assert connection.shake(mechanism, version=0).error_code == 0
        assert step(connection, b"\0describer\0not-the-token-of-it") is None


def test_nothing_but_versions_and_log_in_is_answered_to_strangers(
    broker: GuardedBroker, certificates: CertificateFiles
) -> None:
    with Connection(broker, certificates.ca) as connection:
        versions = connection.ask(ApiKey.API_VERSIONS, 2)
        listed = {entry.api_key: entry.max_version for entry in versions.api_keys}
        assert connection.ask(ApiKey.API_VERSIONS, 0).error_code == 0
    for_strangers = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    assert for_strangers <= listed.keys()
    for key in listed.keys() - for_strangers:
        message = b"" if key in (ApiKey.PRODUCE, ApiKey.FETCH) else None
        with Connection(broker, certificates.ca) as connection:
            assert connection.ask(key, listed[key], message) is None, key
    with Connection(broker, certificates.ca) as connection:
        assert connection.shake("PLAIN").error_code == 0
        assert connection.topics() is None


@pytest.mark.parametrize("size", [(64 << 10) + 1, 1 << 20, (1 << 31) - 1])
def test_a_stranger_sends_no_large_request(
    broker: GuardedBroker, certificates: CertificateFiles, size: int
) -> None:
    with Connection(broker, certificates.ca) as connection:
        connection.send_bytes(struct.pack(">i", size) + b"\0\x24\0\2" + bytes(64 << 10))
        assert connection.frame() is None


def test_who_has_logged_in_sends_a_large_request_at_once(
    broker: GuardedBroker, certificates: CertificateFiles
) -> None:
    """librdkafka has a connection to each leader, and its first request there may be a Produce."""
    names = [f"topic-{number:05}" for number in range(9000)]
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    with Connection(broker, certificates.ca) as connection:
        connection.log_in("root")
        found = connection.ask(ApiKey.METADATA, 4, MetadataRequest(topics=topics))
        assert found is not None
        assert len(found.topics) == len(names)


WRONG = {
    "PLAIN": [
        b"",
        b"\0",
        b"\0\0",
        b"\0describer",
        b"\0describer\0",
        b"\0describer\0short",
        b"\0\0" + token_of("describer").encode(),
        b"\0owner\0" + token_of("describer").encode(),
        b"owner\0describer\0" + token_of("describer").encode(),
        b"\0describer\0" + token_of("describer").encode() + b"\0",
        b"\0describer\0" + token_of("describer").encode() + b"\n",
        b"\0describer\0\xff\xfe",
        b"\0describer\0" + b"x" * 5000,
    ],
    "OAUTHBEARER": [
        b"",
        b"\1",
        b"n,,\1\1",
        b"n,,\1auth=Bearer \1\1",
        b"n,,\1auth=Basic " + token_of("describer").encode() + b"\1\1",
        b"n,,\1auth=Bearer " + token_of("describer").encode() + b"\1",
        b"n,,\1auth=Bearer " + token_of("nobody").encode() + b"\1\1",
        b"n,,\1auth=Bearer \xff\1\1",
        b"n,,\1" + b"a=b\1" * 500 + b"\1",
        (b"n,,\1" + (b"auth=Bearer " + token_of("describer").encode() + b"\1") * 2 + b"\1"),
    ],
    "SCRAM-SHA-256": [
        b"",
        b"n,,",
        b"n,,n=describer",
        b"y,,n=describer,r=",
        b"p=tls-unique,,n=describer,r=abc",
        b"n,a=root,n=describer,r=abc",
        b"\xff" * 100,
        b"n,,n=" + b"a" * 9000 + b",r=abc",
    ],
}


@pytest.mark.parametrize(
    ("mechanism", "sent"),
    [(mechanism, sent) for mechanism, wrong in WRONG.items() for sent in wrong],
)
def test_what_proves_nothing_is_refused_and_ends_the_connection(
    broker: GuardedBroker, certificates: CertificateFiles, mechanism: str, sent: bytes
) -> None:
    with Connection(broker, certificates.ca) as connection:
        assert connection.shake(mechanism).error_code == 0
        answer = connection.step(sent)
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
        assert "does not accept the token" in answer.error_message
        assert not answer.auth_bytes
        assert connection.topics() is None


@pytest.mark.parametrize("name", ["describer", "nobody"])
def test_a_wrong_password_and_an_unknown_name_look_the_same(
    broker: GuardedBroker, certificates: CertificateFiles, name: str
) -> None:
    with Connection(broker, certificates.ca) as connection:
        answer = connection.log_in(name, "mlr_not_the_token_of_it", "SCRAM-SHA-256")
        assert answer.error_code == Code.SASL_AUTHENTICATION_FAILED
        assert connection.topics() is None


def test_two_brokers_tell_the_same_salt_for_any_name(tmp_path: Path) -> None:
    """Else the names whose salts are the same would be those that have tokens."""
    salts = []
    for number in range(2):
        other = GuardedBroker(tmp_path / str(number), SETTINGS)
        try:
            other.start()
            for name in ("describer", "nobody"):
                with Connection(other) as connection:
                    connection.shake("SCRAM-SHA-256")
                    said = connection.step(f"n,,n={name},r=abc".encode()).auth_bytes
                    salts.append(said.partition(b",s=")[2])
        finally:
            other.abandon()
    assert salts[:2] == salts[2:]
    assert salts[0] != salts[1]


def test_a_proof_is_good_for_one_log_in(
    broker: GuardedBroker, certificates: CertificateFiles
) -> None:
    with Connection(broker, certificates.ca) as connection:
        connection.shake("SCRAM-SHA-256")
        challenge = connection.step(b"n,,n=describer,r=abc")
        seen = proof(token_of("describer"), challenge.auth_bytes, "describer")
        assert connection.step(seen).error_code == 0
    with Connection(broker, certificates.ca) as connection:
        connection.shake("SCRAM-SHA-256")
        connection.step(b"n,,n=describer,r=abc")
        assert connection.step(seen).error_code == Code.SASL_AUTHENTICATION_FAILED


def test_steps_out_of_order_are_refused(
    broker: GuardedBroker, certificates: CertificateFiles
) -> None:
    plain = f"\0describer\0{token_of('describer')}".encode()
    with Connection(broker, certificates.ca) as connection:
        assert connection.step(plain).error_code == Code.ILLEGAL_SASL_STATE
        assert connection.shake("PLAIN").error_code == 0
        assert connection.shake("NOTHING").error_code == Code.UNSUPPORTED_SASL_MECHANISM
        assert connection.step(plain).error_code == Code.ILLEGAL_SASL_STATE
        assert connection.shake("SCRAM-SHA-256").error_code == 0
        assert connection.step(b"n,,n=describer,r=abc").error_code == 0
        assert connection.shake("PLAIN").error_code == 0
        assert connection.step(plain).error_code == 0
        assert connection.step(plain).error_code == Code.ILLEGAL_SASL_STATE
        assert connection.topics() == ["orders"]


def test_the_audit_log_says_why(plain_broker: GuardedBroker) -> None:
    wrong = "mlr_not_the_token_of_it"
    with Connection(plain_broker) as connection:
        connection.log_in("owner", wrong, "SCRAM-SHA-256")
    plain_broker.wait_for("credential_refused", 1)
    said = plain_broker.log_path.read_text()
    assert "the password is none of 'owner'" in said
    assert wrong not in said


# Sessions.


def test_a_connection_ends_with_its_token_unless_it_is_renewed(tmp_path: Path) -> None:
    """K10."""
    broker = GuardedBroker(tmp_path, SETTINGS)
    ends = dict.fromkeys((*ROLES[1:], "root"))
    broker.start()
    try:
        # Not before the start, which may take longer than the token counts.
        ends_at = int(time.time() * 1000) + 12_000
        broker.write_tokens({**ends, "describer": ends_at})
        broker.wait_for("access_file_taken", 1)
        with Connection(broker) as kept, Connection(broker) as renewed:
            for connection in (kept, renewed):
                answer = connection.log_in("describer", mechanism="SCRAM-SHA-256")
                assert 0 < answer.session_lifetime_ms <= 12_000
                assert connection.topics() == []
            broker.write_tokens({**ends, "describer": ends_at + 600_000})
            broker.wait_for("access_file_taken", 2)
            answer = renewed.log_in("describer", mechanism="SCRAM-SHA-256")
            assert answer.session_lifetime_ms > 100_000
            assert renewed.topics() == []
            while time.time() * 1000 < ends_at + 2500:
                assert renewed.topics() == []
                time.sleep(0.2)
            assert kept.topics() is None
            assert renewed.topics() == []
    finally:
        broker.abandon()


def test_real_clients_go_on_with_another_token_when_theirs_ends(
    tmp_path: Path, certificates: CertificateFiles
) -> None:
    broker = GuardedBroker(tmp_path, settings_with_tls(certificates, "third"))
    broker.start()
    first, second = "mlr_first_0123456789", "mlr_second_0123456789"
    try:
        ends_at = int(time.time() * 1000) + 12_000
        entries = [
            new_entry(first, "owner", [], WallMs(ends_at), b"s" * 16),
            new_entry(second, "owner", [], None, b"s" * 16),
        ]
        replace_file(broker.tokens, tokens_to_text(entries))
        broker.wait_for("access_file_taken", 1)

        def token() -> tuple[str, float]:
            """Return a token and its end.

            Clients renew it after four fifths of its time or later. They get the second one then,
            and have a second or two for that.
            """
            is_first = time.time() * 1000 < ends_at - 4000
            return (first, ends_at / 1000) if is_first else (second, time.time() + 600)

        python = of_kafka_python("OAUTHBEARER", "owner", certificates.ca, first)
        python["sasl_oauth_token_provider"] = Tokens(lambda: token()[0])
        settings = of_librdkafka("OAUTHBEARER", "owner", certificates.ca, first)
        settings["oauth_cb"] = lambda _: token()
        client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap(broker), **settings})
        client.poll(0)
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap(broker), **python)) as other:
            while time.time() * 1000 < ends_at + 3000:
                client.poll(0)
                assert client.list_topics(timeout=20).topics == {}
                assert other.list_topics() == []
                time.sleep(0.2)
    finally:
        broker.abandon()


def test_a_token_that_is_taken_back_ends_its_connections(tmp_path: Path) -> None:
    broker = GuardedBroker(tmp_path, SETTINGS)
    broker.start()
    try:
        with Connection(broker) as connection, Connection(broker) as other:
            connection.log_in("describer", mechanism="SCRAM-SHA-256")
            other.log_in("owner", mechanism="SCRAM-SHA-256")
            assert connection.topics() == other.topics() == []
            names = [name for name in (*ROLES[1:], "root") if name != "describer"]
            broker.write_tokens(dict.fromkeys(names))
            deadline = time.monotonic() + 20
            while connection.topics() is not None:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert other.topics() == []
    finally:
        broker.abandon()


def test_a_connection_stays_that_of_one_principal(
    broker: GuardedBroker, certificates: CertificateFiles
) -> None:
    with Connection(broker, certificates.ca) as connection:
        assert connection.log_in("describer").error_code == 0
        assert connection.topics() == ["orders"]
        assert connection.log_in("describer", mechanism="SCRAM-SHA-256").error_code == 0
        assert connection.topics() == ["orders"]
        assert connection.log_in("root").error_code == Code.SASL_AUTHENTICATION_FAILED
        assert connection.topics() is None


def test_a_certificate_is_an_identity_too(tmp_path: Path, certificates: CertificateFiles) -> None:
    mine = certificates.make("describer")
    settings = settings_with_tls(certificates, "other")
    authority = {"listeners.clients.tls_client_ca_file": certificates.ca}
    broker = GuardedBroker(tmp_path, {**settings, **authority})
    broker.start()
    try:
        certificate = (mine.certificate, mine.key)
        with Connection(broker, certificates.ca, certificate) as connection:
            assert connection.topics() == []
            assert connection.create("t") == [Code.TOPIC_AUTHORIZATION_FAILED]
        with Connection(broker, certificates.ca, certificate) as connection:
            assert connection.log_in("owner").error_code == 0
            assert connection.create("t") == [0]
    finally:
        broker.abandon()


def test_while_rules_are_not_enforced_who_is_refused_is_told_of_and_let_through(
    tmp_path: Path, certificates: CertificateFiles
) -> None:
    settings = settings_with_tls(certificates, "fourth")
    broker = GuardedBroker(tmp_path, {**settings, "access.enforced": False})
    broker.start()
    try:
        with Connection(broker, certificates.ca) as connection:
            assert connection.create("by-nobody") == [0]
        for mechanism in ("PLAIN", "OAUTHBEARER"):
            with Connection(broker, certificates.ca) as connection:
                answer = connection.log_in("owner", "mlr_not_a_token_of_anybody", mechanism)
                assert (answer.error_code, answer.auth_bytes) == (0, b"")
                assert connection.topics() == ["by-nobody"]
        with Connection(broker, certificates.ca) as connection:
            assert connection.log_in("describer").error_code == 0
            assert connection.create("by-describer") == [0]
        broker.wait_for("access_would_be_refused", 3)
        said = broker.log_path.read_text()
        assert "in no line of access.tokens_file" in said
        assert "'describer' may not create topic 'team/by-describer'" in said
    finally:
        broker.abandon()


def test_without_rules_nobody_is_asked(kafka_broker: Any) -> None:
    with Connection(kafka_broker) as connection:
        answer = connection.shake("PLAIN")
        assert (answer.error_code, answer.mechanisms) == (Code.ILLEGAL_SASL_STATE, [])
        assert connection.step(b"").error_code == Code.ILLEGAL_SASL_STATE
        assert connection.topics() is not None


# Rights.


def test_each_topic_is_refused_by_itself(
    broker: GuardedBroker, certificates: CertificateFiles
) -> None:
    with Connection(broker, certificates.ca) as connection:
        connection.log_in("describer")
        assert connection.create("a", "b") == [Code.TOPIC_AUTHORIZATION_FAILED] * 2
        deletion = DeleteTopicsRequest(topic_names=["orders", "nowhere"])
        found = connection.ask(ApiKey.DELETE_TOPICS, 5, deletion).responses
        assert {topic.error_code for topic in found} == {Code.TOPIC_AUTHORIZATION_FAILED}
        kind = DescribeConfigsRequest.DescribeConfigsResource
        message = DescribeConfigsRequest(
            resources=[
                kind(resource_type=2, resource_name="orders", configuration_keys=None),
                kind(resource_type=4, resource_name="0", configuration_keys=None),
            ]
        )
        found = connection.ask(ApiKey.DESCRIBE_CONFIGS, 4, message).results
        assert [result.error_code for result in found] == [0, Code.CLUSTER_AUTHORIZATION_FAILED]
        assert not found[1].configs
        found = connection.ask(ApiKey.DESCRIBE_LOG_DIRS, 4)
        assert found.error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        found = connection.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1)
        assert found.error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        listed = ListConfigResourcesRequest(resource_types=[2])
        found = connection.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, listed).config_resources
        assert "orders" in [resource.resource_name for resource in found]


@pytest.mark.parametrize(
    ("name", "operations"), [("describer", {8, 10}), ("owner", {*range(3, 9), 10, 11})]
)
def test_a_client_learns_what_it_may_do_with_a_topic(
    broker: GuardedBroker, certificates: CertificateFiles, name: str, operations: set[int]
) -> None:
    with Connection(broker, certificates.ca) as connection:
        connection.log_in(name)
        kind = DescribeTopicPartitionsRequest.TopicRequest
        message = DescribeTopicPartitionsRequest(topics=[kind(name="orders")])
        (topic,) = connection.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, message).topics
        assert topic.topic_authorized_operations == sum(1 << number for number in operations)


def test_of_several_topics_those_that_are_allowed_are_made(
    broker: GuardedBroker, certificates: CertificateFiles
) -> None:
    rules = broker.rules.read_text()
    more = '\n[[rules]]\nwho = ["describer"]\nmay = ["create"]\ntopics = ["team/mine-*"]\n'
    broker.write_rules(rules + more)
    broker.wait_for("access_file_taken", 1)
    deadline = time.monotonic() + 20
    try:
        with Connection(broker, certificates.ca) as connection:
            connection.log_in("describer")
            number = 0
            while True:
                number += 1
                codes = connection.create("other", f"mine-{number}")
                assert codes[0] == Code.TOPIC_AUTHORIZATION_FAILED
                if codes[1] == 0:
                    break
                assert time.monotonic() < deadline
    finally:
        broker.write_rules(rules)
