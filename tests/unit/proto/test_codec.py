"""The hot messages' codec against protobuf's own: the same bytes, the same meaning."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.errors import MalformedRequestError
from millrace.proto import codec
from millrace.proto.v1 import fetch_pb2, produce_pb2

BATCHES = [b"a" * 96, b"b" * 200, b"c" * 70_000]
Decode = Callable[[bytes], tuple[Any, list[memoryview]]]
DECODERS: list[Decode] = [codec.decode_produce_request, codec.decode_fetch_response]


def produce_header(batches: list[bytes]) -> produce_pb2.ProduceHeader:
    return produce_pb2.ProduceHeader(
        correlation_id=7,
        acks=-1,
        partitions=[
            produce_pb2.ProducePartition(topic_id=bytes(16), partition=i, length=len(batch))
            for i, batch in enumerate(batches)
        ],
    )


def fetch_header(batches: list[bytes]) -> fetch_pb2.FetchHeader:
    return fetch_pb2.FetchHeader(
        partitions=[
            fetch_pb2.FetchedPartition(handle=i, length=len(batch), high_watermark=1 << 40)
            for i, batch in enumerate(batches)
        ]
    )


batch_lists = st.lists(st.binary(min_size=96, max_size=300), max_size=5)


@given(batch_lists)
def test_protobuf_reads_what_the_codec_writes(batches: list[bytes]) -> None:
    request = produce_pb2.ProduceRequest.FromString(
        b"".join(codec.produce_request(produce_header(batches), batches))
    )
    assert request.header == produce_header(batches)
    assert request.batches == b"".join(batches)
    response = fetch_pb2.FetchResponse.FromString(
        b"".join(codec.fetch_response(fetch_header(batches), batches))
    )
    assert response.header == fetch_header(batches)
    assert response.batches == b"".join(batches)


@given(batch_lists)
def test_the_codec_reads_what_protobuf_writes(batches: list[bytes]) -> None:
    header, read = codec.decode_produce_request(
        produce_pb2.ProduceRequest(
            header=produce_header(batches), batches=b"".join(batches)
        ).SerializeToString()
    )
    assert header == produce_header(batches)
    assert list(map(bytes, read)) == batches
    fetched, read = codec.decode_fetch_response(
        fetch_pb2.FetchResponse(
            header=fetch_header(batches), batches=b"".join(batches)
        ).SerializeToString()
    )
    assert fetched == fetch_header(batches)
    assert list(map(bytes, read)) == batches


def test_batches_are_views_into_the_message() -> None:
    message = b"".join(codec.produce_request(produce_header(BATCHES), BATCHES))
    _, read = codec.decode_produce_request(message)
    assert all(view.obj is message for view in read)


def test_unknown_fields_and_another_order_do_no_harm() -> None:
    message = b"".join(codec.produce_request(produce_header(BATCHES), BATCHES))
    header = produce_header(BATCHES).SerializeToString()
    unknown = b"\x18\x96\x01" + b"\x22\x03abc" + b"\x2d1234" + b"\x3112345678"
    moved = message[len(header) + 2 :] + unknown + message[: len(header) + 2]
    assert codec.decode_produce_request(moved) == codec.decode_produce_request(message)
    assert produce_pb2.ProduceRequest.FromString(moved).header == produce_header(BATCHES)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "message",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff" * 11,
        b"\x0a\x02\xff\xff",
        b"\x0b",
        b"\x00\x00",
        b"\x98\x80\x80\x80\x80\x00\x00",
        b"\x12\x80\x80\x80\x80\x80\x00",
        b"\x0a\x00\x0a\x00",
        b"\x12\x00\x12\x00",
        b"\x12\x01x",
    ],
)
def test_what_is_no_message_is_malformed(decode: Decode, message: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        decode(message)


@pytest.mark.parametrize("change", [-1, 1])
def test_lengths_must_add_up_to_the_batches(change: int) -> None:
    header = produce_header(BATCHES)
    header.partitions[1].length += change
    with pytest.raises(MalformedRequestError, match="add up"):
        codec.decode_produce_request(b"".join(codec.produce_request(header, BATCHES)))


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "message",
    [
        b"\x18\x00" * (4 << 20),  # Unknown fields, and nothing else.
        b"\x0a\x02\x20\x01" * (2 << 20),  # A header in two million parts.
        b"\x0a\x80\x80\x80\x04" + b"\x22\x00" * (4 << 20),  # Four million partitions.
    ],
)
def test_a_message_of_many_empty_fields_is_refused_at_once(decode: Decode, message: bytes) -> None:
    started = time.process_time()
    with pytest.raises(MalformedRequestError):
        decode(message)
    assert time.process_time() - started < 0.1


def test_a_request_names_no_more_partitions_than_it_can_hold_batches_for() -> None:
    header = produce_pb2.ProduceHeader(
        partitions=[produce_pb2.ProducePartition(length=96), produce_pb2.ProducePartition()]
    )
    with pytest.raises(MalformedRequestError, match="2 partitions"):
        codec.decode_produce_request(b"".join(codec.produce_request(header, [bytes(96)])))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read_as_protobuf_reads_them(data: bytes) -> None:
    try:
        header, batches = codec.decode_produce_request(data)
    except MalformedRequestError:
        return
    request = produce_pb2.ProduceRequest.FromString(data)
    assert request.header == header
    assert request.batches == b"".join(batches)
