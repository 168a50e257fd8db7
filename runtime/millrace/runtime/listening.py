"""A socket that listens.

Apart, so that a process may hold the socket without any of what serves pages.
"""

import os
import socket
from typing import Final

BACKLOG: Final = 128
"""Connections that wait until they are accepted. Further peers try again a second later."""


def listen(host: str, port: int, backlog: int = BACKLOG) -> socket.socket:
    """Return a socket that listens; port 0: on any free port.

    Raises:
        OSError: the port is taken, or the address is not one of this machine. The text does not
            name the address, which the caller knows: Python's own has it once more.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(
            address[:2], family=family, backlog=backlog, dualstack_ipv6=is_dual
        )
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error
