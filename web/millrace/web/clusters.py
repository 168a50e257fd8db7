"""The clusters that the page shows, with a client for administration for each.

On a laptop there is one, and it has no name. On Kubernetes there is one for each `Cluster`, by
`namespace/name`, and they come and go. While they cannot be listed, those that were known stay.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from millrace.client import Admin
from millrace.core.errors import ConnectionFailedError
from millrace.web import events

_log = logging.getLogger(__name__)

CLIENT_ID: Final = "millrace-web"
REQUEST_TIMEOUT_MS: Final = 5_000
"""How long one call may take: a person waits."""
METADATA_TIMEOUT_MS: Final = 2_000
"""How long one broker may take, before it is shown as unreachable."""
FRESH_S: Final = 5.0
"""How long the list of clusters, or its failure, is used before it is asked for again."""
FIND_S_MAX: Final = 5.0
"""How long the list may take: pages wait for it, and have to be ready soon after."""

Find: TypeAlias = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns where clients connect to each cluster (`host:port`), by name.

Raises `ConnectionFailedError`: they cannot be listed.
"""


@dataclass(slots=True, frozen=True)
class Cluster:
    """One cluster."""

    name: str
    """Empty: it is the only one."""
    bootstrap: str
    admin: Admin


class Clusters:
    """All clusters that are shown. Used on one event loop.

    Args:
        fresh_s: how long a list is used.
        find_s_max: how long `find` may take.
    """

    def __init__(
        self, find: Find, fresh_s: float = FRESH_S, find_s_max: float = FIND_S_MAX
    ) -> None:
        self._find, self._fresh_s, self._find_s_max = find, fresh_s, find_s_max
        self._known: dict[str, Cluster] = {}
        self._asked_at_s: float | None = None
        self._failure = ""
        """Why the last list was not had; empty: it was."""
        self._lock = asyncio.Lock()

    @classmethod
    def one(cls, bootstrap: str) -> "Clusters":
        """Return a single cluster."""

        async def find() -> Mapping[str, str]:
            return {"": bootstrap}

        return cls(find)

    async def all(self) -> Mapping[str, Cluster]:
        """Return all clusters by name.

        Raises:
            ConnectionFailedError: they cannot be listed, and none is known.
        """
        async with self._lock:
            if self._asked_at_s is None or time.monotonic() - self._asked_at_s > self._fresh_s:
                await self._ask()
                self._asked_at_s = time.monotonic()
            if self._failure and not self._known:
                raise ConnectionFailedError(self._failure)
            return self._known

    async def close(self) -> None:
        """Close all clients."""
        await self._update({})

    async def _ask(self) -> None:
        self._failure = ""
        try:
            async with asyncio.timeout(self._find_s_max):
                found = await self._find()
        except TimeoutError:
            self._failure = f"the Clusters were not listed within {self._find_s_max:g} s: try again"
        except ConnectionFailedError as error:
            self._failure = error.message
        if self._failure:
            events.CLUSTERS_NOT_LISTED.log(_log, reason=self._failure)
        else:
            await self._update(found)

    async def _update(self, found: Mapping[str, str]) -> None:
        there = {
            name: cluster
            for name, cluster in self._known.items()
            if found.get(name) == cluster.bootstrap
        }
        gone = [cluster for name, cluster in self._known.items() if name not in there]
        for name, bootstrap in found.items():
            if name not in there:
                there[name] = Cluster(name, bootstrap, _connect(bootstrap))
        self._known = there
        for cluster in gone:
            await cluster.admin.close()


def _connect(bootstrap: str) -> Admin:
    return Admin(
        bootstrap,
        client_id=CLIENT_ID,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        metadata_timeout_ms=METADATA_TIMEOUT_MS,
    )
