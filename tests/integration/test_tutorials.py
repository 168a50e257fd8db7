"""The programs of docs/tutorials do what is said of them, and end in order."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import START_SECONDS_MAX, RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
TOPIC = "measurements"
STOP_SECONDS_MAX = 30
PROGRAMS = {"transactions": 2}
"""How many programs a tutorial has, if it has several."""


@pytest.fixture
def broker(start_broker: StartBroker) -> RunningBroker:
    """A broker that has the topic."""
    broker = start_broker()
    broker.create_topic(TOPIC, partitions=3)
    return broker


class Program:
    """A tutorial's program while it runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", out: Path, errors: Path) -> None:
        self._process = process
        self._out, self._errors = out, errors

    def lines(self, count: int) -> list[str]:
        """Return what it has printed, once there are `count` lines."""

        def are_printed() -> bool:
            assert not self._process.poll(), self._errors.read_text()
            return self._out.read_text().count("\n") >= count

        wait_until(are_printed, f"{count} lines are printed", START_SECONDS_MAX)
        return self._out.read_text().splitlines()

    def has_printed(self) -> bool:
        """Whether it has printed anything."""
        assert not self._process.poll(), self._errors.read_text()
        return bool(self._out.read_text())

    def kill(self) -> None:
        """End it in the middle of anything."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> str:
        """Stop it as Kubernetes does; return what it said to standard error."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(STOP_SECONDS_MAX) == 0, self._errors.read_text()
        return self._errors.read_text()


@contextmanager
def running(
    tutorial: str,
    folder: Path,
    address: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    *,
    number: int = 0,
) -> Iterator[Program]:
    """Run a program of a tutorial, as it stands there: the only one, or the one of that number."""
    folder.mkdir(exist_ok=True)
    text = (TUTORIALS / f"{tutorial}.md").read_text()
    sources = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(sources) == PROGRAMS.get(tutorial, 1)
    source = sources[number]
    path, out, errors = (folder / f"{tutorial}.{kind}" for kind in ("py", "out", "err"))
    path.write_text(source)
    with out.open("wb") as to, errors.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, str(path)],
            stdout=to,
            stderr=said,
            env={**os.environ, "MILLRACE_BOOTSTRAP": address, **environment},
        )
    try:
        yield Program(process, out, errors)
    finally:
        process.kill()
        process.wait()


def end_of(admin: SyncAdmin) -> int:
    return sum(found.offset for found in admin.list_offsets(TOPIC).values())


def test_the_producer_has_written_all_that_it_took_when_it_is_stopped(
    broker: RunningBroker, tmp_path: Path
) -> None:
    with SyncAdmin(broker.address) as admin, running("producer", tmp_path, broker.address) as it:
        wait_until(lambda: end_of(admin) > 3, "some are written", START_SECONDS_MAX)
        said = it.stop()
        assert said == f"{end_of(admin)} records written\n"


def test_the_consumer_goes_on_where_it_was_stopped(broker: RunningBroker, tmp_path: Path) -> None:
    def send(first: int, count: int) -> None:
        with SyncProducer(broker.address, partitioner="round_robin") as producer:
            for number in range(first, first + count):
                producer.send(TOPIC, b"%d" % number)

    seen: list[str] = []
    for first, count in ((0, 50), (50, 20)):
        send(first, count)
        with running("consumer", tmp_path, broker.address) as it:
            it.lines(count)
            it.stop()
            seen += it.lines(count)
    assert sorted(int(line.split()[2]) for line in seen) == list(range(70))


