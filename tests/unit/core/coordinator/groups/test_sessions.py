"""Sessions: who counts as dead, and what one coordinator leaves to the next one."""

import json

from tests.fakes.topics_view import Topics

from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.group import (
    Current,
    CurrentRecord,
    Group,
    Member,
    MemberRecord,
)
from millrace.core.coordinator.groups.membership import Heartbeat, MembershipMachine
from millrace.core.coordinator.groups.records import decode, encode
from millrace.core.coordinator.groups.sessions import Sessions
from millrace.core.ids import MonotonicMs, WallMs

CONFIG = GroupsConfig(session_timeout_ms=8_000, heartbeat_interval_ms=2_000)
NOW = WallMs(1)


class Log:
    """The group `g` with the member `m`, which coordinators come and go for."""

    def __init__(self, member: Member | None = None) -> None:
        self.machine = MembershipMachine(CONFIG)
        self.machine.replay(MemberRecord("g", "m", member or Member(), NOW))
        self.machine.replay(CurrentRecord("g", "m", Current(1), NOW))

    @property
    def group(self) -> Group:
        return self.machine.groups["g"]

    @property
    def silent_ms(self) -> int:
        return self.group.members["m"].silent_ms

    def heartbeat(self, sessions: Sessions, at: int, confirmed: int = 1) -> None:
        result = self.machine.handle_heartbeat("g", Heartbeat("m", confirmed), Topics(), NOW)
        for record in result.records:
            self.machine.replay(record)
        sessions.hear("g", "m", confirmed, result.response, MonotonicMs(at))

    def look(self, sessions: Sessions, at: int) -> list[str]:
        """Do what a broker does when it looks at its members; return those that are dead."""
        now = MonotonicMs(at)
        ended = sessions.ended(self.group, ["m"], now)
        silent = {} if ended else sessions.silent(self.group, ["m"], now)
        for record in self.machine.handle_silence("g", silent, NOW).records:
            self.machine.replay(record)
        return ended


def test_a_member_is_dead_when_it_was_not_heard_for_its_session() -> None:
    log, sessions = Log(), Sessions(CONFIG)
    log.heartbeat(sessions, 0)
    assert log.look(sessions, 7_999) == []
    assert log.look(sessions, 8_000) == ["m"]


def test_a_member_that_is_heard_leaves_nothing_in_the_log() -> None:
    log, sessions = Log(), Sessions(CONFIG)
    log.heartbeat(sessions, 0)
    for at in range(0, 60_000, 250):
        if at % 2_500 == 0:
            log.heartbeat(sessions, at)
        assert log.look(sessions, at) == []
        assert log.silent_ms == 0


def test_silence_is_stored_in_steps_and_no_oftener() -> None:
    log, sessions = Log(), Sessions(CONFIG)
    log.heartbeat(sessions, 0)
    stored = set()
    for at in range(0, 8_000, 250):
        log.look(sessions, at)
        stored.add(log.silent_ms)
    assert stored == {0, 3_000, 4_000, 5_000, 6_000, 7_000}


def test_a_new_coordinator_goes_on_from_what_the_log_says() -> None:
    log, at = Log(), 0
    for life_ms in (3_200, 1_900, 1_400):  # Each life loses less than a step.
        sessions = Sessions(CONFIG)
        for _ in range(0, life_ms, 100):
            assert log.look(sessions, at) == []
            at += 100
        at += 5_000  # Without a coordinator.
    assert log.silent_ms == 5_000
    sessions = Sessions(CONFIG)
    assert log.look(sessions, at) == []
    assert log.look(sessions, at + 2_999) == []
    assert log.look(sessions, at + 3_000) == ["m"]


def test_each_coordinator_gives_a_member_time_to_come() -> None:
    log = Log(Member(silent_ms=7_900))
    sessions = Sessions(CONFIG)
    assert log.look(sessions, 0) == []
    assert log.look(sessions, 1_999) == []
    assert log.look(sessions, 2_000) == ["m"]


def test_a_member_that_comes_back_has_a_whole_session_again_also_with_the_next_one() -> None:
    log = Log(Member(silent_ms=6_000))
    sessions = Sessions(CONFIG)
    log.look(sessions, 0)
    log.heartbeat(sessions, 500)
    assert log.silent_ms == 0
    assert log.look(sessions, 8_499) == []
    later = Sessions(CONFIG)
    log.machine.replay(MemberRecord("g", "m", Member(), NOW))
    assert log.look(later, 100_000) == []
    assert log.look(later, 107_999) == []


def test_a_broker_that_stood_still_counts_that_for_nobody() -> None:
    log, sessions = Log(), Sessions(CONFIG)
    log.heartbeat(sessions, 0)
    sessions.prolong(20_000)
    assert log.look(sessions, 27_999) == []
    assert log.look(sessions, 28_000) == ["m"]


def test_a_member_that_does_not_confirm_in_time_counts_as_dead_though_it_is_heard() -> None:
    log, sessions = Log(Member(rebalance_timeout_ms=4_000)), Sessions(CONFIG)
    for at in range(0, 4_001, 1_000):
        log.heartbeat(sessions, at, confirmed=0)
        assert log.look(sessions, at) == []
    assert log.look(sessions, 4_001) == ["m"]


def test_who_is_no_member_any_more_is_forgotten() -> None:
    log, sessions = Log(), Sessions(CONFIG)
    log.look(sessions, 0)
    sessions.hear("gone", "x", 1, Current(1), MonotonicMs(0))
    sessions.retain(log.machine.groups)
    assert len(sessions) == 1
    sessions.forget("g", "m")
    assert len(sessions) == 0


def test_silence_is_in_the_record_and_a_record_of_an_earlier_release_has_none() -> None:
    record = MemberRecord("g", "m", Member(client_id="c", silent_ms=3_000), NOW)
    key, value = encode(record)
    assert value is not None
    assert decode(key, value, NOW) == record
    earlier = {name: field for name, field in json.loads(value).items() if name != "silent_ms"}
    found = decode(key, json.dumps(earlier).encode(), NOW)
    assert found == MemberRecord("g", "m", Member(client_id="c"), NOW)
