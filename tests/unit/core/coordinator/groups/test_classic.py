"""Classic groups: joining, assignment by the leader, sessions, static members, failover."""

import pytest
from tests.fakes.classic_groups import RANGE, ROUND, Coordinated

from millrace.core.coordinator.groups.classic_events import Committer, Leaving, Refusal, Refused
from millrace.core.coordinator.groups.classic_group import Protocol, State
from millrace.core.coordinator.groups.config import GroupsConfig


def state(broker: Coordinated, group: str = "g") -> State | None:
    found = broker.groups.group(group)
    return None if found is None else found.state


# --- Joining ---------------------------------------------------------------------------------


def test_a_member_gets_an_id_first_and_joins_with_it() -> None:
    broker = Coordinated()
    first = broker.join(needs_id=True, new_id="a")
    assert broker.replies[first] == Refusal(Refused.MEMBER_ID_REQUIRED, "a")
    again = broker.join("a", needs_id=True)
    broker.wait(1000)
    assert broker.joined(again).member_id == "a"


def test_an_id_that_nobody_joins_with_is_forgotten() -> None:
    broker = Coordinated()
    broker.join(needs_id=True, new_id="a", session_ms=6000)
    assert broker.groups.members("g") == 1
    broker.wait(6000)
    assert broker.groups.members("g") == 0
    assert broker.refused(broker.join("a", needs_id=True)) is Refused.UNKNOWN_MEMBER


def test_a_new_group_waits_for_more_members() -> None:
    broker = Coordinated()
    first = broker.join(new_id="a")
    broker.wait(750)
    second = broker.join(new_id="b")
    broker.wait(500)
    assert not broker.replies, "the delay begins anew for each member that comes"
    broker.wait(1000)
    assert broker.joined(first).generation == broker.joined(second).generation == 1


def test_the_wait_of_a_new_group_ends_with_the_rebalance_timeout() -> None:
    broker = Coordinated()
    first = broker.join(new_id="m0", rebalance_ms=2500)
    for number in range(1, 7):
        broker.wait(500)
        broker.join(new_id=f"m{number}", rebalance_ms=2500)
    assert broker.joined(first).generation == 1


def test_without_a_delay_a_group_begins_at_once() -> None:
    broker = Coordinated(GroupsConfig(classic_rebalance_delay_ms=0))
    assert broker.joined(broker.join()).generation == 1


def test_the_leader_alone_hears_of_all_members() -> None:
    broker = Coordinated()
    first, second = broker.join(new_id="a"), broker.join(new_id="b")
    broker.wait(2000)
    leader, other = broker.joined(first), broker.joined(second)
    assert leader.leader == other.leader == "a"
    assert [member.member_id for member in leader.members] == ["a", "b"]
    assert [member.metadata for member in leader.members] == [b"r", b"r"]
    assert other.members == ()


def test_the_protocol_that_most_like_best_is_chosen_of_those_that_all_know() -> None:
    broker = Coordinated()
    only = Protocol("only", b"x")
    first = broker.join(protocols=(only, RANGE, ROUND))
    broker.join(protocols=(ROUND, RANGE))
    broker.join(protocols=(ROUND, RANGE))
    broker.wait(4000)
    assert broker.joined(first).protocol == "roundrobin"


def test_a_member_that_shares_no_protocol_is_refused() -> None:
    broker = Coordinated()
    broker.form("a")
    other_type = broker.join(protocol_type="connect")
    other_protocol = broker.join(protocols=(ROUND,))
    assert broker.refused(other_type) is Refused.INCONSISTENT_PROTOCOL
    assert broker.refused(other_protocol) is Refused.INCONSISTENT_PROTOCOL
    assert broker.refused(broker.join(group="h", protocols=())) is Refused.INCONSISTENT_PROTOCOL


def test_a_group_of_millrace_refuses_members_of_kafka() -> None:
    """K11."""
    broker = Coordinated(ours={"g"})
    assert broker.refused(broker.join()) is Refused.INCONSISTENT_PROTOCOL


@pytest.mark.parametrize("session_ms", [5999, 1_800_001])
def test_a_session_timeout_beyond_the_bounds_is_refused(session_ms: int) -> None:
    broker = Coordinated()
    assert broker.refused(broker.join(session_ms=session_ms)) is Refused.SESSION_TIMEOUT


