"""A damaged replica starts over with an empty log, once nothing counts on it (P65).

The order is what makes this safe:

1. the broker stops serving and reporting the damaged log, and then asks; 2. if another replica has
   everything and leads, the controller takes this one out of ISR and ELR and begins another leader
   epoch, in one compare-and-swap on the partition epoch;
3. only when that is stored, and the broker has the answer, it renames the old log, begins an empty
   one, and fetches it from the leader.

So an empty log is never that of a replica which counts as in sync or eligible. A change of the ISR
that the leader asked for before rests on an earlier partition epoch, and is refused (P19). The
leader forgets the records of the old log, because they were reported in an earlier leader epoch:
without that there is a known bug of replicas that are removed and added again in one step (P22,
P33).

A broker that crashes between two steps registers again, and its new life is in no ISR either (P37).
The only copy is never given up: without another leader the request is refused.
"""

from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.partitions import elections
from millrace.core.controller.partitions.elections import Rules
from millrace.core.errors import (
    EligibleLeadersNotAvailableError,
    InvalidUpdateVersionError,
    MalformedRequestError,
    NotControllerError,
    UnknownTopicOrPartitionError,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import ReplicaRenewal


def renewed(
    decided: DecidedMetadata, rules: Rules | None, replica: BrokerLife, renewal: ReplicaRenewal
) -> PartitionState:
    """Return a partition in which a replica may start over.

    Args:
        rules: of the topic; None when there is none.
        replica: the registered life of the broker with the damaged log.

    Raises:
        UnknownTopicOrPartitionError: it was deleted.
        NotControllerError: the broker has seen a later state than this controller.
        InvalidUpdateVersionError: the partition has changed meanwhile.
        MalformedRequestError: the broker has no replica of it.
        EligibleLeadersNotAvailableError: no other replica leads it.
    """
    key, partition_epoch = renewal
    state = decided.partition(key)
    if state is None or rules is None:
        raise UnknownTopicOrPartitionError(
            "there is no such partition: it was deleted", topic_partition=key
        )
    if partition_epoch > state.partition_epoch:
        raise NotControllerError(
            f"broker {replica.broker_id} knows the partition epoch {partition_epoch}, and "
            f"this controller only {state.partition_epoch}: another one is the controller",
            topic_partition=key,
        )
    if partition_epoch < state.partition_epoch:
        raise InvalidUpdateVersionError(
            f"the partition epoch is {state.partition_epoch}, not {partition_epoch}: decide "
            "again on the new state",
            topic_partition=key,
        )
    if replica.broker_id not in state.replicas:
        raise MalformedRequestError(
            f"broker {replica.broker_id} has no replica of it", topic_partition=key
        )
    after = elections.renewed(state, rules, replica)
    if after is state:
        raise EligibleLeadersNotAvailableError(
            f"no other replica leads it, so the damaged one of broker {replica.broker_id} "
            "is kept: start a broker that is in sync or eligible, or bring the files back",
            topic_partition=key,
        )
    return after
