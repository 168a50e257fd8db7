"""Clients of Kafka in pods of a guarded Cluster: who they are, what they may do, what goes on.

They log in with their pod's ServiceAccount, by a token of the Cluster's audience, and trust the
Cluster's authorities. The tests follow each other on one Cluster.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from bench.peers.maven import PeerMissingError
from e2e.cluster.directories import ROOT
from e2e.cluster.images import KAFKA_CLIENTS
from e2e.cluster.native import NativeCluster
from e2e.cluster.providers import Cluster
from e2e.guard.accounts import GUARDED, Account, allow, audience_of, call_as
from e2e.installed import Namespace, until
from tests.suites import kafka_jars

pytestmark = pytest.mark.timeout(1800)  # At first it also builds the Kubernetes that it runs on.

CLUSTER: Final = "cluster.millrace.dev/logs"
PROGRAM: Final = (ROOT / "e2e" / "kafka_clients" / "program.py").read_text()
TOKEN: Final = "/run/millrace/token"
OF_ANOTHER_CLUSTER: Final = "/run/millrace/other"
OF_THE_API_SERVER: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"
PARTITIONS: Final = 6
FOLDER: Final = "/tmp/work"
WRITE_S_MAX: Final = 10.0
"""No write waits longer while brokers restart or one is killed."""
RIGHTS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "writer": {"topics": ("produce", "consume", "describe"), "groups": ("consume", "describe")},
    "reader": {"topics": ("consume", "describe"), "groups": ("consume", "describe")},
}


@dataclass(frozen=True, slots=True)
class Shop:
    """A guarded Cluster with a listener for clients of Kafka, and a pod for each account."""

    kubernetes: NativeCluster
    namespace: Namespace

    def attempts(self, pod: str, token_file: str = TOKEN) -> dict[str, str]:
        """Return what each library got that wrote to `orders` and read it."""
        question = {"topic": "orders", "group": pod, "token_file": token_file}
        program = ("exec", "--stdin", pod, "--", "python", "-c", PROGRAM, "attempts")
        said = self.namespace(*program, input=f"{json.dumps(question)}\n")
        found: dict[str, str] = json.loads(said.splitlines()[-1])
        return found

    def may(self, account: str, verb: str) -> bool:
        """Return what kubectl says of an account and the topic `orders`."""
        who = Account(self.namespace.name, account)
        return who.may(self.kubernetes.kubectl, verb, "topics.millrace.dev/orders")

    def refusals(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of all brokers' audit logs about an event."""
        found = []
        for number in range(3):
            for text in self.namespace("logs", f"pod/logs-brokers-{number}").splitlines():
                line = json.loads(text) if text.startswith("{") else {}
                if line.get("event") == event:
                    found.append(line)
        return found


@pytest.fixture(scope="module")
def shop(operator: Cluster) -> Iterator[Shop]:
    if not isinstance(operator, NativeCluster):
        pytest.skip("the image with clients of Kafka is loaded on the nodes of a native cluster")
    operator.load_kafka_clients_image()
    namespace = Namespace(operator.kubectl, f"e2e-{os.urandom(4).hex()}")
    namespace.create()
    try:
        for name, rights in RIGHTS.items():
            account = Account(namespace.name, name)
            account.make(operator.kubectl)
            for resource, verbs in rights.items():
                allow(namespace, account, verbs, [resource])
        listeners = {"kafka": {"enabled": True, "namespace": namespace.name}}
        namespace.make_cluster(**GUARDED, listeners=listeners)
        namespace.make_topic("orders", partitions=1, replicas=3)
        bootstrap = namespace.get(CLUSTER)["status"]["kafkaBootstrap"]
        for name in RIGHTS:

            def arm(pod: dict[str, Any], account: str = name) -> None:
                call_as(account, audience_of("logs", namespace.name), pod)
                add_other_token(pod, audience_of("other", namespace.name))
                pod["containers"][0]["env"].append({"name": "KAFKA_BOOTSTRAP", "value": bootstrap})

            namespace.make_client(name=name, image=KAFKA_CLIENTS, change=arm)
        yield Shop(operator, namespace)
    finally:
        namespace.delete()


def add_other_token(pod: dict[str, Any], audience: str) -> None:
    """Give a pod a token of another audience beside its own one."""
    (volume,) = (each for each in pod["volumes"] if each["name"] == "millrace-token")
    token = {"path": "other", "audience": audience, "expirationSeconds": 3600}
    volume["projected"]["sources"].append({"serviceAccountToken": token})


