"""Requests without records are decoded within bounds."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from millrace.broker.rpc.requests import REQUEST_BYTES_MAX, decode_request
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.proto.entries import NUMBERS_PER_ENTRY, too_many_entries
from millrace.proto.errors import error_from_trailers
from millrace.proto.v1 import cluster_pb2, fetch_pb2, groups_pb2, positions_pb2, produce_pb2
from millrace.proto.v1.cluster_pb2 import (
    AlterTopicsRequest,
    GetMetadataRequest,
    TopicChange,
)

MAX = 10

Path = tuple[FieldDescriptor, ...]
"""A list or map in a message: the fields that lead to it, itself the last one."""


def lists_of(kind: Descriptor, path: Path = ()) -> Iterator[Path]:
    """Return all lists and maps of a kind of message, nested ones too."""
    for field in kind.fields:
        message = field.message_type
        if field.is_repeated:
            yield (*path, field)
        if message is not None and not message.GetOptions().map_entry:
            yield from lists_of(message, (*path, field))


def filled(message: Any, path: Path, count: int) -> None:
    """Give a list of a message so many entries; one in each element of the lists that have it."""
    first, *others = path
    held = getattr(message, first.name)
    if not others:
        for number in range(count):
            is_map = first.message_type is not None and first.message_type.GetOptions().map_entry
            if is_map:
                held[f"name {number}"] = "value"
            elif first.message_type is not None:
                held.add()
            elif first.type == FieldDescriptor.TYPE_STRING:
                held.append("name")
            elif first.type == FieldDescriptor.TYPE_BYTES:
                held.append(b"name")
            else:
                held.append(number)
    elif first.is_repeated:
        for part in (count // 2, count - count // 2):
            filled(held.add(), tuple(others), part)
    else:
        filled(held, tuple(others), count)


LISTS = {
    f"{kind.name}.{'.'.join(part.name for part in path)}": (kind, path)
    for module in (cluster_pb2, fetch_pb2, groups_pb2, positions_pb2, produce_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if (kind := method.input_type).name != "ProduceRequest"  # Bounded by its batches.
    for path in lists_of(kind)
}
"""All lists and maps in requests."""


def test_a_request_within_the_bounds_is_decoded() -> None:
    data = GetMetadataRequest(topics=["a", "b"], brokers_only=True).SerializeToString()
    request = decode_request(GetMetadataRequest, data, 2)
    assert (list(request.topics), request.brokers_only) == (["a", "b"], True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (GetMetadataRequest(topics=["a"] * 3).SerializeToString(), "3 topics; at most 2"),
        (GetMetadataRequest(topics=["a"] * 3).SerializeToString() + b"\xff", "no protobuf"),
        (bytes(REQUEST_BYTES_MAX + 1), "at most"),
        (b"\x0a\x05abc", "no protobuf"),
    ],
)
def test_a_request_beyond_them_is_refused_by_name(data: bytes, words: str) -> None:
    with pytest.raises(MalformedRequestError, match=words):
        decode_request(GetMetadataRequest, data, 2)


@pytest.mark.parametrize("trailers", [[], [("other-bin", b"x")], [("millrace-error-bin", b"\xff")]])
def test_a_call_of_which_the_error_is_not_told_failed_for_an_unknown_one(
    trailers: list[tuple[str, bytes]],
) -> None:
    error: MillraceError | None = error_from_trailers(trailers, "gone")
    assert error is None


@pytest.mark.parametrize("name", LISTS)
def test_every_list_and_map_of_a_request_is_bounded_also_within_others(name: str) -> None:
    kind, path = LISTS[name]
    is_nested_number = path[0].is_repeated and path[-1].type == FieldDescriptor.TYPE_INT32
    many = MAX * (NUMBERS_PER_ENTRY if len(path) > 1 and is_nested_number else 1)
    request: Any = GetMessageClass(kind)
    largest = request()
    filled(largest, path, many)
    assert decode_request(request, largest.SerializeToString(), MAX) == largest
    larger = request()
    filled(larger, path, many + 1)
    with pytest.raises(MalformedRequestError, match=f"{many + 1} {path[-1].name}; at most {MAX}"):
        decode_request(request, larger.SerializeToString(), MAX)


def test_names_of_many_lists_are_among_them() -> None:
    assert {
        "AlterTopicsRequest.topics.set_config",
        "CreateTopicsRequest.topics.config",
        "GroupHeartbeatRequest.member.topics",
        "ReassignPartitionsRequest.reassignments.replicas",
        "FetchRequest.settings.features",
        "DescribeLagsRequest.offsets",
    } <= set(LISTS)


def topics(count: int, settings: int) -> bytes:
    """Return a request to alter so many topics, with so many settings each."""
    config = {f"k{number:05}": "v" * 60 for number in range(settings)}
    changes = [TopicChange(name="t", set_config=config)] * count
    return AlterTopicsRequest(topics=changes).SerializeToString()


@pytest.mark.parametrize(
    ("data", "words"),
    [(topics(1, 80_000), "80000 set_config"), (topics(10_000, 1), None), (topics(10, 1000), None)],
    ids=["many settings", "many topics", "topics with settings"],
)
def test_a_request_is_decoded_once_for_each_level_of_its_lists(
    data: bytes, words: str | None
) -> None:
    """No element is decoded alone: 10,000 topics would take twenty times as long to count."""
    calls = 0

    def count(_: object, event: str, called: Any) -> None:
        nonlocal calls
        calls += event == "c_call" and called.__name__ == "FromString"

    sys.setprofile(count)
    try:
        assert too_many_entries(AlterTopicsRequest.DESCRIPTOR, data, 10_000) == words
    finally:
        sys.setprofile(None)
    assert calls == 2


def test_entries_after_an_element_that_is_no_message_are_never_decoded() -> None:
    """It hides them when they are counted."""
    open_end = b"\x1a\xff\xff\x03"  # A setting of 65,535 bytes, of which none is there.
    data = b"\x0a\x04" + open_end + topics(MAX + 1, 1)
    with pytest.raises(MalformedRequestError, match="no protobuf"):
        decode_request(AlterTopicsRequest, data, MAX + 2)


def test_too_many_settings_are_refused_for_less_than_it_takes_to_decode_them() -> None:
    config = {f"k{number:05}": "1" for number in range(80_000)}
    data = AlterTopicsRequest(topics=[TopicChange(set_config=config)]).SerializeToString()

    def seconds(work: Callable[[], object]) -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    def look() -> None:
        assert too_many_entries(AlterTopicsRequest.DESCRIPTOR, data, 10_000) == "80000 set_config"

    look()  # The outline is made once.
    decoding = min(seconds(lambda: AlterTopicsRequest.FromString(data)) for _ in range(3))
    assert min(seconds(look) for _ in range(3)) < decoding / 5
