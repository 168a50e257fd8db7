"""A damaged replica begins anew with an empty log, once nobody counts on it (P65).

The order is what makes this safe:

1. the broker stops to serve and to report the damaged log, and then asks;
2. the controller takes the replica out of ISR and ELR where another has everything and leads, and
   begins another leader epoch, in one compare-and-swap on the partition epoch;
3. only when that is stored, and the broker was told, it gives the old log another name, begins an
   empty one, and fetches it from the leader.

So an empty log is never that of a replica which counts as in sync or eligible. A change of the ISR
that the leader asked for before rests on an earlier partition epoch, and is refused (P19). What the
old log had is forgotten by the leader, because it was reported in an earlier leader epoch: that is
the bug of replicas that are removed and added again in one step (P22, P33). A broker that crashes
between two of the steps registers anew, and with that life it is in no ISR either (P37).

A copy that nobody else has is never given up: where no other leads, this is refused.
"""

from millrace.core.errors import (
    EligibleLeadersNotAvailableError,
    InvalidUpdateVersionError,
    MalformedRequestError,
    NotControllerError,
    UnknownTopicOrPartitionError,
)
from millrace.core.metadata import elections
from millrace.core.metadata.draft import Draft
from millrace.core.metadata.elections import Rules
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import ReplicaRenewal


def renewed(
    draft: Draft, rules: Rules | None, replica: BrokerLife, renewal: ReplicaRenewal
) -> PartitionState:
    """Return a partition in which a replica may begin anew. Nothing here changes the draft.

    Args:
        rules: of the topic; None when there is none.
        replica: whose log is damaged; the registered life of its broker.

    Raises:
        UnknownTopicOrPartitionError: it was deleted.
        NotControllerError: the broker has seen a later state than this controller.
        InvalidUpdateVersionError: the partition has changed meanwhile.
        MalformedRequestError: the broker has no replica of it.
        EligibleLeadersNotAvailableError: nobody else leads it.
    """
    key, partition_epoch = renewal
    state = draft.partition(key)
    if state is None or rules is None:
        raise UnknownTopicOrPartitionError(f"there is no partition {key}: it was deleted")
    if partition_epoch > state.partition_epoch:
        raise NotControllerError(
            f"{key}: broker {replica.broker_id} knows the partition epoch {partition_epoch}, and "
            f"this controller only {state.partition_epoch}: another one is the controller"
        )
    if partition_epoch < state.partition_epoch:
        raise InvalidUpdateVersionError(
            f"{key}: the partition epoch is {state.partition_epoch}, not {partition_epoch}: decide "
            "again on the new state"
        )
    if replica.broker_id not in state.replicas:
        raise MalformedRequestError(f"{key}: broker {replica.broker_id} has no replica of it")
    after = elections.renewed(state, rules, replica)
    if after is state:
        raise EligibleLeadersNotAvailableError(
            f"{key}: no other replica leads it, so the damaged one of broker {replica.broker_id} "
            "is kept: start a broker that is in sync or eligible, or bring the files back"
        )
    return after
