"""Who may do what in a Cluster with TLS and access control: two namespaces, and strangers.

The tests follow each other on one Cluster. What they do and see is written down for people, with
the matrix of all rights, where `MILLRACE_TRANSCRIPT` names a file.
"""

import base64
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from e2e import programs
from e2e.cluster.commands import CommandError
from e2e.cluster.directories import ROOT
from e2e.cluster.native import NativeCluster
from e2e.cluster.providers import Cluster
from e2e.guard import tokens
from e2e.guard.accounts import GUARDED, Account, allow, audience_of, call_as
from e2e.guard.transcript import Transcript
from e2e.installed import Namespace, until
from e2e.load.pod import LoadPod
from e2e.load.program import Settings
from tests.checkers.check import check
from tests.checkers.history import FAIL, INFO

from millrace.core.broker_names import BrokerName
from millrace.operator.reconcile.renewals import AUTHORITY, CERTIFICATES
from millrace.runtime.certificates import Issued, Names, issue, new_authority, read

pytestmark = pytest.mark.timeout(1800)  # At first it also builds the Kubernetes that it runs on.

ATTEMPTS: Final = (ROOT / "e2e" / "guard" / "attempts.py").read_text()
BROKERS: Final = [f"logs-brokers-{number}" for number in range(3)]
VERBS: Final = ("produce", "consume", "describe", "create", "alter", "delete")
RIGHTS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "shop": {
        "orders": ("produce", "consume", "describe"),
        "invoices": ("produce", "consume", "describe"),
    },
    "owner": {
        "orders": ("describe", "create", "alter", "delete"),
        "invoices": ("describe", "create", "alter", "delete"),
    },
    "reports": {"orders": ("consume", "describe")},
    "stranger": {},
}
"""Of each account, by the name of the topic; all others are refused."""
DEFAULT_TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"
REPLICA_PORTS: Final = (7094, 7097)
"""For gRPC and for DRPC."""
OUTAGE_S: Final = 40
HEAD: Final = """# Who may do what, seen on a Kubernetes of three nodes

Written on {day}, by a run of `e2e/tests/test_guard.py` with `MILLRACE_TRANSCRIPT`: commands, and
what they said. A Cluster `logs` with `tls: {{}}` and `access: {{}}` is in the namespace `shop`. The
account `reports` is in another one, `reports`. Both namespaces have other names in each run."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A Cluster, and its users.

    Attributes:
        shop: the namespace of the Cluster, with the topics `orders` and `invoices`.
        reports: another one, with the topic `returns`. Both have a pod `client`.
        accounts: by their names.
        transcript: of all tests.
    """

    kubernetes: Cluster
    shop: Namespace
    reports: Namespace
    accounts: Mapping[str, Account]
    transcript: Transcript

    @property
    def audience(self) -> str:
        """The audience of the Cluster's tokens."""
        return audience_of("logs", self.shop.name)

    @property
    def topics(self) -> list[tuple[Namespace, str]]:
        """All topics that the matrix is about."""
        return [(self.shop, "orders"), (self.shop, "invoices"), (self.reports, "returns")]

    def token(self, account: str) -> str:
        """Return a token of an account for the Cluster."""
        return self.accounts[account].token(self.kubernetes.kubectl, self.audience)

    def millrace(self, of: Namespace, *arguments: str, input: str | None = None) -> str:
        """Run the command line in a client's pod, whether it succeeds or not; write it down."""
        said = outcome(lambda: of.millrace(*arguments, input=input))
        shown = f"kubectl -n {of.name} exec -i client -- millrace {' '.join(arguments)}"
        if input is not None:
            shown = f"printf {input!r} | {shown}"
        self.transcript.ran(shown, said)
        return said

    def can_i(self, account: str, verb: str, of: Namespace, topic: str) -> str:
        """Return what kubectl says, `yes` or `no`."""
        who, resource = self.accounts[account], f"topics.millrace.dev/{topic}"
        return "yes" if who.may(self.kubernetes.kubectl, verb, resource, of.name) else "no"

    def shown_can_i(self, account: str, verb: str, of: Namespace, topic: str) -> str:
        """As `can_i`; write it down."""
        answer = self.can_i(account, verb, of, topic)
        who = f"--namespace={of.name} --as={self.accounts[account].principal}"
        asked = f"kubectl auth can-i {verb} topics.millrace.dev/{topic} {who}"
        self.transcript.ran(asked, answer)
        return answer

    def ask(self, of: Namespace, what: str, question: object) -> Any:
        """Run a part of `e2e/guard/attempts.py` in a client's pod; return its answer."""
        program = ("exec", "--stdin", "client", "--", "python", "-c", ATTEMPTS, what)
        return json.loads(of(*program, input=f"{json.dumps(question)}\n").splitlines()[-1])

    def audit(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the audit logs of all brokers about an event."""
        return [line for line in self.log(event) if line["logger"] == "millrace.audit"]

    def log(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the logs of all brokers about an event."""
        found = []
        for broker in BROKERS:
            for text in self.shop("logs", f"pod/{broker}").splitlines():
                line = json.loads(text) if text.startswith("{") else {}
                if line.get("event") == event:
                    found.append({**line, "broker": broker})
        return found


def outcome(command: Any) -> str:
    """Return what a command wrote, also if it failed."""
    try:
        written: str = command()
    except CommandError as error:
        lines = str(error).splitlines()[1:]  # The first one is the command.
        return "\n".join(line for line in lines if not line.startswith("command terminated"))
    return written


@pytest.fixture(scope="module")
def guarded(operator: Cluster) -> Iterator[Guarded]:
    """The Cluster `logs` in a namespace, and clients there and in another one."""
    kubectl = operator.kubectl
    shop, reports = (Namespace(kubectl, f"e2e-{secrets.token_hex(4)}") for _ in range(2))
    accounts = {name: Account(shop.name, name) for name in ("shop", "owner", "load")}
    accounts |= {name: Account(reports.name, name) for name in ("reports", "stranger", "gone")}
    head = HEAD.format(day=datetime.now(UTC).strftime("%Y-%m-%d"))
    transcript = Transcript(head, {shop.name: "shop", reports.name: "reports"})
    made = Guarded(operator, shop, reports, accounts, transcript)
    for namespace in (shop, reports):
        namespace.create()
    try:
        for account in accounts.values():
            account.make(kubectl)
        allow(shop, accounts["shop"], RIGHTS["shop"]["orders"])
        allow(shop, accounts["owner"], RIGHTS["owner"]["orders"])
        allow(shop, accounts["reports"], RIGHTS["reports"]["orders"], names=["orders"])
        allow(shop, accounts["load"], ["*"], ["topics", "groups", "transactions"])
        shop.make_cluster(**GUARDED, allowedTopics={"namespaces": {"from": "All"}})
        for name in ("orders", "invoices"):
            shop.make_topic(name, partitions=1, replicas=3)
        reference = {"name": "logs", "namespace": shop.name}
        reports.make_topic("returns", partitions=1, replicas=3, clusterRef=reference)
        trusted = shop.get("configmap", "logs-ca")["data"]
        copied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "logs-ca"}}
        reports.apply({**copied, "data": trusted})
        shop.make_client(change=partial(arm, made, "shop"))
        reports.make_client(change=partial(arm, made, "reports"))
        yield made
    finally:
        transcript.write()
        reports.delete()
        shop.delete()


