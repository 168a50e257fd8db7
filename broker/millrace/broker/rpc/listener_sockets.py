"""The connections of one listener, as the kernel has them. gRPC does not report connections:
neither their number, nor which of them have never made a call.

They are this process's own descriptors, so it can look for itself. To gRPC a connection that is
shut down here looks as if its peer had gone.

Source: proc(5), /proc/self/fd; shutdown(2); tcp(7), TCP_INFO.
"""

import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import unquote

_DESCRIPTORS: Final = "/proc/self/fd"
_SOCKET: Final = "socket:["
_REFUSED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_RECEIVED_AT: Final = 128
_INFO_BYTES: Final = 136
"""Where `tcpi_bytes_received` is in `struct tcp_info` of linux/tcp.h, and where it ends."""

Connection = str
"""A connection by the kernel's name of its socket, which no other one has while it is open."""


class ListenerSockets:
    """Finds and ends connections. Each method looks at every descriptor: call it on a thread, one
    at a time.

    Args:
        ports: that the listener is bound to.
    """

    def __init__(self, ports: Iterable[int]) -> None:
        self._ports = frozenset(ports)
        # Known sockets of the process by their names; None: not of this listener.
        self._known: dict[str, str | None] = {}

    def peers(self) -> Mapping[Connection, str]:
        """Return the peer of each connection, as `peer_name` writes it.

        Raises:
            OSError: the process has no descriptor left to look with.
        """
        known = {name: self._peer_of(number, name) for number, name in _open_sockets()}
        self._known = known
        return {name: peer for name, peer in known.items() if peer is not None}

    def received(self, connections: Collection[Connection]) -> Mapping[Connection, int]:
        """Return how many bytes have arrived by each of some connections.

        Raises:
            OSError: as `peers`.
        """
        counts = {}
        for number, name in _open_sockets():
            if name in connections:
                with suppress(OSError), _copy_of(number, name) as found:
                    told = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                    counts[name] = int.from_bytes(told[_RECEIVED_AT:_INFO_BYTES], sys.byteorder)
        return counts

    def shut_down(self, connections: Collection[Connection]) -> None:
        """End connections; those that are gone already are skipped.

        Raises:
            OSError: as `peers`.
        """
        for number, name in _open_sockets():
            if name in connections:
                with suppress(OSError), _copy_of(number, name) as found:
                    found.shutdown(socket.SHUT_RDWR)

    def _peer_of(self, number: int, name: str) -> str | None:
        if name in self._known:
            return self._known[name]
        try:
            with _copy_of(number, name) as found:
                if found.family not in (socket.AF_INET, socket.AF_INET6):
                    return None
                if found.getsockname()[1] not in self._ports:
                    return None
                host, port = found.getpeername()[:2]
        except OSError as error:
            if error.errno in _REFUSED:
                raise  # Do not remember an unread socket as another listener's.
            return None  # It listens, or is gone.
        return _name(host, port)


def peer_name(peer: str) -> str:
    """Return a peer as gRPC names it, such as `ipv6:%5B::1%5D:7092`, as `peers` names it."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    try:
        return _name(host.strip("[]"), int(port))
    except ValueError:
        return peer


def _name(host: str, port: int) -> str:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return f"{address} {port}"


def _open_sockets() -> list[tuple[int, str]]:
    found = []
    for number in map(int, os.listdir(_DESCRIPTORS)):
        with suppress(OSError):  # It was closed meanwhile.
            name = os.readlink(f"{_DESCRIPTORS}/{number}")
            if name.startswith(_SOCKET):
                found.append((number, name))
    return found


def _copy_of(number: int, name: str) -> socket.socket:
    """Return a socket over a copy of a descriptor.

    Raises:
        OSError: the descriptor was closed, and may be another one by now.
    """
    copy = os.dup(number)
    try:
        if os.readlink(f"{_DESCRIPTORS}/{copy}") != name:
            raise OSError(f"{name} was closed")
        return socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise
