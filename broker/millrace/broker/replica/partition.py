"""One replica of this broker: its machine, its files, and its waiters."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from millrace.broker.replica.appender import Submissions
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import MillraceError, StorageError
from millrace.core.ids import Offset, TopicPartition
from millrace.core.metadata.topic_config import CleanupPolicy, Durability, TopicConfig
from millrace.core.records import kafka_batch
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.header import (
    HEADER_BYTES,
    KAFKA_FORMAT,
    BatchHeader,
    Buffer,
    parse_header,
    stamp,
)
from millrace.core.records.markers import Marker, seal_markers
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.effects import Change
from millrace.core.replica.replication.events import Changed
from millrace.core.replica.replication.leader import PartitionLeader
from millrace.core.replica.replication.leader_transactions import AppendedMarkers, JoinGuard
from millrace.core.replica.replication.replica import Replica
from millrace.core.topics import parse_topic_name
from millrace.runtime import host
from millrace.runtime.clock import wall_now


class AppendOwner(Protocol):
    """The owner of a waiter: called when its append is acknowledged or has failed."""

    def on_append_done(self, waiter: Waiter) -> None:
        """`waiter` is done."""


class Reader(Protocol):
    """An object that follows partitions, under a handle of its own for each."""

    def on_advanced(self, handle: int) -> None:
        """The partition's role, its end for this reader, or its log start offset moved."""


