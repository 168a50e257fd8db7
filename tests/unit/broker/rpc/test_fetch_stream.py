"""A fetch stream whose disk answers when the test says so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tests.fakes.call_context import CALLER, CallContext, calls_of
from tests.fakes.quotas import follow, limit, no_quotas, owe
from tests.fakes.readable_partition import EPOCH, TOPIC, Disk, Partition
from tests.fakes.until import until

from millrace.broker.quotas import Quotas
from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.rpc.fetch import FetchService, ReplicaService
from millrace.broker.rpc.fetch_sessions import SessionService
from millrace.broker.rpc.grpc_calls import GrpcCall
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.errors import NotLeaderError, UnknownLeaderEpochError
from millrace.core.ids import LeaderEpoch, TopicPartition
from millrace.core.metadata.model import Listener
from millrace.core.quotas.quota import EACH, Quota, QuotaEntity, QuotaKind
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.proto.codec import decode_fetch_response
from millrace.proto.features import BROKER_PROTOCOL
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.runtime.turns import Turns


class Session(CallContext):
    """The stream; the test is its reader."""

    def send(self, *partitions: pb.FetchPartition, credit: int = 0, **fields: Any) -> None:
        request = pb.FetchRequest(partitions=partitions, credit_bytes=credit, **fields)
        self.requests.put_nowait(request.SerializeToString())

    async def response(self, seconds: float = 5) -> pb.FetchHeader:
        return decode_fetch_response(await asyncio.wait_for(self.responses.get(), seconds))[0]


def service_of(
    partitions: list[Partition],
    *,
    early_wait_ms: int = 500,
    disk: Disk | None = None,
    quotas: Quotas | None = None,
) -> FetchService:
    found = {
        TopicPartition(TOPIC, number): partition for number, partition in enumerate(partitions)
    }
    stand_in: Any = SimpleNamespace(get=found.__getitem__, find=found.get, image=None)
    return FetchService(
        partitions=stand_in,
        reader=disk or Disk(),  # type: ignore[arg-type]
        early=EarlyRequests(early_wait_ms),
        turns=Turns(),
        limits=LimitsConfig(),
        metrics=BrokerMetrics(),
        quotas=quotas or no_quotas(),
        calls=calls_of(),
    )


@contextlib.asynccontextmanager
async def session(service: SessionService) -> AsyncIterator[Session]:
    call = Session()
    serving = asyncio.create_task(service.fetch(GrpcCall(call), CALLER))  # type: ignore[arg-type]
    try:
        yield call
        call.requests.put_nowait(grpc.aio.EOF)
        await asyncio.wait_for(serving, 5)
    finally:
        serving.cancel()


AT_ONCE = pb.FetchSettings(min_bytes=0)


def asked(number: int, handle: int | None = None, epoch: int = -1) -> pb.FetchPartition:
    return pb.FetchPartition(
        handle=number if handle is None else handle,
        topic_id=TOPIC,
        partition=number,
        current_leader_epoch=epoch,
    )


async def test_news_that_come_while_another_partition_waits_for_the_disk_are_not_forgotten() -> (
    None
):
    warm, cold, disk = Partition(is_cold=False), Partition(is_cold=True), Disk()
    async with session(service_of([warm, cold], disk=disk)) as call:

        async def lengths() -> dict[int, int]:
            header = await call.response()
            return {partition.handle: partition.length for partition in header.partitions}

        call.send(asked(0), asked(1), credit=1000, settings=AT_ONCE)
        assert await lengths() == {0: 0, 1: 0}
        # The broker looks at both, and finds nothing new in the warm one; but there is before the
        # disk has answered for the other.
        warm.concern()
        cold.advance()
        future, job = await asyncio.wait_for(disk.waiting.get(), 5)
        warm.advance()
        future.set_result(job())
        found = await lengths()
        if 0 not in found:
            found |= await lengths()
        assert found == {0: 10, 1: 10}


COMMITTED = pb.FetchSettings(
    min_bytes=1, max_wait_ms=60_000, isolation_level=pb.ISOLATION_LEVEL_READ_COMMITTED
)


async def test_a_reader_of_committed_records_is_woken_when_a_transaction_ends() -> None:
    partition = Partition(is_cold=False)
    partition.advance()
    partition.advance()
    partition.undecided = 1
    async with session(service_of([partition])) as call:
        call.send(asked(0), credit=1000, settings=COMMITTED)
        (told,) = (await call.response()).partitions
        assert (told.length, told.last_stable_offset, told.high_watermark) == (10, 1, 2)
        partition.decide()
        (told,) = (await call.response()).partitions
        assert (told.length, told.last_stable_offset, told.high_watermark) == (10, 2, 2)


def told_aborted(told: pb.FetchedPartition) -> list[tuple[int, int, int]]:
    return [
        (one.producer_id, one.first_offset, one.last_offset) for one in told.aborted_transactions
    ]


async def test_a_reader_of_committed_records_is_told_what_was_aborted_in_what_it_is_sent() -> None:
    partition = Partition(is_cold=False)
    partition.advance()
    async with session(service_of([partition])) as call:
        call.send(asked(0), credit=1000, settings=COMMITTED)
        (told,) = (await call.response()).partitions
        assert told_aborted(told) == [(7, 0, 0)]
        partition.undecided = 1
        partition.advance()
        partition.advance()
        (told,) = (await call.response()).partitions
        assert told_aborted(told) == [(7, 1, 1)], "nothing of what is not sent"


async def test_an_index_that_is_not_in_memory_is_read_by_a_thread() -> None:
    partition, disk = Partition(is_cold=False), Disk()
    partition.is_index_cold = True
    partition.advance()
    async with session(service_of([partition], disk=disk)) as call:
        call.send(asked(0), credit=1000, settings=COMMITTED)
        future, job = await asyncio.wait_for(disk.waiting.get(), 5)
        assert call.responses.empty()
        future.set_result(job())
        (told,) = (await call.response()).partitions
        assert (told.length, told_aborted(told)) == (10, [(7, 0, 0)])


async def test_a_reader_of_all_records_is_sent_those_of_open_transactions() -> None:
    partition = Partition(is_cold=False)
    partition.advance()
    partition.undecided = 1
    async with session(service_of([partition])) as call:
        call.send(asked(0), credit=1000, settings=AT_ONCE)
        (told,) = (await call.response()).partitions
        assert (told.length, told.last_stable_offset, told.high_watermark) == (10, 0, 1)
        assert told_aborted(told) == []


async def test_a_reader_that_comes_before_the_leader_has_heard_of_its_election_is_waited_with() -> (
    None
):
    partition = Partition(is_cold=False)
    epoch = LeaderEpoch(EPOCH + 1)

    def check_epoch(expected: LeaderEpoch) -> None:
        if expected > partition.leader_epoch:
            raise UnknownLeaderEpochError("not yet")

    partition.leader.check_epoch = check_epoch
    async with session(service_of([partition], early_wait_ms=30_000)) as call:
        call.send(asked(0, handle=7, epoch=epoch), credit=1000, settings=AT_ONCE)
        await until(lambda: partition.is_followed)
        partition.advance()  # News, but not the ones that it waits for.
        await asyncio.sleep(0)
        assert call.responses.empty(), "it was refused, and would come again after a pause"
        partition.leader_epoch = epoch
        partition.concern()
        (told,) = (await call.response()).partitions
        assert (told.handle, told.length, told.HasField("error")) == (7, 10, False)
    assert not partition.is_followed


def replica_service_of(partitions: Any, *, disk: Disk | None = None) -> ReplicaService:
    return ReplicaService(
        markers=SimpleNamespace(),  # type: ignore[arg-type]
        joins=SimpleNamespace(),  # type: ignore[arg-type]
        partitions=partitions,
        reader=disk or Disk(),  # type: ignore[arg-type]
        early=EarlyRequests(500),
        turns=Turns(),
        limits=LimitsConfig(request_entries_max=1, fetch_session_partitions_max=1),
        metrics=BrokerMetrics(),
        replication=ReplicationConfig(),
        quotas=None,
        calls=calls_of(Listener.BROKERS),
    )


AS_FOLLOWER = pb.FetchSettings(min_bytes=0, replica_id=1, features=[BROKER_PROTOCOL])


async def test_a_follower_is_not_held_to_what_strangers_may_follow_and_say() -> None:
    found = {TopicPartition(TOPIC, number): Partition(is_cold=False) for number in range(3)}
    reported = []
    partitions: Any = SimpleNamespace(
        get=found.__getitem__,
        find=found.get,
        image=None,
        on_follower_progress=lambda place, life, epoch, progress: reported.append(place),
    )
    service = replica_service_of(partitions)
    service.configure(broker_partitions_max=3)
    async with session(service) as call:
        call.send(
            *map(asked, range(3)),
            progress=[pb.FollowerProgress(handle=number) for number in range(3)],
            settings=AS_FOLLOWER,
        )
    assert reported == list(found)


async def test_a_follower_hears_that_its_leader_resigned_while_the_disk_was_read() -> None:
    partition, disk = Partition(is_cold=True), Disk()
    partition.advance()
    partition.leader.written_offset = 1
    partition.leader.in_sync = SimpleNamespace(maximal_isr=())
    partitions: Any = SimpleNamespace(
        get=lambda place: partition, find=lambda place: partition, image=None
    )
    async with session(replica_service_of(partitions, disk=disk)) as call:
        call.send(asked(0), credit=1000, settings=AS_FOLLOWER)
        future, job = await asyncio.wait_for(disk.waiting.get(), 5)

        def check_epoch(expected: LeaderEpoch) -> None:
            raise NotLeaderError("it has resigned")

        partition.leader.check_epoch = check_epoch
        partition.concern()
        future.set_result(job())
        (found,) = (await call.response()).partitions
        assert found.length == 10
        (refused,) = (await call.response()).partitions
        assert refused.HasField("error")


async def test_what_a_reader_asks_for_costs_request_time_and_its_next_wish_waits() -> None:
    quotas = no_quotas()
    entity = QuotaEntity(client_id=EACH)
    follow(quotas, Quota(name="q", entity=entity, request_percent=1))
    service = service_of([Partition(is_cold=False)], quotas=quotas)
    missing = [pb.FetchPartition(handle=handle, topic_id=b"no id") for handle in range(500)]
    async with session(service) as call:
        call.send(*missing, settings=AT_ONCE)
        told = 0
        while told < len(missing):
            told += len((await call.response()).partitions)
        call.send(pb.FetchPartition(handle=501, topic_id=b"no id"))
        with pytest.raises(TimeoutError):
            await call.response(0.05)
        follow(quotas)
        assert len((await call.response()).partitions) == 1


async def test_a_reader_that_exceeds_a_quota_is_told_and_waits_but_not_for_errors() -> None:
    partition, quotas = Partition(is_cold=False), no_quotas()
    follow(quotas, limit(fetch=1024))
    service = service_of([partition], quotas=quotas)
    async with session(service) as call:
        call.send(asked(0), credit=1 << 20, settings=AT_ONCE)
        assert (await call.response()).throttle_time_ms == 0  # There was nothing yet.

        owe(quotas, QuotaKind.FETCH, CALLER, 100_000)
        partition.advance()
        first = await call.response()
        assert first.partitions[0].length == 10
        assert first.throttle_time_ms > 50_000

        partition.advance()
        with pytest.raises(TimeoutError):
            await call.response(0.05)
        # An error does not wait, and costs nothing: neither is the delay longer, nor told again.
        owe(quotas, QuotaKind.FETCH, CALLER, 100_000)
        call.send(pb.FetchPartition(handle=7, topic_id=TOPIC[:3], partition=0))
        refused = await call.response()
        assert [partition.handle for partition in refused.partitions] == [7]
        assert refused.throttle_time_ms == 0
        (stream,) = service._streams
        assert stream._throttle is not None
        assert stream._throttle.delay_ms() <= first.throttle_time_ms

        follow(quotas)
        last = await call.response()
        assert last.partitions[0].length == 10
        assert last.throttle_time_ms == 0

        # Another session is no way around the quota.
        follow(quotas, limit(fetch=1024))
        owe(quotas, QuotaKind.FETCH, CALLER, 100_000)
        async with session(service) as another:
            told = await another.response()
            assert not told.partitions
            assert told.throttle_time_ms > 50_000
    assert not quotas._delayed
