"""What is fuzzed: whatever bytes come, a typed error or a right answer.

Checksums, magic and length would keep a fuzzer out, so the batch target sets them right: that is
what a hostile producer does.
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError
from tests.fakes.header_fields import FIELDS
from tests.unit.core.records.batches import LIMITS, TOPIC_PARTITION, open_whole, resealed

from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.core.records import batch, column_writer
from millrace.core.records.columns import Columns
from millrace.core.records.compression import Codec, inflate
from millrace.core.records.header import HEADER_BYTES, MAGIC, Attributes
from millrace.proto import codec
from millrace.proto.v1 import fetch_pb2, produce_pb2
from millrace.runtime import page_messages
from millrace.web import values
from millrace.web.markup import element

_ATTRIBUTES_AT: Final = FIELDS["attributes"][0]
_INFLATED_BYTES_MAX: Final = 1 << 16


def fuzz_batch(data: bytes) -> None:
    """A leader's check and a reader's opening; what a leader accepts has one form only."""
    data += bytes(max(HEADER_BYTES - len(data), 0))
    body_bytes = len(data) - HEADER_BYTES
    numbers: dict[str, Any] = {"magic": MAGIC, "stored_length": body_bytes, "reserved": 0}
    if not data[_ATTRIBUTES_AT] & Attributes.CODEC_MASK:
        numbers["inflated_length"] = body_bytes
    sealed = resealed(data, **numbers)
    _walk(sealed)
    try:
        header = batch.check(TOPIC_PARTITION, sealed, LIMITS)
    except MillraceError:
        header = None
    try:
        records = open_whole(sealed)
    except MillraceError:
        assert header is None, "the leader accepted what readers refuse"
        return
    records.to_pylist()
    if header is None:
        return
    again = column_writer.write(
        Columns(
            record_count=len(records),
            timestamps=records.column("timestamp").to_numpy(),
            keys=records.column("key"),
            values=records.column("value"),
            headers=records.column("headers"),
        )
    )
    body = inflate(header.codec, sealed[HEADER_BYTES:], header.inflated_length)
    assert again.body == bytes(body), "the leader accepted another form of the same records"
    assert again.attributes | header.codec == header.attributes


def _walk(data: bytes) -> None:
    try:
        for _ in batch.walk(data + data):
            pass
    except MillraceError:
        pass


def fuzz_compression(data: bytes) -> None:
    """Codec, declared length, stream: refused, or exactly as long as declared, twice the same."""
    declared = int.from_bytes(data[1:4], "little") % (_INFLATED_BYTES_MAX + 1)
    number, stored = data[0] % (len(Codec) + 1) if data else 0, data[4:]
    try:
        body = inflate(number, stored, declared)
    except MillraceError:
        return
    assert len(body) == declared
    assert bytes(body) == bytes(inflate(number, stored, declared)), "memory that was never written"


def fuzz_hot_messages(data: bytes) -> None:
    """The hot messages' codec reads what protobuf reads, or refuses."""
    for decode, message in (
        (codec.decode_produce_request, produce_pb2.ProduceRequest()),
        (codec.decode_fetch_response, fetch_pb2.FetchResponse()),
    ):
        try:
            header, batches = decode(data)
        except MalformedRequestError:
            continue
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise AssertionError("accepted what is no protobuf") from error
        assert message.batches == b"".join(batches)
        # Bytes, not messages: a NaN or an unknown field never equals itself.
        assert message.header.SerializeToString(deterministic=True) == header.SerializeToString(
            deterministic=True
        )


def fuzz_web_request(data: bytes) -> None:
    """The head of a request for a page: refused, or for this machine and only to read."""
    hosts = page_messages.OwnHosts("localhost".__eq__, "ask for localhost")
    try:
        request = page_messages.parse_request(data, hosts)
    except page_messages.RefusedError:
        return
    assert request.method in page_messages.METHODS
    assert request.path.startswith("/")
    assert b"host" in data.lower()


def fuzz_web_values(data: bytes) -> None:
    """A value on a page: text within the bounds, without a tag and without what is not seen."""
    for form in (None, *values.FORMS):
        shown = values.show(data, form)
        assert len(shown.text) <= values.CHARACTERS_MAX
        written = element("pre", shown.text).removeprefix("<pre>").removesuffix("</pre>")
        plain = written.replace('<span class="mark">', "").replace("</span>", "")
        assert not set(plain) & set("<>\x00\x1b\r\u202e\u2066\ufeff")
    assert "\n" not in values.preview(data, is_cut=True)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "batch": fuzz_batch,
    "compression": fuzz_compression,
    "hot_messages": fuzz_hot_messages,
    "web_request": fuzz_web_request,
    "web_values": fuzz_web_values,
}
