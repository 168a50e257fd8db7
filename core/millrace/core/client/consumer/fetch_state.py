"""The states of a partition that a consumer reads, and the events that change them.

    AWAIT_RESET ──> RESETTING ──> AWAIT_SESSION <──> FETCHING
       ^   ^                                          │    │
       │   └──────────────────────────────────────────┘    │
       └────── VALIDATING <── AWAIT_VALIDATION <───────────┘

A partition joins a session with a position. Without one, the log's start or end is looked up. The
leader may refuse a position as outside of its log. If records were read before, the leader is first
asked where the epoch of the last one ends: they may be gone, and then the user is told. From each
state a partition may fail, and the user may move it.

The states named AWAIT_ wait until the leader is known and connected, and until a pause is over.
The others have a request or a session under way, under a handle of their own. A partition that is
paused is in one of the former or has failed.

The terms are those of Kafka's `SubscriptionState.FetchStates`.
"""

from enum import Enum, auto
from typing import Final


class FetchState(Enum):
    """What is done about a partition that is read."""

    AWAIT_RESET = auto()
    """It has no position: the log's start or end is to be looked up."""
    RESETTING = auto()
    """The leader is asked for the log's start or end."""
    AWAIT_VALIDATION = auto()
    """Its position was refused: the leader is to say where the last epoch read ends."""
    VALIDATING = auto()
    """The leader is asked where the last epoch read ends."""
    AWAIT_SESSION = auto()
    """It has a position, and is in no session."""
    FETCHING = auto()
    """It is in the session of the broker that it is read from."""
    FAILED = auto()
    """The user is told of an error, and must move it."""


class FetchEvent(Enum):
    """What moves a partition to another state."""

    MOVED = auto()
    """It goes on from an offset: the user said so, or pauses it."""
    RESET = auto()
    """It goes on from the log's start or end."""
    ASKED = auto()
    """The request was sent, or the partition added to the session."""
    FOUND = auto()
    """The leader told the offset."""
    UNANSWERED = auto()
    """The request failed in a way that allows another."""
    LEFT = auto()
    """The broker serves it no longer: its stream broke, it refused, or another one shall serve."""
    OUT_OF_RANGE = auto()
    """The leader refused the position, after records were read."""
    FAILED = auto()
    """It cannot go on."""


_ALWAYS: Final = {
    FetchEvent.MOVED: FetchState.AWAIT_SESSION,
    FetchEvent.RESET: FetchState.AWAIT_RESET,
    FetchEvent.FAILED: FetchState.FAILED,
}

TRANSITIONS: Final[dict[FetchState, dict[FetchEvent, FetchState]]] = {
    FetchState.AWAIT_RESET: {
        **_ALWAYS,
        FetchEvent.ASKED: FetchState.RESETTING,
    },
    FetchState.RESETTING: {
        **_ALWAYS,
        FetchEvent.FOUND: FetchState.AWAIT_SESSION,
        FetchEvent.UNANSWERED: FetchState.AWAIT_RESET,
    },
    FetchState.AWAIT_VALIDATION: {
        **_ALWAYS,
        FetchEvent.ASKED: FetchState.VALIDATING,
    },
    FetchState.VALIDATING: {
        **_ALWAYS,
        FetchEvent.UNANSWERED: FetchState.AWAIT_VALIDATION,
    },
    FetchState.AWAIT_SESSION: {
        **_ALWAYS,
        FetchEvent.ASKED: FetchState.FETCHING,
    },
    FetchState.FETCHING: {
        **_ALWAYS,
        FetchEvent.LEFT: FetchState.AWAIT_SESSION,
        FetchEvent.OUT_OF_RANGE: FetchState.AWAIT_VALIDATION,
    },
    FetchState.FAILED: {**_ALWAYS},
}
"""The state that follows, by state and event."""

RESTING: Final = frozenset(
    (FetchState.RESETTING, FetchState.VALIDATING, FetchState.FETCHING, FetchState.FAILED)
)
"""States in which a partition asks for nothing by itself."""