def arm(guarded: Guarded, account: str, pod: dict[str, Any]) -> None:
    """Let a client's pod call the Cluster, which may be in another namespace."""
    call_as(account, guarded.audience, pod)
    bootstrap = f"logs-bootstrap.{guarded.shop.name}.svc:7092"
    pod["containers"][0]["env"].append({"name": "MILLRACE_BOOTSTRAP", "value": bootstrap})


def test_an_account_of_one_namespace_writes_and_that_of_another_may_only_read(
    guarded: Guarded,
) -> None:
    shop, reports = guarded.shop, guarded.reports
    topic = f"{shop.name}/orders"
    guarded.transcript.title("Two namespaces: one writes and reads, the other may only read")
    guarded.millrace(shop, "produce", topic, input="apple\npear\n")
    read_all = ("consume", topic, "--from", "beginning", "--max", "2", "--timeout", "60")
    for namespace in (shop, reports):
        said = guarded.millrace(namespace, *read_all)
        assert "apple" in said, said
        assert "pear" in said, said
    refused = guarded.millrace(reports, "produce", topic, input="plum\n")
    principal = guarded.accounts["reports"].principal
    assert f"'{principal}' may not produce topic '{topic}'" in refused
    assert "(TOPIC_AUTHORIZATION_FAILED)" in refused
    assert guarded.shown_can_i("shop", "produce", shop, "orders") == "yes"
    assert guarded.shown_can_i("reports", "produce", shop, "orders") == "no"
    assert guarded.shown_can_i("reports", "consume", shop, "orders") == "yes"
    lines = [line for line in guarded.audit("caller_refused") if line["principal"] == principal]
    assert any("may not produce" in line["error"] for line in lines)
    guarded.transcript.say("The broker's audit log:")
    guarded.transcript.ran(f"kubectl -n {shop.name} logs {lines[0]['broker']}", told(lines[0]))


