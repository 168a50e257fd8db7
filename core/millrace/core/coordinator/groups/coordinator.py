"""The coordinator of the groups of one partition of `__positions`.

`coordinator/contract.py` has the contract between it and its runtime. One partition keeps
everything that has the same name: the members of a group, and the positions of groups, of readers
without a group, and of Spark. The parts share one log: positions
(`coordinator/positions/machine.py`), memberships (`membership.py`), and the groups of Kafka's
classic protocol (`classic.py`). A group speaks one protocol at a time: as long as it has members,
it refuses those of the other one (K11).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple, TypeAlias, TypeVar

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups import classic_records
from millrace.core.coordinator.groups import records as group_records
from millrace.core.coordinator.groups.classic import ClassicGroups
from millrace.core.coordinator.groups.classic_events import NOBODY, Committer, Refused
from millrace.core.coordinator.groups.classic_records import ClassicRecord, Generation
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.group import Current, GroupRecord, MembershipRecord
from millrace.core.coordinator.groups.membership import Heartbeat, MembershipMachine
from millrace.core.coordinator.groups.subscriptions import TopicsView
from millrace.core.coordinator.kept_records import SLACK_RECORDS, KeptRecords
from millrace.core.coordinator.positions import records as position_records
from millrace.core.coordinator.positions.machine import EXPIRED_AT_ONCE, PositionsMachine
from millrace.core.coordinator.positions.position import (
    CommitNumber,
    Kind,
    Position,
    PositionsConfig,
)
from millrace.core.coordinator.positions.records import PendingRecord, PositionRecord
from millrace.core.errors import (
    InvalidGroupError,
    UnstablePositionsError,
)
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.words import count

CoordinatorRecord: TypeAlias = PositionRecord | PendingRecord | MembershipRecord | ClassicRecord
ResponseT = TypeVar("ResponseT")
_RecordT = TypeVar("_RecordT", bound=CoordinatorRecord)


class NameKind(Enum):
    """What keeps positions under a name."""

    CONSUMER = "consumer"
    """A group that consumers joined."""
    SPARK = "spark"
    """A reader that stores where it began, as Spark queries do."""
    STANDALONE = "standalone"
    """A reader that commits on its own."""


class Summary(NamedTuple):
    """A name in a list."""

    kind: NameKind
    members: int


class GroupCoordinator:
    """The machine of one partition: positions and memberships over one log.

    Args:
        positions: the broker's settings of positions.
        groups: those of groups.
        start_offset: where the log begins.
        slack_records: see `KeptRecords`.
        expired_at_once: see `PositionsMachine`.

    Attributes:
        membership: who is in which group.
        classic: likewise in groups of Kafka's classic protocol.
    """

    def __init__(
        self,
        positions: PositionsConfig,
        groups: GroupsConfig,
        start_offset: Offset,
        *,
        slack_records: int = SLACK_RECORDS,
        expired_at_once: int = EXPIRED_AT_ONCE,
    ) -> None:
        self._kept: KeptRecords[CoordinatorRecord] = KeptRecords(start_offset, slack_records)
        self._positions = PositionsMachine(positions, self._kept, expired_at_once=expired_at_once)
        self.membership = MembershipMachine(groups)
        self.classic = ClassicGroups(groups, lambda name: name in self.membership.occupied)
        self._config = positions

    def __len__(self) -> int:
        """The number of positions."""
        return len(self._positions)

    @property
    def next_offset(self) -> Offset:
        """The offset after the last replayed record."""
        return self._kept.next_offset

    @property
    def oldest_offset(self) -> Offset:
        """The offset of the oldest record that counts; `next_offset` if there is none."""
        return self._kept.oldest_offset

    def replay(self, record: CoordinatorRecord, offset: Offset) -> None:
        """Apply a record of the log."""
        self._kept.replay(record, offset)
        if isinstance(record, PositionRecord | PendingRecord):
            self._positions.replay(record)
        elif isinstance(record, ClassicRecord):
            self.classic.replay(record)
        else:
            self.membership.replay(record)

    # --- Queries -----------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all groups and readers."""
        return [*self.group_names(), *self.other_names()]

    def group_names(self) -> list[str]:
        """Return the names of consumer groups of both protocols, the oldest first."""
        return [*{**dict.fromkeys(self.membership.groups), **dict.fromkeys(self.classic.names())}]

    def other_names(self) -> list[str]:
        """Return the names of readers that are no consumer group, likewise."""
        return [name for name in self._positions.names() if not self._is_group(name)]

    def has(self, name: str) -> bool:
        """Whether there is a group or another reader of this name."""
        return self._is_group(name) or self._positions.has(name)

    def _is_group(self, name: str) -> bool:
        return name in self.membership.groups or self.classic.has(name)

    def reading(
        self, name: str, partitions_of: Callable[[TopicId], int]
    ) -> dict[TopicPartition, Offset | None]:
        """Return the offset that is read next in each partition; None: no position is stored.

        A consumer group reads all partitions of its topics, and other readers those in which they
        have a position.

        Args:
            name: of a group or of another reader.
            partitions_of: returns how many partitions a topic has; 0: it is not there.
        """
        offsets: dict[TopicPartition, Offset | None] = {**self._positions.offsets(name)}
        group = self.membership.groups.get(name)
        if self._is_group(name):
            read = dict.fromkeys(() if group is None else group.owners) | offsets
            for topic_id in {partition.topic_id: None for partition in read}:
                for partition in range(partitions_of(topic_id)):
                    read.setdefault(TopicPartition(topic_id, partition))
            return read
        return offsets

    def names_after(self, after: str, count: int) -> list[str]:
        """Return the first names of all after another one, sorted."""
        groups = (name for name in self.group_names() if not self._positions.has(name))
        return nsmallest(
            count, (name for name in chain(self._positions.names(), groups) if name > after)
        )

    def summary(self, name: str) -> Summary:
        """Return the kind of a name, and how many members it has."""
        group = self.membership.groups.get(name)
        if group is not None or self.classic.has(name):
            members = 0 if group is None else len(group.members)
            return Summary(NameKind.CONSUMER, members or self.classic.members(name))
        has_begun = self._positions.has_initial(name)
        return Summary(NameKind.SPARK if has_begun else NameKind.STANDALONE, 0)

    def positions(self, name: str, kind: Kind) -> dict[TopicPartition, Position]:
        """See `PositionsMachine.positions`."""
        return self._positions.positions(name, kind)

    def pending(self, name: str) -> dict[TopicPartition, Position]:
        """See `PositionsMachine.pending`."""
        return self._positions.pending(name)

    def unstable(self, name: str) -> Collection[TopicPartition]:
        """Return the partitions whose committed position waits for the end of a transaction."""
        return self._positions.unstable(name)

    # --- Changes -----------------------------------------------------------------------------

    def handle_resolve_initial(
        self, name: str, proposals: Mapping[TopicPartition, Position], now: WallMs
    ) -> Result[CoordinatorRecord, dict[TopicPartition, Position]]:
        """See `PositionsMachine.handle_resolve_initial`."""
        return self._stored(self._positions.handle_resolve_initial(name, proposals, now))

    def handle_commit(
        self,
        name: str,
        positions: Mapping[TopicPartition, Position],
        now: WallMs,
        *,
        member_id: str = "",
        epoch: int = -1,
        number: int = 0,
    ) -> Result[CoordinatorRecord, None]:
        """Store how far a reader has read; a member names its latest assignment.

        The number counts the commits of the member; 0: it does not count them.

        Raises:
            MillraceError: see `PositionsMachine.handle_commit`, `MembershipMachine.check_commit`.
        """
        self._check_commit(name, member_id, epoch, positions)
        commit = CommitNumber(member_id, number) if member_id and number else None
        return self._stored(self._positions.handle_commit(name, positions, now, commit))

    def handle_stage(
        self,
        name: str,
        positions: Mapping[TopicPartition, Position],
        producer: tuple[ProducerId, ProducerEpoch],
        coordinator_epoch: LeaderEpoch,
        now: WallMs,
        *,
        member_id: str = "",
        epoch: int = -1,
        number: int = 0,
    ) -> Result[CoordinatorRecord, None]:
        """Store positions that a transaction commits (P56); the rest is as in `handle_commit`.

        Args:
            name: of the group.
            positions: by partition.
            producer: of the transaction.
            coordinator_epoch: of the coordinator that has let the group join.
            now: the time.
            member_id: as the next two, see `handle_commit`.
            epoch: of its assignment.
            number: of its commit.

        Raises:
            MillraceError: as in `handle_commit`.
        """
        self._check_commit(name, member_id, epoch, positions)
        commit = CommitNumber(member_id, number) if member_id and number else None
        return self._stored(
            self._positions.handle_stage(
                name, positions, producer, coordinator_epoch, now, commit=commit
            )
        )

    def _check_commit(
        self, name: str, member_id: str, epoch: int, positions: Iterable[TopicPartition]
    ) -> None:
        if not member_id:
            self.classic.check_stranger(name)
        self.membership.check_commit(name, member_id, epoch, positions)

    def handle_end(
        self,
        name: str,
        producer_id: ProducerId,
        before: ProducerEpoch,
        coordinator_epoch: LeaderEpoch,
        now: WallMs,
        *,
        is_commit: bool,
    ) -> Result[CoordinatorRecord, None]:
        """See `PositionsMachine.handle_end`."""
        return self._stored(
            self._positions.handle_end(
                name, producer_id, before, coordinator_epoch, now, is_commit=is_commit
            )
        )

    def check_stable(self, name: str, partitions: Collection[TopicPartition] = ()) -> None:
        """Refuse to tell positions that wait for the end of a transaction (KIP-447).

        Args:
            name: of the positions.
            partitions: that the reader is interested in; none: in all.

        Raises:
            UnstablePositionsError: some do.
        """
        unstable = self._positions.unstable(name)
        if partitions:
            unstable &= {*partitions}
        if unstable:
            raise UnstablePositionsError(
                f"{count(len(unstable), 'position waits', 'positions wait')} under the name "
                f"{name!r} for the end of a transaction: try again shortly",
                topic_partition=min(unstable),
            )

    def handle_delete(self, name: str, now: WallMs) -> Result[CoordinatorRecord, None]:
        """Forget a name and its positions.

        Raises:
            GroupNotEmptyError: the group has members.
            InvalidPositionError: that is no name.
        """
        self.classic.check_empty(name)
        group = self.membership.handle_forget(name, now)
        positions = self._positions.handle_delete(name, now)
        classic = self._classic_forgotten(name, now)
        return Result([*positions.records, *group.records, *classic], None)

    def _classic_forgotten(self, name: str, now: WallMs) -> list[CoordinatorRecord]:
        return [ClassicRecord(name, None, now)] if name in self.classic.stored else []

    def handle_forget_topics(
        self, name: str, topic_ids: Collection[TopicId], topics: TopicsView, now: WallMs
    ) -> Result[CoordinatorRecord, None]:
        """Forget the positions of a name in some topics (KIP-496).

        Raises:
            GroupSubscribedToTopicError: members of the group read one of them.
            InvalidPositionError: that is no name.
        """
        self.membership.check_unread(name, topic_ids, topics)
        self.classic.check_unread(name, topic_ids, topics)
        result = self._positions.handle_forget_topics(name, topic_ids, now)
        group = self.membership.handle_forget_topics(name, topic_ids, now)
        return Result([*result.records, *group.records], None)

    def handle_forget_partitions(
        self,
        name: str,
        partitions: Collection[TopicPartition],
        topics: TopicsView,
        now: WallMs,
    ) -> Result[CoordinatorRecord, None]:
        """Forget the positions of a name in some partitions.

        Raises:
            GroupSubscribedToTopicError, InvalidPositionError: as in `handle_forget_topics`.
        """
        topic_ids = {where.topic_id for where in partitions}
        self.membership.check_unread(name, topic_ids, topics)
        self.classic.check_unread(name, topic_ids, topics)
        result = self._positions.handle_forget_partitions(name, partitions, now)
        return Result([*result.records], None)

    def handle_expire(
        self,
        names: Iterable[str],
        now: WallMs,
        exists: Callable[[TopicId], bool],
        topics: TopicsView,
    ) -> Result[CoordinatorRecord, None]:
        """Forget names that were unused for long, and topics that a group has left.

        A group is used until its last member has left, and for the same time after that (KIP-211).
        Without positions there is nothing to keep of an empty one.
        """
        names = list(names)
        records: list[CoordinatorRecord] = []
        for name in names:
            group = self.membership.groups.get(name)
            if not self._positions.has(name) and not self.classic.members(name):
                records += self._classic_forgotten(name, now)
            if group is not None and group.is_empty and not self._positions.has(name):
                records += self.membership.handle_forget(name, now).records
            elif group is not None and topics.version is not None:
                begun_with = self._positions.partition_counts(name)
                records += self.membership.handle_expire(
                    name, now, exists, begun_with, self._config.left_topic_retention_ms
                ).records
        expired = self._positions.handle_expire(
            names,
            now,
            exists,
            is_used=lambda name: self._is_used(name, now),
            left_topics=lambda name: self._left_topics(name, topics, now),
        )
        return Result([*records, *expired.records], None)

    def _left_topics(self, name: str, topics: TopicsView, now: WallMs) -> Collection[TopicId]:
        """Return the topics that a group left long ago; without members it has left none."""
        retention_ms = self._config.left_topic_retention_ms
        if retention_ms == -1 or topics.version is None:
            return ()
        stored = self._kept.get(ClassicRecord(name, None, now).key)
        if stored is None:
            return self.membership.left_topics(name, topics, now, retention_ms)
        # The log does not say when members of a classic group left a topic. They have subscribed to
        # the same topics since they began their generation.
        if now - stored.timestamp <= retention_ms:
            return ()
        return self.classic.left_topics(name, self._positions.partition_counts(name), topics)

    def _is_used(self, name: str, now: WallMs) -> bool:
        group = self.membership.groups.get(name)
        if self.classic.members(name):
            return True
        key = GroupRecord(name, None, now).key
        if group is None:
            key = ClassicRecord(name, None, now).key
        if group is None and not self.classic.has(name):
            return False
        record = self._kept.get(key)
        retention_ms = self._config.retention_ms
        changed_ago = 0 if record is None else now - record.timestamp
        is_occupied = group is not None and not group.is_empty
        return is_occupied or retention_ms == -1 or changed_ago <= retention_ms

    def handle_heartbeat(
        self, name: str, heartbeat: Heartbeat, topics: TopicsView, now: WallMs
    ) -> Result[CoordinatorRecord, Current]:
        """See `MembershipMachine.handle_heartbeat`.

        Raises:
            InvalidGroupError: also if members of the group speak Kafka's protocol (K11).
        """
        if self.classic.joined(name):
            raise InvalidGroupError(
                f"the group {name!r} has members that speak Kafka's protocol, and a group speaks "
                "one at a time: stop them first, or choose another name"
            )
        result = self.membership.handle_heartbeat(name, heartbeat, topics, now)
        return self._stored(
            Result([*self._classic_forgotten(name, now), *result.records], result.response)
        )

    def handle_generation(
        self, name: str, generation: Generation, now: WallMs
    ) -> Result[CoordinatorRecord, None]:
        """Store a generation of a classic group; the group is one of Kafka's from then on.

        Raises:
            GroupNotEmptyError: members of the group speak Millrace's own protocol (K11).
        """
        if name in self.membership.occupied and not generation.members:
            return Result([], None)  # The last member has gone, and the group is another one.
        records: list[CoordinatorRecord] = [ClassicRecord(name, generation, now)]
        records += self.membership.handle_forget(name, now).records
        return self._stored(Result(records, None))

    def handle_classic_commit(
        self,
        name: str,
        positions: Mapping[TopicPartition, Position],
        now: WallMs,
        committer: Committer = NOBODY,
    ) -> Result[CoordinatorRecord, Refused | None]:
        """Store how far a client of Kafka has read: a member of a group, or a reader without one.

        Raises:
            MillraceError: see `PositionsMachine.handle_commit`, `MembershipMachine.check_commit`.
        """
        refused = refusal_of_kafka(self, name, positions, committer)
        if refused is not None:
            return Result([], refused)
        stored = self._positions.handle_commit(name, positions, now)
        return self._stored(Result([*stored.records], None))

    def handle_classic_stage(
        self,
        name: str,
        positions: Mapping[TopicPartition, Position],
        producer: tuple[ProducerId, ProducerEpoch],
        coordinator_epoch: LeaderEpoch,
        now: WallMs,
        *,
        committer: Committer = NOBODY,
    ) -> Result[CoordinatorRecord, Refused | None]:
        """As `handle_classic_commit`, but a transaction commits them (P56): see `handle_stage`."""
        refused = refusal_of_kafka(self, name, positions, committer, staged=True)
        if refused is not None:
            return Result([], refused)
        stored = self._positions.handle_stage(name, positions, producer, coordinator_epoch, now)
        return self._stored(Result([*stored.records], None))

    def handle_leave(
        self,
        name: str,
        member_ids: Collection[str],
        topics: TopicsView,
        now: WallMs,
        *,
        for_now: bool = False,
    ) -> Result[CoordinatorRecord, list[str]]:
        """See `MembershipMachine.handle_leave`."""
        return self._stored(
            self.membership.handle_leave(name, member_ids, topics, now, for_now=for_now)
        )

    def handle_silence(
        self, name: str, silent: Mapping[str, int], now: WallMs
    ) -> Result[CoordinatorRecord, None]:
        """See `MembershipMachine.handle_silence`."""
        return self._stored(self.membership.handle_silence(name, silent, now))

    def handle_assign(
        self, name: str, topics: TopicsView, now: WallMs
    ) -> Result[CoordinatorRecord, None]:
        """See `MembershipMachine.handle_assign`."""
        return self._stored(self.membership.handle_assign(name, topics, now))

    def _stored(self, result: Result[_RecordT, ResponseT]) -> Result[CoordinatorRecord, ResponseT]:
        return Result(self._kept.with_repetitions([*result.records]), result.response)


