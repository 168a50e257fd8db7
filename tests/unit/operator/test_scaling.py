"""How many brokers each pool has, and what moves when brokers come or go."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.administered_clusters import FakeBrokers

from millrace.core.ids import BrokerId
from millrace.core.media import Media, TopicMedia
from millrace.operator.plan.scaling import (
    Member,
    Placed,
    PoolSize,
    Scaling,
    pool_sizes,
    scaling,
)
from millrace.operator.reconcile.resources import cluster_of


def member(number: int, **facts: object) -> Member:
    known = Member(
        broker_id=BrokerId(number),
        name=f"c-b-{number}",
        zone="",
        is_fenced=False,
        is_drained=False,
    )
    return replace(known, **facts)  # type: ignore[arg-type]


def placed(
    number: int,
    *replicas: int,
    is_moving: bool = False,
    moves_off: int | None = None,
    media: TopicMedia = TopicMedia.ANY,
    topic: str = "t",
) -> Placed:
    new = tuple(map(BrokerId, replicas))
    return Placed(
        place=(topic, number),
        is_internal=topic.startswith("__"),
        replicas=new,
        holders=new if moves_off is None else (*new, BrokerId(moves_off)),
        is_moving=is_moving,
        media=media,
    )


def pool(wanted: int, there: int) -> PoolSize:
    return PoolSize(name="c-b", wanted=wanted, there=there)


FOUR = [member(number) for number in range(4)]


def test_nothing_is_done_when_all_is_as_it_should_be() -> None:
    partitions = [placed(0, 0, 1, 2), placed(1, 1, 2, 3), placed(2, 3, 0, 1)]
    assert scaling([pool(4, 4)], FOUR, partitions) == Scaling(replicas={"c-b": 4})


def test_more_brokers_are_made_at_once() -> None:
    assert scaling([pool(5, 3)], None).replicas == {"c-b": 5}


def test_no_broker_goes_while_the_brokers_do_not_answer() -> None:
    assert scaling([pool(3, 4)], None).replicas == {"c-b": 4}


def test_a_broker_that_is_to_go_is_drained_and_its_replicas_move_first() -> None:
    step = scaling([pool(3, 4)], FOUR, [placed(0, 0, 1, 2), placed(1, 3, 1, 2)])
    assert step.replicas == {"c-b": 4}
    assert step.drain == (3,)
    assert all(3 not in replicas for replicas in step.moves.values())
    assert ("t", 1) in step.moves
    assert (step.leaving, step.empty) == (("c-b-3",), ())


def test_while_replicas_move_nothing_else_is_begun() -> None:
    step = scaling([pool(3, 4)], FOUR, [placed(1, 0, 1, 2, is_moving=True)])
    assert (step.replicas, step.moves, step.empty) == ({"c-b": 4}, {}, ())


def test_moves_to_a_broker_that_goes_are_taken_back_as_it_may_be_gone_already() -> None:
    gone = [*FOUR[:3], member(3, is_drained=True, is_fenced=True)]
    to_it = replace(placed(0, 0, 1, 3, is_moving=True, moves_off=2), adding=(BrokerId(3),))
    other = replace(placed(1, 1, 2, is_moving=True, moves_off=0), adding=(BrokerId(2),))
    step = scaling([pool(3, 4)], gone, [to_it, other, placed(2, 3, 1, 2)])
    assert (step.recall, step.moves) == ((("t", 0),), {})
    assert step.message == "moves of 1 partition to c-b-3 are taken back"
    assert (step.replicas, step.unregister) == ({"c-b": 4}, ())


def test_moves_that_wait_for_a_broker_name_it() -> None:
    away = [*FOUR[:3], member(3, is_fenced=True)]
    moving = replace(placed(0, 0, 1, 3, is_moving=True, moves_off=2), adding=(BrokerId(3),))
    step = scaling([pool(4, 4)], away, [moving])
    assert step.message == "replicas are being moved; 1 waits for c-b-3 to be back"
    assert not step.recall


def test_a_broker_that_holds_nothing_goes_and_is_forgotten_once_it_is_fenced() -> None:
    drained = [*FOUR[:3], member(3, is_drained=True)]
    partitions = [placed(0, 0, 1, 2)]
    step = scaling([pool(3, 4)], drained, partitions)
    assert (step.replicas, step.unregister, step.empty) == ({"c-b": 3}, (), ("c-b-3",))
    gone = [*FOUR[:3], member(3, is_drained=True, is_fenced=True)]
    assert scaling([pool(3, 3)], gone, partitions).unregister == (3,)


def test_a_broker_that_holds_nothing_is_drained_before_it_goes() -> None:
    step = scaling([pool(3, 4)], FOUR, [placed(0, 0, 1, 2)])
    assert (step.replicas, step.drain, step.leaving) == ({"c-b": 4}, (3,), ("c-b-3",))
    assert (step.empty, step.unregister) == ((), ()), "a topic may be made before it is drained"


def test_where_replicas_do_not_fit_nobody_goes_and_it_says_what_helps() -> None:
    topics = [placed(number, 0, 1, 2, topic=topic) for topic in "abcde" for number in (0, 1)]
    step = scaling([pool(2, 3)], FOUR[:3], [*topics, placed(0, 0, 2, topic="fits")])
    assert step.replicas == {"c-b": 3}
    assert (step.moves, step.empty) == ({}, ())
    said = "c-b-2 cannot go: topic a has 3 replicas, and the brokers that stay can hold 2; topic b"
    assert step.problem.startswith(said)
    assert "; and 2 more topics likewise. Lower spec.replicas of their Topics" in step.problem
    assert "raise replicas of a pool" in step.problem
    assert "fits" not in step.problem.partition(". ")[0]


def positions(*replicas: int) -> Placed:
    return placed(0, *replicas, topic="__positions")


def test_internal_topics_get_fewer_replicas_where_the_cluster_gets_too_small_for_them() -> None:
    for wanted in (2, 1):
        partitions = [positions(0, 1, 2), placed(0, 0), placed(1, 2)]
        step = scaling([pool(wanted, 3)], FOUR[:3], partitions)
        assert step.problem == ""
        assert step.drain == tuple(range(wanted, 3))
        assert {*step.moves["__positions", 0]} == {*range(wanted)}
        assert {*step.moves["t", 1]} <= {*range(wanted)}
    padded = scaling([pool(2, 4)], FOUR, [positions(0, 2, 3)])
    assert {*padded.moves["__positions", 0]} == {0, 1}


def test_brokers_that_cannot_go_are_drained_so_that_no_topic_gets_replicas_there() -> None:
    partitions = [positions(0, 1, 2), placed(0, 0, 1, 2)]
    step = scaling([pool(2, 3)], FOUR[:3], partitions)
    assert "c-b-2 cannot go: topic t has 3 replicas" in step.problem
    assert (step.drain, step.leaving, step.moves) == ((2,), ("c-b-2",), {})
    drained = [*FOUR[:2], member(2, is_drained=True)]
    lowered = [positions(0, 1, 2), placed(0, 0, 1)]
    step = scaling([pool(2, 3)], drained, lowered, were_leaving=["c-b-2"])
    assert (step.problem, {*step.moves}) == ("", {("__positions", 0)})
    again = scaling([pool(3, 3)], drained, partitions, were_leaving=["c-b-2"])
    assert (again.undrain, again.problem) == ((2,), "")


def test_a_cluster_of_three_becomes_two_and_three_again() -> None:
    left = scaling([pool(2, 3)], FOUR[:3], [positions(0, 1, 2), placed(0, 0, 1), placed(1, 1, 0)])
    assert {*left.moves} == {("__positions", 0)}
    # The controller has put a replica of its own topic on the new broker before the operator looks.
    new = [*FOUR[:2], replace(member(3), name="c-b-2")]
    raised = [positions(0, 1, 3), *(placed(number, 0, 1) for number in range(6))]
    step = scaling([pool(3, 3)], new, raised)
    assert step.message == "c-b-2 gets a share of the replicas"
    assert any(3 in replicas for replicas in step.moves.values())
    after = [
        replace(partition, replicas=step.moves.get(partition.place, partition.replicas))
        for partition in raised
    ]
    assert scaling([pool(3, 3)], new, after) == Scaling(replicas={"c-b": 3})


def test_the_topics_of_the_cluster_itself_are_known_by_their_description() -> None:
    async def internal() -> dict[str, bool]:
        brokers = FakeBrokers()
        brokers.of("n", "c").join("c-b-0")
        for topic in ("__positions", "n/t"):
            await brokers.admin(CLUSTER).create_topic(topic, 1, 1, {})
        found = await brokers.find(CLUSTER)
        assert found is not None
        return {partition.place[0]: partition.is_internal for partition in found.placed()}

    assert asyncio.run(internal()) == {"__positions": True, "n/t": False}


def test_internal_topics_are_shared_where_there_are_no_others() -> None:
    crowded = [placed(number, 0, 1, 2, topic="__positions") for number in range(8)]
    assert any(3 in replicas for replicas in scaling([pool(4, 4)], FOUR, crowded).moves.values())


def test_the_many_partitions_of_internal_topics_are_not_all_that_new_brokers_get() -> None:
    zones = "abcab"
    five = [member(number, zone=zone) for number, zone in enumerate(zones)]
    sizes = {"__positions": 16, "__transactions": 16, "orders": 6, "payments": 6}
    partitions = [
        placed(number, *((number + at) % 3 for at in range(3)), topic=topic)
        for topic, count in sizes.items()
        for number in range(count)
    ]
    moves = scaling([pool(5, 5)], five, partitions).moves
    held = Counter(
        (partition.is_internal, int(broker))
        for partition in partitions
        for broker in moves.get(partition.place, partition.replicas)
    )
    for is_internal in (False, True):
        for old, new in ((0, 3), (1, 4)):
            assert abs(held[is_internal, old] - held[is_internal, new]) <= 1


def test_the_plan_is_for_all_that_stay_and_what_goes_to_a_broker_that_is_away_waits() -> None:
    partitions = [placed(number, 4, number % 2) for number in range(6)]
    five = [*FOUR, member(4)]
    away = [replace(found, is_fenced=found.broker_id == 3) for found in five]
    everything = scaling([pool(4, 5)], five, partitions)
    step = scaling([pool(4, 5)], away, partitions)
    assert everything.moves
    assert step.moves == {
        place: replicas for place, replicas in everything.moves.items() if 3 not in replicas
    }
    waiting = len(everything.moves) - len(step.moves)
    assert waiting
    assert f"{waiting} wait for c-b-3 to be back" in step.message


def test_a_broker_that_is_away_is_no_reason_to_say_that_replicas_do_not_fit() -> None:
    away = [*FOUR[:2], member(2, is_fenced=True), member(3)]
    step = scaling([pool(3, 4)], away, [placed(0, 0, 1, 3)])
    assert (step.problem, step.moves, step.drain) == ("", {}, (3,))
    assert "1 waits for c-b-2 to be back" in step.message


def test_a_new_broker_gets_its_share_once() -> None:
    crowded = [placed(number, 0, 1, 2) for number in range(8)]
    step = scaling([pool(4, 4)], FOUR, crowded)
    assert any(3 in replicas for replicas in step.moves.values())
    after = [
        replace(partition, replicas=step.moves.get(partition.place, partition.replicas))
        for partition in crowded
    ]
    assert scaling([pool(4, 4)], FOUR, after).moves == {}


def test_a_broker_that_is_to_stay_after_all_is_taken_back() -> None:
    members = [*FOUR[:3], member(3, is_drained=True)]
    partitions = [placed(0, 0, 1, 3), placed(1, 1, 2, 3)]
    step = scaling([pool(4, 4)], members, partitions, were_leaving=["c-b-3"])
    assert step.undrain == (3,)


def test_a_broker_that_stays_after_all_is_taken_back_while_others_move_or_go() -> None:
    members = [*FOUR[:3], member(3, is_drained=True)]
    moving = placed(0, 0, 1, 2, is_moving=True, moves_off=3)
    step = scaling([pool(4, 4)], members, [moving], were_leaving=["c-b-3"])
    assert (step.undrain, step.message) == ((3,), "replicas are being moved")
    assert step.leaving == ("c-b-3",), "it is tried again if the brokers refuse it"
    another = replace(member(4), name="c-g-0")
    pools = [pool(4, 4), PoolSize(name="c-g", wanted=0, there=1)]
    step = scaling(pools, [*members, another], [placed(0, 4, 1, 2)], were_leaving=["c-b-3"])
    assert (step.undrain, step.drain) == ((3,), (4,))
    assert {*step.leaving} == {"c-b-3", "c-g-0"}
    assert step.moves["t", 0]


def test_a_broker_that_somebody_drained_by_hand_stays_drained() -> None:
    members = [*FOUR[:3], member(3, is_drained=True)]
    step = scaling([pool(4, 4)], members, [placed(0, 0, 1, 3)])
    assert (step.undrain, step.moves) == ((), {})


def test_brokers_of_other_names_are_let_be() -> None:
    stranger = replace(member(9), name="somebody-7", is_drained=True)
    step = scaling([pool(4, 4)], [*FOUR, stranger], [placed(0, 0, 1, 9)])
    assert (step.undrain, step.leaving, step.drain) == ((), (), ())


SSDS = [member(number, media=(Media.SSD,)) for number in range(4)]
HDD = member(4, media=(Media.HDD,))


def test_replicas_move_to_brokers_with_the_media_of_their_topic_only() -> None:
    partitions = [placed(0, 3, media=TopicMedia.SSD), *(placed(number, 3) for number in (1, 2, 3))]
    step = scaling([pool(3, 4)], [*SSDS, replace(HDD, name="c-h-0")], partitions)
    (broker,) = step.moves["t", 0]
    assert broker != HDD.broker_id
    assert HDD.broker_id in {holder for replicas in step.moves.values() for holder in replicas}


def test_a_topic_whose_media_no_broker_has_holds_up_nobody_but_its_own_brokers() -> None:
    wrong = placed(0, 0, media=TopicMedia.HDD)
    crowded = [wrong, *(placed(number, 0, 1, 2) for number in range(1, 9))]
    step = scaling([pool(4, 4)], SSDS, crowded)
    assert any(3 in replicas for replicas in step.moves.values())
    assert wrong.place not in step.moves
    assert scaling([pool(3, 4)], SSDS, [wrong, placed(1, 3)]).problem == ""
    held = scaling([pool(3, 4)], SSDS, [placed(0, 3, media=TopicMedia.HDD)])
    assert "t has 1 replica of media hdd, and the brokers that stay can hold 0" in held.problem


CLUSTER = cluster_of(
    {
        "metadata": {"namespace": "n", "name": "c", "uid": "u", "generation": 1},
        "spec": {
            "pools": [{"name": "b", "replicas": 3, "volumes": [{"name": "data", "size": "1Gi"}]}]
        },
    }
)
THREE = FOUR[:3]
REMOVED = replace(member(3), name="c-g-0")


def sizes(
    members: Sequence[Member] | None,
    *,
    stateful_sets: Sequence[tuple[str, int]] = (("c-b", 3),),
    pods: Sequence[str] = (),
) -> list[PoolSize]:
    sets: list[Any] = [
        {"metadata": {"name": name}, "spec": {"replicas": replicas}}
        for name, replicas in stateful_sets
    ]
    return pool_sizes(CLUSTER, sets, [{"metadata": {"name": name}} for name in pods], members)


def test_a_pool_that_was_removed_is_there_until_its_last_broker_is_unregistered() -> None:
    gone, stays = PoolSize(name="c-g", wanted=0, there=0), pool(3, 3)
    running = replace(gone, there=1)
    assert sizes(None, stateful_sets=[("c-b", 3), ("c-g", 1)]) == [stays, running]
    assert sizes([*THREE, REMOVED], pods=["c-g-0"]) == [stays, running]
    assert sizes([*THREE, REMOVED]) == [stays, gone]
    assert sizes(THREE) == [stays]
    assert sizes(None) == [stays]


def test_a_broker_whose_stateful_set_is_gone_is_unregistered_once_it_has_ended() -> None:
    ends = [*THREE, replace(REMOVED, is_drained=True)]
    step = scaling(sizes(ends), ends, [placed(0, 0, 1, 2)])
    assert (step.unregister, step.empty) == ((), ("c-g-0",))
    ended = [*THREE, replace(REMOVED, is_drained=True, is_fenced=True)]
    step = scaling(sizes(ended), ended, [placed(0, 0, 1, 2)])
    assert (step.unregister, step.empty) == ((3,), ("c-g-0",))
    assert step.replicas == {"c-b": 3, "c-g": 0}
    step = scaling(sizes(THREE), THREE, [placed(0, 0, 1, 2)])
    assert step == Scaling(replicas={"c-b": 3})


def test_a_broker_whose_stateful_set_is_gone_stays_registered_while_it_holds_replicas() -> None:
    members = [*THREE, replace(REMOVED, is_fenced=True)]
    step = scaling(sizes(members), members, [placed(0, 3, 1, 2)])
    assert (step.unregister, step.empty, step.replicas["c-g"]) == ((), (), 1)
    assert set(step.moves["t", 0]) == {0, 1, 2}


def test_a_stateful_set_that_is_made_anew_has_as_many_brokers_as_pods() -> None:
    pods = [f"c-b-{number}" for number in range(4)]
    assert sizes(FOUR, stateful_sets=[], pods=pods) == [pool(3, 4)]


def test_a_broker_that_holds_replicas_has_a_pod_again_whatever_became_of_it() -> None:
    members = [*THREE, member(3, is_drained=True, is_fenced=True)]
    pods = [f"c-b-{number}" for number in range(3)]
    held, moving = placed(0, 3), placed(0, 1, moves_off=3, is_moving=True)
    for stateful_sets in ([], [("c-b", 3)]):
        pools = sizes(members, stateful_sets=stateful_sets, pods=pods)
        assert scaling(pools, members, [held]).replicas == {"c-b": 4}
        assert scaling(pools, members, [moving]).replicas == {"c-b": 4}
        assert scaling(pools, members, [placed(0, 1, is_moving=True)]).replicas == {"c-b": 3}


def test_brokers_that_are_no_pods_make_no_pool() -> None:
    strangers = [replace(member(4), name="somebody-7"), replace(member(5), name="c-b")]
    assert sizes([*THREE, *strangers]) == [pool(3, 3)]


def test_brokers_that_have_yet_to_join_are_named() -> None:
    assert scaling([pool(6, 4)], FOUR).missing == ("c-b-4", "c-b-5")


def test_a_new_broker_that_has_yet_to_start_or_to_get_its_share_is_work_under_way() -> None:
    partitions = [placed(number, 0, 1, 2) for number in range(4)]
    starting = [*FOUR[:3], member(3, is_fenced=True)]
    step = scaling([pool(4, 4)], starting, partitions)
    assert (step.moves, step.message) == ({}, "c-b-3 gets a share once c-b-3 has started")
    step = scaling([pool(4, 4)], FOUR, partitions)
    assert step.moves
    assert step.message == "c-b-3 gets a share of the replicas"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (True, False, "c-b-3, c-b-4 get a share once c-b-1 is back"),
        (True, True, "c-b-3, c-b-4 get a share once c-b-4 has started and c-b-1 is back"),
        (False, True, "c-b-3, c-b-4 get a share once c-b-4 has started"),
    ],
)
def test_new_brokers_without_a_share_say_for_whom_it_waits(
    old: bool, new: bool, message: str
) -> None:
    members = [*FOUR, member(4, is_fenced=new)]
    members[1] = member(1, is_fenced=old)
    step = scaling([pool(5, 5)], members, [placed(number, 0, 1, 2) for number in range(5)])
    assert (step.moves, step.message) == ({}, message)


@pytest.mark.parametrize("is_fenced", [True, False])
def test_new_brokers_get_their_share_beside_one_that_somebody_drained(is_fenced: bool) -> None:
    members = [*FOUR, member(4)]
    members[1] = member(1, is_drained=True, is_fenced=is_fenced)
    partitions = [placed(number, 0, 1, 2) for number in range(5)]
    step = scaling([pool(5, 5)], members, partitions)
    assert step.message == "c-b-3, c-b-4 get a share of the replicas"
    assert {3, 4} <= {holder for replicas in step.moves.values() for holder in replicas}
    after = [
        replace(partition, replicas=step.moves.get(partition.place, partition.replicas))
        for partition in partitions
    ]
    assert scaling([pool(5, 5)], members, after) == Scaling(replicas={"c-b": 5})