def test_clients_of_kafka_do_what_their_account_may_and_kubectl_says_the_same(shop: Shop) -> None:
    clients = ("confluent-kafka", "kafka-python")
    assert shop.attempts("writer") == {
        f"{client} {verb}": "yes" for client in clients for verb in ("produce", "consume")
    }
    assert shop.may("writer", "produce")
    found = shop.attempts("reader")
    for client in clients:
        assert found[f"{client} produce"] == "TOPIC_AUTHORIZATION_FAILED"
        assert found[f"{client} consume"] == "yes"
    assert not shop.may("reader", "produce")
    assert shop.may("reader", "consume")
    principal = Account(shop.namespace.name, "reader").principal
    lines = [line for line in shop.refusals("caller_refused") if line["principal"] == principal]
    assert any("may not produce" in line["error"] for line in lines), lines


@pytest.mark.parametrize("token_file", [OF_ANOTHER_CLUSTER, OF_THE_API_SERVER])
def test_a_token_of_another_audience_is_no_log_in(shop: Shop, token_file: str) -> None:
    found = shop.attempts("writer", token_file)
    # kafka-python tries again and again, and says why in its own log alone.
    of_library = {"confluent-kafka": "_AUTHENTICATION", "kafka-python": "KafkaTimeoutError"}
    for what, got in found.items():
        assert got == of_library[what.partition(" ")[0]], found
    wanted = f"must be '{audience_of('logs', shop.namespace.name)}' alone"
    assert any(wanted in line["reason"] for line in shop.refusals("credential_refused"))


JAVA: Final = """\
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.crt
sasl.mechanism=OAUTHBEARER
sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler
sasl.oauthbearer.token.endpoint.url=file://{folder}/token
"""
"""Settings of Java, as docs/kubernetes.md has them."""


class Java:
    """Kafka's own tools, on this machine: they reach the pods, whose names a file tells them."""

    def __init__(self, shop: Shop, folder: Path) -> None:
        self._shop, self._folder = shop, folder
        folder.mkdir()
        namespace = shop.namespace
        authorities = namespace.get("configmap", "logs-ca")["data"]["ca.crt"]
        (folder / "ca.crt").write_text(authorities)
        (folder / "client.properties").write_text(JAVA.format(folder=folder))
        pods = namespace.get("pods", "--selector=app.kubernetes.io/component=broker")["items"]
        names = {
            f"{pod['metadata']['name']}.logs-brokers.{namespace.name}.svc": pod["status"]["podIP"]
            for pod in pods
        }
        # Addresses of Services are for nodes and pods alone.
        self._bootstrap = f"logs-bootstrap.{namespace.name}.svc"
        names[self._bootstrap] = pods[0]["status"]["podIP"]
        hosts = "".join(f"{address} {name}\n" for name, address in names.items())
        (folder / "hosts").write_text(hosts)

    def run(self, tool: str, token: str, *arguments: str) -> str:
        """Run a tool with a token; return all that it said, also if it failed."""
        (self._folder / "token").write_text(token)
        options = (
            f"-Djdk.net.hosts.file={self._folder}/hosts "
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{self._folder}/token"
        )
        settings = f"--{tool.rpartition('-')[2]}.config={self._folder}/client.properties"
        told = ("--bootstrap-server", f"{self._bootstrap}:9092", "--topic", "orders", settings)
        program = str(kafka_jars.scripts() / "bin" / f"kafka-{tool}.sh")
        script = 'JAVA_TOOL_OPTIONS=$0 "$@" 2>&1 || true'
        command = ("sh", "-c", script, options, program, *told, *arguments)
        return self._shop.kubernetes.run_outside(*command)


