"""Periodic duties: recovery points, retention, trash, scrubbing, expiry.

Each duty is a loop with its own interval, and one for each log directory that it touches: a disk
that hangs delays only its own duties. Files are touched on the append thread of their directory
(retention, but for the room of what it removes), or on another thread where that would hold up
appends (checkpoints, trash, scrubbing).
Metrics wait for no disk at all.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from millrace.broker import events
from millrace.broker.replica.counts import count_replicas, measure_sizes
from millrace.broker.replica.open_directory import OpenDirectory
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.reader import LogReader
from millrace.broker.storage.log import PartitionLog
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import StorageConfig
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import Offset, WallMs
from millrace.core.replica.replication.effects import Change
from millrace.core.replica.replication.events import Corrupt
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now, wall_now

_log = logging.getLogger(__name__)

_SECOND = 1.0
_LAG_INTERVAL_SECONDS = 0.25
_SIZES_SECONDS = 5.0
"""Pause between two looks at the sizes of all logs: a log may have many segments."""
_FREE_SPACE_SECONDS = 3.0
"""A disk that has not reported its free space by then is shown with none."""
_RETAINED_AT_ONCE = 200
_RETAINING_SECONDS = 0.005
"""How long retention may keep the append thread; a deletion under way is finished."""


class Housekeeping:
    """The loops of one broker."""

    def __init__(
        self,
        partitions: Partitions,
        reader: LogReader,
        config: StorageConfig,
        metrics: BrokerMetrics,
        *,
        is_controller: Callable[[], bool],
        hanging_ms: int,
    ) -> None:
        self._partitions = partitions
        self._directories = partitions.directories
        self._reader = reader
        self._config = config
        self._metrics = metrics
        self._is_controller = is_controller
        self._hanging_ms = hanging_ms
        for opened in self._directories:
            flushes = metrics.requests.flush.labels(opened.directory.path)
            opened.appender.observe_flush = flushes.observe

    async def observe(self) -> None:
        """Update the metrics, for as long as the broker runs; begins while logs are being
        opened."""
        await asyncio.gather(
            _every(_SECOND, self._observe),
            _every(_SIZES_SECONDS, self._measure_sizes),
            self._measure_loop_lag(),
            *(
                _every(_SECOND, partial(self._ask_space, directory))
                for directory in self._directories
            ),
        )

    async def run(self) -> None:
        """Keep all log directories in order, each duty in its interval, likewise."""
        await asyncio.gather(*(self._keep(directory) for directory in self._directories))

    async def _keep(self, opened: OpenDirectory) -> None:
        retention = self._config.retention_check_interval_ms / 1000
        duties = [(_SECOND, self.advance_recovery_points), (retention, self.retain)]
        if self._config.scrub_bytes_per_second > 0:
            duties.append((_SECOND, self.scrub))
        await asyncio.gather(
            *(_every(seconds, partial(_unless_refused, duty, opened)) for seconds, duty in duties)
        )

    async def advance_recovery_points(self, opened: OpenDirectory) -> None:
        """Advance those that are due."""
        await opened.appender.call_beside(opened.directory.checkpoint, monotonic_now())
        self._take_corrupt_offline(opened)

    async def retain(self, opened: OpenDirectory) -> None:
        """Delete old segments and empty the trash."""
        now = wall_now()
        await self._retain_logs_of(opened, now)
        retired = opened.directory.retired
        await opened.appender.call(retired.look_again_for_damaged)
        await self._do_beside(opened, retired.empty_trash, now)
        await opened.appender.call(opened.directory.ballast.take)

    async def _retain_logs_of(self, opened: OpenDirectory, now: WallMs) -> None:
        """Delete old segments of many logs in one call: few of thousands have any."""
        idle_since = WallMs(now - self._config.producer_id_expiration_ms)
        waiting = deque(
            partition
            for partition in self._partitions.all()
            if partition.appender is opened.appender
        )
        while waiting:
            taken: list[Partition] = []
            while waiting and len(taken) < _RETAINED_AT_ONCE:
                partition = waiting.popleft()
                # A replica deleted meanwhile has no files any more, and the log of one that moved
                # belongs to another thread.
                is_here = self._partitions.find(partition.topic_partition) is partition
                if is_here and partition.appender is opened.appender:
                    taken.append(partition)
            for partition in taken:
                if partition.replica.leader is not None:
                    partition.replica.leader.producers.expire(idle_since)
            # A follower's log begins where its leader's does.
            logs = [
                (
                    partition.log,
                    partition.replica.high_watermark if partition.replica.leads else None,
                )
                for partition in taken
            ]
            outcomes = await opened.appender.call(_retain_logs, logs, now, idle_since)
            for partition, outcome in zip(taken, outcomes, strict=False):
                self._on_retained(partition, outcome)
            waiting.extendleft(reversed(taken[len(outcomes) :]))

    def _on_retained(self, partition: Partition, outcome: int | StorageError) -> None:
        if isinstance(outcome, CorruptLogError):  # Go on with the others.
            self._partitions.on_disk(partition, Corrupt(outcome))
        elif isinstance(outcome, StorageFullError | StorageBusyError):
            events.RETENTION_REFUSED.log(
                _log, partition=str(partition.topic_partition), error=outcome.message
            )
        elif isinstance(outcome, int) and outcome:
            self._metrics.retention_deleted_segments.inc(outcome)
            self._partitions.on_disk(partition, partition.changed(Change.ADVANCE_START))

    async def scrub(self, opened: OpenDirectory) -> None:
        """Read some stored batches again."""
        directory, max_bytes = opened.directory, self._config.scrub_bytes_per_second
        await self._do_beside(opened, directory.scrub, max_bytes)
        self._take_corrupt_offline(opened)

    async def _do_beside(self, opened: OpenDirectory, job: Callable[..., Any], *args: Any) -> None:
        """Do what takes long on a thread that reads: neither appends nor flushes wait for it."""
        try:
            await self._reader.call(opened.directory.path, job, *args)
        except LogDirFailedError as error:
            opened.appender.fail(error)
            raise

    def _take_corrupt_offline(self, opened: OpenDirectory) -> None:
        for topic_partition, error in list(opened.directory.corrupt.items()):
            self._partitions.take_offline(topic_partition, error)

    async def _observe(self) -> None:
        self._metrics.partitions.set(len(self._partitions))
        if self._partitions.image is not None:
            self._metrics.replication.on_image(
                self._partitions.image,
                is_controller=self._is_controller(),
                leaderships_failed=self._partitions.replicas.unopened.leaderships_failed,
            )
        counts = await count_replicas(
            self._partitions.all(), monotonic_now, wall_now, self._hanging_ms
        )
        self._metrics.replication.on_counted(counts)
        self._metrics.transactions.on_undecided(counts.undecided)
        self._metrics.offline_log_dirs.set(
            sum(opened.failure is not None for opened in self._directories)
        )
        self._metrics.offline_replicas.set(len(self._partitions.replicas.unopened.errors))
        self._metrics.misplaced_replicas.set(len(self._partitions.placement.moves))
        self._metrics.moving_replicas.set(self._partitions.placement.moves.under_way)
        for opened in self._directories:
            kept = self._metrics.damaged_logs.labels(opened.directory.path)
            kept.set(len(opened.directory.retired.damaged))

    async def _measure_sizes(self) -> None:
        topics, directories = await measure_sizes(self._partitions.all())
        self._metrics.on_topic_sizes(topics)
        for opened in self._directories:
            directory = opened.directory
            gauge = self._metrics.log_dir_log_bytes.labels(directory.path, directory.media)
            gauge.set(directories.get(directory.path, 0))

    async def _ask_space(self, opened: OpenDirectory) -> None:
        directory, metrics = opened.directory, self._metrics
        labels = (directory.path, directory.media)
        asked = self._reader.call(directory.path, directory.space)
        await asyncio.wait([asked], timeout=_FREE_SPACE_SECONDS)
        # A disk that does not answer is not full: nobody should delete records because of it.
        if not asked.done():
            metrics.log_dir_free_bytes.remove(*labels)
        try:
            free, size = await asked  # It is not asked again before it has answered.
        except OSError:
            metrics.log_dir_free_bytes.remove(*labels)
            return
        metrics.log_dir_free_bytes.labels(*labels).set(free)
        metrics.log_dir_size_bytes.labels(*labels).set(size)

    async def _measure_loop_lag(self) -> None:
        while True:
            due = host.monotonic_s() + _LAG_INTERVAL_SECONDS
            await asyncio.sleep(_LAG_INTERVAL_SECONDS)
            self._metrics.loop_lag_seconds.observe(max(host.monotonic_s() - due, 0))


async def _every(seconds: float, duty: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        await duty()


async def _unless_refused(
    duty: Callable[[OpenDirectory], Awaitable[None]], opened: OpenDirectory
) -> None:
    """Do a duty in a working directory; its disk's refusal concerns no other directory."""
    if opened.failure is None:
        try:
            await duty(opened)
        except StorageError as error:  # Its consequences were handled where it was raised.
            events.HOUSEKEEPING_REFUSED.log(
                _log, duty=duty.__name__, log_dir=opened.directory.path, error=error.message
            )


def _retain_logs(
    logs: Sequence[tuple[PartitionLog, Offset | None]], now: WallMs, idle_since: WallMs
) -> list[int | StorageError]:
    """Forget idle producers and delete old segments, for as long as appends may wait for it.

    Args:
        logs: with the high watermark, if this broker leads.

    Returns:
        The outcomes of the first logs, at least one: deleted segments, or an error.

    Raises:
        LogDirFailedError: the disk failed.
    """
    until = host.monotonic_s() + _RETAINING_SECONDS
    outcomes: list[int | StorageError] = []
    for log, high_watermark in logs:
        log.expire_producers(idle_since)
        log.notice_clock(now)
        try:
            outcomes.append(
                0 if high_watermark is None else log.retention.apply(now, high_watermark)
            )
        except (CorruptLogError, StorageFullError, StorageBusyError) as error:
            outcomes.append(error)
        if host.monotonic_s() > until:
            break
    return outcomes
