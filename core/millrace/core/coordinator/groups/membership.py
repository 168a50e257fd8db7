"""The members of groups: their heartbeats, their departures, and which commits they may make.

A coordinator (`coordinator/contract.py`) of all groups of one partition of the coordinators' topic.
A member sends one heartbeat after the other; the broker answers when the member has another
assignment, or after a while. A member that is not heard for its session is removed by the broker,
which has the clock (`sessions.py`). The log stores only for how long members have been silent.

The records of a request are made on a draft of the group, so that `replay` alone changes the state.
A heartbeat that changes nothing makes no records, and computes nothing. A log may end in the middle
of a request's records: they are in an order in which that is harmless. The epoch rises first, so
that the target is computed again, and a member goes after what it owns.

The target of a large group is computed at intervals, as computing takes time for each member:
members that come meanwhile own nothing until then. `target_wait_ms` tells the shell when to ask for
it (`handle_assign`). So many members that come or go at once cost as much as a few.

Source: KIP-848; KIP-1263 for the intervals; Kafka's GroupMetadataManager.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.assignors import ASSIGNORS, Subscriber
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.group import (
    JOINING,
    NO_PARTITIONS,
    Current,
    CurrentRecord,
    Epochs,
    Group,
    GroupRecord,
    LeftTopic,
    Member,
    MemberRecord,
    MembershipRecord,
    TargetRecord,
    next_step,
)
from millrace.core.coordinator.groups.member_checks import (
    check_group_name,
    check_member,
    check_subscribed_pattern,
)
from millrace.core.coordinator.groups.subscriptions import (
    TopicsView,
    kept_subscriptions,
    later,
    left_subscriptions,
    left_topics,
    subscribed,
)
from millrace.core.errors import (
    FencedMemberEpochError,
    GroupFullError,
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from millrace.core.ids import TopicId, TopicPartition, WallMs
from millrace.core.words import count

DEFAULT_ASSIGNOR: Final = "uniform"
_MEMBERS_PER_MS: Final = 10
"""Members for which a ms passes between two computations of a target: one takes about a tenth of
that time."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat of a member.

    Attributes:
        member_id: chosen by the member, so that a repeated request is of the same member.
        confirmed: the epoch of the last assignment that it has taken; `JOINING`: it has none.
        member: what it says of itself; None: as before.
    """

    member_id: str
    confirmed: int
    member: Member | None = None


class MembershipMachine:
    """Decides who is a member. Its caller keeps the log's books.

    Attributes:
        groups: by name; those without members are among them.
        occupied: those of them that have members.
        members: how many all groups have.
    """

    def __init__(self, config: GroupsConfig) -> None:
        self._config = config
        self.groups: dict[str, Group] = {}
        self.occupied: dict[str, Group] = {}
        self.members = 0
        self._subscriptions = 0
        self._looked_at: dict[str, object] = {}
        """The version of the topics for which each group's target was found up to date."""

    def replay(self, record: MembershipRecord) -> None:
        """Apply a record of the log."""
        group = self.groups.get(record.group)
        if group is None:
            group = self.groups[record.group] = Group(record.group)
        if isinstance(record, MemberRecord):
            before = group.members.get(record.member_id)
            self.members += (record.value is not None) - (before is not None)
            self._subscriptions += _topics(record.value) - _topics(before)
        group.apply(record)
        if not group.is_empty:
            self.occupied[record.group] = group
        else:
            self.occupied.pop(record.group, None)
            self._looked_at.pop(record.group, None)  # It would keep old metadata alive.
            if isinstance(record, GroupRecord) and record.value is None:
                del self.groups[record.group]

    # --- Changes -----------------------------------------------------------------------------

    def handle_heartbeat(
        self, name: str, heartbeat: Heartbeat, topics: TopicsView, now: WallMs
    ) -> Result[MembershipRecord, Current]:
        """Let a member join, change its subscription, or take a step; answer what it owns.

        Raises:
            InvalidGroupError: a name, an id, or what the member says breaks a bound.
            GroupFullError: there is no room for another member, or for its topics.
            UnreleasedInstanceIdError: a member has this instance id. If it is dead, the id is free
                when its session ends.
            UnknownMemberIdError: it was removed, or never joined.
            FencedMemberEpochError: it confirms what it never got.
        """
        check_group_name(name)
        draft = _Draft(self.groups.get(name) or Group(name), now)
        member_id, said = heartbeat.member_id, heartbeat.member
        if said is not None:
            check_member(member_id, said)
            check_subscribed_pattern(draft.group, said.pattern)
        known = draft.group.members.get(member_id)
        self._check_subscriptions(said, known)
        if known is None:
            self._join(draft, heartbeat)
        else:
            self._check_confirmed(draft.group, heartbeat)
            if said is None and known.silent_ms:
                draft.store_member(member_id, replace(known, silent_ms=0))
            if said is not None and said != known:
                draft.store_member(member_id, said)
                if _subscription(said) != _subscription(known):
                    draft.raise_epoch()
        has_seen_all = draft.is_computed and self._looked_at.get(name) is topics.version
        if (draft.records or not has_seen_all) and not _wait_ms(draft.group, now):
            draft.compute_target(topics)
            if not draft.records:
                self._looked_at[name] = topics.version
        step = next_step(draft.group, member_id, heartbeat.confirmed)
        draft.store_current(member_id, step)
        return Result(draft.records, step)

    def handle_leave(
        self,
        name: str,
        member_ids: Collection[str],
        topics: TopicsView,
        now: WallMs,
        *,
        for_now: bool = False,
    ) -> Result[MembershipRecord, list[str]]:
        """Remove members that leave or whose session has ended; answer those that were there.

        With `for_now` a static member only goes away: the next one with its instance id gets what
        it had, and nothing moves meanwhile (KIP-345).

        Raises:
            InvalidGroupError: that is no name of a group.
        """
        check_group_name(name)
        draft = _Draft(self.groups.get(name) or Group(name), now)
        members = draft.group.members
        there = [member_id for member_id in member_ids if member_id in members]
        away = [member_id for member_id in there if for_now and members[member_id].instance_id]
        gone = [member_id for member_id in there if member_id not in away]
        for member_id in away:
            draft.store_member(member_id, replace(members[member_id], is_away=True))
        if gone:
            draft.raise_epoch()
            for member_id in gone:
                draft.remove(member_id)
            if not _wait_ms(draft.group, now):
                draft.compute_target(topics)
        return Result(draft.records, there)

    def handle_silence(
        self, name: str, silent: Mapping[str, int], now: WallMs
    ) -> Result[MembershipRecord, None]:
        """Store for how many milliseconds members were silent, for the next coordinator."""
        group = self.groups.get(name)
        members = {} if group is None else group.members
        records: list[MembershipRecord] = [
            MemberRecord(name, member_id, replace(members[member_id], silent_ms=silent_ms), now)
            for member_id, silent_ms in silent.items()
            if member_id in members
        ]
        return Result(records, None)

    def handle_assign(
        self, name: str, topics: TopicsView, now: WallMs
    ) -> Result[MembershipRecord, None]:
        """Compute the target of a group if that has waited, and its time has come."""
        group = self.groups.get(name)
        if group is None:
            return Result([], None)
        draft = _Draft(group, now)
        if not draft.is_computed and not _wait_ms(group, now):
            draft.compute_target(topics)
        return Result(draft.records, None)

    def handle_forget(self, name: str, now: WallMs) -> Result[MembershipRecord, None]:
        """Forget a group without members.

        Raises:
            GroupNotEmptyError: it has some.
        """
        group = self.groups.get(name)
        if group is None:
            return Result([], None)
        if not group.is_empty:
            raise GroupNotEmptyError(
                f"the group {name!r} has {count(len(group.members), 'member')}: stop all first"
            )
        return Result([GroupRecord(name, None, now)], None)

    def handle_forget_topics(
        self, name: str, topic_ids: Collection[TopicId], now: WallMs
    ) -> Result[MembershipRecord, None]:
        """Forget how a group began to read some topics that no member reads now."""
        group = self.groups.get(name)
        if group is None:
            return Result([], None)
        epochs = group.epochs
        left = dict(epochs.left) | {
            topic_id: LeftTopic(None, now)
            for topic_id in (*dict(epochs.topics), *dict(epochs.left))
            if topic_id in topic_ids
        }
        forgotten = replace(
            epochs,
            topics=tuple(topic for topic in epochs.topics if topic[0] not in topic_ids),
            later=tuple(partition for partition in epochs.later if partition[0] not in topic_ids),
            left=tuple(sorted(left.items())),
        )
        return Result(_changed(group, forgotten, now), None)

    def handle_expire(
        self,
        name: str,
        now: WallMs,
        exists: Callable[[TopicId], bool],
        begun_with: Mapping[TopicId, int],
        retention_ms: int,
    ) -> Result[MembershipRecord, None]:
        """Forget subscriptions that members of a group left long ago; note when others were left.

        A group without members keeps all, as any of them may return.

        Args:
            name: of the group.
            now: the time.
            exists: whether there is a topic of this id.
            begun_with: the topics in which the group has positions, with the number of partitions
                up to the last position.
            retention_ms: how long a subscription without positions is kept; -1: for ever.
        """
        group = self.occupied.get(name)
        if group is None or not _Draft(group, now).is_computed:
            return Result([], None)
        epochs = group.epochs
        known = {*dict(epochs.topics), *dict(epochs.left)}
        # An earlier release has not stored when they were left: it counts from now.
        left = dict(epochs.left) | {
            topic_id: LeftTopic(partitions, now)
            for topic_id, partitions in begun_with.items()
            if topic_id not in known
        }

        def is_kept(at: WallMs) -> bool:
            return retention_ms == -1 or now - at <= retention_ms

        expired = replace(
            epochs,
            left=tuple(
                (topic_id, topic)
                for topic_id, topic in sorted(left.items())
                if exists(topic_id) and (topic_id in begun_with or is_kept(topic.at))
            ),
            left_names=tuple(left_name for left_name in epochs.left_names if is_kept(left_name[1])),
            left_patterns=tuple(
                left_pattern for left_pattern in epochs.left_patterns if is_kept(left_pattern[1])
            ),
        )
        return Result(_changed(group, expired, now), None)

    # --- Queries -----------------------------------------------------------------------------

    def left_topics(
        self, name: str, topics: TopicsView, now: WallMs, retention_ms: int
    ) -> Collection[TopicId]:
        """Return the topics that no member of a group has read for longer than this."""
        group = self.occupied.get(name)
        if group is None:
            return ()
        left = {name for name, topic in group.epochs.left if now - topic.at > retention_ms}
        # A new member may still wait for its assignment. This look-up takes time for each member.
        return left - self.read_topics(name, topics) if left else ()

    def read_topics(self, name: str, topics: TopicsView) -> frozenset[TopicId]:
        """Return the topics that members of a group subscribe to, or still own."""
        group = self.groups.get(name)
        if group is None or group.is_empty:
            return frozenset()
        _, found = subscribed(group, topics)
        owned = (partition.topic_id for partition in group.owners)
        return frozenset([*(topic.topic_id for topic in found.values()), *owned])

    def check_unread(self, name: str, topic_ids: Collection[TopicId], topics: TopicsView) -> None:
        """Refuse to forget topics that members of a group read.

        Raises:
            GroupSubscribedToTopicError: says of how many.
        """
        read = self.read_topics(name, topics)
        still_read = sum(topic_id in read for topic_id in topic_ids)
        if still_read:
            raise GroupSubscribedToTopicError(
                f"members of the group {name!r} read {still_read} of the topics: stop them, or "
                "let them subscribe to others, first"
            )

    def target_wait_ms(self, name: str, now: WallMs) -> int | None:
        """Return in what time to ask for `handle_assign`; None: the target is up to date."""
        group = self.groups.get(name)
        if group is None or group.is_empty or _Draft(group, now).is_computed:
            return None
        return _wait_ms(group, now)

    def check_commit(
        self, name: str, member_id: str, epoch: int, partitions: Iterable[TopicPartition]
    ) -> None:
        """Refuse a commit that is not the owner's (P58, P62).

        A member names the epoch in which it reads. That may be the one before the latest, of which
        it need not know yet: nobody else has the partitions that it kept, or that it has still to
        give up (KIP-1251). A commit without a member id is one of a person or of a standalone
        reader: it is allowed while the group has no members.

        Raises:
            UnknownMemberIdError: it is no member, or it names none and there are some.
            StaleMemberEpochError: it has had other assignments since, or does not own a partition.
        """
        group = self.groups.get(name)
        if not member_id and (group is None or group.is_empty):
            return
        if not member_id:
            assert group is not None
            raise UnknownMemberIdError(
                f"the group {name!r} has {count(len(group.members), 'member')}, and only "
                "members may commit: stop them first"
            )
        if group is None or member_id not in group.members:
            raise _unknown(name, member_id)
        current = group.current.get(member_id, Current())
        owned = current.owned_in(epoch)
        if owned is None:
            raise StaleMemberEpochError(
                f"the member {member_id!r} of the group {name!r} commits with its assignment "
                f"{epoch}, and the latest is {current.epoch}: take that one first"
            )
        for partition in partitions:
            if partition not in owned:
                raise StaleMemberEpochError(
                    f"it is not assigned to the member {member_id!r} of the group {name!r}",
                    topic_partition=partition,
                )

    # --- Private -----------------------------------------------------------------------------

    def _join(self, draft: "_Draft", heartbeat: Heartbeat) -> None:
        group, member_id, said = draft.group, heartbeat.member_id, heartbeat.member
        if heartbeat.confirmed != JOINING or said is None:
            raise _unknown(group.name, member_id)
        predecessor = group.instances.get(said.instance_id) if said.instance_id else None
        if predecessor is not None and group.members[predecessor].is_away:
            draft.succeed(predecessor, member_id, said)
            return
        if predecessor is not None:
            raise UnreleasedInstanceIdError(
                f"the member {predecessor!r} of the group {group.name!r} has the instance id "
                f"{said.instance_id!r}: wait until it has left or its session has ended, or "
                "choose another one"
            )
        if len(group.members) >= self._config.members_max:
            raise GroupFullError(
                f"the group {group.name!r} has {count(len(group.members), 'member')}, and the "
                f"setting groups.members_max allows {self._config.members_max}"
            )
        if group.name not in self.groups and len(self.groups) >= self._config.partition_groups_max:
            raise GroupFullError(
                f"{count(len(self.groups), 'group is', 'groups are')} in this partition, and the "
                f"setting groups.partition_groups_max allows {self._config.partition_groups_max}"
            )
        if self.members >= self._config.partition_members_max:
            raise GroupFullError(
                f"the groups of this partition have {count(self.members, 'member')}, and the "
                f"setting groups.partition_members_max allows {self._config.partition_members_max}"
            )
        draft.raise_epoch()
        draft.store_member(member_id, said)

    def _check_subscriptions(self, said: Member | None, known: Member | None) -> None:
        more = 0 if said is None else _topics(said) - _topics(known)
        if more > 0 and self._subscriptions + more > self._config.partition_subscriptions_max:
            raise GroupFullError(
                f"the members of the groups of this partition subscribe to {self._subscriptions} "
                "topics, and the setting groups.partition_subscriptions_max allows "
                f"{self._config.partition_subscriptions_max}: subscribe by a pattern"
            )

    def _check_confirmed(self, group: Group, heartbeat: Heartbeat) -> None:
        current = group.current.get(heartbeat.member_id, Current())
        if not JOINING <= heartbeat.confirmed <= current.epoch:
            raise FencedMemberEpochError(
                f"the member {heartbeat.member_id!r} of the group {group.name!r} confirms its "
                f"assignment {heartbeat.confirmed}, and the latest is {current.epoch}: give up all "
                "partitions and join again"
            )


