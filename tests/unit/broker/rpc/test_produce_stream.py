"""A produce stream to a replica that has yet to hear that it leads."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tests.fakes.call_context import CALLER, CallContext, calls_of
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import LogOnDisk
from tests.fakes.open_partition import lead, partition_of
from tests.fakes.quotas import follow, limit, no_quotas, owe
from tests.fakes.stamped_batches import TOPIC_PARTITION
from tests.fakes.two_replicas import HERE, THERE, complete, raise_it
from tests.fakes.until import until

from millrace.broker.coordinator.transaction_joins import Done, Writer
from millrace.broker.guard.callers import Access, GuardedCaller
from millrace.broker.guard.file_guard import FileGuard
from millrace.broker.guard.rehearsal import Rehearsal
from millrace.broker.replica.appender import Appender
from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.replica.partition import Partition
from millrace.broker.rpc.grpc_calls import GrpcCall
from millrace.broker.rpc.joining import Joining
from millrace.broker.rpc.markers import MarkerWriter
from millrace.broker.rpc.memory import MemoryPool
from millrace.broker.rpc.produce import ProduceService
from millrace.broker.rpc.produce_checks import CheckedRequest
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import ANONYMOUS
from millrace.core.errors import (
    BrokerShuttingDownError,
    CorruptBatchError,
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    MalformedRequestError,
    MillraceError,
    NotLeaderError,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownProducerIdError,
)
from millrace.core.guard.identity import Identity
from millrace.core.guard.producer_owners import ProducerOwners
from millrace.core.guard.rules import parse_rules
from millrace.core.ids import (
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from millrace.core.metadata.model import BrokerLife
from millrace.core.quotas.config import QuotasConfig
from millrace.core.quotas.quota import QuotaEntity, QuotaKind
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import Buffer
from millrace.core.replica.replication.appends import Waiter
from millrace.core.replica.replication.effects import Effect, Wake
from millrace.core.replica.replication.events import Corrupt, DiskEvent, Failed
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.proto.codec import produce_request
from millrace.proto.v1 import common_pb2
from millrace.proto.v1 import produce_pb2 as pb
from millrace.proto.v1 import transactions_pb2 as pb_transactions
from millrace.runtime.clock import monotonic_now, wall_now
from millrace.runtime.mailbox import Mailbox, Worker
from millrace.runtime.turns import Turns

PRODUCER = ProducerId(9)


class Call(CallContext):
    """The stream; the test is its client."""

    def produce(
        self,
        number: int,
        epoch: int,
        timeout_ms: int = 30_000,
        *,
        acks: int = 1,
        value_bytes: int = 1,
        transactional_id: str = "",
        is_transactional: bool = False,
        producer_epoch: int = 0,
        sequence: int = -1,
    ) -> None:
        """Send the producer's batch of this number, with one record."""
        value = (b"%d" % number).ljust(value_bytes)
        prepared = prepare(TOPIC_PARTITION, Columns(1, wall_now(), values=[value]))
        sealed = prepared.finish(
            PRODUCER,
            ProducerEpoch(producer_epoch),
            number if sequence < 0 else sequence,
            is_transactional=is_transactional,
        )
        batch = sealed + bytes(prepared.body)
        header = pb.ProduceHeader(
            correlation_id=number,
            acks=acks,
            request_timeout_ms=timeout_ms,
            transactional_id=transactional_id,
        )
        header.partitions.add(
            topic_id=TOPIC_PARTITION.topic_id,
            partition=TOPIC_PARTITION.partition,
            leader_epoch=epoch,
            length=len(batch),
        )
        self.requests.put_nowait(b"".join(produce_request(header, [batch])))

    def transact(self, number: int, producer_epoch: int = 0) -> None:
        """Send a transactional batch; the first of a later epoch begins with sequence 0."""
        self.produce(
            number,
            epoch=2,
            acks=-1,
            transactional_id="copy",
            is_transactional=True,
            producer_epoch=producer_epoch,
            sequence=0 if producer_epoch else number,
        )

    async def answers(self, count: int) -> dict[int, pb.ProduceResult]:
        """Return the results that come, by the batch's number."""
        found: dict[int, pb.ProduceResult] = {}
        async with asyncio.timeout(10):
            while len(found) < count:
                response = pb.ProduceResponse.FromString(await self.responses.get())
                found |= {answer.correlation_id: answer.results[0] for answer in response.answers}
        return found


