"""Calls over DRPC, between its two ends and by hand, over real sockets."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.fakes.certificate_files import CertificateFiles
from tests.fakes.until import until

from millrace.core.errors import (
    Appended,
    AuthenticationFailedError,
    BrokerShuttingDownError,
    MalformedRequestError,
    NotLeaderError,
)
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.calls import CallError, ServerCall, Status
from millrace.runtime.transport.credentials import (
    ClientCredentials,
    ServerCredentials,
    TlsFiles,
)
from millrace.runtime.transport.drpc import client, wire
from millrace.runtime.transport.drpc.connector import Connector
from millrace.runtime.transport.drpc.server import DrpcServer
from millrace.runtime.transport.drpc.wire import Kind
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.frames import Hold, ReadAhead
from millrace.runtime.transport.receive_memory import ReceiveMemory
from millrace.runtime.transport.served_connections import ServerLimits

CONNECTION = ConnectionLimits(message_bytes_max=1 << 20, keepalive_ms=0, dead_after_ms=5000)
LIMITS = ServerLimits(
    connection=CONNECTION,
    connections_max=10,
    connections_per_host_max=10,
    received_bytes_max=4 << 20,
    silence_ms_max=10_000,
    idle_ms_max=-1,
    age_ms_max=-1,
    message_ms_max=10_000,
)
DEADLINE_S = 10


async def echo(call: ServerCall) -> None:
    """Send every message back."""
    while (message := await call.read()) is not None:
        await call.write(message)


async def refuse(call: ServerCall) -> None:
    raise NotLeaderError("ask another broker", appended=Appended.NO)


async def refuse_at_length(call: ServerCall) -> None:
    raise NotLeaderError("no" * 10_000, appended=Appended.NO)


async def shout(call: ServerCall) -> None:
    """Answer without end."""
    while True:
        await call.write(bytes(1 << 20))


async def fail(call: ServerCall) -> None:
    raise RuntimeError("a bug")


async def who(call: ServerCall) -> None:
    """Answer with the caller's metadata."""
    await call.read()
    await call.write(repr(sorted(call.metadata)).encode())


async def wait(call: ServerCall) -> None:
    await asyncio.Event().wait()


async def take_one(call: ServerCall) -> None:
    """Take a message, and wait, as for a quota."""
    await call.read()
    await asyncio.Event().wait()


METHODS: dict[str, Callable[[ServerCall], Awaitable[None]]] = {
    "/t.T/Echo": echo,
    "/t.T/Refuse": refuse,
    "/t.T/RefuseAtLength": refuse_at_length,
    "/t.T/Shout": shout,
    "/t.T/Fail": fail,
    "/t.T/Who": who,
    "/t.T/Wait": wait,
    "/t.T/TakeOne": take_one,
}


class Served:
    """A server, and what it told."""

    def __init__(self, limits: ServerLimits) -> None:
        self.failures: list[BaseException] = []
        self.ended: list[tuple[str, str]] = []
        self.server = DrpcServer(
            limits,
            status_of=lambda _: Status.UNAVAILABLE,
            on_failure=self.failures.append,
            on_ended=lambda address, reason: self.ended.append((address, reason)),
        )
        self.address = f"127.0.0.1:{self.server.bind('127.0.0.1:0')}"

    async def connect(self, limits: ConnectionLimits = CONNECTION) -> client.DrpcConnection:
        """Open a connection to it."""
        return await client.connect(
            self.address, limits, ahead=ReadAhead(), memory=ReceiveMemory(8 << 20)
        )

    async def by_hand(self) -> "ByHand":
        """Open a connection whose bytes the test writes."""
        name, port = self.address.split(":")
        reader, writer = await asyncio.open_connection(name, int(port))
        return ByHand(reader, writer)


class ByHand:
    """A connection whose frames are written, and read, one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, *frames: bytes) -> None:
        """Write bytes."""
        self._writer.write(b"".join(frames))

    async def packet(self) -> tuple[int, int, bytes]:
        """Return the next packet: its kind, its stream, its body."""
        data = b""
        async with asyncio.timeout(DEADLINE_S):
            while (header := wire.parse_header(data, 0, len(data))) is None:
                data += await self._reader.readexactly(1)
            body = await self._reader.readexactly(header.length)
        return header.kind, header.stream, body

    async def end(self) -> bytes:
        """Return what still comes until the server closes the connection."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""
            finally:
                self.close()

    async def drain(self) -> None:
        """Return when the system has taken what was sent."""
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(limits: ServerLimits = LIMITS) -> AsyncIterator[Served]:
    the = Served(limits)
    the.server.methods.update(METHODS)
    await the.server.serve()
    watching = asyncio.create_task(the.server.watch())
    try:
        yield the
    finally:
        watching.cancel()
        await the.server.stop(0)
        assert the.server.memory.used == 0, "what arrived is given back"


def frame(kind: int, stream: int, message: int, body: bytes = b"", **more: Any) -> bytes:
    """Return a packet of one frame."""
    return wire.frame_header(kind, stream, message, len(body), **more) + body


def invoke(method: str, stream: int = 1, message: int = 1) -> bytes:
    """Return the packet that begins a call."""
    return frame(Kind.INVOKE, stream, message, method.encode())


