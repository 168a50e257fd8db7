"""The reader of a fetch session, and what a replica may send it.

| reader                         | served by                          | up to                      |
|--------------------------------|------------------------------------|----------------------------|
| a follower                     | the leader                         | the end of what is written |
| a consumer                     | the leader                         | the high watermark (P10)   |
| a consumer that names its zone | the leader, or an in-sync follower | the high watermark there   |

A consumer that reads only committed records is served up to the last stable offset of the replica
(P10, P52), so that each transaction in what it is sent is decided.

`decide` answers for one position, in this order:

1. Is the request of the right leader epoch (P6), and does this replica serve the reader (P12)?
2. Is the reader's log a prefix of this log (P4)? This is checked once for each position: batches
   sent from it are of this log.
3. Should it read from a follower in its zone (KIP-392)?
4. Has a follower that catches up got enough for now (F34)?
5. Is the position in the log, and which batches may be sent?

Pure. Source: Kafka's `Partition.fetchRecords` and `FetchIsolation`; KIP-320, KIP-392.
"""

from dataclasses import dataclass
from typing import Protocol

from millrace.core.errors import NotLeaderError, OffsetOutOfRangeError
from millrace.core.ids import BrokerId, EpochEnd, LeaderEpoch, MonotonicMs, Offset
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife
from millrace.core.replica.fetch.catch_up import CatchUpAllowance
from millrace.core.replica.fetch.read_replica import preferred_read_replica
from millrace.core.replica.fetch.session import NO_END, FetchPosition
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.replication.replica import Replica


class ReadableLog(Protocol):
    """What a session needs of the log of a replica."""

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def leader_epochs(self) -> LeaderEpochs: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(slots=True)
class SendBatches:
    """Send whole batches from the position on, none of which ends beyond `end_offset`.

    The reader wants nothing from `until_offset` on: the batch that holds it is the last one.
    """

    end_offset: Offset
    until_offset: Offset


@dataclass(slots=True)
class AtEnd:
    """Send only offsets, if they have moved."""


@dataclass(slots=True)
class LookBack:
    """The reader's log is no prefix of this one: send where to look back to, and end the position.

    The reader names another position then.
    """

    end: EpochEnd


@dataclass(slots=True)
class ReadElsewhere:
    """Send which follower to read from, and end the position."""

    broker_id: BrokerId


@dataclass(slots=True)
class Pause:
    """Send nothing for this time: the follower has got enough for now."""

    pause_ms: int


Decision = SendBatches | AtEnd | LookBack | ReadElsewhere | Pause


