"""The clusters that the page shows.

On a laptop there is one, and it has no name. On Kubernetes there is one for each `Cluster`, by
`namespace/name`, and they come and go. While they cannot be listed, those that were known stay.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from millrace.core.errors import ConnectionFailedError
from millrace.web import events

_log = logging.getLogger(__name__)

FRESH_S: Final = 5.0
"""How long the list of clusters, or its failure, is used before it is asked for again."""
FIND_S_MAX: Final = 5.0
"""How long the list may take: pages wait for it, and have to be ready soon after."""


@dataclass(slots=True, frozen=True)
class Place:
    """Where clients find a cluster.

    Attributes:
        bootstrap: where they connect first (`host:port`).
        ca_file: has the authorities that brokers' certificates are of; empty: as for every client
            of this process.
        audience: for which a token of Kubernetes must be; empty: brokers alone know.
        problem: why nobody can connect there now; empty: nothing is known against it.
    """

    bootstrap: str
    ca_file: str = ""
    audience: str = ""
    problem: str = ""


Find: TypeAlias = Callable[[], Awaitable[Mapping[str, Place]]]
"""Returns where each cluster is, by name; empty: it is the only one.

Raises `ConnectionFailedError`: they cannot be listed.
"""


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
        self._known: Mapping[str, Place] = {}
        self._asked_at_s: float | None = None
        self._failure = ""
        """Why the last list was not had; empty: it was."""
        self._lock = asyncio.Lock()

    @classmethod
    def one(cls, bootstrap: str) -> "Clusters":
        """Return a single cluster."""

        async def find() -> Mapping[str, Place]:
            return {"": Place(bootstrap)}

        return cls(find)

    async def all(self) -> Mapping[str, Place]:
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
            self._known = found
