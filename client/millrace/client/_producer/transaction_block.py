"""One transaction, for the length of a `with` block: `producer.transaction()`."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from millrace.client._producer.given_records import Headers
from millrace.client._producer.handles import BatchHandle, RecordHandle
from millrace.client._producer.record_sink import RecordSink
from millrace.client._producer.transactions import AnyConsumer, Reading, Transactions, reading_of
from millrace.client._with_blocks import note
from millrace.core.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    TransactionInDoubtError,
)
from millrace.core.topics import PartitionName


class TransactionRecords:
    """What both kinds of transactions share: their records."""

    def __init__(self, producer: RecordSink) -> None:
        self._producer = producer
        self._is_over = False

    def _check_open(self) -> None:
        """Refuse what would belong to another transaction of the producer, or to none.

        Raises:
            InvalidTransactionStateError: its block has ended.
        """
        if self._is_over:
            raise InvalidTransactionStateError(
                "the transaction is over: send in another one, `producer.transaction()`"
            )

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> RecordHandle:
        """Append a record, as part of the transaction: see `Producer.send`."""
        if self._is_over:
            self._check_open()
        return self._producer.send(
            topic, value, key, partition=partition, headers=headers, timestamp=timestamp
        )

    def send_batch(
        self,
        topic: str,
        values: Any = None,
        keys: Any = None,
        *,
        partition: int | None = None,
        headers: Sequence[Headers | None] | pa.Array | None = None,
        timestamps: Any = None,
    ) -> BatchHandle:
        """Append many records at once, as part of the transaction: see `Producer.send_batch`."""
        self._check_open()
        return self._producer.send_batch(
            topic, values, keys, partition=partition, headers=headers, timestamps=timestamps
        )


class Transaction(TransactionRecords):
    """One transaction of a `Producer`, which commits at the end of its block.

        async with producer.transaction(consumer) as t:
            t.send("orders", b"first")
            await t.commit_positions(consumer)

    After an exception it aborts, and the exception goes on. `producer.transaction()` makes it.
    """

    def __init__(
        self, producer: RecordSink, transactions: Transactions, reading: Reading | None
    ) -> None:
        super().__init__(producer)
        self._transactions = transactions
        self._reading = reading

    async def commit_positions(
        self, consumer: AnyConsumer, positions: Mapping[PartitionName, int] | None = None
    ) -> None:
        """Commit how far a consumer's group has read, as part of the transaction.

        See `Producer.send_offsets_to_transaction`.
        """
        self._check_open()
        await self._transactions.stage(reading_of(consumer), positions)

    async def abort(self) -> None:
        """Abort the transaction now; the block may go on without it."""
        self._check_open()
        self._is_over = True
        await self._transactions.abort()

    async def __aenter__(self) -> Self:
        self._check_open()
        await self._transactions.begin(self._reading)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_over:
            return
        self._is_over = True
        if error is None:
            try:
                await self._transactions.commit()
            except TransactionInDoubtError:
                raise  # It may be committed.
            except BaseException as failure:
                await self.abort_after(failure)
                raise
        elif not isinstance(error, GeneratorExit):  # In which nothing can be waited for.
            await self.abort_after(error)
            if isinstance(error, InvalidProducerEpochError):
                raise self._transactions.why_refused(error) from error

    async def abort_after(self, error: BaseException) -> None:
        """Abort, if there is something to abort; the error is not hidden."""
        try:
            await self._transactions.give_up()
        except Exception as failure:
            note(failure, error, "the abort of the transaction")
