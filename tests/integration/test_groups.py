"""Consumer groups on three brokers: what members share, what they are told, what they may do."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import (
    Admin,
    Consumer,
    DeadLetters,
    InvalidGroupError,
    InvalidRequestError,
    Position,
    Producer,
    Record,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    UnknownMemberIdError,
)

PARTITIONS = 6
SESSION_MS = 20_000
"""No test waits for its end, and a pause of the machine must not end it."""
HEARTBEAT_MS = 1_600
DEADLINE_S = 30.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(
        tmp_path,
        {
            "cluster.positions_partitions": 1,
            "groups.session_timeout_ms": SESSION_MS,
            "groups.heartbeat_interval_ms": HEARTBEAT_MS,
        },
    ) as running:
        yield running


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        await asyncio.sleep(0.01)


class Member:
    """A consumer in a loop, and what it was told."""

    def __init__(self, bootstrap: str, read: Counter[bytes]) -> None:
        self.bootstrap = bootstrap
        self.read = read
        self.owned: set[int] = set()
        self.is_stopped = False

    def _on_assigned(self, places: list[tuple[str, int]]) -> None:
        self.owned.update(number for _, number in places)

    def _on_revoked(self, places: list[tuple[str, int]]) -> None:
        self.owned.difference_update(number for _, number in places)

    async def run(self) -> None:
        async with Consumer(self.bootstrap, group="g") as consumer:
            await consumer.subscribe(
                ["t"], on_assigned=self._on_assigned, on_revoked=self._on_revoked
            )
            while not self.is_stopped:
                for record in await consumer.poll(100):
                    assert record.partition in self.owned
                    self.read[record.value] += 1
                await asyncio.sleep(0)
        self.owned.clear()


class Group:
    """Members that run, and what all of them have read."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.read: Counter[bytes] = Counter()
        self.tasks: dict[Member, asyncio.Task[None]] = {}

    def join(self) -> Member:
        member = Member(self.bootstrap, self.read)
        self.tasks[member] = asyncio.create_task(member.run())
        return member

    async def leave(self, member: Member) -> None:
        member.is_stopped = True
        await self.tasks.pop(member)

    async def is_shared(self) -> None:
        """Wait until the members own all partitions, each about as many."""

        def is_so() -> bool:
            owned = [number for member in self.tasks for number in member.owned]
            least = PARTITIONS // len(self.tasks)
            return sorted(owned) == list(range(PARTITIONS)) and all(
                least <= len(member.owned) <= least + 1 for member in self.tasks
            )

        await until(is_so, f"shared: {[sorted(member.owned) for member in self.tasks]}")


@asynccontextmanager
async def group_of(cluster: RunningCluster) -> AsyncIterator[Group]:
    group = Group(cluster.bootstrap)
    try:
        yield group
    finally:
        for member in list(group.tasks):
            await group.leave(member)


@asynccontextmanager
async def with_topic(cluster: RunningCluster) -> AsyncIterator[tuple[Group, Admin, Producer]]:
    bootstrap = cluster.bootstrap
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        await admin.create_topic("t", PARTITIONS, 3)
        async with group_of(cluster) as group:
            yield group, admin, producer


async def send(producer: Producer, numbers: range) -> None:
    for number in numbers:
        producer.send("t", b"%d" % number, partition=number % PARTITIONS)
        if number % 50 == 0:
            await asyncio.sleep(0.02)
    await producer.flush()


async def test_members_share_what_is_read_and_nothing_is_read_twice(
    cluster: RunningCluster,
) -> None:
    async with with_topic(cluster) as (group, admin, producer):
        sending = asyncio.create_task(send(producer, range(3000)))
        first = group.join()
        await group.is_shared()
        group.join()
        await group.is_shared()
        group.join()
        await group.is_shared()
        await group.leave(first)
        await group.is_shared()
        await sending
        await until(lambda: len(group.read) == 3000, "all are read")
        for member in list(group.tasks):
            await group.leave(member)
        assert set(group.read.values()) == {1}, "nobody died"
        committed = await admin.fetch_positions("g")
        assert committed == {("t", number): Position(500, 0) for number in range(PARTITIONS)}


