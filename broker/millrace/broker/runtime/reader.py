"""Reads from the logs: at once when the page cache has the bytes, by a thread when it has not.

The event loop may read only what cannot block it (`preadv` with `RWF_NOWAIT`). The page cache is
the only cache of records. What the loop reads lands in one buffer that all responses share, because
it is copied into the response before the loop does anything else.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from millrace.broker.storage.log import ReadPlan

from millrace.broker.runtime.mailbox import Mailbox, Worker
from millrace.core.errors import MillraceError
from millrace.core.records.header import Buffer


class LogReader:
    """Executes read plans.

    Args:
        mailbox: brings the threads' results to the loop.
        threads: how many reads may block at the same time.
        buffer_bytes: size of the shared buffer: the largest response.
    """

    def __init__(self, mailbox: Mailbox, *, threads: int, buffer_bytes: int) -> None:
        self._workers = [Worker(f"read-{number}", mailbox) for number in range(threads)]
        self._next = cycle(self._workers)
        self._buffer = memoryview(bytearray(buffer_bytes))

    def read_cached(self, plans: Sequence[ReadPlan]) -> list[Buffer | MillraceError] | None:
        """Read plans from the page cache, or return None when one of them would block.

        The views that are returned are valid until the loop runs something else.
        """
        views: list[Buffer | MillraceError] = []
        at = 0
        for plan in plans:
            if at + plan.length > len(self._buffer):
                return None
            view = self._buffer[at : at + plan.length]
            try:
                if not plan.read_cached(view):
                    return None
                views.append(view)
            except MillraceError as error:
                views.append(error)
            at += plan.length
        return views

    async def read(self, plans: Sequence[ReadPlan]) -> list[Buffer | MillraceError]:
        """Read plans on a thread."""
        read: list[Buffer | MillraceError] = await self.call(_read, plans)
        return read

    def call(self, job: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run something else that may wait for the disk on one of the threads."""
        return next(self._next).call(job, *args)

    def close(self) -> None:
        """End the threads."""
        for worker in self._workers:
            worker.close()


def _read(plans: Sequence[ReadPlan]) -> list[Buffer | MillraceError]:
    read: list[Buffer | MillraceError] = []
    for plan in plans:
        try:
            read.append(plan.read())
        except MillraceError as error:
            read.append(error)
    return read
