"""A broker that stands still prolongs sessions, and does not keep the dead alive by that."""

import pytest

from millrace.core.coordinator.groups.stalls import Stalls
from millrace.core.ids import MonotonicMs


def granted(*passed_ms: int) -> list[int]:
    """Return what each look grants, so long after the one before."""
    stalls, now, found = Stalls(MonotonicMs(0)), 0, []
    for milliseconds in passed_ms:
        now += milliseconds
        found.append(stalls.look(MonotonicMs(now)))
    return found


def test_a_look_in_time_or_a_little_late_prolongs_nothing() -> None:
    assert granted(250, 0, 1, 1250) == [0, 0, 0, 0]


@pytest.mark.parametrize("paused_ms", [1251, 60_000, 3_600_000])
def test_a_pause_is_granted_as_a_whole_however_long_it_was(paused_ms: int) -> None:
    assert granted(250, paused_ms) == [0, paused_ms - 250]


def test_pauses_far_apart_are_granted_each() -> None:
    looks = (30_000, *[250] * 400) * 3
    assert [each for each in granted(*looks) if each] == [29_750] * 3


@pytest.mark.parametrize("late_ms", [1300, 2000, 20_000, 90_000])
def test_a_broker_that_is_always_late_ends_sessions_after_about_twice_their_time(
    late_ms: int,
) -> None:
    looks = [late_ms] * (3_600_000 // late_ms)
    total = sum(granted(*looks))
    assert sum(looks) / 3 < total <= sum(looks) / 2 + 10_000 + late_ms
