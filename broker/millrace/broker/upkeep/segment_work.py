"""What compaction and moves between disks have in common: their pace, and what a refusal leads to.

Both work on closed segments in the background. `keep_pace` bounds the bytes that they read and
write in a second. After a refusal, as by a full disk, a log is left alone for a minute. A damaged
log goes offline (P65), and a failed disk is given up (P63).
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.storage.log import PartitionLog
from millrace.core.errors import CorruptLogError, LogDirFailedError, StorageError
from millrace.core.ids import MonotonicMs, TopicPartition
from millrace.core.replica.fetch.catch_up import CatchUpAllowance
from millrace.core.replica.replication.events import Corrupt
from millrace.runtime.clock import monotonic_now, wall_now

_JOB_BYTES: Final = 8 << 20
"""Of one job of a thread; less if that is more than a tenth of what is allowed in a second."""
_JOBS_PER_SECOND_MIN: Final = 10
_REFUSED_MS: Final = 60_000
"""How long a log whose work was refused is left alone."""


class SegmentWork:
    """The pace and the pauses of one kind of background work. It belongs to the event loop.

    Args:
        partitions: of this broker.
        bytes_per_second: read and written, of all this work together; 0 or less: no bound.
        tell: says that a replica's work was refused, and why.

    Attributes:
        job_bytes: what a thread reads and writes before the event loop looks again.
    """

    def __init__(
        self,
        partitions: Partitions,
        bytes_per_second: int,
        tell: Callable[[Partition, StorageError], None],
    ) -> None:
        self._partitions = partitions
        self._tell = tell
        self._allowance: CatchUpAllowance | None = None
        self.job_bytes = _JOB_BYTES
        if bytes_per_second > 0:
            self._allowance = CatchUpAllowance(bytes_per_second, monotonic_now())
            self.job_bytes = min(_JOB_BYTES, bytes_per_second // _JOBS_PER_SECOND_MIN)
        self._left_alone: dict[TopicPartition, MonotonicMs] = {}  # And until when.

    async def keep_pace(self, size: int) -> None:
        """Count bytes that were read and written, and wait if they were too many."""
        if self._allowance is not None:
            self._allowance.on_sent(size)
            if pause_ms := self._allowance.pause_ms(monotonic_now()):
                await asyncio.sleep(pause_ms / 1000)

    def free(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Return the replicas that are not left alone now."""
        now = monotonic_now()
        self._left_alone = {
            partition: until for partition, until in self._left_alone.items() if until > now
        }
        return [
            partition
            for partition in partitions
            if partition.topic_partition not in self._left_alone
        ]

    def leave_alone(self, topic_partition: TopicPartition, duration_ms: int) -> None:
        """Do no work on a replica for a while."""
        self._left_alone[topic_partition] = MonotonicMs(monotonic_now() + duration_ms)

    async def end_old_segments(self, partitions: Iterable[Partition]) -> None:
        """End active segments that are old, although nothing is appended to them."""
        now = wall_now()
        for partition in partitions:
            log = partition.log
            if log.has_old_segment(now):
                try:
                    await partition.appender.call(log.writer.roll, now)
                except StorageError as error:
                    self.on_refused(partition, log, error)

    def on_refused(
        self, partition: Partition, log: PartitionLog, error: StorageError, log_dir: str = ""
    ) -> None:
        """Work on a log was refused; nothing follows if the replica has another log by now.

        Args:
            partition: whose log it was.
            log: as it was when the work began.
            error: why.
            log_dir: whose disk has failed, if that is the error, and the log names none.
        """
        if partition.log is not log or log.is_closed:
            return
        self._tell(partition, error)
        self.leave_alone(partition.topic_partition, _REFUSED_MS)
        if isinstance(error, CorruptLogError):
            self._partitions.on_disk(partition, Corrupt(error))
        elif isinstance(error, LogDirFailedError):
            failed = log.failed_log_dir or log_dir
            for opened in self._partitions.directories:
                if opened.directory.path == failed:
                    opened.appender.fail(error)


def on_given_up(_: object, error: BaseException | None) -> None:
    """Raise what went wrong while work was given up, unless the disk refused to remove a file.

    What is left over is removed later.
    """
    if error is not None and not isinstance(error, StorageError):
        raise error
