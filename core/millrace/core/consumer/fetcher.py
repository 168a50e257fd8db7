"""Positions of a consumer and the fetch sessions that feed it, over all brokers.

A partition that is read has a handle in the session of its leader. Whenever its position changes
by anything but reading on (seek, resume, a broken stream, a new leader) it takes a new handle, and
whatever arrives or waits under the old one is dropped. So nothing is ever handed out twice or
out of order, and no offset needs to be compared with what is under way.

Prefetching is bounded by credit: a session starts with `window` bytes, and bytes are granted again
as their batches are taken or dropped. A broker never sends more, so buffers hold at most `window`
bytes per broker. What came and is no batch fails its partition alone; the user is told behind the
batches before it.

A partition names the leader epoch that it knows, and that of the last record read: a broker of
another epoch refuses (P6), and a leader whose log differs before the position says where (P4). A
position may also turn out to be outside of the log. Before it is reset, the leader is asked where
the epoch of the last record read ends. Either way, when records that were handed out are gone, the
user is told (`LogTruncatedError`, KIP-320) instead of being moved in silence.

A reader that names its zone may be sent on by the leader to a follower nearby (KIP-392, P12). The
leader is asked first, always: it alone judges positions. Whatever the follower refuses, and when it
is gone, the partition goes back to the leader. Where to read is asked anew from time to time, and
whenever the leader changes.

Reactive machine: events in, effects out in the order in which they must be performed.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from millrace.core.errors import (
    CorruptBatchError,
    LogTruncatedError,
    MillraceError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    RefreshMetadataError,
    UnknownTopicOrPartitionError,
    UnsupportedFormatError,
)
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
)
from millrace.core.pauses import pause_after
from millrace.core.records.batch import walk
from millrace.core.records.header import BatchHeader, Buffer

_LONG_AGO: Final = MonotonicMs(0)
_EPOCHS_KEPT: Final = 64
"""Of how many leader epochs a partition remembers where it began to read them."""
_NOT_AVAILABLE_MAX: Final = 3
"""How often in a row a follower may not know yet that the position is committed."""
_PAUSE_FRACTION: Final = 4
_GRANT_FRACTION: Final = 4
"""Credit is given back in parts of the window this small, not batch by batch."""


class Reset(Enum):
    """Where to go without a valid position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


@dataclass(slots=True)
class AddedPartition:
    """A partition that joins a session."""

    handle: int
    topic_partition: TopicPartition
    fetch_offset: Offset
    current_leader_epoch: LeaderEpoch
    last_fetched_epoch: LeaderEpoch
    from_leader: bool = False
    """The leader is to serve it, and not to send it on."""
    end_offset: Offset | None = None
    """Nothing is wanted from here on."""


@dataclass(slots=True)
class ChangeSession:
    """Effect: write a message to the broker's fetch stream."""

    broker_id: BrokerId
    added: list[AddedPartition]
    removed: list[int]
    credit_bytes: int


@dataclass(slots=True)
class Connect:
    """Effect: open a fetch stream; `on_connected` or, after a pause, `on_disconnected` follows."""

    broker_id: BrokerId


@dataclass(slots=True)
class ConnectSoon:
    """Effect: pause no more before the next attempt: a broker that was elected is there."""

    broker_id: BrokerId


@dataclass(slots=True)
class RefreshMetadata:
    """Effect: look up leaders; `on_topics`, `on_leaders` and `on_refreshed` follow."""

    topics: list[str]


@dataclass(slots=True)
class LookUpOffset:
    """Effect: ask the leader for the log's start or end; `on_offset_found` or `on_look_up_failed`
    follows with the same handle."""

    topic_partition: TopicPartition
    handle: int
    reset: Reset


@dataclass(slots=True)
class FindEpochEnd:
    """Effect: ask the leader where an epoch ends; `on_epoch_end` or `on_look_up_failed` follows."""

    topic_partition: TopicPartition
    handle: int
    leader_epoch: LeaderEpoch


Effect = ChangeSession | Connect | ConnectSoon | RefreshMetadata | LookUpOffset | FindEpochEnd


