"""One classic group as its coordinator has it in memory: members, protocols, who waits for what.

A group is in one of four states:

    EMPTY      -> PREPARING: a member comes; others get a moment to come as well
    PREPARING  -> COMPLETING: all have joined, or the time is over; the leader is to assign
    COMPLETING -> STABLE: the leader's assignment is stored
    COMPLETING, STABLE -> PREPARING: a member comes, goes, or changes what it says
    PREPARING  -> EMPTY: nobody has joined

`classic.py` takes the events. `Generation` is what the log has of a group.

Source: Kafka's ClassicGroup and ClassicGroupMember (KIP-62, KIP-345, KIP-394).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from millrace.core.coordinator.groups.classic_records import ClassicMember, Generation
from millrace.core.ids import MonotonicMs

Token: TypeAlias = Hashable
"""Names a request that waits for its answer; the shell's."""

_LONG_AGO: Final = MonotonicMs(0)


class State(Enum):
    """Of a group; the values are the words that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Protocol(NamedTuple):
    """A way to assign partitions that a member knows, and what the member says for it."""

    name: str
    metadata: bytes


@dataclass(slots=True, kw_only=True)
class LiveMember:
    """A member as it is in memory; the fields that `ClassicMember` has mean the same.

    Attributes:
        protocols: that it knows, the one it likes best first.
        join: its request that waits for the next generation; None: it has not joined that one.
        can_skip: whether that request knows answers that tell the leader not to assign (KIP-814).
        sync: its request that waits for its assignment.
        is_new: it joined this generation and knows its id from no answer yet, so it sends no
            heartbeats.
        ends_at: when its session ends.
    """

    member_id: str
    instance_id: str
    client_id: str
    address: str
    namespace: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join: Token | None = None
    can_skip: bool = False
    sync: Token | None = None
    is_new: bool = False
    ends_at: MonotonicMs

    def metadata(self, protocol: str) -> bytes:
        """Return what it says for a protocol; empty: it does not know it."""
        return next((known.metadata for known in self.protocols if known.name == protocol), b"")

    @property
    def size(self) -> int:
        """Bytes of what it says and is assigned."""
        said = sum(len(name) + len(metadata) for name, metadata in self.protocols)
        return said + len(self.assignment)


class JoinedMember(NamedTuple):
    """A member as the leader hears of it."""

    member_id: str
    instance_id: str
    metadata: bytes


@dataclass(slots=True)
class ClassicGroup:
    """A group in memory.

    Attributes:
        state: see the module.
        was_empty: the state before this one was `EMPTY`.
        generation: its number.
        members: by member id, in the order in which they came.
        instances: the member id of each static member, by instance id.
        pending: members that were given an id and have to join with it (KIP-394), with the time at
            which they are forgotten.
        unsynced: members of this generation that have not asked for their assignment.
        has_grown: a member came since the first delay of an empty group began.
        left_ms: for how long that delay may be prolonged.
        deadline: when members that have not joined, or not asked for their assignment, are removed.
        storing: number of the write under way that makes the generation stable; 0: none is.
        next_at: no session ends and no deadline passes before this.
    """

    name: str
    state: State = State.EMPTY
    was_empty: bool = True
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, LiveMember] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    pending: dict[str, MonotonicMs] = field(default_factory=dict)
    unsynced: dict[str, None] = field(default_factory=dict)
    has_grown: bool = False
    left_ms: int = 0
    deadline: MonotonicMs | None = None
    storing: int = 0
    next_at: MonotonicMs = _LONG_AGO

    @staticmethod
    def loaded(name: str, generation: Generation, now: MonotonicMs) -> "ClassicGroup":
        """Return a group as the log has it; the sessions of its members begin now."""
        group = ClassicGroup(
            name,
            State.STABLE if generation.members else State.EMPTY,
            was_empty=not generation.members,
            generation=generation.number,
            protocol_type=generation.protocol_type,
            protocol=generation.protocol,
            leader=generation.leader,
            next_at=now,
        )
        for member_id, member in generation.members.items():
            group.add(
                LiveMember(
                    member_id=member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    address=member.address,
                    namespace=member.namespace,
                    session_timeout_ms=member.session_timeout_ms,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    protocols=(Protocol(generation.protocol, member.metadata),),
                    assignment=member.assignment,
                    ends_at=MonotonicMs(now + member.session_timeout_ms),
                )
            )
        return group

    def stored(self) -> Generation:
        """Return what the log is to have of it."""
        members = {
            member.member_id: ClassicMember(
                instance_id=member.instance_id,
                client_id=member.client_id,
                address=member.address,
                namespace=member.namespace,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                metadata=member.metadata(self.protocol),
                assignment=member.assignment,
            )
            for member in self.members.values()
        }
        return Generation(self.generation, self.protocol_type, self.protocol, self.leader, members)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it has to be kept in memory."""
        return self.state is State.EMPTY and not self.members and not self.pending

    @property
    def size(self) -> int:
        """How many members it has, also those that are still to join with their id."""
        return len(self.members) + len(self.pending)

    @property
    def bytes(self) -> int:
        """Bytes of what its members say and are assigned."""
        return sum(member.size for member in self.members.values())

    @property
    def has_all_joined(self) -> bool:
        """Whether it waits for nobody's request to join."""
        return not self.pending and all(member.join is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long it waits for its members: as long as the slowest one wants."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def add(self, member: LiveMember) -> None:
        """Take a member."""
        if member.instance_id:
            self.instances[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self.leader = self.leader or member.member_id
        self.pending.pop(member.member_id, None)
        self.next_at = min(self.next_at, member.ends_at)

    def remove(self, member_id: str) -> None:
        """Remove a member, or one that is still to join."""
        self.pending.pop(member_id, None)
        self.unsynced.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        if member_id == self.leader:
            self.leader = next(iter(self.members), "")

    def rename(self, member: LiveMember, member_id: str) -> None:
        """Give a static member another id; it stays in its place."""
        before = member.member_id
        member.member_id = member_id
        self.members = {known.member_id: known for known in self.members.values()}
        self.instances[member.instance_id] = member_id
        if before in self.unsynced:
            del self.unsynced[before]
            self.unsynced[member_id] = None
        if self.leader == before:
            self.leader = member_id

    def arm(self, at: MonotonicMs) -> None:
        """Look at the group at this time, or before."""
        self.next_at = min(self.next_at, at)

    def has_joined_leader(self) -> bool:
        """Whether the leader has joined; if it has not, one that has becomes the leader."""
        if self.leader and self.members[self.leader].join is not None:
            return True
        waiting = (member.member_id for member in self.members.values() if member.join is not None)
        joined = next(waiting, "")
        self.leader = joined or self.leader
        return bool(joined)

    def takes(self, protocol_type: str, protocols: Iterable[Protocol]) -> bool:
        """Whether one that knows these protocols may join."""
        names = [protocol.name for protocol in protocols]
        if self.state is State.EMPTY or not self.members:
            return bool(protocol_type and names)
        known = self._known_by_all()
        return protocol_type == self.protocol_type and any(name in known for name in names)

    def selected_protocol(self) -> str:
        """Return the protocol that most members like best, of those that all of them know."""
        candidates = self._known_by_all()
        votes = Counter[str](
            next(protocol.name for protocol in member.protocols if protocol.name in candidates)
            for member in self.members.values()
        )
        # Of equal votes the one that the oldest member likes better.
        return max(votes, key=votes.__getitem__)

    def _known_by_all(self) -> set[str]:
        known = Counter[str]()
        for member in self.members.values():
            known.update({protocol.name for protocol in member.protocols})
        return {name for name, members in known.items() if members == len(self.members)}

    def joined(self) -> Sequence[JoinedMember]:
        """Return all members, as the leader hears of them."""
        return [
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        ]
