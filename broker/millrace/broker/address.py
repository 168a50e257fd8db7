"""Where somebody connects, as it is written."""

import errno
import socket
from typing import NamedTuple

from millrace.core.addresses import host_port
from millrace.core.errors import InvalidConfigError


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


def not_served(who: str, address: Address, section: str, error: OSError) -> InvalidConfigError:
    """Return what to say when nobody can be served on an address.

    Args:
        who: or what, is served there.
        address: as it is configured.
        section: of the configuration, which has its `host` and `port`.
        error: what the system said of it.
    """
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        advice = f"set {section}.host to an address of this machine, or to 0.0.0.0 for all of them"
    else:
        advice = f"set {section}.port to another port, or to 0 for any that is free"
    return InvalidConfigError(f"{who} cannot be served on {address}: {error.strerror}: {advice}")
