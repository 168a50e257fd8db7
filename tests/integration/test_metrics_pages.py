"""Prometheus's own checker has nothing to say about the pages of brokers and programs."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.integration.running_broker import RunningBroker, wait_until
from tests.watching import prometheus
from tests.watching.pages import operator_page, spark_page

from millrace.client import Position, SyncAdmin, SyncConsumer, SyncProducer
from millrace.client.metrics import ClientCollector

pytestmark = pytest.mark.skipif(not prometheus.is_there(), reason=prometheus.WHY_NOT)


def page_of(address: str) -> bytes:
    with urlopen(f"http://{address}/metrics", timeout=10) as page:
        found: bytes = page.read()
    return found


def said_of(page: bytes) -> str:
    """Return what promtool says of a page."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    return (done.stdout + done.stderr).decode()


@pytest.fixture(scope="module")
def pages(shared_broker: RunningBroker) -> Iterator[dict[str, bytes]]:
    """Pages on which every family that has series without a fault has some."""
    with SyncAdmin(shared_broker.address) as admin, ExitStack() as endings:
        admin.create_topic("metrics-pages")
        with SyncProducer(shared_broker.address) as producer:
            producer.send("metrics-pages", b"value").result(10)
            with SyncConsumer(shared_broker.address) as consumer:
                consumer.assign(["metrics-pages"], start="beginning")
                assert consumer.poll(10_000)
                registry = CollectorRegistry()
                registry.register(ClientCollector(producer, consumer, admin))
                client = generate_latest(registry)
        admin.commit_positions("a-group", {("metrics-pages", 0): Position(0)})
        operator, spark = (endings.enter_context(page()) for page in (operator_page, spark_page))
        wait_until(
            lambda: b"millrace_group_lag_records{" in page_of(shared_broker.metrics_address),
            "the lag is measured",
        )
        addresses = {
            "broker": shared_broker.metrics_address,
            "operator": operator,
            "spark": spark,
        }
        yield {"client": client, **{name: page_of(address) for name, address in addresses.items()}}


@pytest.mark.parametrize("name", ["broker", "client", "operator", "spark"])
def test_promtool_has_nothing_to_say_of_a_page(pages: dict[str, bytes], name: str) -> None:
    assert pages[name].count(b"# HELP") > 10
    assert said_of(pages[name]) == ""


def test_a_broker_that_serves_is_ready(shared_broker: RunningBroker) -> None:
    with urlopen(f"http://{shared_broker.metrics_address}/ready", timeout=10) as page:
        assert page.read() == b"ready\n"


def test_promtool_would_say_something() -> None:
    page = b"# HELP a_total A counter.\n# TYPE a_total gauge\na_total 1\n"
    assert "non-counter metrics should not have" in said_of(page)