class Joins:
    """The coordinator of transactions, asked; it answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Writer, Done]] = []

    def ask(self, writer: Writer, place: TopicPartition, done: Done) -> None:
        assert place == TOPIC_PARTITION
        self.asked.append((writer, done))

    async def answer(self, error: MillraceError | None = None) -> Writer:
        """Answer the next question, when it comes."""
        await until(lambda: bool(self.asked))
        writer, done = self.asked.pop(0)
        done(error)
        return writer


class Served:
    """A partition that begins as a follower, and the service over it."""

    def __init__(self, early_wait_ms: int) -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        self.log = LogOnDisk(Disk()).log
        self.appender = Appender(
            "a", mailbox, lambda _: None, on_disk=self.on_disk, on_failed=raise_it
        )
        self.checker = Worker("check", mailbox)
        self.partition = partition_of(self.log, self.appender)
        partitions: Any = SimpleNamespace(
            get=lambda _: self.partition,
            find=lambda _: self.partition,
            image=None,
        )
        metrics = BrokerMetrics()
        self.quotas = no_quotas()
        self.joins = Joins()
        self.is_followed = False
        self.service = ProduceService(
            partitions=partitions,
            producer_ids=SimpleNamespace(owners=ProducerOwners()),  # type: ignore[arg-type]
            begin_transactional=SimpleNamespace(),  # type: ignore[arg-type]
            checkers=[self.checker],
            memory=MemoryPool(1 << 20, 1 << 20),
            early=EarlyRequests(early_wait_ms),
            joining=Joining(self.joins),  # type: ignore[arg-type]
            limits=LimitsConfig(),
            metrics=metrics,
            quotas=self.quotas,
            calls=calls_of(metrics=metrics),
            turns=Turns(),
        )

    def lead(self, leader: BrokerLife, epoch: int) -> None:
        """Let the broker hear who leads."""
        self.perform(lead(self.partition, leader, epoch))

    def on_disk(self, partition: Partition, event: DiskEvent) -> None:
        assert not isinstance(event, Corrupt | Failed)
        self.perform(partition.replica.on_disk(event, monotonic_now()))
        if self.is_followed:
            self.follow()

    def follow(self) -> None:
        """Let the other replica report that it has all that is written."""
        leader, log = self.partition.leader, self.log
        end = leader.written_offset
        progress = FollowerProgress(end, end, log.log_start_offset, leader.leader_epoch)
        now, epochs = monotonic_now(), log.leader_epochs
        self.perform(
            leader.on_follower_fetch(
                THERE,
                leader.leader_epoch,
                progress,
                epochs,
                now,
                log_start_offset=log.log_start_offset,
            )
        )

    async def write_marker(
        self, producer_epoch: int, *, is_commit: bool
    ) -> pb_transactions.MarkerResult:
        """Write the end of the producer's transaction; return the result."""
        partitions: Any = self.service.partitions
        marker = pb_transactions.Marker(
            producer_id=PRODUCER, producer_epoch=producer_epoch, committed=is_commit, version=2
        )
        marker.partitions.add(
            topic_id=TOPIC_PARTITION.topic_id, partition=TOPIC_PARTITION.partition
        )
        request = pb_transactions.WriteMarkersRequest(markers=[marker])
        nobody: Any = None
        (result,) = (await MarkerWriter(partitions, nobody).write(request)).results
        return result

    def perform(self, effects: list[Effect]) -> None:
        complete(effects)
        if any(isinstance(effect, Wake) for effect in effects):
            self.partition.on_readers_concerned()

    @contextlib.contextmanager
    def checker_at_work(self) -> Iterator[None]:
        """Keep the checking thread busy."""
        is_over = threading.Event()
        self.checker.submit(lambda *_: None, is_over.wait)
        try:
            yield
        finally:
            is_over.set()


