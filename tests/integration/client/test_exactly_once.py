"""`process_exactly_once` on a real wire, while answers are lost and transactions aborted."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
from tests.fakes.broker import FakeBroker
from tests.integration.client.conftest import Run

from millrace.client import (
    BufferExhaustedError,
    Consumer,
    FetchedRecords,
    InvalidRequestError,
    OutputRecords,
    Producer,
    ProducerFencedError,
    SyncConsumer,
    SyncProducer,
    UnknownTopicOrPartitionError,
)
from millrace.core.errors import (
    CoordinatorLoadInProgressError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    PositionsFullError,
)
from millrace.core.records.batch import open_batch, walk


def copy(read: FetchedRecords) -> Iterator[OutputRecords]:
    yield OutputRecords("copies", read.records["value"], read.records["key"])


def copied(broker: FakeBroker) -> list[bytes]:
    """Return the values of the records of committed transactions, in their order."""
    found: list[bytes] = []
    log = broker.log("copies")
    for _, _, batch in log.batches:
        for header, data in walk(batch):
            if broker.transactions.outcomes.get((header.producer_id, header.producer_epoch)):
                opened = open_batch(log.topic_partition, header, data, 2**30)
                found += opened.column("value").to_pylist()
    return found


async def send(broker: FakeBroker, values: Iterable[bytes]) -> None:
    async with Producer(broker.address, linger_ms=0) as producer:
        for value in values:
            producer.send("orders", value, partition=value[-1] % 2)
            await asyncio.sleep(0)


@asynccontextmanager
async def clients(broker: FakeBroker, **settings: Any) -> AsyncIterator[tuple[Consumer, Producer]]:
    chosen: dict[str, Any] = {
        "transactional_id": "copy",
        "linger_ms": 0,
        "request_timeout_ms": 300,
        "retry_backoff_ms": 5,
    }
    async with (
        Consumer(
            broker.address,
            group="g",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=300,
        ) as consumer,
        Producer(broker.address, **(chosen | settings)) as producer,
    ):
        await consumer.subscribe(["orders"])
        yield consumer, producer


@asynccontextmanager
async def copying(**settings: Any) -> AsyncIterator[tuple[FakeBroker, asyncio.Task[None]]]:
    async with FakeBroker(orders=2, copies=1) as broker:
        broker.coordinate("orders")
        async with clients(broker, **settings) as (consumer, producer):
            task = asyncio.create_task(
                consumer.process_exactly_once(copy, producer, interval_ms=10)
            )
            try:
                yield broker, task
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task


VALUES = [b"%04d" % number for number in range(200)]


async def test_each_record_is_copied_once_and_the_positions_are_behind_the_last() -> None:
    async with copying() as (broker, _):
        await send(broker, VALUES)
        await broker.until(lambda: len(copied(broker)) >= len(VALUES))
        assert sorted(copied(broker)) == VALUES
        assert broker.groups.stable() == {0: 100, 1: 100}


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_or_doubled_while_everything_goes_wrong(seed: int) -> None:
    dice = random.Random(seed)
    async with copying() as (broker, task):
        transactions = broker.transactions

        def time_out() -> None:
            if "copy" in transactions.ids and transactions.ids["copy"].is_open:
                transactions.time_out("copy")

        def lose() -> None:
            transactions.lost_answers += dice.randint(1, 4)

        def lose_requests() -> None:
            transactions.lost_requests += dice.randint(1, 4)

        def refuse_records() -> None:
            broker.log("copies").refusals.append(NotEnoughReplicasError("too few"))

        def refuse_for_good() -> None:
            transactions.position_refusals.append(CoordinatorLoadInProgressError("wait"))

        def drop_answer() -> None:
            broker.dropped_answers += 1

        def end_session() -> None:
            if broker.groups.members:
                broker.groups.remove(0)

        def arrive_late() -> None:
            if transactions.late:
                transactions.decide(transactions.late.pop())

        faults = [
            time_out,
            lose,
            lose_requests,
            refuse_records,
            refuse_for_good,
            drop_answer,
            end_session,
            arrive_late,
        ]
        for start in range(0, len(VALUES), 10):
            await send(broker, VALUES[start : start + 10])
            dice.choice(faults)()
            await asyncio.sleep(dice.random() * 0.05)
            assert not task.done()
        transactions.lost_answers = transactions.lost_requests = 0
        await broker.until(lambda: len(copied(broker)) >= len(VALUES), timeout_s=30)
        assert sorted(copied(broker)) == VALUES


async def test_an_error_of_the_function_ends_it_and_nothing_of_it_counts() -> None:
    async with FakeBroker(orders=2, copies=1) as broker:
        broker.coordinate("orders")
        await send(broker, VALUES[:4])

        def fail(read: FetchedRecords) -> list[OutputRecords]:
            raise KeyError("a bug")

        async with clients(broker) as (consumer, producer):
            with pytest.raises(KeyError):
                await consumer.process_exactly_once(fail, producer)
            task = asyncio.create_task(consumer.process_exactly_once(copy, producer))
            await broker.until(lambda: len(copied(broker)) == 4)
            task.cancel()
        assert sorted(copied(broker)) == VALUES[:4]


@pytest.mark.parametrize(
    "error", [MessageTooLargeError("the topic takes less"), PositionsFullError("no room")], ids=str
)
async def test_what_another_attempt_cannot_cure_ends_it(error: Any) -> None:
    async with copying() as (broker, task):
        if isinstance(error, MessageTooLargeError):
            broker.log("copies").refusals.append(error)
        else:
            broker.transactions.position_refusals.append(error)
        await send(broker, VALUES[:1])
        with pytest.raises(type(error)):
            await asyncio.wait_for(task, 10)
        assert copied(broker) == []


async def test_a_coordinator_whose_answers_to_ends_are_lost_for_ever_tells_the_outcomes() -> None:
    async with copying() as (broker, _):
        broker.transactions.lost_answers = 1_000_000
        for start in (0, 10):
            await send(broker, VALUES[start : start + 10])
            # Each of some transactions is in doubt for the time of a request.
            await broker.until(lambda: len(copied(broker)) >= start + 10, 60)  # noqa: B023
        assert "describe" in broker.transactions.calls
        assert sorted(copied(broker)) == VALUES[:20]


async def test_an_unknown_topic_of_the_outputs_ends_it() -> None:
    async with FakeBroker(orders=2) as broker:
        broker.coordinate("orders")
        await send(broker, VALUES[:1])
        async with clients(broker) as (consumer, producer):
            with pytest.raises(UnknownTopicOrPartitionError, match="copies"):
                await consumer.process_exactly_once(copy, producer)


async def test_a_fenced_copy_stops() -> None:
    async with copying() as (broker, task):
        await send(broker, VALUES[:2])
        await broker.until(lambda: len(copied(broker)) == 2)
        async with Producer(broker.address, transactional_id="copy") as newer:
            await newer.init_transactions()
            await send(broker, VALUES[2:4])
            with pytest.raises(ProducerFencedError):
                await asyncio.wait_for(task, 10)
        assert len(copied(broker)) == 2


async def test_a_transaction_is_committed_when_it_has_read_so_much() -> None:
    async with FakeBroker(orders=2, copies=1) as broker:
        broker.coordinate("orders")
        await send(broker, VALUES[:2])
        async with clients(broker) as (consumer, producer):
            task = asyncio.create_task(
                consumer.process_exactly_once(copy, producer, interval_ms=60_000, bytes_max=1)
            )
            await broker.until(lambda: len(copied(broker)) == 2)
            task.cancel()
            for wrong in ({"interval_ms": 0}, {"bytes_max": 0}):
                with pytest.raises(InvalidRequestError, match="must be 1 at least"):
                    await consumer.process_exactly_once(copy, producer, **wrong)


async def test_outputs_wait_for_room_and_larger_ones_than_there_ever_is_end_it() -> None:
    async with FakeBroker(orders=2, copies=1) as broker:
        broker.coordinate("orders")
        await send(broker, VALUES[:2])

        async def many(read: FetchedRecords) -> list[OutputRecords]:
            large = pa.array([b"x" * 700])
            return [OutputRecords("copies", large) for _ in range(len(read.records) * 3)]

        async def much(read: FetchedRecords) -> list[OutputRecords]:
            return [OutputRecords("copies", [b"x" * 700] * 3)]

        async with clients(broker, buffer_memory=1024) as (consumer, producer):
            task = asyncio.create_task(consumer.process_exactly_once(many, producer))
            await broker.until(lambda: len(copied(broker)) == 6)
            task.cancel()
            await send(broker, VALUES[2:4])
            with pytest.raises(BufferExhaustedError):
                await consumer.process_exactly_once(much, producer)


async def test_a_closed_consumer_ends_it_quietly() -> None:
    async with FakeBroker(orders=2, copies=1) as broker:
        broker.coordinate("orders")
        async with clients(broker) as (consumer, producer):
            task = asyncio.create_task(consumer.process_exactly_once(copy, producer))
            await asyncio.sleep(0.05)
            await consumer.close()
            await asyncio.wait_for(task, 10)


def test_the_synchronous_twin(run: Run) -> None:
    def use(address: str) -> None:
        with (
            SyncConsumer(
                address, group="g", enable_auto_commit=False, auto_offset_reset="earliest"
            ) as consumer,
            SyncProducer(address, transactional_id="copy", linger_ms=0) as producer,
        ):
            consumer.subscribe(["orders"])
            seen = 0

            def some(read: FetchedRecords) -> Iterator[OutputRecords]:
                nonlocal seen
                if seen >= 4:
                    raise KeyError("enough")
                seen += len(read.records)
                yield OutputRecords("copies", read.records["value"])

            with pytest.raises(KeyError):
                consumer.process_exactly_once(some, producer, interval_ms=10)

    async def scenario() -> None:
        async with FakeBroker(orders=2, copies=1) as broker:
            broker.coordinate("orders")
            await send(broker, VALUES[:4])
            task = asyncio.create_task(asyncio.to_thread(use, broker.address))
            await broker.until(lambda: len(copied(broker)) == 4)
            await send(broker, VALUES[4:5])
            await task
            assert sorted(copied(broker)) == VALUES[:4]

    run(scenario())