def test_records_that_cannot_be_processed_end_elsewhere_although_the_program_is_killed(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    sessions = {"groups.session_timeout_ms": 1_500, "groups.heartbeat_interval_ms": 500}
    broker = start_broker(sessions)
    values = [b"bad %d" % number if number % 7 == 3 else b"%d" % number for number in range(140)]
    printed: set[int] = set()
    dead: set[bytes] = set()
    with SyncAdmin(broker.address) as admin, SyncProducer(broker.address) as producer:
        admin.create_topic(TOPIC, partitions=3)
        admin.create_topic(f"{TOPIC}.dead")
        for round_ in range(4):
            for value in values[35 * round_ : 35 * (round_ + 1)]:
                producer.send(TOPIC, value, partition=round_ % 3)
            producer.flush()
            folder = tmp_path / f"{round_}"
            with running("dead-letters", folder, broker.address) as it:
                it.lines(10)
                if round_ < 3:
                    it.kill()
                else:
                    wait_until(lambda: not backlog(admin), "all are committed", START_SECONDS_MAX)
                    it.stop()
            lines = (folder / "dead-letters.out").read_text().splitlines()
            printed.update(int(float(line.split()[2])) for line in lines)
        with SyncConsumer(broker.address) as consumer:
            consumer.assign([f"{TOPIC}.dead"])
            while consumer.lag()[f"{TOPIC}.dead", 0]:
                dead.update(consumer.poll().values())
    assert printed == {int(value) for value in values if value.isdigit()}
    assert dead == {value for value in values if not value.isdigit()}


def backlog(admin: SyncAdmin) -> int:
    """Return how many records the group of that tutorial has not committed."""
    positions = admin.fetch_positions("numbers-printer")
    return end_of(admin) - sum(position.offset for position in positions.values())


def test_the_dict_of_a_compacted_topic_has_the_last_values_and_is_kept_current(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker({"storage.cleaner_backoff_ms": 50})
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0",
    }
    topic, machines, states = "machines", 20, 6
    written: list[tuple[str, str | None]] = [
        (f"machine-{machine}", f"state {state}")
        for state in range(states)
        for machine in range(state, machines)
    ]
    written += [("machine-7", None), ("machine-11", None)]
    changes: list[tuple[str, str | None]] = [
        ("machine-7", "back"), ("machine-8", None), ("machine-9", "other"), ("machine-20", "new"),
    ]  # fmt: skip

    def send(cells: Iterable[tuple[str, str | None]]) -> None:
        with SyncProducer(broker.address) as producer:
            for key, value in cells:
                producer.send(topic, None if value is None else value.encode(), key=key.encode())

    def table(*cells: tuple[str, str | None]) -> dict[str, str]:
        return {key: value for key, value in dict(cells).items() if value is not None}

    broker.create_topic(topic, partitions=2, config=config)
    send(written)
    removed = "millrace_cleaner_removed_records_total"
    wait_until(
        lambda: broker.metrics()[removed] >= len(written) - machines,
        "only the last record of each machine is left",
    )
    with running("latest", tmp_path, broker.address) as it:
        assert json.loads(it.lines(1)[0]) == table(*written)
        send(changes)
        wait_until(
            lambda: json.loads(it.lines(1)[-1]) == table(*written, *changes),
            "the dict has the changes",
        )
        assert it.stop() == ""


def test_members_that_are_killed_count_each_record_once(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker({"groups.session_timeout_ms": 1_500, "groups.heartbeat_interval_ms": 500})
    database = tmp_path / "totals.db"
    broker.create_topic(TOPIC, partitions=3)

    def count() -> int:
        with closing(sqlite3.connect(database, timeout=30)) as opened:
            return opened.execute("SELECT coalesce(sum(count), 0) FROM totals").fetchone()[0] or 0

    environment = {"TOTALS_DATABASE": str(database)}
    with (
        SyncProducer(broker.address, partitioner="round_robin", linger_ms=0) as producer,
        running("exactly-once", tmp_path / "survivor", broker.address, environment) as survivor,
    ):
        sent = 0
        for number in range(4):
            folder = tmp_path / str(number)
            with running("exactly-once", folder, broker.address, environment) as victim:
                victim_has_read = False
                deadline = time.monotonic() + START_SECONDS_MAX
                while not victim_has_read:  # It is killed while records come.
                    assert time.monotonic() < deadline, "the victim reads nothing"
                    for _ in range(10):
                        producer.send(TOPIC, b"%d" % sent)
                        sent += 1
                    producer.flush()
                    time.sleep(0.02)  # Some hundred records a second, however long it takes.
                    victim_has_read = victim.has_printed()
                victim.kill()
        wait_until(lambda: count() >= sent, f"{sent} records are counted", START_SECONDS_MAX)
        survivor.stop()
        assert count() == sent


SHOP, INVOICES = 0, 1


def committed(bootstrap: str, topic: str, column: str) -> list[str]:
    """Return the keys or the values of all committed records of a topic, sorted."""
    found: list[str] = []
    with SyncConsumer(bootstrap) as consumer:
        consumer.assign([topic], start="beginning")
        while any(consumer.lag().values()):
            for batch in consumer.poll_batches(1000):
                found += [text.decode() for text in batch.records[column].to_pylist()]
    return sorted(found)


def is_over(bootstrap: str, transactional_id: str) -> bool:
    """Whether readers see all that the id has committed."""
    with SyncAdmin(bootstrap) as admin:
        described = admin.describe_transaction(transactional_id)
    return described is not None and described.state in ("complete_commit", "complete_abort")


@pytest.mark.timeout(300)  # It waits for programs and brokers to start, one after the other.
def test_orders_have_a_payment_and_one_invoice_whichever_program_or_broker_is_killed(
    tmp_path: Path,
) -> None:
    settings = {
        "cluster.transactions_partitions": 1,
        "groups.session_timeout_ms": 1_500,
        "groups.heartbeat_interval_ms": 500,
    }
    with RunningCluster(tmp_path / "cluster", settings) as cluster, ExitStack() as programs:
        for topic in ("orders", "payments", "invoices"):
            cluster.create_topic(topic, partitions=3, replication_factor=3)
        started = 0
        printed: set[str] = set()

        def start(number: int, name: str) -> Program:
            nonlocal started
            started += 1
            environment = {"SHOP_ID": name, "INVOICES_ID": name}
            folder = tmp_path / f"{started}"
            running_ = running(
                "transactions", folder, cluster.bootstrap, environment, number=number
            )
            return programs.enter_context(running_)

        shop, first, second = (
            start(SHOP, "shop-0"), start(INVOICES, "invoices-0"), start(INVOICES, "invoices-1"),
        )  # fmt: skip
        for broker in cluster.brokers:
            printed.update(shop.lines(10))
            broker.kill()
            first.kill()
            first = start(INVOICES, "invoices-0")
            time.sleep(1)
            broker.start()
            printed.update(shop.lines(len(shop.lines(1)) + 10))
            shop.kill()
            shop = start(SHOP, "shop-0")
        printed.update(shop.lines(10))
        assert shop.stop() == ""
        printed.update(shop.lines(10))
        wait_until(lambda: is_over(cluster.bootstrap, "shop-0"), "the last sale is over everywhere")
        orders = committed(cluster.bootstrap, "orders", "key")
        assert printed <= set(orders)
        assert committed(cluster.bootstrap, "payments", "key") == orders
        wait_until(
            lambda: len(committed(cluster.bootstrap, "invoices", "key")) >= len(orders),
            "each order has an invoice",
            START_SECONDS_MAX,
        )
        first.stop()
        second.stop()
        assert committed(cluster.bootstrap, "invoices", "key") == orders
        assert len(set(orders)) == len(orders)


def test_many_processes_write_each_batch_once_however_often_they_are_killed(
    broker: RunningBroker, tmp_path: Path
) -> None:
    broker.create_topic("numbers", partitions=3)
    printed = 0
    for round_ in range(4):
        with running("shared-transactions", tmp_path / f"{round_}", broker.address) as it:
            it.lines(3 + round_)
            if round_ < 3:
                it.kill()
            else:
                it.stop()
                printed = int(it.lines(1)[-1])
    wait_until(lambda: is_over(broker.address, "counting@numbers"), "readers see all of it")
    numbers = sorted(map(int, committed(broker.address, "numbers", "value")))
    assert numbers == list(range(1000 * (printed + 1)))
