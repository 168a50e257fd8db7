"""Records that cannot be processed: they are tried again, in order, and end in another topic."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.integration.cli.command_line import CommandLine
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import (
    Consumer,
    DeadLetters,
    InvalidConfigError,
    InvalidRequestError,
    Position,
    Producer,
    Record,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def topic(shared_broker: RunningBroker, topic_name: str) -> str:
    """A topic of two partitions, and one for its dead; the group has its name, too."""
    with SyncAdmin(shared_broker.address) as admin:
        admin.create_topic(topic_name, partitions=2)
        admin.create_topic(f"{topic_name}.dead")
    return topic_name


def send(broker: RunningBroker, topic: str, *values: bytes | None, partition: int = 0) -> None:
    with SyncProducer(broker.address) as producer:
        for value in values:
            producer.send(topic, value, b"k", partition=partition, timestamp=1_000)


def committed(broker: RunningBroker, group: str) -> dict[int, int]:
    """Return how many records of each partition are done, where there are some."""
    with SyncAdmin(broker.address) as admin:
        found = admin.fetch_positions(group)
        return {partition: at.offset for (_, partition), at in found.items() if at.offset}


def dead(broker: RunningBroker, topic: str, count: int) -> list[Record]:
    """Return the dead, which are so many."""
    with SyncConsumer(broker.address) as consumer, SyncAdmin(broker.address) as admin:
        name = f"{topic}.dead"
        assert admin.list_offsets(name)[name, 0].offset == count
        consumer.subscribe([name])
        found: list[Record] = []
        while len(found) < count:
            found += consumer.poll()
        return found


@asynccontextmanager
async def processing(
    broker: RunningBroker, topic: str, handler: Callable[[Record], object], **settings: Any
) -> AsyncIterator[None]:
    """Process the topic until the block ends, which cancels it."""

    async def work() -> None:
        async with (
            Producer(broker.address, value_serializer=str.encode) as producer,
            Consumer(broker.address, group=topic, auto_commit_interval_ms=100) as consumer,
        ):
            await consumer.subscribe([topic])
            letters = DeadLetters(producer, f"{topic}.dead", **{"backoff_ms": 50, **settings})
            await consumer.process(handler, letters)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, which may ask a broker."""
    await asyncio.to_thread(wait_until, condition, what)


def test_a_record_that_fails_is_tried_again_in_order_while_other_partitions_go_on(
    shared_broker: RunningBroker, topic: str
) -> None:
    send(shared_broker, topic, b"0", b"flaky", b"2")
    seen: list[tuple[int, bytes]] = []

    async def handle(record: Record) -> None:
        seen.append((record.partition, record.value))
        is_over = (1, b"other") in seen
        if record.value == b"flaky" and not is_over:
            raise ConnectionError("away")

    async def story() -> None:
        async with processing(shared_broker, topic, handle, attempts=1_000):
            await until(lambda: seen.count((0, b"flaky")) >= 2, "it is tried again")
            await asyncio.to_thread(send, shared_broker, topic, b"other", partition=1)
            await until(lambda: (0, b"2") in seen, "it has succeeded")

    asyncio.run(story())
    assert [value for partition, value in seen if partition == 0 and value != b"flaky"] == [
        b"0",
        b"2",
    ]
    assert committed(shared_broker, topic) == {0: 3, 1: 1}
    assert dead(shared_broker, topic, 0) == []


def test_a_record_that_fails_too_often_is_dead_and_says_of_what(
    shared_broker: RunningBroker, topic: str
) -> None:
    send(shared_broker, topic, b"good", b"\xff bad", None, b"last")
    seen: list[bytes | None] = []

    def handle(record: Record) -> None:
        seen.append(record.value)
        if record.value in (b"\xff bad", None):
            raise KeyError("x" * 2_000)

    async def story() -> None:
        async with processing(shared_broker, topic, handle, attempts=2):
            await until(lambda: b"last" in seen, "all are processed")

    asyncio.run(story())
    assert seen == [b"good", b"\xff bad", b"\xff bad", None, None, b"last"]
    assert committed(shared_broker, topic) == {0: 4}
    first, second = dead(shared_broker, topic, 2)
    assert (first.key, first.value, second.value) == (b"k", b"\xff bad", None)
    assert first.timestamp > 1_000
    assert dict(first.headers) == {
        "__dlq.errors.topic": topic.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"1",
        "__dlq.errors.timestamp": b"1000",
        "__dlq.errors.group": topic.encode(),
        "__dlq.errors.delivery.count": b"2",
        "__dlq.errors.exception.class.name": b"builtins.KeyError",
        "__dlq.errors.message": b"'" + b"x" * 999,
    }


