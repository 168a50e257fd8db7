"""The async producer on a real wire, against a broker that fails when told to."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.fakes.broker import FakeBroker

from millrace.client import (
    AbortedError,
    Appended,
    BatchHandle,
    BufferExhaustedError,
    ClosedError,
    ConnectionFailedError,
    Consumer,
    DeliveryTimedOutError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    MessageTooLargeError,
    Producer,
    Record,
    RecordHandle,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from millrace.client.serialization import from_int64, from_json, from_str
from millrace.core.client.producer.batch import ProducerBatch
from millrace.core.client.producer.intake import Intake
from millrace.core.client.producer.murmur2 import partition_of
from millrace.core.errors import NotEnoughReplicasError, NotLeaderError, UnknownServerError
from millrace.core.records.batch import open_batch, walk


async def test_a_record_is_acknowledged_with_its_place() -> None:
    async with FakeBroker(orders=2) as broker, Producer(broker.address, client_id="me") as producer:
        metadata = await producer.send("orders", b"v", b"k", partition=1, timestamp=77)
        assert metadata == ("orders", 1, 0, 77)
        assert broker.log("orders", 1).records() == [(0, b"k", b"v")]
        assert broker.software == [("me", "millrace-python")]


async def test_a_delivered_record_is_gone_without_the_garbage_collector() -> None:
    def kept() -> int:
        return sum(isinstance(found, ProducerBatch | Intake) for found in gc.get_objects())

    async with FakeBroker(orders=2) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"first")
        gc.collect()
        gc.disable()
        try:
            before = kept()
            for partition in (0, 1, None):
                await producer.send("orders", b"v", b"k", partition=partition)
            await producer.send_batch("orders", [b"v"] * 10)
            assert kept() <= before
        finally:
            gc.enable()


@pytest.mark.parametrize("way", ["flushed", "aborted"])
async def test_what_comes_at_once_is_sent_while_the_rest_is_made_into_batches(way: str) -> None:
    """A program fills the buffer faster than batches are made: the broker need not wait."""
    settings: dict[str, Any] = {"transactional_id": "t"} if way == "aborted" else {}
    async with FakeBroker(orders=1) as broker, Producer(broker.address, **settings) as producer:
        if settings:
            await producer.begin_transaction()
        await producer.send("orders", b"first")
        pipeline = producer._pipeline
        requests = pipeline.counters.requests
        handles = [producer.send_batch("orders", [b"%d" % n * 500] * 2048) for n in range(8)]
        pipeline._step()
        assert pipeline.counters.requests > requests
        assert pipeline.counters.records < 4 * 2048, "they have got their partitions"
        assert pipeline.unfinished_records() == 8 * 2048
        if way == "aborted":
            await producer.abort_transaction()
            for handle in handles:
                with pytest.raises(AbortedError):
                    await handle
        else:
            await producer.flush()
            values = [value for _, _, value in broker.log("orders", 0).records()]
            assert values[1:] == [b"%d" % n * 500 for n in range(8) for _ in range(2048)]


async def test_flush_delivers_everything_in_order_per_key() -> None:
    async with FakeBroker(orders=4) as broker, Producer(broker.address) as producer:
        for number in range(5000):
            producer.send("orders", b"%d" % number, b"key-%d" % (number % 11))
        await producer.flush()
        found: dict[bytes, list[int]] = {}
        for partition, log in enumerate(broker.topics["orders"].logs):
            for _, key, value in log.records():
                assert key is not None
                assert value is not None
                assert partition_of(key, 4) == partition
                found.setdefault(key, []).append(int(value))
        assert sum(map(len, found.values())) == 5000
        assert all(numbers == sorted(numbers) for numbers in found.values())
        assert producer.metrics()["buffer_available_bytes"] == 32 * 1024 * 1024


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("batch_size", [0, 300, 1_000_000])
async def test_records_sent_in_every_way_keep_their_order_in_each_partition(
    batch_size: int, compression: str
) -> None:
    async with (
        FakeBroker() as broker,
        Producer(
            broker.address, batch_size=batch_size, compression=compression, retry_backoff_ms=1
        ) as producer,
    ):
        broker.create_topic("orders", 4)
        broker.dropped_answers = 1
        for number in range(0, 900, 9):
            values = [b"%06d" % value for value in range(number, number + 9)]
            producer.send("orders", values[0], b"key-%d" % (number % 7))
            producer.send("orders", values[1])
            producer.send("orders", values[2], partition=number % 4)
            producer.send("default/orders", values[3], headers={"a": b"b"})
            producer.send("orders", values[4], b"key-%d" % (number % 5), timestamp=77)
            producer.send_batch("orders", values[5:7], [None, b"key-%d" % (number % 3)])
            producer.send_batch("orders", values[7:9], partition=number % 3)
            if number % 90 == 0:
                await asyncio.sleep(0)  # Some leave while others come.
        await producer.flush()
        contents = [log.values() for log in broker.topics["orders"].logs]
        assert sum(map(len, contents)) == 900
        for values_found in contents:
            assert values_found == sorted(v for v in values_found if v is not None)


async def test_batches_take_sequences_arrow_and_tables() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        await producer.send_batch("orders", [b"a", None, b""], keys=[b"1", b"2", None])
        await producer.send_batch("orders", pa.array(["b"]), timestamps=[5])
        table = pa.table({"key": ["x", "y"], "value": [b"c", b"d"], "other": [1, 2]})
        metadata = await producer.send_batch("orders", table)
        assert metadata.record_count == 2
        assert [(r.partition, r.base_offset, r.record_count) for r in metadata.ranges] == [
            (0, 4, 2)
        ]
        assert broker.log("orders").records() == [
            (0, b"1", b"a"),
            (1, b"2", None),
            (2, None, b""),
            (3, None, b"b"),
            (4, b"x", b"c"),
            (5, b"y", b"d"),
        ]


class Frame:
    """What can be taken for Arrow, as the series and data frames of other libraries."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, column: object) -> object:
        raise KeyError(column)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._columns.__arrow_c_stream__(requested_schema)


