"""The coordinators of transactions on a broker: what they tell, when, and who waits for it."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.fakes.marker_writers import HERE, MarkerLeader, MarkersImage
from tests.fakes.transactions_log import (
    CLICKS,
    ID,
    MINUTE,
    ORDERS,
    ResponseT,
    TransactionsLog,
    at,
    producer,
)
from tests.fakes.until import until

from millrace.broker.coordinator.coordinators import Committed, CoordinatorLimits
from millrace.broker.coordinator.marker_delivery import METHOD
from millrace.broker.coordinator.transactions import Transactions
from millrace.broker.peer_connection import PeerConnections
from millrace.broker.replica.peers import Peers
from millrace.broker.telemetry.topic_labels import TopicLabels
from millrace.broker.telemetry.transactions import TransactionMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import Caller
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.transactions.config import EPOCH_MAX, TransactionsConfig
from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.records import TransactionRecord
from millrace.core.coordinator.transactions.transaction import Over, State
from millrace.core.errors import (
    Appended,
    ConcurrentTransactionsError,
    InvalidTransactionStateError,
    NotLeaderError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionalIdNotFoundError,
)
from millrace.core.ids import (
    LeaderEpoch,
    MonotonicMs,
    Offset,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.model import Listener
from millrace.core.records.markers import NOT_BUMPING
from millrace.runtime.turns import Turns

PLACE = TopicPartition(TopicId(b"transactions".ljust(16)), 0)
CALLER = Caller(
    principal="anonymous", client_id="", address="", listener=Listener.CLIENTS, software=""
)


@pytest.fixture(params=[2, EPOCH_MAX], autouse=True)
def epoch_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the largest epoch: each rule also holds where epochs run out at once."""
    largest: int = request.param
    monkeypatch.setattr(TransactionsLog, "epoch_max", largest)
    return largest


class Runtime:
    """Keeps one partition of `__transactions`; the test says what is committed.

    Attributes:
        commits: whether each append is committed at once.
        fails: the next requests fail after their append.
    """

    def __init__(self, stage: "Stage") -> None:
        self._stage = stage
        self.log = TransactionsLog()
        self.commits = True
        self.fails = 0
        self.is_led = True
        self.hangs = False
        self.asked = 0

    def machines(self) -> Iterator[tuple[TopicPartition, TransactionCoordinator]]:
        if self.is_led:
            yield PLACE, self.log.machine

    async def ask(
        self,
        place: TopicPartition,
        handle: Callable[[TransactionCoordinator, WallMs], Result[TransactionRecord, ResponseT]],
    ) -> ResponseT:
        assert place == PLACE
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(3600)
        if not self.is_led:
            raise NotLeaderError("it does not lead", appended=Appended.NO)
        response = self.log.take(handle(self.log.machine, WallMs(0)))
        if self.commits:
            self.commit()
        await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise RequestTimedOutError("not committed in time")
        return response

    def commit(self, epoch: int = 1) -> None:
        """Commit all that is appended."""
        self._stage.transactions._on_committed(
            Committed(PLACE, LeaderEpoch(epoch), self.log.machine, self.log.end)
        )


class Ids:
    """Producer ids; the controller grants one at a time."""

    def __init__(self) -> None:
        self._left: list[int] = []
        self._next = 100
        self.granted = 0

    def take(self) -> ProducerId | None:
        return ProducerId(self._left.pop()) if self._left else None

    async def fill(self, _: Caller) -> None:
        await asyncio.sleep(0)
        self._left.append(self._next)
        self._next += 1
        self.granted += 1