@dataclass(slots=True)
class FetchedPartition:
    """News of one partition, as the broker sent them."""

    handle: int
    batches: Buffer
    high_watermark: Offset
    log_start_offset: Offset
    fetch_offset: Offset
    error: MillraceError | None = None
    is_retriable: bool = False
    diverging_epoch: LeaderEpoch | None = None
    diverging_end_offset: Offset = UNKNOWN_OFFSET
    preferred_read_replica: BrokerId | None = None
    """Read there from now on."""


@dataclass(slots=True)
class FetchedBatch:
    """A batch that waits to be taken. Records before `start_offset` are not wanted."""

    topic: str
    topic_partition: TopicPartition
    handle: int
    header: BatchHeader
    data: memoryview
    start_offset: Offset


class _Step(Enum):
    """What a partition waits for."""

    LOOK_UP = 1
    """The log's start or end."""
    LOOKING_UP = 2
    FIND_EPOCH_END = 3
    FINDING_EPOCH_END = 4
    JOIN = 5
    """It has a position and is in no session."""
    FETCHING = 6
    PAUSED = 7
    FAILED = 8
    """The user was told of an error, and must seek."""


@dataclass(slots=True, eq=False)
class _Partition:
    topic: str
    topic_partition: TopicPartition
    step: _Step
    handle: int = 0
    position: Offset = UNKNOWN_OFFSET
    """Offset of the next record to be taken."""
    epochs: list[tuple[LeaderEpoch, Offset]] = field(default_factory=list)
    """Leader epochs of what was taken, and where each began; ascending. The position follows on."""
    end: Offset | None = None
    """Where the user wants no more; the batch that holds the last record is taken whole."""
    reset: Reset = Reset.NONE
    step_after_pause: _Step = _Step.JOIN
    broker_id: BrokerId = NO_BROKER
    high_watermark: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    retry_at: MonotonicMs = _LONG_AGO
    paused_ms: int = 0
    """All pauses since it was well."""
    read_replica: BrokerId = NO_BROKER
    """A follower to read from; none: the leader."""
    from_leader: bool = False
    """It came back from a follower."""
    ask_anew_at: MonotonicMs | None = None
    """When to ask the leader again where to read."""
    not_available: int = 0
    error: MillraceError | None = None
    """Why it failed; None: it did not, or was moved since."""

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last batch that was taken."""
        return self.epochs[-1][0] if self.epochs else NO_LEADER_EPOCH

    def take(self, batch: FetchedBatch) -> None:
        """Note that a batch was taken."""
        self.position = batch.header.next_offset
        if batch.header.leader_epoch != self.last_epoch:
            self.epochs.append((batch.header.leader_epoch, batch.start_offset))
            del self.epochs[:-_EPOCHS_KEPT]

    def first_lost(self, epoch: LeaderEpoch, end_offset: Offset) -> Offset:
        """Return from where what was taken differs from a log.

        Args:
            epoch: the greatest of the log that is not above the last one taken; -1: none.
            end_offset: where that ends in the log; -1: nobody knows.
        """
        ends = [base for each, base in self.epochs if each > epoch]
        if end_offset >= 0:
            ends.append(end_offset)
        return min(ends, default=self.position)


@dataclass(slots=True, eq=False)
class _Session:
    broker_id: BrokerId
    is_connected: bool = False
    is_connecting: bool = False
    buffered_bytes: int = 0
    """Bytes that came and were neither taken nor dropped."""
    ungranted_bytes: int = 0
    """Bytes that were taken or dropped and not granted again yet."""
    removed: list[int] = field(default_factory=list)


class Fetcher:
    """The machine of one consumer.

    Args:
        reset: where to go when a position is outside of the log, or there is none.
        window: bytes that may be on their way or wait, per broker.
        retry_backoff_ms: pause before something that failed is tried again.
        read_replica_ms_max: for how long a follower is read before the leader is asked anew.
        retry_backoff_ms_max: to which the pauses grow while nothing helps.
    """

    def __init__(
        self,
        reset: Reset,
        window: int,
        retry_backoff_ms: int,
        read_replica_ms_max: int = 300_000,
        retry_backoff_ms_max: int = 1_000,
    ) -> None:
        self._reset = reset
        self._window = window
        self._retry_backoff_ms = retry_backoff_ms
        self._read_replica_ms_max = read_replica_ms_max
        self._retry_backoff_ms_max = retry_backoff_ms_max
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._by_handle: dict[int, _Partition] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._sessions: dict[BrokerId, _Session] = {}
        self._buffer: deque[FetchedBatch] = deque()
        self._owners: dict[int, BrokerId] = {}
        """Broker by handle of batches in the buffer."""
        self._errors: dict[TopicPartition, MillraceError] = {}
        """Why partitions cannot go on, in the order in which it came; the user was not told yet."""
        self._raised: tuple[TopicPartition, MillraceError] | None = None
        self._next_handle = 1
        self._leaderless: dict[str, None] = {}
        self._elected: dict[BrokerId, None] = {}
        """Brokers that lead since a moment ago, and are not connected."""
        self._is_refreshing = False
        self._refresh_at = MonotonicMs(0)
        self._must_poll = False

    # What the user wants.

    def assign(
        self,
        topic: str,
        topic_partition: TopicPartition,
        start: Offset | Reset,
        end: Offset | None = None,
    ) -> None:
        """Start to read a partition, or move it to another start.

        Args:
            topic: its name, for people.
            topic_partition: which.
            start: an offset, or where to go: `Reset.NONE` for wherever the setting says.
            end: nothing is fetched behind the batch that holds the record before it.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            partition = _Partition(topic, topic_partition, _Step.JOIN)
            self._partitions[topic_partition] = partition
        partition.end = end
        self._move(partition, start)

    def unassign(self, topic_partition: TopicPartition) -> None:
        """Stop reading a partition and drop what waits of it, also an error."""
        self._leave(self._partitions[topic_partition])
        self._errors.pop(topic_partition, None)
        del self._partitions[topic_partition]

    def seek(self, topic_partition: TopicPartition, to: Offset | Reset) -> None:
        """Go on elsewhere; what waits of the partition is dropped."""
        self._move(self._partitions[topic_partition], to)

    def rewind(self, topic_partition: TopicPartition, to: Offset) -> None:
        """Go back to an offset of what was taken, as it was not handed on from there.

        What is known of the leader epochs before it stays: it is still the same log that is read,
        or else the user is told.
        """
        partition = self._partitions[topic_partition]
        before = [(epoch, base) for epoch, base in partition.epochs if base < to]
        self._move(partition, to)
        partition.epochs = before

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hand nothing out until `resume`. What waits is dropped, as it would hold credit back."""
        partition = self._partitions[topic_partition]
        if partition.step is _Step.PAUSED:
            return
        if partition.step is _Step.FAILED and self._is_ahead(partition):
            self._errors.pop(topic_partition, None)  # It is met again, behind what is dropped here.
            partition.error = None
            partition.step = _Step.JOIN
        has_position = partition.position >= 0
        self._leave(partition)
        if partition.step is not _Step.FAILED:
            partition.step_after_pause = _Step.JOIN if has_position else _Step.LOOK_UP
        else:
            partition.step_after_pause = _Step.FAILED
        partition.step = _Step.PAUSED

    def resume(self, topic_partition: TopicPartition) -> None:
        """Go on from the position."""
        partition = self._partitions[topic_partition]
        if partition.step is _Step.PAUSED:
            partition.step = partition.step_after_pause
            self._must_poll = True

    def is_paused(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition is paused."""
        return self._partitions[topic_partition].step is _Step.PAUSED

    @property
    def assigned(self) -> list[TopicPartition]:
        """Return the partitions that are read."""
        return list(self._partitions)

    def awaited(self) -> list[TopicPartition]:
        """Return the partitions that are to be read, and that no broker sends at present."""
        return [
            each.topic_partition
            for each in self._partitions.values()
            if each.step not in (_Step.FETCHING, _Step.PAUSED, _Step.FAILED)
        ]

    def position(self, topic_partition: TopicPartition) -> Offset | None:
        """Return the offset of the next batch's first record to be taken; None: not known yet."""
        position = self._partitions[topic_partition].position
        return position if position >= 0 else None

    def high_watermark(self, topic_partition: TopicPartition) -> Offset | None:
        """Return the end of what can be read, as of the last response; None: not known yet."""
        offset = self._partitions[topic_partition].high_watermark
        return offset if offset >= 0 else None

    def take(self) -> FetchedBatch | None:
        """Return the next batch and move its partition's position behind it.

        Raises:
            MillraceError: a partition cannot go on; each such error is raised once.
        """
        self._raised = None
        while self._buffer:
            batch = self._buffer.popleft()
            session = self._sessions[self._owners[batch.handle]]
            self._give_back(session, len(batch.data))
            partition = self._by_handle.get(batch.handle)
            if partition is None:
                continue
            partition.take(batch)
            return batch
        if self._errors:
            topic_partition = next(iter(self._errors))
            error = self._errors.pop(topic_partition)
            self._raised = topic_partition, error
            raise error
        return None

    def raise_again(self) -> None:
        """Let `take` raise its last error once more: its caller had something else to return."""
        if self._raised is not None:
            topic_partition, error = self._raised
            self._errors = {topic_partition: error, **self._errors}
            self._raised = None

    def error(self, topic_partition: TopicPartition) -> MillraceError | None:
        """Return why a partition cannot go on until it is moved, raised already or not."""
        return self._partitions[topic_partition].error

    @property
    def has_news(self) -> bool:
        """Whether `take` would return or raise something (or drop something first)."""
        return bool(self._buffer or self._errors)

    @property
    def must_poll(self) -> bool:
        """Whether `poll` has something to do because of what the user did."""
        return self._must_poll

    # Events.

    def on_leaders(self, leaders: Mapping[TopicPartition, Leader]) -> None:
        """Take what is known about leaders now; partitions whose leader moved follow it."""
        for topic_partition, leader in leaders.items():
            before = self._leaders.get(topic_partition)
            if before is not None and leader.leader_epoch < before.leader_epoch:
                continue  # Older than what is known.
            self._leaders[topic_partition] = leader
            is_new = (
                before is None
                or leader.leader_epoch > before.leader_epoch
                or before.broker_id < 0 <= leader.broker_id
            )
            if is_new:
                self._on_elected(leader.broker_id)
            partition = self._partitions.get(topic_partition)
            if partition is None:
                continue
            if is_new:
                self._end_pause(partition)  # It was for the one before.
            # Who reads from a follower asks the new leader where to read.
            is_elsewhere = (
                is_new
                if partition.read_replica != NO_BROKER
                else partition.broker_id != leader.broker_id
            )
            if is_elsewhere and partition.step is _Step.FETCHING:
                self._leave(partition)
                self._ask_leader(partition)

    def on_topics(self, topic_ids: Mapping[str, TopicId | None]) -> None:
        """Take which topics have these names now; None: no topic has the name.

        A partition whose topic is gone is given up, also when another took its name: what is in
        there now is not what was subscribed to.
        """
        for partition in self._partitions.values():
            if partition.topic not in topic_ids or partition.step is _Step.FAILED:
                continue
            topic_id = topic_ids[partition.topic]
            if topic_id != partition.topic_partition.topic_id:
                again = "" if topic_id is None else " and made again: subscribe to the new one"
                self._give_up(
                    partition,
                    UnknownTopicOrPartitionError(
                        f"the topic {partition.topic!r} was deleted{again}"
                    ),
                )

    def on_refreshed(self, now: MonotonicMs) -> None:
        """The look-up of metadata is over, whether it found anything or not."""
        self._is_refreshing = False
        self._refresh_at = MonotonicMs(now + self._retry_backoff_ms)

    def on_connected(self, broker_id: BrokerId) -> None:
        """The fetch stream to a broker is open; its session begins empty."""
        session = self._session(broker_id)
        session.is_connecting = False
        session.is_connected = True
        session.removed = []
        # Whatever still waits of an earlier stream counts against the window.
        session.ungranted_bytes = self._window - session.buffered_bytes

    def on_disconnected(self, broker_id: BrokerId, reason: str) -> None:
        """The stream broke or was not opened; its partitions start again behind what was taken."""
        session = self._session(broker_id)
        session.is_connecting = session.is_connected = False
        for partition in self._partitions.values():
            if partition.step is _Step.FETCHING:
                if partition.broker_id != broker_id:
                    continue
                self._leave(partition)
            elif partition.step is not _Step.JOIN or self._place(partition) != broker_id:
                continue
            # Perhaps somebody else leads by now.
            self._leaderless[partition.topic] = None
            if partition.read_replica != NO_BROKER:
                self._return_to_leader(partition)
            partition.step = _Step.JOIN

    def on_fetched(
        self, broker_id: BrokerId, news: Sequence[FetchedPartition], now: MonotonicMs
    ) -> None:
        """Take a response. What is no batch fails its partition, behind the batches before it."""
        session = self._session(broker_id)
        for fetched in news:
            partition = self._by_handle.get(fetched.handle)
            if partition is None or partition.step is _Step.FAILED:
                self._give_back(session, len(fetched.batches), is_buffered=False)
                continue
            partition.high_watermark = fetched.high_watermark
            partition.log_start_offset = fetched.log_start_offset
            if fetched.error is None:
                partition.not_available = partition.paused_ms = 0
            if fetched.diverging_epoch is not None:
                self._on_diverged(partition, fetched.diverging_epoch, fetched.diverging_end_offset)
            elif fetched.preferred_read_replica is not None:
                self._leave(partition, is_out=True)
                self._ask_leader(partition)
                partition.read_replica = fetched.preferred_read_replica
                partition.ask_anew_at = MonotonicMs(now + self._read_replica_ms_max)
            elif fetched.error is not None:
                self._on_error(partition, fetched.error, fetched.is_retriable, now)
            elif len(fetched.batches):
                self._keep(session, partition, fetched)

    def on_offset_found(self, handle: int, offset: Offset) -> None:
        """Take where the log starts or ends."""
        partition = self._by_handle.get(handle)
        if partition is None or partition.step is not _Step.LOOKING_UP:
            return
        self._leave(partition)
        partition.paused_ms = 0
        partition.position = offset
        partition.epochs.clear()
        partition.step = _Step.JOIN

    def on_epoch_end(self, handle: int, epoch: LeaderEpoch, end_offset: Offset) -> None:
        """Take where the epoch of the last record that was taken ends in the leader's log.

        Args:
            handle: as in the effect.
            epoch: the greatest there that is not above the one asked for; -1: there is none.
            end_offset: where it ends; -1: nobody knows.
        """
        partition = self._by_handle.get(handle)
        if partition is None or partition.step is not _Step.FINDING_EPOCH_END:
            return
        if end_offset >= 0 and (end_offset < partition.position or epoch < partition.last_epoch):
            self._on_diverged(partition, epoch, end_offset)
        else:
            self._reset_position(partition)

    def on_look_up_failed(
        self, handle: int, error: MillraceError, is_retriable: bool, now: MonotonicMs
    ) -> None:
        """A look-up of an offset or an epoch failed."""
        partition = self._by_handle.get(handle)
        if partition is None:
            return
        if not is_retriable:
            self._give_up(partition, error)
            return
        again = {
            _Step.LOOKING_UP: _Step.LOOK_UP,
            _Step.FINDING_EPOCH_END: _Step.FIND_EPOCH_END,
        }.get(partition.step)
        if again is not None:
            self._leave(partition)
            partition.step = again
            self._look_for_leader(partition, now)

    # The step that follows every event, and every moment that `next_wake` named.

    def poll(self, now: MonotonicMs) -> list[Effect]:
        """Return what is to be done now."""
        self._must_poll = False
        effects: list[Effect] = []
        added: dict[BrokerId, list[AddedPartition]] = {}
        for partition in self._partitions.values():
            if partition.ask_anew_at is not None and partition.ask_anew_at <= now:
                if partition.step is _Step.FETCHING:
                    self._leave(partition)
                    partition.step = _Step.JOIN
                self._forget_replica(partition)
            if partition.step in _RESTING or partition.retry_at > now:
                continue
            leader = self._leaders.get(partition.topic_partition)
            if leader is None or leader.broker_id < 0:
                self._look_for_leader(partition, now)
                continue
            if partition.step is _Step.JOIN:
                broker_id = self._place(partition)
                session = self._session(broker_id)
                if session.is_connected:
                    joining = self._join(partition, broker_id, leader.leader_epoch)
                    added.setdefault(broker_id, []).append(joining)
                elif not session.is_connecting:
                    session.is_connecting = True
                    effects.append(Connect(broker_id))
                continue
            self._give_handle(partition)
            if partition.step is _Step.LOOK_UP:
                partition.step = _Step.LOOKING_UP
                effects.append(
                    LookUpOffset(partition.topic_partition, partition.handle, partition.reset)
                )
            else:
                partition.step = _Step.FINDING_EPOCH_END
                effects.append(
                    FindEpochEnd(partition.topic_partition, partition.handle, partition.last_epoch)
                )
        effects += self._session_changes(added)
        effects += [ConnectSoon(broker_id) for broker_id in self._elected]
        self._elected.clear()
        if self._leaderless and not self._is_refreshing and now >= self._refresh_at:
            self._is_refreshing = True
            effects.append(RefreshMetadata(list(self._leaderless)))
            self._leaderless.clear()
        return effects

    def next_wake(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when `poll` has something to do though nothing happened; None: never."""
        moments: list[int] = [
            partition.retry_at
            for partition in self._partitions.values()
            if partition.retry_at > now and partition.step not in _RESTING
        ]
        moments += [
            max(partition.ask_anew_at, now + 1)
            for partition in self._partitions.values()
            if partition.ask_anew_at is not None
        ]
        if self._leaderless and not self._is_refreshing:
            moments.append(max(self._refresh_at, now + 1))
        return MonotonicMs(min(moments)) if moments else None

    # Internals.

    def _session_changes(
        self, added: Mapping[BrokerId, list[AddedPartition]]
    ) -> Iterable[ChangeSession]:
        for session in self._sessions.values():
            if not session.is_connected:
                continue
            joining = added.get(session.broker_id, [])
            credit = session.ungranted_bytes
            is_due = credit >= self._window // _GRANT_FRACTION or session.buffered_bytes <= 0
            if not joining and not session.removed and not (credit > 0 and is_due):
                continue
            session.ungranted_bytes -= credit
            removed, session.removed = session.removed, []
            yield ChangeSession(session.broker_id, joining, removed, credit)

    def _join(
        self, partition: _Partition, broker_id: BrokerId, leader_epoch: LeaderEpoch
    ) -> AddedPartition:
        self._give_handle(partition)
        partition.step = _Step.FETCHING
        partition.broker_id = broker_id
        self._owners[partition.handle] = broker_id
        return AddedPartition(
            partition.handle,
            partition.topic_partition,
            partition.position,
            leader_epoch,
            partition.last_epoch,
            partition.from_leader,
            partition.end,
        )

    def _place(self, partition: _Partition) -> BrokerId:
        """Return the broker to read from."""
        if partition.read_replica != NO_BROKER:
            return partition.read_replica
        leader = self._leaders.get(partition.topic_partition)
        return NO_BROKER if leader is None else leader.broker_id

    def _forget_replica(self, partition: _Partition) -> None:
        partition.read_replica = NO_BROKER
        partition.from_leader = False
        partition.ask_anew_at = None
        partition.not_available = 0

    def _ask_leader(self, partition: _Partition) -> None:
        """Join at the leader, who may send it on."""
        self._forget_replica(partition)
        partition.step = _Step.JOIN

    def _return_to_leader(self, partition: _Partition) -> None:
        """Have the leader serve the partition, for the time being: its follower does not."""
        ask_anew_at = partition.ask_anew_at
        self._ask_leader(partition)
        partition.from_leader = True
        partition.ask_anew_at = ask_anew_at

    def _give_handle(self, partition: _Partition) -> None:
        self._leave(partition)
        partition.handle = self._next_handle
        self._next_handle += 1
        self._by_handle[partition.handle] = partition

    def _leave(self, partition: _Partition, *, is_out: bool = False) -> None:
        """Take the partition's handle away: whatever comes or waits under it is dropped.

        Args:
            partition: which.
            is_out: the broker has taken it out of the session by itself.
        """
        if not partition.handle:
            return
        if not is_out:
            self._remove(partition)
        del self._by_handle[partition.handle]
        if partition.handle in self._owners:
            self._drop_buffered(self._session(partition.broker_id), partition.handle)
            del self._owners[partition.handle]
        partition.handle = 0
        self._must_poll = True

    def _remove(self, partition: _Partition) -> None:
        """Have the broker send nothing more of the partition; what waits of it stays."""
        if partition.step is not _Step.FETCHING:
            return
        session = self._session(partition.broker_id)
        if session.is_connected:
            session.removed.append(partition.handle)
            self._must_poll = True

    def _is_ahead(self, partition: _Partition) -> bool:
        """Whether batches of the partition wait to be taken."""
        return any(batch.handle == partition.handle for batch in self._buffer)

    def _drop_buffered(self, session: _Session, handle: int) -> None:
        kept: deque[FetchedBatch] = deque()
        for batch in self._buffer:
            if batch.handle == handle:
                self._give_back(session, len(batch.data))
            else:
                kept.append(batch)
        self._buffer = kept

    def _give_back(self, session: _Session, size: int, *, is_buffered: bool = True) -> None:
        if is_buffered:
            session.buffered_bytes -= size
        if session.is_connected:
            session.ungranted_bytes += size
            if (
                session.buffered_bytes <= 0
                or session.ungranted_bytes >= self._window // _GRANT_FRACTION
            ):
                self._must_poll = True

    def _keep(self, session: _Session, partition: _Partition, fetched: FetchedPartition) -> None:
        size = len(fetched.batches)
        kept = 0
        damage: MillraceError | None = None
        try:
            for header, data in walk(fetched.batches):
                if header.next_offset > fetched.fetch_offset:
                    start = Offset(max(fetched.fetch_offset, header.base_offset))
                    self._buffer.append(
                        FetchedBatch(
                            partition.topic,
                            partition.topic_partition,
                            partition.handle,
                            header,
                            data,
                            start,
                        )
                    )
                    kept += len(data)
        except (CorruptBatchError, UnsupportedFormatError) as error:
            damage = error
        session.buffered_bytes += kept
        self._give_back(session, size - kept, is_buffered=False)
        if damage is not None:
            self._remove(partition)
            self._fail(partition, _at_partition(partition, damage))

    def _on_error(
        self, partition: _Partition, error: MillraceError, is_retriable: bool, now: MonotonicMs
    ) -> None:
        is_ahead = self._is_ahead(partition)
        self._leave(partition, is_out=True)
        if partition.read_replica != NO_BROKER:
            self._on_replica_error(partition, error, now)
        elif isinstance(error, OffsetOutOfRangeError):
            if is_ahead:  # The offset refused is not the position yet: ask again from there.
                partition.step = _Step.JOIN
            elif partition.last_epoch != NO_LEADER_EPOCH:
                partition.step = _Step.FIND_EPOCH_END
            else:
                self._reset_position(partition)
        elif is_retriable:
            partition.step = _Step.JOIN
            if not self._learn_leader(partition, error):
                self._look_for_leader(partition, now)
        else:
            self._give_up(partition, error)

    def _on_replica_error(
        self, partition: _Partition, error: MillraceError, now: MonotonicMs
    ) -> None:
        """Whatever a follower refuses, the leader decides about (P12)."""
        if isinstance(error, OffsetNotAvailableError):
            partition.not_available += 1
            if partition.not_available <= _NOT_AVAILABLE_MAX:  # It hears of it in a moment.
                partition.step = _Step.JOIN
                partition.retry_at = MonotonicMs(now + self._retry_backoff_ms)
                return
        if self._learn_leader(partition, error):
            self._ask_leader(partition)
        else:
            self._return_to_leader(partition)

    def _look_for_leader(self, partition: _Partition, now: MonotonicMs) -> None:
        """Have the partition's leader looked up, and try again after a pause."""
        self._leaderless[partition.topic] = None
        pause_ms = pause_after(
            partition.paused_ms,
            self._retry_backoff_ms,
            self._retry_backoff_ms_max,
            fraction=_PAUSE_FRACTION,
        )
        partition.paused_ms += pause_ms
        partition.retry_at = MonotonicMs(now + pause_ms)

    def _end_pause(self, partition: _Partition) -> None:
        partition.retry_at = _LONG_AGO
        partition.paused_ms = 0

    def _learn_leader(self, partition: _Partition, error: MillraceError) -> bool:
        """Take the leader that a refusal names; return whether it is worth asking at once."""
        named = error.leader if isinstance(error, RefreshMetadataError) else None
        if named is None or named.leader.broker_id < 0:
            return False
        known = self._leaders.get(partition.topic_partition)
        if known is not None and named.leader.leader_epoch <= known.leader_epoch:
            return False
        self._leaders[partition.topic_partition] = named.leader
        self._end_pause(partition)
        self._on_elected(named.leader.broker_id)
        return True

    def _on_elected(self, broker_id: BrokerId) -> None:
        """A broker leads since a moment ago: however often it could not be reached before."""
        session = self._sessions.get(broker_id)
        if session is not None and session.is_connecting:
            self._elected[broker_id] = None

    def _on_diverged(self, partition: _Partition, epoch: LeaderEpoch, end_offset: Offset) -> None:
        lost = partition.first_lost(epoch, end_offset)
        self._give_up(
            partition,
            LogTruncatedError(
                f"topic {partition.topic!r} partition {partition.topic_partition.partition}: the "
                f"records [{lost}, {partition.position}) were read, but are gone: an unclean "
                f"election took the log of leader epoch {partition.last_epoch} back. Seek to "
                f"{lost} to go on with what took their place",
                topic=partition.topic,
                partition=partition.topic_partition.partition,
                position=partition.position,
                end_offset=lost,
            ),
        )

    def _reset_position(self, partition: _Partition) -> None:
        if self._reset is Reset.NONE:
            where = (
                f"position {partition.position} lies outside of the log, which starts at "
                f"{partition.log_start_offset} and can be read up to {partition.high_watermark}"
                if partition.position >= 0
                else "there is no position"
            )
            self._give_up(
                partition,
                OffsetOutOfRangeError(
                    f"topic {partition.topic!r} partition "
                    f"{partition.topic_partition.partition}: {where}: seek, or set "
                    "auto_offset_reset to earliest or latest"
                ),
            )
            return
        self._leave(partition)
        partition.reset = self._reset
        partition.step = _Step.LOOK_UP
        self._must_poll = True

    def _give_up(self, partition: _Partition, error: MillraceError) -> None:
        self._leave(partition)
        self._fail(partition, error)

    def _fail(self, partition: _Partition, error: MillraceError) -> None:
        """Go no further; what waits of the partition can be taken first."""
        partition.step = _Step.FAILED
        partition.error = self._errors[partition.topic_partition] = error

    def _move(self, partition: _Partition, to: Offset | Reset) -> None:
        self._leave(partition)
        self._errors.pop(partition.topic_partition, None)
        partition.error = None
        is_paused = partition.step is _Step.PAUSED
        self._forget_replica(partition)  # The leader judges the new position.
        partition.epochs.clear()
        self._end_pause(partition)
        partition.position = UNKNOWN_OFFSET
        step = _Step.LOOK_UP
        if isinstance(to, Reset):
            if to is Reset.NONE and self._reset is Reset.NONE:
                self._reset_position(partition)
                return
            partition.reset = self._reset if to is Reset.NONE else to
        else:
            partition.position = to
            step = _Step.JOIN
        if is_paused:
            partition.step_after_pause = step
        else:
            partition.step = step
        self._must_poll = True

    def _session(self, broker_id: BrokerId) -> _Session:
        session = self._sessions.get(broker_id)
        if session is None:
            session = self._sessions[broker_id] = _Session(broker_id)
        return session


def _at_partition(partition: _Partition, damage: MillraceError) -> MillraceError:
    """Return what was found in a partition's bytes, as an error that says where."""
    return type(damage)(
        f"topic {partition.topic!r} partition {partition.topic_partition.partition}: "
        f"{damage.message}"
    )


_RESTING: Final = frozenset(
    (_Step.FETCHING, _Step.PAUSED, _Step.FAILED, _Step.LOOKING_UP, _Step.FINDING_EPOCH_END)
)
