"""The transactions of one producer: what its five calls do, in Kafka's terms.

`core/client/producer/transaction.py` decides what may be done. Here the coordinator is found and
asked, records are held back where no transaction is open, and what is on its way is delivered
before a commit, or dropped before an abort.

A transaction also knows the consumers that it commits for (T18). From the moment it knows one, the
consumer gives no partition up until the transaction has ended: what it has handed out counts for
its member alone. After an abort the consumer goes back to where its group has committed, else to
where it began, and hands out again what it had handed out.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from millrace.client._cluster import shared_transactions, wire
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.coordinators import Coordinators
from millrace.client._cluster.shared_transactions import Participant, SharedTransaction
from millrace.client._producer.counters import ProducerCounters
from millrace.client._producer.room import Room
from millrace.core.client.producer.sender import Sender
from millrace.core.client.producer.transaction import (
    Described,
    Outcome,
    ProducerIdentity,
    ProducerTransactions,
    TransactionState,
)
from millrace.core.errors import (
    AbortedError,
    Appended,
    ConnectionFailedError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTransactionStateError,
    MillraceError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
)
from millrace.core.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
)
from millrace.core.topics import PartitionName
from millrace.proto.v1 import produce_pb2, transactions_pb2
from millrace.runtime import host

_NOBODY: Final = ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
_COMMITTING: Final = InvalidTransactionStateError(
    "the transaction is being committed: send what follows in the next one"
)
_ABORTING: Final = InvalidTransactionStateError(
    "the transaction is being aborted: send what follows in the next one"
)
_LEAVING: Final = InvalidTransactionStateError(
    "the producer leaves the transaction: send what follows in the next one"
)


class Reading(Protocol):
    """What a transaction needs of a consumer for which it commits."""

    def hold(self) -> None:
        """Give no partition up until `release`."""

    def release(self) -> None:
        """Give partitions up again."""

    async def stage(
        self,
        positions: Mapping[PartitionName, int] | None,
        *,
        began_at: float,
        transactional_id: str,
        identity: ProducerIdentity,
        on_asked: Callable[[], None],
    ) -> None:
        """Commit positions as part of a transaction.

        Args:
            positions: the offset of the next record by partition; None: after all handed out.
            began_at: when the transaction began, in seconds of the monotonic clock.
            transactional_id: of its producer.
            identity: with which it is written.
            on_asked: called before positions are sent; there may be none.

        Raises:
            MillraceError: they are not part of it, or may not be.
        """

    def on_aborted(self) -> None:
        """Go back to where the group has committed, in the next poll."""

    async def put_back(self) -> None:
        """Go back to where the group has committed, now or in the next poll."""


class AnyConsumer(Protocol):
    """A `Consumer` or a `SyncConsumer`."""

    @property
    def _reading(self) -> Reading:
        """What a transaction needs of it."""


def reading_of(consumer: AnyConsumer) -> Reading:
    """Return what a transaction needs of a consumer.

    Raises:
        InvalidRequestError: it is no consumer.
    """
    if not hasattr(consumer, "_reading"):
        raise InvalidRequestError(
            f"{type(consumer).__name__} is no consumer: give the transaction the Consumer or "
            "SyncConsumer for whose group it commits"
        )
    return consumer._reading


class Records(Protocol):
    """The records of the producer: see `Pipeline`."""

    cluster: Cluster
    room: Room
    sender: Sender
    counters: ProducerCounters

    async def settle(self, dropped: MillraceError | None = None) -> None: ...

    def begin_transaction(self, identity: ProducerIdentity) -> None: ...

    def unfinished_records(self) -> int: ...


class Transactions:
    """The transactions of one producer. Used on its loop, by one caller at a time."""

    def __init__(self, records: Records, transactional_id: str, timeout_ms: int) -> None:
        self._records = records
        self._id, self._timeout_ms = transactional_id, timeout_ms
        self._shared_id = transactional_id
        self._coordinators = Coordinators(records.cluster)
        self._machine = ProducerTransactions(transactional_id)
        self._readings: dict[Reading, None] = {}
        """The consumers that the open transaction, or the one in doubt, commits for."""
        self._began_at = 0.0
        self._turn = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self._set_gate()

    @property
    def state(self) -> TransactionState:
        """Where the producer is."""
        return self._machine.state

    @property
    def open_id(self) -> str:
        """The transactional id of the open transaction: another one's, if others end it."""
        return self._shared_id if self._machine.is_shared else self._id

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open, and may be aborted."""
        return self._machine.is_open

    @property
    def is_fenced(self) -> bool:
        """Whether another producer has the id."""
        return self.state is TransactionState.FENCED

    def on_failed(self, error: MillraceError) -> None:
        """Take that a record failed for good."""
        if not self._machine.is_open or type(error) is AbortedError:
            return
        self._take_failure(error)

    def _take_failure(self, error: MillraceError) -> None:
        self._machine.on_failed(error)
        self._set_gate()
        if not self._machine.is_open:  # Before the program polls again.
            for reading in self._readings:
                reading.on_aborted()

    def _set_gate(self) -> None:
        """Take records where a transaction is open, and nothing of it has failed."""
        try:
            self._machine.check_open()
        except MillraceError as error:
            self._records.room.refuse(error)
        else:
            self._records.room.admit()

    # The five calls.

    async def init(self) -> None:
        """See `Producer.init_transactions`."""
        async with self._turn:
            if self.state is not TransactionState.READY:
                await self._initialise()

    async def _initialise(self) -> None:
        """Get an id and an epoch; what is open is aborted."""
        was_open = self._machine.is_open
        named = self._machine.initialise()
        self._set_gate()
        await self._drop("another one begins, or the producer was initialised again")
        request = produce_pb2.InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=self._timeout_ms
        )
        if named is not None:
            request.producer_id, request.producer_epoch = named
        try:
            answer: produce_pb2.InitProducerIdResponse = await self._coordinators.ask(
                self._id, lambda connection: connection.produce.InitProducerId(request)
            )
        except MillraceError as error:
            self._machine.on_not_initialised(error)
            raise
        else:
            self._machine.on_initialised(_identity(answer.producer_id, answer.producer_epoch))
        finally:
            self._set_gate()
            await self._let_readings_go(put_back=was_open)

    async def begin(self, reading: Reading | None = None) -> None:
        """See `Producer.begin_transaction`."""
        async with self._turn:
            try:
                if self._machine.must_initialise:
                    await self._initialise()
                self._machine.check_ready()
            except BaseException:
                if reading is not None and not self._machine.is_open:
                    reading.on_aborted()  # What it has handed out was for this one (T18).
                raise
            if reading is not None:
                self._hold(reading)  # First: it may refuse.
            self._began_at = host.monotonic_s()
            self._records.begin_transaction(self._machine.begin())
            self._records.counters.begun_transactions += 1
            self._set_gate()

    async def stage(self, reading: Reading, positions: Mapping[PartitionName, int] | None) -> None:
        """See `Producer.send_offsets_to_transaction`."""
        async with self._turn:
            machine = self._machine
            machine.check_open()
            assert machine.identity is not None, "a transaction is open"
            self._hold(reading)
            try:
                await reading.stage(
                    positions,
                    began_at=self._began_at,
                    transactional_id=self.open_id,
                    identity=machine.identity,
                    on_asked=self._on_joining,
                )
            except MillraceError as error:
                self._take_failure(error)
                raise

    def _on_joining(self) -> None:
        """From now on the coordinator may know of the transaction."""
        self._machine.is_joined = True

    async def commit(self) -> None:
        """See `Producer.commit_transaction`."""
        async with self._turn:
            machine, begun = self._machine, host.monotonic_s()
            try:
                if machine.state is not TransactionState.COMMIT_IN_DOUBT:
                    machine.check_open()
                    self._records.room.refuse(_COMMITTING)
                    await self._records.settle()
                await self._end(committed=True)
                self._records.counters.committed_transactions += 1
                self._records.counters.commit_seconds.observe(host.monotonic_s() - begun)
            except InvalidProducerEpochError as error:
                await self._abort()
                raise self.why_refused(error) from error
            finally:
                self._set_gate()
                if machine.state is not TransactionState.COMMIT_IN_DOUBT and not machine.is_open:
                    is_done = machine.state is TransactionState.READY
                    await self._let_readings_go(put_back=not is_done)

    async def abort(self) -> None:
        """See `Producer.abort_transaction`."""
        async with self._turn:
            await self._abort()

    # Transactions that others end.

    async def join(self, shared: SharedTransaction) -> None:
        """See `Producer.join_transaction`."""
        async with self._turn:
            self._machine.check_ready()
            identity = await shared_transactions.join(self._coordinators, shared)
            self._shared_id = shared.transactional_id
            self._records.begin_transaction(self._machine.take_part(identity))
            self._records.counters.begun_transactions += 1
            self._renew(shared)
            self._set_gate()

    async def leave(self) -> Participant:
        """See `Producer.leave_transaction`."""
        async with self._turn:
            machine = self._machine
            try:
                machine.check_open()
                self._records.room.refuse(_LEAVING)
                await self._records.settle()
                return Participant(*machine.leave())
            except MillraceError as error:
                if machine.is_open and machine.is_shared:  # It does not count; others go on.
                    await self._abort("another record of it failed")
                if isinstance(error, InvalidProducerEpochError):
                    raise self.why_refused(error) from error
                raise
            finally:
                self._set_gate()

    def _renew(self, shared: SharedTransaction) -> None:
        """Renew the lease until the transaction is over, though this part may be written before."""
        if self._renewing is not None:
            self._renewing.cancel()
        self._renewing = asyncio.get_running_loop().create_task(
            shared_transactions.renew_until_over(self._coordinators, shared)
        )

    async def give_up(self) -> None:
        """Abort what is open; let consumers go back in any case, unless a commit is in doubt.

        Raises:
            MillraceError: the coordinator has not confirmed the abort.
        """
        async with self._turn:
            if self._machine.is_open:
                await self._abort()
            elif self.state is not TransactionState.COMMIT_IN_DOUBT:
                await self._let_readings_go(put_back=True)

    def why_refused(self, error: InvalidProducerEpochError) -> MillraceError:
        """Return what became of a transaction whose epoch a leader has refused; it is aborted.

        The leader does not know whether it was aborted before, or another producer has the id. The
        coordinator has told; else the next transaction hears of it when it begins.
        """
        problem = self._machine.problem
        if isinstance(problem, TransactionAbortedError | ProducerFencedError):
            return problem.again(problem.appended)
        return AbortedError(f"a leader has refused the transaction: {error.message}")

    async def _abort(self, why: str = "the program aborted it") -> None:
        try:
            if self.state is not TransactionState.COMMIT_IN_DOUBT:
                self._records.room.refuse(_ABORTING)
                await self._drop(why)
            await self._end(committed=False)
        finally:
            self._set_gate()
            if self.state is not TransactionState.COMMIT_IN_DOUBT:
                await self._let_readings_go(put_back=True)

    async def _drop(self, why: str) -> None:
        """Let all records of the transaction fail that have no outcome."""
        await self._records.settle(
            AbortedError(f"the transaction was aborted before the record was delivered: {why}")
        )

    async def _end(self, *, committed: bool) -> None:
        """Have the coordinator decide the transaction, if it may have heard of it."""
        machine = self._machine
        machine.is_joined = machine.is_joined or self._records.sender.may_have_joined
        end = machine.commit() if committed else machine.abort()
        if end is None:
            return
        request = transactions_pb2.EndTransactionRequest(
            transactional_id=self._id,
            producer_id=end.identity.producer_id,
            producer_epoch=end.identity.producer_epoch,
            committed=committed,
        )
        in_doubt = False

        async def ask(connection: Connection) -> transactions_pb2.EndTransactionResponse:
            nonlocal in_doubt
            was_in_doubt, in_doubt = in_doubt, True
            answer: transactions_pb2.EndTransactionResponse
            answer = await connection.transactions.EndTransaction(request)
            refusal = wire.error_of(answer)
            if refusal is not None and refusal.appended is Appended.NO:
                in_doubt = was_in_doubt
            return answer

        try:
            answer = await self._coordinators.ask(self._id, ask)
        except MillraceError as error:
            told = machine.on_not_ended(error, in_doubt=in_doubt)
            if told is error:
                raise
            if told is not None:
                raise told from error
        except BaseException:
            cancelled = ConnectionFailedError("the call was cancelled")
            machine.on_not_ended(cancelled, in_doubt=in_doubt)
            raise
        else:
            machine.on_ended(_identity(answer.producer_id, answer.producer_epoch))

    # What became of it.

    async def outcome(self) -> Outcome | None:
        """See `Producer.outcome`."""
        async with self._turn:
            machine = self._machine
            if not machine.must_ask:
                return machine.outcome
            outcome = machine.on_described(await self._describe())
            if outcome != "open":
                self._set_gate()
                await self._let_readings_go(put_back=outcome != "committed")
            return outcome

    async def _describe(self) -> Described:
        request = transactions_pb2.DescribeTransactionRequest(transactional_id=self._id)
        try:
            answer: transactions_pb2.DescribeTransactionResponse = await self._coordinators.ask(
                self._id, lambda connection: connection.transactions.DescribeTransaction(request)
            )
        except TransactionalIdNotFoundError:
            return Described(_NOBODY, None, ended_committed=False)
        ended = _identity(answer.ended_producer_id, answer.ended_producer_epoch)
        return Described(
            _identity(answer.producer_id, answer.producer_epoch),
            ended if ended.producer_id >= 0 else None,
            answer.ended_committed,
        )

    async def close(self) -> None:
        """Abort what is open, and begin nothing more.

        Raises:
            AbortedError: records were sent in a transaction that was neither committed nor aborted.
            MillraceError: the coordinator has not confirmed the abort.
        """
        async with self._turn:
            try:
                if self._machine.is_open:
                    records = self._records
                    before = "leave" if self._machine.is_shared else "commit"
                    is_empty = not (
                        self._machine.is_joined
                        or records.sender.may_have_joined
                        or records.unfinished_records()
                    )
                    await self._abort("the producer is closed")
                    if not is_empty:
                        raise AbortedError(
                            "the producer was closed within a transaction, which is aborted: "
                            f"{before} it before"
                        )
            finally:
                if self._renewing is not None:
                    self._renewing.cancel()
                self._machine.close()
                self._set_gate()
                await self._let_readings_go(put_back=False)

    # Consumers.

    def _hold(self, reading: Reading) -> None:
        if reading not in self._readings:
            reading.hold()
            self._readings[reading] = None

    async def _let_readings_go(self, *, put_back: bool) -> None:
        """Let consumers go on, as the transaction has ended."""
        readings, self._readings = self._readings, {}
        try:
            if put_back:
                for reading in readings:
                    await reading.put_back()
        finally:
            for reading in readings:
                reading.release()


def _identity(producer_id: int, producer_epoch: int) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(producer_epoch))
