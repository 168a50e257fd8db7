"""Requests without records are decoded within bounds."""

import pytest

from millrace.broker.rpc.requests import REQUEST_BYTES_MAX, decode_request
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.proto.errors import error_from_trailers
from millrace.proto.v1.cluster_pb2 import GetMetadataRequest


def test_a_request_within_the_bounds_is_decoded() -> None:
    data = GetMetadataRequest(topics=["a", "b"], brokers_only=True).SerializeToString()
    request = decode_request(GetMetadataRequest, data, 2)
    assert (list(request.topics), request.brokers_only) == (["a", "b"], True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (GetMetadataRequest(topics=["a"] * 3).SerializeToString(), "3 topics; at most 2"),
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