def test_a_full_group_refuses_another_member_and_keeps_its_own() -> None:
    broker = Coordinated(GroupsConfig(members_max=2, classic_rebalance_delay_ms=1000))
    generation = broker.form("a", "b")
    assert broker.refused(broker.join()) is Refused.FULL
    assert broker.refused(broker.join(needs_id=True)) is Refused.FULL
    assert broker.heartbeat("a", generation) is None
    broker.join("a")
    broker.join("b")
    assert state(broker) is State.COMPLETING


def test_a_partition_has_room_for_so_many_members_and_groups() -> None:
    config = GroupsConfig(partition_members_max=2, partition_groups_max=2)
    broker = Coordinated(config)
    broker.join(group="g", needs_id=True)
    broker.join(group="g", needs_id=True)
    assert broker.refused(broker.join(group="h")) is Refused.FULL
    broker = Coordinated(config)
    broker.join(group="g")
    broker.join(group="h", needs_id=True)
    assert broker.refused(broker.join(group="i")) is Refused.FULL


def test_members_that_say_too_much_do_not_fit() -> None:
    broker = Coordinated(GroupsConfig(classic_group_bytes_max=16 << 10))
    broker.join(protocols=(Protocol("p", b"x" * 10_000),))
    large = broker.join(protocols=(Protocol("p", b"x" * 10_000),))
    assert broker.refused(large) is Refused.FULL


def test_groups_of_one_partition_that_say_too_much_together_do_not_fit() -> None:
    broker = Coordinated(
        GroupsConfig(
            classic_group_bytes_max=48 << 10,
            classic_partition_bytes_max=64 << 10,
            classic_rebalance_delay_ms=0,
        )
    )
    large = (Protocol("p", b"x" * (40 << 10)),)
    broker.joined(broker.join(group="g", new_id="a", protocols=large))
    assert broker.refused(broker.join(group="h", protocols=large)) is Refused.FULL
    broker.joined(broker.join(group="i", new_id="b"))
    token = broker.sync("b", 1, {"b": b"x" * (30 << 10)}, group="i")
    assert broker.refused(token) is Refused.FULL
    assert not broker.groups.stored
    broker.leave(Leaving("a"), group="g")
    broker.joined(broker.join(group="h", protocols=large))
    assert broker.groups._bytes == sum(broker.groups._sizes.values())


def test_assignments_that_are_too_large_are_refused_and_nothing_is_stored() -> None:
    broker = Coordinated(
        GroupsConfig(classic_group_bytes_max=16 << 10, classic_rebalance_delay_ms=0)
    )
    broker.joined(broker.join(new_id="a"))
    token = broker.sync("a", 1, {"a": b"x" * (17 << 10)})
    assert broker.refused(token) is Refused.FULL
    assert not broker.groups.stored


# --- Assignments -----------------------------------------------------------------------------


def test_all_get_what_the_leader_brings_once_it_is_stored() -> None:
    broker = Coordinated(holds=True)
    broker.join(new_id="a")
    broker.join(new_id="b")
    broker.wait(2000)
    other = broker.sync("b", 1)
    leader = broker.sync("a", 1, {"a": b"1", "b": b"2", "nobody": b"3"})
    assert leader not in broker.replies
    assert other not in broker.replies
    assert not broker.groups.stored
    broker.let_through()
    assert (broker.synced(leader), broker.synced(other)) == (b"1", b"2")
    assert state(broker) is State.STABLE
    stored = broker.groups.stored["g"]
    assert {name: member.assignment for name, member in stored.members.items()} == {
        "a": b"1",
        "b": b"2",
    }


def test_an_assignment_can_be_asked_for_again() -> None:
    broker = Coordinated()
    generation = broker.form("a", "b")
    assert broker.synced(broker.sync("b", generation)) == b"b"


def test_a_failed_write_lets_all_join_again() -> None:
    broker = Coordinated(fails=True)
    broker.join(new_id="a")
    broker.wait(1000)
    assert broker.refused(broker.sync("a", 1, {"a": b"1"})) is Refused.NOT_STORED
    assert state(broker) is State.PREPARING
    broker.fails = False
    broker.assign(broker.join("a"))
    assert broker.groups.stored["g"].number == 2


def test_a_write_of_a_generation_before_makes_no_later_one_stable() -> None:
    broker = Coordinated(holds=True)
    broker.join(new_id="a")
    broker.wait(1000)
    late = broker.sync("a", 1, {"a": b"1"})
    broker.join(new_id="b")
    broker.join("a")
    assert broker.refused(late) is Refused.REBALANCING
    assert state(broker) is State.COMPLETING
    broker.let_through()
    assert state(broker) is State.COMPLETING, "the leader of generation 2 has assigned nothing"


