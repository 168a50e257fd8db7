"""A group copies a topic exactly once, while brokers and members die."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster, write_numbers

from millrace.client import (
    Consumer,
    FetchedRecords,
    OutputRecords,
    Producer,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)

RECORDS = 6_000
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def source(cluster: RunningCluster, request: pytest.FixtureRequest) -> str:
    """A topic of this test; that of its copies is made beside it."""
    name: str = request.node.name[:60]
    with SyncAdmin(cluster.bootstrap) as admin:
        for topic in (name, copies_of(name)):
            admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    return name


def copies_of(source: str) -> str:
    return f"{source}.copies"


def copy(read: FetchedRecords) -> Iterator[OutputRecords]:
    table = pa.table({"key": read.records["value"], "value": read.records["value"]})
    yield OutputRecords(copies_of(read.topic), table)


async def _copy(bootstrap: str, source: str, name: str) -> None:
    async with (
        Consumer(
            bootstrap,
            group=source,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=10_000,
        ) as consumer,
        Producer(
            bootstrap,
            transactional_id=f"{source}-{name}",
            transaction_timeout_ms=5_000,
            request_timeout_ms=5_000,
        ) as producer,
    ):
        await consumer.subscribe([source])
        await consumer.process_exactly_once(copy, producer, interval_ms=50)


class Member:
    """A process that copies; killed, it leaves its transaction to the coordinator."""

    def __init__(self, cluster: RunningCluster, source: str, name: str) -> None:
        words = [sys.executable, "-m", __name__, cluster.bootstrap, source, name]
        self.process = subprocess.Popen(words, cwd=Path(__file__).parents[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def copied(bootstrap: str, source: str, count: int, limit_s: float) -> list[int]:
    """Return the copies that are committed, in the order read, once there are so many."""
    found: list[int] = []
    with SyncConsumer(bootstrap) as consumer:
        consumer.assign([copies_of(source)], start="beginning")
        until = time.monotonic() + limit_s
        while len(found) < count:
            assert time.monotonic() < until, f"only {len(found)} records were copied"
            found += [int(value) for value in consumer.poll(200).values()]
        time.sleep(1)  # What would come on top.
        found += [int(value) for value in consumer.poll(500).values()]
    return found


@pytest.mark.timeout(240)  # More than its waits together.
def test_each_record_is_copied_once_whoever_dies(cluster: RunningCluster, source: str) -> None:
    members = {name: Member(cluster, source, name) for name in ("copy-1", "copy-2")}
    writing = threading.Thread(
        target=write_numbers, args=(cluster.bootstrap, source, range(RECORDS))
    )
    writing.start()
    try:
        for number, broker in enumerate(cluster.brokers):
            time.sleep(1)
            broker.kill()
            name = f"copy-{number % 2 + 1}"
            members[name].kill()
            time.sleep(1)
            broker.start()
            members[name] = Member(cluster, source, name)
        writing.join()
        assert sorted(copied(cluster.bootstrap, source, RECORDS, 90)) == list(range(RECORDS))
    finally:
        for member in members.values():
            member.kill()


def test_a_member_gives_partitions_up_between_transactions_and_nothing_is_doubled(
    cluster: RunningCluster, source: str
) -> None:
    members = [Member(cluster, source, "copy-1")]
    try:
        for number in range(1, 5):
            first = (number - 1) * 500
            write_numbers(cluster.bootstrap, source, range(first, first + 500))
            if number < 4:  # Each one takes partitions of the others.
                members.append(Member(cluster, source, f"copy-{number + 1}"))
        assert sorted(copied(cluster.bootstrap, source, 2_000, 60)) == list(range(2_000))
    finally:
        for member in members:
            member.kill()


def test_an_abort_puts_a_real_group_back(cluster: RunningCluster, source: str) -> None:
    write_numbers(cluster.bootstrap, source, range(100))
    settings: Any = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}

    def fail(consumer: SyncConsumer, producer: SyncProducer) -> None:
        with producer.transaction(consumer) as t:
            read = 0
            while read < 60:
                read += len(consumer.poll(500))
            t.send(copies_of(source), b"0").result()
            t.commit_positions(consumer)
            raise KeyError("a bug")

    with (
        SyncConsumer(cluster.bootstrap, group="g", **settings) as consumer,
        SyncProducer(cluster.bootstrap, transactional_id="x") as producer,
    ):
        consumer.subscribe([source])
        with pytest.raises(KeyError):
            fail(consumer, producer)
        found: list[int] = []
        with producer.transaction(consumer) as t:
            while len(found) < 100:
                found += [int(value) for value in consumer.poll(500).values()]
            t.send_batch(copies_of(source), [b"%d" % number for number in found])
            t.commit_positions(consumer)
        assert sorted(found) == list(range(100))
    with SyncAdmin(cluster.bootstrap) as admin:
        # The coordinator of the group hears a little later that the end is decided.
        wait_until(
            lambda: sum(position.offset for position in admin.fetch_positions("g").values()) == 100,
            "the positions are committed",
        )
    assert sorted(copied(cluster.bootstrap, source, 100, 30)) == list(range(100))


if __name__ == "__main__":
    asyncio.run(_copy(*sys.argv[1:]))