def told(line: Mapping[str, Any]) -> str:
    """Return the part of a line of the audit log that is for a transcript."""
    keys = ("event", "principal", "client_id", "listener", "method", "error", "reason")
    return json.dumps({key: line[key] for key in keys if line.get(key)})


def test_kubectl_says_of_each_account_and_verb_what_the_broker_says(guarded: Guarded) -> None:
    attempts = [(verb, of, topic) for of, topic in guarded.topics for verb in VERBS]
    asked = [(verb, f"{of.name}/{topic}") for verb, of, topic in attempts]
    # A record each, so that there is something to read, where that is allowed.
    for of, topic in guarded.topics[:2]:
        of.millrace("produce", f"{of.name}/{topic}", input="first\n")
    said = guarded.ask(
        guarded.shop, "rights", [[guarded.token(account), asked] for account in RIGHTS]
    )
    rows, differ = [], []
    for account, answers in zip(RIGHTS, said, strict=True):
        cells = []
        for (verb, of, topic), answer in zip(attempts, answers, strict=True):
            by_kubectl = guarded.can_i(account, verb, of, topic)
            wanted = "yes" if verb in RIGHTS[account].get(topic, ()) else "no"
            by_broker = {"TOPIC_AUTHORIZATION_FAILED": "no"}.get(answer, answer)
            if not by_kubectl == by_broker == wanted:
                differ.append((account, verb, topic, wanted, by_kubectl, answer))
            cells.append(f"**{by_broker}**" if by_broker == "yes" else by_broker)
        for number, (of, topic) in enumerate(guarded.topics):
            row = cells[number * len(VERBS) : (number + 1) * len(VERBS)]
            where = guarded.accounts[account]
            rows.append([f"`{where.namespace}/{account}`", f"`{of.name}/{topic}`", *row])
    transcript = guarded.transcript
    transcript.title("What each account may do")
    transcript.say(
        "Each cell is the answer of the broker to a call with a token of the account, and of "
        "`kubectl auth can-i VERB topics.millrace.dev/TOPIC --as ACCOUNT`: they are the same. "
        "What is refused is refused as `TOPIC_AUTHORIZATION_FAILED`."
    )
    transcript.table(("account", "topic", *VERBS), rows)
    assert not differ, differ


def test_who_may_not_describe_a_topic_cannot_tell_whether_it_is_there(guarded: Guarded) -> None:
    asked = [("describe", f"{guarded.shop.name}/{topic}") for topic in ("invoices", "nothing")]
    question = [[guarded.token(account), asked] for account in ("reports", "shop")]
    stranger, owner = guarded.ask(guarded.shop, "rights", question)
    assert stranger == ["TOPIC_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"]
    assert owner == ["yes", "UNKNOWN_TOPIC_OR_PARTITION"]


