"""Consumers of both isolations on a real wire, over logs with transactions."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from tests.fakes.broker import FakeBroker
from tests.fakes.transaction_log import TransactionLog
from tests.integration.client.conftest import Run

from millrace.client import Admin, Consumer, InvalidConfigError, InvalidRequestError, SyncConsumer
from millrace.core.records.compression import CODEC_NAMES

Isolation = Literal["read_committed", "read_uncommitted"]
PLACE = ("orders", 0)


@asynccontextmanager
async def brokers_log() -> AsyncIterator[tuple[FakeBroker, TransactionLog]]:
    """Yield a broker, and a log with a committed, an aborted and an open transaction."""
    async with FakeBroker() as broker:
        broker.create_topic("orders", 1)
        log = TransactionLog(broker.log("orders").topic_partition)
        log.append([b"committed"] * 2, 1)
        log.append([b"aborted"] * 2, 2)
        log.end([1], is_committed=True)
        log.end([2], is_committed=False)
        log.append([b"plain"])
        log.append([b"aborted later"], 2)
        log.end([2], is_committed=False)
        log.append([b"open"], 3)
        log.append([b"after it"])
        broker.log("orders").put(log)
        yield broker, log


COMMITTED = [b"committed"] * 2 + [b"plain"]
ALL = [b"committed", b"committed", b"aborted", b"aborted", b"plain", b"aborted later", b"open"]
ALL += [b"after it"]


@pytest.mark.parametrize(
    ("isolation", "values", "end"),
    [("read_committed", COMMITTED, 9), ("read_uncommitted", ALL, 11)],
)
def test_what_a_consumer_reads_and_where_it_ends(
    run: Run, isolation: Isolation, values: list[bytes], end: int
) -> None:
    async def scenario() -> None:
        async with (
            brokers_log() as (broker, _),
            Consumer(broker.address, isolation=isolation) as consumer,
        ):
            await consumer.assign(["orders"])
            found: list[object] = []
            while await consumer.position(PLACE) < end:
                found += [record.value for record in await consumer.poll(50)]
            assert found == values
            assert await consumer.position(PLACE) == end
            assert await consumer.lag() == {PLACE: 0}
            assert consumer._core.known_lags() == {"orders": 0}
            await consumer.seek_to_time(0)
            assert [record.value for record in await consumer.poll(10_000)][:1] == [b"committed"]

    run(scenario())


def test_a_reader_to_an_end_ends_at_once_though_no_record_is_there(run: Run) -> None:
    async def scenario() -> None:
        async with brokers_log() as (broker, _):
            async with Consumer(broker.address) as consumer:
                await consumer.assign({PLACE: 7}, ends={PLACE: 9})
                began = time.monotonic()
                assert len(await consumer.poll(30_000)) == 0
                assert time.monotonic() - began < 10
                assert await consumer.position(PLACE) == 9
            await asyncio.to_thread(read_to_end, broker.address)

    def read_to_end(address: str) -> None:
        with SyncConsumer(address) as consumer:
            consumer.assign({PLACE: 5}, ends={PLACE: 9})
            found, began = [], time.monotonic()
            while consumer.position(PLACE) < 9:
                found += [record.value for record in consumer.poll(30_000)]
            assert found == [b"plain"]
            assert time.monotonic() - began < 10

    run(scenario())


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_aborted_records_are_not_delivered_however_compressed(run: Run, codec: str) -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, Consumer(broker.address) as consumer:
            broker.create_topic("orders", 1)
            log = TransactionLog(broker.log("orders").topic_partition)
            log.append([b"aborted " * 100] * 100, 2, codec=codec)
            log.append([b"committed " * 100] * 3, 1, codec=codec)
            log.end([2], is_committed=False)
            log.end([1], is_committed=True)
            broker.log("orders").put(log)
            await consumer.subscribe(["orders"])
            found: list[object] = []
            while await consumer.position(PLACE) < log.end_offset:
                for batch in await consumer.poll_batches(50):
                    found += batch.records.column("value").to_pylist()
            assert found == [b"committed " * 100] * 3

    run(scenario())


def test_the_end_of_a_partition_is_that_of_the_isolation(run: Run) -> None:
    async def scenario() -> None:
        async with brokers_log() as (broker, _), Admin(broker.address) as admin:
            assert (await admin.list_offsets("orders"))[PLACE].offset == 9
            found = await admin.list_offsets("orders", isolation="read_uncommitted")
            assert found[PLACE].offset == 11
            with pytest.raises(InvalidRequestError, match="'serializable' is no isolation"):
                await admin.list_offsets("orders", isolation="serializable")  # type: ignore[call-overload]

    run(scenario())


def test_a_consumer_that_begins_at_the_end_begins_before_an_open_transaction(run: Run) -> None:
    async def scenario() -> None:
        async with brokers_log() as (broker, log), Consumer(broker.address) as consumer:
            await consumer.assign(["orders"], start="end")
            assert await consumer.position(PLACE) == 9
            log.end([3], is_committed=True)
            broker.log("orders").put(log)
            found: list[object] = []
            while len(found) < 2:
                found += [record.value for record in await consumer.poll(50)]
            assert found == [b"open", b"after it"], "nothing of the transaction is missed"

    run(scenario())


def test_an_isolation_that_there_is_not_is_refused(run: Run) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidConfigError, match="read_committed or read_uncommitted"):
            Consumer("localhost:1", isolation="serializable")  # type: ignore[arg-type]

    run(scenario())
