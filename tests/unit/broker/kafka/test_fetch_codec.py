"""Kafka's Fetch messages by hand, against those of kafka-python: each version, both ways."""

import uuid
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest as KafkaRequest
from kafka.protocol.consumer import FetchResponse as KafkaResponse

from millrace.broker.kafka.wire.fetch_codec import (
    VERSIONS,
    Endpoint,
    FetchAnswer,
    PartitionAnswer,
    decode,
    encode,
    varint,
)
from millrace.core.errors import MalformedRequestError
from millrace.core.ids import (
    BrokerId,
    EpochEnd,
    Leader,
    LeaderEpoch,
    Offset,
    ProducerId,
    TopicId,
)
from millrace.core.records.markers import AbortedTransaction
from millrace.core.replica.fetch.asked import LAST_EPOCH, NO_SESSION, Wanted

TOPIC_ID = TopicId(bytes(range(16)))
OTHER_ID = TopicId(bytes(range(16, 32)))

_Topic = KafkaRequest.FetchTopic
_Partition = _Topic.FetchPartition
_Forgotten = KafkaRequest.ForgottenTopic


def request_of(version: int) -> bytes:
    """Return a request with everything that a version has."""

    def topic(name: str, topic_id: TopicId, partitions: list[int]) -> Any:
        return _Topic(
            topic=name,
            topic_id=uuid.UUID(bytes=topic_id),
            partitions=[
                _Partition(
                    partition=partition,
                    current_leader_epoch=7,
                    fetch_offset=2**40 + partition,
                    last_fetched_epoch=6,
                    log_start_offset=-1,
                    partition_max_bytes=1 << 20,
                )
                for partition in partitions
            ],
        )

    message = KafkaRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=3,
        max_bytes=5 << 20,
        isolation_level=1,
        session_id=99,
        session_epoch=12,
        topics=[topic("größe", TOPIC_ID, [0, 300]), topic("u", OTHER_ID, [1])],
        forgotten_topics_data=[
            _Forgotten(topic="v", topic_id=uuid.UUID(bytes=OTHER_ID), partitions=[4, 5])
        ],
        rack_id="b-side",
    )
    return bytes(message.encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_read_as_kafkas_own_code_writes_it(version: int) -> None:
    request = decode(memoryview(request_of(version)), version, 10)
    by_id = version >= 13
    epoch = LeaderEpoch(7 if version >= 9 else -1)
    last_epoch = LeaderEpoch(6 if version >= 12 else -1)
    assert request.wanted == [
        Wanted(topic, partition, epoch, Offset(2**40 + partition), last_epoch, 1 << 20)
        for topic, partition in [
            (TOPIC_ID if by_id else "größe", 0),
            (TOPIC_ID if by_id else "größe", 300),
            (OTHER_ID if by_id else "u", 1),
        ]
    ]
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 3, 5 << 20)
    assert request.read_committed
    assert request.replica_id == -1
    has_sessions = version >= 7
    assert request.session_id == (99 if has_sessions else NO_SESSION)
    assert request.session_epoch == (12 if has_sessions else LAST_EPOCH)
    forgotten = OTHER_ID if by_id else "v"
    assert request.forgotten == ([(forgotten, 4), (forgotten, 5)] if has_sessions else [])
    assert request.rack == ("b-side" if version >= 11 else "")


