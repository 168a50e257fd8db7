"""Prometheus finds brokers and operators by itself, and its alerts tell when a broker goes.

One Prometheus follows the annotations of pods, by the job of `charts/prometheus.yaml`; a second one
follows the PodMonitors of the chart. Both have the rules of the chart's PrometheusRule. Where pages
ask for a token, it is the second one that has it.
"""

import base64
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from dashboards.alerts import ALERTS
from e2e.cluster.commands import CommandError
from e2e.cluster.directories import ROOT
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.native import NativeCluster
from e2e.cluster.providers import Cluster, ExistingCluster
from e2e.guard.accounts import GUARDED, Account, allow
from e2e.installed import SYSTEM, Namespace, install_operator
from e2e.load.pod import LoadPod
from e2e.load.program import Settings
from e2e.prometheus.pod import PrometheusPod
from e2e.prometheus.pod_monitors import scrape_configs
from tests.watching.cluster import wait_until
from tests.watching.panels import without_data

pytestmark = pytest.mark.timeout(900)

WAYS = ("annotations", "pod-monitors")
TOPIC = "orders"
BROKER = "logs-brokers-0"
WAITING = {"MillraceBrokerDown", "MillraceUnderReplicated"}
"""These alerts wait for minutes before they fire, for the case that a broker comes back."""
NO_SPARK = "Millrace: Spark pipelines"
NOT_CAUSED_HERE = {
    ("Millrace: Brokers and disks", "Certificates"),
    ("Millrace: Overview", "Refusals"),
    ("Millrace: Overview", "Time that quotas delay clients"),
    ("Millrace: Brokers and disks", "Refusals by broker"),
    ("Millrace: Quotas", "Time that quotas delay clients"),
    ("Millrace: Quotas", "Present delays"),
    ("Millrace: Storage", "Bytes on HDDs"),
    ("Millrace: Storage", "Moved bytes"),
    ("Millrace: Storage", "Moved segments"),
}
"""These panels are empty here, where nothing is refused, delayed, tiered, or has certificates;
`tests/integration/test_dashboards.py` has data for them."""
PAGE = "prometheus"
"""The Secret with the token of the guarded pages."""
_DEFINITIONS = ROOT / "tests" / "data" / "monitoring"
_SECONDS = 180.0
_MONITORED = (
    "monitoring.podMonitors.enabled=true",
    "monitoring.podMonitors.interval=1s",
    "monitoring.rules.enabled=true",
)
_PAGE_WITHOUT_TOKEN = """
import ssl, sys, urllib.error, urllib.request
trusted = ssl.create_default_context(cafile=sys.argv[2])
try:
    print(urllib.request.urlopen(sys.argv[1], context=trusted, timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
"""Prints the status: ADDRESS AUTHORITIES."""


@pytest.fixture(scope="module")
def watched(operator: Cluster) -> Iterator[Cluster]:
    """The cluster with the chart's PodMonitors and rules.

    The Prometheus operator need not be there: its definitions are enough to hold the objects.
    """
    if isinstance(operator, ExistingCluster):
        pytest.skip("others may watch this cluster, and its nodes must not be cordoned")
    operator.kubectl("apply", "--server-side", f"--filename={_DEFINITIONS}")
    definitions = [f"crd/{path.stem}" for path in _DEFINITIONS.glob("*.yaml")]
    try:
        operator.kubectl("wait", "--for=condition=Established", "--timeout=60s", *definitions)
        install_operator(operator, *_MONITORED)
        yield operator
    finally:
        install_operator(operator)
        operator.kubectl("delete", *definitions, "--timeout=60s")


@pytest.fixture
def cluster(watched: Cluster, namespace: Namespace) -> Namespace:
    """A namespace with three brokers that are written to and read from, also by a group."""
    namespace.make_cluster()
    work_on(namespace)
    return namespace


@pytest.fixture
def guarded(watched: Cluster, namespace: Namespace) -> Iterator[Namespace]:
    """Likewise, with brokers that speak TLS, ask who calls, and whose page asks for a token."""
    namespace("create", "secret", "generic", PAGE, f"--from-literal=token={secrets.token_hex(32)}")
    namespace.make_cluster(**GUARDED, metricsPage={"tokenSecret": PAGE})
    account = Account(namespace.name, "load")
    account.make(namespace.kubectl)
    allow(namespace, account, ["*"])
    # The load's transactional ids and groups are of that namespace.
    default = Namespace(namespace.kubectl, "default")
    allow(default, account, ["*"], ["groups", "transactions"])
    each = "monitoring.podMonitors.guarded[0]"
    of_it = (f"namespace={namespace.name}", "cluster=logs", f"tokenSecret={PAGE}")
    install_operator(watched, *_MONITORED, *(f"{each}.{value}" for value in of_it))
    try:
        work_on(namespace, account.name)
        yield namespace
    finally:
        install_operator(watched, *_MONITORED)
        role = f"{namespace.name}-{account.name}-groups-transactions"
        default("delete", f"role/{role}", f"rolebinding/{role}")


def work_on(namespace: Namespace, account: str = "") -> LoadPod:
    """Start a load, and a group that has read all of it; return it."""
    namespace.make_topic(TOPIC, partitions=3, replicas=3, config={"min.insync.replicas": 2})
    topic = f"{namespace.name}/{TOPIC}"
    bootstrap = f"logs-bootstrap.{namespace.name}.svc:7092"
    settings = Settings(
        bootstrap=bootstrap, topics=(topic,), partitions=3, transactions_in=namespace.name
    )
    load = LoadPod(namespace, settings, account=account)
    load.start()
    load.millrace("consume", topic, "--group", "billing", "--max", "10", "--timeout", "60")
    # Where it has stored no position, all records count as unread, and an alert may say so.
    load.millrace("group", "reset", "billing", "--to", "end", "--topic", topic, "--yes")
    return load


@contextmanager
def watching(watched: Cluster, cluster: Namespace) -> Iterator[dict[str, PrometheusPod]]:
    """Two that scrape the cluster, each in a namespace of its own; by the way in which they do."""
    image = watched.load_prometheus_image() if isinstance(watched, NativeCluster) else ""
    (rules,) = watched.kubectl.get("prometheusrules", f"--namespace={SYSTEM}")["items"]
    monitors = watched.kubectl.get("podmonitors", "--all-namespaces")["items"]

    def contents(kind: str, name: str, key: str) -> str:
        found: str = cluster.get(kind, name)["data"][key]
        return base64.b64decode(found).decode() if kind == "secret" else found

    jobs = [job for monitor in monitors for job in scrape_configs(monitor, contents)]
    with ExitStack() as endings:
        found = {}
        for way, configs in zip(WAYS, (None, jobs), strict=True):
            name = f"{cluster.name}-{way}"
            found[way] = PrometheusPod(watched.kubectl, name, image, rules["spec"], configs)
            endings.callback(found[way].stop)
            found[way].start()
        yield found


def pods(kubectl: Kubectl, component: str) -> list[str]:
    """Return the names of the pods of all brokers, or operators, in all namespaces."""
    selector = f"--selector=app.kubernetes.io/component={component}"
    items = kubectl.get("pods", "--all-namespaces", selector)["items"]
    return sorted(item["metadata"]["name"] for item in items)


def targets(asked: PrometheusPod) -> list[dict[str, Any]]:
    """Return what is scraped now, by name."""
    found: list[dict[str, Any]] = asked.ask("targets")["activeTargets"]
    return sorted(found, key=lambda target: str(target["labels"]["instance"]))


def up(asked: PrometheusPod) -> list[str]:
    """Return the names of the targets that answer; one that is scraped twice is there twice."""
    return [target["labels"]["instance"] for target in targets(asked) if target["health"] == "up"]


def alerts(asked: PrometheusPod) -> dict[str, str]:
    """Return the alerts that are pending or firing, with their states."""
    return {alert["labels"]["alertname"]: alert["state"] for alert in asked.ask("alerts")["alerts"]}


def empty_panels(asked: PrometheusPod, since: float) -> list[str]:
    """Return the queries that should have data and have none."""
    return [
        str(panel)
        for panel in without_data(asked, since)
        if panel.board != NO_SPARK and (panel.board, panel.panel) not in NOT_CAUSED_HERE
    ]


def scrapes_all(asked: PrometheusPod, expected: list[str]) -> None:
    """Wait until each of the pods is scraped once, and answers."""
    wait_until(
        lambda: up(asked) == expected and len(targets(asked)) == len(expected),
        f"each of {expected} is scraped once and answers",
        said=lambda: str(targets(asked)),
        seconds=_SECONDS,
    )


def shows_all(asked: PrometheusPod, cluster: Namespace, brokers: list[str], since: float) -> None:
    """Look at labels, at the dashboards' queries, and at the rules: no alert is even pending."""
    of_brokers = [
        target["labels"] for target in targets(asked) if target["labels"]["instance"] in brokers
    ]
    assert {
        (of_broker["namespace"], of_broker["millrace_cluster"]) for of_broker in of_brokers
    } == {(cluster.name, "logs")}
    assert asked.values("count(millrace_build_info)") == [len(brokers)]
    assert asked.values("sum(millrace_operator_acts)") == [1]
    # What an operator says of a Cluster has that Cluster's namespace.
    chosen = f'namespace="{cluster.name}",name="logs"'
    assert asked.values(f"millrace_operator_last_success_timestamp_seconds{{{chosen}}}")
    wait_until(
        lambda: not empty_panels(asked, since),
        "the queries of the dashboards return data",
        said=lambda: "\n".join(empty_panels(asked, since)),
        seconds=_SECONDS,
    )
    rules = [rule for group in asked.ask("rules")["groups"] for rule in group["rules"]]
    assert [rule for rule in rules if rule["health"] != "ok"] == []
    loaded = {rule["name"] for rule in rules if rule["type"] == "alerting"}
    assert loaded == {f"Millrace{alert.name}" for alert in ALERTS}
    wait_until(
        lambda: not asked.pending(),
        "no alert is even pending",
        said=lambda: str(alerts(asked)),
        seconds=_SECONDS,
    )
    assert "firing" not in alerts(asked).values()


