"""The producer for event loops."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Unpack

from millrace.client._cluster.shared_transactions import Participant, SharedTransaction
from millrace.client._producer.pipeline import Pipeline, caught_from_users
from millrace.client._producer.record_sink import RecordSink
from millrace.client._producer.settings import (
    BATCH_SIZE_DEFAULT,
    ProducerConfig,
    ProducerSettings,
)
from millrace.client._producer.transaction_block import Transaction
from millrace.client._producer.transactions import AnyConsumer, Transactions, reading_of
from millrace.client._settings import documents
from millrace.client._threads.tasks import last_work_s
from millrace.client._with_blocks import AsyncClient
from millrace.core import words
from millrace.core.client.producer.partitioners import (
    ByFunction,
    Keyed,
    Partitioner,
    PartitionFunction,
    RoundRobin,
)
from millrace.core.client.producer.transaction import Outcome
from millrace.core.errors import Appended, ClosedError, InvalidTransactionStateError
from millrace.core.records.compression import Compressor
from millrace.core.settings import parse
from millrace.core.topics import PartitionName
from millrace.runtime import host

_PARTITIONERS: Final[Mapping[str, Callable[[], Partitioner]]] = {
    "keyed": Keyed,
    "round_robin": RoundRobin,
}


@documents(ProducerConfig)
class Producer(RecordSink, AsyncClient):
    """Writes records, from an event loop.

        async with Producer("localhost:7092") as producer:
            producer.send("orders", b"first", key=b"alice")
            metadata = await producer.send("orders", b"second", key=b"alice")
            print(metadata.partition, metadata.offset)

    `send()` is a plain method that returns at once; leaving the `async with` delivers everything.
    Made inside a running loop, used from it or from any thread. With `acks="all"`, the default,
    records are never duplicated and keep their order per partition, over all retries.

    Sizes and times may be texts with a unit, such as `"64MiB"` and `"30s"`.

    Args:
        bootstrap: `host:port` of brokers, tried in turn: a string with commas, or a sequence.
        {settings}

    Raises:
        InvalidConfigError: a setting does not exist, or is out of its bounds.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], **settings: Unpack[ProducerSettings]
    ) -> None:
        config = parse(ProducerConfig, settings)
        tracing = config.new_tracing()
        pipeline = Pipeline(
            config.new_cluster(bootstrap),
            config,
            Compressor(config.compression, config.compression_level),
            _partitioner(config.partitioner),
            asyncio.get_running_loop(),
        )
        super().__init__(pipeline, config.key_serializer, config.value_serializer, tracing)
        pipeline.start()

    async def flush(self) -> None:
        """Send everything without lingering, and wait until it is acknowledged or has failed.

        Several threads or tasks may wait at the same time: a failure is raised in all that wait for
        its record, or else once in the next call, unless the record's handle has reported it
        before. Threads or tasks that share the producer learn the outcome of their own records from
        the handles.

        Raises:
            MillraceError: the first failure of the records it waited for, or since the last flush,
                that no handle has reported.
            ClosedError: the producer was closed before everything was acknowledged.
        """
        await self._pipeline.flush()

    # Transactions.

    def transaction(self, consumer: AnyConsumer | None = None) -> Transaction:
        """Return a transaction, for an `async with` block, at whose end it commits.

            async with Producer("localhost:7092", transactional_id="billing") as producer:
                async with producer.transaction() as t:
                    t.send("orders", b"first")
                    t.send_batch("items", [b"a", b"b"])

        After an exception it aborts, and the exception goes on. Readers of committed records see
        all of it, or nothing. One transaction of a producer is open at a time.

        There are three kinds of errors. A `ProducerFencedError`: another producer has the id, so
        close this one. An `AbortedError`: nothing of the transaction counts, so do its work in
        another one. A `TransactionInDoubtError`: the answer to the commit is lost, and doing the
        work again may double it; repeat `commit_transaction()`, or ask `outcome()`.

        Args:
            consumer: for which the transaction commits positions. From the beginning of the block
                on the consumer gives no partition up. After an abort, and if no transaction can
                begin, it goes back.
        """
        return Transaction(
            self, self._transactions(), None if consumer is None else reading_of(consumer)
        )

    async def init_transactions(self) -> None:
        """Begin with the transactional id: fence producers that had it, and end what they left.

        The first transaction does so by itself. Within a transaction it aborts that.

        Raises:
            InvalidTransactionalIdError, InvalidTransactionTimeoutError: the coordinator does not
                take the setting.
            UnsupportedFeatureError: a broker is older than transactions are.
            MillraceError: the coordinator could not be asked in `request_timeout_ms`.
        """
        await self._transactions().init()

    async def begin_transaction(self, consumer: AnyConsumer | None = None) -> None:
        """Begin a transaction; `transaction()` does it for the length of a block.

        Args:
            consumer: as in `transaction`.

        Raises:
            InvalidTransactionStateError: one is open.
            TransactionInDoubtError: the commit of the last one is in doubt.
            ProducerFencedError: another producer has the id.
        """
        await self._transactions().begin(None if consumer is None else reading_of(consumer))

    async def send_offsets_to_transaction(
        self, positions: Mapping[PartitionName, int] | None, consumer: AnyConsumer
    ) -> None:
        """Commit how far a consumer's group has read, as part of the transaction.

        The consumer is a member of a group, with `enable_auto_commit=False`. It commits as that
        member: one that has lost a partition cannot. From now on, and until the transaction has
        ended, the consumer gives no partition up. After an abort it goes back to where its
        group has committed, else to where it began.

        Args:
            positions: the offset of the next record to process, by partition; None: after all
                records that were handed out.
            consumer: of the group.

        Raises:
            StaleMemberEpochError, UnknownMemberIdError: the group has given partitions to others,
                maybe within the transaction: it can only be aborted.
            MillraceError: the positions are not part of the transaction, which can only be aborted.
        """
        await self._transactions().stage(reading_of(consumer), positions)

    async def commit_transaction(self) -> None:
        """Deliver all records of the transaction, and commit it; return when that is decided.

        Readers see it shortly after. When the answer of the coordinator is lost, call it again.

        Raises:
            MillraceError: the first failure of its records or positions: abort it, and do its work
                in another one.
            TransactionAbortedError: the coordinator has aborted it, by its time-out, or for a
                person: begin another one.
            TransactionInDoubtError: the answer is lost: only the commit may be repeated.
            ProducerFencedError: another producer has the id: close this one.
            InvalidTransactionStateError: none is open.
        """
        await self._transactions().commit()

    async def abort_transaction(self) -> None:
        """Drop what is not delivered, and abort the transaction.

        Consumers that it commits for go back. It does nothing if the coordinator has aborted the
        transaction already.

        Raises:
            TransactionInDoubtError: the coordinator has not confirmed it. The transaction never
                counts, and another one may begin. Or the commit is in doubt.
            ProducerFencedError: another producer has the id: close this one.
            InvalidTransactionStateError: none is open.
        """
        await self._transactions().abort()

    async def outcome(self) -> Outcome | None:
        """Return what became of the last transaction, which may be in doubt.

        `committed` or `aborted`. `open`: it is not decided, so repeat the commit. `unknown`: others
        have ended transactions of the id since. None: there was none.

        Raises:
            MillraceError: the coordinator could not be asked.
        """
        return await self._transactions().outcome()

    async def join_transaction(self, shared: SharedTransaction) -> None:
        """Take part in a transaction that an application has opened, and that it will end.

            async with Producer("localhost:7092", transactional_id="etl@orders") as producer:
                await producer.join_transaction(shared)
                producer.send_batch("orders", table)
                participant = await producer.leave_transaction()

        The producer keeps the transaction open until it is over, or the producer is closed.

        Args:
            shared: of `Admin.open_shared_transaction`. The producer may have another
                transactional id, which only its own transactions use.

        Raises:
            TransactionAbortedError, InvalidTransactionStateError: it is over, or the producer has
                another transaction open.
            ProducerFencedError: another run of the application has replaced that one.
            TransactionsFullError: it has too many participants.
            MillraceError: the coordinator could not be asked in `request_timeout_ms`.
        """
        await self._transactions().join(shared)

    async def leave_transaction(self) -> Participant:
        """Deliver all records, and return what the application names when it commits.

        They count if it does. A producer that does not leave is not named: its records never count.

        Raises:
            MillraceError: the first failure of its records: they never count, and the producer may
                join a transaction again.
        """
        return await self._transactions().leave()

    @property
    def _on_loop(self) -> "Producer":
        """See `Consumer.process_exactly_once`."""
        return self

    def _transactions(self) -> Transactions:
        transactions = self._pipeline.transactions
        if transactions is None:
            raise InvalidTransactionStateError(
                'the producer has no transactions: make it with transactional_id="..."'
            )
        return transactions

    async def wait_for_room(self, size: int = BATCH_SIZE_DEFAULT) -> None:
        """Wait until `size` bytes of `buffer_memory` are free.

        Use it to send at full speed:

            for part in parts:
                await producer.wait_for_room(part.nbytes)
                producer.send_batch("orders", part)
        """
        await self._pipeline.room.until(size)

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
        """
        info = await self._pipeline.cluster.topic(topic)
        return [partition.partition for partition in info.partitions]

    def awaited_brokers(self) -> list[str]:
        """Return the addresses of the brokers that records on their way wait for.

        Without those of an unknown topic, or of a partition without a leader.
        """
        brokers = self._pipeline.cluster.metadata.brokers
        awaited = self._pipeline.sender.awaited_brokers()
        return [brokers[number].address for number in awaited if number in brokers]

    def producer_id_problem(self) -> str | None:
        """Return why there is no producer id, without which nothing is sent with `acks="all"`.

        The brokers get ids from the controller. None: no id is needed. Empty: one was requested,
        and no broker has answered yet.
        """
        return self._pipeline.sender.producer_id_problem()

    async def close(self) -> None:
        """Deliver the sent records and release everything; closing twice is harmless.

        No more records can be sent from now on, also while it waits for the earlier ones. A
        transaction that is open is aborted. Takes `close_timeout_ms` at the most. Call it before
        the loop ends: nothing is delivered without one, and a warning counts the records that are
        lost.

        Raises:
            MillraceError: the first failure of the records it waited for, or since the last flush,
                that no handle has reported.
            AbortedError: a transaction was open that had records.
            ClosedError: `close_timeout_ms` passed; tells how many records were not acknowledged.
        """
        pipeline = self._pipeline
        if pipeline.is_closed:
            return
        pipeline.refuse_records()
        late = ""
        limit_s = pipeline.config.close_timeout_ms / 1000
        ends_at = host.monotonic_s() + limit_s
        try:
            async with asyncio.timeout(last_work_s(limit_s)) as limit:
                try:
                    if pipeline.transactions is not None:
                        await pipeline.transactions.close()
                    await pipeline.flush()
                finally:
                    if not limit.expired():
                        await pipeline.drain()
        except TimeoutError:
            late = f"close_timeout_ms={pipeline.config.close_timeout_ms} passed"
            raise not_delivered(pipeline, late) from None
        finally:
            await pipeline.close(late, ends_at)


def unacknowledged(pipeline: Pipeline) -> str:
    """Return how many records are not acknowledged, for people."""
    left = words.count(pipeline.unfinished_records(), "record was", "records were")
    return f"{left} not acknowledged"


def not_delivered(pipeline: Pipeline, why: str) -> ClosedError:
    """Return the error of a producer that is closed before all records are acknowledged."""
    return ClosedError(
        f"{unacknowledged(pipeline)} before {why}: their handles tell which",
        appended=Appended.MAYBE,
    )


def _partitioner(partitioner: str | PartitionFunction) -> Partitioner:
    if isinstance(partitioner, str):
        return _PARTITIONERS[partitioner]()
    return ByFunction(partitioner, caught_from_users())