def known_as(principal: str) -> GuardedCaller:
    """Return a caller who may do everything, at a broker that knows its callers."""
    may_all = """
[[rules]]
who = ["*"]
may = ["produce", "transact"]
topics = ["*/*"]
transactions = ["*/*"]
"""
    access = Access(FileGuard(None, parse_rules(may_all)), Identity(principal), None)
    return replace(CALLER, principal=principal, access=access)


def rehearsed(caller: GuardedCaller) -> GuardedCaller:
    """Return the same caller where access control is not enforced."""
    assert caller.access is not None
    guard = Rehearsal(caller.access.guard, lambda _: None)
    return replace(caller, access=Access(guard, caller.access.identity, None))


@contextlib.asynccontextmanager
async def streaming(the: Served, caller: GuardedCaller) -> AsyncIterator[Call]:
    """Open another stream to the same leader."""
    call = Call()
    context: Any = call
    running = asyncio.create_task(the.service.produce(GrpcCall(context), caller))
    await asyncio.sleep(0)
    yield call
    call.requests.put_nowait(grpc.aio.EOF)
    await asyncio.wait_for(running, 10)


@contextlib.asynccontextmanager
async def serving_transactions() -> AsyncIterator[tuple[Served, Call]]:
    """As `serving`, at a leader whose follower has everything at once."""
    async with serving() as (the, call):
        the.is_followed = True
        the.lead(HERE, 2)
        yield the, call


@contextlib.asynccontextmanager
async def serving(early_wait_ms: int = 30_000) -> AsyncIterator[tuple[Served, Call]]:
    the, call = Served(early_wait_ms), Call()
    the.lead(THERE, 1)
    context: Any = call
    running = asyncio.create_task(the.service.produce(GrpcCall(context), CALLER))
    await asyncio.sleep(0)  # The stream begins without a debt.
    try:
        yield the, call
        call.requests.put_nowait(grpc.aio.EOF)
        await asyncio.wait_for(running, 10)
        assert the.service.memory.used == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.to_thread(the.appender.close)
        await asyncio.to_thread(the.checker.close)


async def until_waiting(the: Served, count: int) -> None:
    queues = the.service.appending.early._queues
    await until(lambda: sum(len(queue.judgements) for queue in queues.values()) >= count)


async def test_batches_that_come_before_the_news_of_an_election_wait_for_them_in_their_order() -> (
    None
):
    async with serving() as (the, call):
        for number in range(3):
            call.produce(number, epoch=2)
        await until_waiting(the, 3)
        assert call.responses.empty()
        the.lead(HERE, 2)
        call.produce(3, epoch=2)
        found = await call.answers(4)
        assert [found[number].base_offset for number in range(4)] == [0, 1, 2, 3]
        assert not any(each.HasField("error") for each in found.values())


async def test_a_batch_for_a_leader_of_now_or_before_does_not_wait() -> None:
    async with serving() as (_, call):
        call.produce(0, epoch=1)
        found = await call.answers(1)
        assert found[0].error.code == NotLeaderError.code


async def test_who_hears_that_another_leads_refuses_what_waited() -> None:
    async with serving() as (the, call):
        call.produce(0, epoch=2)
        await until_waiting(the, 1)
        the.partition.replica.resign(NotLeaderError("gone"))
        the.partition.on_readers_concerned()
        found = await call.answers(1)
        assert found[0].error.code == NotLeaderError.code


async def test_news_that_never_come_are_not_waited_for_longer_than_the_setting_says() -> None:
    async with serving(early_wait_ms=20) as (the, call):
        call.produce(0, epoch=2)
        found = await call.answers(1)
        assert found[0].error.code == NotLeaderError.code
        assert the.log.log_end_offset == 0


def test_a_request_that_was_answered_is_gone_without_the_garbage_collector() -> None:
    def waiters() -> int:
        return sum(isinstance(each, Waiter) for each in gc.get_objects())

    async def story() -> None:
        async with serving() as (the, call):
            the.lead(HERE, 2)
            for number in range(3):
                call.produce(number, epoch=2)
            found = await call.answers(3)
            assert not any(each.HasField("error") for each in found.values())

    gc.collect()
    gc.disable()
    try:
        asyncio.run(story())
        assert waiters() == 0
    finally:
        gc.enable()