def misses_one(asked: PrometheusPod, others: list[str]) -> None:
    """Wait until the others alone answer, and the alerts about that are pending."""
    wait_until(
        lambda: up(asked) == others and alerts(asked).keys() >= WAITING,
        f"{WAITING} are pending, and {others} answer",
        said=lambda: f"{alerts(asked)} {targets(asked)}",
        seconds=_SECONDS,
    )
    found = alerts(asked)
    assert {name: found[name] for name in WAITING} == dict.fromkeys(WAITING, "pending")
    assert "firing" not in found.values()


def has_calmed_down(asked: PrometheusPod, expected: list[str]) -> None:
    """Wait until all answer again and nothing is pending for it."""
    wait_until(
        lambda: up(asked) == expected and not WAITING & alerts(asked).keys(),
        f"{expected} answer, and {WAITING} are over",
        said=lambda: f"{alerts(asked)} {targets(asked)}",
        seconds=_SECONDS,
    )
    assert asked.fired() == set()


def test_prometheus_finds_every_broker_and_operator_once_and_tells_when_one_goes(
    watched: Cluster, cluster: Namespace
) -> None:
    began = time.time()
    brokers = pods(watched.kubectl, "broker")
    expected = sorted(brokers + pods(watched.kubectl, "operator"))
    with watching(watched, cluster) as prometheuses:
        for asked in prometheuses.values():
            scrapes_all(asked, expected)
            shows_all(asked, cluster, brokers, began)
        with broker_away(watched, cluster):
            for asked in prometheuses.values():
                misses_one(asked, [name for name in expected if name != BROKER])
        for asked in prometheuses.values():
            has_calmed_down(asked, expected)


