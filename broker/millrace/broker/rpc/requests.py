"""Requests that carry no records, decoded within bounds.

A message of empty entries is small on the wire and large in memory; eight megabytes of them would
keep the loop busy for a minute. So bytes and entries of a request are bounded, and entries are
counted before it is decoded: a refusal must cost less than an answer. Its answer may still be
large; an answer beyond the largest message is not sent (`calls`).
"""

from typing import Any, Final, Protocol, TypeVar, cast

from google.protobuf.message import DecodeError

from millrace.core.errors import MalformedRequestError
from millrace.core.ids import TOPIC_ID_BYTES, TopicId, TopicPartition
from millrace.proto.entries import too_many_entries

REQUEST_BYTES_MAX: Final = 1 << 20
"""Bytes of a request that carries no records."""


_MessageT_co = TypeVar("_MessageT_co", covariant=True)


class RequestKind(Protocol[_MessageT_co]):
    """The class of a request's message, or what decodes it likewise; it has a `DESCRIPTOR`, too."""

    def FromString(self, data: bytes, /) -> _MessageT_co: ...


def decode_request(kind: RequestKind[_MessageT_co], data: bytes, entries_max: int) -> _MessageT_co:
    """Return a request.

    Args:
        kind: of the message.
        data: its bytes.
        entries_max: how many entries each of its lists and maps may have; nested ones together.

    Raises:
        MalformedRequestError: no such message, or one that is too large.
    """
    if len(data) > REQUEST_BYTES_MAX:
        raise MalformedRequestError(
            f"a request without records is at most {REQUEST_BYTES_MAX} bytes, but {len(data)} came"
        )
    try:
        if (found := too_many_entries(cast(Any, kind).DESCRIPTOR, data, entries_max)) is not None:
            raise MalformedRequestError(
                f"the request has {found}; at most {entries_max} may be asked for at once: send "
                "several requests"
            )
        return kind.FromString(data)
    except DecodeError as error:
        raise MalformedRequestError(f"the request is no protobuf: {error}") from error


def checked_topic_id(topic_id: bytes) -> TopicId:
    """Return a topic's id as a request names it.

    Raises:
        MalformedRequestError: that is no topic id.
    """
    if len(topic_id) != TOPIC_ID_BYTES:
        raise MalformedRequestError(
            f"a topic id is {TOPIC_ID_BYTES} bytes, but {len(topic_id)} came"
        )
    return TopicId(topic_id)


def checked_topic_partition(topic_id: bytes, partition: int) -> TopicPartition:
    """Return a partition as a request names it.

    Raises:
        MalformedRequestError: that is no topic id.
    """
    return TopicPartition(checked_topic_id(topic_id), partition)
