"""The async consumer on a real wire."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sized
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.broker import FakeBroker, FakeTopic
from tests.integration.client.conftest import Run

from millrace.client import (
    Admin,
    ClosedError,
    ConcurrentUseError,
    Consumer,
    CorruptBatchError,
    FetchedRecords,
    InvalidConfigError,
    InvalidRequestError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    Producer,
    Record,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from millrace.client._consumer import consumer as consumer_module
from millrace.client.serialization import to_json, to_str
from millrace.core.errors import (
    CorruptLogError,
    MalformedRequestError,
    MillraceError,
    NotLeaderError,
)
from millrace.core.ids import LeaderEpoch, Offset, TopicPartition, WallMs
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.compression import Compressor
from millrace.core.records.header import stamp
from millrace.proto.v1.cluster_pb2 import TopicMetadata


async def fill(broker: FakeBroker, count: int, partitions: int = 1, **settings: Any) -> None:
    """Make the topic `orders` with records 0 to `count` - 1, spread by their number."""
    if "orders" not in broker.topics:
        broker.create_topic("orders", partitions)
    async with Producer(broker.address, **settings) as producer:
        for number in range(count):
            producer.send(
                "orders",
                b"%d" % number,
                b"k%d" % number,
                partition=number % partitions,
                headers=[("n", b"%d" % number)],
                timestamp=1000 + number,
            )


@asynccontextmanager
async def reading(
    count: int, partitions: int = 1, **settings: Any
) -> AsyncIterator[tuple[FakeBroker, Consumer]]:
    """Yield a broker with so many records, and a consumer that reads all of them."""
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, count, partitions, **settings)
        await consumer.subscribe(["orders"])
        yield broker, consumer


async def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    async with asyncio.timeout(30):
        while len(records) < count:
            records += await consumer.poll()
    return records


async def test_everything_is_read_once_in_order_per_partition() -> None:
    async with reading(3000, partitions=3, batch_size=500) as (_, consumer):
        records = await read(consumer, 3000)
        assert not await consumer.poll(30)
        assert len(records) == 3000
        for partition in range(3):
            mine = [record for record in records if record.partition == partition]
            assert [record.offset for record in mine] == list(range(1000))
            assert [int(record.value) for record in mine] == list(range(partition, 3000, 3))
        record = records[0]
        number = int(record.value)
        assert record.topic == "orders"
        assert record.key == b"k%d" % number
        assert record.timestamp == 1000 + number
        assert record.headers == (("n", b"%d" % number),)


async def test_a_poll_hands_out_at_most_what_it_was_asked_for() -> None:
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, 100)
        await consumer.assign([("orders", 0)])
        seen: list[int] = []
        while len(seen) < 100:
            records = await consumer.poll(10_000, max_records=7)
            assert 0 < len(records) <= 7
            seen += [record.offset for record in records]
            assert await consumer.position(("orders", 0)) == len(seen)
        assert seen == list(range(100))


@pytest.mark.parametrize("batch_size", [300, 1_000_000])
async def test_a_poll_hands_out_no_more_bytes_than_it_was_asked_for(batch_size: int) -> None:
    async with FakeBroker(orders=1) as broker, Consumer(broker.address) as consumer:
        sizes = [10] * 50 + [2000] + [100] * 50
        async with Producer(broker.address, batch_size=batch_size) as producer:
            for size in sizes:
                producer.send("orders", b"v" * size)
        await consumer.assign(["orders"])
        seen: list[int] = []
        counts: list[int] = []
        while len(seen) < len(sizes):
            records = await consumer.poll(max_bytes=1000)
            seen += (taken := [len(record.value) for record in records])
            assert sum(taken) + 16 * len(taken) <= 1000 or len(taken) == 1
            counts.append(len(taken))
        assert seen == sizes
        assert max(counts) > 10
        assert len(await consumer.poll(timeout_ms=0)) == 0


@pytest.mark.parametrize("batches", [True, False])
async def test_records_without_bytes_of_their_own_count_by_what_they_become(batches: bool) -> None:
    """Ninety-six stored bytes make 100,000 records, whose offsets and times take 1.6 MB."""
    async with FakeBroker(orders=1) as broker, Consumer(broker.address) as consumer:
        async with Producer(broker.address) as producer:
            for _ in range(20):
                await producer.send_batch("orders", [None] * 100_000)
        await consumer.assign(["orders"])
        stored = sum(len(batch) for _, _, batch in broker.log("orders").batches)
        await broker.until(lambda: broker.fetched_bytes_sent == stored)
        counts: list[int] = []
        while sum(counts) < 2_000_000:
            if batches:
                fetched = await consumer.poll_batches(max_bytes=5_000_000)
                counts.append(sum(len(records.records) for records in fetched))
            else:
                counts.append(len(await consumer.poll(1_000, 2_000_000, 5_000_000)))
            assert counts[-1] <= 5_000_000 / 16
        assert max(counts) > 200_000


async def test_arrow_batches_go_on_where_a_poll_stopped() -> None:
    async with reading(50) as (_, consumer):
        assert len(await consumer.poll(10_000, max_records=20)) == 20
        (batch,) = await consumer.poll_batches(10_000)
        assert batch.records.column("offset").to_pylist() == list(range(20, 50))
        assert batch.records.column("value").to_pylist()[0] == b"20"
        assert (batch.topic, batch.partition, batch.high_watermark) == ("orders", 0, 50)
        assert not batch.has_append_time


async def test_each_partition_has_a_start_of_its_own() -> None:
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, 30, partitions=3)
        await consumer.assign({("orders", 0): 4, ("orders", 1): "beginning", ("orders", 2): 9})
        batches: list[FetchedRecords] = []
        async with asyncio.timeout(10):
            while sum(len(batch.records) for batch in batches) < 6 + 10 + 1:
                batches += await consumer.poll_batches()
        assert {batch.partition: batch.records["offset"][0].as_py() for batch in batches} == {
            0: 4,
            1: 0,
            2: 9,
        }
        assert {batch.topic_id for batch in batches} == {broker.topics["orders"].topic_id}


async def test_a_topic_has_a_start_of_its_own_and_a_partition_of_it_another() -> None:
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, 30, partitions=3)
        await consumer.assign({("orders", 1): 4, "default/orders": "end"})
        assert [await consumer.position(("orders", number)) for number in range(3)] == [10, 4, 10]


async def test_ends_are_of_partitions_however_they_are_spelled() -> None:
    async with FakeBroker(orders=2) as broker, Consumer(broker.address) as consumer:
        await consumer.assign(["orders"], ends={("default/orders", 1): 7})
        place = TopicPartition(broker.topics["orders"].topic_id, 1)
        assert consumer._core.fetching.fetcher._partitions[place].end == 7
        with pytest.raises(InvalidRequestError, match="partition 2 of 'orders', which is not"):
            await consumer.assign(["orders"], ends={("orders", 2): 7})
        assert consumer.assignment() == [("orders", 0), ("orders", 1)]


async def test_what_is_assigned_is_as_it_is_now() -> None:
    async with reading(10) as (broker, consumer):
        await read(consumer, 10)
        await consumer.assign([])
        broker.topics.pop("orders")
        await fill(broker, 30, partitions=3)
        await consumer.assign([("orders", 2)])
        assert [int(record.value) for record in await read(consumer, 10)] == list(range(2, 30, 3))


async def test_arrow_batches_are_bounded_by_their_inflated_bytes() -> None:
    async with reading(60, batch_size=300) as (_, consumer):
        assert len(await consumer.poll(10_000, max_records=1)) == 1
        offsets: list[int] = []
        polls = 0
        while len(offsets) < 59:
            batches = await consumer.poll_batches(max_bytes=1000)
            sizes = [batch.records.nbytes for batch in batches]
            assert len(sizes) == 1 or sum(sizes) <= 1000
            for batch in batches:
                offsets += batch.records["offset"].to_pylist()
            polls += 1
        assert offsets == list(range(1, 60))
        assert polls > 1


async def test_seeking_goes_to_offsets_ends_and_times() -> None:
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, 40, batch_size=300)
        place = ("orders", 0)
        await consumer.assign([place])
        await read(consumer, 40)
        consumer.seek(place, 17)
        assert (await read(consumer, 1))[0].offset == 17
        consumer.seek(place, "beginning")
        assert (await read(consumer, 1))[0].offset == 0
        await consumer.seek_to_time(1025)
        assert (await read(consumer, 1))[0].offset == 25
        await consumer.seek_to_time(10**12)
        assert await consumer.position(place) == 40
        consumer.seek(place, "end")
        assert await consumer.position(place) == 40  # Else a later end could be looked up.
        assert not await consumer.poll(30)
        await fill(broker, 1)
        assert (await read(consumer, 1))[0].offset == 40


async def test_lag_counts_what_is_left() -> None:
    async with reading(30, partitions=2) as (_, consumer):
        assert await consumer.lag() == {("orders", 0): 15, ("orders", 1): 15}
        first = (await consumer.poll(10_000, max_records=4))[0].partition
        assert (await consumer.lag())[("orders", first)] == 11


async def test_paused_partitions_rest_until_they_resume() -> None:
    async with reading(20, partitions=2) as (_, consumer):
        consumer.pause(("orders", 0))
        records = await read(consumer, 10)
        assert {record.partition for record in records} == {1}
        assert not await consumer.poll(30)
        consumer.resume(("orders", 0))
        assert {record.partition for record in await read(consumer, 10)} == {0}


async def test_what_is_prefetched_stays_within_its_bound() -> None:
    async with FakeBroker() as broker, Consumer(broker.address, fetch_max_bytes=4096) as reader:
        await fill(broker, 2000, batch_size=500)
        await reader.subscribe(["orders"])
        await read(reader, 1)
        await asyncio.sleep(0.2)
        polled = sum(len(batch[2]) for batch in broker.log("orders").batches[:40])
        assert broker.fetched_bytes_sent <= broker.credit_granted < 4096 * 3 < polled
        await read(reader, 1000)


async def test_a_broken_stream_is_taken_up_where_it_was() -> None:
    async with reading(500, batch_size=400) as (broker, consumer):
        records = list(await consumer.poll(max_records=100))
        await broker.stop()
        await broker.start()
        records += await read(consumer, 500 - len(records))
        assert [record.offset for record in records] == list(range(500))


async def test_a_leader_that_moved_is_looked_up() -> None:
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, 10)
        broker.fetch_failures.append(NotLeaderError("elsewhere"))
        await consumer.subscribe(["orders"])
        assert len(await read(consumer, 10)) == 10


async def test_a_position_outside_of_the_log_follows_the_setting() -> None:
    async with FakeBroker() as broker:
        await fill(broker, 10)
        async with Consumer(broker.address) as consumer:
            await consumer.assign(["orders"], start=99)
            assert (await read(consumer, 10))[0].offset == 0
        async with Consumer(broker.address, auto_offset_reset="none") as consumer:
            await consumer.assign(["orders"], start=99)
            with pytest.raises(OffsetOutOfRangeError, match=r"position 99 .* up to 10:"):
                await read(consumer, 1)
            consumer.seek(("orders", 0), 5)
            assert (await read(consumer, 1))[0].offset == 5


async def test_a_truncated_log_is_told() -> None:
    async with reading(30, batch_size=1) as (broker, consumer):
        await read(consumer, 30)
        broker.log("orders").truncate(20)
        await broker.stop()
        await broker.start()
        with pytest.raises(LogTruncatedError, match=r"\[20, 30\) were read, but are gone"):
            await read(consumer, 1)
        consumer.seek(("orders", 0), 20)
        await fill(broker, 2)
        assert (await read(consumer, 1))[0].offset == 20


async def test_a_truncation_after_the_pause_of_half_a_batch_is_told() -> None:
    async with reading(30) as (broker, consumer):
        assert len(await consumer.poll(5_000, max_records=5)) == 5
        consumer.pause(("orders", 0))
        broker.log("orders").truncate(0)
        await broker.stop()
        await broker.start()
        consumer.resume(("orders", 0))
        with pytest.raises(LogTruncatedError, match=r"\[0, 5\) were read, but are gone"):
            await read(consumer, 1)


async def test_a_damaged_batch_is_an_error_and_never_skipped() -> None:
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, 3, batch_size=1)
        log = broker.log("orders")
        base, end, data = log.batches[1]
        log.batches[1] = (base, end, data[:-8] + b"damaged!")
        await consumer.subscribe(["orders"])
        assert (await read(consumer, 1))[0].offset == 0
        for _ in range(2):
            with pytest.raises(CorruptBatchError, match="checksum"):
                await read(consumer, 1)
            assert await consumer.position(("orders", 0)) == 1
        log.batches[1] = (base, end, data)
        consumer.seek(("orders", 0), 1)
        assert [record.offset for record in await read(consumer, 2)] == [1, 2]


async def test_what_a_broker_may_be_set_to_accept_is_read() -> None:
    async with FakeBroker(orders=1) as broker, Consumer(broker.address) as consumer:
        log = broker.log("orders")
        large = Columns(1, WallMs(0), [bytes(65 << 20)])
        prepared = prepare(log.topic_partition, large, Compressor("zstd"))
        header = stamp(prepared.finish(), base_offset=Offset(0), leader_epoch=LeaderEpoch(0))
        log.batches.append((0, 1, header + bytes(prepared.body)))
        await consumer.subscribe(["orders"])
        (batch,) = await consumer.poll_batches(60_000)
        assert batch.records.nbytes > 65 << 20


async def test_deserializers_are_lazy_and_fail_a_record_alone() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address) as producer,
        Consumer(broker.address, key_deserializer=to_str, value_deserializer=to_json) as consumer,
    ):
        producer.send("orders", b'{"a":1}', b"k")
        producer.send("orders", b"no json", b"l")
        producer.send("orders", None, b"m")
        await producer.flush()
        await consumer.subscribe(["orders"])
        first, second, third = await read(consumer, 3)
        assert (first.key, first.value) == ("k", {"a": 1})
        assert second.key == "l"
        with pytest.raises(SerializationError, match="offset 1"):
            second.value  # noqa: B018
        assert (third.key, third.value) == ("m", None)


async def test_two_tasks_cannot_poll_at_a_time() -> None:
    async with FakeBroker(orders=1) as broker, Consumer(broker.address) as consumer:
        await consumer.subscribe(["orders"])
        polling = asyncio.create_task(consumer.poll(200))
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentUseError):
            await consumer.poll(1)
        with pytest.raises(ConcurrentUseError):
            consumer.seek(("orders", 0), 0)
        assert not await polling


async def test_a_poll_that_does_not_wait_lets_records_come() -> None:
    async with reading(3) as (_, consumer):

        async def ask() -> list[Record]:
            while not (records := await consumer.poll(0)):
                pass
            return list(records)

        assert len(await asyncio.wait_for(ask(), 10)) == 3
        asking = asyncio.create_task(ask())
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asking, 10)
        with pytest.raises(InvalidRequestError, match="max_records=0"):
            await consumer.poll(max_records=0)


async def test_a_poll_that_waits_ends_when_its_consumer_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A loop would soon end without it, too.
    monkeypatch.setattr(consumer_module, "LOOP_WAIT_MS", 3_600_000)
    async with FakeBroker(orders=1) as broker:
        for is_loop in (False, True):
            consumer = Consumer(broker.address)
            await consumer.subscribe(["orders"])
            work: Coroutine[Any, Any, Sized] = (
                loop(consumer, 1) if is_loop else consumer.poll(3_600_000)
            )
            waiting = asyncio.create_task(work)
            await asyncio.sleep(0.02)
            assert not waiting.done()
            await consumer.close()
            if is_loop:
                assert not await asyncio.wait_for(waiting, 10)
            else:
                with pytest.raises(ClosedError):
                    await asyncio.wait_for(waiting, 10)


async def test_iteration_goes_on_until_it_is_left() -> None:
    async with reading(5) as (_, consumer):
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if len(seen) == 5:
                break
        assert seen == [0, 1, 2, 3, 4]


async def loop(consumer: Consumer, count: int) -> list[int]:
    """Iterate over so many records; return their offsets."""
    seen: list[int] = []
    async for record in consumer:
        seen.append(record.offset)
        if len(seen) == count:
            break
    return seen


@pytest.mark.parametrize("batch_size", [1, 16384])
async def test_what_a_loop_leaves_is_the_next_to_be_handed_out(batch_size: int) -> None:
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, 5_000, batch_size=batch_size * 4)
        place = ("orders", 0)
        await consumer.subscribe(["orders"])
        assert await loop(consumer, 2) == [0, 1]
        assert await consumer.position(place) == 2
        assert await consumer.lag() == {place: 4_998}
        assert await loop(consumer, 3) == [2, 3, 4]
        assert [record.offset for record in await read_at_once(consumer, 2)] == [5, 6]
        assert await loop(consumer, 1_500) == list(range(7, 1_507))
        (first, *_) = await consumer.poll_batches(10_000)
        assert first.records["offset"][0].as_py() == 1_507
        await consumer.assign([place], start=9)
        assert await loop(consumer, 1) == [9]
        await consumer.assign([place], start=17)
        assert await loop(consumer, 2) == [17, 18]


async def read_at_once(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        records += await consumer.poll(max_records=count - len(records))
    return records


async def test_a_seek_in_the_middle_of_a_loop_counts_for_its_next_record() -> None:
    async with reading(100) as (_, consumer):
        seen: list[int] = []
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 2:
                consumer.seek(("orders", 0), 97)
            if record.offset == 99:
                break
        assert seen == [0, 1, 2, 97, 98, 99]


async def test_a_pause_in_the_middle_of_a_loop_holds_what_is_left_of_the_partition() -> None:
    async with reading(40, partitions=2) as (_, consumer):
        seen: dict[int, list[int]] = {0: [], 1: []}
        paused = -1
        async for record in consumer:
            seen[record.partition].append(record.offset)
            if paused < 0 and record.offset == 3:
                paused = record.partition
                consumer.pause(("orders", paused))
            if sum(map(len, seen.values())) == 24:
                break
        assert seen == {paused: [0, 1, 2, 3], 1 - paused: list(range(20))}
        assert await consumer.position(("orders", paused)) == 4
        assert not await consumer.poll(30)
        consumer.resume(("orders", paused))
        assert await loop(consumer, 16) == list(range(4, 20))


async def test_misuse_is_refused() -> None:
    async with FakeBroker(orders=1) as broker, Consumer(broker.address) as consumer:
        with pytest.raises(InvalidConfigError):
            Consumer(broker.address, auto_offset_reset="somewhere")  # type: ignore[arg-type]
        with pytest.raises(InvalidConfigError):
            Consumer(broker.address, fetch_max_wait_ms=-1)
        with pytest.raises(UnknownTopicOrPartitionError):
            await consumer.subscribe(["nothing"])
        with pytest.raises(InvalidRequestError, match=r"give a list, as \['orders'\]"):
            await consumer.subscribe("orders")
        with pytest.raises(InvalidRequestError, match=r"give a list, as \['orders'\]"):
            await consumer.subscribe("orders", pattern="other-.*")
        async with Consumer(broker.address, group="g") as member:
            with pytest.raises(InvalidRequestError, match=r"give a list, as \['orders'\]"):
                await member.subscribe("orders")
        with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 0"):
            await consumer.assign([("orders", 3)])
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.seek(("orders", 0), 0)
        await consumer.subscribe(["orders"])
        with pytest.raises(InvalidRequestError, match="no position"):
            consumer.seek(("orders", 0), -3)
        await consumer.close()
        with pytest.raises(ClosedError):
            await consumer.poll()


@pytest.mark.parametrize("place", ["kv", "orders", ("orders",), ("orders", "0"), ("o", True), 7])
async def test_what_names_no_partition_is_refused_at_the_call(place: Any) -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Consumer(broker.address) as consumer,
        Admin(broker.address) as admin,
    ):
        await consumer.subscribe(["orders"])
        calls: list[Callable[[], object]] = [
            lambda: consumer.seek(place, 0),
            lambda: consumer.pause(place),
            lambda: consumer.resume(place),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError, match="is no partition: give the topic"):
                call()
        asked: list[Coroutine[Any, Any, object]] = [
            consumer.position(place),
            consumer.seek_to_time(0, [place]),
            consumer.assign(["orders"], ends={place: 3}),
            admin.find_epoch_ends({place: 0}),
            admin.elect_leaders([place]),
            admin.reassign_partitions({place: [1]}),
        ]
        for ask in asked:
            with pytest.raises(InvalidRequestError, match="is no partition: give the topic"):
                await ask


async def test_what_names_no_place_in_a_log_is_refused_at_the_call() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Consumer(broker.address) as consumer,
        Admin(broker.address) as admin,
    ):
        await consumer.subscribe(["orders"])
        wrong: list[Any] = ["start", 1.5, None, True, ("end",)]
        for at in wrong:
            with pytest.raises(InvalidRequestError, match="is no place in a log"):
                await admin.list_offsets("orders", at)
            with pytest.raises(InvalidRequestError, match="is no position"):
                consumer.seek(("orders", 0), at)
            with pytest.raises(InvalidRequestError, match="is no time"):
                await consumer.seek_to_time(at)


@pytest.mark.parametrize(
    ("name", "offset"), [("beginning", 0), ("earliest", 0), ("end", 5), ("latest", 5)]
)
async def test_both_names_of_a_logs_ends_are_taken_everywhere(name: Any, offset: int) -> None:
    async with FakeBroker() as broker, Admin(broker.address) as admin:
        await fill(broker, 5)
        assert (await admin.list_offsets("orders", name))["orders", 0].offset == offset
        async with Consumer(broker.address, auto_offset_reset=name) as consumer:
            await consumer.subscribe(["orders"])
            assert await consumer.position(("orders", 0)) == offset
            await consumer.assign(["orders"], start=name)
            assert await consumer.position(("orders", 0)) == offset
            await consumer.assign({("orders", 0): name})
            assert await consumer.position(("orders", 0)) == offset
            consumer.seek(("orders", 0), 3)
            consumer.seek(("orders", 0), name)
            assert await consumer.position(("orders", 0)) == offset


async def test_partitions_that_come_later_are_read_as_well() -> None:
    async with FakeBroker() as broker:
        await fill(broker, 2)
        async with Consumer(broker.address, metadata_max_age_ms=30) as consumer:
            await consumer.subscribe(["orders"])
            await read(consumer, 2)
            broker.grow("orders", 2)
            await fill(broker, 2, partitions=2)
            records = await read(consumer, 2)
            assert {record.partition for record in records} == {0, 1}


async def test_where_many_partitions_begin_is_one_question() -> None:
    """One for each would keep the client's loop and its broker from everything else."""
    async with (
        FakeBroker(orders=500) as broker,
        Consumer(broker.address, auto_offset_reset="earliest") as consumer,
    ):
        await fill(broker, 500, 500)
        await consumer.assign(["orders"])
        assert len(await read(consumer, 500)) == 500
        asked = consumer._core.cluster.call_seconds["ListOffsets"]
        assert sum(asked.counts) == 1


