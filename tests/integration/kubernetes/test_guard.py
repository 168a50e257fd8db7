"""Identity and access by a real API server: it signs, publishes, reviews and decides."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
import yaml
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from tests.api_server.running import ROOT, RunningApiServer, broker_role
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.conftest import StartBroker
from tests.integration.guarded import call
from tests.integration.kubernetes.test_access import may, wait_until_all
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.test_callers import lines

from millrace.broker.guard.access_reviews import AccessReviews
from millrace.broker.guard.guard import AuthorityAwayError
from millrace.broker.guard.reviews import Reviews
from millrace.broker.guard.service_accounts import ServiceAccountTokens
from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.errors import (
    AuthenticationFailedError,
    ConnectionFailedError,
    MillraceError,
    TopicAuthorizationFailedError,
)
from millrace.core.guard.access import CLUSTER, Demand, Operation, ResourceKind, named
from millrace.core.guard.identity import Identity, RefusedCredentialError
from millrace.core.guard.service_account_token import audience_of
from millrace.runtime.kubernetes.access import ApiAccess, in_cluster

RBAC = "/apis/rbac.authorization.k8s.io/v1"
RBAC_GROUP = "rbac.authorization.k8s.io"
_T = TypeVar("_T")


def reviewer_role() -> dict[str, Any]:
    """Return the ClusterRole that operators are told to give brokers: the tests' have no more."""
    page = (ROOT / "docs" / "security.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    role: dict[str, Any] = next(
        yaml.safe_load(block) for block in blocks if "kind: ClusterRole\n" in block
    )
    return role


class Namespace:
    """A namespace with a Millrace cluster's broker account, and other accounts as a test asks.

    Attributes:
        users: names of those that are no ServiceAccounts, by what a test calls them.
    """

    def __init__(self, server: RunningApiServer, name: str, folder: Path) -> None:
        self.server = server
        self.name = name
        self.audience = audience_of("logs", name)
        self._folder = folder
        self.users = dict[str, str]()
        self.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        broker = self.make_account("broker")
        self.must("POST", f"{RBAC}/clusterroles", reviewer_role() | {"metadata": {"name": name}})
        self.bind_everywhere(name, "broker")
        reviews = {
            ("authentication.k8s.io", "tokenreviews"),
            ("authorization.k8s.io", "subjectaccessreviews"),
        }
        wait_until_all(partial(may, server, broker, "create", *each) for each in reviews)

    def bind_everywhere(self, role: str, account: str) -> None:
        """Give an account a ClusterRole in all namespaces."""
        binding = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.name}],
        }
        self.must("POST", f"{RBAC}/clusterrolebindings", binding)

    def broker_settings(self) -> dict[str, object]:
        """Return the settings of a broker that asks the API server who may do what."""
        role = yaml.safe_load(broker_role())
        where = f"{RBAC}/namespaces/{self.name}"
        self.must("POST", f"{where}/roles", role)
        name = role["metadata"]["name"]
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "broker", "namespace": self.name}],
        }
        self.must("POST", f"{where}/rolebindings", binding)
        kubeconfig = self._folder / "broker.kubeconfig"
        kubeconfig.write_text(self.server.kubeconfig_of("broker", self.token("broker"), self.name))
        return {
            "coordination.kind": "kubernetes",
            "coordination.kubernetes.kubeconfig": kubeconfig,
            "coordination.kubernetes.cluster_name": "logs",
            "access.kubernetes": True,
        }

    def must(self, method: str, path: str, document: object = None) -> dict[str, Any]:
        status, answer = self.server.request(method, path, document)
        assert status in (200, 201), answer
        return answer

    def make_account(self, name: str) -> str:
        """Make a ServiceAccount; return its full name."""
        path = f"/api/v1/namespaces/{self.name}/serviceaccounts"
        self.must("POST", path, {"metadata": {"name": name}})
        return f"system:serviceaccount:{self.name}:{name}"

    def token(self, account: str, *audiences: str) -> str:
        """Ask for a token, as a kubelet does for a pod."""
        path = f"/api/v1/namespaces/{self.name}/serviceaccounts/{account}/token"
        answer = self.must("POST", path, {"spec": {"audiences": list(audiences)}})
        token: str = answer["status"]["token"]
        return token

    def allow(self, account: str, verbs: list[str], resource: str, *names: str) -> None:
        """Give an account a Role in this namespace."""
        where = f"{RBAC}/namespaces/{self.name}"
        rule: dict[str, Any] = {
            "apiGroups": ["millrace.dev"],
            "resources": [resource],
            "verbs": verbs,
        }
        rule |= {"resourceNames": list(names)} if names else {}
        name = f"{account}-{resource}-{'-'.join(verbs)}"
        self.must("POST", f"{where}/roles", {"metadata": {"name": name}, "rules": [rule]})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name},
            "subjects": [self._subject(account)],
        }
        self.must("POST", f"{where}/rolebindings", binding)

    def _subject(self, account: str) -> dict[str, str]:
        if account in self.users:
            return {"kind": "User", "apiGroup": RBAC_GROUP, "name": self.users[account]}
        return {"kind": "ServiceAccount", "name": account, "namespace": self.name}

    def access(self, account: str) -> ApiAccess:
        """Return an account's access to the API server, as its pod has it."""
        folder = self._folder / account
        shutil.copytree(self.server.folder / "account-broker", folder)
        (folder / "namespace").write_text(self.name)
        (folder / "token").write_text(self.token(account))
        return in_cluster(self.server.url, folder)


