import bz2
import gzip
import io
from collections.abc import Callable

import pyarrow as pa
import pytest

from millrace.cli.console.failures import Failure
from millrace.cli.records.file_names import deflating, format_of, inflated
from millrace.cli.records.sources import RecordMapping, read_records

TEXT = b"a\nb\n" * 1_000


@pytest.mark.parametrize(
    ("name", "file_format"),
    [
        ("flights.csv", "csv"),
        ("flights.CSV.gz", "csv"),
        ("events.jsonl", "json"),
        ("events.ndjson.zst", "json"),
        ("a.parquet", "parquet"),
        ("a.feather", "arrow"),
        ("notes.txt.gz", "lines"),
        ("README", "lines"),
        ("-", "lines"),
    ],
)
def test_the_name_of_a_file_says_its_format(name: str, file_format: str) -> None:
    assert format_of(name) == file_format


@pytest.mark.parametrize("name", ["x.gz", "x.bz2", "x.zst", "x.lz4", "x.txt"])
def test_what_is_written_under_a_name_is_read_under_it_and_the_file_stays_open(name: str) -> None:
    file = io.BytesIO()
    with deflating(file, name) as contents:
        contents.write(TEXT)
    assert (len(file.getvalue()) < len(TEXT)) == (name != "x.txt")
    file.seek(0)
    assert b"".join(inflated(file, name)) == TEXT
    assert not file.closed


def test_compressed_records_are_read_and_the_file_stays_open() -> None:
    file = io.BytesIO(gzip.compress(b"a\n") + gzip.compress(b"b\n"))  # As `cat` puts two together.
    (columns,) = read_records(inflated(file, "x.gz"), "x.gz", "lines", RecordMapping())
    assert columns.values.to_pylist() == [b"a", b"b"]
    assert not file.closed  # How far it is read is still to be told.


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": lambda data: zipped(data, "zstd"),
    "lz4": lambda data: zipped(data, "lz4"),
}


def zipped(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("ending", COMPRESS)
def test_streams_one_after_the_other_are_one_file_also_with_empty_ones_among_them(
    ending: str,
) -> None:
    full, empty = COMPRESS[ending](TEXT), COMPRESS[ending](b"")
    for data, count in ((empty + full + empty + empty + full + empty, 2), (empty, 0), (b"", 0)):
        assert inflated(io.BytesIO(data), f"x.{ending}").read() == TEXT * count


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("damage", ["cut off", "something after it"])
def test_a_stream_that_ends_early_or_is_followed_by_something_else_is_refused(
    ending: str, damage: str
) -> None:
    full = COMPRESS[ending](TEXT)
    data = full + (full[:-3] if damage == "cut off" else b"something else")
    with pytest.raises(Failure, match=rf"x\.{ending} cannot be read as "):
        inflated(io.BytesIO(data), f"x.{ending}").read()


@pytest.mark.parametrize(
    "data",
    [b"plain text", gzip.compress(TEXT, mtime=0)[:-9]],
    ids=["another format", "cut off"],
)
def test_a_file_that_is_not_what_its_name_says_is_refused_by_its_name(data: bytes) -> None:
    with pytest.raises(Failure, match=r"x\.gz cannot be read as gzip"):
        inflated(io.BytesIO(data), "x.gz").read()


@pytest.mark.parametrize("name", ["x.csv.xz", "x.ZIP"])
def test_a_compression_that_is_not_known_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(Failure, match="neither read nor written") as failure:
        inflated(io.BytesIO(), name)
    assert ".zst" in failure.value.hint
