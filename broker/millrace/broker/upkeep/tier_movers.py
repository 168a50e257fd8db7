"""Moves closed segments of tiered topics from SSDs to HDDs in the background, and back.

Each HDD has a thread of its own, so one that hangs holds up no other one, and takes the segments of
the logs that `ReplicaPlacement` gives it. `core/replica/tiers.py` decides which segment is next,
and `storage/log/tiering.py` moves it in steps of a few MiB. Between them the event loop looks
whether the replica is still here, and whether the moves have read and written more than they may.

`Partition.unmovable` says why a log's segments do not move; `segment_work` has what follows.
Appends go on as long as the SSD has room. An HDD that fails takes the replicas offline that have
segments there, and no others (P63).
"""

import asyncio
import logging
from collections.abc import Sequence

from millrace.broker import events
from millrace.broker.replica.open_directory import OpenDirectory
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.storage.log import Moving, PartitionLog, abandon
from millrace.broker.telemetry.tiers import TierMetrics
from millrace.broker.upkeep.segment_work import SegmentWork, on_given_up
from millrace.core.broker_config import StorageConfig
from millrace.core.errors import StorageError
from millrace.core.ids import WallMs
from millrace.core.media import Media, TopicMedia
from millrace.core.replica.tiers import Movable, first_to_move, last_in_tier
from millrace.runtime.clock import wall_now
from millrace.runtime.mailbox import Mailbox, Worker

_log = logging.getLogger(__name__)


class TierMovers:
    """The threads that move this broker's segments. It belongs to the event loop.

    Args:
        partitions: of this broker.
        mailbox: brings the threads' results to the loop.
        config: how much stays free, and how fast segments move.
        metrics: of what they do.
    """

    def __init__(
        self,
        partitions: Partitions,
        mailbox: Mailbox,
        config: StorageConfig,
        metrics: TierMetrics,
    ) -> None:
        self._partitions = partitions
        self._config = config
        self._metrics = metrics
        self._movers = [
            _Mover(partitions, directory, mailbox, config, metrics)
            for directory in partitions.directories
            if directory.media is Media.HDD
        ]

    async def run(self) -> None:
        """Move segments for as long as the broker runs."""
        await asyncio.gather(*(mover.run() for mover in self._movers))

    def close(self) -> None:
        """Let the steps under way end, then end the threads; blocks meanwhile."""
        for mover in self._movers:
            mover.close()


