"""Stops, kills and starts: what was acknowledged is there, once and in order."""

import random
import socket
import threading
import time
from collections import defaultdict
from itertools import islice

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.raw_client import RawClient, batch_of
from tests.integration.running_broker import wait_until

from millrace.client import RecordHandle, SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.ids import TopicPartition

PARTITIONS = 3
PRODUCERS = 4
STOPS_AT_ONCE: dict[str, object] = {"shutdown.grace_ms": 90_000}
"""`stop` waits for a third of it: one that waits for streams to end by themselves is too late."""


class Load:
    """Producers that send numbered records until they are told to stop.

    `sent` holds for each producer the handles of its records, which are `producer:number`.
    """

    def __init__(self, address: str, topic: str, records_per_second: int = 2000) -> None:
        self._pause = PRODUCERS * 20 / records_per_second
        self._topic = topic
        self._ended = threading.Event()
        self.sent: dict[int, list[RecordHandle]] = {number: [] for number in range(PRODUCERS)}
        self.producers = [
            SyncProducer(address, linger_ms=2, delivery_timeout_ms=60_000) for _ in range(PRODUCERS)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(number,)) for number in range(PRODUCERS)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        handles, producer = self.sent[number], self.producers[number]
        while not self._ended.wait(self._pause):
            for _ in range(20):
                count = len(handles)
                value = b"%d:%d" % (number, count)
                handles.append(producer.send(self._topic, value, partition=count % PARTITIONS))

    def acknowledged(self) -> int:
        """Return how many records are acknowledged already."""
        return sum(handle.done() for handles in self.sent.values() for handle in list(handles))

    def wait_for(self, more: int) -> None:
        """Return once `more` records are acknowledged than are now."""
        wanted = self.acknowledged() + more
        wait_until(lambda: self.acknowledged() >= wanted, f"{more} records are acknowledged")

    def end(self) -> int:
        """Stop sending, wait for all outcomes, and return how many records were acknowledged."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for producer in self.producers:
            producer.close()
        return self.acknowledged()


def assert_all_is_there_once(address: str, topic: str, load: Load) -> None:
    """Hold everything in the topic against what the producers were told."""
    expected = {}
    for number, handles in load.sent.items():
        for count, handle in enumerate(handles):
            expected[b"%d:%d" % (number, count)] = handle.result(0)
    with SyncAdmin(address) as admin, SyncConsumer(address) as consumer:
        ends = admin.list_offsets(topic, "end")
        total = sum(end.offset for end in ends.values())
        consumer.assign([topic], start="beginning")
        records = list(islice(consumer, total))
    assert total == len(expected)
    found = {record.value: record for record in records}
    assert len(found) == total, "a record is there twice"
    for value, metadata in expected.items():
        assert (found[value].partition, found[value].offset) == (
            metadata.partition,
            metadata.offset,
        )
    order = defaultdict(list)
    for record in records:
        producer, _, count = record.value.partition(b":")
        order[record.partition, producer].append(int(count))
    for counts in order.values():
        assert counts == sorted(counts)


@pytest.mark.parametrize(
    "durability", ["fsync", pytest.param("replicated", marks=pytest.mark.nightly)]
)
def test_what_was_acknowledged_survives_kill_9_once_and_in_order(
    start_broker: StartBroker, durability: str
) -> None:
    moments = random.Random(f"kill-{durability}")
    broker = start_broker({"storage.recovery_point_interval_ms": 300})
    broker.create_topic("load", PARTITIONS, config={"durability": durability})
    load = Load(broker.address, "load")
    for _ in range(3):
        load.wait_for(100)
        time.sleep(moments.uniform(0, 0.5))
        broker.kill()
        broker.start()
    assert load.end() > 300
    assert_all_is_there_once(broker.address, "load", load)
    assert broker.stop() == 0


def test_sigterm_under_load_loses_nothing_that_was_acknowledged(start_broker: StartBroker) -> None:
    broker = start_broker(STOPS_AT_ONCE)
    broker.create_topic("load", PARTITIONS)
    load = Load(broker.address, "load", records_per_second=10_000)
    for _ in range(2):
        load.wait_for(500)
        assert broker.stop() == 0
        assert (broker.log_dirs[0] / "clean-shutdown").exists()
        broker.start()
    load.end()
    assert_all_is_there_once(broker.address, "load", load)


def test_a_repeated_batch_whose_original_lies_in_the_recovered_tail_is_acknowledged(
    start_broker: StartBroker,
) -> None:
    # Nothing new is flushed then: a repetition that waited for a flush would wait for ever.
    broker = start_broker({"storage.recovery_point_interval_ms": 60_000})
    with RawClient(broker.address) as client:
        partitions = [
            TopicPartition(client.create_topic(name, durability=durability), 0)
            for name, durability in [("a", "fsync"), ("b", "replicated"), ("c", "replicated")]
        ]
        producer_id = client.new_producer_id()
        batches = [
            batch_of(partition, producer_id=producer_id, sequence=0) for partition in partitions
        ]
        for partition, batch in zip(partitions, batches, strict=True):
            assert client.produce_batch(partition, batch).base_offset == 0
    broker.kill()
    broker.start()
    with SyncAdmin(broker.address) as admin:
        admin.alter_topic("c", set_config={"durability": "fsync"})
    with RawClient(broker.address) as client:
        for partition, batch in zip(partitions, batches, strict=True):
            for acks in (1, -1):
                result = client.produce_batch(partition, batch, acks=acks)
                assert (result.base_offset, result.HasField("error")) == (0, False)
            assert client.end_offset(partition) == 1


def test_idle_clients_do_not_hold_up_a_stop(start_broker: StartBroker) -> None:
    broker = start_broker(STOPS_AT_ONCE)
    with (
        SyncAdmin(broker.address) as admin,
        SyncConsumer(broker.address) as consumer,
        SyncProducer(broker.address) as producer,
    ):
        admin.create_topic("idle")
        producer.send("idle", b"x").result(20)
        consumer.assign(["idle"], start="beginning")
        assert len(consumer.poll(20_000)) == 1
        assert broker.stop() == 0
        broker.start()
        assert producer.send("idle", b"y").result(20).offset == 1
        assert consumer.poll(20_000).values() == [b"y"]


def test_a_broker_comes_back_once_another_program_gives_its_port_back(
    start_broker: StartBroker,
) -> None:
    """Another test's client may have the port for a moment; a restart after a kill waits for it."""
    broker = start_broker()
    address, last = broker.address, broker.pid
    broker.kill()
    host, _, port = address.rpartition(":")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((host, int(port)))
        other.listen()
        starting = threading.Thread(target=broker.start)
        starting.start()
        wait_until(lambda: broker.log_has("Address already in use"), "it finds its port taken", 45)
    starting.join()
    assert broker.address == address
    assert broker.is_running
    assert broker.pid != last
