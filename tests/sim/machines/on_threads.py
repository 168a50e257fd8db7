"""Synchronous clients behind the interface of the asynchronous ones: each call is on a thread.

So one explorer judges both. The thread waits in virtual time, as all threads of a process do.
"""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from millrace.client import Admin, Consumer, Producer, SyncAdmin, SyncConsumer, SyncProducer

_SYNCHRONOUS: Final[dict[type, type]] = {
    Admin: SyncAdmin,
    Consumer: SyncConsumer,
    Producer: SyncProducer,
}


class OnThreads:
    """Not for loops over records: a loop that is cancelled would keep its thread.

    Args:
        kind: the asynchronous client.
        bootstrap: as of every client.
        settings: of that client.
    """

    def __init__(self, kind: type, bootstrap: str, **settings: Any) -> None:
        self._kind = kind
        self._make: Callable[[], Any] = partial(_SYNCHRONOUS[kind], bootstrap, **settings)
        self._client: Any = None

    async def __aenter__(self) -> "OnThreads":
        self._client = await asyncio.to_thread(self._make)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._client.close)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        is_blocking = inspect.iscoroutinefunction(getattr(self._kind, name))
        return partial(asyncio.to_thread, method) if is_blocking else method
