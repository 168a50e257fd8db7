"""Membership, request by request; `tests/model/test_groups.py` has what holds for all of them."""

import pytest

from millrace.core.coordinators import Result
from millrace.core.errors import (
    FencedMemberEpochError,
    GroupFullError,
    InvalidGroupError,
    InvalidPositionError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from millrace.core.groups.assignors import SubscribedTopic
from millrace.core.groups.group import JOINING, Current, Member, MembershipRecord
from millrace.core.groups.membership import (
    FoundTopic,
    GroupsConfig,
    Heartbeat,
    MembershipMachine,
)
from millrace.core.ids import TopicId, TopicPartition, WallMs

TOPIC_ID = TopicId(b"t" * 16)
NOW = WallMs(1_000)
ORDERS = Member(topics=("orders",))


class Topics:
    """The topics that exist, by name."""

    def __init__(self, partitions: int = 4) -> None:
        self.found = {"orders": FoundTopic(TOPIC_ID, SubscribedTopic(partitions))}

    def find(self, name: str) -> FoundTopic | None:
        return self.found.get(name)


class Coordinator:
    """The machine, whose records are stored at once."""

    def __init__(self, config: GroupsConfig | None = None, partitions: int = 4) -> None:
        self.machine = MembershipMachine(config or GroupsConfig())
        self.topics = Topics(partitions)
        self.records: list[MembershipRecord] = []

    def _store(self, result: Result[MembershipRecord, Current]) -> Current:
        self.records = result.records
        for record in result.records:
            self.machine.replay(record)
        return result.response

    def beat(self, member_id: str, confirmed: int = JOINING, said: Member | None = None) -> Current:
        heartbeat = Heartbeat(member_id, confirmed, said)
        return self._store(self.machine.handle_heartbeat("g", heartbeat, self.topics, NOW))

    def join(self, member_id: str, said: Member = ORDERS) -> Current:
        return self.beat(member_id, JOINING, said)

    def leave(self, *member_ids: str) -> list[str]:
        result = self.machine.handle_leave("g", member_ids, self.topics, NOW)
        for record in result.records:
            self.machine.replay(record)
        return result.response


def places(*partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(TOPIC_ID, each) for each in partitions)


def test_the_first_member_owns_everything_at_once() -> None:
    group = Coordinator()
    assert group.join("a") == Current(1, places(0, 1, 2, 3))


def test_a_heartbeat_that_changes_nothing_stores_nothing() -> None:
    group = Coordinator()
    group.join("a")
    assert group.beat("a", 1) == Current(1, places(0, 1, 2, 3))
    assert group.records == []


def test_a_join_that_is_repeated_is_one_join() -> None:
    group = Coordinator()
    assert group.join("a") == group.join("a")
    assert group.records == []
    assert len(group.machine.groups["g"].members) == 1


def test_a_partition_changes_owners_after_the_old_one_has_confirmed() -> None:
    group = Coordinator()
    group.join("a")
    assert group.join("b") == Current(1, places())
    told = group.beat("a", 1)
    assert (told.epoch, len(told.assigned), len(told.revoking)) == (2, 2, 2)
    assert group.beat("b", 1) == Current(1, places()), "nothing is free yet"
    assert group.beat("a", 1) == told, "the answer may have been lost"
    assert group.beat("a", 2) == Current(2, told.assigned)
    assert group.beat("b", 1) == Current(2, told.revoking)


def test_what_a_member_that_is_gone_had_is_free() -> None:
    group = Coordinator()
    group.join("a")
    group.join("b")
    assert group.leave("a", "nobody") == ["a"]
    assert group.beat("b", 1) == Current(2, places(0, 1, 2, 3))
    with pytest.raises(UnknownMemberIdError, match="join again"):
        group.beat("a", 1)


def test_new_partitions_and_new_topics_are_assigned() -> None:
    group = Coordinator(partitions=2)
    group.join("a", Member(topics=("later", "orders")))
    group.topics.found["orders"] = FoundTopic(TOPIC_ID, SubscribedTopic(3))
    assert group.beat("a", 1) == Current(2, places(0, 1, 2))
    later = TopicId(b"l" * 16)
    group.topics.found["later"] = FoundTopic(later, SubscribedTopic(1))
    assert group.beat("a", 2) == Current(3, places(0, 1, 2) | {TopicPartition(later, 0)})
    del group.topics.found["orders"]
    assert group.beat("a", 3) == Current(4, frozenset((TopicPartition(later, 0),)), places(0, 1, 2))


def test_a_member_beyond_the_number_of_partitions_waits_for_one() -> None:
    group = Coordinator(partitions=1)
    group.join("a")
    assert group.join("b") == Current(1, places())
    group.leave("a")
    assert group.beat("b", 1) == Current(2, places(0))


def test_a_change_of_the_subscription_changes_the_assignment() -> None:
    group = Coordinator()
    group.join("a")
    assert group.beat("a", 1, Member(topics=())) == Current(2, places(), places(0, 1, 2, 3))
    assert group.beat("a", 2, ORDERS) == Current(3, places(0, 1, 2, 3))


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    group = Coordinator()
    group.join("b", Member(topics=("orders",), assignor="range"))
    group.join("a", Member(topics=("orders",), assignor="range"))
    target = group.machine.groups["g"].target
    assert target == {"a": places(0, 1), "b": places(2, 3)}


def test_a_static_member_is_one_process() -> None:
    group = Coordinator()
    group.join("a", Member(topics=("orders",), instance_id="one"))
    with pytest.raises(UnreleasedInstanceIdError, match="'a'"):
        group.join("b", Member(topics=("orders",), instance_id="one"))
    group.leave("a")
    assert group.join("b", Member(topics=("orders",), instance_id="one")).assigned


def test_commits_are_the_owners_alone() -> None:
    group = Coordinator()
    check = group.machine.check_commit
    check("g", "", -1, places(0))
    group.join("a")
    check("g", "a", 1, places(0, 3))
    with pytest.raises(UnknownMemberIdError, match="only these may commit"):
        check("g", "", -1, places(0))
    with pytest.raises(UnknownMemberIdError, match="no member"):
        check("g", "b", 1, places(0))
    group.join("b")
    told = group.beat("a", 1)
    with pytest.raises(StaleMemberEpochError, match="the latest is 2"):
        check("g", "a", 1, told.assigned)
    check("g", "a", 2, told.assigned | told.revoking)
    group.beat("a", 2)
    with pytest.raises(StaleMemberEpochError, match="not assigned"):
        check("g", "a", 2, told.revoking)


def test_a_member_that_confirms_what_it_never_got_is_fenced() -> None:
    group = Coordinator()
    group.join("a")
    with pytest.raises(FencedMemberEpochError, match="join again"):
        group.beat("a", 2)
    with pytest.raises(FencedMemberEpochError):
        group.beat("a", -1)


def test_bounds() -> None:
    group = Coordinator(GroupsConfig(members_max=1))
    group.join("a")
    with pytest.raises(GroupFullError, match="members_max"):
        group.join("b")
    group = Coordinator(GroupsConfig(partition_members_max=1))
    group.join("a")
    with pytest.raises(GroupFullError, match="partition_members_max"):
        group.join("b")


@pytest.mark.parametrize(
    ("member_id", "said", "match"),
    [
        ("", ORDERS, "without a member id"),
        ("a" * 256, ORDERS, "printable"),
        ("a\n", ORDERS, "printable"),
        ("a", Member(client_id="c\0"), "client id"),
        ("a", Member(topics=tuple(map(str, range(1001)))), "1001 topics"),
        ("a", Member(assignor="best"), "uniform, range"),
    ],
)
def test_what_breaks_a_bound_is_refused(member_id: str, said: Member, match: str) -> None:
    group = Coordinator()
    with pytest.raises(InvalidGroupError, match=match):
        group.beat(member_id, JOINING, said)
    assert not group.machine.groups


@pytest.mark.parametrize("name", ["", " ", "g\n", "g" * 256])
def test_a_wrong_name_is_refused(name: str) -> None:
    machine = MembershipMachine(GroupsConfig())
    with pytest.raises(InvalidPositionError):
        machine.handle_heartbeat(name, Heartbeat("a", JOINING, ORDERS), Topics(), NOW)