class Stage:
    """The shell of one broker, which leads everything."""

    def __init__(self) -> None:
        self.image = MarkersImage()
        self.leader = MarkerLeader()
        self.failures: list[BaseException] = []
        partitions: Any = SimpleNamespace(
            image=self.image, add_opened_callback=lambda _: None, named=str
        )
        peers = Peers(HERE, partitions, PeerConnections(LimitsConfig()))
        peers.serve_here(METHOD, self.leader.write)
        self.ids = Ids()
        self.registry = CollectorRegistry()
        reader: Any = None
        self.transactions = Transactions(
            partitions,
            reader,
            TransactionsConfig(),
            peers,
            self.ids,
            metrics=TransactionMetrics(self.registry, TopicLabels(1)),
            turns=Turns(),
            on_failure=self.failures.append,
            limits=CoordinatorLimits(),
        )
        self.runtime = Runtime(self)
        runtime: Any = self.runtime
        self.transactions.runtime = runtime

    @property
    def log(self) -> TransactionsLog:
        return self.runtime.log

    async def begin(self, expected: Any = None) -> Any:
        return await self.transactions.begin(PLACE, ID, MINUTE, expected, CALLER)

    async def join(self, writer: Any, *partitions: TopicPartition) -> None:
        await self.transactions.join(PLACE, ID, writer, partitions, [])

    async def end(self, writer: Any, *, is_commit: bool = True) -> Any:
        return await self.transactions.end(PLACE, ID, writer, CALLER, is_commit=is_commit)

    async def lose(self) -> None:
        """Another broker leads the partition."""
        self.runtime.is_led = False
        self.transactions._on_ended(PLACE)

    async def look(self, *, at_unused: bool = True) -> None:
        """Let it look at the time, and end that."""
        await self.transactions.look(at_unused=at_unused)
        await until(lambda: not self.transactions._looking)


async def test_a_producer_begins_writes_and_commits() -> None:
    stage = Stage()
    writer = await stage.begin()
    assert writer == producer(100, 0)
    await stage.join(writer, at(0), at(0, CLICKS))
    assert await stage.end(writer) == producer(100, 1)
    await until(lambda: stage.log.state() is State.COMPLETE_COMMIT)
    assert stage.leader.written == [(at(0, CLICKS), 100, 1, True), (at(0), 100, 1, True)]
    assert stage.leader.calls[0].markers[0].coordinator_epoch == 1
    assert not stage.failures


async def test_with_the_earlier_protocol_partitions_are_added_and_then_verified() -> None:
    """T14: a late batch of the transaction before must not take its partition into the next one."""
    stage = Stage()
    writer = await stage.begin()

    async def join(*, only_verified: bool) -> None:
        await stage.transactions.join(
            PLACE,
            ID,
            writer,
            [at(0)],
            [],
            protocol=NOT_BUMPING,
            only_verified=only_verified,
        )

    for _ in range(2):
        with pytest.raises(InvalidTransactionStateError):
            await join(only_verified=True)
        await join(only_verified=False)
        await join(only_verified=True)
        ended = await stage.transactions.end(
            PLACE, ID, writer, CALLER, is_commit=True, protocol=NOT_BUMPING
        )
        assert ended == writer
        await until(lambda: stage.log.state() is State.COMPLETE_COMMIT)
    assert stage.leader.written == [(at(0), 100, 0, True)] * 2
    assert {marker.version for call in stage.leader.calls for marker in call.markers} == {1}


async def test_an_end_is_answered_at_the_decision_and_the_next_transaction_waits() -> None:
    """T12."""
    stage = Stage()
    stage.leader.slow = {at(0)}
    writer = await stage.begin()
    await stage.join(writer, at(0))
    following = await stage.end(writer)
    waits = [
        asyncio.create_task(stage.join(following, at(1))),
        asyncio.create_task(stage.join(following, at(2))),
    ]
    await asyncio.sleep(0.05)
    assert stage.log.state() is State.PREPARE_COMMIT
    assert not any(wait.done() for wait in waits)
    stage.leader.may_answer.set()
    await asyncio.gather(*waits)
    assert stage.log.state() is State.ONGOING
    assert stage.log.machine.participants(ID) == ([at(1), at(2)], [])


async def test_a_request_that_waits_for_too_long_is_told_for_which_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millrace.broker.coordinator.transactions._WAIT_SECONDS", 0.05)
    stage = Stage()
    stage.leader.cannot = {at(0)}
    writer = await stage.begin()
    await stage.join(writer, at(0), at(1))
    following = await stage.end(writer)
    with pytest.raises(ConcurrentTransactionsError, match=str(at(0))):
        await stage.join(following, at(0))
    await until(lambda: stage.leader.has(at(1)))
    described = await stage.transactions.describe(PLACE, ID)
    assert described.partitions[at(1)] is None
    await until(lambda: bool((stage.transactions._owed(PLACE, ID) or {}).get(at(0))))
    described = await stage.transactions.describe(PLACE, ID)
    assert "too few replicas" in (described.partitions[at(0)] or "")