async def test_data_frames_and_series_of_other_libraries_are_taken_as_arrow() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        key, value = (pa.array(["x", None], kind) for kind in (pa.string_view(), pa.binary()))
        frame = pa.table({"key": key, "value": value, "timestamp": [7, 8], "other": [1, 2]})
        await producer.send_batch("orders", Frame(frame))
        values = pa.chunked_array([["c"], ["d"]])
        times = pa.array([5, 6], pa.timestamp("ms"))
        await producer.send_batch(
            "orders", Frame(values), keys=Frame(pa.chunked_array([key])), timestamps=times
        )
        await producer.send_batch("orders", Frame(pa.chunked_array([frame["value"]])))
        assert broker.log("orders").records() == [
            (0, b"x", b"x"),
            (1, None, None),
            (2, b"x", b"c"),
            (3, None, b"d"),
            (4, None, b"x"),
            (5, None, None),
        ]


async def test_a_pandas_data_frame_is_taken_by_its_columns() -> None:
    pandas = pytest.importorskip("pandas", reason="comes with what Spark needs")
    async with FakeBroker(orders=3) as broker, Producer(broker.address) as producer:
        times = pandas.to_datetime([1, 2], unit="ms")
        frame = pandas.DataFrame({"key": ["a", "b"], "value": [b"1", b"2"], "timestamp": times})
        frame["partition"] = [2, 2]
        await producer.send_batch("orders", frame)
        assert broker.log("orders", 2).records() == [(0, b"a", b"1"), (1, b"b", b"2")]
        with pytest.raises(InvalidRecordError, match="cannot be made Arrow columns"):
            producer.send_batch("orders", pandas.DataFrame({"value": [b"1", "2", 3]}))
        frame["partition"] = ["one", "two"]
        with pytest.raises(InvalidRecordError, match=r"the partition column is .*string"):
            producer.send_batch("orders", frame)


@pytest.mark.parametrize("name", ["values", "keys", "headers"])
async def test_a_mapping_is_no_column(name: str) -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        columns: dict[str, Any] = {"values": [b"v"], name: {b"key": b"value"}}
        with pytest.raises(InvalidRecordError, match=f"{name} are a dict.*pyarrow.table"):
            producer.send_batch("orders", **columns)
        assert producer.metrics()["records"] == 0


async def test_every_record_of_a_batch_has_its_handle() -> None:
    async with FakeBroker(orders=3) as broker, Producer(broker.address) as producer:
        handle = producer.send_batch(
            "orders", [b"%d" % n for n in range(90)], [b"%d" % n for n in range(90)]
        )
        await handle
        for number in range(90):
            place = await handle[number]
            log = broker.log("orders", place.partition)
            assert log.records()[place.offset][2] == b"%d" % number
        with pytest.raises(IndexError):
            handle[90]


async def test_serializers_make_bytes_and_fail_a_record_alone() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address, key_serializer=from_int64, value_serializer=from_json) as producer,
    ):
        producer.send("orders", {"a": 1}, 5)
        with pytest.raises(SerializationError, match="key serializer raised"):
            producer.send("orders", {"a": 2}, "no number")
        handle = producer.send_batch("orders", [1, object(), 3], keys=[1, 2, 3])
        with pytest.raises(SerializationError):
            await handle
        assert list(handle.errors()) == [1]
        assert (await handle[2]).offset == 2
        arrow = producer.send_batch("orders", pa.array([b"as it is"]))
        await arrow
        assert broker.log("orders").values() == [b'{"a":1}', b"1", b"3", b"as it is"]


async def test_text_needs_a_serializer() -> None:
    async with FakeBroker(orders=1) as broker:
        async with Producer(broker.address) as producer:
            with pytest.raises(SerializationError, match="value_serializer"):
                producer.send("orders", "text")
        async with Producer(broker.address, value_serializer=from_str) as producer:
            await producer.send("orders", "text")
        assert broker.log("orders").values() == [b"text"]


async def test_headers_travel() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"v", headers={"trace": b"1", "none": None})
        await producer.send_batch("orders", [b"w", b"x"], headers=[[("h", b"2")], None])
        assert broker.log("orders").values() == [b"v", b"w", b"x"]


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 2},
        {"linger_ms": -1},
        {"batch_size": 10**9},
        {"compression": "brotli"},
        {"compression": "zstd", "compression_level": 99},
        {"partitioner": "random"},
        {"buffer_memory": 1.5},
        {"linger_ms": 10, "delivery_timeout_ms": 10},
    ],
)
async def test_settings_out_of_bounds_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError):
        Producer("127.0.0.1:1", **settings)


@pytest.mark.parametrize("bootstrap", ["", "nowhere", "host:", "host:0", "host:99999"])
async def test_a_bootstrap_address_must_be_one(bootstrap: str) -> None:
    with pytest.raises(InvalidConfigError, match="host:port"):
        Producer(bootstrap)


