"""Classic groups with a log and a clock, and requests that wait for their answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.core.coordinator.groups.classic import ClassicGroups
from millrace.core.coordinator.groups.classic_events import (
    Answer,
    Effect,
    Joined,
    JoinRequest,
    Leaving,
    Rebalance,
    Refusal,
    Refused,
    Reply,
    Store,
    Synced,
    SyncRequest,
)
from millrace.core.coordinator.groups.classic_group import Protocol
from millrace.core.coordinator.groups.classic_records import ClassicRecord, decode, encode
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.ids import MonotonicMs, WallMs

RANGE = Protocol("range", b"r")
ROUND = Protocol("roundrobin", b"o")


@dataclass
class Coordinated:
    """Classic groups on a broker.

    Attributes:
        config: of the broker.
        now: the time.
        fails: whether writes fail.
        holds: whether writes wait for `let_through`.
        replies: what was answered, by request.
        reasons: why members had to join again.
    """

    config: GroupsConfig = field(
        default_factory=lambda: GroupsConfig(classic_rebalance_delay_ms=1000)
    )
    now: int = 0
    fails: bool = False
    holds: bool = False
    ours: set[str] = field(default_factory=set)
    replies: dict[int, Reply] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    held: list[Store] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self.groups = ClassicGroups(self.config, lambda name: name in self.ours)

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance_id: str = "",
        protocols: Sequence[Protocol] = (RANGE,),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        needs_id: bool = False,
        can_skip: bool = True,
        new_id: str = "",
    ) -> int:
        """Let a member join; return the number of its request."""
        token = self.ask()
        request = JoinRequest(
            group=group,
            member_id=member_id,
            instance_id=instance_id,
            client_id="app",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=tuple(protocols),
            new_id=new_id or f"m{token}",
            needs_id=needs_id,
            can_skip=can_skip,
        )
        self.do(self.groups.join(request, token, self.time))
        return token

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group: str = "g",
        instance_id: str = "",
        protocol: str | None = None,
    ) -> int:
        """Let a member ask for its assignment; return the number of its request."""
        token = self.ask()
        request = SyncRequest(
            group=group,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
            protocol=protocol,
            assignments=assignments or {},
        )
        self.do(self.groups.sync(request, token, self.time))
        return token

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = "g", instance_id: str = ""
    ) -> Refused | None:
        """Let a member say that it lives."""
        return self.groups.heartbeat(group, member_id, instance_id, generation, self.time)

    def leave(self, *leaving: Leaving, group: str = "g") -> list[Refused | None]:
        """Let members leave."""
        told, effects = self.groups.leave(group, leaving, self.time)
        self.do(effects)
        return told

    def wait(self, milliseconds: int, step: int = 250) -> None:
        """Let time pass, in steps as a broker looks at it."""
        end = self.now + milliseconds
        while self.now < end:
            self.now = min(end, self.now + step)
            if self.groups.is_due(self.time):
                self.do(self.groups.tick(self.time))

    def let_through(self) -> None:
        """End the writes that are held."""
        held, self.held = self.held, []
        for store in held:
            self._end(store)

    def fail_over(self) -> None:
        """Let another broker coordinate, with the log that there is."""
        self.do(self.groups.end())
        stored = self.groups.stored
        self.held.clear()
        self.groups = ClassicGroups(self.config, lambda name: name in self.ours)
        for name, generation in stored.items():
            key, value = encode(ClassicRecord(name, generation, WallMs(1)))
            self.groups.replay(decode(key, value, WallMs(1)))
        self.groups.restart(self.time)

    @property
    def time(self) -> MonotonicMs:
        return MonotonicMs(self.now)

    def ask(self) -> int:
        """Return the number of another request."""
        self.asked += 1
        return self.asked

    def do(self, effects: Sequence[Effect]) -> None:
        """Perform effects."""
        for effect in effects:
            match effect:
                case Answer(token, reply):
                    assert isinstance(token, int)
                    assert token not in self.replies, "a request is answered once"
                    self.replies[token] = reply
                case Store():
                    if self.holds:
                        self.held.append(effect)
                    else:
                        self._end(effect)
                case Rebalance(_, _, reason):
                    self.reasons.append(reason)

    def _end(self, store: Store) -> None:
        if not self.fails:
            self.groups.replay(ClassicRecord(store.group, store.generation, WallMs(1)))
        self.do(
            self.groups.on_stored(store.group, store.number, self.time, is_stored=not self.fails)
        )

    # --- What tests ask ------------------------------------------------------------------------

    def joined(self, token: int) -> Joined:
        """Return the answer to a request to join that went well."""
        reply = self.replies[token]
        assert isinstance(reply, Joined), reply
        return reply

    def synced(self, token: int) -> bytes:
        """Return the assignment that answers a request."""
        reply = self.replies[token]
        assert isinstance(reply, Synced), reply
        return reply.assignment

    def refused(self, token: int) -> Refused:
        """Return why a request was refused."""
        reply = self.replies[token]
        assert isinstance(reply, Refusal), reply
        return reply.why

    def form(self, *member_ids: str, **said: object) -> int:
        """Form a group of new members, each with an assignment of its id; return the generation."""
        tokens = [self.join(new_id=member_id, **said) for member_id in member_ids]  # type: ignore[arg-type]
        self.wait(self.config.classic_rebalance_delay_ms * (len(member_ids) + 1))
        return self.assign(*tokens)

    def assign(self, *tokens: int) -> int:
        """Let members that have joined ask for their assignments; return the generation."""
        answers = [self.joined(token) for token in tokens]
        for answer in sorted(answers, key=lambda answer: answer.member_id == answer.leader):
            gives = {member.member_id: member.member_id.encode() for member in answer.members}
            self.sync(answer.member_id, answer.generation, gives)
        return answers[0].generation
