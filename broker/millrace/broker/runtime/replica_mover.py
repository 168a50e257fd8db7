"""Moves a replica to another log directory of its broker while it leads or follows.

Its log is copied in the background, as fast as a follower may catch up. When hardly anything is
missing what is to be appended waits for a moment; the rest is copied and flushed, and from then on
the replica has the copy for its log. The old one goes to the trash, and what has waited is appended
to the copy. For the replica's machine, for producers and for followers the disk was slow, and that
is all: no role changes, and nothing is fetched from others. So a partition with one replica moves
as any other.

What a crash leaves of it, and why no append is lost: see `storage/log_directory.py`. Until the old
log is gone, durably, nothing is appended to the copy.

What is refused before the copy is the replica's log leaves all as it was. A disk that refuses
afterwards is asked again for as long as that may pass; one that fails takes the replica offline, as
it does with all that it has.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from millrace.broker.runtime.appender import HeldAppends
from millrace.broker.runtime.clock import monotonic_now, wall_now
from millrace.broker.runtime.mailbox import Mailbox, Worker
from millrace.broker.runtime.open_directory import OpenDirectory
from millrace.broker.runtime.partition import Partition
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_copy import LogCopy
from millrace.core.errors import (
    LogDirFailedError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.fetch.catch_up import CatchUpAllowance

_log = logging.getLogger(__name__)

_MISSING_BYTES_MAX: Final = 1 << 20
"""What may be left to copy while appends wait."""
_PAUSE_SECONDS: Final = 1.0
"""Before a disk that is full, or busy, is asked again."""


class ReplicaMover:
    """See the module.

    Args:
        mailbox: brings the copying thread's results to the loop.
        bytes_per_second: how fast logs are copied, on top of what is appended to them meanwhile;
            negative: as fast as it goes.
        is_wanted: asked now and then whether a replica is still to move to a directory.
        on_taken_in: called when the copy is to be the replica's log.
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
        """Move a replica; where it is not wanted any more, all stays as it is.

        Raises:
            StorageError: why the replica is where it was. When it is offline as well, a log
                directory has failed.
        """
        copy = await self._call(target, target.directory.begin_copy, partition.log)
        try:
            if await self._catch_up(partition, target, copy):
                await self._switch(partition, source, target, copy)
        finally:
            if partition.log is copy.log and target.failure is None:
                await self._call(target, target.directory.remove_copy, partition.topic_partition)

    async def _catch_up(self, partition: Partition, target: OpenDirectory, copy: LogCopy) -> bool:
        """Copy until hardly anything is missing; return whether the replica is still to move."""
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
        """Have a copy be the log of its replica."""
        held = partition.appender = HeldAppends()
        try:
            await source.appender.call(_nothing)  # Behind all that was on its way to the disk.
            await source.appender.call_beside(copy.log.checkpoint)
            taken = await self._call(
                target,
                target.directory.take_in,
                copy,
                source.directory,
                copy.log.config,
                wall_now(),
            )
            source.check()
        except StorageError as error:
            partition.appender = source.appender
            if source.failure is None:
                held.release(source.appender)
            else:
                held.fail(error)
            raise
        topic_partition = partition.topic_partition
        self._on_taken_in(partition, taken, source, target)
        try:
            await _until_done(source, source.directory.part_with, topic_partition, wall_now())
            await _until_done(target, target.directory.settle, topic_partition)
        except LogDirFailedError as error:
            held.fail(error)
            raise
        partition.appender = target.appender
        held.release(target.appender)

    async def _call(self, opened: OpenDirectory, job: Callable[..., Any], *args: Any) -> Any:
        """Run something on the copying thread; its disk is that of a directory."""
        opened.check()
        try:
            return await self._worker.call(job, *args)
        except LogDirFailedError as error:
            opened.appender.fail(error)
            raise

    def close(self) -> None:
        """Let the job that is under way end, and then the thread; blocks for as long."""
        self._worker.close()


async def _until_done(opened: OpenDirectory, job: Callable[..., object], *args: object) -> None:
    """Run something on a directory's append thread, again for as long as a refusal may pass."""
    while True:
        try:
            await opened.appender.call(job, *args)
        except (StorageFullError, StorageBusyError) as error:
            _log.warning("a replica's appends wait for its move", extra={"error": error.message})
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return


def _nothing() -> None:
    pass