async def test_a_record_that_has_no_time_where_it_comes_from_gets_that_of_its_sending() -> None:
    begun = time.time() * 1000 - 1
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"0", timestamp=-1)
        await producer.send_batch("orders", [b"1", b"2"], timestamps=-1)
        await producer.send_batch("orders", [b"3", b"4", b"5"], timestamps=[7, -1, 9])
        times = pa.array([-1, 8], pa.int64())
        await producer.send_batch("orders", pa.table({"value": [b"6", b"7"], "timestamp": times}))
        log = broker.log("orders")
        opened = [
            open_batch(log.topic_partition, header, data, 1 << 20)
            for _, _, batch in log.batches
            for header, data in walk(batch)
        ]
    found = [time for records in opened for time in records.column("timestamp").to_pylist()]
    assert [found[at] for at in (3, 5, 7)] == [7, 9, 8]
    assert all(begun <= found[at] <= time.time() * 1000 for at in (0, 1, 2, 4, 6))


async def test_misuse_is_refused_at_the_call() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        with pytest.raises(InvalidTopicError):
            producer.send("no good!", b"v")
        with pytest.raises(InvalidRecordError):
            producer.send("orders", b"v", partition=-1)
        with pytest.raises(InvalidRecordError):
            producer.send("orders", b"v", timestamp=-5)
        with pytest.raises(InvalidRecordError, match="different lengths"):
            producer.send_batch("orders", [b"a"], keys=[b"k", b"l"])
        with pytest.raises(InvalidRecordError, match="needs `value` or `key`"):
            producer.send_batch("orders", pa.table({"other": [1]}))
        with pytest.raises(MessageTooLargeError):
            producer.send("orders", bytes(64 * 1024 * 1024))


_NAMELESS = pa.array(
    [[{"key": None, "value": b"v"}]],
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda producer: producer.send("orders", b"bad", timestamp=1_700_000_000_000_000),
        lambda producer: producer.send("orders", b"bad", headers=[("\udcff", b"")]),
        lambda producer: producer.send_batch(
            "orders", [b"bad"], timestamps=[1_700_000_000_000_000]
        ),
        lambda producer: producer.send_batch("orders", [b"bad"], timestamps=pa.array(["noon"])),
        lambda producer: producer.send_batch("orders", [b"bad"], timestamps=np.zeros((1, 1))),
        lambda producer: producer.send_batch("orders", [b"bad"], headers=[5]),
        lambda producer: producer.send("orders", b"bad", headers=[("n",)]),
        lambda producer: producer.send_batch("orders", [b"bad"], headers=[{"\udcff": b""}]),
        lambda producer: producer.send_batch("orders", [b"bad"], headers=pa.array([1])),
        lambda producer: producer.send_batch("orders", [b"bad"], headers=_NAMELESS),
        lambda producer: producer.send_batch(
            "orders", [b"bad"], headers=pa.array([[{"name": "n", "value": b"v"}]])
        ),
    ],
)
async def test_what_no_batch_can_hold_is_refused_at_the_call_and_harms_no_other_record(
    misuse: Callable[[Producer], object],
) -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        handles = [
            producer.send("orders", b"1", timestamp=5),
            producer.send("orders", b"2", headers={"é": b""}),
        ]
        with pytest.raises(InvalidRecordError):
            misuse(producer)
        assert [(await handle).offset for handle in handles] == [0, 1]


NO_TIMES = [
    True,
    np.True_,
    1.0,
    1.5,
    np.float64(1),
    "1",
    -2,
    datetime(2026, 7, 4, tzinfo=UTC),
    2**63,
    2**70,
    np.datetime64("NaT", "ms"),
]


@pytest.mark.parametrize("time", NO_TIMES, ids=repr)
async def test_what_send_refuses_as_a_time_send_batch_refuses_in_each_form(time: Any) -> None:
    columns: list[Any] = [time, [time], [1, time], (time,), np.array([time]), [None]]
    columns += [np.array([time], object)]
    with suppress(pa.ArrowException, OverflowError):
        columns += [pa.array([time], pa.uint64() if time == 2**63 else None)]
    not_refused = pa.timestamp("us", "UTC")
    columns = [column for column in columns if getattr(column, "type", None) != not_refused]
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        with pytest.raises(InvalidRecordError, match="timestamp"):
            producer.send("orders", b"bad", timestamp=time)
        for column in columns:
            count = 2 if isinstance(column, list) and len(column) == 2 else 1
            with pytest.raises(InvalidRecordError, match="timestamp"):
                producer.send_batch("orders", [b"bad"] * count, timestamps=column)
            if isinstance(column, pa.Array):
                table = pa.table({"value": [b"bad"], "timestamp": column})
                with pytest.raises(InvalidRecordError, match="timestamp"):
                    producer.send_batch("orders", table)
        await producer.send("orders", b"good")
        assert broker.log("orders").values() == [b"good"]


@pytest.mark.parametrize("partition", [True, 1.0, "1", -1, 2**31], ids=repr)
async def test_what_send_refuses_as_a_partition_is_refused_in_a_table_too(partition: Any) -> None:
    async with FakeBroker(orders=2) as broker, Producer(broker.address) as producer:
        table = pa.table({"value": [b"bad", b"bad"], "partition": [None, partition]})
        for misuse in (
            lambda: producer.send("orders", b"bad", partition=partition),
            lambda: producer.send_batch("orders", [b"bad"], partition=partition),
            lambda: producer.send_batch("orders", table),
        ):
            with pytest.raises(InvalidRecordError, match="partition"):
                misuse()


