"""The socket of the page: of this machine alone, until there is access control.

Apart, so that a process may hold the socket without any of what serves pages.
"""

import os
import socket
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 128


def listening_socket(port: int) -> socket.socket:
    """Return a socket that listens; 0: on any free port.

    Raises:
        OSError: the port is taken; its text does not name the address, which the caller knows.
    """
    try:
        return socket.create_server((LOOPBACK, port), backlog=_BACKLOG)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error