async def test_a_new_producer_waits_until_what_was_open_is_aborted_everywhere() -> None:
    stage = Stage()
    first = await stage.begin()
    await stage.join(first, at(0))
    second = await stage.begin()
    assert second == producer(100, 1)
    assert stage.leader.written == [(at(0), 100, 1, False)]
    with pytest.raises(ProducerFencedError):
        await stage.end(first)


async def test_markers_are_told_once_the_decision_is_committed() -> None:
    """T9."""
    stage = Stage()
    writer = await stage.begin()
    await stage.join(writer, at(0))
    stage.runtime.commits = False
    await stage.end(writer)
    await asyncio.sleep(0.05)
    assert not stage.leader.calls
    stage.runtime.commit()
    await until(lambda: len(stage.leader.calls) == 1)
    stage.runtime.commit()
    await asyncio.sleep(0.05)
    assert len(stage.leader.calls) == 1, "it was told twice"


async def test_the_next_coordinator_tells_again_what_is_not_complete() -> None:
    """P46: with its own epoch."""
    stage = Stage()
    stage.leader.cannot = {at(0)}
    writer = await stage.begin()
    await stage.join(writer, at(0), at(1))
    await stage.end(writer)
    await until(lambda: len(stage.leader.calls) >= 2)
    await stage.lose()
    await asyncio.sleep(0.2)
    told = len(stage.leader.calls)
    stage.leader.cannot.clear()
    stage.runtime.log.machine = stage.log.replayed()
    stage.runtime.is_led = True
    stage.runtime.commit(epoch=2)
    await until(lambda: stage.log.state() is State.COMPLETE_COMMIT)
    assert stage.leader.calls[told].markers[0].coordinator_epoch == 2
    assert len(stage.leader.calls[told].markers[0].partitions) == 2


async def test_a_decision_that_is_over_by_the_log_is_told_no_more() -> None:
    """The coordinator before has heard so; this one was told when the next was decided already."""
    stage = Stage()
    stage.leader.slow = {at(0)}
    writer = await stage.begin()
    await stage.join(writer, at(0))
    following = await stage.end(writer)
    await until(lambda: len(stage.leader.calls) == 1)
    [decision] = stage.log.machine.owed(stage.log.end, Offset(0))
    stage.log.join(following, at(1), over=Over(decision.decided_at, []))
    stage.log.end_with(following, is_commit=True)
    stage.runtime.commit()
    await until(lambda: stage.log.state() is State.COMPLETE_COMMIT)
    await until(lambda: not stage.transactions._telling[PLACE])
    stage.leader.may_answer.set()
    await asyncio.sleep(0.05)
    assert stage.failures == []


async def test_a_decision_is_counted_by_the_coordinator_that_made_it_and_by_no_other() -> None:
    stage = Stage()

    def committed() -> float | None:
        return stage.registry.get_sample_value("millrace_transactions_committed_total")

    stage.leader.cannot = {at(0)}
    writer = await stage.begin()
    await stage.join(writer, at(0))
    stage.runtime.commits = False
    await stage.end(writer)
    assert committed() == 0, "it may be lost"
    stage.runtime.commit()
    assert committed() == 1
    await stage.lose()
    stage.runtime.is_led = True
    stage.runtime.commit(epoch=2)
    assert committed() == 1


async def test_a_completion_that_is_not_committed_in_time_is_repeated() -> None:
    stage = Stage()
    writer = await stage.begin()
    await stage.join(writer, at(0))
    stage.leader.slow = {at(0)}
    following = await stage.end(writer)
    stage.runtime.fails = 1
    stage.leader.may_answer.set()
    await until(lambda: not stage.transactions._telling[PLACE])
    await stage.join(following, at(0))