def test_who_syncs_for_another_generation_or_protocol_is_refused() -> None:
    broker = Coordinated()
    generation = broker.form("a")
    assert broker.refused(broker.sync("a", generation + 1)) is Refused.ILLEGAL_GENERATION
    assert broker.refused(broker.sync("x", generation)) is Refused.UNKNOWN_MEMBER
    assert broker.refused(broker.sync("a", generation, group="h")) is Refused.UNKNOWN_MEMBER
    other = broker.sync("a", generation, protocol="roundrobin")
    assert broker.refused(other) is Refused.INCONSISTENT_PROTOCOL


def test_members_that_do_not_ask_for_their_assignment_are_removed() -> None:
    broker = Coordinated()
    broker.join(new_id="a", rebalance_ms=5000, session_ms=30_000)
    broker.join(new_id="b", rebalance_ms=5000, session_ms=30_000)
    broker.wait(2000)
    other = broker.sync("b", 1)
    broker.wait(5000)
    assert broker.refused(other) is Refused.REBALANCING, "the leader was silent"
    again = broker.join("b")
    assert [member.member_id for member in broker.joined(again).members] == ["b"]


# --- Rebalances ------------------------------------------------------------------------------


def test_a_new_member_makes_all_join_again() -> None:
    broker = Coordinated()
    generation = broker.form("a")
    token = broker.join(new_id="b")
    assert broker.heartbeat("a", generation) is Refused.REBALANCING
    assert token not in broker.replies
    again = broker.join("a")
    assert broker.joined(again).generation == broker.joined(token).generation == generation + 1


def test_who_does_not_join_again_in_time_is_removed() -> None:
    broker = Coordinated()
    broker.form("a", "b", rebalance_ms=5000, session_ms=60_000)
    token = broker.join("a", rebalance_ms=5000)
    broker.wait(4750)
    assert token not in broker.replies
    broker.wait(250)
    assert [member.member_id for member in broker.joined(token).members] == ["a"]


def test_a_member_takes_the_lead_when_the_leader_does_not_join() -> None:
    broker = Coordinated()
    broker.form("a", "b", rebalance_ms=5000, session_ms=60_000)
    broker.join(new_id="c", rebalance_ms=5000)
    token = broker.join("b")
    broker.wait(5000)
    assert broker.joined(token).leader == "b"


def test_a_follower_that_says_the_same_hears_of_the_generation_that_there_is() -> None:
    broker = Coordinated()
    generation = broker.form("a", "b")
    answer = broker.joined(broker.join("b"))
    assert (answer.generation, answer.members) == (generation, ())
    assert state(broker) is State.STABLE


def test_the_leader_joins_again_to_assign_anew() -> None:
    broker = Coordinated()
    generation = broker.form("a", "b")
    broker.join("a")
    assert state(broker) is State.PREPARING
    assert broker.heartbeat("b", generation) is Refused.REBALANCING


def test_a_member_that_knows_other_protocols_makes_all_join_again() -> None:
    broker = Coordinated()
    broker.form("a", "b")
    broker.join("b", protocols=(Protocol("range", b"other"),))
    assert state(broker) is State.PREPARING


def test_a_repeated_request_to_join_takes_the_place_of_the_one_before() -> None:
    broker = Coordinated()
    broker.form("a", "b")
    first = broker.join("a")
    second = broker.join("a")
    assert broker.refused(first) is Refused.REBALANCING
    broker.join("b")
    assert broker.joined(second).generation == 2


def test_a_member_that_missed_the_answer_of_its_join_hears_it_again() -> None:
    broker = Coordinated()
    broker.join(new_id="a")
    broker.join(new_id="b")
    broker.wait(2000)
    again = broker.joined(broker.join("a"))
    assert [member.member_id for member in again.members] == ["a", "b"]
    assert broker.joined(broker.join("b")).members == ()


# --- Sessions --------------------------------------------------------------------------------


def test_a_silent_member_is_removed_and_the_others_join_again() -> None:
    broker = Coordinated()
    generation = broker.form("a", "b", session_ms=10_000)
    for _ in range(4):
        broker.wait(2500)
        told = broker.heartbeat("a", generation)
    assert told is Refused.REBALANCING
    assert [m.member_id for m in broker.joined(broker.join("a")).members] == ["a"]


