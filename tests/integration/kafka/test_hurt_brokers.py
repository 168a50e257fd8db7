"""Clients of Kafka that meet a broken cluster, or break themselves: nothing is lost or doubled."""

import os
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.producer import InitProducerIdRequest
from tests.fakes.kafka_batches import Record, batch_of
from tests.fakes.kafka_ends import request_frame
from tests.faults.machine import Need, missing
from tests.faults.preload import Control, compile_library
from tests.integration.kafka.by_hand import Hand, produce_request
from tests.integration.kafka.ends import KAFKA, bootstrap, read
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.client import SyncAdmin

confluent = pytest.importorskip("confluent_kafka")

TIMEOUT = 60.0
SETTINGS: dict[str, object] = {
    **KAFKA,
    "groups.classic_rebalance_delay_ms": 100,
    "cluster.positions_replication_factor": 3,
}


class Producer:
    """librdkafka's idempotent producer of numbers."""

    def __init__(self, addresses: str) -> None:
        self.acknowledged = 0
        self.failed: list[Any] = []
        self._sent = 0
        self._producer = confluent.Producer(
            {
                "bootstrap.servers": addresses,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 20,
                "reconnect.backoff.max.ms": 500,
            }
        )

    def send(self, topic: str, count: int) -> None:
        """Send some numbers to partition 0, and wait for nothing."""

        def told(error: Any, _: object) -> None:
            if error is None:
                self.acknowledged += 1
            else:
                self.failed.append(error)

        for number in range(self._sent, self._sent + count):
            self._producer.produce(topic, b"%d" % number, partition=0, on_delivery=told)
            self._producer.poll(0)
        self._sent += count

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def finish(self) -> int:
        """Wait until all are acknowledged; return how many there are."""
        assert self._producer.flush(TIMEOUT) == 0
        assert self.failed == []
        return self._sent


def consumer(addresses: str, group: str, **settings: object) -> Any:
    return confluent.Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 500,
            **settings,
        }
    )


def take(reader: Any, count: int) -> list[int]:
    """Return the next numbers that a consumer gets."""
    found: list[int] = []
    deadline = time.monotonic() + TIMEOUT
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        for message in reader.consume(count - len(found), 0.2):
            if message.error() is None:
                found.append(int(message.value()))
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path, SETTINGS) as running:
        running.create_topic("t", 1, 3, {"min.insync.replicas": "2"})
        yield running


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_clients_begin_beside_a_broker_that_is_away_and_go_on_without_the_one_they_began_with(
    cluster: RunningCluster,
) -> None:
    away, first, _ = cluster.brokers
    everywhere = bootstrap(*cluster.brokers)
    away.kill()
    producers = [Producer(everywhere), Producer(first.kafka_address)]
    readers = [consumer(everywhere, "all"), consumer(first.kafka_address, "one")]
    try:
        for reader in readers:
            reader.subscribe(["t"])
        producers[1].send("t", 100)
        count = producers[1].finish()
        for reader in readers:
            assert take(reader, count) == list(range(count))
        away.start()
        with SyncAdmin(cluster.bootstrap) as admin:
            wait_until(
                lambda: len(admin.describe_topic("t").partitions[0].isr) == 3,
                "all are in sync",
                TIMEOUT,
            )
        first.kill()
        producers[1].send("t", 100)
        assert producers[1].finish() == 200
        for reader in readers:
            assert take(reader, 100) == list(range(100, 200))
        producers[0].send("t", 10)
        producers[0].finish()
    finally:
        for reader in readers:
            reader.close()


def test_a_producer_waits_while_the_disk_is_full_and_nothing_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    if (reason := missing().get(Need.PRELOAD)) is not None:
        pytest.skip(reason)
    control = Control(tmp_path / "control", compile_library(tmp_path))
    broker = RunningBroker(tmp_path / "broker", dict(KAFKA), wrapper=["env", *control.environment])
    with broker:
        broker.create_topic("t", 1, 1)
        producer = Producer(broker.kafka_address)
        producer.send("t", 200)
        producer.finish()
        control["write_room"] = 700  # A write is cut in its middle, the others do not begin.
        producer.send("t", 300)

        def is_hit() -> bool:
            producer.poll(0.1)
            return control["writes_hit"] > 0

        wait_until(is_hit, "a write finds no room")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            producer.poll(0.1)
        assert producer.failed == []
        assert producer.acknowledged < 500
        control.heal()
        assert producer.finish() == 500
        assert broker.is_running
        assert [int(record.value) for record in read(broker, "t", 500)] == list(range(500))
        with SyncAdmin(broker.address) as admin:
            assert admin.list_offsets("t")["t", 0].offset == 500


def reset(hand: Hand) -> None:
    """End a connection at once: what was not sent is not sent, and the other end gets an error."""
    hand.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    hand.close()


