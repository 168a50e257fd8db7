"""Kafka's requests about offsets, as they become Millrace's own, and the answers."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from tests.fakes.call_context import CALLER

from millrace.broker.kafka.known_topics import KnownTopics
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.records.offsets import OffsetRequests
from millrace.broker.kafka.requests import ApiKey, KafkaConnectionState, Request
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import (
    BrokerBusyError,
    MillraceError,
    OffsetNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import TopicId
from millrace.core.topics import TopicName
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import cluster_pb2
from millrace.proto.v1 import fetch_pb2 as pb

TOPIC = TopicId(b"t" * 16)
_Listed = ListOffsetsRequest.ListOffsetsTopic
_Epochs = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
_Deleted = DeleteRecordsRequest.DeleteRecordsTopic


class Local:
    """Millrace's services."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.error: MillraceError | None = None
        """Of each partition."""
        self.refusal: MillraceError | None = None
        """Of the whole call."""

    async def call(self, method: str, request: Any, caller: object) -> Any:
        self.asked.append((method, request))
        if self.refusal is not None:
            raise self.refusal
        return getattr(self, f"_{method}")(request)

    def _ListOffsets(self, request: pb.ListOffsetsRequest) -> Any:
        error = None if self.error is None else error_to_wire(self.error)
        found = [
            pb.ListedOffset(offset=40 + number, timestamp=7, leader_epoch=3, error=error)
            for number in range(len(request.partitions))
        ]
        return pb.ListOffsetsResponse(offsets=found)

    def _OffsetsForLeaderEpoch(self, request: Any) -> Any:
        end = pb.EpochEndOffset(leader_epoch=2, end_offset=90)
        found = [pb.LeaderEpochResult(end=end) for _ in request.partitions]
        return pb.OffsetsForLeaderEpochResponse(results=found)

    def _DeleteRecords(self, request: cluster_pb2.DeleteRecordsRequest) -> Any:
        found = [
            cluster_pb2.DeletedRecords(low_watermark=named.before_offset)
            for named in request.partitions
        ]
        return cluster_pb2.DeleteRecordsResponse(partitions=found)


def requests_of(local: Local, high_watermark: int = 100) -> OffsetRequests:
    """Return what serves requests about a topic of two partitions."""
    topic = SimpleNamespace(
        topic_id=TOPIC, name=TopicName("default", "topic"), partitions=[object(), object()]
    )
    image = SimpleNamespace(topics={topic.name: topic}, topics_by_id={TOPIC: topic})
    leader = SimpleNamespace(check_end_offset=lambda: None, high_watermark=high_watermark)
    partitions = SimpleNamespace(image=image, get=lambda _: SimpleNamespace(leader=leader))
    parts: Any = SimpleNamespace(
        broker=SimpleNamespace(partitions=partitions),
        topics=KnownTopics(Names("default"), lambda: image),  # type: ignore[arg-type,return-value]
        local=local,
    )
    return OffsetRequests(parts)


async def ask(
    local: Local, key: ApiKey, version: int, message: Any, caller: Any = CALLER
) -> dict[tuple[str, int], Any]:
    """Return the answer, as it comes over the wire, by partition."""
    served = requests_of(local).served()[key]
    assert version in served.versions
    asked = type(message).decode(message.encode(version=version), version=version)
    request = Request(
        key=key,
        version=version,
        client_id="test",
        message=asked,
        caller=caller,
        connection=KafkaConnectionState("10.0.0.1:4711"),
    )
    found = await served.handler(request)
    answer = type(found).decode(found.encode(version=version), version=version)
    return {
        (
            topic.topic if key == ApiKey.OFFSET_FOR_LEADER_EPOCH else topic.name,
            each.partition if key == ApiKey.OFFSET_FOR_LEADER_EPOCH else each.partition_index,
        ): each
        for topic in answer.topics
        for each in topic.partitions
    }


def list_request(*timestamps: int, topic: str = "topic", first: int = 0, **more: Any) -> Any:
    partitions = [
        _Listed.ListOffsetsPartition(
            partition_index=first + number, timestamp=timestamp, current_leader_epoch=5
        )
        for number, timestamp in enumerate(timestamps)
    ]
    topics = [_Listed(name=topic, partitions=partitions)]
    return ListOffsetsRequest(replica_id=-1, topics=topics, **{"isolation_level": 0, **more})


@pytest.mark.parametrize("version", range(1, 12))
async def test_a_time_becomes_the_offset_of_its_record(version: int) -> None:
    local = Local()
    found = await ask(local, ApiKey.LIST_OFFSETS, version, list_request(123))
    answer = found["topic", 0]
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, 40, 7)
    ((method, request),) = local.asked
    assert method == "ListOffsets"
    (query,) = request.partitions
    assert query.topic_partition.topic_id == TOPIC
    assert query.timestamp == 123
    assert query.current_leader_epoch == (5 if version >= 4 else -1)
    if version >= 4:
        assert answer.leader_epoch == 3


@pytest.mark.parametrize(
    ("time", "position"),
    [(-1, "latest"), (-2, "earliest"), (-3, "max_timestamp"), (-4, "earliest")],
)
async def test_places_have_times_before_1970(time: int, position: str) -> None:
    local = Local()
    await ask(local, ApiKey.LIST_OFFSETS, 8, list_request(time, isolation_level=1))
    ((_, request),) = local.asked
    assert request.isolation_level == pb.ISOLATION_LEVEL_READ_COMMITTED
    assert request.partitions[0].WhichOneof("position") == position


