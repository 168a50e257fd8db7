"""A fetch stream whose disk answers when the test says so."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tests.fakes.call_context import CALLER, CallContext, calls_of
from tests.fakes.quotas import follow, limit, no_quotas, owe

from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.rpc.fetch import FetchService, ReplicaService
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.errors import UnknownLeaderEpochError
from millrace.core.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.metadata.model import Listener
from millrace.core.quotas.quota import QuotaKind
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.proto.codec import decode_fetch_response
from millrace.proto.features import BROKER_PROTOCOL
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.runtime.turns import Turns

TOPIC = TopicId(b"t" * 16)
EPOCH = LeaderEpoch(0)


@dataclass
class Plan:
    length: int
    end_offset: Offset


class Partition:
    """A partition of batches of ten bytes and one record."""

    def __init__(self, *, is_cold: bool) -> None:
        self.topic = "topic"
        self.leader = SimpleNamespace(
            high_watermark=0,
            last_stable_offset=0,
            check_epoch=lambda epoch: None,
            check_readable=lambda offset, start: None,
            diverging=lambda offset, epoch, epochs: None,
            diverging_follower=lambda life, offset, epoch, epochs, start: None,
            maximal_isr=(),
            written_offset=0,
        )
        self.size_bytes = self.fetched_bytes = 0
        self.log = self.reader = self
        self.log_dir_of = lambda offset: "/log"
        self.log_start_offset = 0
        self.leader_epoch = EPOCH
        self.leader_epochs = SimpleNamespace(epoch_of=lambda offset: EPOCH)
        self._is_cold = is_cold
        self._readers: set[tuple[Any, int]] = set()

    @property
    def replica(self) -> Any:
        return SimpleNamespace(
            leader=self.leader,
            require_leader=lambda: self.leader,
            follower=None,
            high_watermark=self.leader.high_watermark,
            may_yet_lead=lambda epoch: epoch > self.leader_epoch,
        )

    def plan_read(self, offset: int, size: int, end: int, *, may_block: bool = True) -> Plan:
        if self._is_cold and not may_block:
            raise BlockingIOError
        return Plan((end - offset) * 10, Offset(end))

    def follow(self, reader: Any, handle: int, *, to_log_end: bool = False) -> None:
        self._readers.add((reader, handle))

    def leave(self, reader: Any, handle: int) -> None:
        self._readers.discard((reader, handle))

    @property
    def is_followed(self) -> bool:
        """Whether anybody waits for news."""
        return bool(self._readers)

    def advance(self) -> None:
        """Append a record."""
        self.leader.high_watermark += 1
        self.concern()

    def concern(self) -> None:
        """Have the readers look."""
        for reader, handle in list(self._readers):
            reader.on_advanced(handle)


class Disk:
    """Reads that may not block wait here until they are let go."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[tuple[asyncio.Future[Any], Callable[[], Any]]] = asyncio.Queue()

    def call(self, log_dir: str, job: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait((future, lambda: job(*args)))
        return future

    def read_cached(self, reads: list[tuple[Any, Plan]]) -> list[bytes]:
        return [bytes(plan.length) for _, plan in reads]


async def _news_while_another_waits_for_the_disk() -> None:
    warm, cold = Partition(is_cold=False), Partition(is_cold=True)
    found = {TopicPartition(TOPIC, 0): warm, TopicPartition(TOPIC, 1): cold}
    partitions: Any = SimpleNamespace(get=found.__getitem__, find=found.get, image=None)
    disk: Any = Disk()
    service = FetchService(
        partitions=partitions,
        reader=disk,
        early=EarlyRequests(500),
        turns=Turns(),
        limits=LimitsConfig(),
        metrics=BrokerMetrics(),
        quotas=no_quotas(),
        calls=calls_of(),
    )
    call: Any = CallContext()
    serving = asyncio.create_task(service.fetch(call, CALLER))

    async def response() -> dict[int, int]:
        header, _ = decode_fetch_response(await asyncio.wait_for(call.responses.get(), 5))
        return {partition.handle: partition.length for partition in header.partitions}

    asked = [
        pb.FetchPartition(handle=number, topic_id=TOPIC, partition=number) for number in (0, 1)
    ]
    settings = pb.FetchSettings(min_bytes=0)
    request = pb.FetchRequest(partitions=asked, credit_bytes=1000, settings=settings)
    call.requests.put_nowait(request.SerializeToString())
    assert await response() == {0: 0, 1: 0}

    # The broker looks at both, and finds nothing new in the warm one; but there is before the disk
    # has answered for the other.
    warm.concern()
    cold.advance()
    future, job = await asyncio.wait_for(disk.waiting.get(), 5)
    warm.advance()
    future.set_result(job())
    lengths = {**await response()}
    if 0 not in lengths:
        lengths |= await response()
    assert lengths == {0: 10, 1: 10}

    call.requests.put_nowait(grpc.aio.EOF)
    await asyncio.wait_for(serving, 5)


def test_news_that_come_while_another_partition_waits_for_the_disk_are_not_forgotten() -> None:
    asyncio.run(_news_while_another_waits_for_the_disk())


async def _a_reader_of_an_epoch_that_has_yet_to_begin_here() -> None:
    partition = Partition(is_cold=False)
    found = {TopicPartition(TOPIC, 0): partition}
    partitions: Any = SimpleNamespace(get=found.__getitem__, find=found.get, image=None)
    service = FetchService(
        partitions=partitions,
        reader=Disk(),  # type: ignore[arg-type]
        early=EarlyRequests(30_000),
        turns=Turns(),
        limits=LimitsConfig(),
        metrics=BrokerMetrics(),
        quotas=no_quotas(),
        calls=calls_of(),
    )
    epoch = LeaderEpoch(EPOCH + 1)

    def check_epoch(expected: LeaderEpoch) -> None:
        if expected > partition.leader_epoch:
            raise UnknownLeaderEpochError("not yet")

    partition.leader.check_epoch = check_epoch
    call: Any = CallContext()
    serving = asyncio.create_task(service.fetch(call, CALLER))
    request = pb.FetchRequest(
        partitions=[
            pb.FetchPartition(handle=7, topic_id=TOPIC, partition=0, current_leader_epoch=epoch)
        ],
        credit_bytes=1000,
        settings=pb.FetchSettings(min_bytes=0),
    )
    call.requests.put_nowait(request.SerializeToString())
    async with asyncio.timeout(5):
        while not partition.is_followed:  # noqa: ASYNC110 - nobody signals it.
            await asyncio.sleep(0.001)
    partition.advance()  # News, but not the ones that it waits for.
    await asyncio.sleep(0)
    assert call.responses.empty(), "it was refused, and would come again after a pause"
    partition.leader_epoch = epoch
    partition.concern()
    header, _ = decode_fetch_response(await asyncio.wait_for(call.responses.get(), 5))
    (told,) = header.partitions
    assert (told.handle, told.length, told.HasField("error")) == (7, 10, False)
    call.requests.put_nowait(grpc.aio.EOF)
    await asyncio.wait_for(serving, 5)
    assert not partition.is_followed


def test_a_reader_that_comes_before_the_leader_has_heard_of_its_election_is_waited_with() -> None:
    asyncio.run(_a_reader_of_an_epoch_that_has_yet_to_begin_here())


async def _a_follower_of_more_than_strangers_may_have() -> None:
    found = {TopicPartition(TOPIC, number): Partition(is_cold=False) for number in range(3)}
    reported = []
    partitions: Any = SimpleNamespace(
        get=found.__getitem__,
        find=found.get,
        image=None,
        on_follower_progress=lambda place, life, epoch, progress: reported.append(place),
    )
    service = ReplicaService(
        partitions=partitions,
        reader=Disk(),  # type: ignore[arg-type]
        early=EarlyRequests(500),
        turns=Turns(),
        limits=LimitsConfig(request_entries_max=1, fetch_session_partitions_max=1),
        metrics=BrokerMetrics(),
        replication=ReplicationConfig(),
        quotas=None,
        calls=calls_of(Listener.BROKERS),
    )
    service.configure(broker_partitions_max=3)
    call: Any = CallContext()
    serving = asyncio.create_task(service.fetch(call, CALLER))
    request = pb.FetchRequest(
        partitions=[
            pb.FetchPartition(handle=number, topic_id=TOPIC, partition=number)
            for number in range(3)
        ],
        progress=[pb.FollowerProgress(handle=number) for number in range(3)],
        settings=pb.FetchSettings(replica_id=1, features=[BROKER_PROTOCOL]),
    )
    call.requests.put_nowait(request.SerializeToString())
    call.requests.put_nowait(grpc.aio.EOF)
    await asyncio.wait_for(serving, 5)
    assert reported == list(found)


def test_a_follower_is_not_held_to_what_strangers_may_follow_and_say() -> None:
    asyncio.run(_a_follower_of_more_than_strangers_may_have())


async def _a_reader_that_exceeds_a_quota() -> None:
    partition = Partition(is_cold=False)
    found = {TopicPartition(TOPIC, 0): partition}
    partitions: Any = SimpleNamespace(get=found.__getitem__, find=found.get, image=None)
    quotas = no_quotas()
    follow(quotas, limit(fetch=1024))
    disk: Any = Disk()
    service = FetchService(
        partitions=partitions,
        reader=disk,
        early=EarlyRequests(500),
        turns=Turns(),
        limits=LimitsConfig(),
        metrics=BrokerMetrics(),
        quotas=quotas,
        calls=calls_of(),
    )
    call: Any = CallContext()
    serving = asyncio.create_task(service.fetch(call, CALLER))

    async def response() -> pb.FetchHeader:
        message = await asyncio.wait_for(call.responses.get(), 5)
        return decode_fetch_response(message)[0]

    asked = pb.FetchPartition(handle=0, topic_id=TOPIC, partition=0)
    settings = pb.FetchSettings(min_bytes=0)
    request = pb.FetchRequest(partitions=[asked], credit_bytes=1 << 20, settings=settings)
    call.requests.put_nowait(request.SerializeToString())
    assert (await response()).throttle_time_ms == 0  # There was nothing yet.

    owe(quotas, QuotaKind.FETCH, CALLER, 100_000)
    partition.advance()
    first = await response()
    assert first.partitions[0].length == 10
    assert first.throttle_time_ms > 50_000

    partition.advance()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call.responses.get(), 0.05)
    # An error does not wait, and costs nothing: neither is the delay longer, nor told again.
    owe(quotas, QuotaKind.FETCH, CALLER, 100_000)
    unknown = pb.FetchPartition(handle=7, topic_id=TOPIC[:3], partition=0)
    request = pb.FetchRequest(partitions=[unknown])
    call.requests.put_nowait(request.SerializeToString())
    refused = await response()
    assert [partition.handle for partition in refused.partitions] == [7]
    assert refused.throttle_time_ms == 0
    (stream,) = service._streams
    assert stream._throttle is not None
    assert stream._throttle.delay_ms() <= first.throttle_time_ms

    follow(quotas)
    last = await response()
    assert last.partitions[0].length == 10
    assert last.throttle_time_ms == 0

    # Another session is no way around the quota.
    follow(quotas, limit(fetch=1024))
    owe(quotas, QuotaKind.FETCH, CALLER, 100_000)
    another: Any = CallContext()
    waiting = asyncio.create_task(service.fetch(another, CALLER))
    told = decode_fetch_response(await asyncio.wait_for(another.responses.get(), 5))[0]
    assert not told.partitions
    assert told.throttle_time_ms > 50_000
    another.requests.put_nowait(grpc.aio.EOF)
    await asyncio.wait_for(waiting, 5)

    call.requests.put_nowait(grpc.aio.EOF)
    await asyncio.wait_for(serving, 5)
    assert not quotas._delayed


def test_a_reader_that_exceeds_a_quota_is_told_and_waits_but_not_for_errors() -> None:
    asyncio.run(_a_reader_that_exceeds_a_quota())
