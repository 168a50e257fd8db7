import contextlib
import gzip
import io
import os
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.errors import CorruptBatchError
from millrace.core.records.compression import CODEC_NAMES, Codec, Compressor, check_frames, inflate
from millrace.core.records.frames import ZSTD_WINDOW_BYTES

BODY = b"the same words again and again, " * 100
SKIPPABLE = struct.pack("<II", 0x184D2A53, 6) + b"hidden"


def stored_as(name: str, body: bytes = BODY, level: int | None = None) -> bytes:
    codec, stored = Compressor(name, level).compress(body)
    assert codec is Codec[name.upper()]
    return bytes(stored)


def changed(stored: bytes, at: int, bits: int) -> bytes:
    return stored[:at] + bytes([stored[at] | bits]) + stored[at + 1 :]


def streamed(name: str, body: bytes, pieces: int) -> bytes:
    """Return `body` as a stream that was flushed in between: its length is not said beforehand."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, name) as stream:
        size = len(body) // pieces + 1
        for at in range(0, len(body), size):
            stream.write(body[at : at + size])
            stream.flush()
    return bytes(out.getvalue())


@pytest.mark.parametrize("name", CODEC_NAMES)
@given(piece=st.binary(min_size=1, max_size=300), times=st.integers(1, 50))
def test_what_our_producers_compress_is_of_data_alone(name: str, piece: bytes, times: int) -> None:
    codec, stored = Compressor(name).compress(piece * times)
    check_frames(codec, stored, len(piece) * times)


@pytest.mark.parametrize(("name", "level"), [("zstd", 22), ("zstd", -5), ("lz4", 12), ("gzip", 9)])
def test_a_large_body_of_any_level_is_of_data_alone(name: str, level: int) -> None:
    body = (os.urandom(1 << 16) + bytes(1 << 16)) * 100
    codec, stored = Compressor(name, level).compress(body)
    check_frames(codec, stored, len(body))


@pytest.mark.parametrize("name", ["zstd", "lz4"])
@pytest.mark.parametrize("are_before", [True, False])
def test_bytes_that_readers_pass_over_are_refused(name: str, are_before: bool) -> None:
    stored = stored_as(name)
    hiding = SKIPPABLE + stored if are_before else stored + SKIPPABLE
    codec = Codec[name.upper()]
    assert bytes(inflate(codec, hiding, len(BODY))) == BODY, "else nobody has to refuse it"
    with pytest.raises(CorruptBatchError, match="frame of data"):
        check_frames(codec, hiding, len(BODY))


def test_a_name_in_a_gzip_member_is_refused() -> None:
    out = io.BytesIO()
    with gzip.GzipFile("name", "wb", fileobj=out) as file:
        file.write(BODY)
    assert bytes(inflate(Codec.GZIP, out.getvalue(), len(BODY))) == BODY
    with pytest.raises(CorruptBatchError, match="name"):
        check_frames(Codec.GZIP, out.getvalue(), len(BODY))


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_streams_of_several_frames_are_allowed(name: str) -> None:
    check_frames(Codec[name.upper()], stored_as(name) * 3, 3 * len(BODY))


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_frames_whose_length_is_not_said_beforehand_are_allowed(name: str) -> None:
    stored = streamed(name, BODY, pieces=7)
    assert bytes(inflate(Codec[name.upper()], stored, len(BODY))) == BODY
    check_frames(Codec[name.upper()], stored, len(BODY))


@pytest.mark.parametrize(
    ("name", "at", "bits", "about"),
    [
        ("zstd", 4, 0b1000, "bits that mean nothing"),
        ("zstd", 4, 0b1_0000, "bits that mean nothing"),
        ("zstd", 4, 0b1, "dictionary"),
        ("lz4", 4, 0b1, "dictionary"),
        ("lz4", 4, 0b10, "means nothing"),
    ],
)
def test_what_not_every_decoder_takes_is_refused(name: str, at: int, bits: int, about: str) -> None:
    with pytest.raises(CorruptBatchError, match=about):
        check_frames(Codec[name.upper()], changed(stored_as(name), at, bits), len(BODY))


def test_a_window_is_within_what_every_decoder_bears_or_the_body() -> None:
    def windowed(exponent: int) -> bytes:
        block = struct.pack("<I", len(BODY) << 3 | 1)[:3] + BODY
        return struct.pack("<IBB", 0xFD2FB528, 0, exponent << 3) + block

    largest = ZSTD_WINDOW_BYTES.bit_length() - 1 - 10
    for exponent in (0, largest):
        check_frames(Codec.ZSTD, windowed(exponent), len(BODY))
    assert bytes(inflate(Codec.ZSTD, windowed(largest + 1), len(BODY))) == BODY
    with pytest.raises(CorruptBatchError, match="window of 16777216 bytes"):
        check_frames(Codec.ZSTD, windowed(largest + 1), len(BODY))
    check_frames(Codec.ZSTD, windowed(largest + 1), 2 * ZSTD_WINDOW_BYTES)


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
def test_a_stream_that_is_cut_is_refused_wherever_it_is_cut(name: str) -> None:
    stored = stored_as(name)
    for size in range(1, 4 if name == "gzip" else len(stored)):
        with pytest.raises(CorruptBatchError):
            check_frames(Codec[name.upper()], stored[:size], len(BODY))


@given(st.sampled_from([Codec.GZIP, Codec.LZ4, Codec.ZSTD]), st.binary(max_size=60))
def test_any_bytes_are_taken_or_refused(codec: Codec, garbage: bytes) -> None:
    magic = {Codec.LZ4: b"\x04\x22\x4d\x18", Codec.ZSTD: b"\x28\xb5\x2f\xfd"}.get(codec, b"")
    with contextlib.suppress(CorruptBatchError):
        check_frames(codec, magic + garbage, 1000)