def test_kafkas_own_tools_log_in_by_a_file_with_the_token(shop: Shop) -> None:
    kubectl, name = shop.kubernetes.kubectl, shop.namespace.name
    try:
        java = Java(shop, shop.kubernetes.folder / f"java-{name}")
        kafka_jars.scripts()
    except PeerMissingError as error:
        pytest.skip(str(error))
    audience = audience_of("logs", name)
    writer, reader = (Account(name, each).token(kubectl, audience) for each in RIGHTS)
    stranger = Account(name, "writer").token(kubectl, audience_of("other", name))
    write = ("--max-messages=1", "--value-prefix=2048")
    said = java.run("verifiable-producer", writer, *write)
    assert '"name":"producer_send_success"' in said, said
    read = ("--from-beginning", "--timeout-ms=20000", "--group=java")
    said = java.run("console-consumer", reader, *read)
    assert "2048.0" in said, said
    for token, refusal in ((reader, "TopicAuthorization"), (stranger, "SaslAuthentication")):
        said = java.run("verifiable-producer", token, *write)
        assert '"name":"producer_send_success"' not in said, said
        assert f"org.apache.kafka.common.errors.{refusal}" in said, said


class Working:
    """Clients in the pod `writer` that write numbers and read them in a group.

    They depend on no connection from here, which the tests' own load may break.
    """

    def __init__(self, shop: Shop, topic: str) -> None:
        self._shop = shop
        question = {
            "topic": topic,
            "group": "counters",
            "partitions": PARTITIONS,
            "folder": FOLDER,
        }
        script = f'mkdir {FOLDER}; echo "$1" | setsid python -c "$0" work >{FOLDER}/log 2>&1 &'
        self._exec("sh", "-c", script, PROGRAM, json.dumps(question))
        until(lambda: self._said("progress") is not None, "they have begun")

    def go_on(self, count: int = 500) -> None:
        """Return once so many more numbers are acknowledged and read."""
        before = self._said("progress")

        def has_more() -> bool:
            now = self._said("progress")
            return all(now[what] >= before[what] + count for what in ("acknowledged", "read"))

        until(has_more, f"{count} more numbers are written and read; see {FOLDER}/log", 120)

    def end(self) -> dict[str, Any]:
        """Return what they have seen, once they have read everything."""
        self._exec("touch", f"{FOLDER}/end")
        until(lambda: self._said("seen") is not None, f"all is read; see {FOLDER}/log", 400)
        found: dict[str, Any] = self._said("seen")
        return found

    def _said(self, what: str) -> Any:
        """Return what a file of theirs has; None: it is not there yet."""
        said = self._exec("sh", "-c", f"cat {FOLDER}/{what}.json || true")
        return json.loads(said) if said else None

    def _exec(self, *command: str) -> str:
        return self._shop.namespace("exec", "writer", "--", *command)


def test_nothing_is_lost_or_doubled_while_all_brokers_restart_and_one_is_killed(
    shop: Shop,
) -> None:
    namespace = shop.namespace
    namespace.make_topic("numbers", partitions=PARTITIONS, replicas=3)
    clients = Working(shop, "numbers")
    clients.go_on()
    before = namespace.broker_uids()
    namespace("rollout", "restart", "statefulset/logs-brokers")
    until(lambda: not (namespace.broker_uids() & before), "every broker was restarted", 300)
    namespace.wait(CLUSTER, "RolledOut", 300)
    namespace.wait(CLUSTER, "Healthy")
    clients.go_on()
    before = namespace.broker_uids()
    namespace("delete", "pod", "logs-brokers-1", "--grace-period=0", "--force", "--wait=false")
    until(lambda: len(namespace.broker_uids() - before) == 1, "the broker is another pod")
    namespace.wait(CLUSTER, "Healthy")
    clients.go_on()
    seen = clients.end()
    acknowledged, stored, read = (
        numbers(seen[what]) for what in ("acknowledged", "stored", "read")
    )
    sys.stderr.write(
        f"e2e: {seen['sent']} numbers, {len(seen['failed'])} failed; the longest wait of a write "
        f"was {seen['longest_wait_s']:.2f} s; {seen['rebalances']} assignments; clients were told "
        f"{seen['told']}\n"
    )
    assert not seen["failed"]
    wanted = Counter(range(seen["sent"]))
    assert acknowledged == wanted
    assert stored == wanted
    assert read == wanted
    # Where it was acknowledged, each has stayed, in the order in which they were sent.
    assert sorted(map(tuple, seen["stored"])) == sorted(map(tuple, seen["acknowledged"]))
    in_order = [number for *_, number in sorted(map(tuple, seen["stored"]))]
    assert in_order == sorted(in_order, key=lambda number: (number % PARTITIONS, number))
    assert seen["longest_wait_s"] < WRITE_S_MAX


def numbers(records: Sequence[tuple[int, int, int]]) -> Counter[int]:
    """Return how often each number is there."""
    return Counter(number for *_, number in records)
