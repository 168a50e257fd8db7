"""Kafka's messages, and the bounds that are checked before one is decoded."""

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import JoinGroupRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec
from millrace.core.errors import MalformedRequestError

KNOWN = sorted(key for key, is_request in codec._classes() if is_request)


def versions_of(key: int) -> range:
    return range(codec.request_class(key).max_version + 1)


def topics(*names: str) -> Any:
    asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=asked)


@pytest.mark.parametrize("key", KNOWN)
def test_what_a_client_encodes_is_walked_through_and_decoded(key: int) -> None:
    for version in versions_of(key):
        message = codec.request_class(key)(version=version)
        data = memoryview(bytes(message.encode(version=version)))
        assert codec.decode_request(key, version, data, 0).version == version


@pytest.mark.parametrize("version", [1, 4, 9, 12])
def test_a_message_that_is_cut_short_is_refused_wherever_it_is_cut(version: int) -> None:
    whole = bytes(topics("one", "two").encode(version=version))
    for end in range(len(whole)):
        with pytest.raises(MalformedRequestError):
            codec.decode_request(ApiKey.METADATA, version, memoryview(whole[:end]), 100)
    decoded = codec.decode_request(ApiKey.METADATA, version, memoryview(whole), 100)
    assert [topic.name for topic in decoded.topics] == ["one", "two"]


@pytest.mark.parametrize("count", [2**31 - 1, 10**6, -2, -(2**31)])
def test_a_number_of_entries_that_cannot_be_is_refused_before_anything_is_made(count: int) -> None:
    data = struct.pack(">i", count) + bytes(20)
    with pytest.raises(MalformedRequestError):
        codec.check_arrays(MetadataRequest, 1, memoryview(data), 1 << 30)


def test_the_entries_of_all_arrays_together_are_bounded() -> None:
    data = memoryview(bytes(topics(*map(str, range(11))).encode(version=9)))
    assert codec.decode_request(ApiKey.METADATA, 9, data, 11)
    with pytest.raises(MalformedRequestError, match="request_entries_max"):
        codec.decode_request(ApiKey.METADATA, 9, data, 10)


def test_a_list_that_may_not_be_missing_is_refused_if_it_is() -> None:
    assert codec.decode_request(ApiKey.METADATA, 1, memoryview(b"\xff\xff\xff\xff"), 0)
    with pytest.raises(MalformedRequestError, match="topics"):
        codec.decode_request(ApiKey.METADATA, 0, memoryview(b"\xff\xff\xff\xff"), 0)


def test_a_number_of_more_than_32_bits_is_refused() -> None:
    with pytest.raises(MalformedRequestError, match="32 bits"):
        codec.decode_request(ApiKey.METADATA, 9, memoryview(b"\x80" * 1000), 10)
    with pytest.raises(MalformedRequestError, match="32 bits"):
        codec.decode_request(ApiKey.METADATA, 9, memoryview(b"\xff\xff\xff\xff\x7f" + bytes(9)), 10)


def test_unknown_tagged_fields_are_read_over_and_many_are_refused() -> None:
    """kafka-python copies the rest of the message for each struct that has some."""
    plain = bytes(ApiVersionsRequest(
        client_software_name="a", client_software_version="1").encode(version=3))  # fmt: skip
    assert plain.endswith(b"\0")
    one = plain[:-1] + b"\x01" + b"\x63\x02ab"
    found = codec.decode_request(ApiKey.API_VERSIONS, 3, memoryview(one), 0)
    assert found.client_software_name == "a"
    many = plain[:-1] + b"\x41" + b"\x63\x00" * 65
    with pytest.raises(MalformedRequestError, match="tagged"):
        codec.decode_request(ApiKey.API_VERSIONS, 3, memoryview(many), 0)


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    data = bytes(topics("ab").encode(version=1)).replace(b"ab", b"\xff\xfe")
    with pytest.raises(MalformedRequestError, match="cannot be read"):
        codec.decode_request(ApiKey.METADATA, 1, memoryview(data), 10)


@settings(max_examples=300)
@given(st.sampled_from(KNOWN), st.data())
def test_whatever_bytes_come_a_request_is_decoded_or_refused(key: int, data: Any) -> None:
    version = data.draw(st.sampled_from(versions_of(key)))
    body = memoryview(data.draw(st.binary(max_size=200)))
    with contextlib.suppress(MalformedRequestError):
        codec.decode_request(key, version, body, 100)


@settings(max_examples=200)
@given(st.data())
def test_a_message_with_one_wrong_byte_is_decoded_or_refused(data: Any) -> None:
    version = data.draw(st.integers(0, 9))
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"abc")]
    whole = bytearray(
        JoinGroupRequest(
            group_id="g", member_id="m", protocol_type="consumer", protocols=protocols
        ).encode(version=version)
    )
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedRequestError):
        codec.decode_request(ApiKey.JOIN_GROUP, version, memoryview(bytes(whole)), 100)
