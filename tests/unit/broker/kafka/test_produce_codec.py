"""Produce's request and response by hand, against kafka-python's classes."""

import contextlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from millrace.broker.kafka.wire.produce_codec import (
    ProduceBody,
    ProducePartition,
    ProduceResult,
    decode_produce,
    encode_produce,
)
from millrace.core.errors import MalformedRequestError

VERSIONS = range(3, 14)
ID = bytes(range(16))


def request(version: int, *partitions: tuple[str, int, bytes | None], **more: Any) -> memoryview:
    """Return the body of a request, each partition in a topic of its own."""
    kind: Any = ProduceRequest.TopicProduceData
    topics = [
        kind(
            name=topic,
            topic_id=UUID(bytes=ID),
            partition_data=[kind.PartitionProduceData(index=index, records=records)],
        )
        for topic, index, records in partitions
    ]
    message = ProduceRequest(
        **{"transactional_id": None, "acks": -1, "timeout_ms": 1500, **more}, topic_data=topics
    )
    return memoryview(bytes(message.encode(version=version)))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_read_as_it_was_written(version: int) -> None:
    body = request(version, ("one", 3, b"abc"), ("two", 0, None), acks=1, transactional_id="tx")
    names = [ID, ID] if version >= 13 else ["one", "two"]
    assert decode_produce(body, version, 10) == ProduceBody(
        "tx",
        1,
        1500,
        [
            ProducePartition(names[0], 3, memoryview(b"abc")),
            ProducePartition(names[1], 0, None),
        ],
    )


@pytest.mark.parametrize("version", [3, 9, 13])
def test_the_records_are_not_copied(version: int) -> None:
    body = request(version, ("one", 3, b"abc"))
    (partition,) = decode_produce(body, version, 10).partitions
    assert partition.records is not None
    assert partition.records.obj is body.obj


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_a_request_that_is_cut_short_is_refused_wherever_it_is_cut(version: int) -> None:
    body = request(version, ("one", 3, b"abc"), ("two", 0, b"d"))
    for end in range(len(body)):
        with pytest.raises(MalformedRequestError):
            decode_produce(body[:end], version, 10)


def test_topics_and_partitions_together_are_bounded() -> None:
    body = request(7, ("one", 3, b"abc"), ("two", 0, b"d"))
    assert decode_produce(body, 7, 4)
    with pytest.raises(MalformedRequestError, match="request_entries_max"):
        decode_produce(body, 7, 3)


@settings(max_examples=300)
@given(st.sampled_from(VERSIONS), st.binary(max_size=100), st.data())
def test_whatever_bytes_come_a_request_is_read_or_refused(
    version: int, noise: bytes, data: Any
) -> None:
    whole = bytearray(request(version, ("one", 3, b"abc")))
    at = data.draw(st.integers(0, len(whole)))
    for body in (noise, bytes(whole[:at]) + noise + bytes(whole[at + len(noise) :])):
        with contextlib.suppress(MalformedRequestError):
            decode_produce(memoryview(body), version, 100)


@pytest.mark.parametrize("version", VERSIONS)
def test_clients_read_an_answer_as_it_was_meant(version: int) -> None:
    topic, other = (ID, bytes(16)) if version >= 13 else ("one", "two")
    results = [
        ProduceResult(topic, 0, 0, 7, -1, 3),
        ProduceResult(topic, 1, 6, message="ask another broker", records=[3, 70], leader=(5, 9)),
        ProduceResult(other, 0, 0, 2**40, 1234, 0),
    ]
    data = encode_produce(results, version, 250, [(5, "host", 9092, "zone"), (6, "h", 1, "")])
    found: Any = ProduceResponse.decode(data, version=version)
    assert found.throttle_time_ms == 250
    first, second = found.responses
    assert [entry.index for entry in first.partition_responses] == [0, 1]
    assert [entry.error_code for entry in first.partition_responses] == [0, 6]
    assert [entry.base_offset for entry in first.partition_responses] == [7, -1]
    (last,) = second.partition_responses
    assert (last.base_offset, last.log_append_time_ms) == (2**40, 1234)
    if version >= 13:
        assert first.topic_id == UUID(bytes=ID)
    else:
        assert (first.name, second.name) == ("one", "two")
    if version >= 5:
        assert first.partition_responses[0].log_start_offset == 3
    refused = first.partition_responses[1]
    if version >= 8:
        assert refused.error_message == "ask another broker"
        assert first.partition_responses[0].error_message is None
        assert [
            (entry.batch_index, entry.batch_index_error_message) for entry in refused.record_errors
        ] == [(3, None), (70, None)]
        assert not first.partition_responses[0].record_errors
    if version >= 10:
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (5, 9)
        assert [(end.node_id, end.host, end.port, end.rack) for end in found.node_endpoints] == [
            (5, "host", 9092, "zone"),
            (6, "h", 1, None),
        ]


def test_a_long_message_is_cut() -> None:
    data = encode_produce([ProduceResult("t", 0, 3, message="ä" * 5000)], 8, 0)
    found: Any = ProduceResponse.decode(data, version=8)
    assert found.responses[0].partition_responses[0].error_message == "ä" * 500
