"""Reads from the logs: at once when the page cache has the bytes, by a thread when it has not.

The event loop may read only what cannot block it (`preadv` with `RWF_NOWAIT`). The page cache is
the only cache of records. What was read last is kept: when the next follower asks for the same,
which is the usual case, its answer is made of the same buffer.

Each log directory has threads of its own: a disk that hangs blocks only the reads of that disk.
Their readers take turns: one with many reads to wait for does not hold up the others (`of`).
"""

import asyncio
import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Final, Self

import numpy as np

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.segment import ReadPlan
from millrace.core.errors import MillraceError
from millrace.core.records.header import Buffer
from millrace.runtime.mailbox import Mailbox, Worker

_FEW_BYTES: Final = 16 << 10

Read = tuple[PartitionLog, ReadPlan]
"""A log and the plan of a read."""


@dataclass(slots=True)
class _Last:
    """What was read last."""

    plans: list[ReadPlan] = field(default_factory=list)
    found: list[Buffer | MillraceError] = field(default_factory=list)


class LogReader:
    """Executes read plans.

    Args:
        mailbox: brings the threads' results to the loop.
        threads: how many reads of one log directory may block at the same time.
        buffer_bytes: of one read by the loop: the largest response.
    """

    def __init__(self, mailbox: Mailbox, *, threads: int, buffer_bytes: int) -> None:
        self._mailbox = mailbox
        self._threads = threads
        self._workers: list[Worker] = []
        self._next: dict[str, Iterator[Worker]] = {}
        self._bytes_max = buffer_bytes
        self._last = _Last()
        self._owner: Hashable = None

    def of(self, owner: Hashable) -> Self:
        """Return the same reader, for an owner that takes turns on the threads with others."""
        own = copy.copy(self)  # It shares what the other one has.
        own._owner = owner
        return own

    def read_cached(self, reads: Sequence[Read]) -> list[Buffer | MillraceError] | None:
        """Read from the page cache, or return None when something would block.

        The buffers are not written to any more.
        """
        plans = [plan for _, plan in reads]
        last = self._last
        if plans == last.plans:  # Segments only grow: a replacement is another object.
            return last.found
        size = sum([plan.length for plan in plans])
        if size > self._bytes_max:
            return None
        # Zeros cost less than numpy where they are few.
        buffer = memoryview(bytearray(size)) if size < _FEW_BYTES else np.empty(size, np.uint8).data
        views: list[Buffer | MillraceError] = []
        at = 0
        for log, plan in reads:
            end = at + plan.length
            view = buffer[at:end]
            try:
                if log.reader.read_cached(plan, view) < 0:
                    return None
            except OSError:
                return None  # The thread will get the error, too, and handle it.
            views.append(view)
            at = end
        last.plans, last.found = plans, views
        return views

    async def read(self, reads: Sequence[Read]) -> list[Buffer | MillraceError]:
        """Read on threads. Reads of files deleted meanwhile return fewer bytes than planned."""
        by_log_dir: dict[str, list[Read]] = {}
        for read in reads:
            by_log_dir.setdefault(read[1].segment.log_dir, []).append(read)
        found = await asyncio.gather(
            *(self.call(log_dir, _read, there) for log_dir, there in by_log_dir.items())
        )
        of = dict(zip(by_log_dir, map(iter, found), strict=True))
        return [next(of[plan.segment.log_dir]) for _, plan in reads]

    def call(self, log_dir: str, job: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run another job that may wait for the disk, on a thread of its log directory."""
        if log_dir not in self._next:
            workers = [
                Worker(f"{log_dir}-read-{number}", self._mailbox) for number in range(self._threads)
            ]
            self._workers += workers
            self._next[log_dir] = cycle(workers)
        return next(self._next[log_dir]).call(job, *args, owner=self._owner)

    def close(self) -> None:
        """End the threads."""
        for worker in self._workers:
            worker.close()


def _read(reads: Sequence[Read]) -> list[Buffer | MillraceError]:
    found: list[Buffer | MillraceError] = []
    for log, plan in reads:
        try:
            found.append(log.reader.read(plan))
        except MillraceError as error:
            found.append(error.with_traceback(None))  # It refers to this frame.
    return found
