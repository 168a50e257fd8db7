"""How many brokers each pool has, and what moves when brokers come or go."""

from dataclasses import replace

from millrace.core.ids import BrokerId
from millrace.core.media import Media, TopicMedia
from millrace.operator.plan.scaling import Member, Placed, PoolSize, Scaling, scaling


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
    media: TopicMedia = TopicMedia.ANY,
) -> Placed:
    return Placed(
        place=("t", number),
        replicas=tuple(map(BrokerId, replicas)),
        is_moving=is_moving,
        media=media,
    )


def pool(wanted: int, there: int) -> PoolSize:
    return PoolSize(name="c-b", wanted=wanted, there=there)


FOUR = [member(each) for each in range(4)]


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


def test_a_broker_that_holds_nothing_goes_and_is_forgotten_once_it_is_fenced() -> None:
    drained = [*FOUR[:3], member(3, is_drained=True)]
    partitions = [placed(0, 0, 1, 2)]
    step = scaling([pool(3, 4)], drained, partitions)
    assert (step.replicas, step.unregister, step.empty) == ({"c-b": 3}, (), ("c-b-3",))
    gone = [*FOUR[:3], member(3, is_drained=True, is_fenced=True)]
    assert scaling([pool(3, 3)], gone, partitions).unregister == (3,)


def test_where_replicas_do_not_fit_nobody_goes_and_it_says_what_helps() -> None:
    step = scaling([pool(2, 3)], FOUR[:3], [placed(0, 0, 1, 2)])
    assert step.replicas == {"c-b": 3}
    assert (step.drain, step.moves) == ((), {})
    assert "c-b-2 cannot go" in step.problem
    assert "replicas higher" in step.problem


def test_a_new_broker_gets_its_share_once() -> None:
    crowded = [placed(each, 0, 1, 2) for each in range(8)]
    step = scaling([pool(4, 4)], FOUR, crowded)
    assert any(3 in replicas for replicas in step.moves.values())
    after = [replace(each, replicas=step.moves.get(each.place, each.replicas)) for each in crowded]
    assert scaling([pool(4, 4)], FOUR, after).moves == {}


def test_a_broker_that_is_to_stay_after_all_is_taken_back() -> None:
    members = [*FOUR[:3], member(3, is_drained=True)]
    partitions = [placed(0, 0, 1, 3), placed(1, 1, 2, 3)]
    step = scaling([pool(4, 4)], members, partitions, were_leaving=["c-b-3"])
    assert step.undrain == (3,)


def test_a_broker_that_somebody_drained_by_hand_stays_drained() -> None:
    members = [*FOUR[:3], member(3, is_drained=True)]
    step = scaling([pool(4, 4)], members, [placed(0, 0, 1, 3)])
    assert (step.undrain, step.moves) == ((), {})


def test_brokers_of_other_names_are_let_be() -> None:
    stranger = replace(member(9), name="somebody-7", is_drained=True)
    step = scaling([pool(4, 4)], [*FOUR, stranger], [placed(0, 0, 1, 9)])
    assert (step.undrain, step.leaving, step.drain) == ((), (), ())


SSDS = [member(each, media=(Media.SSD,)) for each in range(4)]
HDD = member(4, media=(Media.HDD,))


def test_replicas_move_to_brokers_with_the_media_of_their_topic_only() -> None:
    partitions = [placed(0, 3, media=TopicMedia.SSD), *(placed(each, 3) for each in (1, 2, 3))]
    step = scaling([pool(3, 4)], [*SSDS, replace(HDD, name="c-h-0")], partitions)
    (broker,) = step.moves["t", 0]
    assert broker != HDD.broker_id
    assert HDD.broker_id in {each for replicas in step.moves.values() for each in replicas}


def test_a_topic_whose_media_no_broker_has_holds_up_nobody_but_its_own_brokers() -> None:
    wrong = placed(0, 0, media=TopicMedia.HDD)
    crowded = [wrong, *(placed(each, 0, 1, 2) for each in range(1, 9))]
    step = scaling([pool(4, 4)], SSDS, crowded)
    assert any(3 in replicas for replicas in step.moves.values())
    assert wrong.place not in step.moves
    assert scaling([pool(3, 4)], SSDS, [wrong, placed(1, 3)]).problem == ""
    held = scaling([pool(3, 4)], SSDS, [placed(0, 3, media=TopicMedia.HDD)])
    assert "log directory on hdd" in held.problem
