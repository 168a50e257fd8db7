"""Network addresses of servers."""

import errno
import socket
from typing import NamedTuple

from millrace.core.addresses import host_port
from millrace.core.errors import InvalidConfigError


class Address(NamedTuple):
    """A host and a port to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return `host:port`, an IPv6 host in brackets."""
        return host_port(self.host, self.port)


def advertised_host(host: str) -> str:
    """Return the host that clients should connect to when a server listens on `host`."""
    return socket.gethostname() if host in ("0.0.0.0", "::") else host


def not_served(who: str, address: Address, section: str, error: OSError) -> InvalidConfigError:
    """Return the error when an address cannot be listened on.

    Args:
        who: what is served there.
        address: as it is configured.
        section: of the configuration, which has its `host` and `port`.
        error: of the system.
    """
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        advice = f"set {section}.host to an address of this machine, or to 0.0.0.0 for all of them"
    else:
        advice = f"set {section}.port to another port, or to 0 for any that is free"
    return InvalidConfigError(f"{who} cannot be served on {address}: {error.strerror}: {advice}")
