"""Records in every format that `consume` writes: more than a pipe holds."""

import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from millrace.cli.commands.consume import FORMATS
from millrace.cli.console.standard_streams import DescriptorWriter
from millrace.cli.records.record_format import parse_format
from millrace.cli.records.writers import FormatWriter, open_writer
from millrace.core.records.columns import SCHEMA

ALL_FORMATS: Final = (*FORMATS, "format")
_ROWS: Final = 3000
_BATCH_ROWS: Final = 1000
_RANDOM: Final = random.Random(1)
"""What is random does not get smaller by compression."""
_RECORDS: Final = pa.RecordBatch.from_pylist(
    [
        {"offset": i, "timestamp": 1000, "key": b"k", "value": _RANDOM.randbytes(48).hex().encode(),
         "headers": []}
        for i in range(_ROWS)
    ],
    SCHEMA,
)  # fmt: skip


def write(file_format: str, stream: Any) -> None:
    """Write the records, in several batches."""
    writer: Any
    if file_format == "format":
        writer = FormatWriter(stream, parse_format(r"%o %s\n"), None)
    else:
        writer = open_writer(file_format, stream, key_separator=None, null_value=None)
    for start in range(0, _ROWS, _BATCH_ROWS):
        writer.write("flights", 0, _RECORDS.slice(start, _BATCH_ROWS))
        stream.flush()
    writer.close()
    stream.flush()


def expected(file_format: str) -> bytes:
    """Return what is written in a format."""
    stream = io.BytesIO()
    write(file_format, stream)
    return stream.getvalue()


@contextmanager
def output(descriptor: int) -> "Iterator[io.BufferedWriter[DescriptorWriter]]":
    """Yield a stream that writes to a descriptor as standard output does."""
    writer = DescriptorWriter(descriptor, "standard output")
    stream = io.BufferedWriter(writer)
    yield stream
    writer.drop()
