"""Membership, request by request; `tests/model/test_groups.py` has what holds for all of them."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.assignors import SubscribedTopic
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.group import (
    JOINING,
    NO_PARTITIONS,
    Current,
    Epochs,
    Group,
    GroupRecord,
    LeftTopic,
    Member,
    MemberRecord,
    MembershipRecord,
    Partitions,
    concerned,
)
from millrace.core.coordinator.groups.membership import Heartbeat, MembershipMachine
from millrace.core.coordinator.groups.patterns import matching
from millrace.core.coordinator.groups.records import decode, encode
from millrace.core.coordinator.groups.subscriptions import FoundTopic
from millrace.core.errors import (
    FencedMemberEpochError,
    GroupFullError,
    InvalidGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from millrace.core.ids import TopicId, TopicPartition, WallMs

TOPIC_ID, OTHER_ID = TopicId(b"t" * 16), TopicId(b"o" * 16)
NOW = WallMs(1_000)
ORDERS = Member(topics=("orders",))


class Topics:
    """The topics that exist, by name."""

    def __init__(self, partitions: int = 4) -> None:
        self.found = {"orders": FoundTopic(TOPIC_ID, SubscribedTopic(partitions))}

    @property
    def version(self) -> object:
        return object()

    def find(self, name: str) -> FoundTopic | None:
        return self.found.get(name)

    def matching(self, pattern: str) -> list[str]:
        return matching(pattern, sorted(self.found))


class Coordinator:
    """The machine, whose records are stored at once."""

    def __init__(self, config: GroupsConfig | None = None, partitions: int = 4) -> None:
        self.machine = MembershipMachine(config or GroupsConfig())
        self.topics = Topics(partitions)
        self.records: list[MembershipRecord] = []
        self.now = NOW

    def _store(self, result: Result[MembershipRecord, Current]) -> Current:
        self.records = result.records
        for record in result.records:
            self.machine.replay(record)
        return result.response

    def beat(self, member_id: str, confirmed: int = JOINING, said: Member | None = None) -> Current:
        heartbeat = Heartbeat(member_id, confirmed, said)
        return self._store(self.machine.handle_heartbeat("g", heartbeat, self.topics, self.now))

    def join(self, member_id: str, said: Member = ORDERS) -> Current:
        return self.beat(member_id, JOINING, said)

    def leave(self, *member_ids: str, for_now: bool = False) -> list[str]:
        result = self.machine.handle_leave("g", member_ids, self.topics, self.now, for_now=for_now)
        for record in result.records:
            self.machine.replay(record)
        return result.response

    def assign(self) -> int:
        """Compute the target if it has waited; return the number of records."""
        result = self.machine.handle_assign("g", self.topics, self.now)
        for record in result.records:
            self.machine.replay(record)
        return len(result.records)


def own(current: Current) -> tuple[int, Partitions, Partitions]:
    return current.epoch, current.assigned, current.revoking


def expected(
    epoch: int, assigned: Partitions, revoking: Partitions = NO_PARTITIONS
) -> tuple[int, Partitions, Partitions]:
    return epoch, assigned, revoking


def places(*partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(TOPIC_ID, partition) for partition in partitions)


def test_the_first_member_owns_everything_at_once() -> None:
    group = Coordinator()
    assert own(group.join("a")) == expected(1, places(0, 1, 2, 3))


def test_a_heartbeat_that_changes_nothing_stores_nothing() -> None:
    group = Coordinator()
    group.join("a")
    assert own(group.beat("a", 1)) == expected(1, places(0, 1, 2, 3))
    assert group.records == []


def test_a_join_that_is_repeated_is_one_join() -> None:
    group = Coordinator()
    assert group.join("a") == group.join("a")
    assert group.records == []
    assert len(group.machine.groups["g"].members) == 1


def test_a_partition_changes_owners_after_the_old_one_has_confirmed() -> None:
    group = Coordinator()
    group.join("a")
    assert own(group.join("b")) == expected(1, places())
    told = group.beat("a", 1)
    assert (told.epoch, len(told.assigned), len(told.revoking)) == (2, 2, 2)
    assert own(group.beat("b", 1)) == expected(1, places()), "nothing is free yet"
    assert group.beat("a", 1) == told, "the answer may have been lost"
    assert own(group.beat("a", 2)) == expected(2, told.assigned)
    assert own(group.beat("b", 1)) == expected(2, told.revoking)


def test_what_a_member_that_is_gone_had_is_free() -> None:
    group = Coordinator()
    group.join("a")
    group.join("b")
    assert group.leave("a", "nobody") == ["a"]
    assert own(group.beat("b", 1)) == expected(2, places(0, 1, 2, 3))
    with pytest.raises(UnknownMemberIdError, match="join again"):
        group.beat("a", 1)


def test_new_partitions_and_new_topics_are_assigned() -> None:
    group = Coordinator(partitions=2)
    group.join("a", Member(topics=("later", "orders")))
    group.topics.found["orders"] = FoundTopic(TOPIC_ID, SubscribedTopic(3))
    assert own(group.beat("a", 1)) == expected(2, places(0, 1, 2))
    later = TopicId(b"l" * 16)
    group.topics.found["later"] = FoundTopic(later, SubscribedTopic(1))
    assert own(group.beat("a", 2)) == expected(3, places(0, 1, 2) | {TopicPartition(later, 0)})
    del group.topics.found["orders"]
    assert own(group.beat("a", 3)) == expected(
        4, frozenset((TopicPartition(later, 0),)), places(0, 1, 2)
    )


def test_a_member_beyond_the_number_of_partitions_waits_for_one() -> None:
    group = Coordinator(partitions=1)
    group.join("a")
    assert own(group.join("b")) == expected(1, places())
    group.leave("a")
    assert own(group.beat("b", 1)) == expected(2, places(0))


def test_a_change_of_the_subscription_changes_the_assignment() -> None:
    group = Coordinator()
    group.join("a")
    assert own(group.beat("a", 1, Member(topics=()))) == expected(2, places(), places(0, 1, 2, 3))
    assert own(group.beat("a", 2, ORDERS)) == expected(3, places(0, 1, 2, 3))


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    group = Coordinator()
    group.join("b", Member(topics=("orders",), assignor="range"))
    group.join("a", Member(topics=("orders",), assignor="range"))
    target = group.machine.groups["g"].target
    assert target == {"a": places(0, 1), "b": places(2, 3)}


def test_a_group_without_members_keeps_no_state_of_the_metadata_alive() -> None:
    class Version:
        """A state of the metadata."""

    class VersionedTopics(Topics):
        def __init__(self) -> None:
            super().__init__()
            self.current = Version()

        @property
        def version(self) -> object:
            return self.current

    group = Coordinator()
    group.topics = topics = VersionedTopics()
    group.join("a")
    group.beat("a", 1)
    seen = weakref.ref(topics.current)
    group.leave("a")
    topics.current = Version()
    gc.collect()
    assert "g" in group.machine.groups
    assert seen() is None


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
    with pytest.raises(UnknownMemberIdError, match="only members may commit"):
        check("g", "", -1, places(0))
    with pytest.raises(UnknownMemberIdError, match="no member"):
        check("g", "b", 1, places(0))
    group.join("b")
    told = group.beat("a", 1)
    check("g", "a", 2, told.assigned)
    with pytest.raises(StaleMemberEpochError, match="not assigned"):
        check("g", "a", 2, told.revoking)
    group.beat("a", 2)
    with pytest.raises(StaleMemberEpochError, match="not assigned"):
        check("g", "a", 1, told.revoking)


def test_a_member_commits_what_it_reads_while_it_is_told_to_give_it_up() -> None:
    group = Coordinator()
    check = group.machine.check_commit
    group.join("a")
    with pytest.raises(StaleMemberEpochError, match="not assigned"):
        check("g", "a", JOINING, places(0))
    group.join("b")
    told = group.beat("a", 1)
    check("g", "a", 1, told.assigned | told.revoking)
    group.beat("a", 2)
    gained = group.beat("b", group.machine.groups["g"].current["b"].epoch).assigned
    assert gained == told.revoking
    epoch = group.machine.groups["g"].current["b"].epoch
    check("g", "b", epoch, gained)
    with pytest.raises(StaleMemberEpochError, match="not assigned"):
        check("g", "b", epoch - 1, gained)  # It did not own them yet.


def test_an_old_commit_does_not_undo_that_of_another_member_after_the_partition_came_back() -> None:
    group = Coordinator(partitions=2)
    check = group.machine.check_commit
    group.join("a")
    group.join("b")
    lost = group.beat("a", 1).revoking
    group.beat("a", 2)
    group.beat("b", group.machine.groups["g"].current["b"].epoch)
    group.leave("b")
    assert group.beat("a", 2).gained == lost
    check("g", "a", 3, lost)
    for epoch in (2, 1):
        with pytest.raises(StaleMemberEpochError):
            check("g", "a", epoch, lost)


def test_a_member_that_confirms_what_it_never_got_is_fenced() -> None:
    group = Coordinator()
    group.join("a")
    with pytest.raises(FencedMemberEpochError, match="join again"):
        group.beat("a", 2)
    with pytest.raises(FencedMemberEpochError):
        group.beat("a", -1)


def test_a_static_member_that_returns_has_what_it_had() -> None:
    group = Coordinator()
    one, two = (
        Member(instance_id="one", topics=("orders",)),
        Member(instance_id="two", topics=("orders",)),
    )
    group.join("a", one)
    group.join("b", two)
    group.beat("a", 1)
    kept = group.beat("a", 2)
    given = group.beat("b", group.machine.groups["g"].current["b"].epoch)
    group.leave("a", for_now=True)
    epoch = group.machine.groups["g"].epochs.epoch
    assert own(group.beat("b", given.epoch)) == own(given), "nothing moves meanwhile"
    with pytest.raises(UnreleasedInstanceIdError):
        group.join("c", two)
    assert own(group.join("again", one)) == expected(1, kept.assigned)
    assert own(group.beat("again", 1)) == expected(1, kept.assigned)
    assert group.machine.groups["g"].epochs.epoch == epoch
    with pytest.raises(UnknownMemberIdError):
        group.machine.check_commit("g", "a", 2, kept.assigned)
    group.machine.check_commit("g", "again", 1, kept.assigned)


def test_a_static_member_that_returns_with_other_topics_gets_those() -> None:
    group = Coordinator()
    group.join("a", Member(instance_id="one", topics=("orders",)))
    group.leave("a", for_now=True)
    assert group.join("again", Member(instance_id="one", topics=())).assigned == places(0, 1, 2, 3)
    assert own(group.beat("again", 1)) == expected(2, places(), places(0, 1, 2, 3))


def test_a_dynamic_member_does_not_leave_for_now() -> None:
    group = Coordinator()
    group.join("a")
    group.join("b")
    group.leave("a", for_now=True)
    assert list(group.machine.groups["g"].members) == ["b"]


def test_a_pattern_subscribes_to_what_it_matches_also_later() -> None:
    group = Coordinator(partitions=1)
    assert own(group.join("a", Member(pattern="ord.*|pay"))) == expected(1, places(0))
    later = TopicId(b"u" * 16)
    group.topics.found["payments"] = FoundTopic(TopicId(b"v" * 16), SubscribedTopic(1))
    assert own(group.beat("a", 1)) == expected(1, places(0)), "a whole name must match"
    group.topics.found["orders-eu"] = FoundTopic(later, SubscribedTopic(1))
    assert group.beat("a", 1).gained == {TopicPartition(later, 0)}


def first_later(group: Coordinator) -> dict[TopicId, int]:
    return dict(group.machine.groups["g"].epochs.later)


def found(topic_id: TopicId, partitions: int) -> FoundTopic:
    return FoundTopic(topic_id, SubscribedTopic(partitions))


def test_partitions_by_growth_are_later_ones_also_after_further_growth() -> None:
    group = Coordinator(partitions=2)
    group.join("a")
    assert first_later(group) == {}
    for partitions in (3, 5):
        group.topics.found["orders"] = found(TOPIC_ID, partitions)
        group.beat("a", 1)
        assert first_later(group) == {TOPIC_ID: 2}


def test_what_came_while_a_group_had_no_members_is_later() -> None:
    group = Coordinator(partitions=2)
    group.join("a", Member(topics=("orders", "payments"), pattern="metrics/.*"))
    group.leave("a")
    ids = {name: TopicId(name[:1].encode() * 16) for name in ("payments", "metrics/cpu", "users")}
    group.topics.found["orders"] = found(TOPIC_ID, 3)
    for name, topic_id in ids.items():
        group.topics.found[name] = found(topic_id, 1)
    group.join("b", Member(topics=("orders", "payments", "users"), pattern="metrics/.*"))
    assert first_later(group) == {TOPIC_ID: 2, ids["payments"]: 0, ids["metrics/cpu"]: 0}


def test_a_topic_that_was_made_again_is_later_as_a_whole_though_its_absence_was_not_seen() -> None:
    group = Coordinator(partitions=2)
    group.join("a")
    again = TopicId(b"u" * 16)
    group.topics.found["orders"] = found(again, 2)
    group.beat("a", 1)
    assert first_later(group) == {again: 0}


def test_a_group_begins_with_all_of_a_topic_that_it_subscribes_to_now() -> None:
    group = Coordinator()
    group.join("a", Member(topics=("other",)))
    group.beat("a", JOINING, ORDERS)
    assert first_later(group) == {}


def test_with_very_many_names_any_new_topic_is_later() -> None:
    group = Coordinator()
    group.topics.found.clear()
    names = tuple(f"{'x' * 200}{number}" for number in range(400))
    group.join("a", Member(topics=(*names, "orders")))
    assert not group.machine.groups["g"].epochs.names
    group.topics.found["orders"] = found(TOPIC_ID, 1)
    group.beat("a", 1)
    assert first_later(group) == {TOPIC_ID: 0}


CLICKS_ID = TopicId(b"c" * 16)
CLICKS = Member(topics=("clicks",), pattern="metrics/.*")


def beside_clicks() -> Coordinator:
    """Return a group that reads `orders`, and by another member the 3 partitions of `clicks`."""
    group = Coordinator()
    group.topics.found["clicks"] = found(CLICKS_ID, 3)
    group.join("a")
    group.join("b", CLICKS)
    return group


@pytest.mark.parametrize("are_all_away", [False, True])
def test_what_came_to_a_topic_while_its_only_reader_was_away_is_later(are_all_away: bool) -> None:
    group = beside_clicks()
    group.leave("b")
    if are_all_away:
        group.leave("a")
        group.join("a")
    group.topics.found["clicks"] = found(CLICKS_ID, 4)
    group.topics.found["metrics/cpu"] = found(OTHER_ID, 1)
    group.beat("a", 1)
    assert first_later(group) == {}
    group.join("b", CLICKS)
    assert first_later(group) == {CLICKS_ID: 3, OTHER_ID: 0}


def test_a_later_partition_stays_one_when_the_only_reader_of_its_topic_dies() -> None:
    group = beside_clicks()
    group.topics.found["clicks"] = found(CLICKS_ID, 4)
    group.beat("a", 1)
    group.leave("b")
    group.join("b", CLICKS)
    assert first_later(group) == {CLICKS_ID: 3}
    assert not group.machine.groups["g"].epochs.left


@pytest.mark.parametrize("are_all_away", [False, True])
def test_a_group_begins_again_with_all_of_a_topic_that_it_has_forgotten(are_all_away: bool) -> None:
    group = beside_clicks()
    group.leave(*("ab" if are_all_away else "b"))
    group.topics.found["clicks"] = found(CLICKS_ID, 4)
    for record in group.machine.handle_forget_topics("g", [CLICKS_ID], NOW).records:
        group.machine.replay(record)
    group.join("b", CLICKS)
    assert first_later(group) == {}
    group.topics.found["clicks"] = found(CLICKS_ID, 5)
    group.beat("b", 1)
    assert first_later(group) == {CLICKS_ID: 4}


def expired(group: Coordinator, at: int, *there: TopicId, begun: dict[TopicId, int]) -> Epochs:
    result = group.machine.handle_expire("g", WallMs(at), there.__contains__, begun, 100)
    for record in result.records:
        group.machine.replay(record)
    return group.machine.groups["g"].epochs


def test_what_a_group_has_left_is_kept_for_a_while_and_as_long_as_it_has_positions() -> None:
    group = beside_clicks()
    group.leave("b")
    assert expired(group, NOW + 100, CLICKS_ID, begun={}).left == ((CLICKS_ID, LeftTopic(3, NOW)),)
    after = expired(group, NOW + 101, CLICKS_ID, begun={CLICKS_ID: 3})
    assert (len(after.left), after.left_names, after.left_patterns) == (1, (), ())
    assert expired(group, NOW + 101, CLICKS_ID, begun={}).left == ()


def test_of_a_deleted_topic_and_of_topics_that_are_read_nothing_is_kept() -> None:
    group = beside_clicks()
    group.leave("b")
    assert expired(group, NOW, TOPIC_ID, begun={TOPIC_ID: 4, CLICKS_ID: 3}).left == ()


def test_with_very_many_names_that_were_left_any_new_topic_is_later() -> None:
    group = Coordinator()
    group.topics.found.clear()
    group.join("a")
    for batch in range(5):
        names = tuple(f"{'x' * 200}{batch}-{number}" for number in range(100))
        group.join("b", Member(topics=names))
        group.leave("b")
    for number in range(20):
        group.join("b", Member(pattern=f"metrics/{number}"))
        group.leave("b")
    epochs = group.machine.groups["g"].epochs
    assert sum(len(name) for name, _ in epochs.left_names) <= 64 << 10
    assert len(epochs.left_patterns) <= 16
    group.topics.found["clicks"] = found(CLICKS_ID, 1)
    group.join("b", Member(topics=("clicks",)))
    assert first_later(group) == {CLICKS_ID: 0}


def test_what_a_group_has_left_is_in_the_log() -> None:
    group = beside_clicks()
    group.leave("b")
    record = GroupRecord("g", group.machine.groups["g"].epochs, NOW)
    assert record.value is not None
    assert record.value.left
    assert record.value.left_names
    assert record.value.left_patterns
    assert decode(*encode(record), NOW) == record


def test_a_group_of_an_earlier_release_goes_on_with_the_partitions_that_it_had() -> None:
    value = b'{"version":1,"epoch":3,"target_epoch":3,"topics":{"%s":2}}' % TOPIC_ID.hex().encode()
    key, _ = encode(GroupRecord("g", None, NOW))
    group = Coordinator(partitions=3)
    group.machine.replay(decode(key, value, NOW))
    group.join("a")
    assert first_later(group) == {TOPIC_ID: 2}


def test_a_topic_that_the_members_of_an_earlier_release_wait_for_is_later_when_it_comes() -> None:
    group = Coordinator()
    group.join("a", Member(topics=("orders",), pattern="metrics/.*"))
    epochs = group.machine.groups["g"].epochs
    group.machine.replay(GroupRecord("g", replace(epochs, names=(), patterns=()), NOW))
    group.beat("a", 1)
    assert group.machine.groups["g"].epochs == epochs
    group.topics.found["metrics/cpu"] = found(OTHER_ID, 1)
    group.beat("a", 1)
    assert first_later(group) == {OTHER_ID: 0}
    found_later = group.machine.groups["g"].epochs.first_later
    assert [found_later(TOPIC_ID), found_later(OTHER_ID)] == [None, 0]


def test_what_is_later_is_in_the_log() -> None:
    group = Coordinator(partitions=2)
    group.join("a", Member(topics=("orders",), pattern="metrics/.*"))
    group.topics.found["orders"] = found(TOPIC_ID, 3)
    group.beat("a", 1)
    (record,) = [record for record in group.records if isinstance(record, GroupRecord)]
    assert decode(*encode(record), NOW) == record


@pytest.mark.parametrize(
    "pattern", ["(", "a{1,1001}", "\\ud", r"(a)\1", "x" * 1001, ")(", r"\Qorders"]
)
def test_what_is_no_pattern_is_refused_also_where_no_topic_is(pattern: str) -> None:
    group = Coordinator()
    group.topics.found.clear()
    with pytest.raises(InvalidGroupError, match="regular expression"):
        group.join("a", Member(pattern=pattern))


def test_a_stored_pattern_that_is_none_matches_nothing_and_holds_up_no_other_member() -> None:
    group = Coordinator()
    group.join("a")
    group.machine.replay(MemberRecord("g", "b", Member(pattern=r"\Qorders"), NOW))
    assert own(group.join("c", Member(pattern="ord.*"))) == expected(1, places())
    assert group.leave("a") == ["a"]
    assert own(group.beat("c", 1)) == expected(2, places(0, 1, 2, 3))


def test_members_with_the_same_subscription_share_one_look_at_what_it_matches() -> None:
    looks = []

    class Matched(list[str]):
        def __iter__(self) -> Iterator[str]:
            looks.append(self)
            return super().__iter__()

    group = Coordinator(partitions=60)
    for number in range(20):
        group.join(f"m{number:02}", Member(pattern="ord.*"))
    group.topics.matching = lambda pattern: Matched(matching(pattern, ["orders"]))  # type: ignore[method-assign]
    group.now = WallMs(100_000)
    group.join("last", Member(pattern="ord.*"))
    assert len(looks) == 1
    target = group.machine.groups["g"].target
    assert sorted(map(len, target.values())) == [2] * 3 + [3] * 18


def test_a_hostile_pattern_takes_no_longer_than_others() -> None:
    """Where an expression is tried by backtracking, this takes years."""
    group = Coordinator()
    group.topics.found["a" * 200] = FoundTopic(TopicId(b"u" * 16), SubscribedTopic(1))
    assert own(group.join("a", Member(pattern="(a*)*b"))) == expected(1, places())


def test_a_group_has_few_different_patterns() -> None:
    group = Coordinator(GroupsConfig(members_max=100))
    for number in range(16):
        group.join(f"m{number}", Member(pattern=f"p{number}"))
    group.join("again", Member(pattern="p0"))
    with pytest.raises(InvalidGroupError, match="16 different"):
        group.join("more", Member(pattern="p16"))


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
    with pytest.raises(InvalidGroupError, match="name of a group"):
        machine.handle_heartbeat(name, Heartbeat("a", JOINING, ORDERS), Topics(), NOW)
    with pytest.raises(InvalidGroupError, match="name of a group"):
        machine.handle_leave(name, ["a"], Topics(), NOW)


def settle(group: Coordinator) -> None:
    """Let all members take their steps until none has another one."""
    for _ in range(6):
        for member_id in list(group.machine.groups["g"].members):
            current = group.machine.groups["g"].current.get(member_id, Current())
            try:
                group.beat(member_id, current.epoch)
            except UnknownMemberIdError:
                group.join(member_id)


def many(count: int) -> Coordinator:
    group = Coordinator(GroupsConfig(members_max=1000), partitions=3 * count)
    for number in range(count):
        group.join(f"m{number}")
    settle(group)
    return group


def assert_shared(group: Coordinator, partitions: int) -> None:
    owned = [
        partition
        for current in group.machine.groups["g"].current.values()
        for partition in current.assigned
    ]
    assert sorted(owned) == sorted(places(*range(partitions)))
    assert group.machine.groups["g"].current.keys() == group.machine.groups["g"].members.keys()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_a_log_that_ends_within_a_departure_does_no_harm(share: float) -> None:
    group = many(12)
    gone = [f"m{number}" for number in range(8)]
    records = group.machine.handle_leave("g", gone, group.topics, NOW).records
    for record in records[: int(share * len(records))]:
        group.machine.replay(record)
    settle(group)
    group.leave(*gone)
    settle(group)
    assert_shared(group, 36)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_a_log_that_ends_within_a_join_does_no_harm(share: float) -> None:
    group = many(12)
    said = Member(topics=("orders",), assignor="range")
    heartbeat = Heartbeat("new", JOINING, said)
    records = group.machine.handle_heartbeat("g", heartbeat, group.topics, NOW).records
    for record in records[: int(share * len(records))]:
        group.machine.replay(record)
    group.beat("new", JOINING, said)
    settle(group)
    assert_shared(group, 36)


def test_what_is_no_topic_is_not_subscribed_to() -> None:
    for topic in ("a b", "x" * 1_000_000, "", "a/b/c"):
        with pytest.raises(InvalidGroupError, match="no topic"):
            Coordinator().join("a", Member(topics=(topic,)))


MANY = 100
INTERVAL_MS = MANY // 10


def large_group(partitions: int = 4) -> Coordinator:
    group = Coordinator(GroupsConfig(members_max=10_000), partitions)
    for number in range(MANY):
        group.join(f"m{number:02}")
        group.now = WallMs(group.now + INTERVAL_MS)
    assert group.machine.target_wait_ms("g", group.now) is None
    return group


def test_the_target_of_a_large_group_is_computed_at_intervals() -> None:
    group = large_group()
    group.join("n0")
    group.now = WallMs(group.now + 4)
    (before,) = {group.epochs for group in group.machine.groups.values()}
    assert own(group.join("n1")) == expected(1, places()), "it is a member at once"
    group.leave("m00")
    after = group.machine.groups["g"].epochs
    assert (after.epoch, after.target_epoch) == (before.epoch + 2, before.target_epoch)
    assert group.machine.target_wait_ms("g", group.now) == INTERVAL_MS - 4
    assert group.assign() == 0, "too early"
    group.now = WallMs(group.now + INTERVAL_MS - 4)
    assert group.machine.target_wait_ms("g", group.now) == 0
    assert group.assign() > 0
    assert group.machine.target_wait_ms("g", group.now) is None
    assert group.assign() == 0
    assert sum(map(len, group.machine.groups["g"].target.values())) == 4


def test_a_heartbeat_computes_a_target_that_has_waited_long_enough() -> None:
    group = large_group()
    group.join("n0")
    group.leave("m00")
    group.now = WallMs(group.now + INTERVAL_MS)
    group.beat("m01", 1)
    assert group.machine.target_wait_ms("g", group.now) is None


def test_a_clock_that_went_back_delays_no_target() -> None:
    group = large_group()
    group.now = WallMs(group.now - 10_000_000)
    group.leave("m00")
    assert group.machine.target_wait_ms("g", group.now) is None


def test_a_change_concerns_who_gets_another_target_and_who_waits_for_what_is_free() -> None:
    group = Coordinator()
    group.join("a")

    def concerns(member_id: str, confirmed: int, said: Member | None = None) -> set[str]:
        before = group.machine.groups["g"].draft()
        group.beat(member_id, confirmed, said)
        return concerned(before, group.records)

    assert concerns("b", JOINING, ORDERS) == {"a", "b"}
    assert concerns("b", 1) == set()
    assert concerns("a", 1) == {"a"}, "it has not given up anything yet"
    assert concerns("a", 2) == {"a", "b"}
    assert concerns("c", JOINING, Member()) == {"c"}


def test_who_is_gone_is_concerned_and_who_waits_for_what_it_had() -> None:
    group = Coordinator()
    group.join("a")
    group.join("b")
    before = group.machine.groups["g"].draft()
    records = group.machine.handle_leave("g", ["a"], group.topics, NOW).records
    assert concerned(before, records) == {"a", "b"}
    assert concerned(Group("another"), records) == set()


def test_groups_and_subscriptions_of_a_partition_are_bounded() -> None:
    config = GroupsConfig(partition_groups_max=1, partition_subscriptions_max=3)
    group = Coordinator(config)
    group.join("a", Member(topics=("one", "two")))
    with pytest.raises(GroupFullError, match="partition_groups_max"):
        group.machine.handle_heartbeat("other", Heartbeat("a", JOINING, ORDERS), group.topics, NOW)
    with pytest.raises(GroupFullError, match="partition_subscriptions_max"):
        group.join("b", Member(topics=("one", "two")))
    group.join("b", Member(topics=("one",)))
    with pytest.raises(GroupFullError, match="partition_subscriptions_max"):
        group.beat("b", 1, Member(topics=("one", "two")))
    group.beat("a", 1, Member(topics=("two",)))
    group.beat("b", 1, Member(topics=("one", "two")))
    group.leave("a", "b")
    group.join("c", Member(topics=("one", "three", "two")))
