"""What the assignors promise, for drawn members, topics and earlier assignments."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.coordinator.groups.assignors import (
    Assignment,
    SubscribedTopic,
    Subscriber,
    assign_range,
    assign_uniform,
)
from millrace.core.ids import TopicId, TopicPartition

TOPICS = [TopicId(bytes([number]) * 16) for number in range(3)]
FIRST, SECOND, _ = TOPICS
ZONES = ("a", "b", "c")


@st.composite
def topics_drawn(draw: st.DrawFn) -> dict[TopicId, SubscribedTopic]:
    drawn = {}
    for topic_id in draw(st.lists(st.sampled_from(TOPICS), unique=True)):
        count = draw(st.integers(1, 7))
        near = st.frozensets(st.sampled_from(ZONES), max_size=2)
        drawn[topic_id] = SubscribedTopic(count, draw(st.lists(near, max_size=count)))
    return drawn


def members_drawn(
    topics: st.SearchStrategy[frozenset[TopicId]],
) -> st.SearchStrategy[dict[str, Subscriber]]:
    member = st.builds(Subscriber, topics, st.sampled_from(("", *ZONES)))
    return st.dictionaries(st.sampled_from("abcdefgh"), member, max_size=8)


ANY_SUBSCRIPTIONS = members_drawn(st.frozensets(st.sampled_from(TOPICS)))
SAME_SUBSCRIPTIONS = st.frozensets(st.sampled_from(TOPICS), min_size=1).flatmap(
    lambda topics: members_drawn(st.just(topics))
)


def check(
    members: dict[str, Subscriber], topics: dict[TopicId, SubscribedTopic], found: Assignment
) -> None:
    """Each partition that somebody subscribed to has one owner, who did; no other has any."""
    assert found.keys() == members.keys()
    owned = [partition for some in found.values() for partition in some]
    expected = {
        TopicPartition(topic_id, partition)
        for topic_id, topic in topics.items()
        if any(topic_id in member.topics for member in members.values())
        for partition in range(topic.partitions)
    }
    assert sorted(owned) == sorted(expected)
    for member, some in found.items():
        assert {partition.topic_id for partition in some} <= members[member].topics


@given(ANY_SUBSCRIPTIONS, topics_drawn())
def test_range_gives_neighbours_and_treats_topics_alike(
    members: dict[str, Subscriber], topics: dict[TopicId, SubscribedTopic]
) -> None:
    found = assign_range(members, topics, {})
    check(members, topics, found)
    for some in found.values():
        for topic_id in topics:
            numbers = sorted(
                partition.partition for partition in some if partition.topic_id == topic_id
            )
            if numbers:
                assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_range_gives_the_same_partitions_of_topics_that_are_joined() -> None:
    members = {name: Subscriber(frozenset((FIRST, SECOND))) for name in "abc"}
    found = assign_range(members, dict.fromkeys((FIRST, SECOND), SubscribedTopic(8)), {})
    for some in found.values():
        first, second = (
            {partition.partition for partition in some if partition.topic_id == topic}
            for topic in (FIRST, SECOND)
        )
        assert first == second


def test_range_keeps_the_place_of_a_static_member() -> None:
    topics = {FIRST: SubscribedTopic(4)}
    before = assign_range(
        {"x": Subscriber(frozenset((FIRST,)), "", "one"), "y": Subscriber(frozenset((FIRST,)))},
        topics,
        {},
    )
    after = assign_range(
        {"z": Subscriber(frozenset((FIRST,)), "", "one"), "y": Subscriber(frozenset((FIRST,)))},
        topics,
        {},
    )
    assert after["z"] == before["x"]


@given(ANY_SUBSCRIPTIONS, topics_drawn(), ANY_SUBSCRIPTIONS, topics_drawn())
def test_uniform_assigns_everything_and_nearly_equally(
    members: dict[str, Subscriber],
    topics: dict[TopicId, SubscribedTopic],
    members_before: dict[str, Subscriber],
    topics_before: dict[TopicId, SubscribedTopic],
) -> None:
    before = assign_uniform(members_before, topics_before, {})
    found = assign_uniform(members, topics, before)
    check(members, topics, found)
    for member, some in found.items():
        for partition in some:
            others = (
                len(found[other])
                for other in members
                if partition.topic_id in members[other].topics
            )
            assert len(some) <= min(others) + 1, f"{member} could give {partition} to another"
    assert assign_uniform(members, topics, found) == found, "nothing changed, so nothing moves"


@given(SAME_SUBSCRIPTIONS, topics_drawn(), st.sampled_from("abcdefgh"))
def test_uniform_moves_no_more_than_a_change_of_members_needs(
    members: dict[str, Subscriber], topics: dict[TopicId, SubscribedTopic], other: str
) -> None:
    before = assign_uniform(members, topics, {})
    if other in members and len(members) > 1:
        lost = len(before[other])
        after = assign_uniform({m: s for m, s in members.items() if m != other}, topics, before)
        moved = sum(len(some - before[member]) for member, some in after.items())
        assert moved == lost
    elif other not in members and members:
        joined = members | {other: next(iter(members.values()))}
        after = assign_uniform(joined, topics, before)
        assert sum(len(some - before.get(m, frozenset())) for m, some in after.items()) == len(
            after[other]
        )


def test_uniform_prefers_members_in_a_zone_with_a_replica() -> None:
    topics = {FIRST: SubscribedTopic(6, [frozenset(ZONES[number % 3]) for number in range(6)])}
    members = {zone: Subscriber(frozenset((FIRST,)), zone) for zone in ZONES}
    found = assign_uniform(members, topics, {})
    for zone, some in found.items():
        assert {partition.partition % 3 for partition in some} == {ZONES.index(zone)}


def test_many_members_of_differing_topics_get_their_shares_soon() -> None:
    """The time of the test is the bound: a look at all members for each partition takes minutes."""
    topics = {TopicId(bytes([number]) * 16): SubscribedTopic(1000) for number in range(10)}
    ids = list(topics)
    members = {
        f"m{number}": Subscriber(frozenset(ids[: 1 + number % 10])) for number in range(10_000)
    }
    found = assign_uniform(members, topics, {})
    check(members, topics, found)


def test_a_move_may_make_room_for_another_one() -> None:
    members = {
        "a": Subscriber(frozenset((SECOND,))),
        "b": Subscriber(frozenset((FIRST, SECOND))),
        "c": Subscriber(frozenset((FIRST,))),
    }
    topics = {FIRST: SubscribedTopic(1), SECOND: SubscribedTopic(4)}
    found = assign_uniform(members, topics, {})
    assert {member: len(some) for member, some in found.items()} == {"a": 2, "b": 2, "c": 1}
