"""What aiokafka's documentation shows, as checks: they run in the suite's virtual environment."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    OffsetAndMetadata,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError, ProducerFenced
from tests.suites.inside.checks import Bench, expect, main, named

CHECK_TIMEOUT_S = 50
COUNT = 300
PARTITIONS = 4
VALUES = [b"value-%d" % number for number in range(COUNT)]


@asynccontextmanager
async def admin_of(bench: Bench) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bench.bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create(
    bench: Bench, partitions: int = 1, topic: str = "", configs: dict[str, str] | None = None
) -> str:
    topic = topic or bench.topic
    async with admin_of(bench) as admin:
        new = NewTopic(topic, partitions, bench.replication, topic_configs=configs or {})
        answer = await admin.create_topics([new])
        expect([error[1] for error in answer.topic_errors], [0])
        await grown(admin, topic, partitions)
    return topic


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for something; each check has a bound."""
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(0.05)


async def grown(admin: Any, topic: str, partitions: int) -> None:
    async def is_so() -> bool:
        return len((await admin.describe_topics([topic]))[0]["partitions"]) == partitions

    await until(is_so)


@asynccontextmanager
async def producer_of(bench: Bench, **settings: Any) -> AsyncIterator[Any]:
    producer = AIOKafkaProducer(bootstrap_servers=bench.bootstrap, **settings)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consumer_of(bench: Bench, *topics: str, **settings: Any) -> AsyncIterator[Any]:
    settings = {"auto_offset_reset": "earliest", **settings}
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=bench.bootstrap, **settings)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def fill(bench: Bench, topic: str, partition: int | None = None, **settings: Any) -> None:
    async with producer_of(bench, **settings) as producer:
        for future in [await producer.send(topic, value, partition=partition) for value in VALUES]:
            await future


async def read(consumer: Any, count: int = COUNT) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        for records in (await consumer.getmany(timeout_ms=500)).values():
            found += records
    return found


async def all_values(bench: Bench, topic: str, **settings: Any) -> list[bytes]:
    """Return all values before the end that the consumer's isolation shows."""
    async with consumer_of(bench, topic, **settings) as consumer:
        values = []
        ends = await consumer.end_offsets(consumer.assignment())
        while any([await consumer.position(at) < end for at, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                values += [record.value for record in records]
        return values


async def check_produce_consume(bench: Bench) -> None:
    topic = await create(bench, PARTITIONS)
    headers = [("trace", b"abc"), ("trace", b"")]
    async with producer_of(bench) as producer:
        for number, value in enumerate(VALUES):
            sent = await producer.send_and_wait(
                topic, value, key=b"%d" % number, partition=number % PARTITIONS,
                timestamp_ms=1_700_000_000_000 + number, headers=headers,
            )  # fmt: skip
            expect(sent.partition, number % PARTITIONS)
    async with consumer_of(bench, topic) as consumer:
        found = sorted(await read(consumer), key=lambda record: record.timestamp)
    expect([record.value for record in found], VALUES)
    expect(found[7].key, b"7")
    expect(found[7].timestamp, 1_700_000_000_007)
    expect(list(found[7].headers), headers)


async def check_null_values(bench: Bench) -> None:
    topic = await create(bench)
    async with producer_of(bench) as producer:
        await producer.send_and_wait(topic, None, key=b"gone")
        await producer.send_and_wait(topic, b"", key=None)
    async with consumer_of(bench, topic) as consumer:
        found = await read(consumer, 2)
    expect([(record.key, record.value) for record in found], [(b"gone", None), (None, b"")])


async def compressed(bench: Bench, codec: str) -> None:
    topic = await create(bench)
    await fill(bench, topic, compression_type=codec)
    expect(await all_values(bench, topic), VALUES)


async def check_gzip(bench: Bench) -> None:
    await compressed(bench, "gzip")


async def check_snappy(bench: Bench) -> None:
    await compressed(bench, "snappy")


async def check_lz4(bench: Bench) -> None:
    await compressed(bench, "lz4")


async def check_zstd(bench: Bench) -> None:
    await compressed(bench, "zstd")


async def check_acks_0(bench: Bench) -> None:
    topic = await create(bench)
    await fill(bench, topic, acks=0)
    async with consumer_of(bench, topic) as consumer:
        expect([record.value for record in await read(consumer)], VALUES)


async def check_idempotent(bench: Bench) -> None:
    topic = await create(bench)
    await fill(bench, topic, enable_idempotence=True, linger_ms=2, max_batch_size=1000)
    expect(await all_values(bench, topic), VALUES)


async def check_batches_by_hand(bench: Bench) -> None:
    topic = await create(bench)
    async with producer_of(bench) as producer:
        batch = producer.create_batch()
        for value in VALUES:
            batch.append(key=None, value=value, timestamp=None)
        batch.close()
        sent = await (await producer.send_batch(batch, topic, partition=0))
    expect(sent.offset, 0)
    expect(await all_values(bench, topic), VALUES)


async def check_transactions(bench: Bench) -> None:
    topic = await create(bench, PARTITIONS)
    async with producer_of(bench, transactional_id=bench.group) as producer:
        for number in range(6):
            await producer.begin_transaction()
            for partition in range(PARTITIONS):
                await producer.send_and_wait(topic, b"%d" % number, partition=partition)
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"6", partition=0)
    committed = await all_values(bench, topic, isolation_level="read_committed")
    expect(sorted(committed), sorted([b"0", b"2", b"4"] * PARTITIONS + [b"6"]))
    async with consumer_of(bench, topic) as consumer:
        found = await read(consumer, 6 * PARTITIONS + 1)
    expect(len(found), 6 * PARTITIONS + 1)


async def check_open_transaction(bench: Bench) -> None:
    topic = await create(bench)
    async with producer_of(bench, transactional_id=bench.group) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"open")
        expect(await all_values(bench, topic, isolation_level="read_committed"), [])
        await producer.commit_transaction()
    expect(await all_values(bench, topic, isolation_level="read_committed"), [b"open"])