def test_prometheus_shows_its_token_to_pages_that_ask_for_one(
    watched: Cluster, guarded: Namespace
) -> None:
    """Without a token neither a pod nor a Prometheus that follows annotations sees the pages."""
    began = time.time()
    brokers = pods(watched.kubectl, "broker")
    operators = pods(watched.kubectl, "operator")
    page = f"https://{BROKER}.logs-brokers.{guarded.name}.svc:7093/metrics"
    script = ("python", "-c", _PAGE_WITHOUT_TOKEN, page, "/etc/cluster-ca/ca.crt")
    assert guarded("exec", "load", "--", *script).strip() == "401"
    with pytest.raises(CommandError):  # In plain text it is not there.
        guarded("exec", "load", "--", *script[:-2], page.replace("https", "http"), script[-1])
    with watching(watched, guarded) as prometheuses:
        asked = prometheuses["pod-monitors"]
        scrapes_all(asked, sorted(brokers + operators))
        shows_all(asked, guarded, brokers, began)
        scrapes_all(prometheuses["annotations"], operators)
        with broker_away(watched, guarded):
            misses_one(asked, sorted({*brokers, *operators} - {BROKER}))
        has_calmed_down(asked, sorted(brokers + operators))


@contextmanager
def broker_away(watched: Cluster, cluster: Namespace) -> Iterator[None]:
    """Kill a broker's pod, which comes back after the block."""
    node = cluster.get("pod", BROKER)["spec"]["nodeName"]
    watched.kubectl("cordon", node)  # Its volume is there: it cannot start elsewhere.
    try:
        cluster("delete", "pod", BROKER, "--grace-period=0", "--force")
        yield
    finally:
        watched.kubectl("uncordon", node)