class SessionReader:
    """Decides, for one reader, what each of its positions gets.

    Args:
        follower: the life of the broker that follows; None: the reader is a consumer.
        zone: of the consumer, if it names one: then the leader may redirect it to another replica.
        read_committed: whether the consumer reads only records of committed transactions.
        catch_up: allowance of the follower while it is not in sync; None: no limit.
    """

    __slots__ = ("_catch_up", "follower", "read_committed", "zone")

    def __init__(
        self,
        *,
        follower: BrokerLife | None = None,
        zone: str = "",
        read_committed: bool = False,
        catch_up: CatchUpAllowance | None = None,
    ) -> None:
        self.follower = follower
        self.zone = zone
        self.read_committed = read_committed
        self._catch_up = catch_up

    def check_epoch(
        self, replica: Replica, expected: LeaderEpoch, image: MetadataImage | None
    ) -> None:
        """Refuse a position that this replica does not serve, or that is of another leader epoch.

        A follower serves consumers that name their zone, and only while it is in sync: otherwise
        they would lag with it (P12).

        Args:
            replica: what is to be read.
            expected: the leader epoch that the reader knows; -1: none (P6).
            image: the newest metadata.

        Raises:
            NotLeaderError: the reader is to go to the leader.
            FencedLeaderEpochError, UnknownLeaderEpochError: the epoch is another one.
        """
        follower = replica.follower
        if follower is None or not self.zone:
            replica.require_leader().check_epoch(expected)
            return
        state = None if image is None else image.partition(replica.topic_partition)
        if state is None or replica.broker not in state.isr:
            raise NotLeaderError(
                "it is not in sync here: read from the leader",
                topic_partition=replica.topic_partition,
            )
        follower.check_epoch(expected)

    def decide(
        self,
        position: FetchPosition,
        replica: Replica,
        log: ReadableLog,
        image: MetadataImage | None,
        now: MonotonicMs,
    ) -> Decision:
        """Return what to send of a position next, by the five questions above.

        Raises:
            As `check_epoch`, and:
            OffsetOutOfRangeError: the position lies outside of the log.
            OffsetNotAvailableError: a follower cannot tell yet whether it does.
        """
        position.has_advanced = False
        self.check_epoch(replica, position.current_leader_epoch, image)
        is_new = position.told_high_watermark < 0
        if is_new and (end := self._diverging(position, replica, log)) is not None:
            return LookBack(end)
        may_go = position.may_be_sent_on
        if may_go and (nearer := self._nearer_replica(position, replica, image)) is not None:
            return ReadElsewhere(nearer)
        limit = self._catch_up
        if limit is not None and (pause_ms := self._pause_ms(position, replica, log, limit, now)):
            return Pause(pause_ms)
        end_offset = self._end_offset(position, replica, log)
        if position.fetch_offset >= end_offset:
            return AtEnd()
        until_offset = end_offset if position.end_offset == NO_END else position.end_offset
        return SendBatches(end_offset, until_offset)

    def has_news(self, position: FetchPosition, replica: Replica, log: ReadableLog) -> bool:
        """Return whether the offsets of a replica are others than the reader was told last."""
        return (
            position.told_high_watermark != replica.high_watermark
            or position.told_log_start_offset != log.log_start_offset
            or (
                self.follower is not None
                and position.told_compacted_offset != replica.role.compacted_offset
            )
            or (
                self.read_committed
                and position.told_last_stable_offset != replica.last_stable_offset
            )
        )

    def has_everything(self, position: FetchPosition, replica: Replica, log: ReadableLog) -> bool:
        """Return whether the reader was sent all that there is: no need to look again."""
        if position.has_advanced:
            return False
        if self.read_committed:
            end_offset = replica.last_stable_offset  # Once: it is asked for after each response.
            return (
                position.fetch_offset >= end_offset == position.told_last_stable_offset
                and position.told_high_watermark == replica.high_watermark
                and position.told_log_start_offset == log.log_start_offset
            )
        if self.follower is None:
            end_offset = replica.high_watermark
        elif (leader := replica.leader) is not None:
            end_offset = leader.written_offset
        else:
            return False
        return position.fetch_offset >= end_offset and not self.has_news(position, replica, log)

    def on_sent(self, position: FetchPosition, size: int) -> bool:
        """Count what a follower was sent while it catches up; return whether it does."""
        if self._catch_up is None or position.seen_log_bytes < 0:
            return False
        self._catch_up.on_sent(size)
        return True

    def _diverging(
        self, position: FetchPosition, replica: Replica, log: ReadableLog
    ) -> EpochEnd | None:
        """Return where the reader's log and this one part; once for each position."""
        leader = replica.leader
        if leader is None:
            return None
        offset, epoch = position.fetch_offset, position.last_fetched_epoch
        if self.follower is None:
            return leader.diverging(offset, epoch, log.leader_epochs)
        return leader.diverging_follower(
            self.follower, offset, epoch, log.leader_epochs, log.log_start_offset
        )

    def _nearer_replica(
        self, position: FetchPosition, replica: Replica, image: MetadataImage | None
    ) -> BrokerId | None:
        leader = replica.leader
        if leader is None or image is None:
            return None
        return preferred_read_replica(
            self.zone,
            position.fetch_offset,
            leader=leader.state.leader,
            isr=leader.state.isr,
            followers=leader.in_sync.followers,
            brokers=image.cluster.brokers,
        )

    def _pause_ms(
        self,
        position: FetchPosition,
        replica: Replica,
        log: ReadableLog,
        catch_up: CatchUpAllowance,
        now: MonotonicMs,
    ) -> int:
        leader = replica.leader
        if leader is None or self.follower in leader.in_sync.maximal_isr:
            position.seen_log_bytes = -1
            return 0
        size, seen = log.size_bytes, position.seen_log_bytes
        position.seen_log_bytes = size
        appended_bytes = max(size - seen, 0) if seen >= 0 else 0
        return catch_up.pause_ms(now, appended_bytes)

    def _end_offset(self, position: FetchPosition, replica: Replica, log: ReadableLog) -> Offset:
        """Return up to where the reader may see the log, and refuse a position outside of it."""
        offset = position.fetch_offset
        if self.follower is not None:
            end_offset = replica.require_leader().written_offset
            if not log.log_start_offset <= offset <= end_offset:
                raise OffsetOutOfRangeError(
                    f"the log has the offsets {log.log_start_offset} to {end_offset}, not {offset}",
                    topic_partition=replica.topic_partition,
                )
            return end_offset
        if replica.follower is not None:
            replica.follower.check_readable(offset)
        else:
            replica.require_leader().check_readable(offset, log.log_start_offset)
        return self._readable_end(replica)

    def _readable_end(self, replica: Replica) -> Offset:
        """Return up to where a consumer may see the log of a replica."""
        return replica.last_stable_offset if self.read_committed else replica.high_watermark
