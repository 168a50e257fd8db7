"""The table of a partition's states."""

import pytest

from millrace.core.client.consumer.fetch_state import RESTING, TRANSITIONS, FetchEvent, FetchState
from millrace.core.transitions import IllegalTransitionError, after


def test_every_state_has_its_row_and_every_event_its_use() -> None:
    assert set(TRANSITIONS) == set(FetchState)
    assert {event for row in TRANSITIONS.values() for event in row} == set(FetchEvent)


@pytest.mark.parametrize("state", FetchState)
def test_the_user_can_move_a_partition_and_it_can_fail_in_every_state(state: FetchState) -> None:
    assert after(TRANSITIONS, state, FetchEvent.MOVED) is FetchState.AWAIT_SESSION
    assert after(TRANSITIONS, state, FetchEvent.RESET) is FetchState.AWAIT_RESET
    assert after(TRANSITIONS, state, FetchEvent.FAILED) is FetchState.FAILED


@pytest.mark.parametrize("state", FetchState)
def test_what_rests_asks_for_nothing(state: FetchState) -> None:
    assert (FetchEvent.ASKED in TRANSITIONS[state]) is (state not in RESTING)


def test_a_position_is_checked_before_it_is_reset() -> None:
    path = [FetchEvent.OUT_OF_RANGE, FetchEvent.ASKED, FetchEvent.RESET, FetchEvent.ASKED]
    state = FetchState.FETCHING
    for event in path:
        state = after(TRANSITIONS, state, event)
    assert state is FetchState.RESETTING
    assert after(TRANSITIONS, state, FetchEvent.FOUND) is FetchState.AWAIT_SESSION


def test_an_offset_is_found_only_where_it_was_asked_for() -> None:
    for state in set(FetchState) - {FetchState.RESETTING}:
        with pytest.raises(IllegalTransitionError):
            after(TRANSITIONS, state, FetchEvent.FOUND)