@pytest.fixture
def namespace(api_server: RunningApiServer, cluster_name: str, tmp_path: Path) -> Namespace:
    return Namespace(api_server, f"guard-{cluster_name}", tmp_path)


def run(access: ApiAccess, story: Callable[[Reviews], Coroutine[Any, Any, _T]]) -> _T:
    async def whole() -> _T:
        reviews = Reviews(access, request_timeout_ms=10_000)
        try:
            async with asyncio.timeout(60):
                return await story(reviews)
        finally:
            reviews.close()

    return asyncio.run(whole())


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the API server's caches have heard of a change."""
    while not await is_true():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def test_a_projected_token_of_the_cluster_s_audience_says_who_its_account_is(
    namespace: Namespace,
) -> None:
    account = namespace.make_account("reader")
    token = namespace.token("reader", namespace.audience)

    async def story(reviews: Reviews) -> Identity:
        return (await ServiceAccountTokens(reviews, namespace.audience).identify(token)).identity

    identity = run(namespace.access("broker"), story)
    assert identity.principal == account
    assert f"system:serviceaccounts:{namespace.name}" in identity.groups


def test_tokens_of_other_audiences_and_of_accounts_that_are_gone_are_refused(
    namespace: Namespace,
) -> None:
    """G1."""
    namespace.make_account("reader")
    audience = namespace.audience
    refused = {
        namespace.token("reader"): "audience",  # The default one: the API server's.
        namespace.token("reader", audience, "https://kubernetes.default.svc"): "alone",
        namespace.token("reader", audience_of("other", namespace.name)): "audience",
    }
    kept = namespace.token("reader", audience)

    async def story(reviews: Reviews) -> None:
        tokens = ServiceAccountTokens(reviews, audience)
        for token, reason in refused.items():
            with pytest.raises(RefusedCredentialError, match=reason):
                await tokens.identify(token)
        await tokens.identify(kept)
        where = f"/api/v1/namespaces/{namespace.name}/serviceaccounts/reader"
        namespace.must("DELETE", where)

        async def is_refused() -> bool:
            # Another broker, which has not seen the token.
            try:
                await ServiceAccountTokens(reviews, audience).identify(kept)
            except RefusedCredentialError as error:
                return "the API server refuses it" in str(error)
            return False

        await until(is_refused)

    run(namespace.access("broker"), story)


