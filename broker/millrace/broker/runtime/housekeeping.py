"""What must be done from time to time: recovery points, retention, trash, scrubbing, forgetting.

Each duty is a loop with its own interval. Files are touched on the append thread of their directory
(retention, trash), or beside it where a long flush must not hold up appends (checkpoints).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from millrace.broker.config import StorageConfig
from millrace.broker.runtime.clock import monotonic_now, wall_now
from millrace.broker.runtime.partition import Partition
from millrace.broker.runtime.partitions import OpenDirectory, Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.errors import (
    CorruptLogError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import WallMs

_log = logging.getLogger(__name__)

_SECOND = 1.0
_LAG_INTERVAL_SECONDS = 0.25


class Housekeeping:
    """See the module."""

    def __init__(
        self,
        partitions: Partitions,
        reader: LogReader,
        config: StorageConfig,
        metrics: BrokerMetrics,
        *,
        is_controller: Callable[[], bool],
    ) -> None:
        self._partitions = partitions
        self._reader = reader
        self._config = config
        self._metrics = metrics
        self._is_controller = is_controller

    async def run(self) -> None:
        """Do everything in its interval, for as long as the broker runs."""
        retention = self._config.retention_check_interval_ms / 1000
        duties = [
            _every(_SECOND, self._advance_recovery_points),
            _every(_SECOND, self._observe),
            _every(retention, self._retain),
            self._measure_loop_lag(),
        ]
        if self._config.scrub_bytes_per_second > 0:
            duties.append(_every(_SECOND, self._scrub))
        await asyncio.gather(*duties)

    async def _advance_recovery_points(self) -> None:
        for opened in self._partitions.directories:
            if opened.failure is None:
                await opened.appender.call_beside(opened.directory.checkpoint, monotonic_now())
                self._take_corrupt_offline(opened)

    async def _retain(self) -> None:
        now = wall_now()
        for partition in self._partitions.all():
            # One that was deleted meanwhile has no files any more.
            if self._partitions.find(partition.topic_partition) is partition:
                try:
                    await self._retain_partition(partition, now)
                except CorruptLogError as error:  # The others are kept in order all the same.
                    partition.on_corrupt(error)
                except (StorageFullError, StorageBusyError) as error:
                    _log.warning("retention was refused", extra={"error": error.message})
        for opened in self._partitions.directories:
            if opened.failure is None:
                await opened.appender.call(opened.directory.empty_trash, now)
                await opened.appender.call(opened.directory.take_ballast)

    async def _retain_partition(self, partition: Partition, now: WallMs) -> None:
        idle_since = WallMs(now - self._config.producer_id_expiration_ms)
        if partition.replica.leader is not None:
            partition.replica.leader.producers.expire(idle_since)
        call = partition.appender.call
        await call(partition.log.expire_producers, idle_since)
        if not partition.replica.leads:
            return  # A follower's log begins where its leader's does.
        if await call(partition.log.apply_retention, now, partition.replica.high_watermark):
            partition.on_readers_concerned()

    async def _scrub(self) -> None:
        for opened in self._partitions.directories:
            if opened.failure is None:
                await self._reader.call(opened.directory.scrub, self._config.scrub_bytes_per_second)
                self._take_corrupt_offline(opened)

    def _take_corrupt_offline(self, opened: OpenDirectory) -> None:
        for topic_partition, error in list(opened.directory.corrupt.items()):
            self._partitions.take_offline(topic_partition, error)

    async def _observe(self) -> None:
        self._metrics.partitions.set(len(self._partitions))
        if self._partitions.image is not None:
            self._metrics.replication.on_image(
                self._partitions.image, is_controller=self._is_controller()
            )
        await self._metrics.replication.observe(self._partitions.all(), monotonic_now)
        self._metrics.offline_log_dirs.set(
            sum(opened.failure is not None for opened in self._partitions.directories)
        )
        self._metrics.offline_replicas.set(len(self._partitions.replicas.failed))
        for opened in self._partitions.directories:
            kept = self._metrics.damaged_logs.labels(opened.directory.path)
            kept.set(len(opened.directory.damaged))
            try:
                free = await self._reader.call(opened.directory.free_space)
            except OSError:
                free = 0  # A disk that cannot even be asked.
            self._metrics.log_dir_free_bytes.labels(opened.directory.path).set(free)

    async def _measure_loop_lag(self) -> None:
        while True:
            due = time.monotonic() + _LAG_INTERVAL_SECONDS
            await asyncio.sleep(_LAG_INTERVAL_SECONDS)
            self._metrics.loop_lag_seconds.observe(max(time.monotonic() - due, 0))


async def _every(seconds: float, duty: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await duty()
        except StorageError as error:  # Whoever met it has taken its consequences already.
            _log.warning(
                "housekeeping was refused", extra={"duty": duty.__name__, "error": error.message}
            )
