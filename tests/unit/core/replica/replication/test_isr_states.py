"""The tables of followers, members and proposals."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from millrace.core.replica.replication.isr_states import (
    FOLLOWER_TRANSITIONS,
    MEMBERSHIP_TRANSITIONS,
    PROPOSAL_TRANSITIONS,
    FollowerEvent,
    FollowerState,
    Membership,
    MembershipEvent,
    ProposalEvent,
    ProposalState,
)
from millrace.core.transitions import IllegalTransitionError, after


@pytest.mark.parametrize(
    ("transitions", "states", "events"),
    [
        (FOLLOWER_TRANSITIONS, FollowerState, FollowerEvent),
        (MEMBERSHIP_TRANSITIONS, Membership, MembershipEvent),
        (PROPOSAL_TRANSITIONS, ProposalState, ProposalEvent),
    ],
)
def test_every_state_has_its_row_and_every_event_its_use(
    transitions: Mapping[Any, Mapping[Any, Any]], states: type[Enum], events: type[Enum]
) -> None:
    assert set(transitions) == set(states)
    assert {event for row in transitions.values() for event in row} == set(events)


@pytest.mark.parametrize("membership", [each for each in Membership if each is not Membership.OUT])
def test_what_the_controller_commits_ends_every_doubt(membership: Membership) -> None:
    into = after(MEMBERSHIP_TRANSITIONS, membership, MembershipEvent.COMMITTED_IN)
    out = after(MEMBERSHIP_TRANSITIONS, membership, MembershipEvent.COMMITTED_OUT)
    assert (into, out) == (Membership.IN_SYNC, Membership.OUT)


def test_a_change_is_proposed_only_of_what_is_committed() -> None:
    for membership in (Membership.JOINING, Membership.LEAVING):
        for event in (MembershipEvent.ADDITION_PROPOSED, MembershipEvent.REMOVAL_PROPOSED):
            with pytest.raises(IllegalTransitionError):
                after(MEMBERSHIP_TRANSITIONS, membership, event)


def test_a_proposal_is_made_again_only_when_it_is_in_doubt() -> None:
    makes = {state for state, row in PROPOSAL_TRANSITIONS.items() if ProposalEvent.MADE in row}
    assert makes == set(ProposalState) - {ProposalState.IN_FLIGHT}


def test_who_has_caught_up_begins_again_with_another_life() -> None:
    state = FollowerState.SILENT
    for event in (FollowerEvent.BEGAN, FollowerEvent.CAUGHT_UP, FollowerEvent.BEGAN):
        state = after(FOLLOWER_TRANSITIONS, state, event)
    assert state is FollowerState.CATCHING_UP
