"""Opens connections of DRPC where that is possible, and remembers where it is not.

A proxy may let only HTTP/2 through, or an address be reachable only from elsewhere. The caller then
uses gRPC. When that works, it says so, and for a while nobody tries the address again; when it does
not, the broker is away, and may be back soon.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from millrace.proto.callers import client_id_to_metadata
from millrace.runtime import host
from millrace.runtime.software import USER_AGENT
from millrace.runtime.transport.calls import CallError, Metadata, Status
from millrace.runtime.transport.credentials import ClientCredentials
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.client import DrpcConnection, DrpcStream, connect
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.frames import ReadAhead
from millrace.runtime.transport.receive_memory import ReceiveMemory
from millrace.runtime.transport.tokens import Token

CONNECT_SECONDS_MAX: Final = 0.25
TLS_SECONDS_MAX: Final = 1.0
"""Likewise, with the handshake of TLS."""
GREET_SECONDS_MAX: Final = 2.0
"""For the first call on a connection: a proxy may take the connection, and nothing else."""
AVOIDED_SECONDS: Final = 60.0
"""How long an address is not tried again."""

Greet = Callable[[DrpcConnection, Metadata], Awaitable[None]]
"""Makes the first call on a connection; raises `CallError` where the connection is no use."""


Check = Callable[[str], None]
"""Takes whom the other end has proved to be by its certificate; raises `PeerRefusedError`."""


class PeerRefusedError(CallError):
    """Somebody else answers than who is called: nothing is sent there, by gRPC neither."""

    def __init__(self, problem: str) -> None:
        super().__init__(Status.UNAUTHENTICATED, problem)


class Connector:
    """Opens the connections of one client, or of one broker to the others. Belongs to one loop.

    Args:
        limits: of each connection.
        received_bytes_max: that have arrived and were not taken yet, over all connections.
        client_id: of the caller.
        credentials: of the connections; None: they are in plain text.
        token: goes with each call; None: there is none.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        received_bytes_max: int,
        client_id: str,
        credentials: ClientCredentials | None = None,
        token: Token | None = None,
    ) -> None:
        self._limits = limits
        self._credentials = credentials
        self._token = token
        self._ahead = ReadAhead()
        self._memory = ReceiveMemory(received_bytes_max)
        self._avoided: dict[str, float] = {}
        self._metadata: Metadata = {
            **dict(client_id_to_metadata(client_id)),
            "user-agent": USER_AGENT,
            wire.KEEP_ALIVE: str(limits.keepalive_ms),
        }

    def metadata_for(self, address: str) -> Metadata:
        """Return what goes with a call.

        Raises:
            CallError: the token cannot be sent.
        """
        if self._token is None:
            return self._metadata
        is_private = self._credentials is not None
        return {**self._metadata, **dict(self._token.metadata(address, is_private=is_private))}

    async def connect(
        self, address: str, greet: Greet | None = None, check: Check = lambda _: None
    ) -> DrpcConnection | None:
        """Open a connection.

        Args:
            address: `host:port`; empty: there is none.
            greet: makes the first call on it.
            check: of who answers there; only with TLS.

        Returns:
            The connection; None: use gRPC.

        Raises:
            PeerRefusedError: by `check`.
        """
        if not self.tries(address):
            return None
        connection, tls, credentials = None, None, self._credentials
        if credentials is not None:
            credentials.refresh()
            tls = credentials.context
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX if tls is None else TLS_SECONDS_MAX):
                connection = await connect(
                    address, self._limits, ahead=self._ahead, memory=self._memory, tls=tls
                )
            if credentials is not None:
                credentials.join(connection)
                check(connection.principal)
            if greet is not None:
                async with asyncio.timeout(GREET_SECONDS_MAX):
                    await greet(connection, self.metadata_for(address))
        except PeerRefusedError as error:
            assert connection is not None
            connection.abort(error.details)
            raise
        except (OSError, TimeoutError, CallError):
            if connection is not None:
                connection.abort("it is no use")
            return None
        except asyncio.CancelledError:
            if connection is not None:
                connection.abort("nobody wants it any more")
            raise
        self._avoided.pop(address, None)
        return connection

    def tries(self, address: str) -> bool:
        """Whether `connect` tries an address now; an empty one, never."""
        return bool(address) and host.monotonic_s() >= self._avoided.get(address, 0.0)

    def avoid(self, address: str) -> None:
        """Do not try an address for a while: its broker was reached by gRPC, and not by DRPC."""
        if address:
            self._avoided[address] = host.monotonic_s() + AVOIDED_SECONDS

    async def stream(
        self,
        address: str,
        method: str,
        greet: Greet | None = None,
        check: Check = lambda _: None,
    ) -> DrpcStream | None:
        """Open a connection for one call, and begin that; None: use gRPC.

        Raises:
            PeerRefusedError: by `check`.
        """
        connection = await self.connect(address, greet, check)
        if connection is None:
            return None
        connection.is_for_one_call = True
        return connection.stream(method, self.metadata_for(address))
