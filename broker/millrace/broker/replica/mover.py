"""Moves a replica to another log directory of its broker while it leads or follows.

Its log is copied in the background, as fast as a follower may catch up. When little is missing,
appends wait for a moment; the rest is copied and flushed, and from then on the copy is the
replica's log. The old one goes to the trash, and the waiting appends go to the copy. The replica's
machine, producers and followers only see a slow disk: no role changes, and nothing is fetched from
others. So a partition with one replica moves as any other.

`storage/log_directory/log_moves.py` explains the state after a crash, and why no append is lost.

Until the old log is gone, durably, nothing is appended to the copy. A refusal before the copy is
the replica's log changes nothing. After that, a refusal that may pass is retried; a disk that fails
takes the replica offline, with all its other replicas.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from millrace.broker import events
from millrace.broker.replica.appender import HeldAppends
from millrace.broker.replica.open_directory import OpenDirectory
from millrace.broker.replica.partition import Partition
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_directory.log_copy import LogCopy
from millrace.core.errors import (
    LogDirFailedError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.replica.fetch.catch_up import CatchUpAllowance
from millrace.runtime.clock import monotonic_now, wall_now
from millrace.runtime.mailbox import Mailbox, Worker

_log = logging.getLogger(__name__)

_MISSING_BYTES_MAX: Final = 1 << 20
"""Bytes that may be left to copy while appends wait."""
_PAUSE_SECONDS: Final = 1.0
"""Pause before a retry on a disk that is full or busy."""


class ReplicaMover:
    """Copies replicas, and makes the copies count.

    Args:
        mailbox: brings the copying thread's results to the loop.
        bytes_per_second: how fast logs are copied, on top of what is appended to them meanwhile;
            negative: as fast as it goes.
        is_wanted: called now and then; returns whether a replica should still move to a directory.
        on_taken_in: called when the copy becomes the replica's log.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        bytes_per_second: int,
        is_wanted: Callable[[Partition, OpenDirectory], bool],
        on_taken_in: Callable[[Partition, PartitionLog, OpenDirectory, OpenDirectory], None],
    ) -> None:
        self._worker = Worker("move", mailbox)
        self._bytes_per_second = bytes_per_second
        self._is_wanted = is_wanted
        self._on_taken_in = on_taken_in

    async def move(
        self, partition: Partition, source: OpenDirectory, target: OpenDirectory
    ) -> None:
        """Move a replica; if the move is no longer wanted, nothing changes.

        Raises:
            StorageError: the replica did not move. If it is offline as well, a log directory has
                failed.
        """
        copy = await self._call(target, target.directory.moves.begin_copy, partition.log)
        try:
            if await self._catch_up(partition, target, copy):
                await self._switch(partition, source, target, copy)
        finally:
            await self._worker.call(copy.close)
            if partition.log is copy.log and target.failure is None:
                await self._call(
                    target, target.directory.moves.remove_copy, partition.topic_partition
                )

    async def _catch_up(self, partition: Partition, target: OpenDirectory, copy: LogCopy) -> bool:
        """Copy until little is missing; return whether the replica should still move."""
        rate = self._bytes_per_second
        allowance = CatchUpAllowance(rate, monotonic_now()) if rate > 0 else None
        size = copy.log.size_bytes
        is_flushed = False
        while self._is_wanted(partition, target):
            if copy.missing_bytes <= _MISSING_BYTES_MAX:
                if is_flushed:
                    return True
                await self._call(target, copy.flush)
                is_flushed = True
                continue
            copied = await self._call(target, copy.advance)
            is_flushed = False
            if allowance is not None:
                allowance.on_sent(copied)
                before, size = size, copy.log.size_bytes
                if pause_ms := allowance.pause_ms(monotonic_now(), max(size - before, 0)):
                    await asyncio.sleep(pause_ms / 1000)
        return False

    async def _switch(
        self,
        partition: Partition,
        source: OpenDirectory,
        target: OpenDirectory,
        copy: LogCopy,
    ) -> None:
        """Make a copy the log of its replica."""
        held = partition.appender = HeldAppends()
        try:
            await source.appender.call(_nothing)  # Wait for all earlier appends.
            await source.appender.call_beside(copy.log.flusher.checkpoint)
            taken = await self._call(
                target,
                target.directory.moves.take_in,
                copy,
                source.directory.moves,
                copy.log.config,
                wall_now(),
            )
            source.check()
        except StorageError as error:
            partition.appender = source.appender
            copy.log.hold_cleaning(is_held=False)
            if source.failure is None:
                held.release(source.appender)
            else:
                held.fail(error)
            raise
        topic_partition = partition.topic_partition
        self._on_taken_in(partition, taken, source, target)
        try:
            await _until_done(source, source.directory.moves.part_with, topic_partition, wall_now())
            await _until_done(target, target.directory.moves.settle, topic_partition)
        except LogDirFailedError as error:
            held.fail(error)
            raise
        partition.appender = target.appender
        held.release(target.appender)

    async def _call(self, opened: OpenDirectory, job: Callable[..., Any], *args: Any) -> Any:
        """Run a job for a directory's disk on the copying thread."""
        opened.check()
        try:
            return await self._worker.call(job, *args)
        except LogDirFailedError as error:
            opened.appender.fail(error)
            raise

    def close(self) -> None:
        """Let the present job end, then end the thread; blocks meanwhile."""
        self._worker.close()


async def _until_done(opened: OpenDirectory, job: Callable[..., object], *args: object) -> None:
    """Run a job on a directory's append thread; retry while a refusal may pass."""
    while True:
        try:
            await opened.appender.call(job, *args)
        except (StorageFullError, StorageBusyError) as error:
            events.REPLICA_MOVE_WAITS.log(_log, log_dir=opened.directory.path, error=error.message)
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return


def _nothing() -> None:
    pass