@pytest.mark.parametrize("version", [14, 15])
def test_a_follower_of_kafkas_is_told_from_a_consumer(version: int) -> None:
    message = KafkaRequest(replica_id=3, topics=[], max_wait_ms=0, min_bytes=0)
    message.replica_state = KafkaRequest.ReplicaState(replica_id=3, replica_epoch=8)
    encoded = message.encode(version=version)
    assert decode(memoryview(bytes(encoded)), version, 10).replica_id == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_that_is_cut_short_or_goes_on_is_refused(version: int) -> None:
    whole = request_of(version)
    for size in range(len(whole)):
        with pytest.raises(MalformedRequestError):
            decode(memoryview(whole[:size]), version, 10)
    with pytest.raises(MalformedRequestError, match="ends at byte"):
        decode(memoryview(whole + b"\0"), version, 10)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_for_more_partitions_than_allowed_is_refused(version: int) -> None:
    with pytest.raises(MalformedRequestError, match="more than 2"):
        decode(memoryview(request_of(version)), version, 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_count_makes_more_than_its_bytes_hold(version: int) -> None:
    whole = request_of(version)
    large = b"\xff\xff\xff\xff\x07" if version >= 12 else b"\x7f\xff\xff\xff"
    for at in range(len(whole) - len(large)):
        damaged = whole[:at] + large + whole[at + len(large) :]
        try:
            request = decode(memoryview(damaged), version, 1000)
        except MalformedRequestError:
            continue
        assert len(request.wanted) <= 4


def test_a_struct_has_few_tagged_fields() -> None:
    whole = request_of(12)
    assert whole[-1] == 0  # It has none at its end.
    field = b"\x05\x00"
    few = whole[:-1] + varint(16) + field * 16
    assert decode(memoryview(few), 12, 100) == decode(memoryview(whole), 12, 100)
    with pytest.raises(MalformedRequestError, match="tagged"):
        decode(memoryview(whole[:-1] + varint(17) + field * 17), 12, 100)


def test_a_partition_gets_a_byte_at_the_least() -> None:
    message = KafkaRequest(max_wait_ms=-5, min_bytes=0, max_bytes=0, topics=[])
    message.topics = [_Topic(topic="t", partitions=[_Partition(partition_max_bytes=-3)])]
    request = decode(memoryview(bytes(message.encode(version=11))), 11, 10)
    assert (request.wanted[0].max_bytes, request.max_bytes, request.max_wait_ms) == (1, 1, 0)


# --- Answers ---------------------------------------------------------------------------------


def answer_of(version: int) -> FetchAnswer:
    def topic(name: str, topic_id: TopicId) -> str | TopicId:
        return topic_id if version >= 13 else name

    return FetchAnswer(
        throttle_time_ms=250,
        error_code=0,
        session_id=77,
        partitions=[
            PartitionAnswer(
                topic("größe", TOPIC_ID),
                0,
                high_watermark=2**40,
                last_stable_offset=2**39,
                log_start_offset=5,
                aborted=[
                    AbortedTransaction(ProducerId(9), Offset(10), Offset(12)),
                    AbortedTransaction(ProducerId(8), Offset(11), Offset(13)),
                ],
                records=[b"first", memoryview(b"second")],
            ),
            PartitionAnswer(
                topic("größe", TOPIC_ID),
                1,
                error_code=6,
                leader=Leader(BrokerId(4), LeaderEpoch(31)),
            ),
            PartitionAnswer(
                topic("u", OTHER_ID),
                2,
                high_watermark=1,
                diverging=EpochEnd(LeaderEpoch(3), Offset(44)),
                preferred_replica=2,
                aborted=[],
            ),
        ],
        endpoints=[Endpoint(BrokerId(4), "broker-4", 9092, "b"), Endpoint(BrokerId(5), "h", 1)],
    )


def decoded(answer: FetchAnswer, version: int) -> Any:
    return KafkaResponse.decode(b"".join(encode(answer, version)), version=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_is_read_by_kafkas_own_code_as_it_was_meant(version: int) -> None:
    found = decoded(answer_of(version), version)
    assert found.throttle_time_ms == 250
    if version >= 7:
        assert (found.error_code, found.session_id) == (0, 77)
    first, second = found.responses
    if version >= 13:
        assert (first.topic_id.bytes, second.topic_id.bytes) == (TOPIC_ID, OTHER_ID)
    else:
        assert (first.topic, second.topic) == ("größe", "u")
    read, refused = first.partitions
    assert (read.partition_index, read.error_code) == (0, 0)
    assert (read.high_watermark, read.last_stable_offset) == (2**40, 2**39)
    if version >= 5:
        assert read.log_start_offset == 5
    assert [(each.producer_id, each.first_offset) for each in read.aborted_transactions] == [
        (9, 10),
        (8, 11),
    ]
    assert bytes(read.records) == b"firstsecond"
    assert (refused.partition_index, refused.error_code, refused.high_watermark) == (1, 6, -1)
    assert refused.aborted_transactions is None
    assert bytes(refused.records) == b""
    (sent_on,) = second.partitions
    assert sent_on.aborted_transactions == []
    if version >= 11:
        assert (read.preferred_read_replica, sent_on.preferred_read_replica) == (-1, 2)
    if version >= 12:
        leader = refused.current_leader
        assert (leader.leader_id, leader.leader_epoch) == (4, 31)
        diverging = sent_on.diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (3, 44)
    if version >= 16:
        assert [
            (each.node_id, each.host, each.port, each.rack) for each in found.node_endpoints
        ] == [(4, "broker-4", 9092, "b"), (5, "h", 1, None)]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_without_partitions_is_read(version: int) -> None:
    found = decoded(FetchAnswer(error_code=71), version)
    assert not found.responses
    if version >= 7:
        assert (found.error_code, found.session_id) == (71, 0)


def test_records_are_not_copied() -> None:
    records = memoryview(b"stored batches")
    answer = FetchAnswer(partitions=[PartitionAnswer("t", 0, records=[records])])
    assert any(part is records for part in encode(answer, 11))


def test_numbers_have_seven_bits_a_byte() -> None:
    assert [varint(value) for value in (0, 127, 128, 16_384)] == [
        b"\x00",
        b"\x7f",
        b"\x80\x01",
        b"\x80\x80\x01",
    ]