class _Mover:
    """Moves the segments that come to one HDD, or leave it."""

    def __init__(
        self,
        partitions: Partitions,
        directory: OpenDirectory,
        mailbox: Mailbox,
        config: StorageConfig,
        metrics: TierMetrics,
    ) -> None:
        self._partitions = partitions
        self._directory = directory
        self._path = directory.directory.path
        self._config = config
        self._metrics = metrics
        self._worker = Worker(f"tier-{self._path}", mailbox)
        self._work = SegmentWork(
            partitions, config.tier_io_max_bytes_per_second, self._tell_refused
        )

    def close(self) -> None:
        self._worker.close()

    async def run(self) -> None:
        while self._directory.failure is None:
            if not await self._move_one():
                await asyncio.sleep(self._config.tier_check_interval_ms / 1000)

    async def _move_one(self) -> bool:
        """Move one segment; return whether to look for another one at once."""
        here = self._logs_here()
        self._metrics.on_logs(self._path, here)
        await self._remove_leftovers(here)
        free = self._work.free(here)
        await self._work.end_old_segments(
            partition for partition in free if partition.config.media is TopicMedia.TIERED
        )
        for home in self._partitions.placement.working:
            of_home = [
                partition for partition in free if partition.topic_partition in home.replicas
            ]
            if not of_home:
                continue
            try:
                free_bytes = await self._worker.call(home.directory.free_space)
            except OSError:  # It is about to fail.
                continue
            room = free_bytes - self._config.tier_free_bytes_min
            if (chosen := await self._choose_out(of_home, is_filling=room < 0)) is not None:
                if not self._is_wanted(chosen, chosen.log) or not self._gets(chosen):
                    return True
                identity = self._directory.directory.identity
                self._partitions.placement.on_tier(chosen.topic_partition, self._directory)
                steps = chosen.log.tiering.move_out(self._path, identity.directory_id)
                return await self._move(chosen, steps, "to")
            if (chosen := _choose_back(of_home, room)) is not None:
                return await self._move(chosen, chosen.log.tiering.bring_back(), "from")
        return False

    def _logs_here(self) -> list[Partition]:
        """Return the replicas that have segments on this HDD, or get some there."""
        return [
            partition
            for partition in self._partitions.all()
            if (
                partition.config.media is TopicMedia.TIERED
                or partition.log.tier is not None
                or partition.log.has_leftovers
            )
            and self._gets(partition)
        ]

    def _gets(self, partition: Partition) -> bool:
        """Whether the segments of a replica move to this HDD; another one may take it any time."""
        return self._partitions.placement.tier_for(partition.topic_partition) is self._directory

    async def _remove_leftovers(self, here: Sequence[Partition]) -> None:
        for partition in here:
            log = partition.log
            if log.has_leftovers:
                try:
                    await self._worker.call(log.tiering.remove_leftovers)
                except StorageError as error:
                    self._work.on_refused(partition, log, error, self._path)

    async def _choose_out(
        self, partitions: Sequence[Partition], *, is_filling: bool
    ) -> Partition | None:
        """Return the replica, of those with one home, whose segment moves to the HDD next."""
        tiered = [
            partition for partition in partitions if partition.config.media is TopicMedia.TIERED
        ]
        found = await self._worker.call(
            _look_at, [partition.log for partition in tiered], wall_now()
        )
        return first_to_move(zip(tiered, found, strict=True), is_filling=is_filling)

    async def _move(self, partition: Partition, steps: Moving, way: str) -> bool:
        """Move a segment; it stays where it is if the log is closed or moved meanwhile.

        Returns:
            Whether another one may be tried at once: it has moved, or its log is left alone now.
        """
        log, topic_partition = partition.log, partition.topic_partition
        before, moved = log.tier, 0
        try:
            await self._worker.call(self._directory.directory.check_there)
            while self._is_wanted(partition, log):
                size = await self._worker.call(next, steps, None)
                if size is None:
                    break
                moved += size
                self._metrics.moved_bytes.labels(way).inc(size)
                await self._work.keep_pace(size)
        except StorageError as error:
            self._work.on_refused(partition, log, error, self._path)
            return True
        finally:
            self._worker.submit(on_given_up, abandon, steps)
        self._note_tier(partition, log)
        if log.tier == before:
            return False
        partition.unmovable = None
        if not moved:  # The tier had no segments any more.
            return True
        self._metrics.moved_segments.labels(way).inc()
        events.SEGMENT_MOVED.log(
            _log,
            partition=self._partitions.named(topic_partition),
            log_dir=self._path,
            tier_end_offset=0 if log.tier is None else log.tier.end_offset,
        )
        return True

    def _note_tier(self, partition: Partition, log: PartitionLog) -> None:
        """Note that a log has nothing on this HDD, or that the HDD failed as a segment moved there.

        So the log may use another HDD next, and is not offline when this one fails.
        """
        if not self._is_here(partition, log):
            return
        if log.tier is None and not log.has_leftovers:
            self._partitions.placement.on_tier(partition.topic_partition, None)
        if self._directory.failure is not None:
            self._partitions.on_unreadable(self._directory, self._directory.failure)

    def _is_here(self, partition: Partition, log: PartitionLog) -> bool:
        """Whether a log is still that of a replica here."""
        is_here = self._partitions.find(partition.topic_partition) is partition
        return is_here and partition.log is log

    def _is_wanted(self, partition: Partition, log: PartitionLog) -> bool:
        """Likewise, and the HDD works."""
        return self._is_here(partition, log) and self._directory.failure is None

    def _tell_refused(self, partition: Partition, error: StorageError) -> None:
        events.SEGMENT_NOT_MOVED.log(
            _log,
            partition=self._partitions.named(partition.topic_partition),
            log_dir=self._path,
            error=error.message,
        )
        partition.unmovable = error
        self._note_tier(partition, partition.log)


def _choose_back(partitions: Sequence[Partition], room: int) -> Partition | None:
    """Return a replica whose topic asks for an SSD again, and whose next segment fits there.

    Or one that needs the HDD no more, as retention has deleted what it had there.
    """
    for partition in partitions:
        log = partition.log
        if log.tier is not None and log.segments[-1].base_offset >= log.tier.end_offset:
            found = last_in_tier(log.segments, log.tier.end_offset)
            if found is None or (partition.config.media is TopicMedia.SSD and found.size <= room):
                return partition
    return None


def _look_at(logs: Sequence[PartitionLog], now: WallMs) -> list[Movable | None]:
    return [log.tiering.movable(now) for log in logs]
