"""Produce on the loop: memory, quotas, rights, time, and what is told of it."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from tests.fakes.authority import FakeAuthority
from tests.fakes.call_context import CALLER
from tests.fakes.kafka_batches import Record, batch_of
from tests.fakes.quotas import follow, limit, owe
from tests.fakes.stamped_batches import TOPIC_PARTITION
from tests.fakes.two_replicas import HERE
from tests.fakes.until import until
from tests.unit.broker.rpc.test_produce_stream import Served as ServedPartition

from millrace.broker.guard.access_reviews import AccessReviews
from millrace.broker.guard.callers import Access, GuardedCaller
from millrace.broker.guard.file_guard import FileGuard
from millrace.broker.guard.kubernetes_guard import KubernetesGuard
from millrace.broker.guard.service_accounts import ServiceAccountTokens
from millrace.broker.kafka.known_topics import KnownTopics
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.records.produce import ProduceRequests, _Connection
from millrace.broker.kafka.requests import ApiKey, KafkaConnectionState, Later, Request
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import UnknownTopicOrPartitionError
from millrace.core.guard.identity import Identity
from millrace.core.guard.rules import parse_rules
from millrace.core.ids import BrokerId, ProducerId
from millrace.core.metadata.broker_levels import KAFKA_BATCHES
from millrace.core.quotas.quota import QuotaKind
from millrace.core.records import kafka_batch
from millrace.core.topics import TopicName
from millrace.runtime.clock import monotonic_now

NAME = TopicName("default", "t")
BATCH = batch_of([Record(b"a")])
VERSION = 9


class Producing:
    """A listener over one partition; the test is its connection."""

    def __init__(self, the: ServedPartition, caller: GuardedCaller = CALLER) -> None:
        self.the = the
        self.caller = caller
        self.version = VERSION
        self.level = KAFKA_BATCHES
        topic = SimpleNamespace(topic_id=TOPIC_PARTITION.topic_id, name=NAME)
        self.image: Any = SimpleNamespace(
            topics={NAME: topic},
            topics_by_id={topic.topic_id: topic},
            cluster=SimpleNamespace(
                next_producer_id=ProducerId(100), brokers=SimpleNamespace(values=self.brokers)
            ),
            in_words=lambda error: error,
            partition=lambda _: SimpleNamespace(leader=BrokerId(1), leader_epoch=4),
            broker=lambda _: None,
        )
        partitions: Any = the.service.partitions
        partitions.image = self.image
        parts: Any = SimpleNamespace(
            broker=SimpleNamespace(
                channel=SimpleNamespace(metadata=self.image),
                config=SimpleNamespace(limits=the.service.limits),
                partitions=partitions,
            ),
            services=SimpleNamespace(produce=the.service),
            names=Names("default"),
            topics=KnownTopics(Names("default"), lambda: self.image),
            image=self.image,
            addresses=SimpleNamespace(of=lambda _: ("there", 9092)),
        )
        self.requests = ProduceRequests(parts)
        self.connection = KafkaConnectionState("10.0.0.1:4711")

    def brokers(self) -> list[Any]:
        return [SimpleNamespace(name="broker-0", level=self.level)]

    async def send(
        self, batch: bytes = BATCH, topic: str = "t", *, arrived_ms: int = -1, **more: Any
    ) -> Later | None:
        """Send a batch; return the answer to come."""
        kind: Any = ProduceRequest.TopicProduceData
        partition = kind.PartitionProduceData(index=0, records=batch)
        data = [kind(name=topic, partition_data=[partition])]
        message = ProduceRequest(
            **{"transactional_id": None, "acks": 1, "timeout_ms": 30_000, **more}, topic_data=data
        )
        body = memoryview(bytes(message.encode(version=self.version)))
        (served,) = self.requests.served().values()
        found: Later | None = await served.handler(
            Request(
                ApiKey.PRODUCE,
                self.version,
                "",
                body,
                self.caller,
                self.connection,
                monotonic_now() if arrived_ms < 0 else arrived_ms,
            )
        )
        return found

    async def answer(self, later: Later | None) -> Any:
        """Return an answer."""
        assert later is not None
        encoded = await asyncio.wait_for(later.response, 10)
        return ProduceResponse.decode(b"".join(encoded.parts), version=self.version)

    async def result(self, later: Later | None) -> tuple[int, int, int]:
        """Return code, base offset and delay of an answer."""
        found = await self.answer(later)
        (partition,) = found.responses[0].partition_responses
        return partition.error_code, partition.base_offset, found.throttle_time_ms

    async def produce(self, batch: bytes = BATCH, **more: Any) -> tuple[int, int, int]:
        """Return code, base offset and delay of the answer to a batch."""
        return await self.result(await self.send(batch, **more))

    async def refusal(self, batch: bytes, topic: str) -> tuple[int, str]:
        """Return code and message of the answer to a batch."""
        found = await self.answer(await self.send(batch, topic))
        (partition,) = found.responses[0].partition_responses
        return partition.error_code, partition.error_message

    def close(self) -> None:
        """The connection is gone."""
        for tell in self.connection.on_closed:
            tell()


@contextlib.asynccontextmanager
async def producing(caller: GuardedCaller = CALLER) -> AsyncIterator[Producing]:
    """Serve one partition that this broker leads."""
    the = ServedPartition(30_000)
    the.lead(HERE, 2)
    the.follow()
    try:
        yield Producing(the, caller)
    finally:
        the.checker.close()
        await asyncio.to_thread(the.appender.close)


def memory_of(one: Producing) -> int:
    return one.the.service.memory.used


async def test_batches_get_their_offsets_in_their_order_and_give_their_memory_back() -> None:
    async with producing() as one:
        large = batch_of([Record(bytes(50_000))])
        sent = [await one.send(large if number % 2 else BATCH) for number in range(10)]
        assert [(await one.result(later))[:2] for later in sent] == [(0, n) for n in range(10)]
        assert memory_of(one) == 0
        stored = one.the.partition.log
        assert stored.log_end_offset == 10


async def test_the_next_request_is_not_taken_before_there_is_memory_for_it() -> None:
    async with producing() as one:
        memory = one.the.service.memory
        memory.bytes_max = 150
        memory.used = 100
        sending = asyncio.create_task(one.send())
        await asyncio.sleep(0.01)
        assert not sending.done()
        memory.used = 0
        memory._serve()
        assert (await one.result(await sending))[0] == 0
        assert memory.used == 0


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_request_that_waits_in_vain_for_memory_is_answered_as_not_appended(
    is_lost: bool,
) -> None:
    """Its client sends it again, perhaps by another connection: it would be there twice."""
    async with producing() as one:
        memory = one.the.service.memory
        memory.bytes_max = memory.used = 150
        sending = asyncio.create_task(one.send(timeout_ms=60_000 if is_lost else 100))
        waiting = asyncio.create_task(Producing(one.the).send(acks=0))
        await asyncio.sleep(0)
        if is_lost:
            one.connection.draining.set()
        assert (await one.result(await asyncio.wait_for(sending, 10)))[0] == (
            Code.NOT_ENOUGH_REPLICAS
        )
        assert not waiting.done()
        memory.used = 0
        memory._serve()
        await waiting
        await until(lambda: one.the.partition.log.log_end_offset == 1)
        await until(lambda: memory.used == 0)


async def test_what_is_under_way_when_the_connection_ends_gives_its_memory_back() -> None:
    async with producing() as one:
        with one.the.checker_at_work():
            later = await one.send(batch_of([Record(bytes(50_000))]))
            assert memory_of(one) > 50_000
            one.close()
        assert later is not None
        await until(lambda: memory_of(one) == 0)
        assert one.the.service.appending._open == {}


async def test_large_batches_of_one_client_hold_up_no_other_one() -> None:
    async with producing() as one:
        other = Producing(one.the, replace(CALLER, principal="other"))
        large = batch_of([Record(bytes(50_000))])
        with one.the.checker_at_work():
            sent = [await one.send(large) for _ in range(8)]
            later = await other.send(large)
        assert (await other.result(later))[:2] == (0, 1)
        assert [(await one.result(each))[1] for each in sent] == [0, *range(2, 9)]


async def test_who_exceeds_a_quota_is_told_so_and_not_served_until_it_may_go_on() -> None:
    async with producing() as one:
        follow(one.the.quotas, limit(produce=1000))
        first = await one.produce(batch_of([Record(bytes(2000))]))
        assert first[0] == 0
        assert first[2] > 0
        sending = asyncio.create_task(one.send())
        await asyncio.sleep(0.02)
        assert not sending.done()
        follow(one.the.quotas)
        await asyncio.wait_for(sending, 10)


@pytest.mark.parametrize(("acks", "timeout_ms"), [(1, 200), (-1, 30_000)])
async def test_a_request_that_would_wait_for_long_is_answered_as_not_appended(
    acks: int, timeout_ms: int
) -> None:
    """Its client would give it up, and send it again: it would be there twice."""
    async with producing() as one:
        follow(one.the.quotas, limit(produce=1000))
        owe(one.the.quotas, QuotaKind.PRODUCE, CALLER, 60_000)
        begun = monotonic_now()
        code, _, delay_ms = await one.produce(acks=acks, timeout_ms=timeout_ms)
        assert monotonic_now() - begun < min(timeout_ms, 1000) + 1000
        assert code == Code.NOT_ENOUGH_REPLICAS
        assert delay_ms > 50_000
        later = await one.send(arrived_ms=monotonic_now() - 1000)
        assert later is not None
        assert later.response.done(), "it has waited for the one before"
        assert one.the.partition.log.log_end_offset == 0
        assert memory_of(one) == 0
        follow(one.the.quotas)
        assert (await one.produce(acks=1))[:2] == (0, 0)


async def test_a_batch_behind_one_that_waited_in_vain_does_not_begin_in_its_place() -> None:
    first, second = (
        batch_of([Record()], producer_id=9, producer_epoch=0, base_sequence=number)
        for number in range(2)
    )
    async with producing() as one:
        follow(one.the.quotas, limit(produce=1000))
        owe(one.the.quotas, QuotaKind.PRODUCE, CALLER, 60_000)
        assert (await one.produce(first, timeout_ms=0))[0] == Code.NOT_ENOUGH_REPLICAS
        follow(one.the.quotas)
        assert (await one.produce(second))[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await one.produce(first))[:2] == (0, 0)
        assert (await one.produce(second))[:2] == (0, 1)


async def test_what_waits_for_a_quota_when_its_connection_is_lost_is_dropped() -> None:
    async with producing() as one:
        follow(one.the.quotas, limit(produce=1000))
        owe(one.the.quotas, QuotaKind.PRODUCE, CALLER, 60_000)
        sending = asyncio.create_task(one.send())
        unanswered = Producing(one.the)
        waiting = asyncio.create_task(unanswered.send(acks=0))
        await asyncio.sleep(0)
        one.connection.draining.set()
        unanswered.connection.draining.set()
        assert (await one.result(await sending))[0] == Code.NOT_ENOUGH_REPLICAS
        assert not waiting.done()
        follow(one.the.quotas)
        await waiting
        await until(lambda: one.the.partition.log.log_end_offset == 1)


async def test_brokers_of_an_earlier_release_do_not_get_batches_that_they_do_not_know() -> None:
    async with producing() as one:
        one.level = KAFKA_BATCHES - 1
        code, base_offset, _ = await one.produce()
        assert (code, base_offset) == (Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1)
        assert memory_of(one) == 0
        one.level = KAFKA_BATCHES
        assert (await one.produce())[:2] == (0, 0)


async def test_who_may_not_write_hears_the_same_of_topics_that_are_there_and_not() -> None:
    access = Access(FileGuard(None, parse_rules("")), Identity("stranger"), None)
    async with producing(replace(CALLER, principal="stranger", access=access)) as one:
        for topic in ("t", "nowhere"):
            for batch in (BATCH, BATCH[:-1], BATCH[:16] + b"\1" + BATCH[17:], BATCH + BATCH, b""):
                code, said = await one.refusal(batch, topic)
                assert code == Code.TOPIC_AUTHORIZATION_FAILED
                assert f"'{topic}'" in said or f"'default/{topic}'" in said
        assert memory_of(one) == 0


async def test_a_batch_behind_one_for_an_unknown_topic_does_not_begin_in_its_place() -> None:
    """The broker hears of the topic between the two; the first would count as written (K1)."""
    first, second = (
        batch_of([Record()], producer_id=9, producer_epoch=0, base_sequence=number)
        for number in range(2)
    )
    async with producing() as one:
        topic = one.image.topics.pop(NAME)
        assert (await one.produce(first))[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
        one.image.topics[NAME] = topic
        assert (await one.produce(second))[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await one.produce(first))[:2] == (0, 0)
        assert (await one.produce(second))[:2] == (0, 1)


@pytest.mark.parametrize("topic", ["t", "nowhere", "no name"])
async def test_who_may_not_write_leaves_nothing_behind(topic: str) -> None:
    access = Access(FileGuard(None, parse_rules("")), Identity("stranger"), None)
    async with producing(replace(CALLER, principal="stranger", access=access)) as one:
        for producer_id in range(100):
            batch = batch_of([Record()], producer_id=producer_id, producer_epoch=0, base_sequence=0)
            code, _ = await one.refusal(batch, topic)
            assert code in (Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TOPIC_EXCEPTION)
        assert one.connection.of(_Connection)._succession._open == {}


async def test_names_that_no_topic_can_have_are_not_kept() -> None:
    async with producing() as one:
        batch = batch_of([Record()], producer_id=9, producer_epoch=0, base_sequence=0)
        for number in range(100):
            code, _ = await one.refusal(batch, f"{number}" + "x" * 1000)
            assert code == Code.INVALID_TOPIC_EXCEPTION
        assert one.connection.of(_Connection)._succession._open == {}


async def test_a_first_write_waits_until_the_api_server_has_said_who_may() -> None:
    """A client without acknowledgements is told nothing, and others may not try again."""
    authority = FakeAuthority()
    authority.allowed.add(("produce", "topics", "", ""))
    authority.delay_s = 0.05
    tokens = ServiceAccountTokens(authority, "audience")
    guard = KubernetesGuard(tokens, AccessReviews(authority, "default", "logs"))
    for acks in (0, 1):
        writer = replace(CALLER, access=Access(guard, Identity(f"writer-{acks}"), None))
        async with producing(writer) as one:
            await one.send(acks=acks)
            assert (await one.produce())[:2] == (0, 1)
    authority.allowed.clear()
    stranger = replace(CALLER, access=Access(guard, Identity("stranger"), None))
    async with producing(stranger) as one:
        assert (await one.produce())[0] == Code.TOPIC_AUTHORIZATION_FAILED


async def test_who_proves_itself_anew_writes_with_what_it_may_now() -> None:
    guard = FileGuard(None, parse_rules(""))
    stranger = replace(CALLER, access=Access(guard, Identity("stranger"), None))
    async with producing() as one:
        assert (await one.produce())[0] == 0
        one.caller = stranger
        assert (await one.produce())[0] == Code.TOPIC_AUTHORIZATION_FAILED
        one.caller = CALLER
        assert (await one.produce())[0] == 0
        one.close()
        assert one.the.service.appending._open == {}


async def test_a_producer_id_that_nobody_gave_out_is_tried_again() -> None:
    async with producing() as one:
        batch = batch_of([Record()], producer_id=100, producer_epoch=0, base_sequence=0)
        assert (await one.produce(batch))[0] == Code.NOT_ENOUGH_REPLICAS
        batch = batch_of([Record()], producer_id=99, producer_epoch=0, base_sequence=0)
        assert (await one.produce(batch))[:2] == (0, 0)


async def test_a_broker_without_a_replica_tells_who_leads() -> None:
    async with producing() as one:
        one.version = 10
        one.image.partition = lambda _: SimpleNamespace(leader=BrokerId(7), leader_epoch=4)

        def get(place: object) -> None:
            raise UnknownTopicOrPartitionError("this broker has no replica of it")

        partitions: Any = one.the.service.partitions
        partitions.get = get
        answer = await one.answer(await one.send())
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == Code.NOT_LEADER_OR_FOLLOWER
        leader = partition.current_leader
        assert (leader.leader_id, leader.leader_epoch) == (7, 4)
        assert [(node.node_id, node.host) for node in answer.node_endpoints] == [(7, "there")]
        one.image.partition = lambda _: None
        assert (await one.produce())[0] == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_transactional_batch_needs_its_id_and_all_acknowledgements() -> None:
    async with producing() as one:
        batch = batch_of(
            [Record()], attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0
        )
        assert (await one.produce(batch))[0] == Code.INVALID_TXN_STATE
        assert (await one.produce(BATCH, transactional_id="copy", acks=-1))[0] == (
            Code.INVALID_TXN_STATE
        )
        assert (await one.produce(batch, transactional_id="copy", acks=1))[0] == (
            Code.INVALID_REQUEST
        )


async def test_an_unforeseen_failure_of_the_check_refuses_the_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with producing() as one:
        with monkeypatch.context() as patched:
            patched.setattr("millrace.core.records.kafka_batch.adopt", fail)
            assert (await one.produce())[0] == Code.UNKNOWN_SERVER_ERROR
        assert (await one.produce())[0] == 0
        assert memory_of(one) == 0


@pytest.mark.parametrize(("records", "is_long"), [(1, False), (300, True)])
async def test_the_event_loop_does_not_walk_over_many_records(
    monkeypatch: pytest.MonkeyPatch, records: int, is_long: bool
) -> None:
    """K8."""
    adopt, threads = kafka_batch.adopt, list[threading.Thread]()

    def noting(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return adopt(*given)

    monkeypatch.setattr(kafka_batch, "adopt", noting)
    async with producing() as one:
        assert (await one.produce(batch_of([Record(b"a")] * records)))[0] == 0
    (thread,) = threads
    assert (thread is not threading.current_thread()) == is_long


async def test_a_request_whose_time_is_up_is_answered() -> None:
    async with producing() as one:
        later = await one.send(acks=-1, timeout_ms=-5)  # The other replica does not report it.
        assert later is not None
        await until(lambda: one.the.partition.log.log_end_offset == 1)
        assert not later.response.done()
        one.the.service.appending.expire(monotonic_now())
        assert (await one.result(later))[0] == Code.REQUEST_TIMED_OUT
        assert memory_of(one) > 0, "until it is judged"
        one.the.follow()
        await until(lambda: memory_of(one) == 0)


async def test_a_refusal_without_acknowledgement_ends_the_connection() -> None:
    async with producing() as one:
        ended: list[int] = []
        one.connection.close = lambda: ended.append(1)
        assert await one.send(acks=0) is None
        await until(lambda: one.the.partition.log.log_end_offset == 1)
        assert ended == []
        assert await one.send(topic="nowhere", acks=0) is None
        assert ended == [1]
        assert memory_of(one) == 0
