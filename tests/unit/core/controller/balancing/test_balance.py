from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.controller.balancing.balance import Movable, heirs, moves
from millrace.core.controller.balancing.placement import Candidate, place
from millrace.core.ids import BrokerId

A, B, C, D = (BrokerId(number) for number in range(4))


def counter(loads: Mapping[BrokerId, int]) -> Counter[BrokerId]:
    return Counter(loads)


def spread(loads: Counter[BrokerId], brokers: list[BrokerId]) -> int:
    counts = [loads[broker] for broker in brokers]
    return max(counts) - min(counts)


def movable(leader: BrokerId, *candidates: BrokerId, preferred: BrokerId = D) -> Movable:
    return Movable(leader, preferred, candidates)


def test_free_leaderships_are_spread_over_who_can_take_them() -> None:
    free = dict.fromkeys(range(7), (A, B, C))
    taken = Counter(heirs(free, counter({A: 3, B: 1})).values())
    assert taken == {A: 1, B: 3, C: 3}


def test_nobody_inherits_what_nobody_can_take() -> None:
    assert heirs({1: (), 2: (A,)}, counter({})) == {2: A}


def test_of_equals_the_first_candidate_inherits() -> None:
    assert heirs({1: (C, A)}, counter({})) == {1: C}


def test_an_early_choice_is_undone_where_a_later_one_has_no_other() -> None:
    """Greedily, A would be given 1, and then 2 and 3, which nobody else can take."""
    given_to = heirs({1: (A, B), 2: (A,), 3: (A,)}, counter({}))
    assert given_to == {1: B, 2: A, 3: A}


def test_a_preferred_leader_that_can_lead_gets_its_partition_back() -> None:
    partitions = {1: movable(A, A, B, preferred=B), 2: movable(A, A, C, preferred=D)}
    assert moves(partitions, counter({A: 1, B: 9}), 10) == {1: B}


def test_who_leads_more_hands_over_what_it_is_not_preferred_for() -> None:
    partitions = {number: movable(A, A, B) for number in range(4)}
    taken = moves(partitions, counter({A: 4}), 10)
    assert Counter(taken.values()) == {B: 2}


def test_a_difference_of_one_moves_nothing() -> None:
    assert moves({1: movable(A, A, B)}, counter({A: 3, B: 2}), 10) == {}


def test_a_leadership_goes_through_a_third_broker_where_there_is_no_direct_way() -> None:
    partitions = {1: movable(A, A, B), 2: movable(B, B, C)}
    assert moves(partitions, counter({A: 3, B: 2, C: 1}), 10) == {1: B, 2: C}


def test_no_more_is_moved_at_a_time_than_allowed() -> None:
    partitions = {number: movable(A, A, B, preferred=B) for number in range(10)}
    assert len(moves(partitions, counter({A: 10}), 3)) == 3
    partitions = {number: movable(A, A, B) for number in range(10)}
    assert len(moves(partitions, counter({A: 10}), 3)) == 3


def test_what_was_moved_is_at_rest() -> None:
    partitions = {number: movable(A, A, B, C) for number in range(9)}
    loads = counter({A: 9, C: 1})
    taken = moves(partitions, loads, 100)
    for leader in taken.values():
        loads.update({A: -1, leader: 1})
    after = {
        key: partition._replace(leader=taken.get(key, A)) for key, partition in partitions.items()
    }
    assert moves(after, loads, 100) == {}
    assert spread(loads, [A, B, C]) <= 1


@given(
    st.dictionaries(st.integers(0, 30), st.permutations([A, B, C, D]), max_size=12),
    st.integers(1, 4),
)
def test_loads_are_as_even_as_the_candidates_allow(
    orders: dict[int, list[BrokerId]], count: int
) -> None:
    free = {key: order[:count] for key, order in orders.items()}
    leaders = heirs(free, counter({}))
    loads = Counter(leaders.values())
    # The greatest load is at least what any set of brokers must share among themselves.
    must = 0
    for mask in range(1, 16):
        brokers = {broker for broker in (A, B, C, D) if mask >> broker & 1}
        inside = sum({*candidates} <= brokers for candidates in free.values())
        must = max(must, -(-inside // len(brokers)))
    assert max(loads.values(), default=0) == must
    assert all(leaders[key] in free[key] for key in free)


def test_four_brokers_and_three_topics_of_three_replicas() -> None:
    """The slides' picture: whoever of the four dies, the three others lead the same number."""
    candidates = [Candidate(broker, "") for broker in (A, B, C, D)]
    placed: list[tuple[BrokerId, ...]] = []
    for _ in range(3):
        placed += place(
            4,
            3,
            candidates,
            replica_counts=Counter(broker for partition in placed for broker in partition),
            leader_counts=Counter(partition[0] for partition in placed),
            follower_counts=Counter(
                (partition[0], other) for partition in placed for other in partition[1:]
            ),
            heir_counts=Counter((partition[0], partition[1]) for partition in placed),
        )
    assert Counter(partition[0] for partition in placed) == {A: 3, B: 3, C: 3, D: 3}
    assert Counter(broker for partition in placed for broker in partition) == {
        A: 9,
        B: 9,
        C: 9,
        D: 9,
    }
    for dead in (A, B, C, D):
        free = {
            number: [replica for replica in replicas if replica != dead]
            for number, replicas in enumerate(placed)
            if replicas[0] == dead
        }
        loads = Counter(partition[0] for partition in placed if partition[0] != dead)
        loads.update(heirs(free, loads).values())
        assert sorted(loads.values()) == [4, 4, 4]