async def test_without_acknowledgement_only_what_is_refused_is_told() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        call.produce(0, epoch=2, acks=0)
        call.produce(1, epoch=2, acks=0)
        call.produce(2, epoch=1, acks=0)
        found = await call.answers(1)
        assert found[2].error.code == FencedLeaderEpochError.code
        call.produce(2, epoch=2)
        found = await call.answers(1)
        assert found[2].base_offset == 2
        assert call.responses.empty()


async def test_a_small_batch_does_not_wait_for_the_checking_thread() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        with the.checker_at_work():
            call.produce(0, epoch=2)
            assert (await call.answers(1))[0].base_offset == 0


async def test_a_small_batch_behind_a_large_one_keeps_its_place() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        with the.checker_at_work():
            call.produce(0, epoch=2, value_bytes=100_000)
            call.produce(1, epoch=2)
            await until(call.requests.empty)
        found = await call.answers(2)
        assert [found[number].base_offset for number in range(2)] == [0, 1]


async def test_large_batches_of_one_client_hold_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as (the, call), streaming(the, known_as("other")) as other:
        the.lead(HERE, 2)
        check, checked = the.service.checks.check, list[int]()

        def spied(message: Buffer) -> Generator[None, None, CheckedRequest]:
            checked.append(len(message))
            return check(message)

        monkeypatch.setattr(the.service.checks, "check", spied)
        with the.checker_at_work():
            for number in range(8):
                call.produce(number, epoch=2, value_bytes=100_000)
            await until(lambda: the.service.memory.used > 800_000)
            other.produce(0, epoch=2, value_bytes=70_000)
            await until(lambda: the.service.memory.used > 870_000)
        await call.answers(8)
        assert [size > 100_000 for size in checked] == [True, False, *[True] * 7]


async def test_each_batch_of_a_request_takes_a_turn_of_its_own_to_be_checked() -> None:
    """Thousands of small ones may inflate to 8 MiB each."""
    header, batches = pb.ProduceHeader(correlation_id=1, acks=1), list[bytes]()
    for number in range(3):
        place = TOPIC_PARTITION._replace(partition=number)
        prepared = prepare(place, Columns(1, wall_now(), values=[b"v"]))
        batches.append(prepared.finish(PRODUCER, ProducerEpoch(0), 0) + bytes(prepared.body))
        header.partitions.add(
            topic_id=place.topic_id, partition=number, leader_epoch=2, length=len(batches[-1])
        )
    async with serving() as (the, _):
        the.lead(HERE, 2)
        checking = the.service.checks.check(b"".join(produce_request(header, batches)))
        assert len(list(checking)) == 2


async def test_many_small_requests_that_come_at_once_leave_others_their_turn() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        for number in range(200):
            call.produce(number, epoch=2)
        ends = [0]
        async with asyncio.timeout(10):
            while ends[-1] < 200:
                await asyncio.sleep(0)
                ends.append(the.partition.leader.next_offset)
        assert max(end - before for before, end in pairwise(ends)) < 100


async def test_a_client_that_goes_while_others_have_their_turn_leaves_no_bytes_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bytes that nobody gives back are gone from the broker's memory of requests for ever."""
    waiting = asyncio.Event()

    async def never(_: object) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with serving() as (the, _):
        the.lead(HERE, 2)
        gone = Call()
        context: Any = gone
        running = asyncio.create_task(the.service.produce(GrpcCall(context), CALLER))
        monkeypatch.setattr(the.service.turns, "next_slice", never)
        for number in range(20):
            gone.produce(number, epoch=2)
        await asyncio.wait_for(waiting.wait(), 10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: the.service.memory.used == 0)


async def test_a_small_message_is_refused_for_the_same_reasons_as_a_large_one() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        header = pb.ProduceHeader(correlation_id=7, request_timeout_ms=1000, acks=1)
        header.partitions.add(topic_id=TOPIC_PARTITION.topic_id, leader_epoch=2, length=100)
        for message in (
            b"no protobuf",
            b"".join(produce_request(header, [b"no batch".ljust(100)])),
        ):
            call.requests.put_nowait(message)
        answers: list[pb.ProduceAnswer] = []
        while len(answers) < 2:
            answers += (await response_of(call)).answers
        assert answers[0].error.code == MalformedRequestError.code
        assert answers[1].correlation_id == 7
        assert answers[1].results[0].error.code == CorruptBatchError.code