def test_kubectl_millrace_has_the_rights_of_the_account_that_it_names(guarded: Guarded) -> None:
    """G1: and without one none, least of all the broker's own."""
    topic = f"{guarded.shop.name}/orders"
    account = f"{guarded.reports.name}/reports"
    guarded.transcript.title("kubectl millrace")
    read_one = ("consume", topic, "--from", "beginning", "--max", "1", "--timeout", "60")
    assert "apple" in plugin(guarded, account, *read_one)
    refused = plugin(guarded, account, "produce", topic, input="plum\n")
    assert f"'{guarded.accounts['reports'].principal}' may not produce topic '{topic}'" in refused
    assert "AUTHENTICATION_FAILED" in plugin(guarded, "", "topic", "list")


def plugin(guarded: Guarded, account: str, *arguments: str, input: str = "") -> str:
    """Run `kubectl millrace`; return what it wrote, and write it down."""
    kubectl = guarded.kubernetes.kubectl
    chosen = ("-n", guarded.shop.name, *(("--account", account) if account else ()))
    command = ("logs", *arguments)
    program = "from millrace.cli.kubectl_plugin import main; main()"
    path = f"{programs.NODES.folder()}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", program, f"--kubeconfig={kubectl.kubeconfig}", *chosen, *command],
        input=input,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    lines = (done.stdout + done.stderr).splitlines()
    said = "\n".join(line for line in lines if not line.startswith("command terminated"))
    shown = f"kubectl millrace {' '.join([*chosen, *command])}"
    guarded.transcript.ran(f"printf {input!r} | {shown}" if input else shown, said)
    return said


def test_tokens_that_prove_nothing_here_are_refused_with_a_reason_for_the_operator_alone(
    guarded: Guarded,
) -> None:
    kubectl = guarded.kubernetes.kubectl
    stolen = guarded.shop("exec", "client", "--", "cat", DEFAULT_TOKEN).strip()
    gone = guarded.accounts["gone"]
    of_gone = guarded.token("gone")
    kubectl("delete", "serviceaccount", gone.name, f"--namespace={gone.namespace}")
    good = guarded.token("shop")
    (key, *_) = json.loads(kubectl("get", "--raw", "/openid/v1/jwks"))["keys"]
    public = jwt.PyJWK(key).key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    other_audience = audience_of("other", guarded.shop.name)
    shown = {
        "stolen-default-token": stolen,
        "other-cluster": guarded.accounts["shop"].token(kubectl, other_audience),
        "deleted-account": of_gone,
        **tokens.forged(good, ec.generate_private_key(ec.SECP256R1()), public),
    }
    if isinstance(guarded.kubernetes, NativeCluster):
        signing = guarded.kubernetes.certificates.path("service-accounts.key")
        shown |= tokens.signed(good, signing)
    answers = guarded.ask(guarded.reports, "tokens", {**shown, "good": good, "anonymous": ""})
    assert answers.pop("good") == "ok"
    assert answers.pop("anonymous").startswith("UNAUTHENTICATED")
    assert set(answers) == set(shown)
    assert len(set(answers.values())) == 1, answers  # An attacker learns nothing from it.
    (answer,) = set(answers.values())
    assert answer.startswith("UNAUTHENTICATED")

    def reasons() -> dict[str, str]:
        lines = guarded.audit("credential_refused")
        return {line["client_id"]: line["reason"] for line in lines}

    until(lambda: set(shown) <= set(reasons()), "each has a line in the audit log", 60)
    found = reasons()
    for name, reason in (
        ("stolen-default-token", f"must be '{guarded.audience}' alone"),
        ("other-cluster", f"must be '{guarded.audience}' alone"),
        ("deleted-account", "the API server refuses it"),
        ("forged", "its signature is wrong"),
        ("alg-none-with-a-signature", "its algorithm is 'none'"),
        ("key-confusion", "its algorithm is 'HS256'"),
    ):
        assert reason in found[name], (name, found[name])
    transcript = guarded.transcript
    transcript.title("Tokens that prove nothing here")
    transcript.say("The client does not even send the token that each pod has for the API server:")
    said = guarded.millrace(guarded.shop, "topic", "list", "--token-file", DEFAULT_TOKEN)
    assert "is never sent" in said
    transcript.say(
        f"So each was sent by hand. Every caller is told the same, `{answer}`. The reason is in "
        "the broker's audit log, `credential_refused`:"
    )
    rows = [[name, f"{found[name]}".replace("|", "\\|")] for name in shown]
    transcript.table(("token", "reason in the audit log"), rows)