async def test_whole_numbers_of_numpy_and_arrow_are_partitions_and_times() -> None:
    one: Any = np.int64(1)
    zero: Any = np.int64(0)
    eight_bits: Any = np.uint8(1)
    async with FakeBroker(orders=2) as broker, Producer(broker.address) as producer:
        metadata = await producer.send("orders", b"1", partition=eight_bits, timestamp=one)
        assert metadata.partition == 1
        since_1970: Any = np.datetime64(1, "ms")
        await producer.send("orders", b"1", partition=1, timestamp=since_1970)
        times: list[Any] = [one, 1, [one], [1], np.array([1], np.uint8), range(1, 2), (1,)]
        times += [np.array([1], object), np.array([1_000_000], "datetime64[ns]")]
        times += [np.datetime64(1_000_000, "ns"), [np.datetime64(1, "ms")]]
        times += [[np.datetime64(1_000_000, "ns")]]
        times += [np.array([np.datetime64(1_000_000, "ns")], object)]
        times += [pa.array([1], pa.int8()), pa.array([1000], pa.timestamp("us"))]
        for number, column in enumerate(times):
            value = b"%d" % number
            await producer.send_batch("orders", [value], partition=one, timestamps=column)
        table = pa.table(
            {
                "value": [b"t"],
                "partition": pa.array([1], pa.int8()),
                "timestamp": pa.array([1], pa.uint32()),
            }
        )
        await producer.send_batch("orders", table)
        assert len(broker.log("orders", 1).values()) == len(times) + 3
        async with Consumer(broker.address) as consumer:
            place = ("orders", one)
            await consumer.assign([place], start=zero)
            records: list[Record] = []
            while len(records) < len(times) + 3:
                records += await consumer.poll()
            assert {record.timestamp for record in records} == {1}


async def test_headers_whose_names_are_no_texts_are_refused_in_arrow_too() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        headers = pa.array([[{"key": 1, "value": b"x"}]])
        with pytest.raises(InvalidRecordError, match="header"):
            producer.send_batch("orders", [b"bad"], headers=headers)


async def test_headers_may_be_arrow_of_any_type_that_can_be_cast() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        headers = pa.chunked_array([[[{"key": "k", "value": "text"}]], [None]])
        await producer.send_batch("orders", [b"a", b"b"], headers=headers)
        assert broker.log("orders").values() == [b"a", b"b"]


async def test_a_partition_that_does_not_exist_fails_its_record() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        good = producer.send("orders", b"good", partition=0)
        bad = producer.send("orders", b"bad", partition=5)
        assert (await good).offset == 0
        with pytest.raises(UnknownTopicOrPartitionError):
            await bad


async def test_records_wait_for_a_topic_that_comes_later_where_that_is_asked_for() -> None:
    async with FakeBroker() as broker, Producer(broker.address, topic_wait_ms=60_000) as producer:
        first = producer.send("late", b"1", b"k")
        batch = producer.send_batch("late", [b"2", b"3"], keys=[b"k", b"k"])
        await asyncio.sleep(0.02)
        broker.create_topic("late", 2)
        await first
        await batch
        (log,) = [log for log in broker.topics["late"].logs if log.batches]
        assert log.values() == [b"1", b"2", b"3"]


async def test_records_for_a_topic_that_is_not_there_fail_at_once() -> None:
    async with FakeBroker() as broker, Producer(broker.address) as producer:
        handle = producer.send("nowhere", b"v")
        async with asyncio.timeout(10):  # Brokers that do not answer are waited for longer.
            with pytest.raises(UnknownTopicOrPartitionError, match="topic_wait_ms=0") as caught:
                await handle
        assert caught.value.appended is Appended.NO


async def test_a_topic_of_which_only_another_broker_has_heard_is_there() -> None:
    async with FakeBroker(1) as behind, FakeBroker(2, orders=1) as current:
        behind.others = [current.described]
        async with Producer(behind.address) as producer:
            assert (await producer.send("orders", b"v")).offset == 0


async def test_an_unknown_topic_is_an_error_after_the_time_to_wait_for_it() -> None:
    async with FakeBroker() as broker, Producer(broker.address, topic_wait_ms=150) as producer:
        began_at = time.monotonic()
        with pytest.raises(UnknownTopicOrPartitionError, match="topic_wait_ms=150"):
            await producer.send("nowhere", b"v")
        assert time.monotonic() - began_at > 0.05


async def test_an_unknown_topic_is_waited_for_no_longer_than_an_acknowledgement() -> None:
    async with (
        FakeBroker() as broker,
        Producer(broker.address, delivery_timeout_ms=600, topic_wait_ms=60_000) as producer,
        asyncio.timeout(20),
    ):
        handle = producer.send("nowhere", b"v")
        with pytest.raises(UnknownTopicOrPartitionError, match="delivery_timeout_ms=600"):
            await producer.flush()
        with pytest.raises(UnknownTopicOrPartitionError):
            await handle


async def test_a_refusal_to_tell_of_a_topic_is_no_time_out() -> None:
    async with FakeBroker() as broker, Producer(broker.address) as producer:
        broker.metadata_refusal = UnknownServerError("a bug")
        with pytest.raises(UnknownServerError, match=r"a bug .*were not sent") as caught:
            await producer.send("orders", b"v")
        assert caught.value.appended is Appended.NO


async def test_the_bootstrap_addresses_are_tried_in_turn() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(["127.0.0.1:1", broker.address]) as producer,
    ):
        assert (await producer.send("orders", b"v")).offset == 0


async def test_without_any_broker_the_error_names_the_addresses() -> None:
    async with Producer("127.0.0.1:1,127.0.0.1:2", max_block_ms=100) as producer:
        with pytest.raises(ConnectionFailedError, match=r"127\.0\.0\.1:2"):
            await producer.partitions_for("orders")