async def check_fenced(bench: Bench) -> None:
    topic = await create(bench)
    async with producer_of(bench, transactional_id=bench.group) as first:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"lost")
        async with producer_of(bench, transactional_id=bench.group) as second:
            async with second.transaction():
                await second.send_and_wait(topic, b"kept")
            try:
                await first.send_and_wait(topic, b"late")
                await first.commit_transaction()
            except ProducerFenced:
                pass
            else:
                raise AssertionError("the first producer was not fenced")
    expect(await all_values(bench, topic, isolation_level="read_committed"), [b"kept"])


async def check_exactly_once_copy(bench: Bench) -> None:
    source, copy = await create(bench, PARTITIONS), await create(bench, topic=f"{bench.topic}-2")
    await fill(bench, source)
    settings = {"group_id": bench.group, "enable_auto_commit": False}
    copied = 0
    for part in range(2):  # The second one goes on where the first one has committed.
        async with (
            consumer_of(bench, source, **settings, isolation_level="read_committed") as consumer,
            producer_of(bench, transactional_id=bench.group) as producer,
        ):
            while copied < (COUNT if part else COUNT // 2):
                found = await consumer.getmany(timeout_ms=500, max_records=50)
                async with producer.transaction():
                    positions = {}
                    for at, records in found.items():
                        for record in records:
                            await producer.send(copy, record.value)
                        copied += len(records)
                        positions[at] = records[-1].offset + 1
                    if positions:
                        await producer.send_offsets_to_transaction(positions, bench.group)
    values = await all_values(bench, copy, isolation_level="read_committed")
    expect(sorted(values), sorted(VALUES))


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []

    async def on_partitions_revoked(self, revoked: Any) -> None:
        self.said.append(("revoked", len(revoked)))

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.said.append(("assigned", len(assigned)))


async def rebalanced(bench: Bench, assignor: Any) -> None:
    topic = await create(bench, PARTITIONS)
    settings = {
        "group_id": bench.group,
        "partition_assignment_strategy": [assignor],
        "heartbeat_interval_ms": 500,
    }
    listener = Listener()
    async with consumer_of(bench, **settings) as first:
        first.subscribe([topic], listener=listener)
        await until(lambda: len(first.assignment()) == PARTITIONS)
        async with consumer_of(bench, topic, **settings) as second:
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            expect(len(first.assignment() | second.assignment()), PARTITIONS)
            await fill(bench, topic)
            found: list[Any] = []
            while len(found) < COUNT:
                for consumer in (first, second):
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        found += records
            expect(sorted(record.value for record in found), sorted(VALUES))
        await until(lambda: len(first.assignment()) == PARTITIONS)
    expect(listener.said[1:4], [("assigned", 4), ("revoked", 4), ("assigned", 2)])


async def check_group_range(bench: Bench) -> None:
    await rebalanced(bench, RangePartitionAssignor)


async def check_group_roundrobin(bench: Bench) -> None:
    await rebalanced(bench, RoundRobinPartitionAssignor)


async def check_group_sticky(bench: Bench) -> None:
    await rebalanced(bench, StickyPartitionAssignor)


async def check_static_member(bench: Bench) -> None:
    topic = await create(bench, PARTITIONS)
    settings = {"group_id": bench.group, "session_timeout_ms": 30_000}
    async with consumer_of(bench, topic, **settings, group_instance_id="a") as first:
        await until(lambda: len(first.assignment()) == PARTITIONS)
    async with consumer_of(bench, topic, **settings, group_instance_id="a") as again:
        await until(lambda: len(again.assignment()) == PARTITIONS)
        await fill(bench, topic)
        expect(len(await read(again)), COUNT)


async def check_commit(bench: Bench) -> None:
    topic = await create(bench)
    await fill(bench, topic)
    settings = {"group_id": bench.group, "enable_auto_commit": False}
    at = TopicPartition(topic, 0)
    async with consumer_of(bench, topic, **settings) as consumer:
        expect(await consumer.committed(at), None)
        for _ in range(100):
            record = await consumer.getone()
        expect(record.value, VALUES[99])
        await consumer.commit()
        expect(await consumer.committed(at), 100)
        await consumer.commit({at: OffsetAndMetadata(120, "by hand")})
    async with consumer_of(bench, topic, **settings) as consumer:
        expect((await consumer.getone()).offset, 120)
    async with admin_of(bench) as admin:
        positions = await admin.list_consumer_group_offsets(bench.group)
        expect(positions[at], OffsetAndMetadata(120, "by hand"))


async def check_auto_commit(bench: Bench) -> None:
    topic = await create(bench)
    await fill(bench, topic)
    settings = {"group_id": bench.group, "auto_commit_interval_ms": 100}
    async with consumer_of(bench, topic, **settings) as consumer:
        await read(consumer)
    async with consumer_of(bench, topic, **settings) as consumer:
        expect(await consumer.committed(TopicPartition(topic, 0)), COUNT)


async def check_seek(bench: Bench) -> None:
    topic = await create(bench)
    await fill(bench, topic)
    at = TopicPartition(topic, 0)
    async with consumer_of(bench, group_id=bench.group, enable_auto_commit=False) as consumer:
        consumer.assign([at])
        consumer.seek(at, 200)
        expect((await consumer.getone()).offset, 200)
        await consumer.commit({at: 50})
        await consumer.seek_to_committed()
        expect((await consumer.getone()).offset, 50)
        await consumer.seek_to_beginning()
        expect((await consumer.getone()).offset, 0)
        await consumer.seek_to_end(at)
        expect(await consumer.position(at), COUNT)
        expect(consumer.highwater(at), COUNT)


async def check_out_of_range(bench: Bench) -> None:
    topic = await create(bench)
    await fill(bench, topic)
    at = TopicPartition(topic, 0)
    async with consumer_of(bench, auto_offset_reset="none") as consumer:
        consumer.assign([at])
        consumer.seek(at, COUNT + 100)
        try:
            await consumer.getone()
        except OffsetOutOfRangeError:
            pass
        else:
            raise AssertionError("an offset after the end was read")
    async with consumer_of(bench, topic, auto_offset_reset="none", group_id=bench.group) as other:
        try:
            await other.getone()
        except NoOffsetForPartitionError:
            return
    raise AssertionError("a group without positions has read")


async def check_offsets_by_time(bench: Bench) -> None:
    topic = await create(bench)
    async with producer_of(bench) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, b"-", timestamp_ms=1_700_000_000_000 + number)
    at = TopicPartition(topic, 0)
    async with consumer_of(bench, topic) as consumer:
        expect(await consumer.beginning_offsets([at]), {at: 0})
        expect(await consumer.end_offsets([at]), {at: 10})
        (found,) = (await consumer.offsets_for_times({at: 1_700_000_000_004})).values()
        expect(tuple(found), (4, 1_700_000_000_004))
        expect(await consumer.offsets_for_times({at: 1_800_000_000_000}), {at: None})