def test_only_brokers_get_through_the_handshake_at_the_listener_of_brokers(
    guarded: Guarded,
) -> None:
    """G2: also where no network policy is enforced, as in a native cluster."""
    name = BROKERS[0]
    host = f"{name}.logs-brokers.{guarded.shop.name}.svc"
    uri = BrokerName("cluster.local", guarded.shop.name, "logs", BROKERS[1]).uri
    other = new_authority("brokers", days=1)
    forged = issue(other, Names(common=BROKERS[1], hosts=[host], uri=uri), days=1)
    of_pool = guarded.shop.get("secret", "logs-brokers-tls")["data"]
    own = [base64.b64decode(of_pool[f"{name}.{end}"]).decode() for end in ("crt", "key")]
    shown = {
        "TLS without a certificate": [],
        "a certificate of another authority that names a broker": list(pem(forged)),
        "the certificate of a broker": own,
    }
    question = {"host": host, "ports": REPLICA_PORTS, "shown": shown}
    found = guarded.ask(guarded.reports, "handshakes", question)
    transcript = guarded.transcript
    transcript.title("A pod at the listener of brokers")
    transcript.say(
        f"From a pod of the namespace `{guarded.reports.name}`, which reaches the ports, as this "
        "Kubernetes enforces no network policies:"
    )
    rows = [[*what.split(" ", 1), answer] for what, answer in found.items()]
    transcript.table(("port", "shown", "answer"), rows)
    for what, answer in found.items():
        is_broker = what.endswith("the certificate of a broker")
        assert (answer == "open") == is_broker, found
    refused = [line for line in guarded.log("connection_refused") if line["broker"] == name]
    assert any("TLS" in line["reason"] for line in refused), refused
    transcript.say("The broker's log, which has at most one such line in ten seconds:")
    transcript.ran(f"kubectl -n {guarded.shop.name} logs {name}", told(refused[-1]))


def pem(made: Issued) -> tuple[str, str]:
    return made.certificate.decode(), made.key.decode()


def test_who_was_allowed_goes_on_while_the_api_server_is_away(guarded: Guarded) -> None:
    kubernetes = guarded.kubernetes
    if not isinstance(kubernetes, NativeCluster):
        pytest.skip("it takes the API server away, which the native provider alone can")
    topic = f"{guarded.shop.name}/orders"
    question = {
        "known": guarded.token("shop"),
        "new": guarded.token("owner"),
        "topic": topic,
        "seconds": OUTAGE_S,
    }
    with tempfile.TemporaryFile() as output:
        program = ("exec", "--stdin", "client", "--", "python", "-c", ATTEMPTS, "outage")
        running = guarded.shop.start(*program, output=output)
        try:
            assert running.stdin is not None
            running.stdin.write(f"{json.dumps(question)}\n".encode())
            running.stdin.close()

            def said() -> list[str]:
                return os.pread(output.fileno(), 1 << 20, 0).decode().splitlines()

            until(lambda: said()[:1] == ["ready"], "the callers have begun", 60)
            with kubernetes.api_server_away():
                time.sleep(OUTAGE_S + 5)
            assert running.wait(120) == 0
            found = json.loads(said()[-1])
        finally:
            running.kill()
            running.wait()
    guarded.transcript.title(f"The API server is away for {OUTAGE_S + 5} s")
    guarded.transcript.table(
        ("caller", "got", "times"),
        [
            [name, f"`{got}`", str(times)]
            for name, counts in found.items()
            for got, times in counts.items()
        ],
    )
    assert set(found["known"]) == {"yes"}
    assert found["known"]["yes"] >= 20
    assert found["new"]
    assert all("yet to ask the Kubernetes API server" in got for got in found["new"]), found
    until(
        lambda: guarded.ask(guarded.shop, "tokens", {"new": question["new"]}) == {"new": "ok"},
        "the new one is known, too",
        60,
    )