async def test_dropped_answers_are_repeated_and_never_double() -> None:
    async with (
        FakeBroker(orders=2) as broker,
        Producer(broker.address, batch_size=200, linger_ms=0, retry_backoff_ms=5) as producer,
    ):
        for number in range(600):
            producer.send("orders", b"%06d" % number, b"%d" % (number % 5))
            if number % 100 == 0:
                broker.dropped_answers = 1
                await asyncio.sleep(0.01)
        await producer.flush()
        values = [v for log in broker.topics["orders"].logs for v in log.values()]
        assert len(values) == len(set(values)) == 600
        for log in broker.topics["orders"].logs:
            assert log.values() == sorted(v for v in log.values() if v is not None)
        assert producer.metrics()["repeated_batches"] > 0


async def test_lost_requests_are_repeated_in_order() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address, batch_size=100, retry_backoff_ms=5) as producer,
    ):
        await producer.send("orders", b"000000")
        broker.lost_requests = 2
        for number in range(1, 200):
            producer.send("orders", b"%06d" % number)
        await producer.flush()
        assert broker.log("orders").values() == [b"%06d" % number for number in range(200)]


async def test_refusals_that_pass_are_repeated_in_order() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address, batch_size=100, retry_backoff_ms=5) as producer,
    ):
        await producer.send("orders", b"000000")
        broker.log("orders").refusals.extend(
            [NotEnoughReplicasError("too few"), NotLeaderError("elsewhere")]
        )
        for number in range(1, 100):
            producer.send("orders", b"%06d" % number)
        await producer.flush()
        assert broker.log("orders").values() == [b"%06d" % number for number in range(100)]


async def test_a_refusal_for_good_fails_its_batch_and_the_rest_goes_on() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address, batch_size=0) as producer:
        await producer.send("orders", b"0")
        broker.log("orders").refusals.append(InvalidTimestampError("too old"))
        handles = [producer.send("orders", b"%d" % number) for number in (1, 2, 3)]
        with pytest.raises(InvalidTimestampError) as caught:
            await handles[0]
        assert caught.value.appended is Appended.NO
        assert [(await handle).offset for handle in handles[1:]] == [1, 2]
        assert broker.log("orders").values() == [b"0", b"2", b"3"]


async def test_a_broker_that_comes_back_gets_everything_once() -> None:
    async with (
        FakeBroker(orders=2) as broker,
        Producer(broker.address, batch_size=500, retry_backoff_ms=10) as producer,
    ):
        await producer.send("orders", b"first", b"k")
        await broker.stop()
        handles = [producer.send("orders", b"%d" % n, b"%d" % n) for n in range(300)]
        await asyncio.sleep(0.05)
        await broker.start()
        for handle in handles:
            await handle
        values = [v for log in broker.topics["orders"].logs for v in log.values()]
        assert len(values) == len(set(values)) == 301


async def test_a_record_that_nobody_acknowledges_times_out_in_doubt() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        # Long enough to connect on a machine that is busy.
        Producer(broker.address, delivery_timeout_ms=1_500) as producer,
    ):
        await producer.send("orders", b"fine")
        broker.silent = True
        with pytest.raises(DeliveryTimedOutError) as caught:
            await producer.send("orders", b"lost")
        assert caught.value.appended is Appended.MAYBE
        broker.silent = False
        assert (await producer.send("orders", b"again")).offset == 1


async def test_on_the_loop_a_full_buffer_raises_at_once_and_room_can_be_awaited() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address, buffer_memory=4096) as producer,
    ):
        await producer.send("orders", b"warm")
        broker.gate.clear()
        handles: list[RecordHandle] = []
        with pytest.raises(BufferExhaustedError, match="wait_for_room") as caught:
            handles.extend(producer.send("orders", bytes(100)) for _ in range(1000))
        sent = len(handles)
        assert caught.value.appended is Appended.NO
        assert 30 <= sent <= 4096 // 108
        with pytest.raises(BufferExhaustedError):
            producer.send_batch("orders", [bytes(100)] * 5)
        waiting = asyncio.create_task(producer.wait_for_room(1000))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        broker.gate.set()
        await waiting
        producer.send_batch("orders", [bytes(100)] * 5)
        await producer.flush()
        assert len(broker.log("orders").values()) == 1 + sent + 5


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_a_flush_waits_for_no_company_of_what_waited_for_its_topic(compression: str) -> None:
    async with FakeBroker(orders=2) as broker, asyncio.timeout(20):
        settings: dict[str, Any] = {"linger_ms": 60_000, "compression": compression}
        async with Producer(broker.address, **settings) as producer:
            producer.send("orders", b"1", partition=0)
            await producer.flush()
            producer.send("orders", b"2", partition=1)
            await producer.flush()
        async with Producer(broker.address, **settings) as producer:
            producer.send("orders", b"3", partition=0)
        assert broker.log("orders").values() == [b"1", b"3"]