async def test_a_partition_that_nobody_leads_does_not_hold_up_the_others() -> None:
    async with (
        FakeBroker(orders=3) as broker,
        Consumer(broker.address, auto_offset_reset="earliest") as consumer,
    ):
        await fill(broker, 30, 3)
        log = broker.topics["orders"].logs[1]
        log.damage = NotLeaderError("an election is under way")
        await consumer.assign(["orders"])
        assert {record.partition for record in await read(consumer, 20)} == {0, 2}
        log.damage = None
        assert {record.partition for record in await read(consumer, 10)} == {1}


async def test_a_consumer_of_nothing_looks_nothing_up() -> None:
    async with (
        FakeBroker(orders=1, payments=1) as broker,
        Consumer(broker.address, metadata_max_age_ms=20) as consumer,
    ):
        await consumer.subscribe(["orders"])
        look_ups = broker.look_ups
        await broker.until(lambda: broker.look_ups >= look_ups + 3)
        await consumer.assign([])
        await broker.until(lambda: not consumer._core.cluster._look_ups._tasks)
        look_ups = broker.look_ups
        await asyncio.sleep(0.2)
        assert broker.look_ups == look_ups
        assert consumer._core.cluster.metadata.topics.keys() == {"orders"}
        await fill(broker, 3)
        await consumer.subscribe(["orders"])
        assert len(await read(consumer, 3)) == 3


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_a_deleted_topic_is_told(is_made_again: bool) -> None:
    message = (
        r"deleted and made again: assign the new one to read it" if is_made_again else "deleted$"
    )
    async with reading(2) as (broker, consumer):
        await read(consumer, 2)
        del broker.topics["orders"]
        if is_made_again:
            broker.create_topic("orders")
        await broker.stop()
        await broker.start()
        with pytest.raises(UnknownTopicOrPartitionError, match=message):
            await read(consumer, 1)


