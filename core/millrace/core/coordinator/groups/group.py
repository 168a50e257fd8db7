"""The state of one consumer group: what its records say, and what follows from them.

A group has an epoch, which rises when a member comes, goes or changes its subscription, and when a
topic that it reads changes. For each epoch an assignor computes the *target*: which partitions each
member should own. A member's *current* assignment moves towards it in steps, each with the next
epoch of the member. A member confirms an epoch when it has stopped to read what that step revokes.
Until then the revoked partitions have no other owner. What a member keeps is never paused.

Invariants:

- A partition has at most one owner: it is in the assigned or revoked partitions of one member
  (P61).
- A revoked partition becomes free only when its owner has confirmed the epoch that revokes it, or
  is gone.

A partition is *later* if it appears after the group has begun to read its topic: when the topic
grows, or when a topic is made that a subscription has waited for. Members read it from its start,
whatever they ask for without a position. Otherwise records would be lost that are sent before a
member gets the partition. The log says which partitions are later, so that this outlives members
and coordinators.

In KIP-848 a member tells which partitions it still reads, and its epoch is the group's. A late
heartbeat may then seem to confirm what the member was told after it was sent. Here the epoch counts
a member's own assignments, so that a confirmation can be about one of them only.

A group remembers topics, names and patterns after the last member with such a subscription has left
(`Epochs.left`). When a member subscribes again, partitions that have appeared meanwhile are later.
The memory ends by `forget_topics` or by expiry (`MembershipMachine.handle_expire`).

Source: KIP-848, "Server-side assignor"; Kafka's ConsumerGroup. KIP-1282 and KAFKA-12478 for later
partitions.
"""

from bisect import bisect_left
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from millrace.core.coordinator.groups.assignors import Assignment
from millrace.core.ids import TopicId, TopicPartition, WallMs

JOINING: Final = 0
"""What a member confirms when it joins: it reads nothing."""
REBALANCE_TIMEOUT_MS_DEFAULT: Final = 300_000
"""For members that do not say how long they need; Kafka's `max.poll.interval.ms`."""
_NEVER: Final = WallMs(0)

Partitions: TypeAlias = frozenset[TopicPartition]
NO_PARTITIONS: Final[Partitions] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a member said of itself when it joined, or since.

    Attributes:
        instance_id: the name that a static member keeps over restarts; empty: it is dynamic.
        client_id: of its program, for people.
        address: of its process, for people.
        zone: where it runs; empty: unknown.
        topics: names of the topics that it subscribed to, sorted.
        pattern: a regular expression of the names of more topics; empty: none.
        assignor: the assignor that it asks for; empty: any.
        rebalance_timeout_ms: how long it may take to give up a partition.
        is_away: it is static, has closed, and reads nothing; it may return within its session.
        silent_ms: for how long it had been silent when this was stored (`sessions.py`).
    """

    instance_id: str = ""
    client_id: str = ""
    address: str = ""
    zone: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assignor: str = ""
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS_DEFAULT
    is_away: bool = False
    silent_ms: int = 0


@dataclass(frozen=True, slots=True)
class Current:
    """What a member owns at present.

    Attributes:
        epoch: counts its assignments; the first one is 1.
        assigned: what it may read.
        revoking: what this epoch takes from it; it has not confirmed that yet.
        gained: the part of `assigned` that it did not own in the epoch before.
    """

    epoch: int = JOINING
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    gained: Partitions = NO_PARTITIONS

    def owned_in(self, epoch: int) -> Partitions | None:
        """Return what the member owned in this epoch or the one before, as far as no other member
        can have it by now; None: that epoch is too old."""
        if epoch == self.epoch:
            return self.assigned
        if epoch == self.epoch - 1:
            return (self.assigned - self.gained) | self.revoking
        return None


class LeftTopic(NamedTuple):
    """A topic that a group has read, and that no member subscribes to now.

    Attributes:
        begun_with: number of the first later partition; None: the group has forgotten its
            positions, and reads all partitions as if it had never read the topic.
        at: when the group left it, by the clock of its coordinator.
    """

    begun_with: int | None
    at: WallMs


@dataclass(frozen=True, slots=True)
class Epochs:
    """The record of the group as a whole.

    Attributes:
        epoch: of the group.
        target_epoch: the group's epoch for which the target was computed.
        topics: the topics with their partitions, for which it was computed; sorted by id. A group
            without members keeps these and what follows.
        later: the first later partition of topics that have some; sorted by id.
        names: those that members subscribed to, whether or not there was such a topic; sorted.
        patterns: likewise the regular expressions.
        left: the topics that members have left, and none has returned to; sorted by id.
        left_names: likewise names, and when the last member left each; sorted.
        left_patterns: likewise the regular expressions.
    """

    epoch: int = 0
    target_epoch: int = 0
    topics: tuple[tuple[TopicId, int], ...] = ()
    later: tuple[tuple[TopicId, int], ...] = ()
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    left: tuple[tuple[TopicId, LeftTopic], ...] = ()
    left_names: tuple[tuple[str, WallMs], ...] = ()
    left_patterns: tuple[tuple[str, WallMs], ...] = ()

    def first_later(self, topic_id: TopicId) -> int | None:
        """Return the first later partition of a topic; None: it has none."""
        at = bisect_left(self.later, (topic_id,))
        if at == len(self.later) or self.later[at][0] != topic_id:
            return None
        return self.later[at][1]


class GroupRecord(NamedTuple):
    """Stores or forgets the epochs of a group."""

    group: str
    value: Epochs | None
    timestamp: WallMs

    @property
    def key(self) -> tuple[str, str]:
        """What it is about."""
        return "group", self.group

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.value is None


class MemberRecord(NamedTuple):
    """Stores or forgets what a member said."""

    group: str
    member_id: str
    value: Member | None
    timestamp: WallMs

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is about."""
        return "member", self.group, self.member_id

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.value is None


