"""Sessions of the members of one partition's groups: who counts as dead, and what the log stores.

The broker that coordinates a group has the clock, so it has the sessions in memory. A new
coordinator does not know when its predecessor last heard a member. If each new coordinator granted
a whole session, a dead member would keep its partitions for as long as coordinators come and go. So
a coordinator stores, in steps, for how long a member has been silent (`Member.silent_ms`), and its
successor continues from there. Nothing is stored about members that are heard.

All times are durations by the clock of one broker, so that clocks need not agree.

Invariants:

- A member is removed only after it was silent for a whole session since the last answer of a
  coordinator (P61). Its silences towards several coordinators add up. Time without a coordinator
  does not count.
- Each coordinator waits for a member for at least one interval of heartbeats.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.group import Current, Group, Member
from millrace.core.ids import MonotonicMs

_STEPS: Final = 8
"""Silence is stored each time it has grown by this fraction of a session. If the coordinator dies,
the silence since then is not counted."""
_LONG_AGO: Final = MonotonicMs(0)


@dataclass(slots=True)
class _Session:
    """What this coordinator knows of a member.

    Attributes:
        ends_at: when the member counts as dead.
        is_heard: whether this coordinator has heard it.
        epoch: of the last assignment that was sent to it.
        told_at: when that assignment was first sent.
        is_confirmed: whether the member has confirmed that assignment.
    """

    ends_at: MonotonicMs
    is_heard: bool = False
    epoch: int = 0
    told_at: MonotonicMs = _LONG_AGO
    is_confirmed: bool = True


class Sessions:
    """The silences of members. A broker has them for as long as it coordinates the partition."""

    def __init__(self, config: GroupsConfig) -> None:
        self._session_ms = config.session_timeout_ms
        self._interval_ms = config.heartbeat_interval_ms
        self._step_ms = config.session_timeout_ms // _STEPS
        self._sessions: dict[tuple[str, str], _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def hear(
        self, group: str, member_id: str, confirmed: int, current: Current, now: MonotonicMs
    ) -> None:
        """Begin the session of a member again: it has sent a heartbeat.

        Args:
            group: its group.
            member_id: of the member.
            confirmed: the epoch that it confirms.
            current: what it is told.
            now: the time.
        """
        ends_at = MonotonicMs(now + self._session_ms)
        session = self._sessions.setdefault((group, member_id), _Session(ends_at))
        session.ends_at, session.is_heard = ends_at, True
        session.is_confirmed = confirmed >= current.epoch
        if session.epoch != current.epoch:
            session.epoch, session.told_at = current.epoch, now

    def forget(self, group: str, member_id: str) -> None:
        """End the session of a member that has left; a static one may return in a new session."""
        self._sessions.pop((group, member_id), None)

    def retain(self, groups: Mapping[str, Group]) -> None:
        """Forget the sessions of members that these groups no longer have."""
        for name, member_id in list(self._sessions):
            if name not in groups or member_id not in groups[name].members:
                del self._sessions[name, member_id]

    def prolong(self, milliseconds: int) -> None:
        """Prolong all sessions, as this broker stood still: heartbeats may wait to be handled."""
        for session in self._sessions.values():
            session.ends_at = MonotonicMs(session.ends_at + milliseconds)

    def is_confirmed(self, group: str, member_id: str) -> bool:
        """Whether a member has confirmed its assignment, as far as this broker knows."""
        session = self._sessions.get((group, member_id))
        return session is not None and session.is_confirmed

    def ended(self, group: Group, member_ids: Collection[str], now: MonotonicMs) -> list[str]:
        """Return which of these members count as dead, or do not confirm their assignment."""
        found = []
        for member_id in member_ids:
            if (member := group.members.get(member_id)) is not None:
                session = self._of(group.name, member_id, member, now)
                is_slow = not session.is_confirmed and (
                    now - session.told_at > member.rebalance_timeout_ms
                )
                if session.ends_at <= now or is_slow:
                    found.append(member_id)
        return found

    def silent(self, group: Group, member_ids: Collection[str], now: MonotonicMs) -> dict[str, int]:
        """Return for how long members were silent, where the log has to store that."""
        found = {}
        for member_id in member_ids:
            if (member := group.members.get(member_id)) is not None:
                session = self._of(group.name, member_id, member, now)
                silent_ms = self._session_ms - (session.ends_at - now)
                # Between two heartbeats a member need not be heard.
                may_be_heard = self._interval_ms if session.is_heard else 0
                if silent_ms >= max(member.silent_ms, may_be_heard) + self._step_ms:
                    found[member_id] = silent_ms
        return found

    def _of(self, group: str, member_id: str, member: Member, now: MonotonicMs) -> _Session:
        session = self._sessions.get((group, member_id))
        if session is None:
            left_ms = max(self._session_ms - member.silent_ms, self._interval_ms)
            session = _Session(MonotonicMs(now + left_ms))
            self._sessions[group, member_id] = session
        return session