async def test_the_next_transaction_notes_the_end_of_the_one_before_in_its_own_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However slow the machine is, each goes on within the moment in which nobody else notes it.
    monkeypatch.setattr("millrace.broker.coordinator.completions._MOMENT_S", 3600)
    stage = Stage()
    writer = await stage.begin()
    for _ in range(5):
        await stage.join(writer, at(0))
        writer = await stage.end(writer)
        await until(lambda: stage.transactions._completions.find(PLACE, ID))
    asked, end = stage.runtime.asked, stage.log.end
    await stage.join(writer, at(0))
    assert stage.runtime.asked == asked + 1
    assert stage.log.end == end + 3, "the participants before, the begin, and the partition"
    assert stage.log.state() is State.ONGOING
    assert stage.transactions._completions.find(PLACE, ID) is None
    assert not stage.transactions._telling[PLACE]


async def test_ends_of_transactions_that_do_not_go_on_are_noted_together() -> None:
    stage = Stage()
    names = [f"default/{number}" for number in range(20)]
    for name in names:
        begun = await stage.transactions.begin(PLACE, name, MINUTE, None, CALLER)
        await stage.transactions.join(PLACE, name, begun, [at(0)], [])
        await stage.transactions.end(PLACE, name, begun, CALLER, is_commit=True)
    asked = stage.runtime.asked
    await until(lambda: not stage.transactions._telling[PLACE])
    assert {stage.log.transaction(name).state for name in names} == {State.COMPLETE_COMMIT}
    assert stage.runtime.asked <= asked + 2
    assert not stage.failures


async def test_a_producer_that_begins_anew_notes_the_end_at_once() -> None:
    stage = Stage()
    writer = await stage.begin()
    await stage.join(writer, at(0))
    await stage.end(writer)
    await until(lambda: stage.transactions._completions.find(PLACE, ID))
    assert await stage.begin() != writer
    assert stage.log.state() is State.EMPTY


async def test_what_waits_is_refused_when_another_broker_leads() -> None:
    stage = Stage()
    stage.leader.cannot = {at(0)}
    writer = await stage.begin()
    await stage.join(writer, at(0))
    following = await stage.end(writer)
    waits = asyncio.create_task(stage.join(following, at(0)))
    await asyncio.sleep(0.01)
    await stage.lose()
    with pytest.raises(NotLeaderError):
        await asyncio.wait_for(waits, 1)
    assert not stage.transactions._waiting


async def test_what_is_open_for_too_long_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """P53: by a clock that does not jump."""
    stage = Stage()
    writer = await stage.begin()
    await stage.join(writer, at(0))
    monkeypatch.setattr("millrace.broker.coordinator.transactions.wall_now", lambda: WallMs(2**50))
    await stage.look()
    assert stage.log.state() is State.ONGOING
    stage.transactions._clock_offset += MINUTE + 1
    await stage.look()
    await until(lambda: stage.log.state() is State.COMPLETE_ABORT)
    assert stage.leader.written == [(at(0), 100, 1, False)]


async def test_a_coordinator_with_a_slower_clock_counts_from_where_it_saw_the_transaction() -> None:
    """P53."""
    stage = Stage()
    writer = await stage.begin()
    await stage.join(writer, at(0))
    stage.transactions._clock_offset -= 100 * MINUTE
    await stage.look()
    assert stage.log.state() is State.ONGOING
    seen = stage.transactions.overdue._seen[PLACE]
    seen[ID] = seen[ID][0], MonotonicMs(seen[ID][1] - MINUTE - 1)
    await stage.look()
    await until(lambda: stage.log.state() is State.COMPLETE_ABORT)


async def test_a_partition_that_cannot_commit_is_looked_at_once() -> None:
    stage = Stage()
    writer = await stage.begin()
    await stage.join(writer, at(0))
    stage.transactions._clock_offset += MINUTE + 1
    stage.runtime.hangs, asked = True, stage.runtime.asked
    await stage.transactions.look()
    await stage.transactions.look()
    assert len(stage.transactions._looking) == 1
    assert stage.runtime.asked == asked + 1


async def test_ids_that_are_not_used_are_forgotten() -> None:
    stage = Stage()
    await stage.begin()
    stage.transactions._clock_offset += 8 * 86_400_000
    await stage.look(at_unused=False)
    assert stage.log.machine.find(ID) is not None
    await stage.look()
    with pytest.raises(TransactionalIdNotFoundError):
        await stage.transactions.describe(PLACE, ID)