class Partition:
    """What streams and upkeep see of one replica, and the target of its appends. All methods are
    called on the event loop.

    Roles change only while nothing is on its way to the disk, so events of the disk always concern
    the present role.

    Attributes:
        replica: the machine that decides.
        log: the files; changed only by the appender's thread. Another object once it has moved.
        appender: writes them; while they move it holds the writes.
        generation_written: failed writes so far, in all roles; the append thread's own count.
        is_internal: the topic is the cluster's own; clients only read it.
        limits: for batches of clients; the checking thread reads them, too.
        unchanged: why its log could not be cut, trimmed or flushed; None: it could.
        uncleanable: why its log could not be compacted; None: it could.
        unmovable: why no segment could move to an HDD, or back; None: it could.
        appended_bytes, fetched_bytes: of batches from producers and to consumers, since the broker
            opened the log.
    """

    __slots__ = (
        "_followers",
        "_inflated_bytes_max",
        "_readers",
        "_waits_for_followers",
        "appended_bytes",
        "appender",
        "config",
        "fetched_bytes",
        "generation_written",
        "is_flushed_before_ack",
        "is_internal",
        "limits",
        "log",
        "replica",
        "topic",
        "topic_partition",
        "unchanged",
        "uncleanable",
        "unmovable",
    )

    def __init__(
        self,
        *,
        topic: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        replica: Replica,
        log: PartitionLog,
        appender: Submissions,
        inflated_bytes_max: int,
    ) -> None:
        self.topic = topic
        self.is_internal = parse_topic_name(topic).is_internal
        self.topic_partition = topic_partition
        self.replica = replica
        self.log = log
        self.appender: Submissions = appender
        self._inflated_bytes_max = inflated_bytes_max
        self._readers: dict[tuple[Reader, int], None] = {}
        self._followers: dict[tuple[Reader, int], None] = {}
        self._waits_for_followers: tuple[Offset, float] | None = None
        self.generation_written = 0
        self.unchanged: MillraceError | None = None
        self.uncleanable: StorageError | None = None
        self.unmovable: StorageError | None = None
        self.appended_bytes = self.fetched_bytes = 0
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Follow the topic's settings from now on."""
        self.config = config
        self.is_flushed_before_ack = config.durability is Durability.FSYNC
        self.limits = BatchLimits(
            batch_bytes_max=config.max_message_bytes,
            inflated_bytes_max=self._inflated_bytes_max,
            requires_keys=config.cleanup_policy is not CleanupPolicy.DELETE,
            takes_transactions=not self.is_internal,
        )

    @property
    def leader(self) -> PartitionLeader:
        """The machine that leads.

        Raises:
            NotLeaderError: this broker does not.
        """
        return self.replica.require_leader()

    @property
    def is_followed(self) -> bool:
        """Whether followers read here, also what is not committed; from any thread."""
        return bool(self._followers)

    # --- Writing -----------------------------------------------------------------------------

    def append(
        self,
        header: BatchHeader,
        head: Buffer,
        body: memoryview,
        acks: Acks,
        owner: AppendOwner,
        *,
        is_successor: bool = False,
        joined: JoinGuard | None = None,
    ) -> Waiter:
        """Append a checked batch; `owner` is called unless the returned waiter is done.

        See `PartitionLeader.append`.

        Args:
            header: of the batch, parsed.
            head: the bytes of the header, not stamped yet.
            body: what follows them; of a Kafka client's batch that batch as it came.
            acks: what the waiter waits for.
            owner: the receiver of the outcome.
            is_successor: as in `ProducerStates.check`.
            joined: of a transactional batch.

        Raises:
            MillraceError: the append was refused; nothing was appended.
        """
        leader, now = self.leader, wall_now()
        waiter = leader.append(header, acks, owner, now, is_successor=is_successor, joined=joined)
        if not waiter.is_duplicate:
            base_offset, append_timestamp = waiter.base_offset, waiter.append_timestamp
            if header.format == KAFKA_FORMAT:
                stamped, body = kafka_batch.stamp(
                    self.topic_partition,
                    head,
                    body,
                    base_offset=base_offset,
                    leader_epoch=leader.leader_epoch,
                    append_timestamp=append_timestamp,
                )
            else:
                stamped = stamp(
                    head,
                    base_offset=base_offset,
                    leader_epoch=leader.leader_epoch,
                    append_timestamp=append_timestamp,
                )
            self.appender.append(
                self,
                StampedBatch.of(header, stamped, body, append_timestamp, now),
                leader.generation,
            )
        return waiter

    def append_markers(self, markers: Sequence[Marker], owner: AppendOwner) -> AppendedMarkers:
        """Append the ends of transactions, at most `MARKERS_MAX`, in one control batch.

        `owner` is called when all that are not refused are committed, or may not be, unless the
        waiter is done. See `PartitionLeader.append_markers`.

        Raises:
            MillraceError: all were refused; nothing was appended.
        """
        assert not self.is_internal  # T10: a state that is kept as records has no markers.
        leader, now = self.leader, wall_now()
        appended = leader.append_markers(markers, owner, now)
        if appended.written:
            assert appended.waiter is not None
            batch = memoryview(seal_markers(self.topic_partition, appended.written, now))
            stamped = stamp(
                batch[:HEADER_BYTES],
                base_offset=appended.waiter.base_offset,
                leader_epoch=leader.leader_epoch,
            )
            self.appender.append(
                self,
                StampedBatch.of(parse_header(batch), stamped, batch[HEADER_BYTES:], came_at=now),
                leader.generation,
            )
        return appended

    def append_replicated(self, batches: Iterable[StampedBatch], generation: int) -> None:
        """Append a leader's batches as they are (P1)."""
        for batch in batches:
            self.appender.append(self, batch, generation)

    def changed(self, change: Change) -> Changed:
        """Return what the disk has made of the log: an event for `Partitions.on_disk`."""
        return Changed(change, self.log.log_start_offset, self.log.log_end_offset)

    # --- How long replication takes; one measurement at a time --------------------------------

    def note_durable(self) -> None:
        """Begin a measurement if this leader has batches that its followers lack."""
        leader = self.replica.leader
        if self._waits_for_followers is None and leader is not None:
            end = leader.durable_offset
            if end > leader.high_watermark:
                self._waits_for_followers = end, host.monotonic_s()

    def take_replication_seconds(self) -> float | None:
        """Return how long it took until the followers had the measured batches; None: not yet."""
        if self._waits_for_followers is None:
            return None
        end, begun = self._waits_for_followers
        leader = self.replica.leader
        if leader is not None and leader.high_watermark < end:
            return None
        self._waits_for_followers = None
        return None if leader is None else host.monotonic_s() - begun

    # --- Readers -----------------------------------------------------------------------------

    def on_readers_concerned(self) -> None:
        """Wake every reader of the partition."""
        for reader, handle in self._readers:
            reader.on_advanced(handle)
        self.on_followers_concerned()

    def on_followers_concerned(self) -> None:
        """Wake every follower: more is written, though not committed."""
        for reader, handle in self._followers:
            reader.on_advanced(handle)

    def follow(self, reader: Reader, handle: int, *, to_log_end: bool = False) -> None:
        """Wake `reader` when there is news from now on; followers also read uncommitted batches."""
        (self._followers if to_log_end else self._readers)[reader, handle] = None

    def leave(self, reader: Reader, handle: int) -> None:
        """Stop waking `reader`."""
        self._readers.pop((reader, handle), None)
        self._followers.pop((reader, handle), None)
