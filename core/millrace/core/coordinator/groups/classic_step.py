"""One event of one classic group: what it changes, and whom it answers (`classic.py`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

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
from millrace.core.coordinator.groups.classic_group import (
    ClassicGroup,
    JoinedMember,
    LiveMember,
    State,
    Token,
)
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.ids import MonotonicMs

NEW_MEMBER_MS: Final = 300_000
"""How long a member may wait in its first generation: it knows no id, so it sends no heartbeats."""


class Step:
    """Changes a group, and collects the effects.

    Args:
        group: changes at once.
        config: the broker's settings of groups.
        next_write: returns a number for a write.
        now: the time.

    Attributes:
        size_before: of the group, before the event.
        effects: in their order.
    """

    def __init__(
        self,
        group: ClassicGroup,
        config: GroupsConfig,
        next_write: Callable[[], int],
        now: MonotonicMs,
    ) -> None:
        self.group = group
        self._config = config
        self._next_write = next_write
        self._now = now
        self.size_before = group.size
        self.effects: list[Effect] = []

    def answer(self, token: Token, reply: Reply) -> None:
        """Answer a request."""
        self.effects.append(Answer(token, reply))

    # --- Members that come --------------------------------------------------------------------

    def give_id(self, request: JoinRequest, token: Token) -> None:
        """Let a member join with its id; until then others wait for it (KIP-394)."""
        ends_at = MonotonicMs(self._now + request.session_timeout_ms)
        self.group.pending[request.new_id] = ends_at
        self.group.arm(ends_at)
        self.answer(token, Refusal(Refused.MEMBER_ID_REQUIRED, request.new_id))

    def add(self, request: JoinRequest, member_id: str, token: Token) -> None:
        """A member comes."""
        group = self.group
        if not group.members:
            group.protocol_type = request.protocol_type
        if group.state is State.PREPARING and group.was_empty:
            group.has_grown = True
        group.add(
            LiveMember(
                member_id=member_id,
                instance_id=request.instance_id,
                client_id=request.client_id,
                address=request.address,
                namespace=request.namespace,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocols=request.protocols,
                join=token,
                can_skip=request.can_skip,
                is_new=True,
                ends_at=MonotonicMs(self._now + NEW_MEMBER_MS),
            )
        )
        self.rebalance_or_complete(_why(f"{member_id} joins", request))

    def join_again(self, request: JoinRequest, token: Token) -> None:
        """A member joins with the id that it has."""
        group, member_id = self.group, request.member_id
        if member_id in group.pending and not request.instance_id:
            self.add(request, member_id, token)
            return
        refused = member_refused(group, member_id, request.instance_id)
        if refused is not None:
            self.answer(token, Refusal(refused, member_id))
            return
        member = group.members[member_id]
        is_same = member.protocols == request.protocols
        is_leader = member_id == group.leader
        if group.state is State.PREPARING:
            self._update(member, request, token)
            self._complete_if_joined()
        elif is_same and (group.state is State.COMPLETING or not is_leader):
            # It may have missed the answer to its last request.
            self.answer(token, self._joined(member, group.joined() if is_leader else ()))
        else:
            # The leader joins again when what there is to assign has changed.
            self._update(member, request, token)
            what = "its leader joins again" if is_leader else f"{member_id} knows other protocols"
            self.rebalance(_why(what, request))

    def replace_static(self, before: str, request: JoinRequest, token: Token) -> None:
        """A static member is back, and gets what the one with its instance id had (KIP-345)."""
        group = self.group
        member = group.members[before]
        self._refuse_waiting(member, Refusal(Refused.FENCED_INSTANCE, before))
        group.rename(member, request.new_id)
        self._update(member, request, token)
        member.is_new = False
        begin_session(group, member, self._now)
        if group.state is State.PREPARING:
            self._complete_if_joined()
        elif group.state is State.STABLE and group.selected_protocol() == group.protocol:
            self._store()  # Nothing moves; `end_replacement` answers.
        else:
            # The leader of a generation that completes may be assigning to the old id.
            self.rebalance(_why(f"the static member {request.instance_id} is back", request))

    def end_replacement(self, *, is_stored: bool) -> None:
        """The new ids of static members are stored, or not: answer them."""
        group = self.group
        for member in group.members.values():
            if member.join is None:
                continue
            token, member.join = member.join, None
            skips = member.can_skip and member.member_id == group.leader
            if not is_stored:
                self.answer(token, Refusal(Refused.NOT_STORED))
            elif skips:
                self.answer(token, self._joined(member, group.joined(), skip=True))
            else:
                # A leader that knows no such answer would assign; that of a member is ignored.
                leader = "" if member.member_id == group.leader else group.leader
                self.answer(token, self._joined(member)._replace(leader=leader))

    def _update(self, member: LiveMember, request: JoinRequest, token: Token) -> None:
        """Take what a member says that joins again."""
        if member.join is not None:  # It repeats a request, and waits for its answer no more.
            self.answer(member.join, Refusal(Refused.REBALANCING, member.member_id))
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.address = request.client_id, request.address
        member.join, member.can_skip = token, request.can_skip

    def _joined(
        self, member: LiveMember, members: Sequence[JoinedMember] = (), *, skip: bool = False
    ) -> Joined:
        group = self.group
        return Joined(
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader,
            members,
            skip,
        )

    # --- Members that go ----------------------------------------------------------------------

    def leave(self, leaving: Leaving) -> Refused | None:
        """A member leaves; return why it is none, or None."""
        group, member_id = self.group, leaving.member_id
        if not member_id:  # An administrator removes a static member.
            member_id = group.instances.get(leaving.instance_id, "")
            if not member_id:
                return Refused.UNKNOWN_MEMBER
        elif member_id not in group.pending:
            refused = member_refused(group, member_id, leaving.instance_id)
            if refused is not None:
                return refused
        self._remove(member_id)
        return None

    def _remove(self, member_id: str) -> None:
        member = self.group.members.get(member_id)
        if member is not None:
            self._refuse_waiting(member, Refusal(Refused.UNKNOWN_MEMBER))
        self.group.remove(member_id)

    def _refuse_waiting(self, member: LiveMember, refusal: Refusal) -> None:
        for token in (member.join, member.sync):
            if token is not None:
                self.answer(token, refusal)
        member.join = member.sync = None

    # --- Generations --------------------------------------------------------------------------

    def rebalance_or_complete(self, reason: str) -> None:
        """A member came or went: let all join again; if they do so already, one may be the last."""
        if self.group.state is State.PREPARING:
            self._complete_if_joined()
        else:
            self.rebalance(reason)

    def rebalance(self, reason: str, refused: Refused = Refused.REBALANCING) -> None:
        """Let all members join again.

        Args:
            reason: for people.
            refused: what those are told that wait for their assignments.
        """
        group = self.group
        if group.state is State.COMPLETING:
            for member in group.members.values():
                member.assignment = b""
                if member.sync is not None:
                    self.answer(member.sync, Refusal(refused))
                    member.sync = None
        self.effects.append(Rebalance(group.name, group.generation, reason))
        group.storing = 0
        group.unsynced.clear()
        group.was_empty, group.state = group.state is State.EMPTY, State.PREPARING
        if not group.was_empty and group.has_all_joined:
            self._complete()
            return
        wait_ms = group.rebalance_timeout_ms
        if group.was_empty:
            wait_ms = self._config.classic_rebalance_delay_ms
            group.has_grown = False
            group.left_ms = max(0, group.rebalance_timeout_ms - wait_ms)
            if not wait_ms:
                self._complete()
                return
        self._wait(wait_ms)

    def _wait(self, milliseconds: int) -> None:
        self.group.deadline = MonotonicMs(self._now + milliseconds)
        self.group.arm(self.group.deadline)

    def _complete_if_joined(self) -> None:
        group = self.group
        if not group.was_empty and group.has_all_joined:
            self._complete()

    def _complete(self) -> None:
        """Begin a generation with those that have joined, and with static members."""
        group = self.group
        group.deadline = None
        for member in list(group.members.values()):
            if member.join is None and not member.instance_id:
                self._remove(member.member_id)
        if group.members and not group.has_joined_leader():
            self._wait(group.rebalance_timeout_ms)  # Their sessions may end meanwhile.
            return
        group.generation += 1
        group.unsynced.clear()
        if not group.members:
            group.state, group.protocol, group.leader = State.EMPTY, "", ""
            self._store()
            return
        group.state, group.protocol = State.COMPLETING, group.selected_protocol()
        for member in group.members.values():
            token, member.join = member.join, None
            if token is not None:
                is_leader = member.member_id == group.leader
                self.answer(token, self._joined(member, group.joined() if is_leader else ()))
            begin_session(group, member, self._now)
            member.is_new = False
            group.unsynced[member.member_id] = None
        self._wait(group.rebalance_timeout_ms)

    def wait_for_assignment(self, member: LiveMember, token: Token) -> None:
        """A member waits for what the leader brings."""
        if member.sync is not None:
            self.answer(member.sync, Refusal(Refused.REBALANCING))
        member.sync = token
        self.group.unsynced.pop(member.member_id, None)

    def assign(self, assignments: Mapping[str, bytes], bytes_max: int) -> None:
        """Store what the leader has brought, if it fits; who is not named gets nothing.

        Args:
            assignments: by member id.
            bytes_max: of these and what the members say.
        """
        group = self.group
        said = sum(
            len(name) + len(metadata)
            for member in group.members.values()
            for name, metadata in member.protocols
        )
        brought = sum(len(assignments.get(member_id, b"")) for member_id in group.members)
        if said + brought > bytes_max:
            self.rebalance("its assignments are too large", Refused.FULL)
            return
        for member_id, member in group.members.items():
            member.assignment = assignments.get(member_id, b"")
        self._store()

    def become_stable(self) -> None:
        """The assignments are stored: tell them."""
        group = self.group
        group.state = State.STABLE
        for member in group.members.values():
            if member.sync is not None:
                self.answer(member.sync, synced(group, member))
                member.sync = None
                begin_session(group, member, self._now)

    def _store(self) -> None:
        group = self.group
        group.storing = self._next_write()
        self.effects.append(Store(group.name, group.storing, group.stored()))

    # --- Times --------------------------------------------------------------------------------

    def look_at_times(self, *, is_stored: bool) -> None:
        """Remove who is silent or too slow; store that a group is empty if that has failed.

        Args:
            is_stored: whether the log has the generation.
        """
        group, now = self.group, self._now
        silent = [member_id for member_id, at in group.pending.items() if at <= now]
        for member in group.members.values():
            if member.ends_at > now:
                continue
            if not member.is_new and (member.join is not None or member.sync is not None):
                begin_session(group, member, now)  # It waits for others.
            else:
                silent.append(member.member_id)
        lost = [member_id for member_id in silent if member_id in group.members]
        for member_id in silent:
            self._remove(member_id)
        if lost:
            self.rebalance_or_complete(f"{', '.join(lost[:3])} was not heard for its session")
        elif silent:
            self._complete_if_joined_at_all()
        if group.deadline is not None and group.deadline <= now:
            self._end_wait()
        if group.state is State.EMPTY and group.generation and not group.storing and not is_stored:
            self._store()
        times = [member.ends_at for member in group.members.values()]
        times += group.pending.values()
        if group.deadline is not None:
            times.append(group.deadline)
        group.next_at = min(times, default=MonotonicMs(now + NEW_MEMBER_MS))

    def _complete_if_joined_at_all(self) -> None:
        if self.group.state is State.PREPARING:
            self._complete_if_joined()

    def _end_wait(self) -> None:
        """The time is over in which members should have joined, or asked for their assignment."""
        group = self.group
        group.deadline = None
        if group.state is State.PREPARING and group.was_empty and group.has_grown and group.left_ms:
            delay_ms = min(self._config.classic_rebalance_delay_ms, group.left_ms)
            group.has_grown, group.left_ms = False, group.left_ms - delay_ms
            self._wait(delay_ms)
        elif group.state is State.PREPARING:
            self._complete()
        elif group.unsynced:
            slow = list(group.unsynced)
            for member_id in slow:
                self._remove(member_id)
            self.rebalance(f"{', '.join(slow[:3])} did not ask for its assignment")


def member_refused(group: ClassicGroup, member_id: str, instance_id: str) -> Refused | None:
    """Return why that is no member of a group; None: it is one."""
    if instance_id:
        known = group.instances.get(instance_id)
        if known is not None and known != member_id:
            return Refused.FENCED_INSTANCE
        if known is None:
            return Refused.UNKNOWN_MEMBER
    return None if member_id in group.members else Refused.UNKNOWN_MEMBER


def sync_refused(group: ClassicGroup, request: SyncRequest) -> Refused | None:
    """Return why a member gets no assignment; None: it gets one, now or later."""
    refused = member_refused(group, request.member_id, request.instance_id)
    if refused is not None:
        return refused
    if request.generation != group.generation:
        return Refused.ILLEGAL_GENERATION
    is_other = request.protocol_type not in (None, group.protocol_type) or request.protocol not in (
        None,
        group.protocol,
    )
    return Refused.INCONSISTENT_PROTOCOL if is_other else None


def begin_session(group: ClassicGroup, member: LiveMember, now: MonotonicMs) -> None:
    """Begin the session of a member again."""
    member.ends_at = MonotonicMs(now + member.session_timeout_ms)
    group.arm(member.ends_at)


def synced(group: ClassicGroup, member: LiveMember) -> Synced:
    """Return what a member is told of its assignment."""
    return Synced(group.protocol_type, group.protocol, member.assignment)


def _why(what: str, request: JoinRequest) -> str:
    return f"{what}: {request.reason}" if request.reason else what