def test_what_the_dead_are_sent_back_and_die_again_of_replaces_what_they_died_of(
    shared_broker: RunningBroker, topic: str
) -> None:
    send(shared_broker, topic, b"bad")
    seen: list[int] = []

    def handle(record: Record) -> None:
        seen.append(record.offset)
        raise ValueError(f"at {record.offset}")

    def die() -> None:
        async def story() -> None:
            before = len(seen)
            async with processing(shared_broker, topic, handle, not_retried=[ValueError]):
                await until(
                    lambda: sum(committed(shared_broker, topic).values()) > before,
                    "its death is committed",
                )

        asyncio.run(story())

    die()
    command = CommandLine(shared_broker.address)
    command.ok("copy", f"{topic}.dead", topic, "--name", f"{topic}-back")
    die()
    assert seen == [0, 1], "an error that is not to be retried is not"
    _, again = dead(shared_broker, topic, 2)
    assert again.value == b"bad"
    assert dict(again.headers)["__dlq.errors.message"] == b"at 1"
    assert len(again.headers) == 8
    command.ok("copy", f"{topic}.dead", topic, "--name", f"{topic}-back")
    with SyncAdmin(shared_broker.address) as admin:
        ends = admin.list_offsets(topic)
        assert sum(end.offset for end in ends.values()) == 3, "each death is sent back once"


def test_a_record_that_is_interrupted_comes_again(shared_broker: RunningBroker, topic: str) -> None:
    send(shared_broker, topic, b"0", b"1", b"2")
    begun: list[bytes] = []

    async def handle(record: Record) -> None:
        begun.append(record.value)
        if begun == [b"0", b"1"]:
            await asyncio.Event().wait()

    async def story() -> None:
        async with processing(shared_broker, topic, handle):
            await until(lambda: begun == [b"0", b"1"], "the second one is under way")
        assert await asyncio.to_thread(committed, shared_broker, topic) == {0: 1}
        async with processing(shared_broker, topic, handle):
            await until(lambda: begun[2:] == [b"1", b"2"], "it comes again")

    asyncio.run(story())
    assert committed(shared_broker, topic) == {0: 3}


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
async def test_a_record_whose_function_is_under_way_is_committed_by_nobody(
    shared_broker: RunningBroker, topic: str, end: str
) -> None:
    await asyncio.to_thread(send, shared_broker, topic, b"0", b"1", b"2", b"3")
    seen: list[int] = []
    may_end = asyncio.Event()

    async def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 2:
            await may_end.wait()
            if end == "failed":
                raise ConnectionError("the program ends")

    async with Producer(shared_broker.address) as producer:
        consumer = Consumer(shared_broker.address, group=topic)
        await consumer.subscribe([topic])
        task = asyncio.create_task(
            consumer.process(handle, DeadLetters(producer, f"{topic}.dead", attempts=3))
        )
        await until(lambda: 2 in seen, "the third one is under way")
        await consumer.commit()
        assert await asyncio.to_thread(committed, shared_broker, topic) == {0: 2}
        await consumer.close()
        if end == "cancelled":
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        else:
            may_end.set()
            await task
    assert seen == [0, 1, 2], "a closed consumer hands nothing out"
    assert await asyncio.to_thread(committed, shared_broker, topic) == {0: 2}


def test_a_record_whose_function_is_under_way_in_another_thread_is_not_committed_either(
    shared_broker: RunningBroker, topic: str
) -> None:
    send(shared_broker, topic, b"0", b"1", b"2", b"3")
    seen: list[int] = []
    may_end = threading.Event()

    def handle(record: Record) -> None:
        seen.append(record.offset)
        if record.offset == 2:
            assert may_end.wait(30)
            raise ConnectionError("the program ends")

    with SyncProducer(shared_broker.address) as producer, ThreadPoolExecutor() as threads:
        consumer = SyncConsumer(shared_broker.address, group=topic)
        consumer.subscribe([topic])
        letters = DeadLetters(producer, f"{topic}.dead")
        processing = threads.submit(consumer.process, handle, letters)
        wait_until(lambda: 2 in seen, "the third one is under way")
        consumer.close()
        may_end.set()
        processing.result(30)
    assert seen == [0, 1, 2]
    assert committed(shared_broker, topic) == {0: 2}