async def test_producer_ids_are_asked_for_only_when_one_is_needed(epoch_max: int) -> None:
    stage = Stage()
    writer = await stage.begin()
    for _ in range(5):
        await stage.join(writer, at(0))
        writer = await stage.end(writer)
    last = producer(103, 0) if epoch_max == 2 else producer(100, 6)
    assert await stage.begin(writer) == last
    assert stage.ids.granted == last.producer_id - 99


async def test_markers_for_a_deleted_topic_are_told_when_it_is_back() -> None:
    """T8."""
    stage = Stage()
    writer = await stage.begin()
    await stage.join(writer, at(0), at(0, CLICKS), at(2000, CLICKS))
    stage.image.deleted.add(CLICKS)
    await stage.end(writer)
    await until(lambda: stage.log.state() is State.COMPLETE_COMMIT)
    assert [written[0] for written in stage.leader.written] == [at(0)]
    await stage.look()
    assert stage.log.machine.owed_topics() == [CLICKS]
    stage.image.deleted.clear()
    await stage.look()
    await stage.look()
    await until(lambda: not stage.log.machine.owed_topics())
    assert stage.leader.written[1:] == [
        (at(0, CLICKS), 100, 1, True),
        (at(2000, CLICKS), 100, 1, True),
    ]


async def test_markers_for_a_topic_that_is_gone_for_good_are_forgotten_at_last() -> None:
    """T8."""
    stage = Stage()
    writer = await stage.begin()
    await stage.join(writer, at(0))
    stage.image.unknown.add(ORDERS)
    await stage.end(writer)
    await until(lambda: stage.log.state() is State.COMPLETE_COMMIT)
    await stage.look()
    assert stage.log.machine.owed_topics() == [ORDERS], "this broker may not have heard of it yet"
    stage.transactions._clock_offset += 8 * 86_400_000
    await stage.look()
    assert stage.log.machine.owed_topics() == []


async def test_nothing_is_decided_from_what_is_asked_alone() -> None:
    """P50: the decision is a record."""
    stage = Stage()
    writer = await stage.begin()
    await stage.join(writer, at(0))
    await stage.end(writer, is_commit=False)
    decided_at = len(stage.log.records)
    machine = stage.log.replayed(Offset(decided_at))
    assert machine.get(ID).transaction == stage.log.transaction()


async def test_a_producer_is_refused_only_by_who_still_coordinates_its_id() -> None:
    """P55: a broker that stood still knows nothing of what its successor has begun."""
    stage = Stage()
    writer = await stage.begin()
    with pytest.raises(InvalidTransactionStateError):
        await stage.end(writer)
    for request in (
        stage.end(writer),
        stage.end(producer(100, 7)),
        stage.join(producer(100, 7), at(0)),
        stage.begin(producer(100, 7)),
    ):
        end = stage.log.end
        stage.runtime.fails = 1  # Its in-sync replicas follow another leader.
        with pytest.raises(RequestTimedOutError) as refused:
            await request
        assert stage.log.end > end
        assert refused.value.appended is Appended.NO


async def test_what_is_told_of_an_id_is_committed_by_who_tells_it() -> None:
    """P55: what a broker knew before it stood still is no answer, nor is that it knew nothing."""
    stage = Stage()
    transactions = stage.transactions
    writer = await stage.begin()
    await stage.join(writer, at(0))
    assert (await transactions.describe(PLACE, ID)).record.transaction == stage.log.transaction()
    assert [found.transactional_id for found in await transactions.ids_after(PLACE, "", 10)] == [ID]
    with pytest.raises(TransactionalIdNotFoundError):
        await transactions.describe(PLACE, "default/other")
    for ask in (
        lambda: transactions.describe(PLACE, ID),
        lambda: transactions.describe(PLACE, "default/other"),
        lambda: transactions.ids_after(PLACE, "", 10),
        lambda: transactions.owed_epochs(PLACE, writer.producer_id),
        lambda: transactions.abort(PLACE, "default/other"),
    ):
        end = stage.log.end
        stage.runtime.fails = 1  # Its in-sync replicas follow another leader.
        with pytest.raises(RequestTimedOutError) as refused:
            await ask()
        assert stage.log.end > end
        assert refused.value.appended is Appended.NO
