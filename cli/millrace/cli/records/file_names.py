"""The format of a file's records, and its compression, by the file's name."""

import bz2
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa

from millrace.cli.console.failures import Failure
from millrace.cli.records.problems import explained

BLOCK_BYTES: Final = 1 << 20

_FORMATS: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_CODECS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_UNKNOWN_CODECS: Final = frozenset(
    (".xz", ".lzma", ".br", ".sz", ".z", ".zip", ".7z", ".rar", ".tar", ".tgz")
)
"""Endings of files that are certainly not the text that the rest of their names promises."""


def format_of(name: str) -> str:
    """Return the format by a file's name; lines, if the name has none."""
    path = PurePath(name)
    if path.suffix.lower() in _CODECS:
        path = path.with_suffix("")
    return _FORMATS.get(path.suffix.lower(), "lines")


def codec_of(name: str) -> str | None:
    """Return the compression by a file's name; None: none.

    Raises:
        Failure: it is, or should be, compressed with an unknown codec.
    """
    suffix = PurePath(name).suffix.lower()
    if suffix in _UNKNOWN_CODECS:
        raise Failure(
            f"{name}: {suffix} files are neither read nor written",
            f"compressed ones may be {', '.join(_CODECS)}",
        )
    return _CODECS.get(suffix)


def check_written(name: str, file_format: str) -> None:
    """Refuse a name under which a format cannot be written.

    Raises:
        Failure: it says what to do.
    """
    if codec_of(name) is not None and file_format == "parquet":
        raise Failure(
            f"{name}: a Parquet file is compressed inside, and no program reads it inside another "
            "one",
            "name it without the last ending",
        )


def inflated(stream: BinaryIO, name: str) -> BinaryIO:
    """Return the contents of a file that is compressed by its name; the file stays open.

    Reading raises `Failure` if the file is damaged, or compressed with another codec.
    """
    codec = codec_of(name)
    return (
        stream if codec is None else io.BufferedReader(_Inflating(stream, name, codec), BLOCK_BYTES)
    )


@contextmanager
def deflating(stream: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """Yield a stream for the contents of a file, compressed by its name."""
    codec = codec_of(name)
    if codec is None:
        yield stream
    else:
        with pa.CompressedOutputStream(Unbuffered(stream), codec) as contents:
            yield cast(BinaryIO, contents)


class Unbuffered(io.RawIOBase):
    """A stream without a buffer of its own; when it is closed the one below it stays open."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._read = getattr(stream, "read1", stream.read)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data: bytes = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return int(self._stream.write(data))


class _Inflating(Unbuffered):
    def __init__(self, stream: BinaryIO, name: str, codec: str) -> None:
        # Arrow's reader fails where an empty stream of bzip2 stands among others.
        super().__init__(
            _Bzip2(stream)
            if codec == "bz2"
            else pa.CompressedInputStream(Unbuffered(stream), codec)
        )
        self._name, self._codec = name, codec

    def readinto(self, buffer: Any) -> int:
        with explained(lambda: self._name, self._codec):
            return super().readinto(buffer)


class _Bzip2:
    """The contents of streams of bzip2, one after the other."""

    def __init__(self, stream: BinaryIO) -> None:
        self._compressed = Unbuffered(stream)
        self._stream = bz2.BZ2Decompressor()
        self._is_begun = False

    def read(self, count: int) -> bytes:
        """Return so many bytes at the most; none at the end."""
        while True:
            data = self._stream.unused_data
            if self._stream.eof:
                self._stream, self._is_begun = bz2.BZ2Decompressor(), False
            if not data and self._stream.needs_input:
                data = self._compressed.read(BLOCK_BYTES)
                if not data:
                    if self._is_begun:
                        raise EOFError("Truncated compressed stream")
                    return b""
            self._is_begun = True
            if contents := self._stream.decompress(data, count):
                return contents
