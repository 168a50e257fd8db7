"""The bare DRPC frames that are the carrier's ceiling."""

import random
import shutil
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from bench.peers.drpc_frames import PACKET_BYTES_MAX, Connection, FrameError, Kind
from bench.peers.raw_server import running_frames_server
from bench.sides import RawStream

Packet = tuple[Kind, bytes]


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.written += b"".join(parts)


def read_by(pieces: Iterable[bytes]) -> list[Packet]:
    """Return the packets of bytes that come in pieces."""
    packets: list[Packet] = []
    reader = Connection(lambda _, kind, body: packets.append((kind, bytes(body))))
    for piece in pieces:
        left = memoryview(piece)
        while left:
            buffer = reader.get_buffer(-1)
            count = min(len(buffer), len(left))
            buffer[:count] = left[:count]
            reader.buffer_updated(count)
            left = left[count:]
    return packets


def written(packets: Sequence[Packet]) -> bytes:
    """Return the bytes of packets on a connection."""
    wire = Wire()
    writer = Connection(lambda *_: None)
    writer.transport = wire  # type: ignore[assignment]
    for kind, body in packets:
        writer.send_packet(kind, body)
    return bytes(wire.written)


def test_a_call_begins_with_the_bytes_that_the_format_says() -> None:
    wire = Wire()
    client = Connection(lambda *_: None)
    client.transport = wire  # type: ignore[assignment]
    client.invoke("/a.B/C", {"k": "v"})
    client.send(b"x" * 300)
    assert wire.written == (
        b"\x0f\x01\x01\x08" + b"\x0a\x06\x0a\x01k\x12\x01v"
        b"\x03\x01\x02\x06" + b"/a.B/C"
        b"\x05\x01\x03\xac\x02" + b"x" * 300
    )  # fmt: skip


def test_packets_are_the_same_however_their_bytes_are_cut() -> None:
    rng = random.Random(5)
    sizes = [0, 1, 13, 127, 128, 1024, 1025, 16 << 10, 70_000]
    sent = [(Kind.MESSAGE, rng.randbytes(rng.choice(sizes))) for _ in range(400)]
    data = written(sent)
    assert read_by([data]) == sent
    cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(3000))})
    assert read_by(data[a:b] for a, b in pairwise(cuts)) == sent
    short = written(sent[:20])[:5000]
    assert read_by(bytes((byte,)) for byte in short) == read_by([short])


def test_frames_of_a_packet_are_joined_and_unknown_packets_that_may_be_ignored_are() -> None:
    frames = (
        b"\x04\x01\x01\x02ab" + b"\x05\x01\x01\x01c" + b"\xc1\x01\x02\x01?" + b"\x0d\x01\x03\x00"
    )
    assert read_by([frames]) == [(Kind.MESSAGE, b"abc"), (Kind.CLOSE_SEND, b"")]


@pytest.mark.parametrize(
    "frames",
    [
        b"\x41\x01\x01\x01?",
        b"\x05\x01\x02\x00\x05\x01\x01\x00",
        b"\x05\x01\x01\xff\xff\xff\xff\x0f",
    ],
    ids=["a kind that is not known", "ids that go back", "a length of 4 GB"],
)
def test_what_the_format_forbids_ends_the_connection(frames: bytes) -> None:
    assert PACKET_BYTES_MAX < 0xFFFFFFFF
    with pytest.raises(FrameError):
        read_by([frames])


@pytest.mark.parametrize("with_tls", [False, True])
def test_the_server_moves_messages_both_ways_one_call_after_another(
    tmp_path: Path, with_tls: bool
) -> None:
    if with_tls and shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    with running_frames_server(tmp_path, with_tls=with_tls) as server:
        for direction in ("fetch", "produce", "fetch"):
            run = RawStream(
                server=server, direction=direction, message_bytes=100_000, log=tmp_path / "log"
            )(0.5)
            assert run.moved.bytes == run.moved.records * 100_000 > 0
            assert run.moved.seconds >= 0.5
            assert run.moved.detail["cpu_seconds"] > 0