class TargetRecord(NamedTuple):
    """Stores or forgets the target of a member."""

    group: str
    member_id: str
    value: Partitions | None
    timestamp: WallMs

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is about."""
        return "target", self.group, self.member_id

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.value is None


class CurrentRecord(NamedTuple):
    """Stores or forgets what a member owns."""

    group: str
    member_id: str
    value: Current | None
    timestamp: WallMs

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is about."""
        return "current", self.group, self.member_id

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.value is None


MembershipRecord: TypeAlias = GroupRecord | MemberRecord | TargetRecord | CurrentRecord


@dataclass(slots=True)
class Group:
    """A group as its records say. `apply` alone changes it.

    Attributes:
        epochs: of the group.
        members: by member id, in the order in which they came.
        target: what each should own; a member without an entry should own nothing.
        current: what each owns.
        owners: the owner of each partition that is assigned or being revoked.
        instances: the member id of each static member, by instance id.
        computed_at: when the target was computed last.
    """

    name: str
    epochs: Epochs = field(default_factory=Epochs)
    members: dict[str, Member] = field(default_factory=dict)
    target: Assignment = field(default_factory=dict)
    current: dict[str, Current] = field(default_factory=dict)
    owners: dict[TopicPartition, str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    computed_at: WallMs = _NEVER

    @property
    def subscribed(self) -> set[str]:
        """Full names of the topics that members subscribe to by name."""
        return {topic for member in self.members.values() for topic in member.topics}

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return not self.members

    @property
    def has_its_target(self) -> bool:
        """Whether each member owns what it should, and nothing is being revoked."""
        return all(
            (current := self.current.get(member_id, Current())).assigned
            == self.target.get(member_id, NO_PARTITIONS)
            and not current.revoking
            for member_id in self.members
        )

    def draft(self) -> "Group":
        """Return a copy, to which records can be applied before they are stored."""
        other = copy(self)
        other.members, other.target = dict(self.members), dict(self.target)
        other.current, other.owners = dict(self.current), dict(self.owners)
        other.instances = dict(self.instances)
        return other

    def apply(self, record: MembershipRecord) -> None:
        """Take a record."""
        match record:
            case GroupRecord():
                before = self.epochs
                self.epochs = record.value or Epochs()
                if self.epochs.target_epoch != before.target_epoch:
                    self.computed_at = record.timestamp
            case MemberRecord(_, member_id, member, _):
                known = self.members.get(member_id)
                if known is not None and self.instances.get(known.instance_id) == member_id:
                    del self.instances[known.instance_id]
                if member is None:
                    self.members.pop(member_id, None)
                else:
                    self.members[member_id] = member
                    if member.instance_id:
                        self.instances[member.instance_id] = member_id
            case TargetRecord(_, member_id, target, _):
                if target is None:
                    self.target.pop(member_id, None)
                else:
                    self.target[member_id] = target
            case CurrentRecord(_, member_id, current, _):
                self._own(member_id, current)

    def _own(self, member_id: str, current: Current | None) -> None:
        before = self.current.pop(member_id, None)
        if before is not None:
            for partition in before.assigned | before.revoking:
                if self.owners.get(partition) == member_id:
                    del self.owners[partition]
        if current is not None:
            self.current[member_id] = current
            self.owners.update(dict.fromkeys(current.assigned | current.revoking, member_id))

    def free(self, partitions: Iterable[TopicPartition], member_id: str) -> Partitions:
        """Return those that no other member owns."""
        return frozenset(
            partition
            for partition in partitions
            if self.owners.get(partition, member_id) == member_id
        )


def concerned(group: Group, records: Iterable[object]) -> set[str]:
    """Return the members that may have another step to take, or are gone, after these records.

    These are the members that the records are about, and those whose target has a partition that
    becomes free.

    Args:
        group: its state before the records.
        records: those of one request, among others.
    """
    found: set[str] = set()
    free: set[TopicPartition] = set()
    for record in records:
        if isinstance(record, TargetRecord | CurrentRecord) and record.group == group.name:
            found.add(record.member_id)
            if isinstance(record, CurrentRecord):
                free |= _given_up(group.current.get(record.member_id), record.value)
    if free:
        found.update(
            member_id for member_id, target in group.target.items() if not free.isdisjoint(target)
        )
    return found


def _given_up(before: Current | None, after: Current | None) -> Partitions:
    """Return the partitions that a member owns no longer."""
    if before is None:
        return NO_PARTITIONS
    owned = before.assigned | before.revoking
    return owned if after is None else owned - after.assigned - after.revoking


def next_step(group: Group, member_id: str, confirmed: int) -> Current:
    """Return what a member owns after a heartbeat: the same, or one step closer to its target.

    A step waits until the member has confirmed the step before. It takes what the member should not
    have, and gives it what is free of its target; the rest follows when others have given it up.

    Args:
        group: its state.
        member_id: of a member.
        confirmed: the epoch that the member confirms.
    """
    current = group.current.get(member_id, Current())
    if confirmed < current.epoch:
        return current  # It has not taken the last step.
    target = group.target.get(member_id, NO_PARTITIONS)
    kept = current.assigned & target
    free = group.free(target - kept, member_id)
    revoking = current.assigned - target
    if current.epoch and not revoking and not free and not current.revoking:
        return current
    if current.epoch and not revoking and not free:
        # Only to make free what the member has given up: it need not take another step.
        return Current(current.epoch, kept, gained=current.gained & kept)
    return Current(current.epoch + 1, kept | free, revoking, free)
