"""Slices of both sides alternate, and the share that is lost is the median of neighbours."""

import pytest
from bench.slices import Sides, Slice


def test_pairs_have_either_order_in_turn_and_all_ends_off() -> None:
    switched: list[bool] = []
    numbers = iter(range(8))
    sides = Sides()
    sides.add_pairs(4, switched.append, lambda: Slice(next(numbers), 1, 1))
    assert switched == [True, False, False, True, True, False, False, True, False]
    assert [each.size for each in sides.on] == [0, 3, 4, 7]
    assert [each.size for each in sides.off] == [1, 2, 5, 6]


def test_what_is_lost_is_the_median_over_pairs_of_neighbours() -> None:
    sides = Sides()
    for on, off in ((90, 100), (49, 50), (10, 100)):
        sides.on.append(Slice(on, 1, 1))
        sides.off.append(Slice(off, 1, 1))
    assert sides.lost() == pytest.approx(0.1)


def test_the_time_of_the_processor_is_compared_by_what_was_appended() -> None:
    sides = Sides.together(
        [Sides(on=[Slice(100, 1, 2)], off=[Slice(200, 1, 3)])],
    )
    assert sides.cpu_lost() == pytest.approx(1 - (3 / 200) / (2 / 100))
