"""Transactions that commit the positions of a consumer (T18), on a real wire."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.fakes.broker import FakeBroker
from tests.integration.client.conftest import Run

from millrace.client import (
    Consumer,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    PositionsFullError,
    Producer,
    StaleMemberEpochError,
    SyncConsumer,
    SyncProducer,
    TransactionAbortedError,
    TransactionInDoubtError,
    UnknownTopicOrPartitionError,
)

PLACES = [("orders", 0), ("orders", 1)]


@dataclass
class Copying:
    """A consumer of a group, and a transactional producer."""

    broker: FakeBroker
    consumer: Consumer
    producer: Producer
    seen: list[tuple[int, int]] = field(default_factory=list)
    """Partition and offset of each record that was handed out."""

    async def read(self, count: int) -> list[tuple[int, int]]:
        """Return partition and offset of the next records."""
        found: list[tuple[int, int]] = []
        async with asyncio.timeout(10):
            while len(found) < count:
                records = await self.consumer.poll(100, max_records=count - len(found))
                found += [(record.partition, record.offset) for record in records]
        return found


@asynccontextmanager
async def copying(*, counts: tuple[int, int] = (6, 0), **settings: Any) -> AsyncIterator[Copying]:
    """Yield a consumer of two partitions with so many records."""
    async with FakeBroker(orders=2, copies=1) as broker:
        broker.coordinate("orders")
        async with Producer(broker.address) as producer:
            for partition, count in enumerate(counts):
                for number in range(count):
                    producer.send("orders", b"%d" % number, partition=partition)
        chosen: dict[str, Any] = {
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
        } | settings
        async with (
            Consumer(broker.address, group="g", **chosen) as consumer,
            Producer(
                broker.address, transactional_id="copy", linger_ms=0, request_timeout_ms=1_000
            ) as copier,
        ):
            await consumer.subscribe(["orders"])
            yield Copying(broker, consumer, copier)


async def fail_after(it: Copying, count: int, *, commits: bool, names: bool = True) -> None:
    """Read some records in a transaction that an exception aborts."""
    with pytest.raises(KeyError):
        await _fail_after(it, count, commits=commits, names=names)


async def _fail_after(it: Copying, count: int, *, commits: bool, names: bool) -> None:
    async with it.producer.transaction(it.consumer if names else None) as t:
        await it.read(count)
        await t.send("copies", b"aborted")
        if commits:
            await t.commit_positions(it.consumer)
        raise KeyError("a bug")


async def test_positions_count_with_the_transaction() -> None:
    async with copying() as it:
        async with it.producer.transaction(it.consumer) as t:
            assert await it.read(4) == [(0, 0), (0, 1), (0, 2), (0, 3)]
            t.send("copies", b"4")
            await t.commit_positions(it.consumer)
            assert it.broker.groups.stable() == {}
        assert it.broker.groups.stable() == {0: 4, 1: 0}
        assert it.broker.transactions.calls == ["init", "positions", "commit"]
        assert await it.read(2) == [(0, 4), (0, 5)]


async def test_what_was_read_of_a_topic_that_is_gone_does_not_count() -> None:
    """Its position cannot be stored: were the topic brought back, it would be copied again."""
    async with copying() as it:

        async def copy() -> None:
            async with it.producer.transaction(it.consumer) as t:
                await it.read(6)
                t.send("copies", b"6")
                topic = it.broker.topics.pop("orders")
                it.broker.deleted[topic.topic_id] = topic
                gone = UnknownTopicOrPartitionError("no such topic")
                it.broker.fetch_failures += [gone, gone]
                async with asyncio.timeout(10):
                    while not it.consumer.metrics()["jumps"]:
                        await it.consumer.poll(50)
                await t.commit_positions(it.consumer)

        with pytest.raises(StaleMemberEpochError, match="was deleted"):
            await copy()
        assert it.broker.transactions.calls == ["init", "abort"]


async def test_positions_alone_are_a_transaction() -> None:
    async with copying() as it:
        await it.read(1)
        await it.producer.begin_transaction()
        await it.producer.send_offsets_to_transaction({("orders", 0): 3}, it.consumer)
        await it.producer.commit_transaction()
        assert it.broker.groups.stable() == {0: 3}


async def test_a_consumer_that_has_no_partition_yet_has_nothing_to_commit() -> None:
    async with copying() as it:
        async with it.producer.transaction(it.consumer) as t:
            await t.commit_positions(it.consumer)
        assert it.broker.transactions.calls == ["init"]
        async with it.producer.transaction(it.consumer) as t:
            await t.commit_positions(it.consumer)
            t.send("copies", b"0")
        assert it.broker.transactions.calls == ["init", "commit"]


@pytest.mark.parametrize("commits", [True, False])
async def test_after_an_abort_the_consumer_is_at_the_first_record_again(commits: bool) -> None:
    """Nothing is committed: it goes back to where it began, and drops what it has prefetched."""
    async with copying() as it:
        await fail_after(it, 4, commits=commits)
        assert await it.consumer.position(PLACES[0]) == 0
        assert await it.read(6) == [(0, number) for number in range(6)]


@pytest.mark.parametrize("commits", [True, False])
async def test_after_an_abort_the_consumer_is_where_the_group_has_committed(commits: bool) -> None:
    async with copying() as it:
        await it.read(2)
        async with it.producer.transaction(it.consumer) as t:
            await t.commit_positions(it.consumer)
        await fail_after(it, 3, commits=commits)
        assert await it.read(4) == [(0, number) for number in range(2, 6)]


async def test_the_first_record_is_the_one_that_the_program_sought() -> None:
    async with copying() as it:
        await it.read(1)
        it.consumer.seek(("orders", 0), 3)
        await fail_after(it, 2, commits=True)
        assert await it.read(3) == [(0, 3), (0, 4), (0, 5)]


async def test_a_consumer_that_was_named_by_its_commit_alone_goes_back_as_well() -> None:
    async with copying() as it:
        await fail_after(it, 4, commits=True, names=False)
        assert await it.read(6) == [(0, number) for number in range(6)]


@pytest.mark.parametrize("had_one", [False, True])
async def test_what_was_read_for_a_transaction_that_cannot_begin_is_read_again(
    had_one: bool,
) -> None:
    """The next transaction commits positions behind these records, and would leave them out."""
    async with copying() as it:
        committed = 0
        if had_one:  # The coordinator has aborted one, and another identity is needed.
            await it.read(1)
            async with it.producer.transaction(it.consumer) as t:
                await t.commit_positions(it.consumer)
            committed = 1
            await it.producer.begin_transaction(it.consumer)
            await it.producer.send("copies", b"slow")
            it.broker.transactions.time_out("copy")
            with pytest.raises(TransactionAbortedError):
                await it.producer.commit_transaction()
        assert await it.read(3) == [(0, number) for number in range(committed, committed + 3)]
        it.broker.transactions.refusals.append(InvalidTransactionTimeoutError("not now"))
        with pytest.raises(InvalidTransactionTimeoutError):
            await it.producer.begin_transaction(it.consumer)
        rest = [(0, number) for number in range(committed, 6)]
        assert await it.read(len(rest)) == rest
        async with it.producer.transaction(it.consumer) as t:
            await t.commit_positions(it.consumer)
        assert it.broker.groups.stable()[0] == 6


async def test_a_loop_over_the_consumer_begins_again_after_an_abort() -> None:
    async with copying() as it:
        seen = []

        async def loop() -> None:
            async for record in it.consumer:
                seen.append(record.offset)
                async with it.producer.transaction(it.consumer) as t:
                    t.send("copies", record.value)
                    await t.commit_positions(it.consumer)
                    if seen == [0, 1, 2]:
                        raise KeyError("a bug")
                if record.offset == 5:
                    return

        with pytest.raises(KeyError):
            await loop()
        await loop()
        assert seen == [0, 1, 2, 2, 3, 4, 5]


async def test_a_revocation_waits_for_the_end_of_the_transaction() -> None:
    async with copying(counts=(4, 4)) as it:
        await it.read(1)
        async with it.producer.transaction(it.consumer) as t:
            await it.read(3)
            it.broker.groups.give(0, 1)
            membership = it.consumer._core.membership
            assert membership is not None
            await it.broker.until(lambda: membership.heartbeats.told is not None)
            await it.read(2)
            assert it.consumer.assignment() == PLACES
            await t.commit_positions(it.consumer)
            (member,) = it.broker.groups.members.values()
            assert (member.epoch, member.confirmed) == (2, 1)
        await it.consumer.poll(0)
        assert it.consumer.assignment() == PLACES[1:]
        assert sum(it.broker.groups.stable().values()) == 6
        await it.broker.until(lambda: member.confirmed == 2)


async def copy_some(it: Copying, *, positions: bool) -> int:
    """Copy in a transaction, within which alone the program polls; return how many records."""
    async with it.producer.transaction(it.consumer) as t:
        records = await it.consumer.poll(20, max_records=3)
        for record in records:
            t.send("copies", record.value)
        if positions or records:
            await t.commit_positions(it.consumer)
    it.seen += [(record.partition, record.offset) for record in records]
    return len(records)


@pytest.mark.parametrize("positions", [True, False])
async def test_a_program_that_polls_only_within_transactions_gives_partitions_up(
    positions: bool,
) -> None:
    """What it has handed out before is committed, so that nothing of it would be read twice."""
    async with copying(counts=(4, 4)) as it:
        while len(it.seen) < 5:
            await copy_some(it, positions=positions)
        it.broker.groups.give(0, 1)
        (member,) = it.broker.groups.members.values()
        async with asyncio.timeout(10):
            while member.confirmed < 2:
                await copy_some(it, positions=positions)
        assert it.consumer.assignment() == PLACES[1:]
        while (1, 3) not in it.seen:
            await copy_some(it, positions=positions)
        copied = {0: 0, 1: 0} | {partition: offset + 1 for partition, offset in sorted(it.seen)}
        assert it.broker.groups.stable() == copied
        assert len(it.seen) == sum(copied.values())
        assert "abort" not in it.broker.transactions.calls


async def test_what_a_transaction_has_not_committed_yet_is_not_given_up() -> None:
    """Records of a poll before it, of the first half of a batch, or after its positions."""
    async with copying(counts=(0, 6)) as it:
        membership = it.consumer._core.membership
        assert membership is not None
        assert await it.read(1) == [(1, 0)]
        it.broker.groups.give(0, 0)
        await it.broker.until(lambda: membership.heartbeats.told is not None)
        for committed in (1, 2, 3):
            async with it.producer.transaction(it.consumer) as t:
                assert await it.read(1) == [(1, committed)]
                await t.commit_positions(it.consumer, {("orders", 1): committed})
        assert it.consumer.assignment() == PLACES
        async with it.producer.transaction(it.consumer) as t:
            await t.commit_positions(it.consumer, {("orders", 1): 4})
            assert await it.read(1) == [(1, 4)]
        await it.producer.begin_transaction(it.consumer)
        assert await it.read(1) == [(1, 5)]
        await it.producer.abort_transaction()
        assert it.broker.groups.stable()[1] == 4


async def test_a_transaction_whose_member_was_lost_cannot_commit() -> None:
    """Another member reads the same records, and its copies would come on top."""
    async with copying() as it:
        await it.producer.begin_transaction(it.consumer)
        await it.read(4)
        await it.producer.send("copies", b"4")
        it.broker.groups.remove(0)
        async with asyncio.timeout(10):
            while len(it.broker.groups.members) < 1 or not it.consumer.assignment():
                await it.consumer.poll(20, max_records=1)
        with pytest.raises(StaleMemberEpochError, match="within the transaction"):
            await it.producer.send_offsets_to_transaction(None, it.consumer)
        with pytest.raises(StaleMemberEpochError):
            await it.producer.commit_transaction()
        await it.producer.abort_transaction()
        assert it.broker.groups.stable() == {}
        assert await it.read(6) == [(0, number) for number in range(6)]


@pytest.mark.parametrize("found_by", ["record", "positions"])
async def test_an_abort_by_the_coordinator_moves_the_consumer_before_its_next_poll(
    found_by: str,
) -> None:
    """Not when the next transaction begins: its records may have been handed out by then."""
    async with copying() as it:
        await it.producer.begin_transaction(it.consumer)
        assert await it.read(2) == [(0, 0), (0, 1)]
        await it.producer.send("copies", b"2")
        it.broker.transactions.time_out("copy")
        positions = it.producer.send_offsets_to_transaction(None, it.consumer)
        finds: Awaitable[object] = (
            it.producer.send("copies", b"2") if found_by == "record" else positions
        )
        with pytest.raises(TransactionAbortedError):
            await finds
        positions.close()
        assert await it.read(2) == [(0, 0), (0, 1)]
        await it.producer.begin_transaction(it.consumer)
        assert await it.read(4) == [(0, 2), (0, 3), (0, 4), (0, 5)]
        await it.producer.send_offsets_to_transaction(None, it.consumer)
        await it.producer.commit_transaction()
        assert it.broker.groups.stable() == {0: 6, 1: 0}


async def test_refused_positions_fail_the_transaction() -> None:
    async with copying() as it:
        await it.read(4)
        it.broker.transactions.position_refusals.append(PositionsFullError("no room"))
        await it.producer.begin_transaction(it.consumer)
        with pytest.raises(PositionsFullError):
            await it.producer.send_offsets_to_transaction(None, it.consumer)
        with pytest.raises(PositionsFullError):
            await it.producer.commit_transaction()
        await it.producer.abort_transaction()
        assert await it.read(6) == [(0, number) for number in range(6)]


async def test_a_doubt_moves_the_consumer_only_when_it_is_settled() -> None:
    async with copying() as it:
        await it.producer.begin_transaction(it.consumer)
        await it.read(2)
        await it.producer.send("copies", b"2")
        await it.producer.send_offsets_to_transaction(None, it.consumer)
        it.broker.transactions.lost_requests = 100
        with pytest.raises(TransactionInDoubtError):
            await it.producer.commit_transaction()
        assert await it.read(2) == [(0, 2), (0, 3)]
        it.broker.transactions.lost_requests = 0
        it.broker.transactions.time_out("copy")
        assert await it.producer.outcome() == "aborted"
        assert await it.read(6) == [(0, number) for number in range(6)]


async def test_what_was_read_for_one_that_a_doubt_keeps_from_beginning_is_read_again() -> None:
    """The next transaction commits positions behind these records, and would leave them out."""
    async with copying() as it:
        await it.producer.begin_transaction(it.consumer)
        await it.read(2)
        await it.producer.send("copies", b"2")
        await it.producer.send_offsets_to_transaction(None, it.consumer)
        it.broker.transactions.lost_requests = 100
        with pytest.raises(TransactionInDoubtError):
            await it.producer.commit_transaction()
        assert await it.read(2) == [(0, 2), (0, 3)]
        with pytest.raises(TransactionInDoubtError):
            await it.producer.begin_transaction(it.consumer)
        it.broker.transactions.lost_requests = 0
        await it.producer.commit_transaction()
        assert await it.read(4) == [(0, number) for number in range(2, 6)]


async def test_positions_are_not_read_while_a_transaction_commits_them() -> None:
    """The next owner waits for the end of the transaction (KIP-447)."""
    async with copying() as it:
        await it.producer.begin_transaction(it.consumer)
        await it.read(4)
        await it.producer.send_offsets_to_transaction(None, it.consumer)
        async with Consumer(it.broker.address, group="g", auto_offset_reset="earliest") as other:
            await other.subscribe(["orders"])
            await it.broker.until(lambda: len(it.broker.groups.members) == 2)
            it.broker.groups.give(1, 0)
            polling = asyncio.create_task(other.poll(30_000))
            await asyncio.sleep(0.3)
            assert not polling.done()
            await it.producer.commit_transaction()
            assert [record.offset for record in await polling] == [4, 5]


async def test_a_consumer_that_commits_by_itself_is_refused() -> None:
    async with copying(enable_auto_commit=True) as it:
        await it.read(1)
        with pytest.raises(InvalidRequestError, match="enable_auto_commit=False"):
            await it.producer.begin_transaction(it.consumer)
        async with it.producer.transaction() as t:  # Nothing has begun.
            t.send("copies", b"1")


async def test_clients_of_two_loops_are_refused() -> None:
    async with copying() as it:
        with pytest.raises(InvalidRequestError, match="same event loop"):
            await it.producer.begin_transaction(
                await asyncio.to_thread(SyncConsumer, it.broker.address, enable_auto_commit=False)
            )


def test_the_synchronous_twins(run: Run) -> None:
    def fail(consumer: SyncConsumer, producer: SyncProducer) -> None:
        with producer.transaction(consumer) as t:
            for record in consumer:
                t.send("copies", record.value)
                if record.offset == 1:
                    t.commit_positions(consumer)
                    raise KeyError("a bug")

    def use(address: str) -> list[int]:
        seen: list[int] = []
        with (
            SyncConsumer(
                address, group="g", enable_auto_commit=False, auto_offset_reset="earliest"
            ) as consumer,
            SyncProducer(address, transactional_id="copy", linger_ms=0) as producer,
        ):
            consumer.subscribe(["orders"])
            with pytest.raises(KeyError):
                fail(consumer, producer)
            with producer.transaction(consumer) as t:
                for record in consumer:
                    seen.append(record.offset)
                    t.send("copies", record.value)
                    if record.offset == 3:
                        break
                t.commit_positions(consumer)
        return seen

    async def scenario() -> None:
        async with FakeBroker(orders=1, copies=1) as broker:
            broker.coordinate("orders")
            async with Producer(broker.address) as producer:
                for number in range(4):
                    producer.send("orders", b"%d" % number)
            assert await asyncio.to_thread(use, broker.address) == [0, 1, 2, 3]
            assert broker.groups.stable() == {0: 4}

    run(scenario())
