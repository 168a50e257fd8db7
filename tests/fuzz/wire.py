"""What comes over connections: batches, messages, frames, metadata of calls, requests for pages.

Checksums, magic and length would keep a fuzzer out, so the batch target sets them right: that is
what a hostile producer does.
"""

from collections import Counter
from importlib import import_module
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from tests.fakes.drpc_ends import Recording, answer_bytes, feed, run_in_loop, serve_bytes
from tests.fakes.header_fields import FIELDS
from tests.unit.core.records.batches import LIMITS, TOPIC_PARTITION, open_whole, resealed

from millrace.broker.guard.credentials import bearer_token
from millrace.broker.rpc.requests import decode_request
from millrace.core.callers import client_id_problem
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.core.guard.identity import RefusedCredentialError
from millrace.core.guard.token_file import token_problem
from millrace.core.records import batch, column_writer
from millrace.core.records.columns import Columns
from millrace.core.records.compression import Codec, inflate
from millrace.core.records.header import HEADER_BYTES, MAGIC, Attributes
from millrace.proto import codec
from millrace.proto.callers import client_id_from_metadata
from millrace.proto.entries import NUMBERS_PER_ENTRY
from millrace.proto.v1 import fetch_pb2, produce_pb2
from millrace.runtime import page_messages
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.frames import FrameError
from millrace.runtime.transport.receive_memory import ReceiveMemory
from millrace.web import values
from millrace.web.markup import element

_ATTRIBUTES_AT: Final = FIELDS["attributes"][0]
_INFLATED_BYTES_MAX: Final = 1 << 16
_ENTRIES_MAX: Final = 10
_FILES: Final = (
    *("cluster", "controller", "fetch", "groups", "positions", "produce", "replica"),
    *("shared_transactions", "transactions"),
)


def _request_kinds() -> list[Any]:
    """Return the classes of the requests of every call that there is."""
    files = [import_module(f"millrace.proto.v1.{name}_pb2").DESCRIPTOR for name in _FILES]
    methods = [
        method
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    ]
    return list(dict.fromkeys(method.input_type._concrete_class for method in methods))


REQUESTS: Final = _request_kinds()


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


def fuzz_drpc_frames(data: bytes) -> None:
    """Any bytes to both ends of a connection: no bug shows, and all memory comes back.

    Frames become the same packets however the network cuts them.
    """
    at_once, sent = 1 + data[0] if data else 1, data[1:]
    assert _received(sent, 1 << 14) == _received(sent, at_once)
    run_in_loop(serve_bytes(sent, at_once))
    run_in_loop(answer_bytes(sent, at_once))


def _received(data: bytes, at_once: int) -> tuple[list[tuple[int, int, bytes]], str]:
    """Return the packets of what is received in pieces, and the error that ends them."""
    memory = ReceiveMemory(1 << 20)
    connection = Recording(memory)
    run_in_loop(feed(connection, data, at_once))
    assert memory.used == 0
    return connection.packets, connection.reason


def fuzz_drpc_bodies(data: bytes) -> None:
    """The bodies of metadata and errors: read, or refused."""
    try:
        metadata = wire.decode_metadata(data)
    except FrameError:
        pass
    else:
        assert all(type(text) is str for pair in metadata.items() for text in pair)
    for details in (None, data):
        error = wire.decode_error(data, details)
        assert error.refusal is None or isinstance(error.refusal, MillraceError)


def fuzz_requests(data: bytes) -> None:
    """The request of any call: refused, or what protobuf reads, with no more entries than allowed.

    The first byte chooses the call.
    """
    kind, body = REQUESTS[data[0] % len(REQUESTS)] if data else REQUESTS[0], data[1:]
    try:
        request = decode_request(kind, body, _ENTRIES_MAX)
    except MalformedRequestError:
        return
    for (depth, _), count in _entries(request).items():
        assert count <= _ENTRIES_MAX * (NUMBERS_PER_ENTRY if depth else 1)


def _entries(message: Message, path: str = "", depth: int = 0) -> Counter[tuple[int, str]]:
    """Count the entries of each list of a message, by its place."""
    found: Counter[tuple[int, str]] = Counter()
    for described, value in message.ListFields():
        name, inner = f"{path}.{described.name}", []
        if described.is_repeated:
            found[depth, name] += len(value)
            if described.message_type and not described.message_type.GetOptions().map_entry:
                inner = list(value)
        elif described.message_type:
            inner = [value]
        for each in inner:
            found += _entries(each, name, depth + 1)
    return found


def fuzz_call_metadata(data: bytes) -> None:
    """Client id and token of a call: none, refused, or one that keeps its rules.

    A line is a value; an odd first byte makes it a header of the token.
    """
    metadata: list[tuple[str, str | bytes]] = []
    for line in data.split(b"\n"):
        key = "authorization" if line[:1] and line[0] & 1 else "millrace-client-id"
        is_text = not line[:1] or line[0] & 2
        metadata.append((key, line[1:].decode("latin-1") if is_text else line[1:]))
    keys = [key for key, _ in metadata]
    try:
        token = bearer_token(metadata)
    except RefusedCredentialError:
        assert "authorization" in keys
    else:
        assert (token is None) is ("authorization" not in keys)
        assert token is None or not token_problem(token)
    try:
        client_id = client_id_from_metadata(metadata)
    except MalformedRequestError:
        return
    assert not client_id or not client_id_problem(client_id)
