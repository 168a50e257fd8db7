"""Clients for administration, one for each cluster and token: who has none shares one with others.

A client is closed some time after its last page, so brokers keep no connections for visitors who
have left. There are only so many, and those in use are never more than pages are made at a time.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypedDict

from millrace.client import Admin
from millrace.web.clusters import Place

CLIENT_ID: Final = "millrace-web"
REQUEST_TIMEOUT_MS: Final = 5_000
"""How long one call may take: a person waits."""
METADATA_TIMEOUT_MS: Final = 2_000
"""How long one broker may take, before it is shown as unreachable."""
CLIENTS_MAX: Final = 32
"""Clients that are open; a further one takes the place of the one that nobody used for longest."""
_NO_TOKEN: Final = "none"
"""Of the setting `token_file`: the page has no token of its own to send."""
IDLE_S: Final = 60.0
"""How long a client stays open after its last use."""


class Credentials(TypedDict, total=False):
    """Settings of clients."""

    token: str
    token_file: str
    tls_ca_file: str


@dataclass(slots=True, frozen=True)
class Cluster:
    """A cluster as one visitor may see it.

    Attributes:
        name: empty: it is the only one.
        place: where it is.
        token: of the visitor; empty: none.
    """

    name: str
    place: Place
    admin: Admin
    token: str = field(default="", repr=False)


Connect: TypeAlias = Callable[[Place, str], Admin]
_Key: TypeAlias = tuple[str, Place, bytes]


@dataclass(slots=True)
class _Client:
    cluster: Cluster
    users: int = 0
    used_at: float = 0.0


class Clients:
    """All clients of the page. Used on one event loop.

    Args:
        connect: makes a client for a place and a token.
        idle_s, clients_max: see `IDLE_S` and `CLIENTS_MAX`.
    """

    def __init__(
        self,
        connect: Connect | None = None,
        idle_s: float = IDLE_S,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        self._connect = connect or connected
        self._idle_s, self._clients_max = idle_s, clients_max
        self._clients: dict[_Key, _Client] = {}
        """The one used last is the last one."""
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._clients)

    @asynccontextmanager
    async def of(self, name: str, place: Place, token: str) -> AsyncIterator[Cluster]:
        """Hold the cluster as the owner of a token sees it; empty: who has none.

        Raises:
            InvalidConfigError: the token is none that may be sent.
        """
        key = (name, place, hashlib.sha256(token.encode()).digest() if token else b"")
        client = self._clients.pop(key, None)
        if client is None:
            client = _Client(Cluster(name, place, self._connect(place, token), token))
        self._clients[key] = client
        client.users += 1
        self._make_room()
        try:
            yield client.cluster
        finally:
            client.users -= 1
            client.used_at = time.monotonic()
            self._close_later()

    async def close(self) -> None:
        """Close all of them."""
        if self._timer is not None:
            self._timer.cancel()
        for key in list(self._clients):
            self._close(key)
        await asyncio.gather(*self._closing)

    def _make_room(self) -> None:
        idle = [key for key, client in self._clients.items() if not client.users]
        for key in idle[: max(len(self._clients) - self._clients_max, 0)]:
            self._close(key)

    def _close_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        now = time.monotonic()
        for key, client in list(self._clients.items()):
            if not client.users and now - client.used_at >= self._idle_s:
                self._close(key)
        if self._clients:
            self._close_later()

    def _close(self, key: _Key) -> None:
        client = self._clients.pop(key)
        task = asyncio.get_running_loop().create_task(client.cluster.admin.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def connected(place: Place, token: str) -> Admin:
    """Return a client for the brokers of a place."""
    return Admin(
        place.bootstrap,
        client_id=CLIENT_ID,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        metadata_timeout_ms=METADATA_TIMEOUT_MS,
        **credentials(place, token),
    )


def credentials(place: Place, token: str) -> Credentials:
    """Return the settings of a client that calls in the name of a visitor alone."""
    said: Credentials = {"token": token} if token else {"token_file": _NO_TOKEN}
    if place.ca_file:
        said["tls_ca_file"] = place.ca_file
    return said
