"""States and events of a machine as a table: the next state by state and event.

A machine that has a table changes its state only through it, so the table fully describes the order
of its states. An event that a state does not know is a mistake of ours.

Source: the tables of states of h11.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class IllegalTransitionError(AssertionError):
    """The event cannot happen in the state that the machine is in."""


def after(transitions: Mapping[State, Mapping[Event, State]], state: State, event: Event) -> State:
    """Return the state that follows.

    Raises:
        IllegalTransitionError: the table has no such transition.
    """
    try:
        return transitions[state][event]
    except KeyError:
        raise IllegalTransitionError(f"{event} cannot happen in {state}") from None
