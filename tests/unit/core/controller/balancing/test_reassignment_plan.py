"""Plans: nothing moves without need, and in the end each broker and zone has its share."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.controller.balancing.placement import Candidate
from millrace.core.controller.balancing.reassignment_plan import planned
from millrace.core.errors import InvalidReplicaAssignmentError
from millrace.core.ids import BrokerId
from millrace.core.media import Media, TopicMedia

Replicas = tuple[BrokerId, ...]


def brokers(*zones: str) -> list[Candidate]:
    return [Candidate(BrokerId(number), zone) for number, zone in enumerate(zones)]


def on_media(*media: str) -> list[Candidate]:
    """Brokers with these, such as `ssd`, `ssd hdd` or nothing, all in one zone."""
    return [
        Candidate(BrokerId(number), "", tuple(map(Media, kind.split())))
        for number, kind in enumerate(media)
    ]


def ids(*numbers: int) -> Replicas:
    return tuple(map(BrokerId, numbers))


def loads(partitions: dict[int, Replicas]) -> Counter[BrokerId]:
    return Counter(replica for replicas in partitions.values() for replica in replicas)


def test_what_is_even_stays() -> None:
    even = {0: ids(0, 1), 1: ids(1, 2), 2: ids(2, 0)}
    assert planned(even, brokers("", "", "")) == {}


def test_a_broker_that_is_left_out_loses_its_replicas_and_no_other_moves() -> None:
    before = {0: ids(0, 1), 1: ids(1, 2), 2: ids(2, 0)}
    plan = planned(before, brokers("", "", "")[:2])
    assert set(plan) == {1, 2}
    assert set(plan[1]) == set(plan[2]) == {0, 1}


def test_at_the_most_so_many_replicas_are_no_more_for_those_that_have_fewer() -> None:
    before = {0: ids(0), 1: ids(0, 1, 2), 2: ids(1, 2)}
    after = before | planned(before, brokers("", "", "")[:2], replication_factor_max=2)
    assert [len(replicas) for replicas in after.values()] == [1, 2, 2]


def test_partitions_that_may_shrink_have_as_many_replicas_as_there_are_brokers() -> None:
    before = {"shrinks": ids(0, 1, 2), "fits": ids(1), "fills": ids(2, 1)}
    after = before | planned(before, brokers("", "", "")[:2], may_shrink=[*before])
    assert {key: len(replicas) for key, replicas in after.items()} == {
        "shrinks": 2,
        "fits": 1,
        "fills": 2,
    }
    assert all(2 not in replicas for replicas in after.values())
    with pytest.raises(InvalidReplicaAssignmentError, match="1 replica needs"):
        planned(before, [], may_shrink=[*before])


def test_where_fewer_replicas_stay_those_of_a_broker_that_is_away_go_first() -> None:
    plan = planned({0: ids(2, 0, 1)}, brokers("", "", ""), replication_factor=2, nothing_new=ids(2))
    assert set(plan[0]) == {0, 1}


def test_a_new_broker_gets_its_share() -> None:
    before = {number: ids(0, 1) for number in range(6)}
    plan = planned(before, brokers("", "", ""))
    after = before | plan
    assert loads(after) == {0: 4, 1: 4, 2: 4}
    assert Counter(replicas[0] for replicas in after.values()) == {0: 2, 1: 2, 2: 2}


def test_replicas_spread_over_zones_first() -> None:
    before = {0: ids(0, 1), 1: ids(1, 0)}
    after = before | planned(before, brokers("a", "a", "b"))
    assert all(2 in replicas for replicas in after.values())


def test_evening_out_puts_no_two_replicas_into_one_zone() -> None:
    # Broker 2 is alone in its zone: it keeps one replica of each, more than the others.
    before = {number: ids(number % 2, 2) for number in range(4)}
    after = before | planned(before, brokers("a", "a", "b"))
    assert [set(each) for each in after.values()] == [set(each) for each in before.values()]


def test_the_number_of_replicas_can_be_changed() -> None:
    before = {0: ids(0, 1), 1: ids(1)}
    after = planned(before, brokers("", "", ""), replication_factor=3)
    assert {key: set(each) for key, each in after.items()} == {0: {0, 1, 2}, 1: {0, 1, 2}}
    assert planned({0: ids(0, 1)}, brokers("", ""), replication_factor=1)[0][0] in (0, 1)


def test_a_broker_that_gets_nothing_new_keeps_what_it_has() -> None:
    even = {0: ids(0, 1), 1: ids(1, 2), 2: ids(2, 0)}
    assert planned(even, brokers("", "", ""), nothing_new=ids(2)) == {}
    before = {0: ids(0, 1), 1: ids(2, 0)}
    after = planned(before, brokers("", "", "", ""), replication_factor=3, nothing_new=ids(2))
    assert set(after[0]) == {0, 1, 3}
    assert {0, 2} < set(after[1])


def test_nothing_goes_to_a_broker_that_gets_nothing_new_for_its_zone_or_its_share() -> None:
    before = {number: ids(number % 2, 1 - number % 2) for number in range(6)}
    assert planned(before, brokers("a", "a", "b"), nothing_new=ids(2)) == {}


def test_brokers_that_get_nothing_new_are_none_to_choose_from() -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match="2 brokers are there to choose from"):
        planned({0: ids(0, 1)}, brokers("", "", ""), replication_factor=3, nothing_new=ids(2))


def test_replicas_of_other_partitions_count() -> None:
    plan = planned({0: ids(0)}, brokers("", ""), other_replicas=Counter({BrokerId(0): 5}))
    assert plan == {0: ids(1)}


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match="name more brokers"):
        planned({0: ids(0, 1)}, brokers("", "")[:1])


def test_replicas_on_brokers_without_the_media_move_and_the_others_stay() -> None:
    plan = planned({0: ids(0, 1)}, on_media("ssd", "ssd hdd", "hdd"), media={0: TopicMedia.HDD})
    assert plan.keys() == {0}
    assert set(plan[0]) == {1, 2}


def test_nothing_goes_to_a_broker_without_the_media_for_its_zone_or_its_share() -> None:
    before = {number: ids(number % 2) for number in range(6)}
    brokers = on_media("ssd", "ssd", "hdd", "")
    zoned = [broker._replace(zone=f"z{broker.broker_id // 2}") for broker in brokers]
    media = dict.fromkeys(before, TopicMedia.SSD)
    assert planned(before, brokers, media=media) == planned(before, zoned, media=media) == {}


def test_a_partition_for_which_nothing_is_said_may_lie_on_any_media() -> None:
    before = {number: ids(0) for number in range(4)}
    after = before | planned(before, on_media("ssd", "hdd"), media={0: TopicMedia.SSD})
    assert loads(after) == {0: 2, 1: 2}
    assert after[0] == ids(0)


def test_too_few_brokers_with_the_media_are_refused_with_its_name() -> None:
    message = (
        "2 replicas need as many brokers with a log directory on hdd, and 1 broker is there to"
    )
    with pytest.raises(InvalidReplicaAssignmentError, match=message):
        planned({0: ids(0, 1)}, on_media("ssd", "ssd", "hdd"), media={0: TopicMedia.HDD})


@settings(max_examples=60)
@given(st.data())
def test_every_plan_puts_replicas_where_they_may_lie_and_the_next_one_is_empty(
    data: st.DataObject,
) -> None:
    kinds = ["ssd", "hdd", "ssd hdd"]
    candidates = on_media("ssd hdd", "ssd hdd", *data.draw(st.lists(st.sampled_from(kinds))))
    everyone = [candidate.broker_id for candidate in candidates]
    before = {
        key: tuple(data.draw(st.permutations(everyone))[: data.draw(st.integers(1, 2))])
        for key in range(data.draw(st.integers(1, 12)))
    }
    media = {key: data.draw(st.sampled_from(TopicMedia)) for key in before}
    after = before | planned(before, candidates, media=media)
    for key, replicas in after.items():
        assert len({*replicas}) == len(before[key])
        assert all(media[key].is_among(candidates[replica].media) for replica in replicas)
    assert planned(after, candidates, media=media) == {}


@settings(max_examples=60)
@given(st.data())
def test_every_plan_is_even_is_even_within_one_and_the_next_one_is_empty(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(2, 6))
    factor = data.draw(st.integers(1, count))
    before = {
        key: tuple(data.draw(st.permutations([BrokerId(n) for n in range(count)]))[:factor])
        for key in range(data.draw(st.integers(1, 12)))
    }
    candidates = brokers(*[""] * count)
    after = before | planned(before, candidates)
    assert all(len({*replicas}) == factor for replicas in after.values())
    held = [loads(after)[candidate.broker_id] for candidate in candidates]
    led = Counter(replicas[0] for replicas in after.values())
    assert max(held) - min(held) <= 1
    assert max(led.values()) - min(led[candidate.broker_id] for candidate in candidates) <= 1
    assert planned(after, candidates) == {}
