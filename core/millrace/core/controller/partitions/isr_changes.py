"""Changes of the in-sync replicas that a leader asks for (P19). Pure.

The request is a compare-and-swap: it names the leader's life, leader epoch and partition epoch that
it rests on, and each member with its broker epoch. If any of these has changed, the request is
refused.

Sources: KIP-497, KIP-704, KIP-841, KIP-903.
"""

from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.partitions import elections
from millrace.core.controller.partitions.elections import Rules
from millrace.core.errors import (
    Appended,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    MalformedRequestError,
    NotControllerError,
    NotLeaderError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import TopicPartition
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import AlterPartition


def altered(
    decided: DecidedMetadata,
    rules: Rules | None,
    change: AlterPartition,
    offline: frozenset[BrokerLife] = frozenset(),
) -> PartitionState:
    """Return a partition with the in-sync replicas that its leader asks for.

    Args:
        rules: of the topic; None when there is none.
        offline: lives whose logs of the partition are damaged or gone.

    Raises:
        UnknownTopicOrPartitionError: it was deleted.
        NotControllerError: the leader has seen a later state than this controller.
        FencedLeaderEpochError: an older leader asks.
        InvalidUpdateVersionError: the partition has changed meanwhile.
        NotLeaderError: the broker that asks does not lead.
        StaleBrokerEpochError: an earlier life of the leader asks.
        MalformedRequestError: no such ISR can be.
        IneligibleReplicaError: a new member is not alive, stops, is in another life, or damaged.
    """
    key = TopicPartition(change.topic_id, change.partition)
    state = decided.partition(key)
    if state is None or rules is None:
        raise UnknownTopicOrPartitionError(f"there is no partition {key}: it was deleted")
    _check_epochs(key, state, change)
    _check_leader(key, state, rules, change)
    _check_members(key, state, change)
    members_so_far = frozenset(state.isr)
    for life in change.isr:
        is_member = life in members_so_far
        _check_eligible(key, rules, life, is_member=is_member)
        if life in offline and not is_member:
            raise IneligibleReplicaError(
                f"the log of broker {life.broker_id} is damaged or gone: it cannot be in sync "
                "until the replica has started over",
                topic_partition=key,
            )
    return elections.with_isr(
        state,
        rules,
        change.isr,
        is_recovering=change.is_recovering,
        is_unflushed=state.is_unflushed and change.is_unflushed,
        committed_end=change.committed_end,
    )


def _check_epochs(key: TopicPartition, state: PartitionState, change: AlterPartition) -> None:
    asked = (change.leader_epoch, change.partition_epoch)
    if change.leader_epoch > state.leader_epoch or change.partition_epoch > state.partition_epoch:
        raise NotControllerError(
            f"the leader knows the epochs {asked}, and this controller only "
            f"{(state.leader_epoch, state.partition_epoch)}: another one is the controller",
            topic_partition=key,
        )
    if change.leader_epoch < state.leader_epoch:
        raise FencedLeaderEpochError(
            f"the leader epoch is {state.leader_epoch}, not {change.leader_epoch}",
            topic_partition=key,
        )
    if change.partition_epoch < state.partition_epoch:
        raise InvalidUpdateVersionError(
            f"the partition epoch is {state.partition_epoch}, not {change.partition_epoch}: "
            "decide again on the new state",
            topic_partition=key,
        )


def _check_leader(
    key: TopicPartition, state: PartitionState, rules: Rules, change: AlterPartition
) -> None:
    if change.leader.broker_id != state.leader:
        raise NotLeaderError(
            f"broker {state.leader} leads it, not {change.leader.broker_id}",
            appended=Appended.NO,
            topic_partition=key,
        )
    if change.leader != state.leader_life or not rules.is_live(change.leader):
        raise StaleBrokerEpochError(
            f"broker {change.leader.broker_id} has registered again since, or is fenced",
            topic_partition=key,
        )


def _check_members(key: TopicPartition, state: PartitionState, change: AlterPartition) -> None:
    members = {life.broker_id for life in change.isr}
    if len(members) < len(change.isr) or not members <= {*state.replicas}:
        raise MalformedRequestError(
            "the ISR must be some of the replicas, each once", topic_partition=key
        )
    if change.leader not in change.isr:  # P24: a leader does not remove itself.
        raise MalformedRequestError(
            "the leader must be in the ISR that it asks for", topic_partition=key
        )
    if change.is_recovering and (len(members) > 1 or not state.is_recovering):
        raise MalformedRequestError(
            "only a leader that was elected uncleanly recovers, and until it has said that "
            "it is done, it alone is in sync",
            topic_partition=key,
        )


def _check_eligible(
    key: TopicPartition, rules: Rules, life: BrokerLife, *, is_member: bool
) -> None:
    # A broker that is about to stop may stay as long as it is needed (P32), but does not join.
    if not (rules.is_live(life) if is_member else rules.can_join(life)):
        raise IneligibleReplicaError(
            f"broker {life.broker_id} cannot be in sync in epoch {life.broker_epoch}: it is "
            "fenced, about to stop, or has registered again",
            topic_partition=key,
        )