def test_roles_of_kubernetes_decide_and_kubectl_says_the_same(
    namespace: Namespace, tmp_path: Path
) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on this machine")
    account = namespace.make_account("reader")
    namespace.allow("reader", ["consume", "describe"], "topics", "orders", "Clicks.v1")
    namespace.allow("reader", ["describe"], "topics")
    namespace.allow("reader", ["describe"], "clusters", "logs")
    config = tmp_path / "kubeconfig"
    config.write_text(namespace.server.kubeconfig("admin"))

    def can_i(operation: Operation, resource: str) -> bool:
        named_account = (f"--as={account}", f"--namespace={namespace.name}")
        done = subprocess.run(
            [kubectl, "auth", "can-i", operation.value, resource, *named_account],
            env=os.environ | {"KUBECONFIG": str(config)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() in ("yes", "no"), done
        return done.stdout.strip() == "yes"

    async def story(reviews: Reviews) -> None:
        token = namespace.token("reader", namespace.audience)
        tokens = ServiceAccountTokens(reviews, namespace.audience)
        identity = (await tokens.identify(token)).identity

        async def may(operation: Operation, topic: str) -> bool:
            resource = named(ResourceKind.TOPICS, f"{namespace.name}/{topic}")
            # A new one each time: decisions are remembered.
            access = AccessReviews(reviews, namespace.name, "logs")
            return (await access.decide(identity, Demand(operation, resource))).is_allowed

        async def may_describe_the_cluster() -> bool:
            access = AccessReviews(reviews, namespace.name, "logs")
            return (await access.decide(identity, Demand(Operation.DESCRIBE, CLUSTER))).is_allowed

        await until(may_describe_the_cluster)  # By the role that was made last.
        await until(lambda: may(Operation.DESCRIBE, "other"))
        for operation, topic, expected in (
            (Operation.CONSUME, "orders", True),
            (Operation.CONSUME, "Clicks.v1", True),
            (Operation.CONSUME, "other", False),
            (Operation.DESCRIBE, "orders", True),
            (Operation.DESCRIBE, "other", True),
            (Operation.PRODUCE, "orders", False),
            (Operation.DELETE, "orders", False),
        ):
            assert await may(operation, topic) is expected, (operation, topic)
            said = await asyncio.to_thread(can_i, operation, f"topics/{topic}")
            assert said is expected, (operation, topic)

        access = AccessReviews(reviews, namespace.name, "logs")
        administer = Demand(Operation.ADMINISTER, CLUSTER)
        assert not (await access.decide(identity, administer)).is_allowed
        other = AccessReviews(reviews, namespace.name, "other")
        assert not (await other.decide(identity, Demand(Operation.DESCRIBE, CLUSTER))).is_allowed

    run(namespace.access("broker"), story)


def test_a_namespace_is_a_tenant(namespace: Namespace) -> None:
    """G3: topics, groups and transactions of a namespace are no concern of another one."""
    identity = Identity(namespace.make_account("owner"))
    verbs = {
        ResourceKind.TOPICS: Operation.PRODUCE,
        ResourceKind.GROUPS: Operation.CONSUME,
        ResourceKind.TRANSACTIONS: Operation.TRANSACT,
    }
    for kind, operation in verbs.items():
        namespace.allow("owner", [operation.value], kind.value)

    async def story(reviews: Reviews) -> None:
        async def may(kind: ResourceKind, name: str) -> bool:
            access = AccessReviews(reviews, namespace.name, "logs")
            return (
                await access.decide(identity, Demand(verbs[kind], named(kind, name)))
            ).is_allowed

        for kind in verbs:
            await until(lambda kind=kind: may(kind, f"{namespace.name}/a"))  # type: ignore[misc]
            assert not await may(kind, "elsewhere/a")
            assert not await may(kind, "a")

    run(namespace.access("broker"), story)


def test_a_broker_without_the_right_to_review_refuses_everybody(
    namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    namespace.make_account("reader")
    token = namespace.token("reader", namespace.audience)

    async def story(reviews: Reviews) -> None:
        with pytest.raises(AuthorityAwayError, match="403"):
            await ServiceAccountTokens(reviews, namespace.audience).identify(token)
        demand = Demand(Operation.CONSUME, named(ResourceKind.TOPICS, "orders"))
        with pytest.raises(AuthorityAwayError, match="403"):
            await AccessReviews(reviews, namespace.name, "logs").decide(Identity("a"), demand)

    run(namespace.access("reader"), story)
    said = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1
    assert "does not say who may do what" in said[0].getMessage()
    assert "403" in said[0].getMessage()


METHODS = import_module("millrace.proto.v1.cluster_pb2").DESCRIPTOR.services_by_name["Cluster"]


class Caller:
    """Calls a broker with a token."""

    def __init__(self, broker: RunningBroker, token: str | None) -> None:
        self._channel = grpc.insecure_channel(broker.address)
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    def call(self, name: str, **fields: Any) -> tuple[Any, set[str]]:
        """Return the answer, and the names of the errors of access in it or instead of it."""
        method = METHODS.methods_by_name[name]
        request = ParseDict(fields, GetMessageClass(method.input_type)())
        return call(self._channel, method, request, self._metadata)

    def names(self) -> set[str]:
        """Return the topics that the caller sees."""
        response, refused = self.call("GetMetadata")
        assert not refused
        return {topic.name for topic in response.topics if not topic.name.startswith("__")}


def test_a_broker_serves_its_callers_by_kubernetes_roles(
    namespace: Namespace, start_broker: StartBroker
) -> None:
    broker = start_broker(namespace.broker_settings())
    for account in ("owner", "reader", "stranger"):
        namespace.make_account(account)
    namespace.allow("owner", ["create", "describe", "delete"], "topics")
    namespace.allow("reader", ["describe"], "topics", "orders")
    owner, reader, stranger = (
        Caller(broker, namespace.token(account, namespace.audience))
        for account in ("owner", "reader", "stranger")
    )
    orders, clicks = (f"{namespace.name}/{name}" for name in ("orders", "clicks"))
    topics = [{"name": name, "partitions": 1} for name in (orders, clicks)]
    wait_until(
        lambda: not owner.call("CreateTopics", topics=topics, validate_only=True)[1],
        "the API server knows the roles",
        30,
    )
    assert not owner.call("CreateTopics", topics=topics)[1]
    assert reader.call("CreateTopics", topics=topics)[1] == {"TOPIC_AUTHORIZATION_FAILED"}
    wait_until(lambda: owner.names() == {orders, clicks}, "the topics are there")
    # A refusal of the moment in which the owner's role alone was known is remembered for a while.
    wait_until(lambda: reader.names() == {orders}, "the API server knows the reader's role", 30)
    assert stranger.names() == set()
    _, refused = stranger.call("GetMetadata", topics=[orders])
    assert refused == {"TOPIC_AUTHORIZATION_FAILED"}
    elsewhere = [{"name": "elsewhere/orders", "partitions": 1}]
    assert owner.call("CreateTopics", topics=elsewhere)[1] == {"TOPIC_AUTHORIZATION_FAILED"}
    assert owner.call("DrainBroker", broker_id=0)[1] == {"CLUSTER_AUTHORIZATION_FAILED"}


def test_a_broker_refuses_callers_without_a_token_of_its_cluster(
    namespace: Namespace, start_broker: StartBroker
) -> None:
    """G1: with the reason in the audit log, and none for the caller."""
    broker = start_broker(namespace.broker_settings())
    namespace.make_account("reader")
    refused = {"AUTHENTICATION_FAILED"}
    for token in (namespace.token("reader"), None, "a-token-of-a-file-0123456789"):
        assert Caller(broker, token).call("Hello") == (None, refused)
    assert Caller(broker, namespace.token("reader", namespace.audience)).call("Hello")[1] == set()
    assert "must be 'logs." in broker.log_path.read_text()


def test_clients_of_kafka_log_in_with_the_token_of_a_service_account(
    namespace: Namespace, start_broker: StartBroker, tmp_path: Path
) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    confluent_admin = pytest.importorskip("confluent_kafka.admin")
    files = CertificateFiles(tmp_path / "certificates")
    shown = files.make("broker", "localhost", "127.0.0.1")
    settings: dict[str, object] = {
        "listeners.clients.tls_certificate_file": shown.certificate,
        "listeners.clients.tls_key_file": shown.key,
        "listeners.clients_kafka.port": 0,
        "listeners.clients_kafka.namespace": namespace.name,
    }
    broker = start_broker(namespace.broker_settings() | settings)
    principal = namespace.make_account("owner")
    namespace.allow("owner", ["create", "describe"], "topics")
    token = namespace.token("owner", namespace.audience)
    log_in: dict[str, Any] = {
        "bootstrap.servers": broker.kafka_address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(files.ca),
    }
    bearer = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (token, time.time() + 600)}
    password = {
        "sasl.mechanism": "PLAIN",
        "sasl.username": principal,
        "sasl.password": token,
    }

    def is_made(client: Any, name: str) -> bool:
        (future,) = client.create_topics([confluent_admin.NewTopic(name, 1, 1)]).values()
        try:
            future.result(20)
        except confluent.KafkaException as error:
            if error.args[0].code() != confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            return False
        return True

    def is_there(client: Any, name: str) -> object:
        return name in client.list_topics(timeout=20).topics

    for mechanism, name in ((bearer, "by-bearer"), (password, "by-password")):
        client = confluent_admin.AdminClient({**log_in, **mechanism})
        client.poll(0)
        wait_until(partial(is_made, client, name), "the API server knows the role", 30)
        wait_until(partial(is_there, client, name), "the topic is there")
    told: list[int] = []
    wrong = {**bearer, "oauth_cb": lambda _: (namespace.token("owner"), time.time() + 600)}
    wrong["error_cb"] = lambda error: told.append(error.code())
    stranger = confluent_admin.AdminClient({**log_in, **wrong})

    def is_refused() -> bool:
        stranger.poll(0.1)
        return confluent.KafkaError._AUTHENTICATION in told

    wait_until(is_refused, "a token for the API server itself is refused", 30)
    (line,) = {line["reason"] for line in lines(broker, "credential_refused")}
    assert "must be 'logs." in line


def test_the_operator_has_the_rights_for_all_that_it_does_in_a_cluster(
    namespace: Namespace, start_broker: StartBroker, tmp_path: Path
) -> None:
    """G10: as the chart gives them, and with a token for this cluster."""
    broker = start_broker(namespace.broker_settings())
    account = namespace.make_account("operator")
    chart = yaml.safe_load_all((ROOT / "tests" / "data" / "chart" / "default.yaml").read_text())
    role = next(
        document
        for document in chart
        if (document["kind"], document["metadata"]["name"]) == ("ClusterRole", "millrace-operator")
    )
    name = f"{namespace.name}-operator"
    role["metadata"] = {"name": name}
    namespace.must("POST", f"{RBAC}/clusterroles", role)
    namespace.bind_everywhere(name, "operator")
    token = tmp_path / "operator.token"
    token.write_text(namespace.token("operator", namespace.audience))
    topic = f"{namespace.name}/orders"
    with SyncAdmin(broker.address, token_file=str(token)) as admin:
        wait_until(lambda: has_rights(admin), f"{account} has its rights", 30)
        admin.create_topic(topic, partitions=1)
        admin.alter_topic(topic, set_config={"retention.ms": "3600000"})
        assert topic in admin.describe_topics(none_hidden=True)
        wait_until(lambda: admin.describe_logs(topic), "the broker has opened the log")
        (partition,) = admin.describe_topic(topic).partitions
        admin.reassign_partitions({(topic, 0): list(partition.replicas)})
        admin.set_quota("a", principal="alice", produce_bytes_per_second=1_000_000)
        assert [quota.name for quota in admin.list_quotas()] == ["a"]
        assert admin.describe_quotas() is not None
        admin.delete_quota("a")
        (known,) = admin.describe_cluster().brokers
        admin.drain_broker(known.broker_id)
        admin.undrain_broker(known.broker_id)
        with SyncProducer(broker.address, token_file=str(token)) as producer:
            refused = producer.send(topic, b"it writes no records")
            with pytest.raises(TopicAuthorizationFailedError):
                refused.result(30)
        admin.delete_topic(topic)


def has_rights(admin: SyncAdmin) -> bool:
    try:
        admin.list_quotas()
    except MillraceError:
        return False
    return True


def test_programs_write_and_read_by_roles(
    namespace: Namespace, start_broker: StartBroker, tmp_path: Path
) -> None:
    """A stream asks about a topic when it meets it, and nobody is told of a failure meanwhile."""
    broker = start_broker(namespace.broker_settings())
    namespace.make_account("program")
    namespace.allow("program", ["create", "describe", "produce", "consume"], "topics")
    namespace.allow("program", ["consume", "describe"], "groups", "readers")
    token = tmp_path / "program.token"
    token.write_text(namespace.token("program", namespace.audience))
    topic, group = f"{namespace.name}/orders", f"{namespace.name}/readers"
    client: dict[str, Any] = {"token_file": str(token)}
    with SyncAdmin(broker.address, **client) as admin:
        wait_until(lambda: creates(admin, topic), "the API server knows the roles", 30)
    with SyncProducer(broker.address, **client) as producer:
        sent = [producer.send(topic, b"%d" % number) for number in range(100)]
        assert all(handle.result(30).offset >= 0 for handle in sent)
    with SyncConsumer(
        broker.address, group=group, auto_offset_reset="earliest", **client
    ) as consumer:
        consumer.subscribe([topic])
        found = set()
        for record in consumer:
            found.add(record.value)
            if len(found) == 100:
                break


def creates(admin: SyncAdmin, topic: str) -> bool:
    try:
        admin.create_topic(topic, partitions=2)
    except MillraceError:
        return False
    return True


SPIFFE = "spiffe://example.org/team/orders"


def of_client(files: CertificateFiles, name: str, uri: str = "") -> dict[str, Any]:
    """Return a client's settings, with a certificate of its own."""
    made = files.make(name, uri=uri, file=name.replace(":", "-"))
    return {
        "tls_ca_file": made.ca,
        "tls_certificate_file": made.certificate,
        "tls_key_file": made.key,
    }


def asks_for_certificates(files: CertificateFiles) -> dict[str, Any]:
    """Return the settings of a listener for clients with certificates."""
    shown = files.make("broker", "localhost", "127.0.0.1")
    return {
        "listeners.outside.port": 0,
        "listeners.outside.tls_certificate_file": shown.certificate,
        "listeners.outside.tls_key_file": shown.key,
        "listeners.outside.tls_client_ca_file": shown.ca,
    }


def test_clients_with_certificates_have_kubernetes_roles_by_their_names(
    namespace: Namespace, start_broker: StartBroker, tmp_path: Path
) -> None:
    """At a listener of their own (G6); at the other one, pods go on with tokens."""
    files = CertificateFiles(tmp_path / "certificates")
    settings = asks_for_certificates(files) | {"listeners.outside_drpc.port": 0}
    broker = start_broker(namespace.broker_settings() | settings)
    namespace.users |= {"writer": SPIFFE, "reader": "reports"}
    topic = f"{namespace.name}/orders"
    namespace.allow("writer", ["create", "describe", "produce"], "topics")
    namespace.allow("reader", ["describe", "consume"], "topics", "orders")
    writer, reader = of_client(files, "writer", SPIFFE), of_client(files, "reports")
    with SyncAdmin(broker.outside_address, **writer) as admin:
        wait_until(lambda: creates(admin, topic), "the API server knows the roles", 30)
    with SyncProducer(broker.outside_address, **writer) as producer:
        assert producer.send(topic, b"one").result(30).offset == 0
    with SyncConsumer(broker.outside_address, auto_offset_reset="earliest", **reader) as consumer:
        consumer.subscribe([topic])
        assert next(iter(consumer)).value == b"one"
    with SyncProducer(broker.outside_address, **reader) as producer:
        refused = producer.send(topic, b"two")
        with pytest.raises(TopicAuthorizationFailedError, match="reports"):
            refused.result(30)
    namespace.make_account("pod")
    pod = Caller(broker, namespace.token("pod", namespace.audience))
    assert pod.call("Hello")[1] == set()
    assert Caller(broker, None).call("Hello")[1] == {"AUTHENTICATION_FAILED"}


@pytest.mark.parametrize("name", ["system:masters", "system:serviceaccount:kube-system:admin"])
def test_a_certificate_names_nobody_of_kubernetes_own(
    namespace: Namespace, start_broker: StartBroker, tmp_path: Path, name: str
) -> None:
    files = CertificateFiles(tmp_path / "certificates")
    broker = start_broker(namespace.broker_settings() | asks_for_certificates(files))
    with (
        SyncAdmin(broker.outside_address, **of_client(files, name)) as admin,
        pytest.raises(AuthenticationFailedError) as caught,
    ):
        admin.list_topics()
    assert name not in str(caught.value), "a caller is not told why"
    reasons = {line["reason"] for line in lines(broker, "credential_refused")}
    assert reasons == {f"a certificate names {name!r}"}
    stranger = CertificateFiles(tmp_path / "strangers")
    settings = of_client(stranger, "reports") | {"tls_ca_file": str(files.ca)}
    for shown_by in (settings, {"tls_ca_file": str(files.ca)}):
        with (
            SyncAdmin(broker.outside_address, request_timeout_ms=3000, **shown_by) as admin,
            pytest.raises(ConnectionFailedError),
        ):
            admin.list_topics()