async def check_pause(bench: Bench) -> None:
    topic = await create(bench, 2)
    for partition in range(2):
        await fill(bench, topic, partition)
    paused, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with consumer_of(bench, topic) as consumer:
        consumer.pause(paused)
        expect({record.partition for record in await read(consumer)}, {other.partition})
        consumer.resume(paused)
        expect({record.partition for record in await read(consumer)}, {paused.partition})


async def check_pattern(bench: Bench) -> None:
    topics = [await create(bench, topic=f"{bench.topic}-{number}") for number in range(2)]
    async with consumer_of(bench, group_id=bench.group, metadata_max_age_ms=500) as consumer:
        consumer.subscribe(pattern=f"{bench.topic}-.*")
        await until(lambda: len(consumer.assignment()) == 2)
        topics.append(await create(bench, topic=f"{bench.topic}-2"))  # It is found later.
        await until(lambda: len(consumer.assignment()) == 3)
        for topic in topics:
            await fill(bench, topic)
        expect({record.topic for record in await read(consumer, 3 * COUNT)}, set(topics))


async def check_admin_topics(bench: Bench) -> None:
    topic = await create(bench, 2, configs={"retention.ms": "3600000"})
    async with admin_of(bench) as admin:
        assert topic in await admin.list_topics()
        again = await admin.create_topics([NewTopic(topic, 1, 1)])
        expect([error[1] for error in again.topic_errors], [36])
        await admin.create_partitions({topic: NewPartitions(total_count=5)})
        await grown(admin, topic, 5)
        assert (await admin.describe_cluster())["cluster_id"]
        await admin.delete_topics([topic])

        async def is_gone() -> bool:
            return topic not in await admin.list_topics()

        await until(is_gone)