async def test_a_full_buffer_waits_for_no_company() -> None:
    async with (
        FakeBroker() as broker,
        Producer(
            broker.address, linger_ms=60_000, buffer_memory=100_000, partitioner="round_robin"
        ) as producer,
        asyncio.timeout(20),
    ):
        broker.create_topic("orders", 64)
        await producer.partitions_for("orders")
        for attempt in range(3):
            with suppress(BufferExhaustedError):
                while True:
                    producer.send("orders", bytes(1000))
                    await asyncio.sleep(0)
            if attempt == 0:
                await producer.wait_for_room(50_000)
            elif attempt == 1:  # Nobody waits, but a record was refused.
                await broker.until(lambda: producer.metrics()["buffer_available_bytes"] >= 50_000)
            else:
                with pytest.raises(BufferExhaustedError):
                    producer.send_batch("orders", [bytes(1000)] * 50)
                await asyncio.sleep(0.01)
        await producer.flush()


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address, buffer_memory=4096, max_block_ms=1) as producer,
    ):
        await producer.partitions_for("orders")
        await producer.send("orders", b"warm")
        broker.gate.clear()
        handle = producer.send("orders", bytes(4000))
        batch = producer.send_batch("orders", [b"v"])

        def from_a_thread() -> None:
            for _ in range(10):
                with pytest.raises(BufferExhaustedError):
                    producer.send("orders", bytes(100))
                with pytest.raises(TimeoutError):
                    handle.result(timeout=0)

        async def wait(for_what: Awaitable[object]) -> None:
            await for_what

        await asyncio.to_thread(from_a_thread)
        waiting = [
            asyncio.create_task(wait(for_what))
            for for_what in (handle, batch, producer.wait_for_room(4096))
        ]
        await asyncio.sleep(0.01)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        pipeline = producer._pipeline
        assert not pipeline.room._threads_waiting
        assert not pipeline.room._tasks_waiting
        assert not handle.intake.waiters
        assert not batch[0].intake.waiters
        broker.gate.set()


async def test_while_requests_are_in_flight_batches_fill() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address, linger_ms=0) as producer:
        await producer.send("orders", b"warm")
        broker.gate.clear()
        for number in range(2000):
            producer.send("orders", b"%d" % number)
            if number % 20 == 0:
                await asyncio.sleep(0)
        broker.gate.set()
        await producer.flush()
        assert len(broker.log("orders").values()) == 2001
        assert len(broker.log("orders").batches) < 20


async def test_batches_of_many_partitions_share_a_request() -> None:
    async with FakeBroker(orders=50) as broker, Producer(broker.address) as producer:
        for partition in range(50):
            producer.send("orders", b"v", partition=partition)
        await producer.flush()
        assert max(broker.batches_per_request) == 50


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_batches_keep_order(compression: str) -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address, compression=compression, batch_size=2000) as producer,
    ):
        for number in range(2000):
            producer.send("orders", b"%08d" % number)
        await producer.flush()
        assert broker.log("orders").values() == [b"%08d" % n for n in range(2000)]
        assert producer.metrics()["batch_bytes"] < producer.metrics()["record_bytes"]


@pytest.mark.parametrize("acks", [0, 1])
async def test_with_fewer_acks_records_arrive_as_well(acks: Any) -> None:
    async with FakeBroker(orders=1) as broker:
        async with Producer(broker.address, acks=acks, batch_size=100) as producer:
            handles = [producer.send("orders", b"%03d" % number) for number in range(100)]
            await producer.flush()
            assert (await handles[0]).offset == (-1 if acks == 0 else 0)
        await broker.until(lambda: len(broker.log("orders").values()) == 100)
        assert broker.log("orders").values() == [b"%03d" % number for number in range(100)]
        assert not broker.log("orders").producers


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_what_a_stream_that_drains_has_not_sent_is_sent_by_the_next(acks: Any) -> None:
    """Streams drain when a broker stops in good order, and when a certificate is renewed."""
    async with FakeBroker(orders=1) as broker:
        async with Producer(broker.address, acks=acks, linger_ms=0) as producer:
            await producer.send("orders", b"first")
            streams, handles = producer._pipeline.streams, []
            for number in range(300):
                if number % 100 == 50:
                    await broker.until(lambda: bool(streams.open_streams()))
                    transport: Any = streams.open_streams()[0]._stream
                    transport.drain()
                handles.append(producer.send("orders", b"%03d" % number))
                await asyncio.sleep(0.001)
            await asyncio.gather(*handles)
        await broker.until(lambda: len(broker.log("orders").values()) >= 301)
        expected = [b"first", *(b"%03d" % number for number in range(300))]
        assert broker.log("orders").values() == expected


async def test_with_acks_0_what_no_broker_takes_stays_within_the_buffer() -> None:
    async with FakeBroker(orders=1) as broker:
        record, buffer = bytes(64 * 1024), 1024 * 1024
        async with Producer(broker.address, acks=0, buffer_memory=buffer) as producer:
            broker.gate.clear()

            async def fill() -> None:
                for _ in range(1000):  # 62 MiB, more than any transport holds.
                    producer.send("orders", record)
                    await asyncio.sleep(0.001)

            with pytest.raises(BufferExhaustedError):
                await fill()
            broker.gate.set()
            await producer.flush()


async def test_with_acks_0_a_refusal_lets_the_producer_look_up_who_leads() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address, acks=0) as producer:
        await producer.send("orders", b"before")
        await broker.until(lambda: broker.log("orders").values() == [b"before"])
        broker.log("orders").leader_epoch += 1
        for _ in range(1000):
            await producer.send("orders", b"after")
            if b"after" in broker.log("orders").values():
                break
            await asyncio.sleep(0.01)
        assert b"after" in broker.log("orders").values()


async def test_with_acks_0_what_is_refused_is_counted_and_leaders_are_left_alone() -> None:
    async with FakeBroker(orders=1) as broker:
        broker.log("orders").refusals.extend([InvalidTimestampError("too old")] * 50)
        async with Producer(broker.address, acks=0) as producer:
            for _ in range(100):
                await producer.send("orders", b"v")
                await asyncio.sleep(0.005)
            await broker.until(lambda: not broker.log("orders").refusals)
            await broker.until(lambda: producer.metrics()["refused_requests"] == 50)
            assert producer.metrics()["acknowledged_records"] == 100
        assert broker.look_ups < 5


