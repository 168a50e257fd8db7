"""What comes to the listener of Kafka's protocol: frames, requests, and what Produce carries."""

from typing import Final

from millrace.broker.kafka import codec, frames
from millrace.broker.kafka.produce_codec import decode_produce
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.core.records import kafka_batch
from millrace.runtime.transport.frames import FrameError

_ENTRIES_MAX: Final = 100
_FRAME_BYTES_MAX: Final = 1 << 16
_KEYS: Final = sorted(key for key, is_request in codec._classes() if is_request)
_FIRST_PRODUCE: Final = 3


def fuzz_kafka_frames(data: bytes) -> None:
    """A frame's length and the header of a request stay within what came."""
    try:
        found = frames.parse_length(data, 0, len(data), _FRAME_BYTES_MAX)
    except FrameError:
        return
    if found is None:
        return
    begin, length = found
    assert 0 < length <= _FRAME_BYTES_MAX
    frame = memoryview(data)[begin : begin + length]
    if len(frame) < length:
        return  # The rest has not come.
    try:
        header = frames.parse_request_header(frame)
        body_at = frames.after_tags(frame, header.rest_at)
    except MalformedRequestError:
        return
    assert header.rest_at <= body_at <= len(frame)


def fuzz_kafka_requests(data: bytes) -> None:
    """A request of any kind and version is decoded, or refused; its lists stay within a bound."""
    if len(data) < 2:
        return
    key = _KEYS[data[0] % len(_KEYS)]
    version = data[1] % (codec.request_class(key).max_version + 1)
    try:
        message = codec.decode_request(key, version, memoryview(data)[2:], _ENTRIES_MAX)
    except MalformedRequestError:
        return
    assert message.version == version


def fuzz_kafka_produce(data: bytes) -> None:
    """The records of a Produce request lie in the request, and are split within their bounds."""
    if not data:
        return
    version = _FIRST_PRODUCE + data[0] % 11
    try:
        body = decode_produce(memoryview(data)[1:], version, _ENTRIES_MAX)
    except MalformedRequestError:
        return
    assert len(body.partitions) <= _ENTRIES_MAX
    assert sum(len(partition.records or b"") for partition in body.partitions) < len(data)
    for partition in body.partitions:
        try:
            batches = kafka_batch.split(partition.records or memoryview(b""))
        except MillraceError:
            continue
        assert sum(map(len, batches)) == len(partition.records or b"")