def test_a_deleted_topic_leaves_the_others_and_is_told_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with FakeBroker() as broker, Consumer(broker.address) as consumer:
            await fill(broker, 4, partitions=2)
            broker.create_topic("payments")
            await consumer.subscribe(["orders", "payments"])
            await read(consumer, 4)
            del broker.topics["orders"]
            await broker.stop()
            await broker.start()
            async with asyncio.timeout(10):
                while len(consumer.assignment()) > 1:
                    assert not await consumer.poll(100)
            async with Producer(broker.address) as producer:
                producer.send("payments", b"later")
            assert [record.value for record in await read(consumer, 1)] == [b"later"]
            assert consumer.topic_ids().keys() == {"payments"}
            assert await consumer.lag() == {("payments", 0): 0}
            assert consumer.metrics()["jumps"] == 1

    run(story())
    told = [record.getMessage() for record in caplog.records if "deleted" in record.getMessage()]
    assert told == ["the topic 'orders' was deleted. Its partitions (2) are read no more"]


async def test_a_topic_that_matched_and_is_deleted_at_once_is_left_out_until_it_is_made_again() -> (
    None
):
    class Broker(FakeBroker):
        def metadata(self, topic: FakeTopic) -> TopicMetadata:
            if topic.name == "orders-us" and not self.deleted:
                self.deleted[topic.topic_id] = self.topics.pop(topic.name)
            return super().metadata(topic)

    async with Broker() as broker:
        for name in ("orders-eu", "orders-us", "payments"):
            broker.create_topic(name)
        async with Consumer(broker.address, metadata_max_age_ms=100) as consumer:
            await consumer.subscribe(pattern="orders-.*")
            assert broker.deleted
            assert consumer.assignment() == [("orders-eu", 0)]
            broker.create_topic("orders-us")
            await broker.until(lambda: ("orders-us", 0) in consumer.assignment())
            assert "payments" not in consumer._core.cluster.metadata.topics, "it is not to be read"
            with pytest.raises(UnknownTopicOrPartitionError, match="orders-asia"):
                await consumer.subscribe(["orders-asia"], pattern="orders-.*")


