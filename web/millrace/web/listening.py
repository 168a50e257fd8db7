"""The socket of the page: of this machine alone, until there is access control.

Apart, so that a process may hold the socket without any of what serves pages.
"""

from socket import socket
from typing import Final

from millrace.runtime.listening import listen

LOOPBACK: Final = "127.0.0.1"


def listening_socket(port: int) -> socket:
    """Return a socket that listens; 0: on any free port. Errors are those of `listen`."""
    return listen(LOOPBACK, port)