def test_certificates_and_the_authority_change_under_load(guarded: Guarded) -> None:
    shop = guarded.shop
    shop.make_topic("load", partitions=3, replicas=3)
    settings = Settings(
        bootstrap=f"logs-bootstrap.{shop.name}.svc:7092",
        topics=(f"{shop.name}/load",),
        partitions=3,
        pause_s=0.05,
    )
    load = LoadPod(shop, settings, account="load")
    load.start()
    load.window("open")
    before = shop.get("pods", "--selector=app.kubernetes.io/component=broker")["items"]
    first = served(guarded)
    transcript = guarded.transcript
    transcript.title("Certificates and their authority change under load")
    annotate(guarded, CERTIFICATES)
    until(lambda: not set(served(guarded)) & set(first), "all show other certificates", 240)
    second = served(guarded)
    (old,) = {authority_of(guarded, certificate) for certificate in second}

    annotate(guarded, AUTHORITY)
    until(
        lambda: old not in {authority_of(guarded, certificate) for certificate in served(guarded)},
        "all show certificates of another authority",
        600,
    )
    new = {authority_of(guarded, certificate) for certificate in served(guarded)}
    load.wait_for_all()
    load.window("close")
    after = shop.get("pods", "--selector=app.kubernetes.io/component=broker")["items"]
    history = load.finish()
    report = check(history)
    failed = [op for op in history if op.f == "send" and op.type in (FAIL, INFO)]
    transcript.table(
        ("what", "seen"),
        [
            ["authorities that signed, by their numbers", ", ".join([old, *sorted(new)])],
            ["records that were acknowledged", f"{report.measures['acknowledged']:.0f}"],
            ["writes that failed", str(len(failed))],
            ["restarts of brokers", str(len(lives(after) - lives(before)))],
            ["longest wait of a write", f"{report.measures['longest_wait_s']:.2f} s"],
        ],
    )
    sys.stderr.write(f"e2e: {report.measures}\n")
    assert report.is_good, report.text()
    assert not failed
    assert lives(after) == lives(before)


def annotate(guarded: Guarded, name: str) -> None:
    """Ask the operator, as people do; write it down."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    arguments = ("annotate", "--overwrite", "cluster.millrace.dev/logs", f"{name}={now}")
    shown = f"kubectl -n {guarded.shop.name} {' '.join(arguments)}"
    guarded.transcript.ran(shown, guarded.shop(*arguments))


def served(guarded: Guarded) -> list[str]:
    """Return the certificate that each broker shows to clients."""
    hosts = [f"{broker}.logs-brokers.{guarded.shop.name}.svc" for broker in BROKERS]
    found: dict[str, str] = guarded.ask(guarded.shop, "served", {"hosts": hosts, "port": 7092})
    return list(found.values())


def authority_of(guarded: Guarded, certificate: str) -> str:
    """Return the number of the authority that signed a certificate."""
    found = read(certificate.encode())
    secret: dict[str, str] = guarded.shop.get("secret", "logs-ca")["data"]
    return next(
        file.partition(".")[0]
        for file, content in secret.items()
        if file.endswith(".crt") and found.is_of(base64.b64decode(content))
    )


def lives(pods: Sequence[dict[str, Any]]) -> set[tuple[str, int]]:
    """Return the lives of pods' containers."""
    return {
        (pod["metadata"]["uid"], status["restartCount"])
        for pod in pods
        for status in pod["status"]["containerStatuses"]
    }