async def test_a_batch_whose_time_is_up_while_it_waits_is_refused_and_never_appended() -> None:
    async with serving() as (the, call):
        call.produce(0, epoch=2, timeout_ms=1)
        await until_waiting(the, 1)
        async with asyncio.timeout(10):
            while not call.responses.qsize():
                the.service.appending.expire(monotonic_now())
                await asyncio.sleep(0.001)
        found = await call.answers(1)
        assert found[0].error.code == NotLeaderError.code
        assert found[0].error.appended == common_pb2.APPENDED_NO
        the.lead(HERE, 2)
        call.produce(0, epoch=2)
        assert (await call.answers(1))[0].base_offset == 0
        assert the.log.log_end_offset == 1


async def test_a_producer_id_is_taken_once_the_broker_has_heard_that_it_was_given_out() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        cluster = SimpleNamespace(next_producer_id=PRODUCER)
        partitions: Any = the.service.partitions
        partitions.image = SimpleNamespace(
            cluster=cluster, in_words=lambda error: error, partition=lambda _: None
        )
        call.produce(0, epoch=2)
        refused = (await call.answers(1))[0].error
        assert refused.code == UnknownProducerIdError.code
        assert (refused.retriable, refused.appended) == (True, common_pb2.APPENDED_NO)
        cluster.next_producer_id += 1
        call.produce(0, epoch=2)
        assert not (await call.answers(1))[0].HasField("error")


async def response_of(call: Call) -> pb.ProduceResponse:
    return pb.ProduceResponse.FromString(await asyncio.wait_for(call.responses.get(), 10))


async def test_who_exceeds_a_quota_is_answered_at_once_and_not_read_until_it_may_go_on() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        follow(the.quotas, limit("slow", produce=1024, entity=QuotaEntity(client_id="test")))
        owe(the.quotas, QuotaKind.PRODUCE, CALLER, 100_000)
        call.produce(0, epoch=2)
        first = await response_of(call)
        assert first.answers[0].results[0].base_offset == 0
        assert first.throttle_time_ms > 50_000
        call.produce(1, epoch=2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call.responses.get(), 0.05)
        assert the.log.log_end_offset == 1
        # A changed quota wakes it, and the client hears that it need not wait any longer.
        follow(the.quotas, limit("slow", produce=1 << 40, entity=QuotaEntity(client_id="test")))
        news = await response_of(call)
        assert (len(news.answers), news.throttle_time_ms) == (0, 1)
        second = await response_of(call)
        assert second.answers[0].results[0].base_offset == 1
        assert second.throttle_time_ms == 0


async def test_a_debt_of_a_quota_that_is_lowered_is_told_within_its_bound() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        follow(the.quotas, limit(produce=100_000_000))
        owe(the.quotas, QuotaKind.PRODUCE, CALLER, 100_000_000 * 290)
        follow(the.quotas, limit(produce=1024))
        call.produce(0, epoch=2)
        told = await response_of(call)
        assert 290_000 < told.throttle_time_ms <= QuotasConfig().throttle_ms_max
        follow(the.quotas)


@pytest.mark.parametrize(
    "entity",
    [QuotaEntity(topic="t"), QuotaEntity(namespace="default"), QuotaEntity(namespace="")],
)
async def test_the_quota_of_a_topic_or_a_namespace_delays_whoever_writes_there(
    entity: QuotaEntity,
) -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        follow(the.quotas, limit(produce=1024, entity=entity))
        owe(the.quotas, QuotaKind.PRODUCE, CALLER, 100_000)
        call.produce(0, epoch=2)
        assert (await response_of(call)).throttle_time_ms > 50_000
        # The quota is raised and deleted: the client hears each time what is left.
        follow(the.quotas, limit(produce=4096, entity=entity))
        assert 10_000 < (await response_of(call)).throttle_time_ms < 30_000
        follow(the.quotas)
        news = await response_of(call)
        assert (len(news.answers), news.throttle_time_ms) == (0, 1)


