"""A transactional producer on a real wire, with a coordinator that loses answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pyarrow as pa
import pytest
from tests.fakes.broker import FakeBroker
from tests.fakes.transaction_coordinator import FakeTransactions
from tests.integration.client.conftest import Run

from millrace.client import (
    AbortedError,
    Appended,
    ClosedError,
    ConnectionFailedError,
    InvalidConfigError,
    InvalidTransactionStateError,
    MessageTooLargeError,
    Producer,
    ProducerFencedError,
    SerializationError,
    SyncProducer,
    TransactionAbortedError,
    TransactionInDoubtError,
    UnknownTopicOrPartitionError,
)
from millrace.core.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    InvalidProducerEpochError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
)
from millrace.core.ids import BrokerId, KnownLeader, Leader, LeaderEpoch
from millrace.core.records.batch import open_batch, walk

DOUBT_MS = 1_000
"""How long a call without an answer is repeated before it is in doubt. Those with an answer have
this time, too, in which the client may have to connect."""


@asynccontextmanager
async def transactional(**settings: Any) -> AsyncIterator[tuple[FakeBroker, Producer]]:
    settings = {"request_timeout_ms": 2_000, "linger_ms": 0} | settings
    async with FakeBroker(orders=2, items=1) as broker:
        producer = Producer(broker.address, transactional_id="billing", **settings)
        try:
            yield broker, producer
        finally:
            with suppress(AbortedError):
                await producer.close()


def written(broker: FakeBroker, topic: str = "orders") -> list[tuple[tuple[int, int], int, bytes]]:
    """Return the id and epoch, sequence and value of each record in a topic."""
    found: list[tuple[tuple[int, int], int, bytes]] = []
    for log in broker.topics[topic].logs:
        for _, _, batch in log.batches:
            for header, data in walk(batch):
                assert header.is_transactional
                values = open_batch(log.topic_partition, header, data, 2**30).column("value")
                found += [
                    ((header.producer_id, header.producer_epoch), header.base_sequence + at, value)
                    for at, value in enumerate(values.to_pylist())
                ]
    return found


def committed(broker: FakeBroker, topic: str = "orders") -> list[bytes]:
    outcomes = broker.transactions.outcomes
    return sorted(value for key, _, value in written(broker, topic) if outcomes.get(key))


async def test_a_block_commits_at_its_end_and_the_next_one_has_another_epoch() -> None:
    async with transactional() as (broker, producer):
        for value in (b"first", b"second"):
            async with producer.transaction() as t:
                t.send("orders", value, partition=0)
                t.send_batch("items", pa.array([value, value]))
        assert broker.transactions.calls == ["init", "commit", "commit"]
        assert [entry[1:] for entry in written(broker)] == [(0, b"first"), (0, b"second")]
        assert committed(broker) == [b"first", b"second"]
        assert committed(broker, "items") == [b"first"] * 2 + [b"second"] * 2
        assert await producer.outcome() == "committed"
        counted = producer.metrics()
        assert (counted["begun_transactions"], counted["committed_transactions"]) == (2, 2)


async def test_an_exception_aborts_and_goes_on_and_what_is_not_delivered_is_dropped() -> None:
    async with transactional() as (broker, producer):
        handles = []

        async def write() -> None:
            async with producer.transaction() as t:
                await t.send("orders", b"delivered")
                broker.gate.clear()
                handles.append(t.send("orders", b"under way", partition=1))
                await asyncio.sleep(0.05)
                handles.append(t.send("nowhere", b"of an unknown topic"))
                raise KeyError("a bug")

        with pytest.raises(KeyError):
            await write()
        for handle in handles:
            with pytest.raises(AbortedError, match="before the record was delivered"):
                await handle
        broker.gate.set()
        assert broker.transactions.calls == ["init", "abort"]
        async with producer.transaction() as t:
            t.send("orders", b"next")
        assert committed(broker) == [b"next"]
        assert await producer.outcome() == "committed"


async def test_a_failing_abort_never_hides_the_exception() -> None:
    async with transactional(request_timeout_ms=DOUBT_MS) as (broker, producer):

        async def write() -> None:
            async with producer.transaction() as t:
                await t.send("orders", b"1")
                broker.transactions.lost_requests = 100
                raise KeyError("a bug")

        with pytest.raises(KeyError) as raised:
            await write()
        assert "the abort of the transaction has failed, too: TransactionInDoubtError" in str(
            raised.value.__notes__
        )
        broker.transactions.lost_requests = 0
        async with producer.transaction() as t:  # To begin with its id ends the last one.
            t.send("orders", b"2")
        assert committed(broker) == [b"2"]


async def test_the_records_of_an_aborted_transaction_never_go_out_under_the_next() -> None:
    async with transactional() as (broker, producer):
        await producer.begin_transaction()
        await producer.send("orders", b"first", partition=0)
        broker.gate.clear()
        late = [producer.send("orders", b"late %d" % number, partition=0) for number in range(3)]
        await asyncio.sleep(0.05)
        await producer.abort_transaction()
        await producer.begin_transaction()
        handle = producer.send("orders", b"next", partition=0)
        broker.gate.set()
        await handle
        await producer.commit_transaction()
        for handle in late:
            with pytest.raises(AbortedError):
                await handle
        assert committed(broker) == [b"next"]
        (aborted,) = [key for key, done in broker.transactions.outcomes.items() if not done]
        assert {key for key, _, value in written(broker) if b"late" in value} <= {aborted}


@pytest.mark.parametrize("ends", ["commit", "abort"])
async def test_an_empty_transaction_costs_no_call(ends: str) -> None:
    async with transactional() as (broker, producer):
        for _ in range(3):
            await producer.begin_transaction()
            await (
                producer.commit_transaction() if ends == "commit" else producer.abort_transaction()
            )
        outcome = await producer.outcome()
        assert outcome == ("committed" if ends == "commit" else "aborted")
        assert broker.transactions.calls == ["init"]


async def test_records_outside_of_a_transaction_are_refused() -> None:
    async with transactional() as (_, producer):
        with pytest.raises(InvalidTransactionStateError, match=r"producer\.transaction\(\)"):
            producer.send("orders", b"1")
        with pytest.raises(InvalidTransactionStateError):
            producer.send_batch("orders", [b"1"])
        with pytest.raises(InvalidTransactionStateError):
            await producer.wait_for_room()
        async with producer.transaction() as t:
            t.send("orders", b"1")
        with pytest.raises(InvalidTransactionStateError, match="is over"):
            t.send("orders", b"2")
        with pytest.raises(InvalidTransactionStateError, match="is over"):
            t.send_batch("orders", [b"2"])
        with pytest.raises(InvalidTransactionStateError, match="no transaction is open"):
            producer.send("orders", b"2")


async def test_a_plain_producer_says_that_it_has_no_transactions() -> None:
    async with FakeBroker(orders=1) as broker, Producer(broker.address) as producer:
        with pytest.raises(InvalidTransactionStateError, match='transactional_id="'):
            producer.transaction()
        await producer.send("orders", b"plain")


async def test_a_failed_record_is_the_reason_why_the_commit_is_refused() -> None:
    async with transactional() as (broker, producer):
        broker.log("orders").refusals.append(MessageTooLargeError("the topic takes less"))

        async def write() -> None:
            async with producer.transaction() as t:
                t.send("orders", b"bad", partition=0)
                t.send("orders", b"good", partition=1)

        with pytest.raises(MessageTooLargeError, match="the topic takes less"):
            await write()
        assert broker.transactions.calls == ["init", "abort"]
        async with producer.transaction() as t:
            t.send("orders", b"next")
        assert committed(broker) == [b"next"]


async def test_a_record_that_reaches_no_batch_fails_the_transaction_as_well() -> None:
    async with transactional() as (broker, producer):
        with pytest.raises(UnknownTopicOrPartitionError):
            async with producer.transaction() as t:
                t.send("nowhere", b"1")
        with pytest.raises(SerializationError):
            async with producer.transaction() as t:
                t.send_batch("orders", [b"1", 17])  # Only its handle has the error.
        assert committed(broker) == []


async def test_after_a_failure_more_records_are_refused_with_it() -> None:
    async with transactional() as (broker, producer):
        broker.log("orders").refusals.append(MessageTooLargeError("the topic takes less"))
        await producer.begin_transaction()
        with pytest.raises(MessageTooLargeError):
            await producer.send("orders", b"bad", partition=0)
        with pytest.raises(MessageTooLargeError):
            producer.send("orders", b"more")
        with pytest.raises(MessageTooLargeError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await producer.flush()  # The transaction has told of it.


async def test_a_gap_fails_the_transaction_and_not_only_the_batch() -> None:
    async with transactional() as (broker, producer):
        await producer.begin_transaction()
        await producer.send("orders", b"1", partition=0)
        broker.log("orders").refusals.append(OutOfOrderSequenceError("records are lost"))
        with pytest.raises(OutOfOrderSequenceError):
            await producer.send("orders", b"2", partition=0)
        with pytest.raises(OutOfOrderSequenceError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert committed(broker) == []


async def test_what_is_retriable_is_repeated_within_the_transaction() -> None:
    async with transactional(retry_backoff_ms=10) as (broker, producer):
        broker.transactions.refusals.append(CoordinatorLoadInProgressError("it reads its log"))
        broker.log("orders").refusals += [
            NotEnoughReplicasError("too few"),
            ConcurrentTransactionsError("partition 3 has no marker yet"),
        ]
        broker.dropped_answers = 1
        async with producer.transaction() as t:
            t.send("orders", b"1", partition=0)
            broker.transactions.refusals.append(ConcurrentTransactionsError("wait"))
        assert broker.transactions.calls == ["init", "init", "commit", "commit"]
        assert committed(broker) == [b"1"]


async def test_the_coordinator_is_followed() -> None:
    async with FakeBroker(2) as other, transactional() as (broker, producer):
        moved = NotLeaderError("another one coordinates it")
        moved.leader = KnownLeader(Leader(BrokerId(2), LeaderEpoch(1)), other.address)
        broker.transactions.refusals.append(moved)
        await producer.init_transactions()
        assert (broker.transactions.calls, other.transactions.calls) == (["init"], ["init"])


# T17: fenced, aborted, in doubt.


async def test_a_fenced_producer_can_only_be_closed() -> None:
    async with transactional() as (broker, producer):
        await producer.begin_transaction()
        await producer.send("orders", b"old")
        async with Producer(broker.address, transactional_id="billing") as newer:
            await newer.init_transactions()
            with pytest.raises(ProducerFencedError):
                await producer.commit_transaction()
            for call in (producer.begin_transaction, producer.init_transactions):
                with pytest.raises(ProducerFencedError):
                    await call()
            with pytest.raises(ProducerFencedError):
                producer.send("orders", b"old")
            async with newer.transaction() as t:
                t.send("orders", b"new")
        assert committed(broker) == [b"new"]


@pytest.mark.parametrize("found_by", ["end", "record", "epoch", "delivery"])
async def test_what_the_coordinator_has_aborted_is_done_again_in_another_one(
    found_by: str,
) -> None:
    async with transactional() as (broker, producer):

        async def write() -> None:
            async with producer.transaction() as t:
                await t.send("orders", b"1", partition=0)
                if found_by == "epoch":  # A leader that has the marker does not know why.
                    broker.log("orders").refusals.append(InvalidProducerEpochError("later"))
                    t.send("orders", b"2", partition=0)
                    await asyncio.sleep(0.05)
                broker.transactions.time_out("billing")
                if found_by == "delivery":
                    broker.log("orders").refusals.append(InvalidProducerEpochError("later"))
                    await t.send("orders", b"2", partition=0)
                if found_by == "record":
                    t.send("orders", b"2", partition=0)

        with pytest.raises(AbortedError) as raised:
            await write()
        assert isinstance(raised.value, TransactionAbortedError)
        refused_by_leader = isinstance(raised.value.__cause__, InvalidProducerEpochError)
        assert refused_by_leader == (found_by in {"epoch", "delivery"})
        assert await producer.outcome() == "aborted"
        async with producer.transaction() as t:
            t.send("orders", b"again")
        assert committed(broker) == [b"again"]
        assert broker.transactions.calls[-2:] == ["init", "commit"]


@pytest.mark.parametrize("is_delivered", [True, False])
async def test_an_epoch_that_one_leader_alone_refuses_does_not_fence(is_delivered: bool) -> None:
    """As after an abort by hand of what hung in one partition: another transaction may begin."""
    async with transactional() as (broker, producer):

        async def write() -> None:
            async with producer.transaction() as t:
                await t.send("orders", b"1", partition=0)
                broker.log("orders").refusals.append(InvalidProducerEpochError("later"))
                handle = t.send("orders", b"2", partition=0)
                if is_delivered:
                    await handle

        with pytest.raises(AbortedError, match="later"):
            await write()
        async with producer.transaction() as t:
            t.send("orders", b"again")
        assert committed(broker) == [b"again"]


async def test_a_lost_answer_is_asked_for_again_within_the_time_of_a_call() -> None:
    async with transactional() as (broker, producer):
        broker.transactions.lost_answers = 1
        async with producer.transaction() as t:
            t.send("orders", b"1")
        assert broker.transactions.calls == ["init", "commit", "commit"]
        assert committed(broker) == [b"1"]


async def doubtful(broker: FakeBroker, producer: Producer, *, decided: bool) -> None:
    """Write a transaction whose commit is in doubt."""
    transactions = broker.transactions

    async def write() -> None:
        async with producer.transaction() as t:
            t.send("orders", b"1")
            transactions.lost_answers = 100 if decided else 0
            transactions.lost_requests = 0 if decided else 100

    with pytest.raises(TransactionInDoubtError) as raised:
        await write()
    assert raised.value.appended is Appended.MAYBE
    transactions.lost_answers = transactions.lost_requests = 0
    assert "abort" not in transactions.calls


@pytest.mark.parametrize("decided", [True, False])
async def test_a_commit_in_doubt_is_repeated_and_nothing_else_is_possible(decided: bool) -> None:
    async with transactional(request_timeout_ms=DOUBT_MS) as (broker, producer):
        await doubtful(broker, producer, decided=decided)
        for call in (
            producer.begin_transaction,
            producer.abort_transaction,
            producer.init_transactions,
        ):
            with pytest.raises(TransactionInDoubtError):
                await call()
        with pytest.raises(TransactionInDoubtError):
            producer.send("orders", b"2")
        await producer.commit_transaction()
        async with producer.transaction() as t:
            t.send("orders", b"2")
        assert committed(broker) == [b"1", b"2"]


@pytest.mark.parametrize("decided", [True, False])
async def test_the_coordinator_tells_the_outcome(decided: bool) -> None:
    async with transactional(request_timeout_ms=DOUBT_MS) as (broker, producer):
        await doubtful(broker, producer, decided=decided)
        if decided:
            assert await producer.outcome() == "committed"
        else:
            assert await producer.outcome() == "open"
            broker.transactions.time_out("billing")
            assert await producer.outcome() == "aborted"
        async with producer.transaction() as t:
            t.send("orders", b"2")
        assert committed(broker) == ([b"1", b"2"] if decided else [b"2"])


async def test_a_late_commit_after_another_attempt_changes_nothing() -> None:
    async with transactional(request_timeout_ms=DOUBT_MS) as (broker, producer):
        await doubtful(broker, producer, decided=False)
        await producer.commit_transaction()
        async with producer.transaction() as t:
            t.send("orders", b"2")
            broker.transactions.decide(broker.transactions.late[0])
        assert committed(broker) == [b"1", b"2"]


async def test_a_cancelled_commit_is_in_doubt() -> None:
    async with transactional() as (broker, producer):
        await producer.begin_transaction()
        await producer.send("orders", b"1")
        broker.transactions_gate.clear()
        commit = asyncio.create_task(producer.commit_transaction())
        await broker.until(lambda: "commit" in broker.transactions.calls)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        broker.transactions_gate.set()
        with pytest.raises(TransactionInDoubtError):
            await producer.begin_transaction()
        assert await producer.outcome() == "committed"


async def test_to_initialise_within_a_transaction_aborts_it_and_its_commit_fails() -> None:
    async with transactional() as (broker, producer):
        await producer.begin_transaction()
        await producer.send("orders", b"1")
        await producer.init_transactions()
        with pytest.raises(TransactionAbortedError, match="init_transactions"):
            await producer.commit_transaction()
        with pytest.raises(TransactionAbortedError):
            producer.send("orders", b"1")
        await producer.begin_transaction()
        producer.send("orders", b"2")
        await producer.commit_transaction()
        assert committed(broker) == [b"2"]


async def test_epochs_that_run_out_bring_another_id() -> None:
    async with transactional() as (broker, producer):
        for number in range(8):
            async with producer.transaction() as t:
                t.send("orders", b"%d" % number, partition=0)
        assert committed(broker) == [b"%d" % number for number in range(8)]
        assert len({key for key, _, _ in written(broker)}) == 8
        assert {sequence for _, sequence, _ in written(broker)} == {0}


async def test_an_explicit_abort_ends_the_transaction_and_the_block_goes_on() -> None:
    async with transactional() as (broker, producer):
        async with producer.transaction() as t:
            await t.send("orders", b"1")
            await t.abort()
            with pytest.raises(InvalidTransactionStateError):
                t.send("orders", b"2")
        assert broker.transactions.calls == ["init", "abort"]


async def test_one_transaction_is_open_at_a_time() -> None:
    async with transactional() as (_, producer), producer.transaction():
        with pytest.raises(InvalidTransactionStateError, match="a transaction is open"):
            await producer.begin_transaction()


async def test_closing_within_a_transaction_aborts_it_and_says_so() -> None:
    async with FakeBroker(orders=1) as broker:
        producer = Producer(broker.address, transactional_id="billing")
        await producer.begin_transaction()
        producer.send("orders", b"1")
        with pytest.raises(AbortedError, match="closed within a transaction"):
            await producer.close()
        assert committed(broker) == []
        with pytest.raises(ClosedError):
            await producer.begin_transaction()


async def test_a_commit_is_open_or_in_doubt_when_its_coordinator_cannot_be_reached() -> None:
    async with transactional(request_timeout_ms=DOUBT_MS, close_timeout_ms=500) as (
        broker,
        producer,
    ):
        await producer.begin_transaction()
        await producer.send("orders", b"1")
        await broker.stop()
        with pytest.raises((ConnectionFailedError, TransactionInDoubtError)) as caught:
            await producer.commit_transaction()
        if isinstance(caught.value, ConnectionFailedError):
            # Nobody was asked, as the client noticed first: closing aborts what is open.
            with pytest.raises(TransactionInDoubtError, match="has not confirmed the abort"):
                await producer.close()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"acks": 1}, 'needs acks = "all"'),
        ({"transactional_id": "x" * 400}, "1 to 255 bytes"),
        ({"transactional_id": "a\nb"}, "printable characters"),
        ({"transactional_id": "A/b"}, "its namespace"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms"),
    ],
)
async def test_bad_settings_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidConfigError, match=problem):
        Producer("localhost:1", **({"transactional_id": "billing"} | settings))


def fail(producer: SyncProducer) -> None:
    with producer.transaction() as t:
        t.send("orders", b"aborted").result()
        raise KeyError("a bug")


def test_the_synchronous_twin(run: Run) -> None:
    def use(address: str, transactions: FakeTransactions) -> None:
        with SyncProducer(address, transactional_id="billing", linger_ms=0) as producer:
            with producer.transaction() as t:
                t.send("orders", b"first")
                t.send_batch("orders", [b"second"])
            with pytest.raises(KeyError):
                fail(producer)
            with producer.transaction() as t:
                t.send("orders", b"aborted too").result()
                t.abort()
            producer.begin_transaction()
            producer.send("orders", b"third")
            producer.commit_transaction()
            assert producer.outcome() == "committed"
        assert transactions.calls == ["init", "commit", "abort", "abort", "commit"]

    async def scenario() -> None:
        async with FakeBroker(orders=1) as broker:
            await asyncio.to_thread(use, broker.address, broker.transactions)
            assert committed(broker) == [b"first", b"second", b"third"]

    run(scenario())
