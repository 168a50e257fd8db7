"""The bytes of every kind of batch, which no release may change."""

import pytest
from tests.unit.core.records.vectors import (
    FOLDER,
    NAMES,
    binary,
    decode,
    description,
    encode,
    partition_of,
)

from millrace.core.records.compression import Codec
from millrace.core.records.header import Attributes, parse_header

COMPRESSED = [codec.name.lower() for codec in Codec if codec]


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_is_read_as_it_is_described(name: str) -> None:
    described = description(name)
    assert decode(partition_of(described), binary(name)) == {
        "header": described["header"],
        "records": described["records"],
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COMPRESSED])
def test_a_vector_is_written_byte_for_byte(name: str) -> None:
    assert encode(description(name)).hex(" ", 8) == binary(name).hex(" ", 8)


def test_there_is_a_vector_of_every_codec_and_attribute() -> None:
    headers = {name: parse_header(binary(name)) for name in NAMES}
    assert {header.codec for header in headers.values()} == set(Codec)
    for name in COMPRESSED:
        assert headers[name].codec == Codec[name.upper()]
    seen = 0
    for header in headers.values():
        seen |= header.attributes
    kinds_to_come = Attributes.TRANSACTIONAL | Attributes.CONTROL
    assert seen | kinds_to_come == Attributes.KNOWN


def test_every_binary_has_a_description() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.bin")) == NAMES
