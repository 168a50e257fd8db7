"""A simulated producer of Kafka with transactions of their first protocol (T14), as librdkafka's.

It takes each partition into its transaction before it writes to it, and every transaction has the
same epoch. An abort waits for what is on its way; if the outcome of a batch is not known then, the
producer goes on with the next epoch. A producer whose epoch is over is done: another one begins.

Some transactions leave out what the protocol asks of them first, as a broken client would: their
leaders must refuse them.
"""

import asyncio
import contextlib
from typing import Final

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.fakes.kafka_batches import TRANSACTIONAL
from tests.sim.clients.kafka.connections import (
    NO_ERROR,
    KafkaConnection,
    NotAnsweredError,
    error_of,
)
from tests.sim.clients.kafka.coordinators import ELSEWHERE, OF_TRANSACTIONS, KafkaCoordinator
from tests.sim.clients.kafka.producer import (
    NOBODY,
    Batch,
    Identity,
    KafkaHandle,
    KafkaProducer,
    Partition,
    ProducerParts,
)

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import (
    Appended,
    ConnectionFailedError,
    FencedError,
    InvalidTransactionStateError,
    MillraceError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionInDoubtError,
)

_BACKOFF_S: Final = 0.1
_CLOSE_S: Final = 5.0
_FORGETS: Final = 0.05
_FENCED: Final = (Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED)
_LATER: Final = ELSEWHERE | {
    Code.CONCURRENT_TRANSACTIONS,
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.OPERATION_NOT_ATTEMPTED,
}