def test_a_member_that_waits_for_others_is_not_silent() -> None:
    broker = Coordinated()
    broker.form("a", "b", session_ms=6000, rebalance_ms=60_000)
    token = broker.join("a")
    for _ in range(8):
        broker.wait(2500)
        broker.heartbeat("b", 1)
    broker.join("b")
    assert broker.joined(token).generation == 2


def test_a_group_whose_members_are_all_silent_is_empty_and_keeps_its_generation() -> None:
    broker = Coordinated()
    broker.form("a", "b", session_ms=10_000)
    broker.wait(10_000)
    stored = broker.groups.stored["g"]
    assert (stored.number, dict(stored.members), stored.protocol_type) == (2, {}, "consumer")
    assert state(broker) is State.EMPTY
    assert broker.form("c") == 3


def test_that_a_group_is_empty_is_stored_as_soon_as_it_can_be() -> None:
    broker = Coordinated()
    broker.form("a")
    broker.fails = True
    broker.leave(Leaving("a"))
    broker.wait(1000)
    assert broker.groups.stored["g"].members
    broker.fails = False
    broker.wait(1000)
    assert not broker.groups.stored["g"].members


def test_a_broker_that_stood_still_gives_its_members_more_time() -> None:
    broker = Coordinated()
    generation = broker.form("a", session_ms=10_000)
    broker.groups.prolong(20_000)
    broker.wait(29_000)
    assert broker.heartbeat("a", generation) is None


# --- Leaving ---------------------------------------------------------------------------------


def test_members_leave_together_and_each_hears_how_it_went() -> None:
    broker = Coordinated()
    generation = broker.form("a", "b", "c")
    told = broker.leave(Leaving("a"), Leaving("x"), Leaving("b"))
    assert told == [None, Refused.UNKNOWN_MEMBER, None]
    assert broker.heartbeat("c", generation) is Refused.REBALANCING
    assert broker.joined(broker.join("c")).leader == "c"


def test_who_leaves_while_it_waits_is_answered() -> None:
    broker = Coordinated()
    token = broker.join(new_id="a")
    broker.leave(Leaving("a"))
    assert broker.refused(token) is Refused.UNKNOWN_MEMBER


def test_an_id_that_is_given_back_is_not_waited_for() -> None:
    broker = Coordinated()
    generation = broker.form("a")
    broker.join(needs_id=True, new_id="b")
    assert broker.heartbeat("a", generation) is None
    token = broker.join("a")
    assert token not in broker.replies, "the group waits for the other one"
    assert broker.leave(Leaving("b")) == [None]
    assert broker.joined(token).generation == 2


def test_a_group_that_never_was_refuses_who_leaves() -> None:
    assert Coordinated().leave(Leaving("a")) == [Refused.UNKNOWN_MEMBER]


# --- Static members --------------------------------------------------------------------------


def test_a_static_member_that_is_back_gets_what_it_had_and_nothing_moves() -> None:
    broker = Coordinated()
    tokens = [broker.join(new_id="a1", instance_id="a"), broker.join(new_id="b1", instance_id="b")]
    broker.wait(2000)
    generation = broker.assign(*tokens)
    token = broker.join(new_id="b2", instance_id="b")
    answer = broker.joined(token)
    assert (answer.generation, answer.leader, answer.skip_assignment) == (generation, "a1", False)
    assert broker.synced(broker.sync("b2", generation, instance_id="b")) == b"b1"
    assert broker.heartbeat("a1", generation, instance_id="a") is None
    assert broker.heartbeat("b1", generation, instance_id="b") is Refused.FENCED_INSTANCE
    assert broker.groups.stored["g"].members["b2"].assignment == b"b1"


def test_a_static_leader_that_is_back_is_told_not_to_assign() -> None:
    broker = Coordinated()
    tokens = [broker.join(new_id="a1", instance_id="a"), broker.join(new_id="b1", instance_id="b")]
    broker.wait(2000)
    generation = broker.assign(*tokens)
    knows = broker.joined(broker.join(new_id="a2", instance_id="a"))
    assert (knows.skip_assignment, knows.leader, knows.generation) == (True, "a2", generation)
    assert [member.member_id for member in knows.members] == ["a2", "b1"]
    older = broker.joined(broker.join(new_id="a3", instance_id="a", can_skip=False))
    assert (older.skip_assignment, older.leader, older.members) == (False, "", ())