def refusal_of_kafka(
    machine: GroupCoordinator,
    name: str,
    partitions: Iterable[TopicPartition],
    committer: Committer,
    *,
    staged: bool = False,
) -> Refused | None:
    """Return why a client of Kafka may not commit; see `ClassicGroups.refusal_of_commit`.

    The group may also be one of KIP-848, whose members speak Millrace's protocol; their epochs are
    in the place of generations.

    Raises:
        MillraceError: likewise why not.
    """
    if name not in machine.membership.occupied:
        return machine.classic.refusal_of_commit(name, committer, staged=staged)
    member_id, instance_id, epoch = committer
    holder = machine.membership.occupied[name].instances.get(instance_id)
    if instance_id and member_id and holder not in (None, member_id):
        return Refused.FENCED_INSTANCE
    if member_id or not staged:
        machine.membership.check_commit(name, member_id, epoch, partitions)
    return None


def encode(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record."""
    if isinstance(record, PositionRecord):
        return position_records.encode(record)
    if isinstance(record, PendingRecord):
        return position_records.encode_pending(record)
    if isinstance(record, ClassicRecord):
        return classic_records.encode(record)
    return group_records.encode(record)


def decode(key: bytes | None, value: bytes | None, timestamp: WallMs) -> CoordinatorRecord:
    """Return a record.

    Raises:
        UnsupportedFormatError: this release does not know its format.
    """
    if key and key[0] in group_records.KINDS:
        return group_records.decode(key, value, timestamp)
    if key and key[0] == classic_records.CLASSIC:
        return classic_records.decode(key, value, timestamp)
    if key and key[0] == position_records.PENDING:
        return position_records.decode_pending(key, value, timestamp)
    return position_records.decode(key, value, timestamp)