async def test_the_quotas_of_others_delay_nobody() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        follow(
            the.quotas,
            limit("a", produce=1024, entity=QuotaEntity(client_id="other")),
            limit("b", produce=1024, entity=QuotaEntity(topic="u")),
            limit("c", fetch=1024, entity=QuotaEntity(client_id="test")),
        )
        for number in range(5):
            call.produce(number, epoch=2)
            assert (await response_of(call)).throttle_time_ms == 0


async def test_a_client_that_gets_no_answers_is_told_of_its_delay_too() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        follow(the.quotas, limit(produce=1024))
        owe(the.quotas, QuotaKind.PRODUCE, CALLER, 100_000)
        call.produce(0, epoch=2, acks=0)
        told = await response_of(call)
        assert not told.answers
        assert told.throttle_time_ms > 50_000
        follow(the.quotas)


async def test_another_stream_of_who_owes_is_told_so_and_not_read() -> None:
    async with serving() as (the, call):
        the.lead(HERE, 2)
        follow(the.quotas, limit(produce=1024))
        call.produce(0, epoch=2)
        await response_of(call)
        owe(the.quotas, QuotaKind.PRODUCE, CALLER, 100_000)
        another = Call()
        context: Any = another
        running = asyncio.create_task(the.service.produce(GrpcCall(context), CALLER))
        another.produce(1, epoch=2)
        told = await response_of(another)
        assert not told.answers
        assert told.throttle_time_ms > 50_000
        follow(the.quotas)
        assert (await response_of(another)).throttle_time_ms == 1
        assert (await another.answers(1))[1].base_offset == 1
        another.requests.put_nowait(grpc.aio.EOF)
        await asyncio.wait_for(running, 10)


def test_a_delayed_stream_ends_at_once_and_is_forgotten() -> None:
    async def story() -> None:
        async with serving() as (the, call):
            the.lead(HERE, 2)
            follow(the.quotas, limit(produce=1024))
            owe(the.quotas, QuotaKind.PRODUCE, CALLER, 100_000)
            call.produce(0, epoch=2)
            assert (await response_of(call)).throttle_time_ms > 50_000
            (stream,) = the.service._connections[CALLER.address][1]
            stream.end()

    with pytest.raises(BrokerShuttingDownError):
        asyncio.run(story())


async def test_a_transactions_first_batch_waits_for_its_coordinator() -> None:
    """P49: nothing is appended before the partition is in the transaction."""
    async with serving_transactions() as (the, call):
        for number in range(2):
            call.transact(number)
        await until(lambda: bool(the.joins.asked))
        await until(call.requests.empty)
        assert the.log.log_end_offset == 0
        writer = await the.joins.answer()
        assert writer == Writer("default/copy", PRODUCER, ProducerEpoch(0))
        found = await call.answers(2)
        assert [found[number].base_offset for number in range(2)] == [0, 1]
        assert not the.joins.asked
        assert the.partition.replica.last_stable_offset == 0


async def test_a_batch_that_may_not_join_is_refused() -> None:
    async with serving_transactions() as (the, call):
        call.transact(0)
        await the.joins.answer(ProducerFencedError("another producer began"))
        found = await call.answers(1)
        assert found[0].error.code == ProducerFencedError.code
        assert found[0].error.appended == common_pb2.APPENDED_NO
        assert the.log.log_end_offset == 0


async def test_the_next_transaction_begins_after_the_marker_of_the_one_before() -> None:
    """T2: its first batch waits meanwhile, and its coordinator is asked once."""
    async with serving_transactions() as (the, call):
        call.transact(0)
        await the.joins.answer()
        await call.answers(1)
        call.transact(1, producer_epoch=1)
        await until(lambda: bool(the.joins.asked))
        assert not (await the.write_marker(1, is_commit=True)).HasField("error")
        writer = await the.joins.answer()
        assert writer.producer_epoch == 1
        found = await call.answers(1)
        assert found[1].base_offset == 2
        assert not the.joins.asked