def test_nothing_is_lost_when_the_topic_of_the_dead_takes_no_records(
    shared_broker: RunningBroker, topic: str
) -> None:
    send(shared_broker, topic, b"0", b"bad")

    def handle(record: Record) -> None:
        if record.value == b"bad":
            raise ValueError(record.offset)

    with (
        SyncProducer(shared_broker.address) as producer,
        SyncConsumer(shared_broker.address, group=topic) as consumer,
    ):
        consumer.subscribe([topic])
        with pytest.raises(UnknownTopicOrPartitionError):
            consumer.process(handle, DeadLetters(producer, "not-there", attempts=1))
    assert committed(shared_broker, topic) == {0: 1}


def test_the_dead_do_not_die_into_their_own_topic(shared_broker: RunningBroker, topic: str) -> None:
    send(shared_broker, topic, b"bad")

    def handle(record: Record) -> None:
        raise ValueError(record.offset)

    with (
        SyncProducer(shared_broker.address) as producer,
        SyncConsumer(shared_broker.address) as consumer,
    ):
        consumer.subscribe([topic])
        with pytest.raises(InvalidRequestError, match="the topic of the dead"):
            consumer.process(handle, DeadLetters(producer, topic, attempts=1))


def test_a_synchronous_program_processes_in_its_own_thread_and_may_exit_there(
    shared_broker: RunningBroker, topic: str
) -> None:
    send(shared_broker, topic, b"0", b"1", b"2")
    seen: list[bytes] = []

    def handle(record: Record) -> None:
        assert threading.current_thread() is threading.main_thread()
        seen.append(record.value)
        if seen[-1] == b"1":
            raise SystemExit(3)

    with SyncProducer(shared_broker.address) as producer:
        letters = DeadLetters(producer, f"{topic}.dead")
        with SyncConsumer(shared_broker.address, group=topic) as consumer:
            consumer.subscribe([topic])
            with pytest.raises(SystemExit):
                consumer.process(handle, letters)
        assert committed(shared_broker, topic) == {0: 1}
        with SyncConsumer(shared_broker.address, group=topic) as consumer:
            consumer.subscribe([topic])
            again: list[bytes] = []
            while len(again) < 2:
                again += consumer.poll().values()
            assert again == [b"1", b"2"]


def test_a_producer_that_does_not_wait_for_all_replicas_is_refused(
    shared_broker: RunningBroker,
) -> None:
    with (
        SyncProducer(shared_broker.address, acks=1) as producer,
        pytest.raises(InvalidConfigError, match='acks="all"'),
    ):
        DeadLetters(producer, "t.dead")
    with SyncProducer(shared_broker.address) as producer:
        with pytest.raises(InvalidConfigError, match="attempts"):
            DeadLetters(producer, "t.dead", attempts=0)
        with pytest.raises(InvalidConfigError, match="classes of exceptions"):
            DeadLetters(producer, "t.dead", not_retried=[5])  # type: ignore[list-item]
        with pytest.raises(InvalidConfigError, match="backof"):
            DeadLetters(producer, "t.dead", backof_ms=5)  # type: ignore[call-arg]


async def test_a_member_that_retries_for_long_stays_in_its_group(
    shared_broker: RunningBroker, topic: str
) -> None:
    send(shared_broker, topic, b"flaky")
    seen: list[bytes] = []
    lost: list[object] = []

    def handle(record: Record) -> None:
        seen.append(record.value)
        if len(seen) < 2:
            raise ConnectionError("away")

    async with (
        Producer(shared_broker.address) as producer,
        Consumer(shared_broker.address, group=topic, max_poll_interval_ms=3_500) as consumer,
    ):
        await consumer.subscribe([topic], on_revoked=lost.append, on_lost=lost.append)
        letters = DeadLetters(producer, f"{topic}.dead", attempts=2, backoff_ms=7_000)
        task = asyncio.create_task(consumer.process(handle, letters))
        await until(lambda: len(seen) == 2, "it has succeeded")
        assert lost == []
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    with SyncAdmin(shared_broker.address) as admin:
        found = await asyncio.to_thread(admin.fetch_positions, topic)
    assert found[topic, 0] == Position(1, 0)
