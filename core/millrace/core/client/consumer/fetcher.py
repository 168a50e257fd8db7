"""Positions of a consumer and the fetch sessions that feed it, over all brokers.

A partition that is read has a handle in the session of its leader. Whenever its position changes by
anything but reading on (seek, resume, a broken stream, a new leader) it takes a new handle, and all
data under the old handle is dropped. So no record is handed out twice or out of order, and no
offset is compared with responses under way.

Prefetching is bounded by the credit of `sessions`. A batch that came damaged is fetched again, and
its broker verifies its copy first (P65). If that is damaged, another replica leads from then on,
and the user notices nothing. A batch that comes damaged again fails only its partition; the user
gets the error after the batches before it.

A partition names the leader epoch that it knows, and that of the last record read: a broker of
another epoch refuses (P6), and a leader whose log differs before the position says where (P4). A
position may also turn out to be outside of the log. Before it is reset, the leader is asked where
the epoch of the last record read ends. Either way, when records that were handed out are gone, the
user is told (`LogTruncatedError`, KIP-320) instead of being moved in silence. When a
position is reset, the user is told from where to where, and why (`Jumped`). When a topic is gone,
the user is told once (`Untold`), and its partitions are no longer read.

The leader may redirect a reader that names its zone to a follower nearby (KIP-392, P12). The leader
is always asked first: it alone judges positions. When the follower refuses or is gone, the
partition goes back to the leader. The leader is asked again from time to time, and whenever it
changes.

A reader of committed records alone sees the log up to the last stable offset. Markers, and batches
of aborted transactions, are never handed out, and positions move over them by themselves (see
`sessions`): a partition whose log ends with them is read to its end.

Reactive machine: events in, effects out in the order in which they must be performed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.core.client.consumer.fetch_state import FetchEvent, FetchState
from millrace.core.client.consumer.read_partition import Jumped, ReadPartition, Reset
from millrace.core.client.consumer.sessions import (
    ChangeSession,
    FetchedBatch,
    FetchedPartition,
    Sessions,
)
from millrace.core.client.consumer.untold import Untold
from millrace.core.client.routing.router import Effect as RoutingEffect
from millrace.core.client.routing.router import Router
from millrace.core.errors import (
    AccessDeniedError,
    CorruptBatchError,
    MillraceError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerId,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
)


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


Effect = ChangeSession | LookUpOffset | FindEpochEnd | Jumped | RoutingEffect


class Fetcher:
    """The machine of one consumer.

    Args:
        reset: where to go when a position is outside of the log, or there is none.
        window: bytes that may be on their way or wait, per broker.
        router: finds the brokers.
        read_committed: whether only committed records are read.
    """

    def __init__(
        self, reset: Reset, window: int, router: Router, *, read_committed: bool = False
    ) -> None:
        self._reset = reset
        self._read_committed = read_committed
        self._router = router
        self._partitions: dict[TopicPartition, ReadPartition] = {}
        self._by_handle: dict[int, ReadPartition] = {}
        self._sessions = Sessions(window)
        self.untold = Untold()
        self._jumps: list[Jumped] = []
        self._next_handle = 1
        self._must_poll = False
        self._all_rest = False  # No partition has a step to take: most responses change none.

    # What the user wants.

    def assign(
        self,
        topic: str,
        topic_partition: TopicPartition,
        start: Offset | Reset,
        end: Offset | None = None,
        *,
        epoch: LeaderEpoch = NO_LEADER_EPOCH,
        is_new: bool = False,
    ) -> None:
        """Start to read a partition, or move it to another start.

        Args:
            topic: its name, for people.
            topic_partition: which.
            start: an offset, or a `Reset`: `Reset.NONE` follows the setting.
            end: the last batch fetched is the one that holds the record before this offset.
            epoch: leader epoch of the record before `start`, as an earlier reader took it. If the
                log has lost that record since, the user is told (KIP-320).
            is_new: it appeared after the first read of its topic, so all of its records are to be
                read.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            route = self._router.add(topic, topic_partition)
            partition = ReadPartition(route, read_committed=self._read_committed)
            self._partitions[topic_partition] = partition
        partition.end = end
        self._move(partition, start)
        if is_new:
            partition.jumps_from = Offset(0)
        if epoch != NO_LEADER_EPOCH and isinstance(start, int) and start > 0:
            partition.epochs = [(epoch, Offset(start - 1))]

    def unassign(self, topic_partition: TopicPartition) -> None:
        """Stop reading a partition; drop its waiting batches and its error."""
        partition = self._partitions.pop(topic_partition)
        self._leave(partition)
        self.untold.forget(topic_partition)
        self._router.remove(partition.route)

    def seek(self, topic_partition: TopicPartition, to: Offset | Reset) -> None:
        """Move to another position; drop the partition's waiting batches."""
        self._move(self._partitions[topic_partition], to)

    def rewind(self, topic_partition: TopicPartition, to: Offset) -> None:
        """Go back to an offset that was taken, because the records from there were not handed on.

        The known leader epochs before it stay: the partition still reads the same log, or the user
        is told.
        """
        partition = self._partitions[topic_partition]
        before = [(epoch, base) for epoch, base in partition.epochs if base < to]
        self._move(partition, to)
        partition.epochs = before

    def fetch_again(self, topic_partition: TopicPartition, damaged_offset: Offset) -> bool:
        """Go back to a batch that was taken and is damaged; its broker verifies its copy.

        Returns:
            False: the broker has verified it before, so the user has to know.
        """
        partition = self._partitions[topic_partition]
        is_first = partition.distrust(damaged_offset)
        verify_until = partition.verify_until
        self.rewind(topic_partition, damaged_offset)
        partition.verify_until = verify_until
        return is_first

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hand nothing out until `resume`. Drop the waiting batches: they hold credit back."""
        partition = self._partitions[topic_partition]
        if partition.is_paused:
            return
        if partition.state is FetchState.FAILED and (
            self.untold.is_gone(topic_partition) or not self._sessions.has(partition.handle)
        ):
            self._leave(partition)
        else:
            # An error after batches will occur again, as the batches are dropped here.
            self.untold.forget(topic_partition)
            partition.error = None
            has_position = partition.position >= 0
            self._leave_for(partition, FetchEvent.MOVED if has_position else FetchEvent.RESET)
        partition.is_paused = True

    def resume(self, topic_partition: TopicPartition) -> None:
        """Go on from the position."""
        partition = self._partitions[topic_partition]
        if partition.is_paused:
            partition.is_paused = False
            self._must_poll = True
            self._all_rest = False

    @property
    def assigned(self) -> list[TopicPartition]:
        """Return the partitions that are read."""
        return list(self._partitions)

    def awaited(self) -> list[TopicPartition]:
        """Return the assigned partitions that no broker sends at present."""
        return [place for place, partition in self._partitions.items() if partition.is_awaited]

    def partition(self, topic_partition: TopicPartition) -> ReadPartition:
        """Return what is known of an assigned partition."""
        return self._partitions[topic_partition]

    def take(self) -> FetchedBatch | None:
        """Return the next batch and move its partition's position to its end.

        Raises:
            MillraceError: a partition cannot go on; each such error is raised once.
        """
        batch = self._sessions.take()
        if batch is not None:
            self._by_handle[batch.handle].take(batch)
            if self._sessions.passed_count:
                self._pass_on()
        self.untold.on_taken(batch)
        return batch

    @property
    def has_news(self) -> bool:
        """Whether there is something to take, or to tell."""
        return bool(self._sessions.waiting or self.untold)

    @property
    def must_poll(self) -> bool:
        """Whether `poll` has something to do because of what the user did."""
        return self._must_poll or self._sessions.have_changes

    # Events.

    def on_leaders(self, leaders: Mapping[TopicPartition, Leader]) -> None:
        """Take what is known about leaders now; partitions whose leader moved follow it."""
        for topic_partition in self._router.on_leaders(leaders):
            partition = self._partitions.get(topic_partition)
            if partition is None or partition.state is not FetchState.FETCHING:
                continue
            route = partition.route
            # A reader of a follower asks the new leader where to read.
            is_elsewhere = partition.broker_id != leaders[topic_partition].broker_id
            if is_elsewhere or route.read_replica != NO_BROKER:
                self._leave_for(partition, FetchEvent.LEFT)
                route.ask_leader()

    def on_topics(self, topic_ids: Mapping[str, TopicId | None]) -> None:
        """Take which topics have these names now; None: no topic has the name.

        A partition whose topic is gone is given up, also when another topic took its name: the user
        did not subscribe to that one.
        """
        for route in self._router.on_topics(topic_ids):
            place = route.topic_partition
            if not self.untold.is_gone(place):
                error = UnknownTopicOrPartitionError(route.deletion)
                self._give_up(self._partitions[place], error)
                self.untold.on_gone(place, error)

    def on_refreshed(self, now: MonotonicMs) -> None:
        """The look-up of metadata is over, whether it found anything or not."""
        self._router.on_refreshed(now)

    def on_connected(self, broker_id: BrokerId, message_bytes_max: int = 0) -> None:
        """The fetch stream to a broker is open; its session begins empty.

        Args:
            broker_id: the broker.
            message_bytes_max: the largest request that it takes; sessions send no large ones.
        """
        self._router.on_connected(broker_id)
        self._sessions.on_connected(broker_id)

    def on_disconnected(self, broker_id: BrokerId, reason: str, now: MonotonicMs) -> None:
        """The stream broke or was not opened; partitions start again after the last batch taken."""
        self._router.on_disconnected(broker_id, now)
        self._sessions.on_disconnected(broker_id)
        for partition in self._partitions.values():
            if partition.state is FetchState.FETCHING and partition.broker_id == broker_id:
                self._leave_for(partition, FetchEvent.LEFT)
                self._router.look_up(partition.route.topic)  # Perhaps another broker leads by now.
            if partition.route.read_replica == broker_id:
                partition.route.return_to_leader()

    def on_denied(self, broker_id: BrokerId, error: AccessDeniedError, now: MonotonicMs) -> None:
        """A broker does not let this client in, and no other one will: all partitions fail."""
        self.on_disconnected(broker_id, error.message, now)
        for partition in self._partitions.values():
            if partition.state is not FetchState.FAILED:
                self._give_up(partition, error)

    def on_fetched(
        self, broker_id: BrokerId, news: Sequence[FetchedPartition], now: MonotonicMs
    ) -> None:
        """Take a response. Bytes that are no batch fail their partition, after earlier batches."""
        self._router.on_answered(broker_id)
        if any(len(fetched.batches) for fetched in news):
            self._sessions.on_received(broker_id, now)
        for fetched in news:
            partition = self._by_handle.get(fetched.handle)
            if partition is None or partition.state is not FetchState.FETCHING:
                self._sessions.refuse(broker_id, len(fetched.batches))
                continue
            partition.learn(fetched)
            if fetched.diverging_epoch is not None:
                epoch, end_offset = fetched.diverging_epoch, fetched.diverging_end_offset
                self._give_up(partition, partition.truncated(epoch, end_offset))
            elif fetched.preferred_read_replica is not None:
                self._leave_for(partition, FetchEvent.LEFT, is_out=True)
                replica = fetched.preferred_read_replica
                self._router.on_read_replica(partition.route, replica, now)
            elif fetched.error is not None:
                self._on_error(partition, fetched.error, fetched.is_retriable, now)
            elif len(fetched.batches) or fetched.aborted:
                self._keep(partition, fetched)

    def on_offset_found(self, handle: int, offset: Offset) -> bool:
        """Take where the log starts or ends; return whether that is still wanted."""
        partition = self._by_handle.get(handle)
        if partition is None:
            return False
        self._leave_for(partition, FetchEvent.FOUND)
        partition.route.failures = 0
        if (jump := partition.jump_to(offset)) is not None:
            self._jumps.append(jump)
        return True

    def on_epoch_end(self, handle: int, epoch: LeaderEpoch, end_offset: Offset) -> None:
        """Take where the epoch of the last record that was taken ends in the leader's log.

        Args:
            handle: as in the effect.
            epoch: the greatest there that is not above the one asked for; -1: there is none.
            end_offset: where it ends; -1: unknown.
        """
        partition = self._by_handle.get(handle)
        if partition is None:
            return
        if end_offset >= 0 and (end_offset < partition.position or epoch < partition.last_epoch):
            self._give_up(partition, partition.truncated(epoch, end_offset))
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
        self._leave_for(partition, FetchEvent.UNANSWERED)
        self._router.look_up(partition.route.topic)
        self._router.on_refused(partition.route, now)

    # The step that follows every event, and every moment that `next_wake` named.

    def poll(self, now: MonotonicMs) -> list[Effect]:
        """Return what is to be done now."""
        self._must_poll = False
        effects: list[Effect] = [*self._jumps]
        self._jumps.clear()
        if not self._all_rest:
            self._advance(now, effects)
        return [*effects, *self._sessions.changes(now), *self._router.poll(now)]

    def _advance(self, now: MonotonicMs, effects: list[Effect]) -> None:
        """Let each partition that does not rest take its next step."""
        for partition in self._partitions.values():
            route = partition.route
            if route.ask_leader_at is not None and route.ask_leader_at <= now:
                if partition.state is FetchState.FETCHING:
                    self._leave_for(partition, FetchEvent.LEFT)
                route.ask_leader()
            if not partition.is_awaiting or route.retry_at > now:
                continue
            if partition.state is FetchState.AWAIT_SESSION:
                leader = self._router.reach(route)
                if leader is not None:
                    self._join(partition, leader)
            elif self._router.known_leader(route) is not None:
                self._give_handle(partition)
                effects.append(_question(partition))
        self._all_rest = all(partition.rests for partition in self._partitions.values())

    def next_wake(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when `poll` has something to do though nothing happened; None: never."""
        moments: list[int] = []
        if not self._all_rest:
            for partition in self._partitions.values():
                moments += partition.moments(now)
        for wake in (self._router.next_wake(now), self._sessions.next_wake()):
            if wake is not None:
                moments.append(wake)
        return MonotonicMs(min(moments)) if moments else None

    # Internals.

    def _join(self, partition: ReadPartition, leader: Leader) -> None:
        self._give_handle(partition)
        joining = partition.joining(leader)
        self._sessions.add(partition.broker_id, joining)

    def _give_handle(self, partition: ReadPartition) -> None:
        partition.on(FetchEvent.ASKED)
        partition.handle = self._next_handle
        self._next_handle += 1
        self._by_handle[partition.handle] = partition

    def _leave_for(
        self, partition: ReadPartition, event: FetchEvent, *, is_out: bool = False
    ) -> None:
        """Go to the state that follows, without a handle; see `_leave`."""
        self._leave(partition, is_out=is_out)
        partition.on(event)

    def _leave(self, partition: ReadPartition, *, is_out: bool = False) -> None:
        """Take the partition's handle away, and drop all data under it.

        Args:
            partition: which.
            is_out: the broker has taken it out of the session by itself.
        """
        self._all_rest = False  # What follows is another state, or the partition's end.
        if not partition.handle:
            return
        if partition.state is FetchState.FETCHING and not is_out:
            self._sessions.remove(partition.handle)
        if partition.state in (FetchState.FETCHING, FetchState.FAILED):
            self._sessions.drop(partition.handle)
            if self._sessions.passed_count:
                self._pass_on()
        del self._by_handle[partition.handle]
        partition.handle = 0
        self._must_poll = True

    def _keep(self, partition: ReadPartition, fetched: FetchedPartition) -> None:
        route = partition.route
        damage = self._sessions.keep(route.topic, route.topic_partition, fetched)
        if self._sessions.passed_count:
            self._pass_on()
        if damage is None:
            return
        error, offset = damage
        if isinstance(error, CorruptBatchError) and partition.distrust(offset):
            self._leave_for(partition, FetchEvent.LEFT)
            return
        self._sessions.remove(partition.handle)
        self._fail(partition, type(error)(f"{partition}: {error.message}"))

    def _pass_on(self) -> None:
        """Move positions over what is passed before the first batch that waits."""
        for passed in self._sessions.pass_on():
            partition = self._by_handle[passed.handle]
            partition.take(passed)
            if partition.is_at_end:
                self.untold.on_end()

    def _on_error(
        self, partition: ReadPartition, error: MillraceError, is_retriable: bool, now: MonotonicMs
    ) -> None:
        is_ahead = self._sessions.has(partition.handle)
        self._leave(partition, is_out=True)
        route = partition.route
        if route.read_replica != NO_BROKER:
            partition.on(FetchEvent.LEFT)
            self._router.on_replica_refused(route, error, now)
        elif isinstance(error, OffsetOutOfRangeError):
            if is_ahead:  # The offset refused is not the position yet: ask again from there.
                partition.on(FetchEvent.LEFT)
            elif partition.last_epoch != NO_LEADER_EPOCH:
                partition.on(FetchEvent.OUT_OF_RANGE)
            elif not partition.is_doubted:
                # A leader that was replaced may not know it yet, and has no newer records.
                partition.is_doubted = True
                partition.on(FetchEvent.LEFT)
                self._router.look_up(route.topic)
                self._router.on_refused(route, now)
            else:
                self._reset_position(partition)
        elif is_retriable:
            partition.on(FetchEvent.LEFT)
            if not self._router.on_hint(route, error):
                self._router.look_up(route.topic)
                self._router.on_refused(route, now)
        else:
            self._give_up(partition, error)

    def _reset_position(self, partition: ReadPartition) -> None:
        if self._reset is Reset.NONE:
            self._give_up(partition, partition.without_position())
            return
        partition.reset = self._reset
        partition.jumps_from = partition.position
        self._leave_for(partition, FetchEvent.RESET)
        self._must_poll = True

    def _give_up(self, partition: ReadPartition, error: MillraceError) -> None:
        self._leave(partition)
        self._fail(partition, error)

    def _fail(self, partition: ReadPartition, error: MillraceError) -> None:
        """Stop the partition with an error; its waiting batches can be taken first."""
        partition.on(FetchEvent.FAILED)
        partition.error = error
        self.untold.add(partition.route.topic_partition, error)

    def _move(self, partition: ReadPartition, to: Offset | Reset) -> None:
        self.untold.forget(partition.route.topic_partition)
        partition.begin_anew()
        self._must_poll = True
        if not isinstance(to, Reset):
            self._leave_for(partition, FetchEvent.MOVED)
            partition.position = to
        elif to is Reset.NONE:
            self._reset_position(partition)
        else:
            self._leave_for(partition, FetchEvent.RESET)
            partition.reset = to


def _question(partition: ReadPartition) -> LookUpOffset | FindEpochEnd:
    """Return what a partition without a position, or with a doubted one, has to ask."""
    place = partition.route.topic_partition
    if partition.state is FetchState.RESETTING:
        return LookUpOffset(place, partition.handle, partition.reset)
    return FindEpochEnd(place, partition.handle, partition.last_epoch)
