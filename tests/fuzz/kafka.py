"""What comes to the listener of Kafka's protocol: frames, and requests, two of them by hand."""

from typing import Final

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec, fetch_codec, frames
from millrace.broker.kafka.wire.produce_codec import decode_produce
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


def fuzz_kafka_fetch(data: bytes) -> None:
    """A Fetch request names what kafka-python reads in it, within a bound, or is refused."""
    if not data:
        return
    versions = fetch_codec.VERSIONS
    version, body = versions[data[0] % len(versions)], memoryview(data)[1:]
    try:
        request = fetch_codec.decode(body, version, _ENTRIES_MAX)
    except MalformedRequestError:
        return
    assert len(request.wanted) <= _ENTRIES_MAX
    assert len(request.forgotten) <= _ENTRIES_MAX
    try:
        message = codec.decode_request(ApiKey.FETCH, version, body, 4 * _ENTRIES_MAX)
    except MalformedRequestError:
        return  # It takes fewer tagged fields.
    partitions = [each for topic in message.topics for each in topic.partitions]
    assert [(each.partition, each.fetch_offset) for each in partitions] == [
        (wanted.partition, wanted.fetch_offset) for wanted in request.wanted
    ]