def test_a_static_member_that_is_back_while_the_leader_assigns_makes_all_join_again() -> None:
    broker = Coordinated()
    broker.join(new_id="a1", instance_id="a")
    broker.join(new_id="b1", instance_id="b")
    broker.wait(2000)
    broker.join(new_id="b2", instance_id="b")
    assert broker.refused(broker.sync("a1", 1, {"b1": b"x"}, instance_id="a")) is (
        Refused.REBALANCING
    )


def test_the_process_before_is_fenced_while_it_waits() -> None:
    broker = Coordinated()
    before = broker.join(new_id="a1", instance_id="a")
    token = broker.join(new_id="a2", instance_id="a")
    assert broker.refused(before) is Refused.FENCED_INSTANCE
    broker.wait(1000)
    assert broker.joined(token).member_id == "a2"
    assert broker.refused(broker.join("a1", instance_id="a")) is Refused.FENCED_INSTANCE


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    broker = Coordinated()
    token = broker.join(new_id="a1", instance_id="a")
    broker.wait(1000)
    broker.assign(token)
    assert broker.leave(Leaving("", "nobody")) == [Refused.UNKNOWN_MEMBER]
    assert broker.leave(Leaving("", "a")) == [None]
    assert broker.groups.members("g") == 0


def test_a_static_member_that_does_not_join_in_time_stays_for_its_session() -> None:
    broker = Coordinated()
    tokens = [
        broker.join(new_id="a1", instance_id="a", rebalance_ms=5000, session_ms=60_000),
        broker.join(new_id="b1", rebalance_ms=5000, session_ms=60_000),
    ]
    broker.wait(2000)
    broker.assign(*tokens)
    token = broker.join("b1", protocols=(Protocol("range", b"new"),), rebalance_ms=5000)
    broker.wait(5000)
    assert {member.member_id for member in broker.joined(token).members} == {"a1", "b1"}


# --- Commits ---------------------------------------------------------------------------------


def test_members_commit_in_their_generation_and_others_while_there_are_none() -> None:
    broker = Coordinated()

    def refusal(member_id: str, generation: int, *, staged: bool = False) -> Refused | None:
        committer = Committer(member_id, generation=generation)
        return broker.groups.refusal_of_commit("g", committer, staged=staged)

    assert refusal("", -1) is None
    assert refusal("a", 3) is Refused.ILLEGAL_GENERATION
    generation = broker.form("a")
    assert refusal("a", generation) is None
    assert refusal("a", generation - 1) is Refused.ILLEGAL_GENERATION
    assert refusal("x", generation) is Refused.UNKNOWN_MEMBER
    assert refusal("", -1) is Refused.UNKNOWN_MEMBER
    assert refusal("", -1, staged=True) is None
    broker.join(new_id="b")
    assert refusal("a", generation) is None, "it commits before it joins again"
    broker.join("a")
    assert refusal("a", generation + 1) is Refused.REBALANCING
    broker.leave(Leaving("a"), Leaving("b"))
    assert refusal("", -1) is None
    assert refusal("a", generation) is Refused.UNKNOWN_MEMBER


# --- Failover --------------------------------------------------------------------------------


def test_the_next_coordinator_keeps_the_members_and_their_assignments() -> None:
    broker = Coordinated()
    generation = broker.form("a", "b")
    broker.fail_over()
    assert broker.heartbeat("a", generation) is None
    assert broker.synced(broker.sync("b", generation)) == b"b"
    broker.wait(9750)
    assert broker.groups.members("g") == 2
    broker.wait(250)
    assert broker.groups.members("g") == 0, "each has a whole session from then on"


def test_who_waits_is_sent_to_the_next_coordinator() -> None:
    broker = Coordinated()
    broker.form("a")
    token = broker.join(new_id="b")
    broker.fail_over()
    assert broker.refused(token) is Refused.NOT_COORDINATOR
    assert broker.heartbeat("a", 1) is None, "the last stored generation goes on"
    assert broker.refused(broker.join("b")) is Refused.UNKNOWN_MEMBER


def test_the_next_coordinator_knows_who_may_commit_before_anything_else_happens() -> None:
    broker = Coordinated()
    generation = broker.form("a")
    broker.groups.end()  # As it is loaded.
    refusal = broker.groups.refusal_of_commit
    assert refusal("g", Committer("a", generation=generation), staged=True) is None
    assert refusal("g", Committer("x", generation=generation)) is Refused.UNKNOWN_MEMBER
