"""Classic groups: the first group protocol of Kafka's clients, with assignment by a member.

Members join, and the coordinator answers all of them when all have joined: so a *generation*
begins. One of them is the leader. It hears of all members, assigns what they are to read, and
brings that with its request to sync; the others' requests wait for it. What members say of
themselves and what they are assigned is opaque to the broker, so the protocol serves consumers,
Kafka Connect and others alike. A member that comes or goes makes all others join again: they learn
that from the answer to a heartbeat.

What is in the log is a generation after it got its assignments (`classic_records.py`). All else is
in memory, as sessions are: who waits for what, ids that were given out, times. So after a failover
the members of the last stored generation go on, and those that were joining join again. The state
in memory changes with each event. It belongs to the broker for as long as it serves the partition:
`restart` begins it again.

An assignment is told after it is stored. So no two coordinators tell two different ones of one
generation: a coordinator that was replaced cannot store.

Invariants:

- A member that was told an assignment is in the stored generation with it, or in an older one.
- Each request is answered once.
- An id that was given out, a session, a wait for others: each ends at a time.

Source: Kafka's GroupMetadataManager; KIP-62, KIP-345, KIP-394, KIP-814.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from millrace.core.coordinator.groups.classic_events import (
    Answer,
    Committer,
    Effect,
    JoinRequest,
    Leaving,
    Refusal,
    Refused,
    SyncRequest,
)
from millrace.core.coordinator.groups.classic_group import ClassicGroup, State, Token
from millrace.core.coordinator.groups.classic_records import ClassicRecord, Generation
from millrace.core.coordinator.groups.classic_step import (
    Step,
    begin_session,
    member_refused,
    sync_refused,
    synced,
)
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.consumer_protocol import PROTOCOL_TYPE, subscribed_topics
from millrace.core.coordinator.groups.subscriptions import TopicsView
from millrace.core.errors import (
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    UnknownMemberIdError,
)
from millrace.core.ids import MonotonicMs, TopicId
from millrace.core.topics import TopicName
from millrace.core.words import count

_PROTOCOLS_MAX: Final = 100
"""Protocols that one member may know."""


class ClassicGroups:
    """The classic groups of one partition of the coordinators' topic.

    Args:
        config: the broker's settings of groups.
        speaks_ours: whether a group has members that speak Millrace's own protocol (K11).
    """

    def __init__(self, config: GroupsConfig, speaks_ours: Callable[[str], bool]) -> None:
        self._config = config
        self._speaks_ours = speaks_ours
        self._stored: dict[str, Generation] = {}
        self._groups: dict[str, ClassicGroup] = {}  # Those that are not idle.
        self._begun_at = MonotonicMs(0)
        self._members = 0
        self._sizes: dict[str, int] = {}  # Bytes of each of these groups.
        self._bytes = 0  # Their sum.
        self._writes = 0

    # --- The log -------------------------------------------------------------------------------

    def replay(self, record: ClassicRecord) -> None:
        """Apply a record of the log."""
        if record.value is None:
            self._stored.pop(record.group, None)
            group = self._groups.get(record.group)
            if group is not None and group.state is State.EMPTY:
                # The ids that it gave out go, too. A client that joins with one has to join again.
                del self._groups[record.group]
                self._members -= group.size
                self._bytes -= self._sizes.pop(record.group, 0)
        else:
            self._stored[record.group] = record.value

    @property
    def stored(self) -> Mapping[str, Generation]:
        """The generations in the log, by group, also those without members."""
        return self._stored

    def restart(self, now: MonotonicMs) -> None:
        """Begin with the groups of the log, and with nothing else; sessions begin now."""
        self._begun_at = now
        self._groups = {
            name: ClassicGroup.loaded(name, generation, now)
            for name, generation in self._stored.items()
            if generation.members
        }
        self._members = sum(group.size for group in self._groups.values())
        self._sizes = {name: group.bytes for name, group in self._groups.items()}
        self._bytes = sum(self._sizes.values())

    # --- Queries -------------------------------------------------------------------------------

    def names(self) -> Sequence[str]:
        """Return the names of all groups."""
        return [*self._stored, *(name for name in self._groups if name not in self._stored)]

    def has(self, name: str) -> bool:
        """Whether there is a classic group of this name."""
        return name in self._stored or name in self._groups

    def group(self, name: str) -> ClassicGroup | None:
        """Return a group as it is in memory; None: there is none."""
        group = self._groups.get(name)
        if group is None and (generation := self._stored.get(name)) is not None:
            # Nothing has happened since the partition is served, or it has no members.
            group = ClassicGroup.loaded(name, generation, self._begun_at)
        return group

    def members(self, name: str) -> int:
        """Return how many members a group has, also those that are to join with their id."""
        group = self._groups.get(name)
        if group is not None:
            return group.size
        generation = self._stored.get(name)
        return 0 if generation is None else len(generation.members)

    def joined(self, name: str) -> int:
        """Return how many members hold a group; ids that were given out alone do not (KIP-394)."""
        group = self._groups.get(name)
        return 0 if group is not None and group.state is State.EMPTY else self.members(name)

    def _read_topics(self, name: str) -> frozenset[str] | None:
        """Return the names of the topics that members of a group read; None: they do not say."""
        group = self.group(name)
        if group is None or not group.members:
            return frozenset()
        if group.protocol_type != PROTOCOL_TYPE:
            return None
        found: set[str] = set()
        for member in group.members.values():
            topics = subscribed_topics(member.metadata(group.protocol or member.protocols[0].name))
            if topics is None:
                return None
            found.update(str(TopicName(member.namespace, topic)) for topic in topics)
        return frozenset(found)

    def left_topics(
        self, name: str, topic_ids: Collection[TopicId], topics: TopicsView
    ) -> Collection[TopicId]:
        """Return those of these topics that no member of a stable group reads.

        None of them counts as left if a member names a topic that is not there: it may be one of
        them that was deleted, and it may come back with its positions (P75).
        """
        group, read = self.group(name), self._read_topics(name)
        if group is None or group.state is not State.STABLE or read is None:
            return ()
        found = {topic.topic_id for topic in map(topics.find, read) if topic is not None}
        return {*topic_ids} - found if len(found) == len(read) else ()

    def is_due(self, now: MonotonicMs) -> bool:
        """Whether `tick` has something to do."""
        return any(group.next_at <= now for group in self._groups.values())

    def refusal_of_commit(
        self, name: str, committer: Committer, *, staged: bool = False
    ) -> Refused | None:
        """Return why a member, or a reader that is none, may not commit; None: it may.

        Args:
            name: of the group.
            committer: who commits.
            staged: whether a transaction commits it.
        """
        member_id, instance_id, generation = committer
        group = self.group(name)
        if group is None or group.state is State.EMPTY:
            if generation < 0:
                return None
            return Refused.ILLEGAL_GENERATION if group is None else Refused.UNKNOWN_MEMBER
        if generation < 0 and not member_id and not instance_id:
            # A program that commits with transactions need not say who it is (KIP-447).
            return None if staged else Refused.UNKNOWN_MEMBER
        refused = member_refused(group, member_id, instance_id)
        if refused is not None:
            return refused
        if generation != group.generation:
            return Refused.ILLEGAL_GENERATION
        if group.state is State.COMPLETING and not staged:
            return Refused.REBALANCING
        return None

    def check_stranger(self, name: str) -> None:
        """Refuse a commit of somebody who names no member.

        Raises:
            UnknownMemberIdError: the group has members.
        """
        if members := self.joined(name):
            raise UnknownMemberIdError(
                f"the group {name!r} has {count(members, 'member')} that speak Kafka's protocol, "
                "and only members may commit: stop them first"
            )

    def check_empty(self, name: str) -> None:
        """Refuse to forget a group that has members.

        Raises:
            GroupNotEmptyError: it has some.
        """
        if members := self.joined(name):
            raise GroupNotEmptyError(
                f"the group {name!r} has {count(members, 'member')} that speak Kafka's protocol: "
                "stop all first"
            )

    def check_unread(self, name: str, topic_ids: Collection[TopicId], topics: TopicsView) -> None:
        """Refuse to forget topics that members of a group read.

        Raises:
            GroupNotEmptyError: they do not say what they read.
            GroupSubscribedToTopicError: they read some of these.
        """
        read = self._read_topics(name)
        if read is None:
            raise GroupNotEmptyError(
                f"the group {name!r} has members that do not say what they read: stop all first"
            )
        found = {topic.topic_id for topic in map(topics.find, read) if topic is not None}
        if still_read := sum(topic_id in found for topic_id in topic_ids):
            raise GroupSubscribedToTopicError(
                f"members of the group {name!r} read {still_read} of the topics: stop them, or "
                "let them subscribe to others, first"
            )

    # --- Events --------------------------------------------------------------------------------

    def join(self, request: JoinRequest, token: Token, now: MonotonicMs) -> list[Effect]:
        """A member joins; its answer may come much later."""
        group, refusal = self._joinable(request)
        if group is None or refusal is not None:
            return [Answer(token, refusal or Refusal(Refused.UNKNOWN_MEMBER, request.member_id))]
        step = self._step(group, now)
        if request.member_id:
            step.join_again(request, token)
        elif (known := group.instances.get(request.instance_id)) is not None:
            step.replace_static(known, request, token)
        elif request.needs_id and not request.instance_id:
            step.give_id(request, token)
        else:
            step.add(request, request.new_id, token)
        return self._done(step)

    def sync(self, request: SyncRequest, token: Token, now: MonotonicMs) -> list[Effect]:
        """A member asks for its assignment; the leader brings those of all."""
        group = self._groups.get(request.group)
        refused = Refused.UNKNOWN_MEMBER if group is None else sync_refused(group, request)
        if group is None or refused is not None:
            return [Answer(token, Refusal(refused or Refused.UNKNOWN_MEMBER))]
        step = self._step(group, now)
        member = group.members[request.member_id]
        if group.state is State.PREPARING:
            step.answer(token, Refusal(Refused.REBALANCING))
        elif group.state is State.STABLE:
            group.unsynced.pop(member.member_id, None)
            step.answer(token, synced(group, member))
        else:
            step.wait_for_assignment(member, token)
            if member.member_id == group.leader and not group.storing:
                step.assign(request.assignments, self._room_beside(group))
        return self._done(step)

    def heartbeat(
        self, name: str, member_id: str, instance_id: str, generation: int, now: MonotonicMs
    ) -> Refused | None:
        """A member lives; return what it has to do, or None."""
        group = self._groups.get(name)
        if group is None:
            return Refused.UNKNOWN_MEMBER
        refused = member_refused(group, member_id, instance_id)
        if refused is not None:
            return refused
        if generation != group.generation:
            return Refused.ILLEGAL_GENERATION
        begin_session(group, group.members[member_id], now)
        return Refused.REBALANCING if group.state is State.PREPARING else None

    def on_commit(self, name: str, committer: Committer, now: MonotonicMs) -> None:
        """Somebody's positions are taken: if it is a member, it lives, as after a heartbeat."""
        group = self._groups.get(name)
        if group is not None and committer.member_id in group.members:
            begin_session(group, group.members[committer.member_id], now)

    def leave(
        self, name: str, leaving: Iterable[Leaving], now: MonotonicMs
    ) -> tuple[list[Refused | None], list[Effect]]:
        """Members leave; return for each why it is none, or None, and the effects."""
        group = self._groups.get(name)
        if group is None:
            return [Refused.UNKNOWN_MEMBER for _ in leaving], []
        step = self._step(group, now)
        told = [step.leave(member) for member in leaving]
        gone = [None for refused in told if refused is None]
        if gone and group.state is not State.EMPTY:
            step.rebalance_or_complete(f"{len(gone)} of its members left")
        return told, self._done(step)

    def on_stored(
        self, name: str, number: int, now: MonotonicMs, *, is_stored: bool
    ) -> list[Effect]:
        """A write has ended; a generation that has changed since goes its own way."""
        group = self._groups.get(name)
        if group is None or group.storing != number:
            return []
        group.storing = 0
        step = self._step(group, now)
        if group.state is State.COMPLETING and is_stored:
            step.become_stable()
        elif group.state is State.COMPLETING:
            step.rebalance("its assignments could not be stored", Refused.NOT_STORED)
        elif group.state is State.STABLE:
            step.end_replacement(is_stored=is_stored)
        elif group.state is State.EMPTY and not is_stored:
            group.arm(now)  # `tick` repeats it.
        return self._done(step)

    def tick(self, now: MonotonicMs) -> list[Effect]:
        """Look at times: sessions that end, and waits for others."""
        effects: list[Effect] = []
        for group in list(self._groups.values()):
            if group.next_at <= now:
                step = self._step(group, now)
                step.look_at_times(is_stored=self._is_stored(group))
                effects += self._done(step)
        return effects

    def prolong(self, milliseconds: int) -> None:
        """Let all times pass later, as this broker stood still."""
        for group in self._groups.values():
            for member in group.members.values():
                member.ends_at = MonotonicMs(member.ends_at + milliseconds)
            for member_id, at in group.pending.items():
                group.pending[member_id] = MonotonicMs(at + milliseconds)
            if group.deadline is not None:
                group.deadline = MonotonicMs(group.deadline + milliseconds)

    def end(self) -> list[Effect]:
        """This broker serves the partition no more: refuse all requests that wait."""
        refusal = Refusal(Refused.NOT_COORDINATOR)
        waiting = [
            token
            for group in self._groups.values()
            for member in group.members.values()
            for token in (member.join, member.sync)
            if token is not None
        ]
        self._groups, self._members = {}, 0
        self._sizes, self._bytes = {}, 0
        return [Answer(token, refusal) for token in waiting]

    # --- Private -------------------------------------------------------------------------------

    def _step(self, group: ClassicGroup, now: MonotonicMs) -> Step:
        return Step(group, self._config, self._next_write, now)

    def _next_write(self) -> int:
        self._writes += 1
        return self._writes

    def _joinable(self, request: JoinRequest) -> tuple[ClassicGroup | None, Refusal | None]:
        """Return the group that a member may join, or why it may not."""
        config, member_id = self._config, request.member_id
        if not (
            config.classic_session_timeout_ms_min
            <= request.session_timeout_ms
            <= config.classic_session_timeout_ms_max
        ):
            return None, Refusal(Refused.SESSION_TIMEOUT, member_id)
        group = self.group(request.group)
        if self._speaks_ours(request.group) or not 0 < len(request.protocols) <= _PROTOCOLS_MAX:
            return None, Refusal(Refused.INCONSISTENT_PROTOCOL, member_id)
        if group is None and member_id:
            return None, Refusal(Refused.UNKNOWN_MEMBER, member_id)
        if group is None:
            if len(self.names()) >= config.partition_groups_max:
                return None, Refusal(Refused.FULL)
            group = ClassicGroup(request.group)
        if not group.takes(request.protocol_type, request.protocols):
            return None, Refusal(Refused.INCONSISTENT_PROTOCOL, member_id)
        if not self._has_room(group, request):
            return None, Refusal(Refused.FULL)
        return group, None

    def _room_beside(self, group: ClassicGroup) -> int:
        """Return how many bytes a group may have, beside the others."""
        config = self._config
        others = self._bytes - self._sizes.get(group.name, 0)
        return min(config.classic_group_bytes_max, config.classic_partition_bytes_max - others)

    def _has_room(self, group: ClassicGroup, request: JoinRequest) -> bool:
        config, member = self._config, group.members.get(request.member_id)
        replaced = group.members.get(group.instances.get(request.instance_id, ""), member)
        said = sum(len(name) + len(metadata) for name, metadata in request.protocols)
        before = 0 if replaced is None else replaced.size
        if group.bytes - before + said > self._room_beside(group):
            return False
        if replaced is not None:
            waiting = sum(known.join is not None for known in group.members.values())
            # A group that was larger by an earlier setting loses the members that join last.
            return replaced.join is not None or waiting < config.members_max
        if request.member_id in group.pending:
            return len(group.members) < config.members_max
        return group.size < config.members_max and self._members < config.partition_members_max

    def _done(self, step: Step) -> list[Effect]:
        """Keep the group of a step, or drop it if the log has all of it."""
        group = step.group
        before = self._groups.pop(group.name, None)
        self._members += group.size - (0 if before is None else step.size_before)
        self._bytes -= self._sizes.pop(group.name, 0)
        if not group.is_idle or group.storing or not self._is_stored(group):
            self._groups[group.name] = group
            self._sizes[group.name] = size = group.bytes
            self._bytes += size
        return step.effects

    def _is_stored(self, group: ClassicGroup) -> bool:
        """Whether the log has the generation of a group; it need not have one that never was."""
        stored = self._stored.get(group.name, Generation(0))
        return group.generation == stored.number and bool(group.members) == bool(stored.members)
