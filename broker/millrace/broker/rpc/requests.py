"""Requests that carry no records: decoded within bounds, and answered one at a time.

A message of empty entries is small on the wire and large in memory; eight megabytes of them would
keep the loop busy for a minute. So a request has few bytes, and few entries. What it asks for may
still be large; an answer larger than any message may be is not sent.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, Self, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from millrace.broker.config import LimitsConfig
from millrace.broker.rpc.errors import abort
from millrace.core.errors import (
    Appended,
    MalformedRequestError,
    MessageTooLargeError,
    MillraceError,
)
from millrace.core.ids import TOPIC_ID_BYTES, TopicId, TopicPartition
from millrace.proto.errors import error_to_trailers

REQUEST_BYTES_MAX: Final = 1 << 20
"""Bytes of a request that carries no records."""


class _Request(Protocol):
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...
    def ListFields(self) -> Any: ...


_R = TypeVar("_R", bound=_Request)


def decode_request(kind: type[_R], data: bytes, entries_max: int) -> _R:
    """Return a request.

    Args:
        kind: class of the message.
        data: its bytes.
        entries_max: how many entries each of its lists may have.

    Raises:
        MalformedRequestError: no such message, or one that is too large.
    """
    if len(data) > REQUEST_BYTES_MAX:
        raise MalformedRequestError(
            f"a request without records is at most {REQUEST_BYTES_MAX} bytes, but {len(data)} came"
        )
    try:
        request = kind.FromString(data)
    except DecodeError as error:
        raise MalformedRequestError(f"the request is no protobuf: {error}") from error
    for field, value in request.ListFields():
        if field.is_repeated and len(value) > entries_max:
            raise MalformedRequestError(
                f"the request has {len(value)} {field.name}; at most {entries_max} may be asked "
                "for at once"
            )
    return request


def checked_topic_partition(topic_id: bytes, partition: int) -> TopicPartition:
    """Return a partition as a request names it.

    Raises:
        MalformedRequestError: that is no topic id.
    """
    if len(topic_id) != TOPIC_ID_BYTES:
        raise MalformedRequestError(
            f"a topic id is {TOPIC_ID_BYTES} bytes, but {len(topic_id)} came"
        )
    return TopicPartition(TopicId(topic_id), partition)


def unary_handler(
    method: Callable[[_R, object], Awaitable[Message]], kind: type[_R], *, limits: LimitsConfig
) -> "grpc.RpcMethodHandler[bytes, bytes]":
    """Return the handler of a method with one request and one response.

    A `MillraceError` that the method raises fails the call, and is named in its trailing metadata.
    So does an answer that is larger than `message_bytes_max`.
    """

    async def call(data: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        try:
            request = decode_request(kind, data, limits.request_entries_max)
            response = await method(request, context)
            _check_size(response, limits)
        except MillraceError as error:
            await abort(context, error, error_to_trailers(error))
        return response.SerializeToString()

    return grpc.unary_unary_rpc_method_handler(call)


def _check_size(response: Message, limits: LimitsConfig) -> None:
    size = response.ByteSize()
    if size > limits.message_bytes_max:
        raise MessageTooLargeError(
            f"the answer has {size} bytes, and the setting limits.message_bytes_max allows "
            f"{limits.message_bytes_max}: ask for less at a time, or raise it",
            appended=Appended.MAYBE,
        )
