"""The synchronous clients: one implementation, any thread."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from tests.fakes.broker import FakeBroker
from tests.integration.client.conftest import Run
from tests.integration.running_broker import wait_until

from millrace.client import (
    BufferExhaustedError,
    ClosedError,
    ConcurrentUseError,
    InvalidConfigError,
    InvalidRecordError,
    RecordHandle,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)


def with_broker(run: Run, story: Callable[[FakeBroker], None]) -> None:
    """Run `story` in a thread while the broker serves on the test's loop."""

    async def serve() -> None:
        async with FakeBroker(orders=2) as broker:
            await asyncio.to_thread(story, broker)

    run(serve())


def test_what_is_sent_is_read(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        with SyncProducer(broker.address) as producer, SyncConsumer(broker.address) as consumer:
            metadata = producer.send("orders", b"v", b"k").result(timeout=10)
            assert metadata.offset == 0
            assert producer.partitions_for("orders") == [0, 1]
            assert producer.send_batch("orders", [b"w"] * 10).result(10).record_count == 10
            consumer.subscribe(["orders"])
            values: list[bytes] = []
            for record in consumer:
                values.append(record.value)
                if len(values) == 11:
                    break
            assert sorted(values) == [b"v"] + [b"w"] * 10
            assert set(consumer.lag().values()) == {0}

    with_broker(run, story)


def test_what_a_loop_leaves_is_the_next_to_be_handed_out(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        place = ("orders", 1)
        with SyncProducer(broker.address) as producer, SyncConsumer(broker.address) as consumer:
            producer.send_batch("orders", [b"v"] * 3_000, partition=1).result(10)
            consumer.subscribe(["orders"])
            seen: list[int] = []
            for _ in range(3):
                for record in consumer:
                    seen.append(record.offset)
                    if len(seen) % 700 == 2:
                        break
            assert seen == list(range(1402))
            assert consumer.position(place) == 1402
            assert consumer.poll(10_000, max_records=1)[0].offset == 1402
            for record in consumer:
                seen.append(record.offset)
                if record.offset == 1403:
                    consumer.seek(place, 2_998)
                if record.offset == 2_999:
                    break
            assert seen[-3:] == [1403, 2998, 2999]

    with_broker(run, story)


def test_many_threads_share_a_producer(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        sent: list[tuple[RecordHandle, bytes]] = []
        with SyncProducer(broker.address, batch_size=2000) as producer:

            def work(name: int) -> None:
                for number in range(3000):
                    value = b"%d-%05d" % (name, number)
                    sent.append((producer.send("orders", value, b"%d" % name), value))

            threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            producer.flush()
        contents = [log.values() for log in broker.topics["orders"].logs]
        values = [value for log in contents for value in log if value is not None]
        assert len(values) == len(set(values)) == 12_000
        for name in range(4):
            mine = [value for value in values if value.startswith(b"%d-" % name)]
            assert mine == sorted(mine)
        for handle, value in sent[::50]:
            place = handle.result(10)
            assert contents[place.partition][place.offset] == value

    with_broker(run, story)


def _send_until_it_raises(producer: SyncProducer) -> None:
    for _ in range(1000):
        producer.send("orders", bytes(100))


async def test_a_full_buffer_blocks_and_then_raises() -> None:
    def story(broker: FakeBroker, open_gate: Callable[[], object]) -> None:
        with SyncProducer(broker.address, buffer_memory=4096, max_block_ms=1000) as producer:
            producer.send("orders", b"warm").result(10)
            broker.gate.clear()
            started = time.monotonic()
            with pytest.raises(BufferExhaustedError, match="max_block_ms=1000"):
                _send_until_it_raises(producer)
            assert time.monotonic() - started >= 1
            open_gate()
            for _ in range(200):  # It waits for room, and gets it.
                producer.send("orders", bytes(100))
            producer.flush()

    loop = asyncio.get_running_loop()
    async with FakeBroker(orders=2) as broker:
        open_gate = partial(loop.call_soon_threadsafe, broker.gate.set)
        await asyncio.to_thread(story, broker, open_gate)


def test_an_exit_in_a_callback_or_a_partitioner_ends_no_client(run: Run) -> None:
    def leave(*_: object) -> int:
        sys.exit("it ends")

    def story(broker: FakeBroker) -> None:
        with SyncProducer(broker.address, linger_ms=500) as producer:
            handles = [producer.send("orders", b"v", partition=number) for number in (0, 1)]
            for handle in handles:
                handle.add_done_callback(leave)
            assert [handle.result(10).offset for handle in handles] == [0, 0]
            producer.flush()
        with SyncProducer(broker.address, partitioner=leave) as producer:
            with pytest.raises(InvalidRecordError, match="partitioner raised SystemExit"):
                producer.send("orders", b"v").result(10)
            assert producer.send("orders", b"v", partition=1).result(10).offset == 1
        with SyncAdmin(broker.address) as admin:
            assert admin.list_topics() == ["orders"]

    with_broker(run, story)


def test_a_batch_larger_than_the_buffer_passes_through_it(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        with SyncProducer(broker.address, buffer_memory=20_000, batch_size=5_000) as producer:
            values = [b"%0100d" % number for number in range(2000)]
            handle = producer.send_batch("orders", values)
            assert handle.result(20).record_count == 2000
            found = [v for log in broker.topics["orders"].logs for v in log.values()]
            assert sorted(v for v in found if v is not None) == values

    with_broker(run, story)


def test_a_poll_that_waits_needs_nothing_of_the_clients_thread(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        with SyncConsumer(broker.address) as consumer:
            consumer.assign([("orders", 0)])
            assert not consumer.poll(0)
            begins, ends = threading.Event(), threading.Event()
            over: list[bool] = []

            def block() -> None:
                begins.set()
                over.append(ends.wait(10))

            loop = consumer._thread.loop
            loop.call_soon_threadsafe(block)
            assert begins.wait(60)
            try:
                assert not consumer.poll(50)
                assert not over
            finally:
                ends.set()

    with_broker(run, story)


def test_records_wake_a_poll_that_waits(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        with SyncProducer(broker.address) as producer, SyncConsumer(broker.address) as consumer:
            consumer.assign([("orders", 0)], start="beginning")
            for number in range(3):
                assert not consumer.poll(20)
                timer = threading.Timer(
                    0.05, partial(producer.send, "orders", b"%d" % number, partition=0)
                )
                timer.start()
                (record,) = consumer.poll(60_000)
                timer.join()
                assert record.value == b"%d" % number
            assert not consumer._core.fetching._threads

    with_broker(run, story)


def test_a_consumer_belongs_to_one_thread_at_a_time(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        with SyncConsumer(broker.address) as consumer, SyncProducer(broker.address) as producer:
            consumer.subscribe(["orders"])
            polling = threading.Thread(target=consumer.poll, args=(60_000,))
            polling.start()
            # Not before: a poll of this thread could be the one that refuses the other's.
            wait_until(consumer._core._user.locked, "the thread polls")
            with pytest.raises(ConcurrentUseError):
                consumer.poll(0)
            producer.send("orders", b"v")
            polling.join()

    with_broker(run, story)


def test_a_poll_that_waits_ends_when_another_thread_closes_the_consumer(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        consumer = SyncConsumer(broker.address)
        consumer.subscribe(["orders"])
        closing = threading.Timer(0.1, consumer.close)
        closing.start()
        with pytest.raises(ClosedError):
            consumer.poll(3_600_000)
        assert list(consumer) == []
        closing.join()

    with_broker(run, story)


def test_topics_are_created_and_described(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        with SyncAdmin(broker.address) as admin:
            topic = admin.create_topic("new", 3, config={"retention.ms": "1000"})
            assert (topic.name, len(topic.partitions), topic.replication_factor) == ("new", 3, 1)
            assert topic.config["retention.ms"].value == "1000"
            with pytest.raises(TopicAlreadyExistsError):
                admin.create_topic("new")
            assert admin.list_topics() == ["new", "orders"]
            assert admin.describe_topic("new").topic_id == topic.topic_id
            with pytest.raises(UnknownTopicOrPartitionError):
                admin.describe_topic("missing")
            cluster = admin.describe_cluster()
            assert (cluster.cluster_id, cluster.brokers[0].address) == ("fake", broker.address)
            assert {o.offset for o in admin.list_offsets("orders").values()} == {0}
            with pytest.raises(UnknownTopicOrPartitionError):
                admin.list_offsets([("orders", 9)])

    with_broker(run, story)


def test_closed_clients_say_so_and_bad_settings_are_refused(run: Run) -> None:
    def story(broker: FakeBroker) -> None:
        producer = SyncProducer(broker.address)
        producer.close()
        producer.close()
        with pytest.raises(ClosedError):
            producer.send("orders", b"v")
        with pytest.raises(InvalidConfigError):
            SyncProducer(broker.address, linger_ms=-1)
        with pytest.raises(InvalidConfigError):
            SyncConsumer(broker.address, fetch_max_bytes=0)

    with_broker(run, story)
