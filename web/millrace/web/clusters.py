"""The clusters that the page shows, with a client for administration for each.

On a laptop there is one, and it has no name. On Kubernetes there is one for each `Cluster`, by
`namespace/name`, and they come and go.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from millrace.client import Admin

CLIENT_ID: Final = "millrace-web"
REQUEST_TIMEOUT_MS: Final = 5_000
"""How long one call may take: a person waits."""
METADATA_TIMEOUT_MS: Final = 2_000
"""How long one broker may take, before it is shown as unreachable."""
FRESH_S: Final = 5.0
"""How long the list of clusters is used before it is asked for again."""

Find: TypeAlias = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns where clients connect to each cluster (`host:port`), by name."""


@dataclass(slots=True, frozen=True)
class Cluster:
    """One cluster."""

    name: str
    """Empty: it is the only one."""
    bootstrap: str
    admin: Admin


class Clusters:
    """See the module. Used on one event loop."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._known: dict[str, Cluster] = {}
        self._found_at_s: float | None = None
        self._lock = asyncio.Lock()

    @classmethod
    def one(cls, bootstrap: str) -> "Clusters":
        """Return a single cluster."""

        async def find() -> Mapping[str, str]:
            return {"": bootstrap}

        return cls(find)

    async def all(self) -> Mapping[str, Cluster]:
        """Return all clusters by name."""
        async with self._lock:
            now_s = time.monotonic()
            if self._found_at_s is None or now_s - self._found_at_s > FRESH_S:
                await self._update(await self._find())
                self._found_at_s = now_s
            return self._known

    async def close(self) -> None:
        """Close all clients."""
        await self._update({})

    async def _update(self, found: Mapping[str, str]) -> None:
        there = {
            name: each for name, each in self._known.items() if found.get(name) == each.bootstrap
        }
        gone = [each for name, each in self._known.items() if name not in there]
        for name, bootstrap in found.items():
            if name not in there:
                there[name] = Cluster(name, bootstrap, _connect(bootstrap))
        self._known = there
        for each in gone:
            await each.admin.close()


def _connect(bootstrap: str) -> Admin:
    return Admin(
        bootstrap,
        client_id=CLIENT_ID,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        metadata_timeout_ms=METADATA_TIMEOUT_MS,
    )
