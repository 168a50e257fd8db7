"""Kafka's Fetch at partitions whose disk answers when the test says so."""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from tests.fakes.authority import FakeAuthority
from tests.fakes.call_context import CALLER
from tests.fakes.quotas import follow, limit, no_quotas, owe
from tests.fakes.readable_partition import TOPIC, Disk, Partition
from tests.fakes.until import until

from millrace.broker.guard.access_reviews import AccessReviews
from millrace.broker.guard.callers import Access, GuardedCaller
from millrace.broker.guard.kubernetes_guard import KubernetesGuard
from millrace.broker.guard.service_accounts import ServiceAccountTokens
from millrace.broker.kafka.known_topics import KnownTopics
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.records.fetch import FetchRequests, _Kept
from millrace.broker.kafka.records.fetch_turn import FetchParts
from millrace.broker.kafka.records.large_answers import LargeAnswers
from millrace.broker.kafka.requests import ApiKey, Encoded, KafkaConnectionState, Request
from millrace.broker.kafka.wire.errors import Code
from millrace.broker.quotas import Quotas
from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.errors import (
    CorruptBatchError,
    CorruptLogError,
    NotLeaderError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from millrace.core.guard.identity import Identity
from millrace.core.ids import EpochEnd, LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.kafka_config import KafkaConfig
from millrace.core.quotas.quota import EACH, Quota, QuotaEntity, QuotaKind
from millrace.core.records.header import Buffer
from millrace.core.replica.fetch.asked import SessionBudget
from millrace.core.topics import TopicName
from millrace.runtime.turns import Turns

VERSION = 11
BY_ID = 13

_Topic = FetchRequest.FetchTopic
_Partition = _Topic.FetchPartition
_Forgotten = FetchRequest.ForgottenTopic


class Stored:
    """Stored batches whose form is Kafka's already."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def in_kafkas_form(
        self, topic_partition: TopicPartition, stored: Buffer, bytes_max: int, *, knows_zstd: bool
    ) -> Sequence[Buffer]:
        if self.error is not None:
            raise self.error
        return [stored]


class Thread:
    """Does what is too long for the loop."""

    def __init__(self) -> None:
        self.jobs = 0

    async def call(self, job: Callable[..., Any], *args: Any, owner: object) -> Any:
        self.jobs += 1
        return job(*args)


class Broker:
    """A broker that has the partitions of one topic."""

    def __init__(
        self,
        *partitions: Partition,
        early_wait_ms: int = 500,
        quotas: Quotas | None = None,
        disk: Disk | None = None,
        limits: LimitsConfig | None = None,
        large_answers: LargeAnswers | None = None,
    ) -> None:
        self.open = {
            TopicPartition(TOPIC, number): partition for number, partition in enumerate(partitions)
        }
        for place, partition in self.open.items():
            partition.topic_partition = place
        topic = SimpleNamespace(topic_id=TOPIC, name=TopicName("default", "topic"))
        state = SimpleNamespace(leader=4, leader_epoch=31)
        image: Any = SimpleNamespace(
            topics={topic.name: topic},
            topics_by_id={TOPIC: topic},
            partition=lambda place: state if place.topic_id == TOPIC else None,
            broker=lambda broker_id: SimpleNamespace(rack="b"),
        )
        self.offline: list[TopicPartition] = []
        stand_in: Any = SimpleNamespace(
            get=self._get,
            find=self.open.get,
            image=image,
            take_offline=lambda place, error: self.offline.append(place),
        )
        self.stored = Stored()
        self.worker = Thread()
        self.metrics = BrokerMetrics()
        self.budget = SessionBudget(1000)
        parts = FetchParts(
            topics=KnownTopics(Names("default"), lambda: image),
            partitions=stand_in,
            reader=disk or Disk(),  # type: ignore[arg-type]
            stored=self.stored,  # type: ignore[arg-type]
            early=EarlyRequests(early_wait_ms),
            workers=cycle([self.worker]),  # type: ignore[list-item]
            turns=Turns(),
            limits=limits or LimitsConfig(),
            response_bytes_max=KafkaConfig().fetch_response_bytes_max,
            large_answers=large_answers or LargeAnswers(0),
            metrics=self.metrics,
        )
        self.requests = FetchRequests(
            parts,
            self.budget,
            quotas or no_quotas(),
            lambda broker_id: (f"broker-{broker_id}", 9092),
        )

    def _get(self, place: TopicPartition) -> Partition:
        found = self.open.get(place)
        if found is None:
            raise UnknownTopicOrPartitionError("it is not here")
        return found


class Consumer:
    """A connection that sends one request after another."""

    def __init__(self, broker: Broker, version: int = VERSION, caller: Any = CALLER) -> None:
        self._broker = broker
        self.version = version
        self.caller = caller
        self.connection = KafkaConnectionState("10.0.0.1:4711")
        self.on_sent: Callable[[], None] | None = None

    async def fetch(
        self,
        offsets: Mapping[int, int] | None = None,
        *,
        topic: str | TopicId = "topic",
        topics: Sequence[str | TopicId] = (),
        forgotten: Sequence[int] = (),
        max_bytes: int = 1000,
        partition_max_bytes: int = 1000,
        epoch: int = -1,
        last_fetched_epoch: int = -1,
        session: tuple[int, int] = (0, -1),
        **settings: Any,
    ) -> Any:
        """Return the answer to one request."""
        named: list[dict[str, Any]] = [
            {"topic": each} if isinstance(each, str) else {"topic_id": uuid.UUID(bytes=each)}
            for each in topics or [topic]
        ]
        partitions = [
            _Partition(
                partition=partition,
                fetch_offset=offset,
                current_leader_epoch=epoch,
                last_fetched_epoch=last_fetched_epoch,
                partition_max_bytes=partition_max_bytes,
            )
            for partition, offset in (offsets or {}).items()
        ]
        message = FetchRequest(
            topics=[_Topic(partitions=partitions, **each) for each in named if partitions],
            forgotten_topics_data=[_Forgotten(partitions=list(forgotten), **named[0])]
            if forgotten
            else [],
            max_bytes=max_bytes,
            session_id=session[0],
            session_epoch=session[1],
            **{"max_wait_ms": 0, "min_bytes": 1, "rack_id": "", **settings},
        )
        request = Request(
            key=ApiKey.FETCH,
            version=self.version,
            client_id="test",
            message=memoryview(bytes(message.encode(version=self.version))),
            caller=self.caller,
            connection=self.connection,
        )
        found = await self._broker.requests.fetch(request)
        assert isinstance(found, Encoded)
        self.on_sent = found.on_sent
        return FetchResponse.decode(b"".join(found.parts), version=self.version)

    def close(self) -> None:
        for callback in self.connection.on_closed:
            callback()


def advanced(records: int = 1) -> Partition:
    partition = Partition(is_cold=False)
    for _ in range(records):
        partition.advance()
    return partition


def told(answer: Any) -> dict[int, Any]:
    return {
        partition.partition_index: partition
        for topic in answer.responses
        for partition in topic.partitions
    }


def sizes(answer: Any) -> dict[int, int]:
    return {number: len(partition.records) for number, partition in told(answer).items()}


def codes(answer: Any) -> dict[int, int]:
    return {number: partition.error_code for number, partition in told(answer).items()}


# --- What is sent ----------------------------------------------------------------------------


async def test_without_a_session_all_partitions_are_told_of() -> None:
    consumer = Consumer(Broker(advanced(2), advanced(0)))
    answer = await consumer.fetch({0: 0, 1: 0})
    assert sizes(answer) == {0: 20, 1: 0}
    assert codes(answer) == {0: 0, 1: 0}
    assert told(answer)[0].high_watermark == 2
    assert answer.session_id == 0


async def test_a_request_waits_for_records_and_is_woken_by_them() -> None:
    partition = advanced(0)
    consumer = Consumer(Broker(partition, advanced(0)))
    fetching = asyncio.ensure_future(consumer.fetch({0: 0, 1: 0}, max_wait_ms=60_000))
    await until(lambda: partition.is_followed)
    assert not fetching.done()
    partition.advance()
    assert sizes(await fetching) == {0: 10, 1: 0}
    assert not partition.is_followed


async def test_a_request_waits_until_there_are_as_many_bytes_as_it_asks_for() -> None:
    partition = advanced(1)
    consumer = Consumer(Broker(partition))
    fetching = asyncio.ensure_future(consumer.fetch({0: 0}, max_wait_ms=60_000, min_bytes=25))
    await until(lambda: partition.is_followed)
    partition.advance()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not fetching.done()
    partition.advance()
    assert sizes(await fetching) == {0: 30}


async def test_a_request_that_may_not_wait_any_longer_is_answered_with_what_there_is() -> None:
    consumer = Consumer(Broker(advanced(1)))
    answer = await consumer.fetch({0: 0}, max_wait_ms=20, min_bytes=1000)
    assert sizes(answer) == {0: 10}


async def test_a_first_batch_that_is_too_large_is_sent_whole_and_alone() -> None:
    consumer = Consumer(Broker(advanced(1), advanced(1)))
    assert sizes(await consumer.fetch({0: 0, 1: 0}, max_bytes=5)) == {0: 10, 1: 0}


async def test_an_answer_ends_where_the_next_partition_does_not_fit() -> None:
    consumer = Consumer(Broker(advanced(1), advanced(2), advanced(1)))
    assert sizes(await consumer.fetch({0: 0, 1: 0, 2: 0}, max_bytes=25)) == {0: 10, 1: 0, 2: 10}


async def test_an_answer_is_large_while_there_is_room_until_it_is_sent() -> None:
    memory = LargeAnswers(25)
    limits = LimitsConfig(fetch_response_bytes_max=20)
    broker = Broker(*(advanced(1) for _ in range(5)), limits=limits, large_answers=memory)
    offsets = dict.fromkeys(range(5), 0)
    first, second = Consumer(broker), Consumer(broker)
    assert sum(sizes(await first.fetch(offsets)).values()) == 40
    assert memory.left == 5
    assert sum(sizes(await second.fetch(offsets)).values()) == 20
    assert memory.left == 5
    assert first.on_sent is not None
    first.on_sent()
    assert memory.left == 25
    assert sum(sizes(await second.fetch(offsets)).values()) == 40
    assert memory.left == 5
    second.close()
    assert memory.left == 25


async def test_a_request_that_waits_or_is_given_up_has_no_room_for_a_large_answer() -> None:
    memory = LargeAnswers(1000)
    limits = LimitsConfig(fetch_response_bytes_max=20)
    partition, disk = Partition(is_cold=True), Disk()
    consumer = Consumer(Broker(partition, disk=disk, limits=limits, large_answers=memory))
    fetching = asyncio.ensure_future(consumer.fetch({0: 0}, max_wait_ms=60_000))
    await until(lambda: partition.is_followed)
    assert memory.left == 1000
    for _ in range(5):
        partition.advance()
    await asyncio.wait_for(disk.waiting.get(), 5)
    assert memory.left == 20
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    assert memory.left == 1000


async def test_partitions_that_are_named_in_the_same_order_are_all_served() -> None:
    consumer = Consumer(Broker(*(advanced(5) for _ in range(3))))
    served = []
    for _ in range(4):
        found = sizes(await consumer.fetch({0: 0, 1: 0, 2: 0}, max_bytes=50))
        served += [number for number, size in found.items() if size]
    assert served == [0, 1, 2, 0]


async def test_what_is_not_in_memory_is_found_by_a_thread() -> None:
    partition, disk = Partition(is_cold=True), Disk()
    partition.advance()
    consumer = Consumer(Broker(partition, disk=disk))
    fetching = asyncio.ensure_future(consumer.fetch({0: 0}, isolation_level=1))
    partition.is_index_cold = True
    for _ in range(2):  # The batches, and what was aborted.
        future, job = await asyncio.wait_for(disk.waiting.get(), 5)
        future.set_result(job())
    (found,) = told(await fetching).values()
    assert len(found.records) == 10
    assert len(found.aborted_transactions) == 1


async def test_a_reader_whose_log_is_another_one_is_told_where_they_part() -> None:
    partition = advanced(3)
    end = EpochEnd(LeaderEpoch(2), Offset(1))
    partition.leader.diverging = lambda offset, epoch, epochs: end if epoch == 7 else None
    consumer = Consumer(Broker(partition), 12)
    (found,) = told(await consumer.fetch({0: 2}, last_fetched_epoch=7, max_wait_ms=60_000)).values()
    assert (found.error_code, len(found.records)) == (0, 0)
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (2, 1)
    assert sizes(await consumer.fetch({0: 2}, last_fetched_epoch=2)) == {0: 10}


async def test_a_reader_of_committed_records_is_told_what_was_aborted() -> None:
    partition = advanced(3)
    partition.undecided = 1
    consumer = Consumer(Broker(partition))
    (found,) = told(await consumer.fetch({0: 0}, isolation_level=1)).values()
    assert len(found.records) == 20
    assert found.last_stable_offset == 2
    assert [(each.producer_id, each.first_offset) for each in found.aborted_transactions] == [
        (7, 0),
        (7, 1),
    ]
    (found,) = told(await consumer.fetch({0: 0})).values()
    assert len(found.records) == 30
    assert found.aborted_transactions is None


async def test_messages_about_many_partitions_are_read_and_written_on_threads() -> None:
    broker = Broker(*(advanced(1) for _ in range(1000)))
    consumer = Consumer(broker)
    assert len(sizes(await consumer.fetch(dict.fromkeys(range(300), 0)))) == 300
    assert broker.worker.jobs == 0
    assert len(sizes(await consumer.fetch(dict.fromkeys(range(1000), 0)))) == 1000
    assert broker.worker.jobs == 2


async def test_what_is_sent_is_counted_once() -> None:
    partition = advanced(2)
    broker = Broker(partition)
    await Consumer(broker).fetch({0: 0})
    assert partition.fetched_bytes == 20


# --- Who is refused --------------------------------------------------------------------------


async def test_each_partition_is_refused_on_its_own_and_at_once() -> None:
    broken, fine = advanced(0), advanced(0)

    def check_readable(offset: int, start: int) -> None:
        raise OffsetOutOfRangeError("no such offset")

    broken.leader.check_readable = check_readable
    broker = Broker(broken, fine)
    answer = await Consumer(broker).fetch({0: 9, 1: 0, 5: 0}, max_wait_ms=60_000)
    assert codes(answer) == {
        0: Code.OFFSET_OUT_OF_RANGE,
        1: 0,
        5: Code.NOT_LEADER_OR_FOLLOWER,  # There is such a partition, at another broker.
    }
    assert told(answer)[0].high_watermark == -1


async def test_a_topic_that_there_is_not_is_unknown_by_name_and_by_id() -> None:
    broker = Broker(advanced(1))
    answer = await Consumer(broker).fetch({0: 0}, topic="other", max_wait_ms=60_000)
    assert codes(answer) == {0: Code.UNKNOWN_TOPIC_OR_PARTITION}
    other = TopicId(b"o" * 16)
    answer = await Consumer(broker, BY_ID).fetch({0: 0}, topic=other, max_wait_ms=60_000)
    assert codes(answer) == {0: Code.UNKNOWN_TOPIC_ID}
    answer = await Consumer(broker, BY_ID).fetch({0: 0}, topic=TOPIC)
    assert sizes(answer) == {0: 10}


async def test_a_name_that_no_topic_can_have_is_unknown_and_not_kept() -> None:
    broker = Broker(advanced(1))
    consumer = Consumer(broker, 12)
    answer = await consumer.fetch({0: 0}, topic="t" * 300, session=(0, 0), max_wait_ms=60_000)
    assert codes(answer) == {0: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert (answer.session_id, broker.budget.used) == (0, 0)
    first = await consumer.fetch({0: 0}, session=(0, 0))
    answer = await consumer.fetch({5: 0}, topic="t" * 300, session=(first.session_id, 1))
    assert codes(answer) == {0: 0, 5: Code.UNKNOWN_TOPIC_OR_PARTITION}
    fetches = consumer.connection.of(_Kept).fetches
    assert fetches is not None
    session = fetches._session.current
    assert session is not None
    assert [asked.topic for asked in session.asked.by_handle.values()] == ["topic"]


async def test_a_reader_that_asks_the_wrong_broker_is_told_who_leads() -> None:
    partition = advanced(1)

    def check_epoch(epoch: LeaderEpoch) -> None:
        raise NotLeaderError("another broker leads it")

    partition.leader.check_epoch = check_epoch
    answer = await Consumer(Broker(partition), 16).fetch({0: 0}, topic=TOPIC)
    (found,) = told(answer).values()
    assert found.error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (4, 31)
    (leader,) = answer.node_endpoints
    assert (leader.node_id, leader.host, leader.port, leader.rack) == (4, "broker-4", 9092, "b")


async def test_a_reader_of_many_topics_is_asked_about_all_of_them() -> None:
    """In a namespace in which it may not read all."""
    broker = Broker()
    image: Any = broker.requests.parts.partitions.image
    authority = FakeAuthority()
    for number in range(100):
        topic = TopicName("default", f"t{number}")
        authority.allowed.add(("consume", "topics", *topic))
        topic_id = TopicId(number.to_bytes(16, "big"))
        known = SimpleNamespace(topic_id=topic_id, name=topic)
        image.topics[topic] = image.topics_by_id[topic_id] = known
        place = TopicPartition(topic_id, 0)
        broker.open[place] = partition = advanced(1)
        partition.topic_partition = place
    consumer = Consumer(broker, caller=by_kubernetes(authority))
    answer = await consumer.fetch({0: 0}, topics=[f"t{number}" for number in range(100)])
    found = [partition for topic in answer.responses for partition in topic.partitions]
    assert [each.error_code for each in found] == [0] * 100


async def test_a_reader_whose_rights_nobody_knows_asks_again() -> None:
    """The Java consumer throws at a number that it does not expect in an answer."""
    authority = FakeAuthority()
    authority.is_away = True
    consumer = Consumer(Broker(advanced(1)), caller=by_kubernetes(authority))
    assert codes(await consumer.fetch({0: 0})) == {0: Code.NOT_LEADER_OR_FOLLOWER}
    assert codes(await consumer.fetch({0: 0}, topic="other")) == {0: Code.NOT_LEADER_OR_FOLLOWER}


def by_kubernetes(authority: FakeAuthority) -> GuardedCaller:
    """Return a caller whose rights an API server knows."""
    tokens = ServiceAccountTokens(authority, "audience")
    guard = KubernetesGuard(tokens, AccessReviews(authority, "default", "logs"))
    return replace(CALLER, access=Access(guard, Identity("reader"), None))


class Guarded:
    """A caller who may read no topic; the rest is as of anybody."""

    access = None

    def __getattr__(self, name: str) -> Any:
        return getattr(CALLER, name)

    def on_topics(self, *_: object) -> Any:
        return SimpleNamespace(refusal=lambda topic_id: TopicAuthorizationFailedError("no"))

    def refusal(self, *_: object) -> Any:
        return TopicAuthorizationFailedError("no")


@pytest.mark.parametrize("topic", ["topic", "other"])
async def test_who_may_not_read_a_topic_is_not_told_whether_there_is_one(topic: str) -> None:
    consumer = Consumer(Broker(advanced(1)), caller=Guarded())
    answer = await consumer.fetch({0: 0}, topic=topic, max_wait_ms=60_000)
    assert codes(answer) == {0: Code.TOPIC_AUTHORIZATION_FAILED}
    assert told(answer)[0].log_start_offset == -1


async def test_a_damaged_log_goes_offline() -> None:
    partition = advanced(1)
    broker = Broker(partition, disk=(disk := Disk()))
    broker.stored.error = CorruptBatchError("the bytes are no batch")

    def verify(plan: object) -> None:
        raise CorruptLogError("the log is damaged")

    partition.verify = verify  # type: ignore[attr-defined]
    fetching = asyncio.ensure_future(Consumer(broker).fetch({0: 0}))
    future, job = await asyncio.wait_for(disk.waiting.get(), 5)
    with pytest.raises(CorruptLogError) as raised:
        job()
    future.set_exception(raised.value)
    assert codes(await fetching) == {0: Code.KAFKA_STORAGE_ERROR}
    assert broker.offline == [TopicPartition(TOPIC, 0)]


async def test_a_reader_that_comes_before_the_leader_has_heard_of_its_election_waits() -> None:
    partition = advanced(1)

    def check_epoch(expected: LeaderEpoch) -> None:
        if expected > partition.leader_epoch:
            raise UnknownLeaderEpochError("not yet")

    partition.leader.check_epoch = check_epoch
    consumer = Consumer(Broker(partition, early_wait_ms=30_000))
    fetching = asyncio.ensure_future(consumer.fetch({0: 0}, epoch=1, max_wait_ms=60_000))
    await until(lambda: partition.is_followed)
    partition.advance()  # News, but not the ones that it waits for.
    for _ in range(10):
        await asyncio.sleep(0)
    assert not fetching.done(), "it was refused, and would come again after a pause"
    partition.leader_epoch = LeaderEpoch(1)
    partition.concern()
    assert sizes(await fetching) == {0: 20}
    assert not partition.is_followed


async def test_a_leader_that_never_hears_of_an_epoch_refuses_it() -> None:
    partition = advanced(1)

    def check_epoch(expected: LeaderEpoch) -> None:
        if expected > partition.leader_epoch:
            raise UnknownLeaderEpochError("not yet")

    partition.leader.check_epoch = check_epoch
    for wait_ms in (0, 60_000):  # The request is over first, or the time for the leader is.
        consumer = Consumer(Broker(partition, early_wait_ms=20))
        answer = await consumer.fetch({0: 0}, epoch=1, max_wait_ms=wait_ms)
        assert codes(answer) == {0: Code.UNKNOWN_LEADER_EPOCH}


async def test_another_brokers_follower_gets_nothing_here() -> None:
    consumer = Consumer(Broker(advanced(1)))
    answer = await consumer.fetch({0: 0}, replica_id=2)
    assert answer.error_code == Code.INVALID_REQUEST
    consumer.version = 6  # It has no error of a request as a whole.
    assert codes(await consumer.fetch({0: 0}, replica_id=2)) == {0: Code.INVALID_REQUEST}


# --- Sessions --------------------------------------------------------------------------------


async def test_in_a_session_only_what_has_changed_is_named_and_told() -> None:
    quiet, busy = advanced(0), advanced(1)
    consumer = Consumer(Broker(quiet, busy))
    first = await consumer.fetch({0: 0, 1: 0}, session=(0, 0))
    assert sizes(first) == {0: 0, 1: 10}
    assert first.session_id > 0
    # It has read what it got, and there is no more.
    second = await consumer.fetch({1: 1}, session=(first.session_id, 1))
    assert (second.session_id, told(second)) == (first.session_id, {})
    quiet.advance()
    third = await consumer.fetch(session=(first.session_id, 2))
    assert sizes(third) == {0: 10}
    # It did not say that it has it: the answer may be lost.
    assert sizes(await consumer.fetch(session=(first.session_id, 3))) == {0: 10}


async def test_in_a_session_offsets_that_moved_are_told_when_the_time_is_over() -> None:
    partition = advanced(1)
    consumer = Consumer(Broker(partition))
    first = await consumer.fetch({0: 5}, session=(0, 0))  # Beyond what is committed.
    partition.advance()
    (found,) = told(await consumer.fetch(session=(first.session_id, 1))).values()
    assert (found.high_watermark, len(found.records)) == (2, 0)
    assert told(await consumer.fetch(session=(first.session_id, 2))) == {}


async def test_a_request_of_a_session_is_woken_by_any_of_its_partitions() -> None:
    partitions = [advanced(0) for _ in range(5)]
    consumer = Consumer(Broker(*partitions))
    first = await consumer.fetch(dict.fromkeys(range(5), 0), session=(0, 0))
    fetching = asyncio.ensure_future(
        consumer.fetch(session=(first.session_id, 1), max_wait_ms=60_000)
    )
    for _ in range(10):
        await asyncio.sleep(0)
    assert not fetching.done()
    partitions[3].advance()
    assert sizes(await fetching) == {3: 10}


async def test_a_forgotten_partition_is_told_of_no_more() -> None:
    partitions = advanced(1), advanced(1)
    consumer = Consumer(Broker(*partitions))
    first = await consumer.fetch({0: 0, 1: 0}, session=(0, 0))
    second = await consumer.fetch(forgotten=[0], session=(first.session_id, 1))
    assert sizes(second) == {1: 10}
    assert [partition.is_followed for partition in partitions] == [False, True]
    third = await consumer.fetch(forgotten=[1], session=(first.session_id, 2))
    assert (third.error_code, third.session_id) == (0, 0)
    again = await consumer.fetch(session=(first.session_id, 3))
    assert again.error_code == Code.FETCH_SESSION_ID_NOT_FOUND


async def test_a_request_out_of_turn_is_told_so() -> None:
    consumer = Consumer(Broker(advanced(1)))
    first = await consumer.fetch({0: 0}, session=(0, 0))
    answer = await consumer.fetch(session=(first.session_id, 7))
    assert (answer.error_code, told(answer)) == (Code.INVALID_FETCH_SESSION_EPOCH, {})


async def test_a_session_does_not_change_between_names_and_ids() -> None:
    consumer = Consumer(Broker(advanced(1)), 12)
    first = await consumer.fetch({0: 0}, session=(0, 0))
    consumer.version = BY_ID
    answer = await consumer.fetch(session=(first.session_id, 1))
    assert (answer.error_code, told(answer)) == (Code.FETCH_SESSION_TOPIC_ID_ERROR, {})


async def test_a_session_that_the_broker_has_no_room_for_is_not_opened() -> None:
    broker = Broker(advanced(1))
    broker.budget.partitions_max = 0
    answer = await Consumer(broker).fetch({0: 0}, session=(0, 0))
    assert (answer.session_id, sizes(answer)) == (0, {0: 10})


async def test_a_session_ends_with_its_connection_and_when_its_reader_begins_another() -> None:
    partition = advanced(1)
    broker = Broker(partition)
    consumer = Consumer(broker)
    first = await consumer.fetch({0: 0}, session=(0, 0))
    assert partition.is_followed
    second = await consumer.fetch({0: 0}, session=(first.session_id, 0))
    assert second.session_id != first.session_id
    assert broker.budget.used == 100
    consumer.close()
    assert broker.budget.used == 0
    assert not partition.is_followed


async def test_a_connection_that_opens_many_sessions_has_one() -> None:
    partition = advanced(1)
    broker = Broker(partition)
    consumer = Consumer(broker)
    opened = [(await consumer.fetch({0: 0}, session=(0, 0))).session_id for _ in range(8)]
    assert broker.budget.used == 100
    assert len(partition._readers) == 1
    answer = await consumer.fetch(session=(opened[0], 1))
    assert answer.error_code == Code.FETCH_SESSION_ID_NOT_FOUND
    assert (await consumer.fetch(session=(opened[-1], 1))).error_code == 0


async def test_a_partition_that_was_closed_and_opened_again_is_heard_of() -> None:
    before, after = advanced(0), advanced(0)
    broker = Broker(before)
    consumer = Consumer(broker)
    first = await consumer.fetch({0: 0}, session=(0, 0))
    (place,) = broker.open
    del broker.open[place]
    before.concern()
    answer = await consumer.fetch(session=(first.session_id, 1))
    assert codes(answer) == {0: Code.NOT_LEADER_OR_FOLLOWER}
    broker.open[place] = after
    assert codes(await consumer.fetch(session=(first.session_id, 2))) in ({0: 0}, {})
    after.advance()
    assert sizes(await consumer.fetch(session=(first.session_id, 3))) == {0: 10}
    assert not before.is_followed


async def test_a_dead_reader_leaves_nothing_behind() -> None:
    partition = advanced(0)
    broker = Broker(partition)
    consumer = Consumer(broker)
    fetching = asyncio.ensure_future(consumer.fetch({0: 0}, session=(0, 0), max_wait_ms=60_000))
    await until(lambda: partition.is_followed)
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    consumer.close()
    assert not partition.is_followed
    assert broker.budget.used == 0


async def test_what_waits_is_answered_when_its_connection_is_to_end() -> None:
    partition = advanced(0)
    consumer = Consumer(Broker(partition))
    fetching = asyncio.ensure_future(consumer.fetch({0: 0}, max_wait_ms=60_000))
    await until(lambda: partition.is_followed)
    consumer.connection.draining.set()
    assert sizes(await asyncio.wait_for(fetching, 5)) == {0: 0}


# --- Quotas ----------------------------------------------------------------------------------


async def test_a_reader_that_exceeds_its_quota_is_told_how_long_it_waits() -> None:
    quotas = no_quotas()
    follow(quotas, limit(fetch=100))
    consumer = Consumer(Broker(advanced(50), quotas=quotas))
    answer = await consumer.fetch({0: 0})
    assert sizes(answer) == {0: 500}
    assert answer.throttle_time_ms > 4000


async def test_a_reader_that_does_not_wait_gets_nothing_meanwhile() -> None:
    quotas = no_quotas()
    follow(quotas, limit(fetch=100))
    owe(quotas, QuotaKind.FETCH, CALLER, 1000)
    consumer = Consumer(Broker(advanced(1), quotas=quotas))
    answer = await consumer.fetch({0: 0}, session=(0, 0))
    assert told(answer) == {}
    assert answer.session_id == 0
    assert answer.throttle_time_ms > 5000


async def test_a_reader_whose_quota_is_lifted_goes_on_at_once() -> None:
    quotas = no_quotas()
    follow(quotas, limit(fetch=100))
    owe(quotas, QuotaKind.FETCH, CALLER, 1000)
    consumer = Consumer(Broker(advanced(1), quotas=quotas))
    fetching = asyncio.ensure_future(consumer.fetch({0: 0}))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not fetching.done()
    follow(quotas)
    answer = await fetching
    assert (sizes(answer), answer.throttle_time_ms) == ({0: 10}, 0)


async def test_a_reader_that_keeps_the_broker_busy_waits() -> None:
    quotas = no_quotas()
    busy = Quota(name="busy", entity=QuotaEntity(client_id=EACH), request_percent=1)
    follow(quotas, busy)
    consumer = Consumer(Broker(*(advanced(1) for _ in range(1000)), quotas=quotas))
    await consumer.fetch(dict.fromkeys(range(1000), 0))
    begun = time.monotonic()
    await consumer.fetch({0: 0})
    assert time.monotonic() - begun > 0.2, "a hundred times of what the first one took"