def test_connections_that_break_within_a_request_write_nothing_and_before_its_answer_harm_nobody(
    tmp_path: Path,
) -> None:
    with RunningBroker(tmp_path / "broker", dict(KAFKA)) as broker:
        broker.create_topic("t", 1, 1)
        frame = request_frame(ApiKey.PRODUCE, 9, produce_request("t", batch_of([Record(b"half")])))
        for cut in (1, 3, 4, 20, len(frame) // 2, len(frame) - 1):
            hand = Hand(broker)
            hand.socket.sendall(frame[:cut])
            reset(hand)
        with SyncAdmin(broker.address) as admin:
            for number in range(1, 21):
                hand = Hand(broker)
                hand.send(ApiKey.PRODUCE, 9, produce_request("t", batch_of([Record(b"whole")])))

                def is_written(number: int = number) -> bool:
                    return admin.list_offsets("t")["t", 0].offset == number

                if number % 2:
                    wait_until(is_written, "it is written")
                    reset(hand)  # Its answer lies in the socket.
                else:
                    hand.socket.shutdown(socket.SHUT_RD)  # Who answers meets a closed pipe.
                    wait_until(is_written, "it is written")
                    hand.close()
        assert {record.value for record in read(broker, "t", 20)} == {b"whole"}
        producer = Producer(broker.kafka_address)
        producer.send("t", 10)
        producer.finish()
        assert not broker.log_has("Traceback")


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
@pytest.mark.parametrize("within", ["on_revoke", "on_assign"])
def test_a_consumer_that_is_killed_within_a_rebalance_leaves_all_to_the_others(
    cluster: RunningCluster, within: str
) -> None:
    """It dies before it joins anew, or before it has said that it got something."""
    addresses = bootstrap(*cluster.brokers)
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("shared", 4, 3)
    program = f"""
        import os, signal
        import confluent_kafka

        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)

        assigned = 0
        def on_assign(*_):
            global assigned
            assigned += 1
            print("assigned", flush=True)
            if {within!r} == "on_assign" and assigned == 2:
                die()

        def on_revoke(*_):
            if {within!r} == "on_revoke":
                die()

        consumer = confluent_kafka.Consumer({{
            "bootstrap.servers": {addresses!r}, "group.id": "dying",
            "session.timeout.ms": 6000, "heartbeat.interval.ms": 300,
            "max.poll.interval.ms": 10000, "auto.offset.reset": "earliest",
        }})
        consumer.subscribe(["shared"], on_assign=on_assign, on_revoke=on_revoke)
        while True:
            consumer.poll(0.1)
    """
    dying = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    reader = consumer(
        addresses, "dying", **{"max.poll.interval.ms": 10_000, "session.timeout.ms": 6000}
    )
    try:
        assert dying.stdout is not None
        assert dying.stdout.readline() == "assigned\n"
        reader.subscribe(["shared"])
        wait_until(lambda: reader.poll(0.1) is None and dying.poll() is not None, "it dies", 60)
        assert dying.returncode == -signal.SIGKILL
        wait_until(lambda: reader.poll(0.1) is None and len(reader.assignment()) == 4, "all", 60)
    finally:
        reader.close()
        if dying.poll() is None:
            os.kill(dying.pid, signal.SIGKILL)
        dying.communicate(timeout=20)


@pytest.mark.nightly
def test_a_new_leader_takes_no_batch_before_those_that_a_paused_one_has(
    cluster: RunningCluster,
) -> None:
    """The Java producer sends its next batch to the leader that it hears of, and repeats the first
    ones once the old leader has answered: in their order (K1)."""

    def leader() -> RunningBroker:
        with SyncAdmin(bootstrap_of_clients) as admin:
            return cluster[admin.describe_topic("t").partitions[0].leader]

    bootstrap_of_clients = cluster.bootstrap
    old = leader()
    bootstrap_of_clients = ",".join(each.address for each in cluster.brokers if each is not old)
    with Hand(old) as before:
        asked = InitProducerIdRequest(transactional_id=None)
        producer_id = before.ask(ApiKey.INIT_PRODUCER_ID, 1, asked).producer_id
        requests = [
            produce_request(
                "t",
                batch_of(
                    [Record(b"%d" % number)],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=number,
                ),
            )
            for number in range(3)
        ]
        with old.paused():
            for request in requests[:2]:
                before.send(ApiKey.PRODUCE, 9, request)
            leaders: list[RunningBroker] = []

            def another_leads() -> bool:
                leaders.append(leader())  # The next broker that is asked may know less.
                return leaders[-1] is not old

            wait_until(another_leads, "another broker leads", TIMEOUT)
            after = Hand(leaders[-1])
            assert (
                result(after.ask(ApiKey.PRODUCE, 9, requests[2])).error_code
                == Code.NOT_ENOUGH_REPLICAS
            )
        for _ in requests[:2]:
            assert result(before.answer(ApiKey.PRODUCE, 9)).error_code
    with after:
        told = [result(after.ask(ApiKey.PRODUCE, 9, request)) for request in requests]
    assert [(each.error_code, each.base_offset) for each in told] == [(0, 0), (0, 1), (0, 2)]


def result(answer: Any) -> Any:
    """Return what a request was told of its only batch."""
    (topic,) = answer.responses
    (found,) = topic.partition_responses
    return found
