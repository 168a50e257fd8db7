"""Compacts logs in the background: a few threads, each of which cleans the dirtiest log next.

Each replica is cleaned by its own broker, whether it leads or follows. A thread cleans a few MiB in
each job; between jobs the event loop looks whether the replica is still here, and whether all
cleanings together have read and written more than they may.

Tombstones stay while a replica of the partition is out of sync. It may have a record that one of
them deletes; when it comes back it fetches what it lacks, and a tombstone that is gone would leave
it with that record for ever.

`Partition.uncleanable` says why a log could not be cleaned; `segment_work` has what follows.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from operator import add
from typing import Any, Final

from millrace.broker import events
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log.cleaner import CleaningStep
from millrace.broker.telemetry.compaction import CompactionMetrics
from millrace.broker.upkeep.segment_work import SegmentWork, on_given_up
from millrace.core.broker_config import StorageConfig
from millrace.core.errors import StorageError
from millrace.core.ids import TopicPartition, WallMs
from millrace.core.replica.compaction.cleanable import Cleanable, first_to_clean
from millrace.core.replica.compaction.key_hashes import KeyHasher
from millrace.core.replica.replication.effects import Change
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now, wall_now
from millrace.runtime.mailbox import Mailbox, Worker

_log = logging.getLogger(__name__)

_SECRET_BYTES: Final = 32


class Cleaners:
    """The threads that clean this broker's logs. It belongs to the event loop.

    Args:
        partitions: of this broker.
        mailbox: brings the threads' results to the loop.
        config: how many threads, and their bounds.
        metrics: of what they do.
    """

    def __init__(
        self,
        partitions: Partitions,
        mailbox: Mailbox,
        config: StorageConfig,
        metrics: CompactionMetrics,
    ) -> None:
        self._partitions = partitions
        self._config = config
        self._metrics = metrics
        self._hasher = KeyHasher(host.current.random_bytes(_SECRET_BYTES))
        self._workers = [
            Worker(f"clean-{number}", mailbox) for number in range(config.cleaner_threads)
        ]
        self._map_bytes = config.cleaner_dedupe_buffer_size // max(config.cleaner_threads, 1)
        self._shared = SegmentWork(
            partitions, config.cleaner_io_max_bytes_per_second, self._tell_refused
        )
        self._under_way: set[TopicPartition] = set()

    async def run(self) -> None:
        """Clean for as long as the broker runs."""
        await asyncio.gather(*(self._work(worker) for worker in self._workers))

    def close(self) -> None:
        """Let the steps under way end, then end the threads; blocks meanwhile."""
        for worker in self._workers:
            worker.close()

    async def _work(self, worker: Worker) -> None:
        while True:
            chosen = await self._choose(worker)
            if chosen is None:
                await asyncio.sleep(self._config.cleaner_backoff_ms / 1000)
                continue
            self._under_way.add(chosen.topic_partition)
            try:
                await self._clean(chosen, worker)
            finally:
                self._under_way.discard(chosen.topic_partition)

    async def _choose(self, worker: Worker) -> Partition | None:
        """Return the replica whose log is cleaned next; None when none is due."""
        all_compacted = [
            partition for partition in self._partitions.all() if partition.log.config.is_compacted
        ]
        self._metrics.on_uncleanable(
            partition.uncleanable
            for partition in all_compacted
            if partition.uncleanable is not None
        )
        compacted = [
            partition
            for partition in self._shared.free(all_compacted)
            if partition.topic_partition not in self._under_way
        ]
        await self._shared.end_old_segments(compacted)
        for partition in compacted:
            partition.log.cleaner.tombstones_end = partition.replica.role.compacted_offset
        found = await worker.call(_look_at, [partition.log for partition in compacted], wall_now())
        self._metrics.dirtiest_ratio.set(max((log.dirty_ratio for log in found), default=0))
        chosen = first_to_clean(zip(compacted, found, strict=True))
        # Another thread may have taken it up meanwhile.
        is_free = chosen is not None and chosen.topic_partition not in self._under_way
        return chosen if is_free else None

    async def _clean(self, partition: Partition, worker: Worker) -> None:
        """Clean a log once; leave it as it is if it is closed or moved meanwhile."""
        log, topic_partition = partition.log, partition.topic_partition
        steps = log.cleaner.clean(self._hasher, self._map_bytes, wall_now())
        begun, taken_s, count = monotonic_now(), 0.0, 0
        before = log.size_bytes
        try:
            while True:
                if self._partitions.find(topic_partition) is not partition:
                    return
                if partition.log is not log:
                    return
                job_begun = host.monotonic_s()
                done = await worker.call(_advance, steps, self._shared.job_bytes)
                taken_s += host.monotonic_s() - job_begun
                if done is None:
                    break
                count += 1
                self._metrics.read_bytes.inc(done.read_bytes)
                self._metrics.written_bytes.inc(done.written_bytes)
                self._metrics.removed_records.inc(done.removed_records)
                await self._shared.keep_pace(done.read_bytes + done.written_bytes)
        except StorageError as error:
            self._shared.on_refused(partition, log, error)
            return
        finally:
            self._metrics.seconds.inc(taken_s)
            worker.submit(on_given_up, _close, steps)
        if not count:  # It was cut or trimmed meanwhile; the next look may find it unchanged.
            self._shared.leave_alone(topic_partition, self._config.cleaner_backoff_ms)
            return
        self._partitions.on_disk(partition, partition.changed(Change.ADVANCE_START))
        partition.uncleanable = None
        self._metrics.cleanings.inc()
        events.LOG_COMPACTED.log(
            _log,
            partition=str(topic_partition),
            topic=partition.topic,
            cleaner_point=log.state.cleaner_point.offset,
            bytes_before=before,
            bytes_after=log.size_bytes,
            duration_ms=monotonic_now() - begun,
        )

    def _tell_refused(self, partition: Partition, error: StorageError) -> None:
        events.COMPACTION_REFUSED.log(
            _log, partition=str(partition.topic_partition), error=error.message
        )
        partition.uncleanable = error


def _look_at(logs: Iterable[PartitionLog], now: WallMs) -> list[Cleanable]:
    return [log.cleaner.cleanable(now) for log in logs]


def _advance(steps: Iterator[CleaningStep], bytes_max: int) -> CleaningStep | None:
    """Clean until so much is read and written; None when the cleaning is over.

    The thread waits for the event loop between jobs: a job for each step took a third longer.
    """
    done: CleaningStep | None = None
    for step in steps:
        done = step if done is None else CleaningStep(*map(add, done, step))
        if done.read_bytes + done.written_bytes >= bytes_max:
            break
    return done


def _close(steps: Any) -> None:
    steps.close()
