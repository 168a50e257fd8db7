"""An exactly-once copy by librdkafka goes on while brokers are killed, one after another."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.kafka.ends import KAFKA, bootstrap
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation

confluent = pytest.importorskip("confluent_kafka")

SETTINGS = {
    **KAFKA,
    "groups.classic_rebalance_delay_ms": 100,
    "cluster.positions_replication_factor": 3,
    "cluster.transactions_replication_factor": 3,
}
PARTITIONS = 3
PART = 1000
TIMEOUT = 60.0


class Copying:
    """Copies the topic `in` to `out`, in transactions, as librdkafka's documentation says."""

    def __init__(self, addresses: str) -> None:
        self._consumer = confluent.Consumer(
            {
                "bootstrap.servers": addresses,
                "group.id": "copy",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 30_000,
            }
        )
        self._consumer.subscribe(["in"])
        self._producer = confluent.Producer(
            {"bootstrap.servers": addresses, "transactional.id": "copy", "linger.ms": 2}
        )
        self.copied = 0
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for(self, copied: int) -> None:
        """Return once it has copied so many records."""
        wait_until(lambda: self._failure or self.copied >= copied, f"{copied} are copied", TIMEOUT)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(2 * TIMEOUT)
        assert not self._thread.is_alive(), "it hangs"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._persistently(lambda: self._producer.init_transactions(TIMEOUT))
            while not self._stopped.is_set():
                messages = [
                    message
                    for message in self._consumer.consume(200, timeout=0.2)
                    if message.error() is None
                ]
                if messages:
                    self._copy(messages)
            self._consumer.close()
        except BaseException as error:
            self._failure = error

    def _copy(self, messages: list[Any]) -> None:
        producer = self._producer
        producer.begin_transaction()
        try:
            for message in messages:
                producer.produce("out", message.value(), partition=message.partition())
            ends = {message.partition(): message.offset() + 1 for message in messages}
            positions = [confluent.TopicPartition("in", *end) for end in ends.items()]
            group = self._consumer.consumer_group_metadata()
            self._persistently(
                lambda: producer.send_offsets_to_transaction(positions, group, TIMEOUT)
            )
            self._persistently(lambda: producer.commit_transaction(TIMEOUT))
            self.copied += len(messages)
        except confluent.KafkaException as caught:
            if not caught.args[0].txn_requires_abort():
                raise
            self._persistently(lambda: producer.abort_transaction(TIMEOUT))
            firsts: dict[int, int] = {}
            for message in messages:
                firsts.setdefault(message.partition(), message.offset())
            for assigned in self._consumer.assignment():  # Others begin where the group is.
                if (offset := firsts.get(assigned.partition)) is not None:
                    self._consumer.seek(confluent.TopicPartition("in", assigned.partition, offset))

    @staticmethod
    def _persistently(step: Callable[[], object]) -> None:
        """Repeat a step while its error says that this may help."""
        for _ in range(10):
            try:
                step()
            except confluent.KafkaException as caught:
                if not caught.args[0].retriable():
                    raise
            else:
                return
        raise AssertionError("the errors stay")


@pytest.mark.timeout(300)  # It waits six times for what a broker's death delays.
def test_brokers_die_and_a_copy_by_librdkafka_has_each_record_once(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, SETTINGS) as cluster:
        for name in ("in", "out"):
            cluster.create_topic(name, PARTITIONS, 3, {"min.insync.replicas": "2"})
        copying = Copying(bootstrap(*cluster.brokers))
        with SyncProducer(cluster.bootstrap) as writer:
            written = 0

            def write() -> int:
                """Write some more; return how many there are by now."""
                nonlocal written
                for _ in range(PART):
                    writer.send("in", b"%d" % written, partition=written % PARTITIONS)
                    written += 1
                writer.flush()
                return written

            for victim in cluster.brokers:
                copying.wait_for(write())
                victim.kill()
                copying.wait_for(write())
                victim.start()
        copying.stop()
        assert read_committed(cluster) == {
            partition: list(range(partition, written, PARTITIONS))
            for partition in range(PARTITIONS)
        }


def read_committed(cluster: RunningCluster) -> dict[int, list[int]]:
    """Return the committed records of the copy, by partition."""
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    with SyncConsumer(cluster.bootstrap) as consumer, SyncAdmin(cluster.bootstrap) as admin:

        def ends_for(isolation: Isolation) -> dict[Any, int]:
            found = admin.list_offsets("out", isolation=isolation)
            return {place: end.offset for place, end in found.items()}

        # The last markers may come after the answer to the last commit.
        wait_until(
            lambda: ends_for(READ_COMMITTED) == ends_for(READ_UNCOMMITTED),
            "all is decided",
            TIMEOUT,
        )
        ends = ends_for(READ_COMMITTED)
        consumer.assign(["out"])
        for partition in range(PARTITIONS):
            consumer.seek(("out", partition), 0)
        while any(consumer.position(place) < end for place, end in ends.items()):
            for record in consumer.poll(500):
                found[record.partition].append(int(record.value))
    return found
