"""Transactions: the coordinators of `__transactions`, their clock, and the delivery of decisions.

A request is handled by the machine of its id's partition (`core/coordinator/transactions`, P46). A
transaction that is decided is told to its participants by `MarkerDelivery`, as soon as the decision
is committed, and again by the next coordinator after a failover: what is told follows from the
committed state, never from a request (T9).

The answer to an end comes with the decision (T12). A producer that begins its next transaction a
moment later would be told to try again; so `begin` and `join` wait here for the last marker, for a
few seconds at most.

Time-outs (P53) go by a clock that does not jump, set by the wall clock once: else a corrected clock
would abort what is open.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeAlias

from millrace.broker.coordinator.completions import Completions
from millrace.broker.coordinator.confirmed_answers import ask_confirmed
from millrace.broker.coordinator.coordinators import (
    Committed,
    CoordinatorLimits,
    CoordinatorRuntime,
)
from millrace.broker.coordinator.marker_delivery import MarkerDelivery, Participant, Telling
from millrace.broker.coordinator.overdue_transactions import OverdueTransactions
from millrace.broker.coordinator.owed_topics import OwedTopics, TransactionsRuntime
from millrace.broker.coordinator.transaction_watch import TransactionWatch
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.peers import Peers
from millrace.broker.replica.reader import LogReader
from millrace.broker.telemetry.transactions import TransactionMetrics
from millrace.core.callers import Caller
from millrace.core.coordinator.contract import ResponseT, Result
from millrace.core.coordinator.transactions import records
from millrace.core.coordinator.transactions.config import TransactionsConfig
from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.records import TransactionRecord
from millrace.core.coordinator.transactions.transaction import (
    Producer,
    State,
    Transaction,
    short_id,
)
from millrace.core.errors import (
    Appended,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    MillraceError,
)
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.markers import BUMPING
from millrace.core.topics import TRANSACTIONS_TOPIC
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now, wall_now
from millrace.runtime.tasks import Tasks
from millrace.runtime.turns import Turns

_LOOK_SECONDS: Final = 1.0
"""Time between two looks at what is open for too long, and at what deleted topics are owed."""
_UNUSED_LOOKS: Final = 60
"""Looks until one also at ids that are not used."""
_AT_ONCE: Final = 100
"""Ids that one request aborts or forgets."""
_WAIT_SECONDS: Final = 5.0
"""How long a request waits for the end of the transaction before."""

_Key: TypeAlias = tuple[TopicPartition, str]


class ProducerIdSource(Protocol):
    """Gives out producer ids."""

    def take(self) -> ProducerId | None:
        """Return an id that nobody has had; None: `fill` is needed."""
        ...

    async def fill(self, caller: Caller) -> None:
        """Get some.

        Raises:
            MillraceError: there are none.
        """
        ...


class _OutOfIdsError(Exception):
    """The machine needs a producer id, and none is here."""


class Described(NamedTuple):
    """What is known of a transactional id.

    Attributes:
        record: of the id.
        partitions: of the open transaction, or of one that is not over; with the reason why one
            does not have its marker, empty if no attempt has failed; None: it has it, or owes none.
        groups: likewise.
        now: the coordinator's time.
        participants: the producers of a transaction that has participants.
    """

    record: records.IdRecord
    partitions: dict[TopicPartition, str | None]
    groups: dict[str, str | None]
    now: WallMs
    participants: Sequence[Producer]


class Transactions:
    """Serves transactional ids, ends what is open for too long, and has decisions told.

    It belongs to the event loop.

    Args:
        partitions: of this broker.
        reader: runs reads on threads.
        config: the broker's settings.
        peers: the leaders of partitions, and the coordinators of groups.
        producer_ids: for new ids.
        metrics: what is shown.
        turns: of the loop.
        on_failure: called with an unexpected error.
        limits: of each partition.

    Attributes:
        runtime: runs the coordinators.
        overdue: what is open for too long.
    """

    def __init__(
        self,
        partitions: Partitions,
        reader: LogReader,
        config: TransactionsConfig,
        peers: Peers,
        producer_ids: ProducerIdSource,
        *,
        metrics: TransactionMetrics,
        turns: Turns,
        on_failure: Callable[[BaseException], None],
        limits: CoordinatorLimits,
    ) -> None:
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._shown = TransactionWatch(metrics, partitions.named)
        self.runtime: TransactionsRuntime = CoordinatorRuntime(
            str(TRANSACTIONS_TOPIC),
            lambda start_offset: TransactionCoordinator(config, start_offset),
            records,
            partitions=partitions,
            reader=reader,
            turns=turns,
            on_failure=on_failure,
            limits=limits,
            on_ended=self._on_ended,
            on_committed=self._on_committed,
        )
        metrics.unready.set_function(self.runtime.unready)
        metrics.timeout_max_seconds.set(config.timeout_ms_max / 1000)
        self._delivery = MarkerDelivery(partitions, peers, on_failure)
        self._owed_topics = OwedTopics(partitions, self._delivery, lambda: self.runtime, self.now)
        self._tasks = Tasks(on_failure)
        self._completions = Completions(lambda: self.runtime, self.now, self._tasks, self._on_noted)
        self._looking: dict[TopicPartition, asyncio.Task[None]] = {}
        self.overdue = OverdueTransactions(config.lease_ms_max)
        self._told_until: dict[TopicPartition, Offset] = {}
        # By transactional id, and by the producer that the decision is of.
        self._telling: dict[TopicPartition, dict[str, dict[ProducerId, Telling]]] = {}
        self._leader_epochs: dict[TopicPartition, LeaderEpoch] = {}
        # Events that are set when the last transaction of an id is over.
        self._waiting: dict[_Key, list[asyncio.Event]] = {}
        self._clock_offset = wall_now() - monotonic_now()

    def now(self) -> WallMs:
        """Return the time of a clock that does not jump."""
        return WallMs(monotonic_now() + self._clock_offset)

    # --- Requests ----------------------------------------------------------------------------

    async def begin(
        self,
        place: TopicPartition,
        transactional_id: str,
        timeout_ms: int,
        expected: Producer | None,
        caller: Caller,
    ) -> Producer:
        """Begin with an id; see `TransactionCoordinator.handle_init`.

        Args:
            place: the partition of the id.
            transactional_id: the id, with its namespace.
            timeout_ms: how long its transactions may be open.
            expected: what the producer was before, if it is the same one.
            caller: the client.

        Raises:
            MillraceError: it was refused, or this broker does not lead the partition.
        """

        async def ask() -> Producer | None:
            return await self.ask_with_ids(
                place,
                caller,
                lambda machine, next_id: machine.handle_init(
                    transactional_id, timeout_ms, self.now(), next_id, expected
                ),
            )

        async def ask_until_begun() -> Producer:
            begun = await ask()
            if begun is None:
                raise ConcurrentTransactionsError(
                    f"the open transaction of {short_id(transactional_id)!r} is being aborted: "
                    "try again shortly"
                )
            return begun

        return await self.when_over(place, transactional_id, ask_until_begun)

    async def join(
        self,
        place: TopicPartition,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        groups: Collection[str],
        *,
        protocol: int = BUMPING,
        only_verified: bool = False,
    ) -> LeaderEpoch:
        """Take partitions and groups into a transaction; see `handle_join`.

        Returns:
            With which epoch this broker coordinates it.

        Raises:
            MillraceError: as `begin`.
        """

        async def ask() -> None:
            over = self._completions.find(place, transactional_id)
            await self.ask(
                place,
                lambda machine: machine.handle_join(
                    transactional_id,
                    producer,
                    partitions,
                    groups,
                    self.now(),
                    protocol=protocol,
                    only_verified=only_verified,
                    over=over,
                ),
            )
            if over is not None:
                self._completions.on_noted(place, transactional_id, over)

        await self.when_over(place, transactional_id, ask)
        epoch = self._leader_epochs.get(place)
        if epoch is None:
            raise CoordinatorLoadInProgressError(
                f"this broker does not coordinate {short_id(transactional_id)!r} any more: ask "
                "again",
                appended=Appended.MAYBE,
            )
        return epoch

    async def end(
        self,
        place: TopicPartition,
        transactional_id: str,
        producer: Producer,
        caller: Caller,
        *,
        is_commit: bool,
        protocol: int = BUMPING,
    ) -> Producer:
        """Decide a transaction; see `handle_end`. The answer is the decision (T12).

        Raises:
            MillraceError: as `begin`; `appended` says whether it may be decided all the same.
        """

        async def ask() -> Producer:
            return await self.ask_with_ids(
                place,
                caller,
                lambda machine, next_id: machine.handle_end(
                    transactional_id,
                    producer,
                    self.now(),
                    next_id,
                    is_commit=is_commit,
                    protocol=protocol,
                ),
            )

        return await self.when_over(place, transactional_id, ask)

    async def abort(self, place: TopicPartition, transactional_id: str) -> None:
        """Abort the open transaction of an id, for a person; see `handle_abort`.

        Raises:
            MillraceError: as `begin`.
        """
        await self.ask(place, lambda machine: machine.handle_abort(transactional_id, self.now()))

    async def describe(self, place: TopicPartition, transactional_id: str) -> Described:
        """Return what is known of an id.

        Raises:
            TransactionalIdNotFoundError: nothing is.
            MillraceError: as `begin`.
        """

        def look(machine: TransactionCoordinator) -> Result[TransactionRecord, Described]:
            record = machine.get(transactional_id)
            partitions, groups = machine.participants(transactional_id)
            transaction = record.transaction
            assert transaction is not None
            owed = self._owed(place, transactional_id)

            def problem(participant: TopicPartition | str) -> str | None:
                if transaction is None or not transaction.state.is_prepared:
                    return None
                return "" if owed is None else owed.get(participant)

            return Result(
                [],
                Described(
                    record,
                    {partition: problem(partition) for partition in partitions},
                    {group: problem(group) for group in groups},
                    self.now(),
                    machine.shared_by(transactional_id),
                ),
            )

        return await self.ask(place, look)

    async def ids_after(
        self,
        place: TopicPartition,
        after: str,
        most: int,
        *,
        states: Collection[State] = (),
        producer_id: ProducerId | None = None,
    ) -> list[records.IdRecord]:
        """Return the first ids after another one; see `KeptTransactions.ids_after`.

        Raises:
            MillraceError: as `begin`.
        """
        return await self.ask(
            place,
            lambda machine: Result(
                [], machine.ids_after(after, most, states=states, producer_id=producer_id)
            ),
        )

    async def owed_epochs(
        self, place: TopicPartition, producer_id: ProducerId
    ) -> list[ProducerEpoch]:
        """Return a producer's transactions whose end is owed to deleted topics (T8), by epoch.

        Raises:
            MillraceError: as `begin`.
        """
        return await self.ask(place, lambda machine: Result([], machine.owed_epochs(producer_id)))

    async def ask_with_ids(
        self,
        place: TopicPartition,
        caller: Caller,
        handle: Callable[
            [TransactionCoordinator, Callable[[], ProducerId]],
            Result[TransactionRecord, ResponseT],
        ],
    ) -> ResponseT:
        """Ask a machine that may need a producer id; get some if there is none here."""

        def next_id() -> ProducerId:
            taken = self._producer_ids.take()
            if taken is None:
                raise _OutOfIdsError
            return taken

        while True:
            try:
                return await self.ask(place, lambda machine: handle(machine, next_id))
            except _OutOfIdsError:
                await self._producer_ids.fill(caller)

    async def ask(
        self,
        place: TopicPartition,
        handle: Callable[[TransactionCoordinator], Result[TransactionRecord, ResponseT]],
    ) -> ResponseT:
        return await ask_confirmed(self.runtime, place, handle, self.now)

    async def when_over(
        self,
        place: TopicPartition,
        transactional_id: str,
        ask: Callable[[], Awaitable[ResponseT]],
    ) -> ResponseT:
        """Ask again when the last transaction of an id is over, if that is what it waits for."""
        until = host.monotonic_s() + _WAIT_SECONDS
        key, over = (place, transactional_id), asyncio.Event()
        self._waiting.setdefault(key, []).append(over)
        try:
            while True:
                over.clear()
                try:
                    return await ask()
                except ConcurrentTransactionsError:
                    if self._completions.find(place, transactional_id) is not None:
                        await self._completions.note(place)
                        continue
                    left = until - host.monotonic_s()
                    if left <= 0:
                        raise
                    with suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await over.wait()
        finally:
            waiting = self._waiting[key]
            waiting.remove(over)
            if not waiting:
                del self._waiting[key]

    # --- Decisions are told ------------------------------------------------------------------

    def _on_committed(self, committed: Committed[TransactionCoordinator]) -> None:
        place, leader_epoch, machine, high_watermark = committed
        told_until = self._told_until.get(place)
        if told_until is not None and high_watermark <= told_until:
            return
        self._told_until[place] = high_watermark
        self._leader_epochs[place] = leader_epoch
        by_id = self._telling.setdefault(place, {})
        counted = set()
        for decision in machine.owed(high_watermark, told_until or Offset(0)):
            transactional_id = decision.transactional_id
            # Without a high watermark before, another coordinator has counted it.
            if told_until is not None and transactional_id not in counted:
                counted.add(transactional_id)
                self._shown.on_decided(machine.get(transactional_id))
            telling = Telling(place, leader_epoch, decision, self._on_over)
            tellings = by_id.setdefault(transactional_id, {})
            for earlier in list(tellings.values()):
                if earlier.decision.decided_at != decision.decided_at:
                    # The coordinator before has heard that it is over, else none could follow.
                    earlier.is_dropped = True
                    del tellings[earlier.decision.producer.producer_id]
            tellings[decision.producer.producer_id] = telling
            self._delivery.tell(telling)

    def _on_ended(self, place: TopicPartition) -> None:
        """This broker stops to serve a partition: the next coordinator tells everything again."""
        self._told_until.pop(place, None)
        self.overdue.forget(place)
        self._leader_epochs.pop(place, None)
        for tellings in self._telling.pop(place, {}).values():
            for telling in tellings.values():
                telling.is_dropped = True
        self._owed_topics.drop(place)
        self._completions.drop(place)
        for waited_place, transactional_id in list(self._waiting):
            if waited_place == place:
                self._wake(place, transactional_id)

    async def _on_over(self, telling: Telling) -> None:
        """All participants have a decision; an id may have several, which are over together."""
        if telling.is_dropped:
            return
        place, decision = telling.place, telling.decision
        tellings = self._telling[place][decision.transactional_id]
        if len(tellings) > 1:
            del tellings[decision.producer.producer_id]
            next(iter(tellings.values())).unknown += telling.unknown
            return
        self._completions.add(telling)
        self._wake(place, decision.transactional_id)

    def _on_noted(self, telling: Telling) -> None:
        decision = telling.decision
        by_id = self._telling.get(telling.place, {})
        tellings = by_id.get(decision.transactional_id, {})
        if tellings.get(decision.producer.producer_id) is telling:
            del by_id[decision.transactional_id]

    def _owed(self, place: TopicPartition, transactional_id: str) -> dict[Participant, str] | None:
        """Return who must still be told, with the reason why not yet; None: it is told nobody."""
        tellings = self._telling.get(place, {}).get(transactional_id)
        if tellings is None:
            return None
        return {
            participant: problem
            for telling in tellings.values()
            for participant, problem in telling.owed.items()
        }

    def _wake(self, place: TopicPartition, transactional_id: str) -> None:
        for over in self._waiting.get((place, transactional_id), ()):
            over.set()

    # --- Time --------------------------------------------------------------------------------

    async def watch(self) -> None:
        """End what is open for too long, and forget what is unused, while the broker runs."""
        try:
            await asyncio.gather(self._look_on(), self._show())
        finally:
            await self._tasks.cancel()
            await self._delivery.close()

    async def _look_on(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            looks += 1
            await self.look(at_unused=looks % _UNUSED_LOOKS == 0)

    async def _show(self) -> None:
        """Show what is open and what is owed; it waits for no commit."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._shown.look(self.runtime.machines(), self._owed, self.now())

    async def look(self, *, at_unused: bool = True) -> None:
        """Look at all partitions once; one that cannot commit holds up no other one."""
        for place, machine in list(self.runtime.machines()):
            if place not in self._looking:
                look = self._look_at(place, machine, at_unused=at_unused)
                self._looking[place] = self._tasks.begin(look)
        await asyncio.sleep(0)

    async def _look_at(
        self, place: TopicPartition, machine: TransactionCoordinator, *, at_unused: bool
    ) -> None:
        try:
            overdue = self.overdue.look(place, machine, self.now())
            unused = machine.unused(self.now()) if at_unused else []
            for at in range(0, len(overdue), _AT_ONCE):
                await _time_out(self.runtime, place, overdue[at : at + _AT_ONCE], self.now)
            for at in range(0, len(unused), _AT_ONCE):
                await _forget(self.runtime, place, unused[at : at + _AT_ONCE], self.now)
            epoch = self._leader_epochs.get(place)
            if epoch is not None:
                await self._owed_topics.pay(place, epoch, machine)
        except MillraceError:
            pass  # The next look, or the next leader, does it.
        finally:
            del self._looking[place]


async def _time_out(
    runtime: TransactionsRuntime,
    place: TopicPartition,
    overdue: Sequence[tuple[str, Transaction]],
    now: Callable[[], WallMs],
) -> None:
    await runtime.ask(place, lambda machine, _: machine.handle_time_out(overdue, now()))


async def _forget(
    runtime: TransactionsRuntime,
    place: TopicPartition,
    unused: Sequence[str],
    now: Callable[[], WallMs],
) -> None:
    await runtime.ask(place, lambda machine, _: machine.handle_expire(unused, now()))
