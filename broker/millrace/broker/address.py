"""Where somebody connects, as it is written."""

import socket
from typing import NamedTuple

from millrace.core.addresses import host_port


class Address(NamedTuple):
    """Where somebody connects."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return `host:port`, an IPv6 host in brackets."""
        return host_port(self.host, self.port)


def advertised_host(host: str) -> str:
    """Return what others are told to connect to where a server listens on `host`."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host
