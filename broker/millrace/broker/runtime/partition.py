"""One partition that this broker leads: its machine, its files, and who waits for it."""

from collections.abc import Callable, Iterable
from typing import Protocol

from millrace.broker.runtime.appender import Appender
from millrace.broker.runtime.clock import wall_now
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import CorruptLogError, MillraceError
from millrace.core.ids import LeaderEpoch, Offset, TopicPartition
from millrace.core.metadata.topic_config import Durability, TimestampType, TopicConfig
from millrace.core.records.batch import BatchLimits
from millrace.core.records.header import HEADER_BYTES, BatchHeader, stamp
from millrace.core.replication.leader import Acks, AppendRules, PartitionLeader, Waiter


class AppendOwner(Protocol):
    """What a waiter's token is: told when its append is acknowledged or has failed."""

    def on_append_done(self, waiter: Waiter) -> None:
        """`waiter` is done."""


class Reader(Protocol):
    """Somebody who follows partitions, under a handle of its own for each."""

    def on_advanced(self, handle: int) -> None:
        """The partition's high watermark or log start offset moved."""


class Partition:
    """See the module. All methods are called on the event loop.

    Attributes:
        leader: the machine that decides.
        log: the files; changed by the appender's thread only.
        limits: what a client's batch may be; read by the checking thread too.
        generation_written: the append thread's own count of failed writes.
    """

    __slots__ = (
        "_inflated_bytes_max",
        "_on_corrupt",
        "_readers",
        "appender",
        "config",
        "generation_written",
        "is_flushed_before_ack",
        "leader",
        "limits",
        "log",
        "topic",
        "topic_partition",
    )

    def __init__(
        self,
        *,
        topic: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        leader_epoch: LeaderEpoch,
        log: PartitionLog,
        appender: Appender,
        inflated_bytes_max: int,
        on_corrupt: Callable[[TopicPartition, CorruptLogError], None],
    ) -> None:
        self.topic = topic
        self.topic_partition = topic_partition
        self.log = log
        self.appender = appender
        self.generation_written = 0
        self._inflated_bytes_max = inflated_bytes_max
        self._on_corrupt = on_corrupt
        self._readers: set[tuple[Reader, int]] = set()
        end = log.log_end_offset
        self.leader = PartitionLeader(
            topic_partition,
            leader_epoch,
            log.producer_states.copy(),
            AppendRules(),
            next_offset=end,
            written_offset=end,
            flushed_offset=log.flushed_offset,
            # The only replica is the whole in-sync set: what recovery kept is committed.
            high_watermark=end,
        )
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Follow the topic's settings from now on."""
        self.config = config
        self.is_flushed_before_ack = config.durability is Durability.FSYNC
        self.leader.rules = AppendRules(
            durability=config.durability,
            stamps_append_time=config.message_timestamp_type is TimestampType.LOG_APPEND_TIME,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        )
        self.limits = BatchLimits(
            batch_bytes_max=config.max_message_bytes, inflated_bytes_max=self._inflated_bytes_max
        )

    def append(
        self, header: BatchHeader, batch: memoryview, acks: Acks, owner: AppendOwner
    ) -> Waiter:
        """Append a checked batch; `owner` is told unless the waiter that is returned is done.

        Raises:
            MillraceError: the append was refused; nothing was appended.
        """
        waiter = self.leader.append(header, acks, owner, wall_now())
        if not waiter.is_duplicate:
            stamped = stamp(
                batch[:HEADER_BYTES],
                base_offset=waiter.base_offset,
                leader_epoch=self.leader.leader_epoch,
                append_timestamp=waiter.append_timestamp,
            )
            self.appender.append(
                self,
                StampedBatch.of(header, stamped, batch[HEADER_BYTES:], waiter.append_timestamp),
                self.leader.generation,
            )
        return waiter

    def on_written(self, end_offset: Offset) -> None:
        """All before `end_offset` is in the file."""
        before = self.leader.high_watermark
        self._tell(self.leader.on_written(end_offset), before)

    def on_flushed(self, end_offset: Offset, flushed_offset: Offset) -> None:
        """All before `end_offset` is in the file, and before `flushed_offset` durable."""
        before = self.leader.high_watermark
        done = self.leader.on_written(end_offset)
        done += self.leader.on_flushed(flushed_offset)
        self._tell(done, before)

    async def flush(self) -> None:
        """Make durable what was written while it did not have to be, or it were waited for.

        Raises:
            StorageError: the log takes nothing any more.
        """
        flushed = await self.appender.call(self.log.flush)
        # Before this task went on, the loop may have heard of writes behind that flush.
        self.on_flushed(self.leader.written_offset, flushed)

    def on_write_failed(self, base_offset: Offset, error: MillraceError) -> None:
        """The batches from `base_offset` on were not written."""
        self._tell(self.leader.on_write_failed(base_offset, error), self.leader.high_watermark)

    def on_corrupt(self, error: CorruptLogError) -> None:
        """The log is damaged, and takes nothing any more."""
        self._on_corrupt(self.topic_partition, error)

    def resign(self, error: MillraceError) -> None:
        """Stop leading: appends that wait fail with `error`, readers are told to look."""
        self._tell(self.leader.resign(error), self.leader.high_watermark)
        self.on_readers_concerned()

    def _tell(self, done: Iterable[Waiter], high_watermark_before: Offset) -> None:
        for waiter in done:
            waiter.owner.on_append_done(waiter)  # type: ignore[attr-defined]
        if self.leader.high_watermark != high_watermark_before:
            self.on_readers_concerned()

    def on_readers_concerned(self) -> None:
        """Have every reader look at the partition again."""
        for reader, handle in self._readers:
            reader.on_advanced(handle)

    def follow(self, reader: Reader, handle: int) -> None:
        """Tell `reader` from now on when there is news."""
        self._readers.add((reader, handle))

    def leave(self, reader: Reader, handle: int) -> None:
        """Tell `reader` no more."""
        self._readers.discard((reader, handle))
