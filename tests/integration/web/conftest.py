"""A cluster of three brokers with topics to look at, and its web page, as a user starts it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.running_cluster import RunningCluster

from millrace.client import ApplicationVersion, SyncAdmin, SyncConsumer, SyncProducer

LARGE = 10_000_000
"""Bytes of the largest value."""
ORDERS = 120
PAYMENTS = "shop/payments"
"""A topic that is written in transactions."""
ODD: list[bytes | None] = [
    b"<script>document.title = 'broken'</script>",
    b"<img src=x onerror=\"document.title='broken'\">",
    b"\x1b]0;broken\x07\x1b[31mred\x1b[0m and words that steer no terminal",
    "user\u202egnp.exe".encode(),
    b"\xff\xfe\x00\x01",
    b"[" * 100_000,
    b"",
    None,
    b"x" * LARGE,
    "עברית and English".encode(),
]
"""The values of the topic `odd`, by offset."""
HIDDEN = ('["' + "\u202e\u202d" * 125_000 + '"]').encode()
"""Key and value of the record in the topic `hidden`: each character takes 34 in a page."""
MESSAGE_BYTES_MAX = 16 << 20


class WebPage:
    """`millrace web` as a process.

    Args:
        log: where its log goes; None: that of the tests.
    """

    def __init__(self, bootstrap: str, log: Path | None = None) -> None:
        self._log = log
        errors = None if log is None else log.open("wb")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "millrace.cli", "web", "--port", "0"),
                *("--bootstrap", bootstrap, "--output", "json"),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        if errors is not None:
            errors.close()
        assert self.process.stdout is not None
        self.address: str = json.loads(self.process.stdout.readline())["web_address"]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def log_text(self) -> str:
        return "" if self._log is None else self._log.read_text()

    def close(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster that all tests share; a test that breaks it mends it."""
    settings = {
        "storage.cleaner_backoff_ms": 500,
        "limits.message_bytes_max": MESSAGE_BYTES_MAX,
        "limits.connection_request_memory_bytes_max": 2 * MESSAGE_BYTES_MAX,
        "limits.batch_inflated_bytes_max": MESSAGE_BYTES_MAX,
    }
    with RunningCluster(tmp_path_factory.mktemp("cluster"), settings) as cluster:
        fill(cluster.bootstrap)
        yield cluster


@pytest.fixture(scope="session")
def page(cluster: RunningCluster) -> Iterator[WebPage]:
    page = WebPage(cluster.bootstrap)
    try:
        yield page
    finally:
        page.close()


def fill(bootstrap: str) -> None:
    """Make topics, records, a group, a quota and a transaction that is committed."""
    with SyncAdmin(bootstrap) as admin, SyncProducer(bootstrap) as producer:
        admin.create_topic("shop/orders", 3, 3)
        large = {"max.message.bytes": str(MESSAGE_BYTES_MAX - (1 << 16))}
        admin.create_topic(PAYMENTS, 1, 3)
        admin.create_topic("odd", 1, 3, large)
        admin.create_topic("hidden", 1, 3, large)
        admin.set_quota("reports", client_id="report", fetch_bytes_per_second=10_000_000)
        for number in range(ORDERS):
            producer.send(
                "shop/orders",
                json.dumps({"id": number, "items": [number]}).encode(),
                key=b"customer-%d" % (number % 7),
                timestamp=1_700_000_000_000 + number * 1000,
            )
        for value in ODD:
            producer.send(
                "odd", value, key=b"<b>key</b>", headers=[("<i>name</i>", b"\x00"), ("no", None)]
            )
        header = "\u202e" * 4_000
        headers: list[tuple[str, bytes | None]] = [(header, header.encode())] * 100
        producer.send("hidden", HIDDEN, key=HIDDEN, headers=headers)
        producer.flush()
    with SyncConsumer(bootstrap, group="billing") as consumer:
        consumer.subscribe(["shop/orders"])
        while not consumer.poll(1000):
            pass
        consumer.commit({("shop/orders", 0): 1})
    with (
        SyncProducer(bootstrap, transactional_id="shop/checkout") as producer,
        producer.transaction() as t,
    ):
        t.send(PAYMENTS, b"paid")
    with (
        SyncAdmin(bootstrap) as admin,
        SyncProducer(bootstrap, transactional_id="shop/etl@payments") as producer,
    ):
        version = ApplicationVersion(7, "billing query", "s3:checkpoints")
        shared = admin.open_shared_transaction("shop/etl@payments", "run 1", version)
        producer.join_transaction(shared)
        producer.send(PAYMENTS, b"paid")
        admin.commit_shared_transaction(shared, [producer.leave_transaction()])