class KafkaTransactionalProducer(KafkaProducer):
    """Writes transactions to one topic.

    Args:
        parts: of every producer.
        transactional_id: its id.
        timeout_ms: of its transactions.

    Attributes:
        transactional_id: as given.
        is_fenced: its epoch is over; it can do nothing more.
        forgets: it has not taken all partitions into its transaction, and writes to them.
    """

    def __init__(self, parts: ProducerParts, *, transactional_id: str, timeout_ms: int) -> None:
        super().__init__(parts)
        self.is_fenced = False
        self.forgets = False
        self.transactional_id = self._transactional_id = self._name = transactional_id
        self._timeout_ms = timeout_ms
        self._coordinator = KafkaCoordinator(parts.brokers, transactional_id, OF_TRANSACTIONS)
        self._identity: Identity | None = None
        self._is_open = False
        self._is_ending = False
        self._is_in_doubt = False
        self._needs_epoch = False
        self._failure: MillraceError | None = None
        self._has_asked = False
        self._added: set[int] = set()
        self._handles: list[KafkaHandle] = []

    # --- What writers call -------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Begin with the id, and fence whoever had it.

        Raises:
            MillraceError: that did not succeed.
        """
        await self._get_identity(NOBODY)
        self.begin_work()

    async def begin_transaction(self) -> None:
        """Begin a transaction.

        Raises:
            MillraceError: one is open, or the producer is done.
        """
        self._check()
        if self._is_open:
            raise InvalidTransactionStateError("a transaction is open")
        if self._needs_epoch:
            assert self._identity is not None
            await self._get_identity(self._identity)
        self._is_open, self._is_ending, self._is_in_doubt = True, False, False
        self._failure, self._has_asked = None, False
        self.forgets = self._dice.random() < _FORGETS
        self._added.clear()
        self._handles.clear()

    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int
    ) -> KafkaHandle:
        """Take a record of the transaction; return a handle for it.

        Raises:
            InvalidTransactionStateError: none is open.
        """
        self._check()
        if not self._is_open or self._is_ending:
            raise InvalidTransactionStateError("no transaction is open")
        handle = super().send(topic, value, key=key, partition=partition)
        where = self._partitions[partition]
        if where.identity is None:
            where.identity = self._identity
        self._handles.append(handle)
        return handle

    async def commit_transaction(self) -> None:
        """Deliver all records, and commit.

        Raises:
            MillraceError: as of Millrace's producers.
        """
        self._check()
        if not self._is_open:
            raise InvalidTransactionStateError("no transaction is open")
        if self._is_ending:  # It is repeated.
            await self._end(is_commit=True)
            return
        for handle in self._handles:
            await handle
        if self._failure is not None:
            raise self._failure
        self._is_ending = True
        await self._end(is_commit=True)

    async def abort_transaction(self) -> None:
        """Drop what was not sent, wait for the rest, and abort.

        Raises:
            MillraceError: as of Millrace's producers.
        """
        if self._is_in_doubt:
            raise TransactionInDoubtError("its commit is in doubt")
        if not self._is_open:
            raise InvalidTransactionStateError("no transaction is open")
        self._is_ending = True
        error = TransactionAbortedError("the transaction is aborted")
        while "add" in self._busy or any(where.flying for where in self._partitions.values()):
            self._drop(error)
            await asyncio.sleep(_BACKOFF_S)
        self._drop(error)
        if not self._has_asked:  # No coordinator has heard of it.
            self._is_open = False
        while self._is_open and not self.is_fenced:
            with contextlib.suppress(TransactionInDoubtError, ConnectionFailedError):
                await self._end(is_commit=False)

    async def close(self) -> None:
        """End, and abort what is open before, as Java's producer does: it would hold readers up."""
        with contextlib.suppress(MillraceError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                self._check()
                await self.abort_transaction()
        await super().close()

    async def die(self) -> None:
        """End as a process that is killed: what is open stays open."""
        await super().close()

    @property
    def identity(self) -> Identity:
        """Its producer id and epoch now."""
        assert self._identity is not None
        return self._identity

    async def add_group(self, group: str) -> None:
        """Take the positions of a group into the transaction, however often it has to ask.

        Raises:
            MillraceError: they may not be in it.
        """
        version = self._dice.choice((0, 1, 3))
        asked = AddOffsetsToTxnRequest(
            version=version,
            transactional_id=self._name,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group,
        )
        self._has_asked = True
        while True:
            try:
                answer = await self._coordinator.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, asked)
            except MillraceError:
                await asyncio.sleep(_BACKOFF_S)
                continue
            code = answer.error_code
            if code == NO_ERROR:
                return
            if code in _FENCED:
                self._on_fenced()
            if code not in _LATER:
                raise error_of(code, f"the group {group} is not added")
            if code in ELSEWHERE:
                self._coordinator.forget()
            await asyncio.sleep(_BACKOFF_S)

    async def outcome(self) -> None:
        """Return None: no client of Kafka can ask what became of a transaction."""

    def _check(self) -> None:
        if self.is_fenced:
            raise ProducerFencedError("the epoch of the producer is over")
        if self._identity is None or self.is_closed:
            raise InvalidTransactionStateError("the producer has not begun, or has ended")

    def _drop(self, error: MillraceError) -> None:
        for where in self._partitions.values():
            for batch in where.waiting:
                if batch.was_sent:
                    self._needs_epoch = True
                batch.fail(error)
            where.waiting.clear()
            where.open = None

    # --- Its records -------------------------------------------------------------------------

    def _may_send(self, where: Partition, batch: Batch, connection: KafkaConnection) -> bool:
        if self.is_fenced or (self._is_ending and not batch.was_sent):
            return False
        if where.number not in self._added and not (self.forgets and self._added):
            self._begin("add", self._add())
            return False
        return super()._may_send(where, batch, connection)

    def _more_numbers(self) -> dict[str, int]:
        return {"attributes": TRANSACTIONAL}

    def _give_up(self, where: Partition, error: MillraceError) -> None:
        super()._give_up(where, error)
        where.identity = self._identity
        self._failure, self._needs_epoch = error, True

    def _on_refused(self, where: Partition, batch: Batch, error: MillraceError) -> None:
        if isinstance(error, FencedError):
            self._on_fenced()
            return
        super()._on_refused(where, batch, error)

    def _on_fenced(self) -> None:
        self.is_fenced = True
        error = ProducerFencedError("another producer has the id, or its time was over")
        for where in self._partitions.values():
            for batch in where.outstanding():
                batch.fail(error)
            where.waiting.clear()
            where.flying.clear()
            where.open = None

    async def _add(self) -> None:
        """Take partitions into the transaction whose records wait."""
        numbers = [n for n, where in self._partitions.items() if where.waiting]
        numbers = [number for number in numbers if number not in self._added]
        if self.forgets:
            numbers = numbers[:1]
        assert self._identity is not None
        version = self._dice.choice((0, 1, 3))
        asked = AddPartitionsToTxnRequest(
            version=version,
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=self._topic, partitions=numbers
                )
            ],
        )
        self._has_asked = True
        try:
            answer = await self._coordinator.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, asked)
        except MillraceError:
            await asyncio.sleep(_BACKOFF_S)
            return
        [topic] = answer.results_by_topic_v3_and_below
        codes = {told.partition_error_code for told in topic.results_by_partition}
        if codes == {NO_ERROR}:
            self._added.update(numbers)
        elif codes & {*_FENCED}:
            self._on_fenced()
        elif codes <= _LATER:
            if codes & ELSEWHERE:
                self._coordinator.forget()
            await asyncio.sleep(_BACKOFF_S)
        else:
            self._fail_open(error_of(max(codes), "partitions are not added"))

    def _fail_open(self, error: MillraceError) -> None:
        self._failure = error
        self._drop(error)

    # --- Its ends ----------------------------------------------------------------------------

    async def _end(self, *, is_commit: bool) -> None:
        """Ask for an end, until it is decided.

        Raises:
            TransactionInDoubtError: the answer is lost.
            MillraceError: it is refused.
        """
        assert self._identity is not None
        version = self._dice.choice((0, 1, 3))
        asked = EndTxnRequest(
            version=version,
            transactional_id=self._name,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=is_commit,
        )
        while True:
            try:
                answer = await self._coordinator.ask(ApiKey.END_TXN, version, asked)
            except NotAnsweredError as error:
                self._is_in_doubt = self._is_in_doubt or is_commit
                raise TransactionInDoubtError(str(error)) from None
            except MillraceError:
                await asyncio.sleep(_BACKOFF_S)
                continue
            code = answer.error_code
            is_nothing = code == Code.INVALID_TXN_STATE and not (is_commit or self._added)
            if code == NO_ERROR or is_nothing:
                self._is_open, self._is_in_doubt = False, False
                return
            if code in _LATER:
                # Kafka's coordinators may have written what they refuse with these.
                self._is_in_doubt = self._is_in_doubt or is_commit
                if code in ELSEWHERE:
                    self._coordinator.forget()
                await asyncio.sleep(_BACKOFF_S)
                continue
            self._is_open = False
            refusal = error_of(code, "the transaction does not end")
            if code in _FENCED:
                self._on_fenced()
                appended = Appended.MAYBE if self._is_in_doubt else Appended.NO
                raise ProducerFencedError(refusal.message, appended=appended)
            raise refusal

    async def _get_identity(self, known: Identity) -> None:
        version = self._dice.choice((3, 4)) if known.producer_id >= 0 else self._dice.choice((0, 4))
        asked = InitProducerIdRequest(
            version=version,
            transactional_id=self._name,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
        )
        answer = await self._coordinator.ask(ApiKey.INIT_PRODUCER_ID, version, asked)
        code = answer.error_code
        if code in ELSEWHERE:
            self._coordinator.forget()
        if code in _FENCED:
            self._on_fenced()
        if code != NO_ERROR:
            raise error_of(code, f"{self._name} does not begin")
        self._identity = Identity(answer.producer_id, answer.producer_epoch)
        self._needs_epoch = False
        for where in self._partitions.values():
            where.identity, where.next_sequence = self._identity, 0