async def test_a_marker_that_came_meanwhile_makes_the_coordinators_yes_void() -> None:
    """P49: the yes was for a transaction that is over; its late batch must not open another."""
    async with serving_transactions() as (the, call):
        call.transact(0)
        await until(lambda: bool(the.joins.asked))
        assert not (await the.write_marker(1, is_commit=False)).HasField("error")
        await the.joins.answer()
        found = await call.answers(1)
        assert found[0].error.code == InvalidProducerEpochError.code
        assert the.log.log_end_offset == 1


async def test_a_marker_is_written_once() -> None:
    """T1."""
    async with serving_transactions() as (the, call):
        call.transact(0)
        await the.joins.answer()
        await call.answers(1)
        for _ in range(2):
            assert not (await the.write_marker(1, is_commit=True)).HasField("error")
        assert the.log.log_end_offset == 2
        refused = await the.write_marker(0, is_commit=True)
        assert refused.error.code == InvalidProducerEpochError.code


@pytest.mark.parametrize(("transactional_id", "is_transactional"), [("copy", False), ("", True)])
async def test_a_request_and_its_batches_agree_whether_they_are_transactional(
    transactional_id: str, is_transactional: bool
) -> None:
    """P51."""
    async with serving_transactions() as (the, call):
        call.produce(
            0,
            epoch=2,
            acks=-1,
            transactional_id=transactional_id,
            is_transactional=is_transactional,
        )
        found = await call.answers(1)
        assert found[0].error.code == InvalidTransactionStateError.code
        assert the.log.log_end_offset == 0


async def test_data_outside_of_an_open_transaction_is_refused() -> None:
    """P51."""
    async with serving_transactions() as (the, call):
        call.transact(0)
        await the.joins.answer()
        await call.answers(1)
        call.produce(1, epoch=2)
        found = await call.answers(1)
        assert found[1].error.code == InvalidTransactionStateError.code


async def test_another_principal_cannot_take_the_next_sequence_of_a_producer() -> None:
    """Its producer's batch would count as a repetition of it, and be lost."""
    async with serving() as (the, _):
        the.lead(HERE, 2)
        async with (
            streaming(the, known_as("shop")) as own,
            streaming(the, known_as("stranger")) as other,
        ):
            own.produce(0, epoch=2)
            assert (await own.answers(1))[0].base_offset == 0
            other.produce(1, epoch=2)
            other.produce(2, epoch=2, producer_epoch=1, sequence=0)
            refused = await other.answers(2)
            assert {each.error.code for each in refused.values()} == {
                TopicAuthorizationFailedError.code
            }
            own.produce(1, epoch=2)
            assert (await own.answers(1))[1].base_offset == 1


async def test_where_nobody_is_refused_a_producer_goes_on_that_is_not_known_any_more() -> None:
    """As while the API server is away, or its token has ended, before access is enforced (G4)."""
    known, nobody = known_as("shop"), known_as(ANONYMOUS)
    async with serving() as (the, _):
        the.lead(HERE, 2)
        async with streaming(the, rehearsed(known)) as before:
            before.produce(0, epoch=2)
            assert (await before.answers(1))[0].base_offset == 0
        async with streaming(the, rehearsed(nobody)) as after:
            after.produce(1, epoch=2)
            assert (await after.answers(1))[1].base_offset == 1


async def test_a_batch_joins_no_transaction_of_another_transactional_id() -> None:
    """The leader asks the coordinator at a producer's first batch of a transaction alone."""
    async with (
        serving_transactions() as (the, _),
        streaming(the, known_as("shop")) as own,
        streaming(the, known_as("stranger")) as other,
    ):
        own.transact(0)
        await the.joins.answer()
        assert not (await own.answers(1))[0].HasField("error")
        other.produce(1, 2, acks=-1, transactional_id="of-the-stranger", is_transactional=True)
        found = await other.answers(1)
        assert found[1].error.code == TransactionalIdAuthorizationFailedError.code
        other.produce(2, 2, producer_epoch=1, sequence=0)
        found = await other.answers(1)
        assert found[2].error.code == TopicAuthorizationFailedError.code
        own.transact(1)
        assert not (await own.answers(1))[1].HasField("error")
