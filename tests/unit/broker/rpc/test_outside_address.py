"""Where clients outside are told to connect: from settings, or from a file that may change."""

from pathlib import Path

import pytest

from millrace.broker.address import Address
from millrace.broker.rpc.outside_address import OutsideAddress

OWN = Address("192.0.2.1", 7095)


def test_without_a_file_it_is_the_listener_s_own() -> None:
    assert OutsideAddress(OWN, "").current == "192.0.2.1:7095"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("203.0.113.5:9094\n", "203.0.113.5:9094"),
        ("[2001:db8::1]:9094", "[2001:db8::1]:9094"),
        (":31000", "192.0.2.1:31000"),
        ("", ""),
        (" \n", ""),
        ("203.0.113.5", ""),
        (":0", ""),
        (":x", ""),
        ("a:1,b:2", ""),
        ("a:1\nb:2", ""),
        ("h" * 10_000, ""),
    ],
)
def test_a_file_says_where_instead(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "address"
    file.write_text(text)
    assert OutsideAddress(OWN, str(file)).current == expected


def test_nobody_is_told_an_address_that_cannot_be_read(tmp_path: Path) -> None:
    assert OutsideAddress(OWN, str(tmp_path / "missing")).current == ""
    assert OutsideAddress(OWN, str(tmp_path)).current == ""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe:1")
    assert OutsideAddress(OWN, str(tmp_path / "bytes")).current == ""


def test_an_ipv6_host_of_its_own_is_written_in_brackets(tmp_path: Path) -> None:
    file = tmp_path / "address"
    file.write_text(":31000")
    own = Address("2001:db8::1", 7095)
    assert OutsideAddress(own, str(file)).current == "[2001:db8::1]:31000"