class _Draft:
    """A group with records that are not stored yet."""

    def __init__(self, group: Group, now: WallMs) -> None:
        self.records: list[MembershipRecord] = []
        self.group = group
        self._now = now
        self._is_own = False

    def _add(self, record: MembershipRecord) -> None:
        if not self._is_own:
            self.group, self._is_own = self.group.draft(), True
        self.group.apply(record)
        self.records.append(record)

    def store_member(self, member_id: str, member: Member) -> None:
        self._add(MemberRecord(self.group.name, member_id, member, self._now))

    def store_current(self, member_id: str, current: Current) -> None:
        if self.group.current.get(member_id) != current:
            self._add(CurrentRecord(self.group.name, member_id, current, self._now))

    def remove(self, member_id: str) -> None:
        for kind in (CurrentRecord, TargetRecord, MemberRecord):
            self._add(kind(self.group.name, member_id, None, self._now))

    def succeed(self, predecessor: str, member_id: str, member: Member) -> None:
        """Let a member have what a member had that is away; nothing else changes."""
        before = self.group.members[predecessor]
        target = self.group.target.get(predecessor, NO_PARTITIONS)
        owned = self.group.current.get(predecessor, Current()).assigned
        if _subscription(before) != _subscription(member):
            self.raise_epoch()
        self.remove(predecessor)
        self.store_member(member_id, member)
        self._add(TargetRecord(self.group.name, member_id, target, self._now))
        self.store_current(member_id, Current(JOINING + 1, owned, gained=owned))

    @property
    def is_computed(self) -> bool:
        """Whether the target is that of the group's epoch."""
        return self.group.epochs.target_epoch == self.group.epochs.epoch

    def raise_epoch(self) -> None:
        epochs = self.group.epochs
        self._store_epochs(replace(epochs, epoch=epochs.epoch + 1))

    def _store_epochs(self, epochs: Epochs) -> None:
        self._add(GroupRecord(self.group.name, epochs, self._now))

    def compute_target(self, topics: TopicsView) -> None:
        """Compute the target if the group or one of its topics has changed."""
        subscriptions, found = subscribed(self.group, topics)
        epochs = self.group.epochs
        sizes = tuple(sorted((topic.topic_id, topic.topic.partitions) for topic in found.values()))
        if self.group.is_empty:
            sizes = epochs.topics
        is_same = sizes == epochs.topics
        names, patterns = kept_subscriptions(self.group)
        if is_same and epochs.target_epoch == epochs.epoch:
            if not self.group.is_empty and (names, patterns) != (epochs.names, epochs.patterns):
                # Of an earlier release, whose record does not say which topics are waited for.
                self._store_epochs(replace(epochs, names=names, patterns=patterns))
            return
        epoch = epochs.epoch + (not is_same and epochs.target_epoch == epochs.epoch)
        subscribers = {
            member_id: Subscriber(
                subscriptions[member.topics, member.pattern], member.zone, member.instance_id
            )
            for member_id, member in self.group.members.items()
        }
        assign = ASSIGNORS[assignor_of(self.group.members.values())]
        by_id = {topic.topic_id: topic.topic for topic in found.values()}
        target = assign(subscribers, by_id, self.group.target)
        for member_id, partitions in target.items():
            if self.group.target.get(member_id, NO_PARTITIONS) != partitions:
                record = TargetRecord(self.group.name, member_id, partitions, self._now)
                self._add(record)
        computed = replace(epochs, epoch=epoch, target_epoch=epoch)
        if not self.group.is_empty:
            left_names, left_patterns = left_subscriptions(epochs, names, patterns, self._now)
            computed = replace(
                computed,
                topics=sizes,
                later=later(epochs, found, topics),
                names=names,
                patterns=patterns,
                left=left_topics(epochs, dict(sizes), self._now),
                left_names=left_names,
                left_patterns=left_patterns,
            )
        self._store_epochs(computed)


def _wait_ms(group: Group, now: WallMs) -> int:
    """Return in what time the target of a group may be computed; 0: now."""
    passed = now - group.computed_at
    # A clock that went back says nothing.
    return max(0, len(group.members) // _MEMBERS_PER_MS - passed) if passed >= 0 else 0


def _changed(group: Group, epochs: Epochs, now: WallMs) -> list[MembershipRecord]:
    return [] if epochs == group.epochs else [GroupRecord(group.name, epochs, now)]


def assignor_of(members: Iterable[Member]) -> str:
    """Return the assignor that most members ask for; the default where none asks."""
    asked = [member.assignor for member in members if member.assignor]
    return max(sorted(set(asked)), key=asked.count, default=DEFAULT_ASSIGNOR)


def _topics(member: Member | None) -> int:
    return 0 if member is None else len(member.topics)


def _subscription(member: Member) -> tuple[object, ...]:
    """Return what the target depends on."""
    return member.topics, member.pattern, member.zone, member.assignor


def _unknown(name: str, member_id: str) -> UnknownMemberIdError:
    return UnknownMemberIdError(
        f"{member_id!r} is no member of the group {name!r}, perhaps as its session has ended: give "
        "up all partitions and join again"
    )
