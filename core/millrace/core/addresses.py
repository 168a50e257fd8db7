"""Addresses as they are written."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from millrace.core.numbers import parse_whole_number

PORT_MAX: Final = 65_535


def host_port(host: str, port: int | str) -> str:
    """Return `host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 host has lost its brackets.

    Raises:
        ValueError: it has no port.
    """
    port = parse_whole_number(address.rpartition(":")[2], PORT_MAX)
    if port is None:
        raise ValueError(f"{address[:80]!r} is no address: it must be host:port")
    return host_of(address), port


def host_of(address: str) -> str:
    """Return the host of `host:port`, without brackets; empty: there is none."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Return whether a host is surely this machine: no other one sees what is sent there."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False  # A name, which may lead anywhere.


def parse_addresses(given: str | Sequence[str]) -> list[str]:
    """Return the `host:port` of brokers: a sequence, or a string with commas.

    Raises:
        ValueError: an address is malformed, or the list is empty.
    """
    names = given.split(",") if isinstance(given, str) else given
    addresses = [name.strip() for name in names if name.strip()]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not (host and parse_whole_number(port, PORT_MAX)):
            raise ValueError(f"{address!r} is no address: write host:port, such as localhost:7092")
    if not addresses:
        raise ValueError("name at least one broker as host:port")
    return addresses
