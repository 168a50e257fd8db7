"""The states of in-sync replicas, as their leader sees them: three small machines.

1. The reports of a follower in this leader epoch (`FollowerState`):

       SILENT ──> CATCHING_UP ──> CAUGHT_UP

   A new life of its broker begins with CATCHING_UP again.

2. Whether a life of a broker is in sync (`Membership`). Only the controller changes that, so a
   change that was proposed and is not answered has states of its own:

       OUT ──> JOINING ──> IN_SYNC ──> LEAVING ──> OUT

   All but OUT belong to the *maximal* ISR, for which the high watermark waits (P20). A committed
   state ends a proposal either way: a life that is JOINING or LEAVING becomes IN_SYNC or OUT. A
   life, and not a broker, is in sync (KIP-903): one can be LEAVING while the next one of its broker
   is JOINING.

3. The proposal of a change (`ProposalState`), of which there is one at a time:

       SETTLED ──> IN_FLIGHT ──> SETTLED
                    │   ^ │
                    v   │ └──> REFUSED ──> IN_FLIGHT
                   IN_DOUBT

   Without an answer that says whether it was applied, the same proposal is made again (P21).

Source: KIP-497, KIP-841; Kafka's CommittedPartitionState, PendingExpandIsr and PendingShrinkIsr.
"""

from enum import Enum, auto
from typing import Final


class FollowerState(Enum):
    """The progress of a follower in this leader epoch."""

    SILENT = auto()
    """Nothing."""
    CATCHING_UP = auto()
    """It reports, and has never had everything."""
    CAUGHT_UP = auto()
    """It had everything at some time."""


class FollowerEvent(Enum):
    """What moves a follower."""

    BEGAN = auto()
    """A life of its broker reported for the first time."""
    CAUGHT_UP = auto()
    """It has everything, or everything as of an earlier time."""


FOLLOWER_TRANSITIONS: Final[dict[FollowerState, dict[FollowerEvent, FollowerState]]] = {
    FollowerState.SILENT: {
        FollowerEvent.BEGAN: FollowerState.CATCHING_UP,
    },
    FollowerState.CATCHING_UP: {
        FollowerEvent.BEGAN: FollowerState.CATCHING_UP,
        FollowerEvent.CAUGHT_UP: FollowerState.CAUGHT_UP,
    },
    FollowerState.CAUGHT_UP: {
        FollowerEvent.BEGAN: FollowerState.CATCHING_UP,
    },
}


class Membership(Enum):
    """Whether a life of a broker is in sync, as far as the leader knows."""

    OUT = auto()
    """It is not in sync."""
    JOINING = auto()
    """Its addition is proposed: it may be in sync."""
    IN_SYNC = auto()
    """It is in sync."""
    LEAVING = auto()
    """Its removal is proposed: it may be in sync."""


class MembershipEvent(Enum):
    """What moves a life of a broker."""

    ADDITION_PROPOSED = auto()
    REMOVAL_PROPOSED = auto()
    COMMITTED_IN = auto()
    """The controller's state has it, and no proposal is in flight."""
    COMMITTED_OUT = auto()
    """The controller's state does not have it, and no proposal is in flight."""


_COMMITTED: Final = {
    MembershipEvent.COMMITTED_IN: Membership.IN_SYNC,
    MembershipEvent.COMMITTED_OUT: Membership.OUT,
}

MEMBERSHIP_TRANSITIONS: Final[dict[Membership, dict[MembershipEvent, Membership]]] = {
    Membership.OUT: {
        MembershipEvent.ADDITION_PROPOSED: Membership.JOINING,
        MembershipEvent.COMMITTED_IN: Membership.IN_SYNC,
    },
    Membership.JOINING: _COMMITTED,
    Membership.IN_SYNC: {
        **_COMMITTED,
        MembershipEvent.REMOVAL_PROPOSED: Membership.LEAVING,
    },
    Membership.LEAVING: _COMMITTED,
}


class ProposalState(Enum):
    """Where the proposal of a change of the in-sync replicas is."""

    SETTLED = auto()
    """There is none: the committed set is the true one."""
    IN_FLIGHT = auto()
    """It was sent, and is not answered."""
    IN_DOUBT = auto()
    """No answer says whether it was applied: it is made again after a pause."""
    REFUSED = auto()
    """It was not applied. The next one follows after a pause."""


class ProposalEvent(Enum):
    """What moves the proposal."""

    MADE = auto()
    UNKNOWN = auto()
    """The answer does not say whether it was applied, or none comes."""
    REFUSED = auto()
    """The controller proved that it was not applied."""
    SETTLED = auto()
    """The controller's state is known, and ends every doubt."""


PROPOSAL_TRANSITIONS: Final[dict[ProposalState, dict[ProposalEvent, ProposalState]]] = {
    ProposalState.SETTLED: {
        ProposalEvent.MADE: ProposalState.IN_FLIGHT,
        ProposalEvent.SETTLED: ProposalState.SETTLED,
    },
    ProposalState.IN_FLIGHT: {
        ProposalEvent.UNKNOWN: ProposalState.IN_DOUBT,
        ProposalEvent.REFUSED: ProposalState.REFUSED,
        ProposalEvent.SETTLED: ProposalState.SETTLED,
    },
    ProposalState.IN_DOUBT: {
        ProposalEvent.MADE: ProposalState.IN_FLIGHT,
        ProposalEvent.UNKNOWN: ProposalState.IN_DOUBT,
        ProposalEvent.REFUSED: ProposalState.REFUSED,
        ProposalEvent.SETTLED: ProposalState.SETTLED,
    },
    ProposalState.REFUSED: {
        ProposalEvent.MADE: ProposalState.IN_FLIGHT,
        ProposalEvent.SETTLED: ProposalState.SETTLED,
    },
}


__all__ = [
    "FOLLOWER_TRANSITIONS",
    "MEMBERSHIP_TRANSITIONS",
    "PROPOSAL_TRANSITIONS",
    "FollowerEvent",
    "FollowerState",
    "Membership",
    "MembershipEvent",
    "ProposalEvent",
    "ProposalState",
]
