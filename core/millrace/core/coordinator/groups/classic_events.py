"""What classic groups are asked, and what they answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from millrace.core.coordinator.groups.classic_group import JoinedMember, Protocol, Token
from millrace.core.coordinator.groups.classic_records import Generation
from millrace.core.topics import DEFAULT_NAMESPACE


class Refused(Enum):
    """Why a request is refused; each has an error code of Kafka's of about the same name."""

    UNKNOWN_MEMBER = "it is no member of the group: join again"
    FENCED_INSTANCE = "another member has its instance id by now"
    ILLEGAL_GENERATION = "it is of another generation: join again"
    REBALANCING = "the members are joining again: so must this one"
    INCONSISTENT_PROTOCOL = "the group's members speak another protocol"
    MEMBER_ID_REQUIRED = "join again with the member id of this answer"
    FULL = "there is no room for more members, or for what they say"
    SESSION_TIMEOUT = "the session timeout is beyond the bounds of the broker's settings"
    NOT_STORED = "the generation could not be stored: try again shortly"
    NOT_COORDINATOR = "this broker does not coordinate the group any more: find the one that does"


class Refusal(NamedTuple):
    """The answer to a request that is refused.

    Attributes:
        member_id: with `MEMBER_ID_REQUIRED` the new id.
    """

    why: Refused
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A member joins, or joins again.

    Attributes:
        group: its group.
        member_id: empty: it has none yet.
        instance_id: empty: it is dynamic.
        client_id: as the next two, for people.
        address: of its process.
        namespace: of the topics that it names.
        reason: why it joins.
        session_timeout_ms: see `ClassicMember`, as for the next one.
        rebalance_timeout_ms: how long others wait for it.
        protocol_type: what it is.
        protocols: that it knows, the best first.
        new_id: the member id that it gets if it has none.
        needs_id: it has to join with its id before it is a member (KIP-394).
        can_skip: see `LiveMember`.
    """

    group: str
    member_id: str = ""
    instance_id: str = ""
    client_id: str = ""
    address: str = ""
    namespace: str = DEFAULT_NAMESPACE
    reason: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    new_id: str
    needs_id: bool = True
    can_skip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings all of them.

    Attributes:
        group: its group.
        member_id: its id.
        instance_id: empty: it is dynamic.
        generation: which it has joined.
        protocol_type: None: it does not say; likewise the next one.
        protocol: by which it was assigned.
        assignments: by member id; the leader's count.
    """

    group: str
    member_id: str
    instance_id: str = ""
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


class Leaving(NamedTuple):
    """A member that leaves.

    Attributes:
        member_id: empty: the one of the instance id, which an administrator removes.
        instance_id: empty: it is dynamic.
        reason: why, for people.
    """

    member_id: str
    instance_id: str = ""
    reason: str = ""


class Committer(NamedTuple):
    """Who commits positions.

    Attributes:
        member_id: empty: it names none, as readers without a group do.
        instance_id: likewise.
        generation: in which it reads; -1: it names none.
    """

    member_id: str = ""
    instance_id: str = ""
    generation: int = -1


NOBODY: Final = Committer()


class Joined(NamedTuple):
    """The answer to a member that has joined a generation.

    Attributes:
        members: all of them, for the leader; others get none.
        skip_assignment: the leader is not to assign: all keep what they have (KIP-814).
    """

    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The answer to a member that asked for its assignment."""

    protocol_type: str
    protocol: str
    assignment: bytes


Reply: TypeAlias = Joined | Synced | Refusal


class Answer(NamedTuple):
    """Effect: answer a request."""

    token: Token
    reply: Reply


class Store(NamedTuple):
    """Effect: store a generation, and say how that went with this number (`on_stored`)."""

    group: str
    number: int
    generation: Generation


class Rebalance(NamedTuple):
    """Effect: tell people that the members of a group join again, and why."""

    group: str
    generation: int
    reason: str


Effect: TypeAlias = Answer | Store | Rebalance
