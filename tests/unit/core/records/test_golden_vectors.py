"""The bytes of every kind of batch, which no release may change."""

import pytest
from kafka.record.default_records import DefaultRecordBatch
from tests.unit.core.records.vectors import (
    FOLDER,
    NAMES,
    binary,
    cell_of,
    decode,
    description,
    encode,
    partition_of,
)

from millrace.core.records.compression import Codec
from millrace.core.records.header import HEADER_BYTES, KAFKA_FORMAT, Attributes, parse_header


def is_compressed(name: str) -> bool:
    """Whether its bytes depend on the compressor."""
    return parse_header(binary(name)).codec != Codec.NONE


COMPRESSED = [codec.name.lower() for codec in Codec if codec]


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_is_read_as_it_is_described(name: str) -> None:
    described = description(name)
    said = {part: described[part] for part in ("header", "records", "kafka") if part in described}
    assert decode(partition_of(described), binary(name)) == said


@pytest.mark.parametrize("name", [name for name in NAMES if not is_compressed(name)])
def test_a_vector_is_written_byte_for_byte(name: str) -> None:
    assert encode(description(name)).hex(" ", 8) == binary(name).hex(" ", 8)


def test_there_is_a_vector_of_every_codec_and_attribute() -> None:
    headers = {name: parse_header(binary(name)) for name in NAMES if not name.startswith("kafka")}
    assert {header.codec for header in headers.values()} == set(Codec)
    for name in COMPRESSED:
        assert headers[name].codec == Codec[name.upper()]
    seen = 0
    for header in headers.values():
        seen |= header.attributes
    kinds_to_come = Attributes.TRANSACTIONAL | Attributes.CONTROL
    assert seen | kinds_to_come == Attributes.KNOWN


def test_there_is_a_vector_of_every_codec_and_attribute_of_kafkas_batches() -> None:
    headers = [parse_header(binary(name)) for name in NAMES if name.startswith("kafka")]
    assert {header.format for header in headers} == {KAFKA_FORMAT}
    assert {header.codec for header in headers} == set(Codec)
    seen = 0
    for header in headers:
        seen |= header.attributes
    assert seen == Attributes.KNOWN_OF_KAFKA


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("kafka")])
def test_kafkas_own_reader_reads_a_vector_of_its_format(name: str) -> None:
    read = DefaultRecordBatch(binary(name)[HEADER_BYTES:])
    assert read.validate_crc()
    described = description(name)
    assert read.base_offset == described["header"]["base_offset"]
    if is_compressed(name) and read.compression_type != DefaultRecordBatch.CODEC_GZIP:
        return  # It needs packages for the others.
    records = [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in read
    ]
    assert records == [
        (
            record["offset"],
            record["timestamp"],
            cell_of(record["key"]),
            cell_of(record["value"]),
            [(header, cell_of(value)) for header, value in record["headers"]],
        )
        for record in described["records"]
    ]


def test_every_binary_has_a_description() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.bin")) == NAMES
