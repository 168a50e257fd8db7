"""docs/format.md says what the code does."""

import re
import struct
from pathlib import Path

import pytest
from bench.format_sizes import sizes
from tests.fakes.header_fields import FIELDS
from tests.unit.core.records.vectors import binary

from millrace.core.records import columns, header, kafka_batch
from millrace.core.records.columns import COLUMN_NAMES, RECORDS_MAX, TABLE_ENTRY
from millrace.core.records.compression import Codec
from millrace.core.records.header import HEADER_BYTES, TIMESTAMP_MAX, Attributes

DOCUMENT = (Path(__file__).resolve().parents[4] / "docs" / "format.md").read_text()


def table(text: str, first: str) -> list[list[str]]:
    """Return the rows of the Markdown table whose heading begins with `first`, stripped."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first}"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [rows[0], *rows[2:]]


@pytest.mark.parametrize("module", [header, columns, kafka_batch])
def test_the_tables_of_bytes_are_those_of_the_code(module: object) -> None:
    lines = [line for line in (module.__doc__ or "").splitlines() if line.startswith("|")]
    assert lines
    assert "\n".join(lines) in DOCUMENT


def test_the_headers_table_is_what_is_packed() -> None:
    layouts = (header._PRODUCER, header._BROKER, header._CRC)
    codes = "".join(layout.format.lstrip("<") for layout in layouts)
    packed = re.findall(r"\d*[a-zA-Z]", codes)
    rows = table(header.__doc__ or "", "offset | size")[1:]
    assert len(rows) == len(packed) == len(FIELDS)
    at = 0
    for (offset, size, name, *_), code, field in zip(rows, packed, FIELDS.items(), strict=True):
        assert (int(offset), int(size)) == (at, struct.calcsize(f"<{code}")), name
        assert field[1] == (at, f"<{code}")
        assert name in (field[0], "(reserved)")
        at += int(size)
    assert at == HEADER_BYTES


def test_the_column_tables_entry_is_what_is_packed() -> None:
    rows = table(columns.__doc__ or "", "offset | size")[1:]
    fields = TABLE_ENTRY.fields
    assert fields is not None
    assert [(int(at), int(size), name) for at, size, name, _ in rows] == [
        (at, kind.itemsize, name) for name, (kind, at, *_) in fields.items()
    ]
    for number, name in enumerate(COLUMN_NAMES):
        assert f"{number} `{name}`" in DOCUMENT


def test_the_attributes_are_those_of_the_code() -> None:
    rows = table(DOCUMENT, "bit | name")[1:]
    codecs = ", ".join(f"{codec.value} {codec.name.lower()}" for codec in Codec)
    assert rows[0] == ["0–2", "codec", codecs]
    bits = {name: 1 << int(bit) for bit, name, _ in rows[1:]}
    assert bits == {name: getattr(Attributes, name.upper()) for name in bits}
    assert sum(bits.values()) | Attributes.CODEC_MASK == Attributes.KNOWN


def test_the_bounds_are_those_of_the_code() -> None:
    assert f"at most {RECORDS_MAX:,} records" in DOCUMENT
    assert f"max_timestamp <= {TIMESTAMP_MAX}`" in DOCUMENT
    assert (
        f"{HEADER_BYTES} bytes, can make a reader allocate {16 * RECORDS_MAX / 1e6} MB" in DOCUMENT
    )


def test_the_example_is_the_golden_vector() -> None:
    block = DOCUMENT.split("```")[1]
    lines = re.findall(r"^ *(\d+)  ((?:[0-9a-f]{2} ?)+) ", block, re.MULTILINE)
    data = b"".join(bytes.fromhex(piece) for _, piece in lines)
    assert data == binary("one_record")
    assert [int(at) for at, _ in lines] == list(range(0, len(data), 16))
    assert f"{len(data)} bytes" in DOCUMENT


def test_the_sizes_are_what_the_command_prints() -> None:
    assert sizes() in DOCUMENT
