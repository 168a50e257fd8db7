"""All replicas of one broker: their roles, their leaders, and proposals to the controller.

The shell passes events to this machine, and performs its effects (`effects`) in order:

| event                          | from                                                      |
|--------------------------------|-----------------------------------------------------------|
| `on_image`                     | the metadata cache, one image after another               |
| `on_opened`, `on_failed`       | a log that was opened, or that is damaged or gone         |
| `on_disk`                      | the disk, in the order of what it was told to do          |
| `on_fetched`, `on_fetch_error` | a leader's answer for one partition                       |
| `on_session_broken`            | the stream to a leader                                    |
| `on_isr_answers`               | the controller                                            |
| `on_set_aside_failed`          | the disk: a damaged log keeps its name                    |
| `tick`                         | several times a second                                    |

An image names the replicas of this broker; nothing else does (P39):

- a partition that is new here is opened (`OpenLog`);
- one that the image gives to others at a later partition epoch is closed and its data may be
  deleted (`DropReplica`, P33, P70), also if that happened while this broker was down; data of a
  topic that is gone for good may be deleted when the metadata's tombstone says so;
- one of a deleted topic is closed, and opened again when the topic is brought back (P75);
- one that the image does not know at all is left alone: absence is never an order (P39).

Leaders' proposals gather, and one request with all of them, up to the cluster's bound
(`configure`), is in flight at a time.

An event costs only the partitions that it concerns: an image those that it alters, and a tick those
that are due. Each leader names the time when it is due, and a heap orders these times; a partition
whose followers have everything is never due.

`unopened` has the replicas whose log is not open; it gets the answers to their renewals, and hears
that a damaged log was set aside.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from millrace.core.errors import (
    Appended,
    CorruptLogError,
    IneligibleReplicaError,
    LogDirFailedError,
    MillraceError,
    NotLeaderError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicPartition,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife, Topic
from millrace.core.metadata.requests import LogEnd
from millrace.core.replica.replication.effects import (
    Append,
    CloseReplica,
    Configure,
    DropReplica,
    Effect,
    FetchFrom,
    Halted,
    ProposeIsr,
    StopFetching,
    Wake,
)
from millrace.core.replica.replication.events import Changed, Failed, Fetched, Flushed, Written
from millrace.core.replica.replication.in_sync import BrokerStanding, IsrProposal, standings_of
from millrace.core.replica.replication.leader_session import LeaderSession
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.replica import Replica
from millrace.core.replica.replication.role import ReplicaLog
from millrace.core.replica.replication.rules import AppendRules, ReplicationConfig
from millrace.core.replica.replication.unopened import UnopenedReplicas


class Replicas:
    """The machine of one broker. Iterates over the partitions that are open here.

    Args:
        broker: this broker's life. Another one needs another machine (P37).
        config: the broker's settings.
        on_disk: partitions that its earlier lives have left behind.

    Attributes:
        sessions: with the leaders that this broker follows, by broker id.
        unopened: replicas here whose log is not open.
    """

    def __init__(
        self,
        broker: BrokerLife,
        config: ReplicationConfig,
        on_disk: Iterable[TopicPartition] = (),
    ) -> None:
        self.broker = broker
        self.sessions: dict[BrokerId, LeaderSession] = {}
        self.unopened = UnopenedReplicas(broker, config, on_disk)
        self._config = config
        self._image: MetadataImage | None = None
        self._standings: dict[BrokerId, BrokerStanding] = {}
        self._open: dict[TopicPartition, Replica] = {}
        self._request_partitions_max = ClusterConfig().request_partitions_max
        self._to_propose: dict[TopicPartition, IsrProposal] = {}
        self._proposed: list[tuple[TopicPartition, IsrProposal]] = []
        # Times when leaders are due, the soonest first. Only the `turn` of a replica counts; other
        # entries were moved to an earlier time, or their replicas are gone.
        self._turns: list[tuple[MonotonicMs, TopicPartition]] = []
        self._ticked_at: MonotonicMs | None = None

    def configure(self, *, request_partitions_max: int) -> None:
        """Follow the cluster's settings from now on: a larger request would be refused for ever."""
        self._request_partitions_max = request_partitions_max
        self.unopened.configure(request_partitions_max=request_partitions_max)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._open)

    def find(self, topic_partition: TopicPartition) -> Replica | None:
        """Return a replica whose log is open."""
        return self._open.get(topic_partition)

    def get(self, topic_partition: TopicPartition) -> Replica:
        """Return a replica whose log is open.

        Raises:
            MillraceError: the log is damaged, or its directory failed.
            UnknownTopicOrPartitionError: this broker has no such replica.
        """
        replica = self._open.get(topic_partition)
        if replica is not None:
            return replica
        error = self.unopened.errors.get(topic_partition)
        if error is not None:  # A new one for this request: nothing of it was appended.
            raise error.again(Appended.NO)
        raise UnknownTopicOrPartitionError(
            "this broker has no replica of it: refresh the metadata, the topic may have been "
            "deleted",
            topic_partition=topic_partition,
        )

    def log_end(self, topic_partition: TopicPartition) -> LogEnd | None:
        """Return the end of a log without a leader, and whether it reaches `committed_end` (P26).

        None: there is no log, this broker does not know yet that there is no leader, or an earlier
        batch is still being written. The controller asks again.
        """
        replica = self._open.get(topic_partition)
        return None if replica is None else replica.log_end()

    def lacking(self) -> dict[TopicPartition, CorruptLogError]:
        """Return the errors of eligible replicas that cannot lead as their logs lack records
        (P26)."""
        return {
            topic_partition: error
            for topic_partition, replica in self._open.items()
            if (error := replica.lack()) is not None
        }

    # --- Metadata ----------------------------------------------------------------------------

    def on_image(self, image: MetadataImage, now: MonotonicMs) -> list[Effect]:
        """Follow the metadata, which never goes back (P39)."""
        before, self._image = self._image, image
        self.unopened.image = image
        assert before is None or image.epoch >= before.epoch
        self._ticked_at = now if self._ticked_at is None else self._ticked_at
        standings = standings_of(image.cluster.brokers)
        effects: list[Effect] = []
        altered: list[tuple[Topic | None, Topic]] = []
        if before is None:
            altered += [(None, topic) for topic in image.topics_by_id.values()]
        else:
            changes = image.changes_since(before)
            altered += [(None, topic) for topic in changes.created]
            altered += changes.altered
            for topic in changes.deleted:
                may_return = image.may_return(topic.topic_id)
                effects += self._on_deleted(topic, may_return=may_return)
        self._standings, had = standings, self._standings
        for old, topic in altered:
            for number in _altered(old, topic):
                effects += self._on_state(topic, number, now, is_first=before is None)
        if standings != had:
            # The brokers that may join, and whose reports count, have changed for all leaders, also
            # for those that wait for their disk.
            for replica in self._open.values():
                known = replica.state
                if known is not None and (replica.leader is not None or replica.must_lead):
                    effects += self._note(replica, replica.on_state(known, standings, now), now)
                    self._schedule(replica, now)
        return effects

    def _on_deleted(self, topic: Topic, *, may_return: bool) -> list[Effect]:
        effects: list[Effect] = []
        error = UnknownTopicOrPartitionError(f"the topic {topic.name} was deleted")
        for number in range(len(topic.partitions)):
            topic_partition = TopicPartition(topic.topic_id, number)
            if topic_partition in self._open or topic_partition in self.unopened:
                effects += self._give_up(topic_partition, error)
                effects.append(CloseReplica(topic_partition, may_return=may_return))
        return effects

    def _on_state(
        self, topic: Topic, number: int, now: MonotonicMs, *, is_first: bool
    ) -> list[Effect]:
        state = topic.partitions[number]
        topic_partition = TopicPartition(topic.topic_id, number)
        replica = self._open.get(topic_partition)
        was_left = self.unopened.take_left_behind(topic_partition)
        is_here = replica is not None or topic_partition in self.unopened or was_left
        if self.broker.broker_id not in state.replicas:
            if not is_here:
                return []
            error = NotLeaderError(f"{topic.name}-{number} was moved to other brokers")
            return [*self._give_up(topic_partition, error), DropReplica(topic_partition)]
        if replica is not None:
            replica.configure(AppendRules.of(topic.config, state.replication_factor), now)
            effects = self._note(replica, replica.on_state(state, self._standings, now), now)
            self._schedule(replica, now)
            return [Configure(topic_partition, topic), *effects]
        if topic_partition in self.unopened:
            return []
        return [self.unopened.open(topic_partition, is_first=is_first)]

    def _give_up(self, topic_partition: TopicPartition, error: MillraceError) -> list[Effect]:
        """Forget a replica, and what it was about to propose: it has no log to lead with."""
        self.unopened.give_up(topic_partition)
        self._to_propose.pop(topic_partition, None)
        replica = self._open.pop(topic_partition, None)
        if replica is None:
            return []
        self._leave(replica)
        replica.repay(replica.log.log_end_offset, is_void=True)
        return [effect for effect in replica.resign(error) if not isinstance(effect, StopFetching)]

    # --- Events of logs ----------------------------------------------------------------------

    def on_opened(
        self,
        topic_partition: TopicPartition,
        log: ReplicaLog,
        high_watermark: Offset,
        now: MonotonicMs,
    ) -> list[Effect]:
        """A log is open; `high_watermark` is the last one known, at most its end (P68)."""
        assert self._image is not None
        state = self._image.partition(topic_partition)
        is_wanted = self.unopened.on_opened(topic_partition)
        if not is_wanted or state is None or self.broker.broker_id not in state.replicas:
            # It was given up meanwhile.
            may_return = self._image.may_return(topic_partition.topic_id)
            return [CloseReplica(topic_partition, may_return=may_return)]
        topic = self._image.topics_by_id[topic_partition.topic_id]
        replica = Replica(
            topic_partition,
            self.broker,
            log,
            AppendRules.of(topic.config, state.replication_factor),
            high_watermark=high_watermark,
            config=self._config,
        )
        self._open[topic_partition] = replica
        effects = self._note(replica, replica.on_state(state, self._standings, now), now)
        self._schedule(replica, now)
        return [Configure(topic_partition, topic), *effects]  # It may be another one by now.

    def on_failed(self, topic_partition: TopicPartition, error: MillraceError) -> list[Effect]:
        """A log cannot be opened, or is damaged, or its directory failed (P63, P65)."""
        effects = self._give_up(topic_partition, error)
        self.unopened.on_failed(topic_partition, error)
        return effects

    def on_set_aside_failed(
        self, topic_partition: TopicPartition, error: MillraceError, now: MonotonicMs
    ) -> list[Effect]:
        """A damaged log keeps its name."""
        if isinstance(error, LogDirFailedError):
            return self.on_failed(topic_partition, error)
        self.unopened.on_set_aside_failed(topic_partition, error, now)
        return []

    def on_disk(
        self,
        topic_partition: TopicPartition,
        event: Written | Flushed | Failed | Changed,
        now: MonotonicMs,
    ) -> list[Effect]:
        """The disk has done something to a log, or could not."""
        replica = self._open.get(topic_partition)
        if replica is None:
            return []
        match event:
            case Written(end_offset) | Flushed(end_offset):
                replica.repay(end_offset)
            case Failed(base_offset):
                replica.repay(base_offset, is_void=True)
        effects = self._note(replica, replica.on_disk(event, now), now)
        leader = replica.leader
        if isinstance(event, Failed) or (leader is not None and leader.state.is_unflushed):
            self._schedule(replica, now)  # It may have been the last flush that was due.
        return effects

    # --- Following ---------------------------------------------------------------------------

    def on_fetched(self, leader: BrokerId, fetched: Fetched, now: MonotonicMs) -> list[Effect]:
        """Take a leader's response for one handle; drop it if the position was closed."""
        session = self.sessions[leader]
        session.on_received(fetched.size)
        position = session.position(fetched.handle)
        replica = None if position is None else self._open.get(position.topic_partition)
        if position is None or replica is None:
            session.on_done(fetched.size)
            return []
        effects = replica.on_fetched(position, fetched)
        appended = next((effect for effect in effects if isinstance(effect, Append)), None)
        if appended is None:
            session.on_done(fetched.size)
        else:
            end_offset = appended.batches[-1].next_offset
            replica.unwritten.append((end_offset, fetched.size, session))
        return self._note(replica, effects, now)

    def on_fetch_error(
        self, leader: BrokerId, handle: int, log_start_offset: Offset | None, now: MonotonicMs
    ) -> list[Effect]:
        """A leader refused a position.

        Args:
            log_start_offset: the leader's, where the position is out of its range; else None.
        """
        position = self.sessions[leader].position(handle)
        replica = None if position is None else self._open.get(position.topic_partition)
        if position is None or replica is None:
            return []
        return self._note(replica, replica.on_fetch_error(position, log_start_offset), now)

    def on_session_broken(self, leader: BrokerId, now: MonotonicMs) -> list[Effect]:
        """The stream to a leader is gone: open every position at it again."""
        effects: list[Effect] = []
        session = self.sessions.get(leader)
        for position in [] if session is None else session.on_broken():
            replica = self._open.get(position.topic_partition)
            if replica is not None:
                effects += self._note(replica, replica.on_fetch_error(position, None), now)
        return effects

    def _enter(self, replica: Replica, position: FetchFrom, now: MonotonicMs) -> None:
        session = self.sessions.get(position.leader)
        if session is None:
            session = LeaderSession(self._config.replica_fetch_window_bytes)
            self.sessions[position.leader] = session
        if replica.session is not session:
            self._leave(replica)
            replica.session = session
        assert replica.follower is not None
        session.open(position, replica.follower.progress, now)

    def _leave(self, replica: Replica) -> None:
        if replica.session is not None:
            replica.session.close(replica.topic_partition)
            replica.session = None

    # --- Leading -----------------------------------------------------------------------------

    def on_follower_progress(
        self,
        topic_partition: TopicPartition,
        life: BrokerLife,
        leader_epoch: LeaderEpoch,
        progress: FollowerProgress,
        now: MonotonicMs,
    ) -> list[Effect]:
        """Take a follower's report about its log.

        Raises:
            NotLeaderError, FencedLeaderEpochError, UnknownLeaderEpochError, MalformedRequestError:
                as in `PartitionLeader.on_follower_fetch`.
        """
        replica = self.get(topic_partition)
        leader = replica.require_leader()
        done = leader.on_follower_fetch(
            life,
            leader_epoch,
            progress,
            replica.log.leader_epochs,
            now,
            log_start_offset=replica.log.log_start_offset,
        )
        effects = self._note(replica, done, now)
        if leader.is_expansion_due(now):
            self._note_time(now)
            effects += self._tick(replica, now) + self._propose()
        elif replica.turn is None or life not in leader.state.isr:
            self._schedule(replica, now)
        return effects

    def on_isr_answers(
        self, answers: Sequence[MillraceError | None] | MillraceError, now: MonotonicMs
    ) -> list[Effect]:
        """Take the controller's answers to the proposals in flight, in their order.

        The metadata that an acceptance (None) rests on has arrived before.
        """
        proposed, self._proposed = self._proposed, []
        if isinstance(answers, MillraceError):
            answers = [answers] * len(proposed)
        effects: list[Effect] = []
        for (topic_partition, proposal), answer in zip(proposed, answers, strict=True):
            replica = self._open.get(topic_partition)
            leader = None if replica is None else replica.leader
            if replica is None or leader is None:
                continue
            done: list[Effect] = []
            if answer is None:
                if replica.state is not None:
                    done = leader.on_isr_accepted(proposal, replica.state, now)
            elif isinstance(answer, IneligibleReplicaError):
                done = leader.on_isr_refused(proposal, now)
            else:
                leader.on_isr_unknown(proposal, now)
            effects += self._note(replica, done, now)
            self._schedule(replica, now)
        return effects + self._propose()

    # --- Time --------------------------------------------------------------------------------

    def tick(self, now: MonotonicMs) -> list[Effect]:
        """Let time pass; to be called several times in each `replica_lag_time_max_ms`."""
        self._note_time(now)
        self._ticked_at = now
        effects: list[Effect] = []
        while self._turns and self._turns[0][0] <= now:
            turn, topic_partition = heapq.heappop(self._turns)
            replica = self._open.get(topic_partition)
            if replica is not None and replica.turn == turn:
                replica.turn = None
                effects += self._tick(replica, now)
        return effects + self._propose() + self.unopened.renew(now)

    def _note_time(self, now: MonotonicMs) -> None:
        """Detect that this process stood still: then its followers' silence is its own fault (P23).

        A long time without a tick shows it.
        """
        since = now if self._ticked_at is None else self._ticked_at
        if now - since > self._config.replica_lag_time_max_ms // 2:
            self._ticked_at = now
            for replica in self._open.values():
                if replica.leader is not None:
                    replica.leader.on_stood_still(now)

    def _tick(self, replica: Replica, now: MonotonicMs) -> list[Effect]:
        done, proposal = replica.role.tick(now, replica.log.leader_epochs)
        if proposal is not None:
            self._to_propose[replica.topic_partition] = proposal
        effects = self._note(replica, done, now)
        self._schedule(replica, now)
        return effects

    def _schedule(self, replica: Replica, now: MonotonicMs) -> None:
        """Schedule a partition for the time its leader names, or earlier.

        The time is never later than a follower's lag limit from now. So writes and reports need not
        move it forward: their only effect in time is that a follower lags.
        """
        wanted = replica.role.due_at(now)
        if wanted is None:
            return  # An earlier entry may come due, and do nothing.
        lag_ms = self._config.replica_lag_time_max_ms
        turn = MonotonicMs(min(max(wanted, now + 1), now + lag_ms + 1))
        if replica.turn is None or turn < replica.turn:
            replica.turn = turn
            heapq.heappush(self._turns, (turn, replica.topic_partition))

    def _propose(self) -> list[Effect]:
        """Send the proposals that have gathered, one request at a time."""
        if self._proposed or not self._to_propose:
            return []
        self._proposed = list(islice(self._to_propose.items(), self._request_partitions_max))
        for topic_partition, _ in self._proposed:
            del self._to_propose[topic_partition]
        return [ProposeIsr(self._proposed)]

    # --- Effects -----------------------------------------------------------------------------

    def _note(self, replica: Replica, effects: Sequence[Effect], now: MonotonicMs) -> list[Effect]:
        """Update the sessions; return the effects for the shell."""
        for_shell: list[Effect] = []
        for effect in effects:
            match effect:
                case FetchFrom():
                    self._enter(replica, effect, now)
                    continue
                case StopFetching():
                    self._leave(replica)
                    continue
                case Halted():
                    self._leave(replica)
                case Wake():  # Its role may be another one.
                    self._schedule(replica, now)
            for_shell.append(effect)
        if replica.session is not None and replica.follower is not None:
            replica.session.on_progress(replica.topic_partition, replica.follower.progress)
        if (news := replica.take_news()) is not None:
            for_shell.append(news)
            leader = replica.leader
            if replica.turn is None and leader is not None and leader.in_sync.has_followers:
                self._schedule(replica, now)  # They may lag from now on.
        return for_shell


def _altered(old: Topic | None, topic: Topic) -> Iterator[int]:
    """Yield the numbers of the partitions that have changed."""
    if old is None or old.overrides != topic.overrides:
        yield from range(len(topic.partitions))
        return
    for number, state in enumerate(topic.partitions):
        before = old.partitions[number] if number < len(old.partitions) else None
        if state is not before and state != before:
            yield number