def test_records_that_are_deleted_before_they_are_read_are_told_and_counted(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with FakeBroker() as broker, Consumer(broker.address) as consumer:
            await fill(broker, 20, batch_size=0)
            log = broker.log("orders")
            await consumer.assign([("orders", 0)], start=3)
            log.batches, log.start_offset = log.batches[12:], 12
            assert (await read(consumer, 8))[0].offset == 12
            metrics = consumer.metrics()
            assert (metrics["jumps"], metrics["skipped_records"]) == (1, 9)

    run(story())
    (told,) = [record for record in caplog.records if "skipped" in record.getMessage()]
    assert told.levelname == "WARNING"
    assert told.getMessage() == (
        "orders-0: reading goes on at offset 12 and not at 3 (skipped: 9): records "
        "were deleted before they were read, and it goes on with the first record that is there"
    )


async def test_a_consumer_tells_which_topics_it_reads_also_when_they_are_gone() -> None:
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, 4, partitions=2)
        assert consumer.topic_ids() == {}
        await consumer.subscribe(["orders"], start="beginning")
        await read(consumer, 4)
        before = {"orders": broker.topics["orders"].topic_id}
        assert consumer.topic_ids() == before
        broker.create_topic("orders")
        await consumer._core.cluster.refresh(["orders"])
        assert consumer.topic_ids() == before
        assert await consumer.position(("orders", 1)) == 2
        consumer.pause(("orders", 0))
        await consumer.subscribe(["orders"])
        assert consumer.topic_ids() == {"orders": broker.topics["orders"].topic_id}


