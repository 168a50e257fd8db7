"""Tables of states and events."""

from enum import Enum

import pytest

from millrace.core.transitions import IllegalTransitionError, after


class Door(Enum):
    OPEN = 1
    SHUT = 2


class Hand(Enum):
    PUSH = 1
    PULL = 2


TABLE = {Door.OPEN: {Hand.PUSH: Door.SHUT}, Door.SHUT: {Hand.PULL: Door.OPEN}}


def test_an_event_leads_to_the_state_that_the_table_names() -> None:
    assert after(TABLE, Door.OPEN, Hand.PUSH) is Door.SHUT


def test_an_event_that_a_state_does_not_know_is_a_mistake_of_ours() -> None:
    with pytest.raises(IllegalTransitionError, match=r"^Hand\.PULL cannot happen in Door\.OPEN$"):
        after(TABLE, Door.OPEN, Hand.PULL)