async def test_with_acks_0_what_was_written_is_no_answer_of_the_broker() -> None:
    async with FakeBroker(orders=1) as broker:
        broker.lost_requests = 10_000  # It accepts connections, and breaks every stream.
        producer = Producer(broker.address, acks=0, retry_backoff_ms=20)
        begun = time.monotonic()
        for _ in range(200):  # They take 2 s, and longer where others use the machine.
            producer.send("orders", b"v")
            await asyncio.sleep(0.01)
        # Pauses of 20, 40, 80, 160, 320, 640 ms, and then of 1 s.
        assert len(broker.software) < 10 + (time.monotonic() - begun)
        broker.lost_requests = 0
        with suppress(ConnectionFailedError):  # Of those that were lost.
            await producer.close()


async def test_with_acks_0_a_broker_that_stands_still_is_not_waited_for_for_ever() -> None:
    async with FakeBroker(orders=1) as broker:
        producer = Producer(broker.address, acks=0, request_timeout_ms=500)
        broker.gate.clear()
        await producer.send("orders", b"v")
        async with asyncio.timeout(10):
            await producer.close()
        broker.gate.set()


async def test_a_closed_producer_says_so() -> None:
    async with FakeBroker(orders=1) as broker:
        producer = Producer(broker.address)
        producer.send("orders", b"v")
        await producer.close()
        await producer.close()
        assert broker.log("orders").values() == [b"v"]
        with pytest.raises(ClosedError):
            producer.send("orders", b"w")
        with pytest.raises(ClosedError):
            producer.send_batch("orders", [b"w"])


async def test_all_that_flush_hear_of_a_failure_that_they_waited_for() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"warm")
        broker.gate.clear()
        broker.log("orders").refusals.append(InvalidTimestampError("too old"))
        producer.send("orders", b"refused")
        flushes = [asyncio.create_task(producer.flush()) for _ in range(2)]
        given_up = asyncio.create_task(producer.flush())
        await asyncio.sleep(0.02)
        given_up.cancel()
        await asyncio.wait([given_up])
        broker.gate.set()
        for flush in flushes:
            with pytest.raises(InvalidTimestampError):
                await flush
        await producer.flush()  # Told.


async def test_a_failure_that_a_given_up_flush_has_heard_of_is_told_by_the_next() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"warm")
        broker.gate.clear()
        producer.send("orders", b"bad", partition=9)
        producer.send("orders", b"not acknowledged yet")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.flush(), 0.05)
        broker.gate.set()
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.flush()
        await producer.flush()


@pytest.mark.parametrize("ask", [lambda handle: handle, lambda handle: handle[0]])
async def test_what_a_handle_has_told_is_not_raised_again_when_the_producer_closes(
    ask: Callable[[BatchHandle], Awaitable[object]],
) -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        broker.log("orders").refusals.append(InvalidTimestampError("too old"))
        with pytest.raises(InvalidTimestampError):
            await ask(producer.send_batch("orders", [b"refused"]))
        with pytest.raises(UnknownTopicOrPartitionError):
            await ask(producer.send_batch("orders", [b"nowhere"], partition=9))


async def test_all_errors_of_a_batch_that_were_asked_for_are_not_raised_again() -> None:
    async with FakeBroker(orders=2) as broker, Producer(broker.address) as producer:
        for partition in range(2):
            broker.log("orders", partition).refusals.append(InvalidTimestampError("too old"))
        table = pa.table({"value": ["a", "b", "c", "d"], "partition": [0, 1, 9, 9]})
        handle = producer.send_batch("orders", table)
        with suppress(InvalidTimestampError, UnknownTopicOrPartitionError):
            await handle
        assert len(handle.errors()) == 4


async def test_a_failure_that_no_handle_has_told_of_is_raised_when_the_producer_closes() -> None:
    async with FakeBroker(orders=2) as broker:
        producer = Producer(broker.address)
        broker.log("orders").refusals.append(InvalidTimestampError("too old"))
        producer.send("orders", b"forgotten", partition=0)
        in_the_same_batch = producer.send("orders", b"looked after", partition=0)
        with pytest.raises(InvalidTimestampError):
            await in_the_same_batch
        with pytest.raises(InvalidTimestampError):
            await producer.close()


async def test_a_failure_after_one_that_a_handle_has_told_is_raised_when_the_producer_closes() -> (
    None
):
    async with FakeBroker(orders=2) as broker:
        producer = Producer(broker.address)
        broker.log("orders", 0).refusals.append(InvalidTimestampError("first"))
        broker.log("orders", 1).refusals.append(InvalidTimestampError("second"))
        first = producer.send("orders", b"looked after", partition=0)
        producer.send("orders", b"forgotten", partition=1)
        with pytest.raises(InvalidTimestampError, match="first"):
            await first
        with pytest.raises(InvalidTimestampError, match="second"):
            await producer.close()


async def test_a_flush_beside_a_close_that_is_cut_short_says_what_was_given_up() -> None:
    async with FakeBroker(orders=1) as broker:
        producer = Producer(broker.address)
        await producer.send("orders", b"warm")
        broker.silent = True
        handle = producer.send("orders", b"not answered")
        flush = asyncio.create_task(producer.flush())
        await asyncio.sleep(0.02)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.close(), 0.05)
        with pytest.raises(ClosedError) as caught:
            await flush
        assert caught.value.appended is Appended.MAYBE
        with pytest.raises(ClosedError):
            await handle
        assert producer.metrics()["failed_records"] == 1