async def test_a_consumer_that_has_read_whole_topics_reads_what_its_group_assigns_and_no_more(
    cluster: RunningCluster,
) -> None:
    max_age_ms = 500
    read: Counter[bytes] = Counter()
    owned: dict[int, set[tuple[str, int]]] = {0: set(), 1: set()}
    async with with_topic(cluster) as (_, _, producer), AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(
                Consumer(cluster.bootstrap, group="g", metadata_max_age_ms=max_age_ms)
            )
            for _ in owned
        ]
        await members[0].assign(["t"])
        await members[0].subscribe([])  # It leaves nothing behind either.
        assert (members[0].assignment(), members[0].topic_ids()) == ([], {})
        await members[0].assign(["t"])
        for number, member in enumerate(members):
            await member.subscribe(
                ["t"],
                on_assigned=owned[number].update,
                on_revoked=owned[number].difference_update,
            )

        async def poll() -> None:
            for member in members:
                read.update([record.value for record in await member.poll(50)])

        async with asyncio.timeout(DEADLINE_S):
            while any(len(places) != PARTITIONS // 2 for places in owned.values()):
                await poll()
            await send(producer, range(60))
            while len(read) < 60:
                await poll()
        until = time.monotonic() + 4 * max_age_ms / 1000
        while time.monotonic() < until:  # Metadata is looked up again meanwhile.
            await poll()
            for number, member in enumerate(members):
                assert set(member.assignment()) == owned[number]
        assert len(read) == 60
        assert set(read.values()) == {1}


async def test_strangers_cannot_commit(cluster: RunningCluster) -> None:
    async with with_topic(cluster) as (group, admin, _):
        await admin.commit_positions("g", {("t", 0): Position(0)})
        group.join()
        await group.is_shared()
        with pytest.raises(UnknownMemberIdError, match="only members may commit"):
            await admin.commit_positions("g", {("t", 0): Position(7, 0)})
        async with Consumer(cluster.bootstrap) as consumer:
            with pytest.raises(InvalidRequestError, match="no group"):
                await consumer.commit()
            with pytest.raises(InvalidRequestError, match="set group"):
                await consumer.subscribe(["t"], on_lost=print)


def test_a_synchronous_member_uses_the_consumer_in_its_callbacks(cluster: RunningCluster) -> None:
    """It runs them in the thread that polls: so they may commit and seek."""
    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as producer:
        admin.create_topic("t", 2, 3)
        for number in range(20):
            producer.send("t", b"%d" % number, partition=number % 2)
        producer.flush()
        told: list[tuple[str, int, list[tuple[str, int]]]] = []

        def on_assigned(places: list[tuple[str, int]]) -> None:
            told.append(("assigned", threading.get_ident(), sorted(places)))
            for place in places:
                consumer.seek(place, 5)

        def on_revoked(places: list[tuple[str, int]]) -> None:
            told.append(("revoked", threading.get_ident(), sorted(places)))
            consumer.commit({("t", 0): 7})

        with SyncConsumer(cluster.bootstrap, group="g", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"], on_assigned=on_assigned, on_revoked=on_revoked)
            read = sorted(int(record.value) for record in islice(consumer, 10))
            assert read == list(range(10, 20))
        both = [("t", 0), ("t", 1)]
        here = threading.get_ident()
        assert told == [("assigned", here, both), ("revoked", here, both)]
        assert admin.fetch_positions("g") == {("t", 0): Position(7, 0)}

        def fail(places: list[tuple[str, int]]) -> None:
            raise KeyError("mine")

        with SyncConsumer(cluster.bootstrap, group="g") as consumer:
            consumer.subscribe(["t"], on_assigned=fail)
            with pytest.raises(KeyError, match="mine"):
                next(iter(consumer))


def _polled(consumer: SyncConsumer, topic: str) -> list[tuple[str, int]]:
    """Let a member poll; return what it reads of a topic."""
    assert not consumer.poll(100)
    return [place for place in consumer.assignment() if place[0] == topic]


def test_a_pattern_reads_topics_that_are_created_later_and_outlives_deleted_ones(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as producer:
        for topic in ("orders-eu", "payments"):
            admin.create_topic(topic, 2, 3)
            producer.send(topic, topic.encode())
        producer.flush()
        with SyncConsumer(cluster.bootstrap, group="g") as consumer:
            consumer.subscribe(pattern="orders-.*")
            records = iter(consumer)
            assert next(records).value == b"orders-eu"
            admin.create_topic("orders-us", 1, 3)
            producer.send("orders-us", b"later")
            assert next(records).value == b"later"
            consumer.commit()
            admin.delete_topic("orders-us")
            begun = time.monotonic()
            consumer.commit()
            assert time.monotonic() - begun < 15, "what is gone is left out"
            producer.send("orders-eu", b"after")
            assert next(records).value == b"after"
            wait_until(lambda: not _polled(consumer, "orders-us"), "the topic leaves")
        admin.create_topic("orders-us", 1, 3)
        with SyncConsumer(cluster.bootstrap, group="g") as consumer:
            consumer.subscribe(pattern="orders-.*")
            wait_until(lambda: _polled(consumer, "orders-us"), "the new topic is read")
            wait_until(
                lambda: "'orders-us' was deleted and made again: the positions" in caplog.text,
                "the group is told that it has no position there",
            )
            assert consumer.metrics()["jumps"] == 1
        with SyncConsumer(cluster.bootstrap, group="g") as consumer:
            consumer.subscribe(pattern="(")
            with pytest.raises(InvalidGroupError, match="RE2"):
                consumer.poll()
        with SyncConsumer(cluster.bootstrap) as consumer:
            with pytest.raises(InvalidRequestError, match="RE2"):
                consumer.subscribe(pattern="(")
            with pytest.raises(InvalidRequestError, match="set group"):
                consumer.subscribe(pattern="orders-.*", on_lost=print)


def test_a_pattern_without_a_group_reads_later_topics_from_their_start_and_outlives_deleted_ones(
    cluster: RunningCluster,
) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncConsumer(cluster.bootstrap, metadata_max_age_ms=200) as consumer,
    ):

        def send(topic: str, value: bytes, partition: int = 0) -> None:
            with SyncProducer(cluster.bootstrap) as producer:  # It knows no topic of the name yet.
                producer.send(topic, value, partition=partition)

        admin.create_topic("orders-eu", 2, 3)
        send("orders-eu", b"old")
        consumer.subscribe(pattern="orders-.*", start="end")
        records = iter(consumer)
        for topic in ("payments", "orders-us"):
            admin.create_topic(topic, 1, 3)
            send(topic, topic.encode())
        assert next(records).value == b"orders-us"
        admin.alter_topic("orders-us", partitions=2)
        send("orders-us", b"grown", partition=1)
        assert next(records).value == b"grown"
        admin.delete_topic("orders-us")
        admin.delete_topic("orders-eu")
        wait_until(
            lambda: not consumer.poll(100) and not consumer.assignment(), "both topics leave"
        )
        admin.create_topic("orders-us", 1, 3)
        send("orders-us", b"made anew")
        assert next(records).value == b"made anew"
        consumer.subscribe(pattern="pay.*", start="end")
        for topic in ("orders-asia", "pay-roll"):
            admin.create_topic(topic, 1, 3)
            send(topic, topic.encode())
        assert next(records).value == b"pay-roll"
        assert sorted(consumer.assignment()) == [("pay-roll", 0), ("payments", 0)]


async def test_a_group_at_the_end_misses_nothing_of_what_comes_after_it_has_begun(
    cluster: RunningCluster,
) -> None:
    """By growth, by pattern, or by a topic that is made later, whoever reads or nobody."""
    sent: list[bytes] = []
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:

        async def send(topic: str, partition: int, *, counts: bool = True) -> None:
            value = b"%d of %s-%d" % (len(sent), topic.encode(), partition)
            await producer.send(topic, value, partition=partition)
            if counts:
                sent.append(value)

        def member() -> Consumer:
            return Consumer(
                cluster.bootstrap, group="g", auto_offset_reset="latest", enable_auto_commit=False
            )

        async def subscribe(consumer: Consumer) -> None:
            await consumer.subscribe(["t", "made-later"], pattern="orders-.*")

        await admin.create_topic("t", 2, 3)
        await admin.create_topic("orders-eu", 1, 3)
        for topic, partition in (("t", 0), ("t", 1), ("orders-eu", 0)):
            await send(topic, partition, counts=False)
        async with member() as first:
            await subscribe(first)
            places = [("orders-eu", 0), ("t", 0), ("t", 1)]
            async with asyncio.timeout(DEADLINE_S):
                while len(await admin.fetch_positions("g")) < len(places):
                    assert not await first.poll(100)
            for topic, partition in places:
                await send(topic, partition)
            assert await _values(first, len(sent)) == set(sent)  # And commits none of it.
        await admin.alter_topic("t", partitions=3)
        await admin.create_topic("orders-us", 1, 3)
        await send("t", 2)
        await send("orders-us", 0)
        async with member() as second:
            await subscribe(second)
            assert await _values(second, len(sent)) == set(sent)
            await second.commit()
            read = len(sent)
            await admin.alter_topic("t", partitions=4)
            await admin.create_topic("made-later", 1, 3)
            await send("t", 3)
            await send("made-later", 0)
            assert await _values(second, 2) == set(sent[read:])
        async with member() as third:
            await subscribe(third)
            assert await _values(third, 2) == set(sent[read:])


async def _values(consumer: Consumer, count: int) -> set[bytes]:
    values: set[bytes] = set()
    async with asyncio.timeout(DEADLINE_S):
        while len(values) < count:
            values.update(record.value for record in await consumer.poll(100))
    return values


async def test_a_member_that_is_closed_twice_at_once_leaves_once(cluster: RunningCluster) -> None:
    async with with_topic(cluster):
        told: list[list[tuple[str, int]]] = []

        async def on_revoked(places: list[tuple[str, int]]) -> None:
            told.append(places)
            await consumer.close()  # It does not wait for itself.

        consumer = Consumer(cluster.bootstrap, group="g")
        await consumer.subscribe(["t"], on_revoked=on_revoked)
        async with asyncio.timeout(DEADLINE_S):
            while not consumer.assignment():
                await consumer.poll(100)
            first, second = (asyncio.create_task(consumer.close()) for _ in range(2))
            await second
            assert first.done(), "the second call waits for the first"
            await first
        await consumer.close()
        assert [len(places) for places in told] == [PARTITIONS]


def test_a_synchronous_member_is_closed_by_two_threads(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", 1, 3)
    told: list[int] = []
    consumer = SyncConsumer(cluster.bootstrap, group="g")
    consumer.subscribe(["t"], on_revoked=lambda _: told.append(threading.get_ident()))
    wait_until(lambda: _polled(consumer, "t"), "it has the partition")
    with ThreadPoolExecutor() as threads:
        for closing in [threads.submit(consumer.close) for _ in range(2)]:
            closing.result(DEADLINE_S)
    assert len(told) == 1


def test_a_static_member_that_is_away_keeps_its_place(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", 1, 3)
        with SyncConsumer(cluster.bootstrap, group="g", group_instance_id="one") as consumer:
            consumer.subscribe(["t"])
            wait_until(lambda: _polled(consumer, "t"), "it has the partition")
        described = admin.describe_group("g")
        assert described is not None
        (member,) = described.members
        assert (member.instance_id, member.is_away) == ("one", True)


@pytest.mark.parametrize("is_before", [True, False])
def test_when_a_member_commits_decides_what_its_crash_costs(
    cluster: RunningCluster, is_before: bool
) -> None:
    """Before the processing: at most once. After it: at least once."""
    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as producer:
        admin.create_topic("t", 1, 3)
        for number in range(100):
            producer.send("t", b"%d" % number)
        producer.flush()
    processed: list[int] = []

    def read(crashes_at: int | None) -> None:
        # It leaves the group when it "crashes", which only spares the wait for its session.
        with SyncConsumer(
            cluster.bootstrap, group="g", enable_auto_commit=False, client_id="reader"
        ) as consumer:
            consumer.subscribe(["t"])
            while len(set(processed)) < 100 and (not is_before or 99 not in processed):
                records = consumer.poll(500, max_records=10)
                if is_before:
                    consumer.commit()
                for record in records:
                    if record.offset == crashes_at:
                        return
                    processed.append(record.offset)
                if not is_before:
                    consumer.commit()

    read(crashes_at=45)
    read(crashes_at=None)
    if is_before:
        assert processed == [*range(45), *range(50, 100)], "five are lost, and none came twice"
    else:
        assert processed == [*range(45), *range(40, 100)], "none is lost, and five came twice"


@pytest.mark.parametrize("kind", ["asynchronous", "synchronous"])
def test_a_poll_that_waits_commits_and_tells_that_its_session_has_ended(
    start_broker: StartBroker, kind: str
) -> None:
    # Long enough that a pause of the machine does not end it before the broker is killed.
    broker = start_broker({"groups.session_timeout_ms": 6_000, "groups.heartbeat_interval_ms": 500})
    settings: Any = {
        "group": "g",
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 1_000,
        "close_timeout_ms": 1_000,
    }
    long_ms = int(DEADLINE_S * 1000)

    def on_lost(places: list[tuple[str, int]]) -> None:
        raise KeyError(*places)  # Ends the poll.

    async def read() -> None:
        async with Consumer(broker.address, **settings) as consumer:
            await consumer.subscribe(["t"], on_lost=on_lost)
            while not await consumer.poll(100):
                pass
            await consumer.poll(long_ms)

    def read_in_thread() -> None:
        if kind == "asynchronous":
            return asyncio.run(read())
        with SyncConsumer(broker.address, **settings) as consumer:
            consumer.subscribe(["t"], on_lost=on_lost)
            while not consumer.poll(100):
                pass
            consumer.poll(long_ms)
        return None

    with ThreadPoolExecutor() as threads:
        with SyncAdmin(broker.address) as admin, SyncProducer(broker.address) as producer:
            admin.create_topic("t")
            producer.send("t", b"0")
            producer.flush()
            reading = threads.submit(read_in_thread)
            wait_until(lambda: admin.fetch_positions("g") == {("t", 0): Position(1, 0)}, "a commit")
        broker.kill()
        with pytest.raises(KeyError) as lost:
            reading.result(DEADLINE_S)
    assert lost.value.args == (("t", 0),)


@pytest.mark.parametrize("way", ["process", "loop", "poll"])
def test_a_plain_function_that_is_slow_does_not_cost_the_membership(
    tmp_path: Path, way: str
) -> None:
    """All records wait in the consumer, so its user never has to wait for any."""
    count, session_ms = 30, 6_000  # A pause of the machine does not end such a session.
    broker = RunningBroker(
        tmp_path,
        {"groups.session_timeout_ms": session_ms, "groups.heartbeat_interval_ms": 500},
    ).start()
    seen: list[int] = []
    lost: list[object] = []

    def work(record: Record) -> None:
        # Not a wait, but what makes it slow: all of them take longer than a session.
        time.sleep(session_ms / count * 1.5 / 1000)
        seen.append(record.offset)

    async def read() -> None:
        async with (
            Producer(broker.address) as producer,
            Consumer(broker.address, group="g", auto_offset_reset="earliest") as consumer,
        ):
            await consumer.subscribe(["t"], on_lost=lost.extend)
            if way == "process":
                await consumer.process(work, DeadLetters(producer, "t"))
            elif way == "loop":
                async for record in consumer:
                    work(record)
            while True:
                for record in await consumer.poll(max_records=1):
                    work(record)

    async def story() -> None:
        async with Admin(broker.address) as admin, Producer(broker.address) as producer:
            await admin.create_topic("t")
            await producer.send_batch("t", [b"%d" % number for number in range(count)])
            reading = asyncio.create_task(read())
            try:
                await until(lambda: len(seen) >= count, "all are read")
            finally:
                reading.cancel()
                await asyncio.wait([reading])

    try:
        asyncio.run(story())
    finally:
        broker.abandon()
    assert (seen, lost) == ([*range(count)], [])