@pytest.mark.parametrize(
    ("time", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 12), (-100, 12)]
)
async def test_a_place_that_a_version_does_not_have_is_refused(time: int, since: int) -> None:
    for version in range(1, 12):
        local = Local()
        answer = (await ask(local, ApiKey.LIST_OFFSETS, version, list_request(time)))["topic", 0]
        expected = 0 if version >= since else Code.UNSUPPORTED_VERSION
        assert answer.error_code == expected, version
        if time in (-5, -6):  # Nothing is elsewhere.
            assert (answer.offset, local.asked) == (-1, [])


async def test_what_there_is_not_is_unknown_and_the_rest_is_answered() -> None:
    local = Local()
    message = list_request(-1, -1, first=1)
    message.topics += list_request(-1, topic="other").topics
    found = await ask(local, ApiKey.LIST_OFFSETS, 7, message)
    assert {place: each.error_code for place, each in found.items()} == {
        ("topic", 1): 0,
        ("topic", 2): Code.UNKNOWN_TOPIC_OR_PARTITION,
        ("other", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    negative = await ask(local, ApiKey.LIST_OFFSETS, 7, list_request(-1, first=-1))
    assert negative["topic", -1].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_partition_that_is_not_here_is_at_another_broker() -> None:
    local = Local()
    local.error = UnknownTopicOrPartitionError("it is not here")
    found = await ask(local, ApiKey.LIST_OFFSETS, 7, list_request(-1))
    assert found["topic", 0].error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert found["topic", 0].offset == -1


@pytest.mark.parametrize(
    ("version", "code"), [(4, Code.LEADER_NOT_AVAILABLE), (5, Code.OFFSET_NOT_AVAILABLE)]
)
async def test_a_new_leader_that_does_not_know_the_end_says_so(version: int, code: int) -> None:
    local = Local()
    local.error = OffsetNotAvailableError("not yet")
    found = await ask(local, ApiKey.LIST_OFFSETS, version, list_request(-1))
    assert found["topic", 0].error_code == code


async def test_a_call_that_is_refused_as_a_whole_refuses_each_partition() -> None:
    local = Local()
    local.refusal = BrokerBusyError("not now")
    found = await ask(local, ApiKey.LIST_OFFSETS, 7, list_request(-1, -1))
    assert [each.error_code for each in found.values()] == [Code.REQUEST_TIMED_OUT] * 2


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_the_end_of_a_leader_epoch_is_found(version: int) -> None:
    local = Local()
    partitions = [
        _Epochs.OffsetForLeaderPartition(partition=number, current_leader_epoch=5, leader_epoch=2)
        for number in (1, 2)
    ]
    message = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[_Epochs(topic="topic", partitions=partitions)]
    )
    found = await ask(local, ApiKey.OFFSET_FOR_LEADER_EPOCH, version, message)
    answer, unknown = found["topic", 1], found["topic", 2]
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 2, 90)
    assert unknown.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert (unknown.leader_epoch, unknown.end_offset) == (-1, -1)
    ((_, request),) = local.asked
    (query,) = request.partitions
    assert (query.current_leader_epoch, query.leader_epoch) == (5, 2)


def delete_request(*offsets: int, topic: str = "topic", timeout_ms: int = 5000) -> Any:
    partitions = [
        _Deleted.DeleteRecordsPartition(partition_index=number, offset=offset)
        for number, offset in enumerate(offsets)
    ]
    return DeleteRecordsRequest(
        topics=[_Deleted(name=topic, partitions=partitions)], timeout_ms=timeout_ms
    )


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_up_to_an_offset_or_to_the_high_watermark(version: int) -> None:
    local = Local()
    found = await ask(local, ApiKey.DELETE_RECORDS, version, delete_request(30, -1))
    assert {place: each.low_watermark for place, each in found.items()} == {
        ("topic", 0): 30,
        ("topic", 1): 100,
    }
    ((_, request),) = local.asked
    assert request.request_timeout_ms == 5000


@pytest.mark.parametrize("timeout_ms", [-1, 0, 10])
async def test_a_client_that_does_not_wait_learns_what_the_leader_itself_does(
    timeout_ms: int,
) -> None:
    local = Local()
    await ask(local, ApiKey.DELETE_RECORDS, 2, delete_request(30, timeout_ms=timeout_ms))
    assert local.asked[0][1].request_timeout_ms == 1000


async def test_who_may_not_delete_from_one_topic_may_do_so_from_another() -> None:
    class Choosy(Local):
        async def call(self, method: str, request: Any, caller: object) -> Any:
            if request.partitions[0].before_offset == 1:
                raise TopicAuthorizationFailedError("not this one")
            return await super().call(method, request, caller)

    message = delete_request(1)
    message.topics += delete_request(30).topics
    message.topics[1].partitions[0].partition_index = 1
    found = await ask(Choosy(), ApiKey.DELETE_RECORDS, 2, message)
    assert found["topic", 0].error_code == Code.TOPIC_AUTHORIZATION_FAILED
    assert (found["topic", 1].error_code, found["topic", 1].low_watermark) == (0, 30)


class Guarded:
    """A caller who may do nothing; the rest is as of anybody."""

    def __getattr__(self, name: str) -> Any:
        return getattr(CALLER, name)

    def refusal(self, *_: object) -> MillraceError:
        return TopicAuthorizationFailedError("no")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (ApiKey.LIST_OFFSETS, list_request(-1, topic="other")),
        (ApiKey.LIST_OFFSETS, list_request(-1, first=9)),
        (ApiKey.DELETE_RECORDS, delete_request(1, topic="other")),
    ],
)
async def test_who_may_do_nothing_is_not_told_what_there_is_not(key: ApiKey, message: Any) -> None:
    (answer,) = (await ask(Local(), key, 2, message, Guarded())).values()
    assert answer.error_code == Code.TOPIC_AUTHORIZATION_FAILED
