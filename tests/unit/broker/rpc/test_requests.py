"""Requests without records are decoded within bounds."""

import asyncio
from typing import Any

import grpc
import pytest

from millrace.broker.config import LimitsConfig
from millrace.broker.rpc.requests import REQUEST_BYTES_MAX, decode_request, unary_handler
from millrace.core.errors import (
    Appended,
    MalformedRequestError,
    MessageTooLargeError,
    MillraceError,
    NotControllerError,
)
from millrace.proto.errors import error_from_trailers
from millrace.proto.v1.cluster_pb2 import GetMetadataRequest, GetMetadataResponse


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


class Call:
    """Takes how a call is ended."""

    async def abort(self, status: grpc.StatusCode, details: str, trailers: Any) -> None:
        self.status, self.details, self.trailers = status, details, trailers
        raise asyncio.CancelledError


def test_a_call_that_is_refused_names_the_error_and_whether_it_may_be_done() -> None:
    async def refuse(request: GetMetadataRequest, _: object) -> GetMetadataResponse:
        raise NotControllerError("it stopped", appended=Appended.MAYBE)

    call: Any = Call()
    handler: Any = unary_handler(refuse, GetMetadataRequest, limits=LimitsConfig())
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(handler.unary_unary(b"", call))
    assert (call.status, call.details) == (grpc.StatusCode.UNAVAILABLE, "it stopped")
    error = error_from_trailers(call.trailers, call.details)
    assert isinstance(error, NotControllerError)
    assert (error.message, error.appended) == ("it stopped", Appended.MAYBE)


def test_an_answer_larger_than_a_message_may_be_is_refused_by_name() -> None:
    limits = LimitsConfig(message_bytes_max=64 << 10, fetch_response_bytes_max=1024)

    async def answer(request: GetMetadataRequest, _: object) -> GetMetadataResponse:
        return GetMetadataResponse(cluster_id=request.topics[0] * 1000)

    def ask(text: str) -> bytes:
        data = GetMetadataRequest(topics=[text]).SerializeToString()
        handler: Any = unary_handler(answer, GetMetadataRequest, limits=limits)
        return bytes(asyncio.run(handler.unary_unary(data, call)))

    call: Any = Call()
    assert len(ask("x" * 65)) > 65_000
    with pytest.raises(asyncio.CancelledError):
        ask("x" * 66)
    error = error_from_trailers(call.trailers, call.details)
    assert isinstance(error, MessageTooLargeError)
    assert error.appended is Appended.MAYBE, "it was to be answered, so it was done"


@pytest.mark.parametrize("trailers", [[], [("other-bin", b"x")], [("millrace-error-bin", b"\xff")]])
def test_a_call_of_which_the_error_is_not_told_failed_for_an_unknown_one(
    trailers: list[tuple[str, bytes]],
) -> None:
    error: MillraceError | None = error_from_trailers(trailers, "gone")
    assert error is None
