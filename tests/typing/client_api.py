"""How users write it, for mypy: every line here must type-check. Never run."""

from collections.abc import Iterator, Sequence
from typing import Literal, assert_type

import pyarrow as pa

from millrace.client import (
    Admin,
    BatchHandle,
    BatchMetadata,
    ClusterHealth,
    ConfigValue,
    Consumer,
    DamagedReplica,
    FetchedRecords,
    FollowerDescription,
    GroupDescription,
    GroupListing,
    HangingTransaction,
    Lag,
    MillraceError,
    OffsetAndTimestamp,
    OutputRecords,
    Position,
    Producer,
    Record,
    RecordHandle,
    RecordMetadata,
    Records,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    SyncTransaction,
    TopicDescription,
    Transaction,
    TransactionDescription,
    TransactionListing,
)
from millrace.client.serialization import from_json, from_str, to_json


def first_partition(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
    return 0


async def asynchronous() -> None:
    async with Producer("localhost:7092", acks=1, value_serializer=from_json) as producer:
        handle = producer.send("orders", {"any": "thing"}, b"key", headers={"h": b"1"})
        assert_type(handle, RecordHandle)
        assert_type(await handle, RecordMetadata)
        assert_type(await producer.send_batch("orders", pa.array(["a"])), BatchMetadata)
        await producer.wait_for_room(1000)
        await producer.flush()
    async with Consumer(
        ["a:1", "b:2"], auto_offset_reset="latest", isolation="read_uncommitted"
    ) as consumer:
        await consumer.assign(["orders", ("payments", 0)], start="beginning")
        await consumer.assign({("orders", 0): 17, ("orders", 1): "beginning"})
        await consumer.assign({"orders": "end", ("payments", 0): 17})
        assert_type(await consumer.poll(), Records)
        assert_type(await consumer.poll_batches(), list[FetchedRecords])
        async for record in consumer:
            assert_type(record, Record)
        consumer.seek(("orders", 0), 7)
        assert_type(await consumer.position(("orders", 0)), int)
    async with Admin("localhost:7092") as admin:
        assert_type(await admin.create_topic("orders", partitions=2), TopicDescription)
        assert_type(await admin.describe_health(), ClusterHealth)
        await admin.drain_broker(2)
        await admin.unregister_broker(2)
        refused = await admin.reassign_partitions({("orders", 0): [1, 2], ("orders", 1): None})
        assert_type(refused, dict[tuple[str, int], MillraceError | None])
        await admin.elect_leaders([("orders", 0)], kind="unclean")
        assert_type(await admin.describe_damage(), list[DamagedReplica])
        found = await admin.list_offsets({("orders", 0): "end", ("payments", 1): 1672531200000})
        assert_type(found, dict[tuple[str, int], OffsetAndTimestamp])
        assert_type(
            await admin.list_offsets(["orders"], "max_timestamp", return_errors=True),
            dict[tuple[str, int], OffsetAndTimestamp | MillraceError],
        )
        assert_type(await admin.find_epoch_ends({("orders", 0): 3}), dict[tuple[str, int], int])
        for config in (await admin.describe_broker_configs()).values():
            assert_type(config["log_dirs"], ConfigValue)
        assert_type(
            await admin.delete_records({("orders", 0): 1200}),
            dict[tuple[str, int], int | MillraceError],
        )
        for log in await admin.describe_logs("orders"):
            assert_type(log.followers, tuple[FollowerDescription, ...])


def halves(read: FetchedRecords) -> Iterator[OutputRecords]:
    yield OutputRecords("halves", read.records["value"])


async def in_transactions() -> None:
    async with (
        Consumer("localhost:7092", group="g", enable_auto_commit=False) as consumer,
        Producer("localhost:7092", transactional_id="t", transaction_timeout_ms="1m") as producer,
    ):
        async with producer.transaction(consumer) as t:
            assert_type(t, Transaction)
            assert_type(t.send("orders", b"v"), RecordHandle)
            assert_type(t.send_batch("orders", [b"a", None]), BatchHandle)
            await t.commit_positions(consumer)
            await t.commit_positions(consumer, {("orders", 0): 7})
            await t.commit_positions(producer)  # type: ignore[arg-type]
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction(None, consumer)
        await producer.commit_transaction()
        assert_type(
            await producer.outcome(), Literal["committed", "aborted", "open", "unknown"] | None
        )
        await consumer.process_exactly_once(halves, producer, interval_ms=50)
    with (
        SyncConsumer("localhost:7092", group="g", enable_auto_commit=False) as reader,
        SyncProducer("localhost:7092", transactional_id="t") as writer,
    ):
        with writer.transaction(reader) as sync:
            assert_type(sync, SyncTransaction)
            sync.commit_positions(reader)
        reader.process_exactly_once(halves, writer)
    with SyncAdmin("localhost:7092") as admin:
        assert_type(admin.list_transactions(["ongoing"]), list[TransactionListing])
        admin.list_transactions(["open"])  # type: ignore[list-item]
        assert_type(admin.describe_transaction("t"), TransactionDescription | None)
        assert_type(admin.find_hanging_transactions(), list[HangingTransaction])


def synchronous() -> None:
    with SyncProducer("a:1,b:2", partitioner=first_partition, key_serializer=from_str) as producer:
        assert_type(producer.send("orders", b"v", "key").result(timeout=1.0), RecordMetadata)
        assert_type(producer.send_batch("orders", [b"a", None]), BatchHandle)
        assert_type(producer.partitions_for("orders"), list[int])
    with SyncConsumer("localhost:7092", value_deserializer=to_json) as consumer:
        consumer.subscribe(["orders"], start="end")
        records: Sequence[Record] = consumer.poll(timeout_ms=10, max_records=5)
        assert_type(consumer.position(("orders", 0)), int)
        assert_type(consumer.assignment(), list[tuple[str, int]])
        consumer.seek("orders", 0)  # type: ignore[arg-type]
        assert_type(records[0].offset, int)  # type: ignore[assert-type]  # An Offset, an int.
    with SyncAdmin("localhost:7092") as admin:
        assert_type(admin.list_topics(), list[str])
        assert_type(
            admin.list_offsets("orders", isolation="read_uncommitted"),
            dict[tuple[str, int], OffsetAndTimestamp],
        )
        assert_type(
            admin.list_offsets(["orders"], return_errors=True),
            dict[tuple[str, int], OffsetAndTimestamp | MillraceError],
        )
        admin.delete_topic()  # type: ignore[call-arg]
        start = admin.resolve_initial("report", {("orders", 0): Position(7, leader_epoch=3)})
        assert_type(start, dict[tuple[str, int], Position])
        admin.commit_positions("report", start)
        assert_type(
            admin.fetch_positions("report", kind="initial"), dict[tuple[str, int], Position]
        )
        assert_type(admin.list_groups(), list[GroupListing])
        assert_type(admin.describe_group("report"), GroupDescription | None)
        assert_type(
            admin.describe_lags({("orders", 0): 7}), dict[tuple[str, int], Lag | MillraceError]
        )
        admin.forget_topics("report", ["t"])
        admin.delete_group("report")