# --- Calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 65_536, 1 << 20])
async def test_messages_of_every_size_go_both_ways(size: int) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with serving() as the:
        connection = await the.connect()
        stream = connection.stream("/t.T/Echo", {})
        for _ in range(3):
            await stream.write(message[: size // 2], message[size // 2 :])
            assert bytes(await stream.read() or b"") == message
        await stream.end_writing()
        assert await stream.read() is None
        connection.close()


async def test_a_connection_carries_one_call_after_another() -> None:
    async with serving() as the:
        connection = await the.connect()
        for number in range(5):
            answer = await client.call(connection, "/t.T/Echo", b"%d" % number, {})
            assert answer == b"%d" % number
        assert connection.is_free
        connection.close()


async def test_metadata_come_with_the_call_they_were_sent_for_alone() -> None:
    async with serving() as the:
        connection = await the.connect()
        said = await client.call(connection, "/t.T/Who", b"", {"millrace-client-id": "a"})
        assert said == b"[('millrace-client-id', 'a')]"
        assert await client.call(connection, "/t.T/Who", b"", {}) == b"[]"
        connection.close()


async def test_a_refusal_names_its_error_as_over_grpc() -> None:
    async with serving() as the:
        connection = await the.connect()
        with pytest.raises(CallError) as failed:
            await client.call(connection, "/t.T/Refuse", b"", {})
        assert failed.value.status is Status.UNAVAILABLE
        assert isinstance(failed.value.refusal, NotLeaderError)
        assert failed.value.refusal.message == "ask another broker"
        assert failed.value.refusal.appended is Appended.NO
        assert await client.call(connection, "/t.T/Echo", b"x", {}) == b"x", "it goes on"
        connection.close()


async def test_an_unknown_method_is_unimplemented() -> None:
    async with serving() as the:
        connection = await the.connect()
        with pytest.raises(CallError, match="unknown rpc") as failed:
            await client.call(connection, "/t.T/Nothing", b"", {})
        assert failed.value.status is Status.UNIMPLEMENTED
        connection.close()


async def test_a_bug_in_a_handler_is_told_and_ends_one_call_alone() -> None:
    async with serving() as the:
        connection = await the.connect()
        with pytest.raises(CallError) as failed:
            await client.call(connection, "/t.T/Fail", b"", {})
        assert failed.value.status is Status.INTERNAL
        assert [str(failure) for failure in the.failures] == ["a bug"]
        assert await client.call(connection, "/t.T/Echo", b"x", {}) == b"x"
        connection.close()


async def test_a_call_ends_when_the_time_that_its_caller_allows_is_over() -> None:
    async with serving() as the:
        connection = await the.connect()
        with pytest.raises(CallError) as failed:
            await client.call(connection, "/t.T/Wait", b"", {wire.DEADLINE: "50"})
        assert failed.value.status is Status.DEADLINE_EXCEEDED
        connection.close()


async def test_what_the_server_had_not_answered_when_the_connection_broke_fails() -> None:
    async with serving() as the:
        connection = await the.connect()
        stream = connection.stream("/t.T/Wait", {})
        await stream.write(b"x")
        await until(lambda: any(served.call for served in the.server.connections))
        for served in list(the.server.connections):
            served.abort("the test ends it")
        with pytest.raises(CallError) as failed:
            await stream.read()
        assert failed.value.status is Status.UNAVAILABLE


async def test_a_slow_handler_stops_the_sender_and_holds_a_bounded_number_of_bytes() -> None:
    async with serving() as the:
        connection = await the.connect()
        stream = connection.stream("/t.T/Wait", {})

        async def write() -> None:
            for _ in range(200):
                await stream.write(bytes(1 << 20))

        writing = asyncio.create_task(write())
        await until(lambda: not connection.is_writable)
        await asyncio.sleep(0.1)
        assert not writing.done()
        assert the.server.memory.used <= 3 << 20
        writing.cancel()
        connection.abort("the test ends it")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_calls_go_over_tls_and_none_in_plain_text(tmp_path: Path, loop: str) -> None:
    files = CertificateFiles(tmp_path).make("test", "127.0.0.1")
    for_server = ServerCredentials(replace(files, ca=""), print)
    for_client = ClientCredentials(TlsFiles(ca=files.ca), print).context

    async def test() -> None:
        the = Served(LIMITS)
        the.server.methods.update(METHODS)
        await the.server.serve(for_server)
        connection = await client.connect(
            the.address,
            CONNECTION,
            ahead=ReadAhead(),
            memory=ReceiveMemory(8 << 20),
            tls=for_client,
        )
        for size in (0, 100, 70_000, 1 << 20):
            message = bytes(range(256)) * (size // 256)
            assert await client.call(connection, "/t.T/Echo", message, {}) == message
        plain = await the.by_hand()
        plain.send(invoke("/t.T/Echo"), frame(Kind.MESSAGE, 1, 2, b"x"))
        assert b"x" not in await plain.end()
        connection.close()
        await the.server.stop(0)

    if loop == "uvloop":
        uvloop.run(test())
    else:
        asyncio.run(test())


# --- By hand -------------------------------------------------------------------------------------


async def test_a_new_call_ends_the_one_before_and_begins_after_its_handler() -> None:
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Wait"), frame(Kind.MESSAGE, 1, 2, b"lost"))
        peer.send(invoke("/t.T/Echo", 2), frame(Kind.MESSAGE, 2, 2, b"kept"))
        assert await peer.packet() == (Kind.MESSAGE, 2, b"kept")
        peer.close()


@pytest.mark.parametrize("kind", [Kind.CANCEL, Kind.CLOSE])
async def test_a_call_that_is_given_up_ends_at_once_and_its_connection_goes_on(kind: Kind) -> None:
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Wait"))
        await until(lambda: any(served.call for served in the.server.connections))
        peer.send(frame(kind, 1, 2))
        (served,) = the.server.connections
        await until(lambda: served.call is None)
        peer.send(invoke("/t.T/Echo", 2), frame(Kind.MESSAGE, 2, 2, b"x"))
        assert await peer.packet() == (Kind.MESSAGE, 2, b"x")
        peer.close()


async def test_packets_of_a_call_that_has_ended_are_ignored() -> None:
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Refuse"))
        assert (await peer.packet())[0] == Kind.ERROR_DETAILS
        assert (await peer.packet())[0] == Kind.ERROR
        peer.send(frame(Kind.MESSAGE, 1, 2, b"late"), frame(Kind.CLOSE, 1, 3))
        peer.send(invoke("/t.T/Echo", 2), frame(Kind.MESSAGE, 2, 2, b"x"))
        assert await peer.packet() == (Kind.MESSAGE, 2, b"x")
        peer.close()


@pytest.mark.parametrize("byte_by_byte", [False, True])
async def test_a_packet_may_come_in_several_frames_and_a_frame_in_several_parts(
    byte_by_byte: bool,
) -> None:
    first = bytearray(frame(Kind.MESSAGE, 1, 2, b"ab"))
    first[0] &= ~1  # Not the last frame.
    sent = invoke("/t.T/Echo") + bytes(first) + frame(Kind.MESSAGE, 1, 2, b"cd")
    async with serving() as the:
        peer = await the.by_hand()
        for part in [sent[at : at + 1] for at in range(len(sent))] if byte_by_byte else [sent]:
            peer.send(part)
            await asyncio.sleep(0)
        assert await peer.packet() == (Kind.MESSAGE, 1, b"abcd")
        peer.close()


async def test_a_greater_id_drops_a_packet_that_did_not_end() -> None:
    first = bytearray(frame(Kind.MESSAGE, 1, 2, b"dropped"))
    first[0] &= ~1
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"), bytes(first), frame(Kind.MESSAGE, 1, 3, b"x"))
        assert await peer.packet() == (Kind.MESSAGE, 1, b"x")
        peer.close()


async def test_an_unknown_kind_is_ignored_where_it_says_so() -> None:
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"), frame(60, 1, 2, b"news", is_ignorable=True))
        peer.send(frame(Kind.MESSAGE, 1, 3, b"x"))
        assert await peer.packet() == (Kind.MESSAGE, 1, b"x")
        peer.close()


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (invoke("/t.T/Echo") + frame(60, 1, 2, b"news"), "kind 60"),
        (invoke("/t.T/Echo", 2) + frame(Kind.MESSAGE, 1, 2), "go back"),
        (invoke("/t.T/Echo") + frame(Kind.MESSAGE, 1, 1), "go back"),
        (frame(Kind.INVOKE, 0, 1), "go back"),
        (frame(Kind.MESSAGE, 1, 1, b"x"), "not invoked"),
        (invoke("/t.T/Echo") + invoke("/t.T/Echo", 1, 2), "twice"),
        (b"\x03" + b"\xff" * 30, "64 bits"),
        (b"\x05\x01\x01" + b"\xff\xff\xff\xff\x07", "allowed"),
        (b"\x04\x01\x02\x00" * 100, "small frames"),
        (frame(Kind.METADATA, 1, 1, b"\xff\xff"), "no protobuf"),
        (frame(Kind.METADATA, 1, 1, bytes(20_000)), "20000 bytes"),
        (invoke("x" * 300), "300 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n" * 9, ""),
    ],
)
async def test_a_peer_that_breaks_the_rules_is_cut_off_and_others_are_not(
    sent: bytes, why: str
) -> None:
    async with serving() as the:
        other = await the.connect()
        peer = await the.by_hand()
        peer.send(sent)
        await peer.end()
        await until(lambda: len(the.ended) == 1)
        assert why in the.ended[0][1]
        assert await client.call(other, "/t.T/Echo", b"x", {}) == b"x"
        other.close()


async def test_a_call_that_has_ended_gets_no_endless_packets() -> None:
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Refuse"))
        await peer.packet()
        await peer.packet()
        peer.send(b"".join(frame(Kind.MESSAGE, 1, number) for number in range(2, 2000)))
        await peer.end()
        assert "in vain" in the.ended[0][1]


@pytest.mark.parametrize(
    "in_vain",
    [
        lambda number: frame(60, 1, number, b"", is_ignorable=True),
        lambda number: frame(Kind.KEEP_ALIVE, 1, number, is_ignorable=True),
        lambda number: bytes([frame(Kind.MESSAGE, 1, number)[0] & ~1]) + frame(2, 1, number)[1:],
        lambda number: frame(Kind.METADATA, number, 1),
        lambda number: invoke("/t.T/Nothing", number),
    ],
    ids=["unknown kinds", "signs of life", "packets without end", "metadata", "unknown methods"],
)
async def test_a_connection_that_sends_in_vain_without_end_is_cut_off(
    in_vain: Callable[[int], bytes],
) -> None:
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"), *(in_vain(number) for number in range(2, 3000)))
        await peer.end()
        assert "in vain" in the.ended[0][1]


async def test_signs_of_life_over_a_long_time_end_no_connection() -> None:
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"))
        for begin in range(2, 2000, 500):
            numbers = range(begin, begin + 499)
            signs = (frame(Kind.KEEP_ALIVE, 1, number, is_ignorable=True) for number in numbers)
            peer.send(*signs, frame(Kind.MESSAGE, 1, begin + 499, b"x"))
            assert await peer.packet() == (Kind.MESSAGE, 1, b"x")
            (served,) = the.server.connections
            served._vain_since_ms -= 20_000  # As if so much time had passed.
        peer.close()


async def test_who_never_reads_its_answers_is_not_read_either() -> None:
    async with serving(replace(LIMITS, connections_max=1)) as the:
        peer = await the.by_hand()

        async def send_without_end() -> None:
            for number in itertools.count(1):
                peer.send(invoke("/t.T/RefuseAtLength", number))
                await peer.drain()
                await asyncio.sleep(0.001)  # A new call would end the one before.

        sending = asyncio.create_task(send_without_end())
        await until(lambda: the.server.connections)
        (served,) = the.server.connections
        await until(lambda: not served.is_writable)
        await until(lambda: served.is_holding)
        await asyncio.sleep(0.2)
        assert served.transport.get_write_buffer_size() < 2 << 20
        sending.cancel()
        peer.abort()


async def test_many_small_frames_in_a_row_leave_others_their_turn() -> None:
    async with serving() as the:
        peer = await the.by_hand()
        turns = 0
        peer.send(invoke("/t.T/Echo"))
        first = b"".join(unfinished(Kind.MESSAGE, 1, number) for number in range(2, 900))
        await until(lambda: the.server.connections)
        (served,) = the.server.connections
        peer.send(first)
        while served._message < 899:
            await asyncio.sleep(0)
            turns += served._message not in (0, 1, 899)
        assert turns >= 2
        peer.close()


# --- Memory --------------------------------------------------------------------------------------


def unfinished(kind: int, stream: int, message: int, body: bytes = b"") -> bytes:
    """Return a frame that is not the last one of its packet."""
    made = bytearray(frame(kind, stream, message, body))
    made[0] &= ~1
    return bytes(made)


@pytest.mark.parametrize("in_one_frame", [False, True])
async def test_half_messages_of_many_connections_stay_within_the_bound_and_small_ones_pass(
    in_one_frame: bool,
) -> None:
    half = 700 << 10
    if in_one_frame:
        sent = frame(Kind.MESSAGE, 1, 2, bytes(1 << 20))[:half]
    else:
        sent = b"".join([unfinished(Kind.MESSAGE, 1, 2, bytes(8000))] * (half // 8000))
    many = replace(LIMITS, connections_max=30, connections_per_host_max=30)
    async with serving(many) as the:
        honest = await the.connect()
        peers = [await the.by_hand() for _ in range(20)]
        for peer in peers:
            peer.send(invoke("/t.T/Echo"), sent)
        half_of_the_pool = LIMITS.received_bytes_max // 2  # They come from one address.
        await until(lambda: the.server.memory.used >= half_of_the_pool)
        for _ in range(5):
            assert await client.call(honest, "/t.T/Echo", b"small", {}) == b"small"
            await asyncio.sleep(0.02)
        assert the.server.memory.used <= half_of_the_pool + (1 << 20) + 21 * (16 << 10)
        for peer in peers:
            peer.close()
        await until(lambda: not the.server.memory.used)
        large = bytes(1 << 20)
        assert await client.call(honest, "/t.T/Echo", large, {}) == large
        honest.close()


async def test_messages_that_wait_for_memory_all_arrive() -> None:
    """Each of them alone is a quarter of the pool, and they come at the same time."""
    async with serving(replace(LIMITS, received_bytes_max=1 << 20)) as the:
        large = bytes(1 << 20)
        connections = [await the.connect() for _ in range(8)]

        async def ask(connection: client.DrpcConnection) -> None:
            assert await client.call(connection, "/t.T/Echo", large, {}) == large
            connection.close()

        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*map(ask, connections))


async def test_messages_that_handlers_leave_in_the_pool_hold_up_no_other_connection() -> None:
    large = bytes(1 << 20)
    async with serving(LIMITS) as the:
        delayed = [await the.by_hand() for _ in range(4)]
        for peer in delayed:
            sent = [frame(Kind.MESSAGE, 1, number, large) for number in (2, 3, 4)]
            peer.send(invoke("/t.T/TakeOne"), *sent)
        half_of_the_pool = LIMITS.received_bytes_max // 2  # They come from one address.
        await until(lambda: the.server.memory.used >= half_of_the_pool)
        honest = await the.connect()
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(3):
                assert await client.call(honest, "/t.T/Echo", large, {}) == large
        honest.close()
        for peer in delayed:
            peer.close()


async def test_a_slow_sender_is_cut_while_others_wait_for_memory_and_they_are_not() -> None:
    tight = replace(LIMITS, received_bytes_max=256 << 10, message_ms_max=600_000)
    async with serving(tight) as the:
        slow = await the.by_hand()
        slow.send(invoke("/t.T/Echo"), frame(Kind.MESSAGE, 1, 2, bytes(1 << 20))[: 130 << 10])
        await until(lambda: the.server.memory.used > 129 << 10)
        honest = await the.connect(replace(CONNECTION, dead_after_ms=60_000))
        large = bytes(900 << 10)
        async with asyncio.timeout(2 * DEADLINE_S):
            assert await client.call(honest, "/t.T/Echo", large, {}) == large
        assert [reason for _, reason in the.ended] == ["a message arrives too slowly"]
        slow.close()
        honest.close()


# --- Connections ---------------------------------------------------------------------------------


async def test_a_connection_without_a_call_is_closed_and_so_is_a_frame_that_does_not_end() -> None:
    async with serving(replace(LIMITS, silence_ms_max=1000, message_ms_max=1000)) as the:
        silent, slow, used = await the.by_hand(), await the.by_hand(), await the.connect()
        stream = used.stream("/t.T/Echo", {})
        slow.send(invoke("/t.T/Echo"), frame(Kind.MESSAGE, 1, 2, bytes(100))[:50])
        assert await silent.end() == b""
        assert await slow.end() == b""
        assert sorted(reason for _, reason in the.ended) == [
            "a message arrives too slowly",
            "it has made no call",
        ]
        await stream.write(b"x")
        assert await stream.read() == b"x"
        used.close()


async def knows_friends(call: ServerCall, method: str) -> None:
    """Who knows the word is no stranger."""
    assert method in METHODS
    await asyncio.sleep(0.05)
    if ("word", "friend") not in call.metadata:
        raise AuthenticationFailedError("say the word")
    call.on_known()


def metadata_packet(word: str, stream: int = 1) -> bytes:
    return frame(Kind.METADATA, stream, 1, wire.encode_metadata({"word": word}))


async def test_of_a_stranger_s_call_nothing_is_read_and_its_connection_ends() -> None:
    async with serving() as the:
        the.server.admit = knows_friends
        peer = await the.by_hand()
        message = frame(Kind.MESSAGE, 1, 3, bytes(1 << 20))
        peer.send(metadata_packet("foe"), invoke("/t.T/Echo", message=2), message)
        await until(lambda: bool(the.server.connections))
        await asyncio.sleep(0.02)
        assert the.server.memory.used == 0, "it is not known yet"
        assert b"say the word" in await peer.end()
        assert not the.server.strangers


async def test_what_came_before_a_caller_was_known_is_read_then() -> None:
    async with serving() as the:
        the.server.admit = knows_friends
        connection = await the.connect()
        message = bytes(300_000)
        assert await client.call(connection, "/t.T/Echo", message, {"word": "friend"}) == message
        assert await client.call(connection, "/t.T/Echo", b"x", {}) == b"x", "it is known"
        assert not the.server.strangers
        connection.close()


async def test_a_stranger_may_not_send_large_metadata_nor_name_unknown_methods() -> None:
    async with serving() as the:
        the.server.admit = knows_friends
        large, unknown = await the.by_hand(), await the.by_hand()
        large.send(wire.frame_header(Kind.METADATA, 1, 1, wire.METADATA_BYTES_MAX + 1))
        unknown.send(invoke("/t.T/None"))
        assert await large.end() == b""
        assert b"unknown rpc" in await unknown.end()


async def test_a_connection_by_which_nobody_becomes_known_is_closed_in_time() -> None:
    async def never(call: ServerCall, method: str) -> None:
        await asyncio.Event().wait()

    async with serving(replace(LIMITS, silence_ms_max=1000)) as the:
        the.server.admit = never
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"))
        await peer.end()
        assert [reason for _, reason in the.ended] == ["it has not proved who calls"]


async def test_the_oldest_strangers_go_where_there_are_too_many() -> None:
    async with serving(replace(LIMITS, unknown_max=2)) as the:
        known = await the.connect()
        assert await client.call(known, "/t.T/Echo", b"x", {}) == b"x"
        oldest = await the.by_hand()
        await until(lambda: len(the.server.connections) == 2)
        others = [await the.by_hand() for _ in range(2)]
        assert await oldest.end() == b""
        assert len(the.server.strangers) == len(others)
        assert await client.call(known, "/t.T/Echo", b"x", {}) == b"x"
        known.close()
        for peer in others:
            peer.close()


async def test_an_address_that_connects_too_often_is_refused_for_a_while() -> None:
    limits = replace(
        LIMITS, connections_max=100, connections_per_host_max=100, handshake_ms_max=500
    )
    async with serving(replace(limits, host_rate_max=20)) as the:
        peers = [await the.by_hand() for _ in range(20)]
        await until(lambda: len(the.ended) + len(the.server.connections) == 20)
        assert 10 <= len(the.server.connections) <= 14, "two at once, and ten on credit"
        assert await peers[-1].end() == b""
        await asyncio.sleep(0.6)
        again = await the.connect()
        assert await client.call(again, "/t.T/Echo", b"x", {}) == b"x"
        again.close()
        for peer in peers:
            peer.close()
        await until(lambda: not the.server.memory._hosts)


async def test_a_connection_that_is_gone_lets_go_of_its_transport() -> None:
    """TLS has half a megabyte for each, and the connection stays until garbage is collected."""
    async with serving() as the:
        peer = await the.by_hand()
        await until(lambda: bool(the.server.connections))
        (served,) = the.server.connections
        transport = served.transport
        peer.close()
        await until(lambda: served.transport is not transport)
        assert served.transport.is_closing()


async def test_a_machine_that_lives_and_does_not_read_for_long_keeps_its_connection() -> None:
    async with serving() as the:
        connection = await the.connect(replace(CONNECTION, dead_after_ms=1000))
        stream = connection.stream("/t.T/Wait", {})
        while connection.is_writable:
            await asyncio.wait({asyncio.ensure_future(stream.write(bytes(1 << 20)))}, timeout=0.2)
        await asyncio.sleep(2.5)
        assert not connection.is_closed
        connection.abort("the test ends it")


async def test_a_machine_that_acknowledges_nothing_is_given_up() -> None:
    class Nothing:
        def is_dead(self, now_ms: int) -> bool:
            return True

    async with serving() as the:
        connection = await the.connect(replace(CONNECTION, dead_after_ms=300))
        connection._acknowledgements = Nothing()  # type: ignore[assignment]
        stream = connection.stream("/t.T/Wait", {})
        with pytest.raises(CallError, match="acknowledges nothing"):
            await asyncio.wait_for(stream.read(), DEADLINE_S)


async def test_who_reads_nothing_of_its_answers_for_long_is_cut() -> None:
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Shout"))
        await until(lambda: any(not served.is_writable for served in the.server.connections))
        await asyncio.sleep(0.1)
        (served,) = the.server.connections
        now_ms = monotonic_now()
        assert served.reason_to_close(now_ms, LIMITS) == ""
        assert served.reason_to_close(now_ms + 59_000, LIMITS) == ""
        assert "does not read" in served.reason_to_close(now_ms + 61_000, LIMITS)
        peer.abort()


async def test_a_message_whose_frames_end_and_which_does_not_is_cut_as_well() -> None:
    async with serving(replace(LIMITS, message_ms_max=1000)) as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"), unfinished(Kind.MESSAGE, 1, 2, bytes(5000)))
        await peer.end()
        assert [reason for _, reason in the.ended] == ["a message arrives too slowly"]


async def test_a_large_message_has_the_time_of_its_bytes_at_64_kib_a_second() -> None:
    async with serving() as the:
        peer = await the.by_hand()
        sent = invoke("/t.T/Echo") + frame(Kind.MESSAGE, 1, 2, bytes(1 << 20))[: 640 << 10]
        peer.send(sent)
        await until(lambda: any(it.received_bytes == len(sent) for it in the.server.connections))
        (served,) = the.server.connections
        now_ms = monotonic_now()
        allowed_ms = LIMITS.message_ms_max + 10_000
        assert served.reason_to_close(now_ms + allowed_ms - 2000, LIMITS) == ""
        assert "too slowly" in served.reason_to_close(now_ms + allowed_ms + 2000, LIMITS)
        peer.abort()


async def test_a_connection_that_ignores_its_greatest_age_is_cut() -> None:
    async with serving(replace(LIMITS, age_ms_max=1000)) as the:
        connection = await the.connect()
        connection.stream("/t.T/Echo", {})
        await until(lambda: connection.is_draining)
        (served,) = the.server.connections
        now_ms = monotonic_now()
        assert served.reason_to_close(now_ms, LIMITS) == ""
        assert "asked to" in served.reason_to_close(now_ms + 61_000, LIMITS)
        connection.abort("the test ends it")


async def test_a_connection_is_idle_after_its_last_call() -> None:
    async with serving(replace(LIMITS, idle_ms_max=1000)) as the:
        connection = await the.connect()
        assert await client.call(connection, "/t.T/Echo", b"x", {}) == b"x"
        await until(lambda: connection.is_closed)
        assert [reason for _, reason in the.ended] == ["it is idle"]


@pytest.mark.parametrize(
    "limits",
    [replace(LIMITS, connections_max=2), replace(LIMITS, connections_per_host_max=2)],
    ids=["of all", "of one host"],
)
async def test_connections_are_bounded_and_those_in_use_stay(limits: ServerLimits) -> None:
    async with serving(limits) as the:
        used = [await the.connect() for _ in range(2)]
        streams = [connection.stream("/t.T/Echo", {}) for connection in used]
        await until(lambda: all(served.call for served in the.server.connections))
        refused = await the.by_hand()
        assert await refused.end() == b""
        for stream in streams:
            await stream.write(b"x")
            assert await stream.read() == b"x"
        for connection in used:
            connection.close()
        await until(lambda: not the.server.memory._hosts)


async def test_where_connections_are_short_the_idle_one_makes_room() -> None:
    async with serving(replace(LIMITS, connections_max=1)) as the:
        idle = await the.connect()
        await client.call(idle, "/t.T/Echo", b"x", {})
        another = await the.connect()
        assert await client.call(another, "/t.T/Echo", b"y", {}) == b"y"
        assert idle.is_closed
        another.close()


async def test_a_connection_of_the_greatest_age_is_drained_without_losing_an_answer() -> None:
    async with serving(replace(LIMITS, age_ms_max=1000)) as the:
        connection = await the.connect()
        stream = connection.stream("/t.T/Echo", {})
        asked = asyncio.Event()
        stream.on_draining = asked.set
        await asyncio.wait_for(asked.wait(), DEADLINE_S)
        await stream.write(b"unanswered")
        await stream.end_writing()
        assert await stream.read() == b"unanswered"
        assert await stream.read() is None
        await until(lambda: connection.is_closed)


async def test_a_call_that_begins_as_the_server_begins_to_drain_is_answered() -> None:
    async with serving() as the:
        connection = await the.connect()
        assert await client.call(connection, "/t.T/Who", b"", {}) == b"[]"
        for served in the.server.connections:
            served.drain()
        stream = connection.stream("/t.T/Echo", {})
        await stream.write(b"crossing")
        assert await asyncio.wait_for(stream.read(), DEADLINE_S) == b"crossing"
        assert stream.is_draining
        await stream.end_writing()
        assert await stream.read() is None
        await until(lambda: connection.is_closed)


async def test_a_client_that_has_no_call_goes_when_it_is_asked_to() -> None:
    async with serving() as the:
        connection = await the.connect()
        assert await client.call(connection, "/t.T/Echo", b"x", {}) == b"x"
        connection.on_packet(Kind.DRAIN, 1, b"")
        assert connection.transport.is_closing()


async def test_a_client_that_does_not_hear_that_it_should_go_is_closed() -> None:
    async with serving(replace(LIMITS, age_ms_max=0)) as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"), frame(Kind.CLOSE_SEND, 1, 2))
        assert (await peer.packet())[0] == Kind.CLOSE_SEND
        assert (await peer.packet())[0] == Kind.DRAIN
        assert await peer.end() == b""


async def test_a_server_that_stops_answers_what_it_has_and_refuses_new_calls() -> None:
    async with serving() as the:
        connection = await the.connect()
        stream = connection.stream("/t.T/Echo", {})
        await stream.write(b"x")
        assert await stream.read() == b"x"
        the.server.stop_accepting()
        await until(lambda: stream.is_draining)
        await stream.end_writing()
        assert await stream.read() is None
        await until(lambda: connection.is_closed)
        with pytest.raises(ConnectionRefusedError):
            await the.connect()


async def test_a_call_on_an_old_connection_of_a_server_that_stops_is_refused_as_not_begun() -> None:
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"), frame(Kind.CLOSE_SEND, 1, 2))
        assert (await peer.packet())[0] == Kind.CLOSE_SEND
        the.server.stop_accepting()
        assert (await peer.packet())[0] == Kind.DRAIN
        peer.send(invoke("/t.T/Echo", 2))
        (_, _, details), (_, _, said) = await peer.packet(), await peer.packet()
        refusal = wire.decode_error(said, details).refusal
        assert isinstance(refusal, BrokerShuttingDownError)
        assert refusal.appended is Appended.NO
        peer.close()


# --- Who connects --------------------------------------------------------------------------------


def connector() -> Connector:
    return Connector(CONNECTION, received_bytes_max=1 << 20, client_id="c")


async def test_an_address_that_is_avoided_is_not_tried_and_one_that_is_away_is_tried_again() -> (
    None
):
    listening = host.current.bind("127.0.0.1:0")
    away = f"127.0.0.1:{listening.port}"
    listening.close()
    connecting = connector()
    assert await connecting.connect("") is None
    assert await connecting.connect(away) is None
    async with serving() as the:
        connection = await connecting.connect(the.address)
        assert connection is not None
        connecting.avoid(the.address)
        assert await connecting.connect(the.address) is None
        connection.close()


@pytest.mark.parametrize("method", ["/t.T/Echo", "/t.T/Refuse"])
async def test_a_stream_s_own_connection_ends_with_it(method: str) -> None:
    async with serving() as the:
        stream = await connector().stream(the.address, method)
        assert stream is not None
        await stream.end_writing()
        with contextlib.suppress(CallError):
            assert await stream.read() is None
        stream.cancel()
        await until(lambda: not the.server.connections)


async def test_what_came_before_a_stream_ended_is_read_though_its_connection_has_ended() -> None:
    async with serving() as the:
        stream = await connector().stream(the.address, "/t.T/Echo")
        assert stream is not None
        await stream.write(b"x")
        await stream.end_writing()
        await until(lambda: not the.server.connections)
        assert await stream.read() == b"x"
        assert await stream.read() is None


async def test_a_connection_that_drains_ends_with_its_call() -> None:
    async with serving() as the:
        connection = await the.connect()
        stream = connection.stream("/t.T/Echo", {})
        await stream.write(b"x")
        assert await stream.read() == b"x"
        connection.retire()  # As for certificates that are renewed.
        assert not connection.is_closed
        await stream.end_writing()
        assert await stream.read() is None
        await until(lambda: not the.server.connections)


async def test_an_address_that_takes_no_connection_is_soon_given_up() -> None:
    with socket.socket() as listening, contextlib.ExitStack() as waiting:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        name, port = listening.getsockname()
        for _ in range(3):  # Nobody accepts them, and there is no room for more.
            other = waiting.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex((name, port))
        began_ms = monotonic_now()
        assert await connector().connect(f"{name}:{port}") is None
        assert 200 <= monotonic_now() - began_ms < 5_000


async def test_an_address_that_says_nothing_is_soon_given_up() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await reader.read()

    async def greet(connection: client.DrpcConnection, metadata: Any) -> None:
        await client.call(connection, "/t.T/Echo", b"", metadata)

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(DEADLINE_S):
        assert await connector().connect(f"127.0.0.1:{port}", greet) is None
    server.close()


async def test_an_address_is_avoided_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting, now_s = connector(), host.monotonic_s()
    connecting.avoid("127.0.0.1:1")
    for later_s, tries in ((0, False), (59, False), (61, True)):
        monkeypatch.setattr(host, "monotonic_s", lambda later_s=later_s: now_s + later_s)
        assert connecting.tries("127.0.0.1:1") is tries


@pytest.mark.parametrize("stands_still", ["client", "server"])
async def test_a_process_that_stands_still_is_noticed_though_its_machine_answers(
    stands_still: str,
) -> None:
    often = replace(CONNECTION, keepalive_ms=200, dead_after_ms=300)
    async with serving(replace(LIMITS, connection=often)) as the:
        connection = await the.connect(often)
        stream = connection.stream("/t.T/Wait", {})
        await until(lambda: connection.received_bytes)
        (served,) = the.server.connections
        await until(lambda: served._peer_keepalive_ms)
        still, awake = (connection, served) if stands_still == "client" else (served, connection)
        still._ticking.cancel()  # type: ignore[union-attr]
        await until(lambda: awake.is_closed)
        with pytest.raises(CallError):
            await stream.read()


async def test_who_does_not_read_does_not_miss_signs_of_life() -> None:
    often = replace(CONNECTION, keepalive_ms=200, dead_after_ms=200)
    async with serving(replace(LIMITS, connection=often)) as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"), frame(Kind.KEEP_ALIVE, 1, 2, b"200", is_ignorable=True))
        await until(lambda: any(served._peer_keepalive_ms for served in the.server.connections))
        (served,) = the.server.connections
        served.hold_frames(Hold.MESSAGES)
        await asyncio.sleep(1)
        assert not served.is_closed
        served.take_frames(Hold.MESSAGES)
        await until(lambda: served.is_closed)
        peer.close()


async def test_every_byte_is_a_sign_of_life_and_the_end_of_all_is_noticed() -> None:
    often = replace(CONNECTION, keepalive_ms=200, dead_after_ms=500)
    async with serving(replace(LIMITS, connection=often)) as the:
        peer = await the.by_hand()
        peer.send(invoke("/t.T/Echo"), frame(Kind.KEEP_ALIVE, 1, 2, b"200", is_ignorable=True))
        message = frame(Kind.MESSAGE, 1, 3, bytes(100))
        for at in range(15):  # For twice as long as silence is allowed.
            peer.send(message[at : at + 1])
            await asyncio.sleep(0.1)
        assert the.server.connections
        await until(lambda: not the.server.connections)
        peer.close()


async def test_a_caller_may_ask_for_a_sign_of_life_more_often_than_the_server_gives_it() -> None:
    seldom = replace(CONNECTION, keepalive_ms=60_000)
    async with serving(replace(LIMITS, connection=seldom)) as the:
        connection = await the.connect()
        connection.stream("/t.T/Wait", {wire.KEEP_ALIVE: "1000"})
        await until(lambda: connection.received_bytes)
        assert connection._peer_keepalive_ms == 1000
        connection.close()


async def test_an_address_where_another_program_answers_is_no_use() -> None:
    async def say_no(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(say_no, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def greet(connection: client.DrpcConnection, metadata: Any) -> None:
        await client.call(connection, "/t.T/Echo", b"", metadata)

    assert await connector().stream(f"127.0.0.1:{port}", "/t.T/Echo", greet) is None
    server.close()


async def test_calls_carry_who_makes_them() -> None:
    async with serving() as the:
        stream = await connector().stream(the.address, "/t.T/Who")
        assert stream is not None
        await stream.write(b"")
        said = bytes(await stream.read() or b"")
        assert b"('millrace-client-id', 'c')" in said
        assert b"('user-agent', 'millrace-python/" in said
        stream.cancel()


def test_errors_that_a_broker_names_keep_their_kind() -> None:
    from millrace.proto.errors import error_to_bytes

    for error in (MalformedRequestError("m"), BrokerShuttingDownError("s")):
        body = wire.encode_error(Status.INTERNAL, error.message)
        found = wire.decode_error(body, error_to_bytes(error)).refusal
        assert type(found) is type(error)
        assert found.message == error.message
    assert wire.decode_error(bytes(8) + b"go says no", None).status is Status.UNKNOWN