async def test_a_position_is_told_though_another_partition_cannot_go_on() -> None:
    async with FakeBroker() as broker, Consumer(broker.address) as consumer:
        await fill(broker, 8, partitions=2)
        broker.log("orders", 0).damage = MalformedRequestError("no")
        await consumer.assign(["orders"], start="end")
        for is_told in (False, True):
            assert await consumer.position(("orders", 1)) == 4
            with pytest.raises(MalformedRequestError):
                # It is known: where nothing was, the time of a request, 30 s, would pass.
                await asyncio.wait_for(consumer.position(("orders", 0)), 15)
            if not is_told:
                with pytest.raises(MalformedRequestError):
                    await consumer.poll(5_000)


@pytest.mark.parametrize("error", [None, CorruptLogError("a flipped bit")])
async def test_a_position_that_nobody_can_tell_is_waited_for_no_longer_than_a_request(
    error: MillraceError | None,
) -> None:
    async with (
        FakeBroker(orders=2) as broker,
        Consumer(broker.address, request_timeout_ms=700) as consumer,
    ):
        broker.log("orders", 1).has_leader = error is not None
        broker.log("orders", 1).damage = error
        await consumer.assign(["orders"], start="end")
        assert await consumer.position(("orders", 0)) == 0
        with pytest.raises(NotLeaderError if error is None else CorruptLogError):
            await asyncio.wait_for(consumer.position(("orders", 1)), 10)
        broker.log("orders", 1).has_leader = True
        broker.log("orders", 1).leader_epoch += 1  # As each election has it.
        broker.log("orders", 1).damage = None
        assert await asyncio.wait_for(consumer.position(("orders", 1)), 10) == 0
