"""Addresses as they are written."""

import pytest

from millrace.core.addresses import host_port, is_loopback, parse_addresses


def test_brokers_are_named_with_commas_or_as_a_sequence() -> None:
    named = ["localhost:7092", "10.0.0.1:1", "[::1]:65535"]
    assert parse_addresses(" localhost:7092,10.0.0.1:1 ,,[::1]:65535") == named
    assert parse_addresses(named) == named
    assert parse_addresses(host_port("::1", 7092)) == ["[::1]:7092"]


@pytest.mark.parametrize("wrong", ["a", "a:", ":1", "a:b", "a:0", "a:65536", "a:-1", "a:²"])
def test_what_is_no_address_is_told(wrong: str) -> None:
    with pytest.raises(ValueError, match=f"'{wrong}' is no address: write host:port"):
        parse_addresses(f"localhost:7092,{wrong}")


@pytest.mark.parametrize("nothing", ["", " , ", []])
def test_no_address_at_all_is_told(nothing: str | list[str]) -> None:
    with pytest.raises(ValueError, match="name at least one broker"):
        parse_addresses(nothing)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]"]
)
def test_loopback_is_surely_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "10.0.0.1", "::", "localhost.example.org", "127.0.0.1.nip.io", "2130706433"],
)
def test_any_other_host_may_be_anywhere(host: str) -> None:
    assert not is_loopback(host)
