"""Readers of three brokers: leaders that move, brokers that come back elsewhere, zones."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import Record, SyncAdmin, SyncConsumer, SyncProducer

RACKS = ("a", "b", "c")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path, racks=RACKS) as running:
        yield running


def read(consumer: SyncConsumer, count: int, seconds: float = 30) -> list[Record]:
    found: list[Record] = []

    def has_all() -> bool:
        found.extend(consumer.poll(timeout_ms=100))
        return len(found) >= count

    wait_until(has_all, f"{count} records come", seconds)
    return found


def write(producer: SyncProducer, count: int, text: str) -> list[bytes]:
    values = [b"%s %d" % (text.encode(), number) for number in range(count)]
    handles = [producer.send("t", value) for value in values]
    for handle in handles:
        handle.result(30)
    return values


def test_a_leader_that_is_paused_is_not_waited_for_once_another_leads(
    cluster: RunningCluster,
) -> None:
    addresses = cluster.bootstrap.split(",")
    with SyncAdmin(cluster.bootstrap) as admin:
        leader = admin.create_topic("t", replication_factor=3).partitions[0].leader
    # It is the first that clients ask, too.
    bootstrap = ",".join([cluster[leader].address, *addresses])
    with SyncProducer(bootstrap) as producer:
        write(producer, 10, "before")
        with cluster[leader].paused():
            started = time.monotonic()
            write(producer, 10, "after")
            assert time.monotonic() - started < 25, "the request time-out is 30 s"
    with SyncConsumer(cluster.bootstrap) as consumer:
        consumer.subscribe(["t"])
        values = [record.value for record in read(consumer, 20)]
        assert len({*values}) == 20, "nothing twice"


def test_a_broker_that_comes_back_at_another_address_is_found(cluster: RunningCluster) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap) as producer,
        SyncConsumer(cluster.bootstrap) as consumer,
    ):
        leader = admin.create_topic("t", replication_factor=1).partitions[0].leader
        consumer.subscribe(["t"])
        assert len(read_after(producer, consumer, "before")) == 10
        before = cluster[leader].address
        assert cluster[leader].stop() == 0
        cluster[leader].address = ""  # Any port.
        cluster[leader].start()
        assert cluster[leader].address != before
        assert len(read_after(producer, consumer, "after")) == 10
        assert admin.list_offsets("t")["t", 0].offset == 20


def read_after(producer: SyncProducer, consumer: SyncConsumer, text: str) -> list[Record]:
    written = write(producer, 10, text)
    found = read(consumer, 10)
    assert [record.value for record in found] == written
    return found


def fetched_bytes(cluster: RunningCluster, broker_id: int) -> float:
    """Bytes that a broker has sent, to clients and to followers."""
    return cluster[broker_id].metrics().get('millrace_topic_fetched_bytes_total{topic="t"}', 0)


def test_a_reader_that_names_its_zone_reads_there_and_falls_back_to_the_leader(
    cluster: RunningCluster,
) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap) as producer,
    ):
        leader = admin.create_topic("t", replication_factor=3).partitions[0].leader
        near = next(number for number in range(3) if number != leader)
        with SyncConsumer(cluster.bootstrap, client_rack=RACKS[near]) as consumer:
            consumer.subscribe(["t"])
            read_after(producer, consumer, "first")
            wait_until(lambda: fetched_bytes(cluster, near) > 0, "the follower has sent them")
            read_after(producer, consumer, "second")
            cluster[near].kill()
            read_after(producer, consumer, "from the leader")
            assert consumer.lag() == {("t", 0): 0}


def test_a_follower_serves_transactions_when_it_knows_how_they_ended(
    cluster: RunningCluster,
) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, transactional_id="writer") as producer,
    ):
        leader = admin.create_topic("t", replication_factor=3).partitions[0].leader
        near = next(number for number in range(3) if number != leader)
        with SyncConsumer(cluster.bootstrap, client_rack=RACKS[near]) as consumer:
            consumer.subscribe(["t"])
            expected = []
            for number in range(6):
                with suppress(KeyError), producer.transaction() as transaction:
                    values = [b"%d of %d" % (part, number) for part in range(10)]
                    for value in values:
                        transaction.send("t", value)
                    if number % 2:
                        raise KeyError  # It is aborted.
                    expected += values
            assert [record.value for record in read(consumer, 30)] == expected
            wait_until(lambda: fetched_bytes(cluster, near) > 0, "the follower has sent them")
            with producer.transaction() as transaction:
                transaction.send("t", b"open").result(30)
                assert len(consumer.poll(timeout_ms=1000)) == 0
                assert consumer.lag() == {("t", 0): 0}
            assert [record.value for record in read(consumer, 1)] == [b"open"]
            end = admin.list_offsets("t")["t", 0].offset
            wait_until(lambda: consumer.position(("t", 0)) == end, "the marker is passed")


def test_a_reader_of_another_zone_reads_from_the_leader(cluster: RunningCluster) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap) as producer,
        SyncConsumer(cluster.bootstrap, client_rack="nowhere") as consumer,
    ):
        leader = admin.create_topic("t", replication_factor=3).partitions[0].leader
        consumer.subscribe(["t"])
        read_after(producer, consumer, "first")
        followers = [number for number in range(3) if number != leader]
        assert [fetched_bytes(cluster, follower) for follower in followers] == [0, 0]


def test_a_producer_without_acknowledgements_follows_a_leadership_that_is_handed_over(
    cluster: RunningCluster,
) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks=0) as producer,
        SyncConsumer(cluster.bootstrap) as consumer,
    ):
        leader = admin.create_topic("t", replication_factor=3).partitions[0].leader
        consumer.subscribe(["t"])
        read_after(producer, consumer, "before")
        admin.drain_broker(leader)
        found: list[bytes | None] = []

        def has_read(value: bytes) -> bool:
            found.extend(record.value for record in consumer.poll(timeout_ms=50))
            return value in found

        def arrives() -> bool:
            producer.send("t", b"after")
            return has_read(b"after")

        wait_until(arrives, "a record reaches the new leader")
        written = write(producer, 10, "all")
        wait_until(lambda: has_read(written[-1]), "what follows does")
        assert [value for value in found if value != b"after"] == written