async def check_admin_configs(bench: Bench) -> None:
    topic = await create(bench, configs={"retention.ms": "3600000"})

    async def retention(admin: Any) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = await admin.describe_configs([resource])
        values = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        return str(values["retention.ms"])

    async with admin_of(bench) as admin:
        expect(await retention(admin), "3600000")
        changed = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})
        await admin.alter_configs([changed])

        async def is_changed() -> bool:
            return await retention(admin) == "7200000"

        await until(is_changed)


async def check_admin_groups(bench: Bench) -> None:
    topic = await create(bench, PARTITIONS)
    await fill(bench, topic, 0)
    async with (
        admin_of(bench) as admin,
        consumer_of(bench, topic, group_id=bench.group, enable_auto_commit=False) as consumer,
    ):
        await read(consumer)
        await consumer.commit()
        assert (bench.group, "consumer") in {
            tuple(entry[:2]) for entry in await admin.list_consumer_groups()
        }
        (answer,) = await admin.describe_consumer_groups([bench.group])
        error, group, state, kind, *_ = answer.groups[0]
        expect((error, group, state, kind), (0, bench.group, "Stable", "consumer"))
        positions = await admin.list_consumer_group_offsets(bench.group)
        expect(positions[TopicPartition(topic, 0)].offset, COUNT)


async def check_admin_delete_records(bench: Bench) -> None:
    topic = await create(bench)
    await fill(bench, topic)
    at = TopicPartition(topic, 0)
    async with admin_of(bench) as admin:
        gone = await admin.delete_records({at: RecordsToDelete(before_offset=100)})
        expect(gone, {at: 100})
    async with consumer_of(bench, topic) as consumer:
        expect((await consumer.getone()).offset, 100)


def bounded(check: Callable[[Bench], Awaitable[None]], bench: Bench) -> None:
    async def run() -> None:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await check(bench)

    asyncio.run(run())


if __name__ == "__main__":
    main(
        {
            name: functools.partial(bounded, check)  # type: ignore[arg-type]
            for name, check in named(globals()).items()
        }
    )