async def test_what_is_sent_while_the_producer_closes_is_refused() -> None:
    async with FakeBroker(orders=1) as broker:
        producer = Producer(broker.address, buffer_memory=4096)
        await producer.send("orders", b"warm")
        broker.gate.clear()
        producer.send("orders", b"in time")
        waiting = asyncio.create_task(producer.wait_for_room(4096))
        await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            producer.send("orders", b"too late")
        with pytest.raises(ClosedError):
            producer.send_batch("orders", [b"too late"])
        with pytest.raises(ClosedError):
            await waiting
        broker.gate.set()
        await closing
        assert broker.log("orders").values() == [b"warm", b"in time"]


async def test_the_users_own_partitioner_decides() -> None:
    def by_last_digit(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        assert topic == "orders"
        assert value is not None
        return int(value) % count

    async with (
        FakeBroker(orders=3) as broker,
        Producer(broker.address, partitioner=by_last_digit) as producer,
    ):
        producer.send("orders", b"4")
        producer.send_batch("orders", [b"5", b"7"])
        broken = producer.send("orders", b"no digit")
        with pytest.raises(InvalidRecordError, match="partitioner raised"):
            await broken
        await producer.flush()
        values = [broker.log("orders", partition).values() for partition in range(3)]
        assert values == [[], [b"4", b"7"], [b"5"]]


async def test_a_callback_hears_of_the_outcome() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        offsets: list[int] = []
        for _ in range(3):
            handle = producer.send("orders", b"v")
            handle.add_done_callback(lambda h: offsets.append(h.result().offset))
        await producer.flush()
        assert offsets == [0, 1, 2]


async def test_a_callback_that_raises_disturbs_nobody() -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:
        async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
            producer.send("orders", b"v").add_done_callback(lambda handle: 1 / 0)
            assert (await producer.send("orders", b"w")).offset == 1
    finally:
        loop.set_exception_handler(None)
    assert isinstance(reported[0]["exception"], ZeroDivisionError)


async def test_batches_stay_below_what_the_topic_takes() -> None:
    async with FakeBroker() as broker, Producer(broker.address) as producer:
        broker.create_topic("orders", 1, {"max.message.bytes": "5000"})
        for number in range(1000):
            producer.send("orders", b"%d" % number)
        producer.send_batch("orders", [b""] * 5000)
        await producer.flush()
        assert len(broker.log("orders").values()) == 6000
        assert max(len(batch[2]) for batch in broker.log("orders").batches) <= 5000


async def test_batches_stay_below_what_brokers_take() -> None:
    async with FakeBroker() as broker, Producer(broker.address) as producer:
        broker.message_bytes_max = 5000
        broker.create_topic("orders", 1)
        producer.send_batch("orders", [b"v" * 100] * 1000)
        await producer.flush()
        assert len(broker.log("orders").values()) == 1000
        assert max(len(batch[2]) for batch in broker.log("orders").batches) <= 5000


async def test_a_topic_that_grows_is_used_whole() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address, metadata_max_age_ms=20, partitioner="round_robin") as producer,
    ):
        await producer.send("orders", b"v")
        broker.grow("orders", 2)
        async with asyncio.timeout(10):
            while not broker.log("orders", 1).batches:
                await producer.send("orders", b"v")


async def test_records_for_a_deleted_topic_fail_soon_and_its_next_namesake_gets_its_own() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Producer(broker.address, retry_backoff_ms=1) as producer,
    ):
        await producer.send("orders", b"before")
        broker.gate.clear()
        handle = producer.send("orders", b"too late")
        await asyncio.sleep(0.02)
        del broker.topics["orders"]
        broker.gate.set()
        async with asyncio.timeout(10):
            with pytest.raises(UnknownTopicOrPartitionError, match="was deleted") as caught:
                await handle
        assert caught.value.appended is Appended.NO
        broker.create_topic("orders", 1)
        await producer.send("orders", b"after")
        assert broker.log("orders").values() == [b"after"]


async def test_a_partition_that_is_not_there_is_looked_up_once_a_second_not_by_each_record() -> (
    None
):
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"y")
        loop = asyncio.get_running_loop()
        begun, look_ups = loop.time(), broker.look_ups
        for _ in range(40):
            with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 0"):
                await producer.send("orders", b"x", partition=2)
            await producer.send("orders", b"y")
        # Each time, the broker is asked first, and then as one of all brokers.
        assert 1 <= broker.look_ups - look_ups <= 2 * (1 + loop.time() - begun)
        broker.grow("orders", 3)
        async with asyncio.timeout(10):
            while not broker.log("orders", 2).batches:
                with suppress(UnknownTopicOrPartitionError):
                    await producer.send("orders", b"x", partition=2)
                await asyncio.sleep(0.01)
        await broker.until(lambda: not producer._pipeline._placing._looked_up_lately)


async def test_a_failed_look_up_does_not_say_that_a_partition_is_not_there() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"x")
        broker.grow("orders", 3)
        broker.metadata_refusal = UnknownServerError("a bug")
        with pytest.raises(UnknownTopicOrPartitionError):
            await producer.send("orders", b"x", partition=2)
        broker.metadata_refusal = None
        await producer.send("orders", b"x", partition=2)


async def test_records_for_a_partition_that_is_new_wait_for_a_look_up_and_keep_their_order() -> (
    None
):
    async with FakeBroker(orders=2) as broker, Producer(broker.address) as producer:
        await producer.send("orders", b"first", partition=0)
        broker.grow("orders", 3)
        for number in range(10):
            producer.send("orders", b"%d" % number, partition=2)
            producer.send("orders", b"%d" % number, partition=1)
        await producer.flush()
        for partition in (1, 2):
            assert broker.log("orders", partition).values() == [b"%d" % n for n in range(10)]
        none = producer.send("orders", b"x", partition=3)
        there = producer.send("orders", b"y", partition=2)
        with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 2"):
            await none
        assert (await there).offset == 10
