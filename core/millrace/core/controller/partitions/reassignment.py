"""Moving replicas to other brokers (P33), as pure functions on one partition.

A reassignment begins by adding the new replicas to the old ones. They copy the log and join the ISR
like any other. Once all of them are in sync, and at least min ISR of those that stay, the old ones
are removed in one step, with a new leader if one of them led. There are never fewer in-sync
replicas than before, or than min ISR. All state is in the partition, so another controller can
continue.

Source: KIP-455.
"""

from millrace.core.controller.partitions.elections import Rules
from millrace.core.errors import (
    EligibleLeadersNotAvailableError,
    InvalidReplicaAssignmentError,
    ReassignmentReason,
    ReassignmentRefusedError,
)
from millrace.core.ids import BrokerId, TopicPartition
from millrace.core.metadata.model import BrokerLife, PartitionState


def begun(
    key: TopicPartition, partition: PartitionState, rules: Rules, replicas: tuple[BrokerId, ...]
) -> PartitionState:
    """Return a partition that is on its way to these replicas, the preferred leader first.

    Raises:
        InvalidReplicaAssignmentError: a broker cannot hold it.
        ReassignmentRefusedError: another reassignment of it is under way.
    """
    _check_assignment(key, partition, rules, replicas)
    if partition.is_reassigning:
        if partition.target == replicas:
            return partition
        raise ReassignmentRefusedError(
            f"its replicas are being changed to {_listed(partition.target)}: wait, or cancel that",
            reason=ReassignmentReason.IN_PROGRESS,
            topic_partition=key,
        )
    if replicas == partition.replicas:
        return partition
    removing = tuple(replica for replica in partition.replicas if replica not in replicas)
    return _with_replicas(
        partition,
        rules,
        replicas=replicas + removing,
        adding=tuple(replica for replica in replicas if replica not in partition.replicas),
        removing=removing,
    )


def completed(partition: PartitionState, rules: Rules) -> PartitionState:
    """Remove the old replicas if all new ones are in sync; else return the partition."""
    target = frozenset(partition.target)
    in_sync = tuple(
        life for life in partition.isr if life.broker_id in target and rules.is_live(life)
    )
    have_joined = {life.broker_id for life in in_sync}.issuperset(partition.adding)
    # P33: never below min ISR, and never without the last replica that may have everything.
    suffices = len(in_sync) >= rules.config.effective_min_insync_replicas(len(target))
    if not (have_joined and suffices):
        return partition
    return _reduced(partition, rules, partition.target, in_sync) or partition


def cancelled(key: TopicPartition, partition: PartitionState, rules: Rules) -> PartitionState:
    """Return the partition with its old replicas; those that stay keep their new order.

    Raises:
        ReassignmentRefusedError: nothing is under way.
        EligibleLeadersNotAvailableError: too few of the old replicas are in sync, and committed
            records may be on new ones only.
    """
    if not partition.is_reassigning:
        raise ReassignmentRefusedError(
            "its replicas are not being changed",
            reason=ReassignmentReason.NOT_IN_PROGRESS,
            topic_partition=key,
        )
    replicas = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    in_sync = tuple(life for life in partition.isr if life.broker_id in replicas)
    suffices = len(in_sync) >= rules.config.effective_min_insync_replicas(len(replicas))
    eligible = {life.broker_id for life in partition.elr}
    # If no replica is known to have everything, P31 waits for those in sync last: keep them.
    counted = eligible if partition.isr or eligible else {*partition.last_known_elr}
    is_loss = in_sync != partition.isr or not counted.isdisjoint(partition.adding)
    after = _reduced(partition, rules, replicas, in_sync) if suffices or not is_loss else None
    if after is None:
        raise EligibleLeadersNotAvailableError(
            f"too few of its old replicas {_listed(replicas)} are in sync to go on without "
            "the new ones: wait until they are, or let the change end",
            topic_partition=key,
        )
    return after


def _reduced(
    partition: PartitionState,
    rules: Rules,
    replicas: tuple[BrokerId, ...],
    in_sync: tuple[BrokerLife, ...],
) -> PartitionState | None:
    """Return the partition with some of its replicas; None if none of them could lead it."""
    leader = partition.leader
    if leader not in replicas and partition.leader_life is not None:
        able = [life for life in in_sync if rules.can_join(life)]
        willing = {life.broker_id for life in filter(rules.can_lead, able)}
        willing = willing or {life.broker_id for life in able}
        leaders = [replica for replica in replicas if replica in willing]
        if not leaders:
            return None
        leader = leaders[0]
    return _with_replicas(
        partition, rules, replicas=replicas, leader=leader, isr=in_sync, adding=(), removing=()
    )


def _with_replicas(
    partition: PartitionState,
    rules: Rules,
    *,
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
    leader: BrokerId | None = None,
    isr: tuple[BrokerLife, ...] | None = None,
) -> PartitionState:
    isr = partition.isr if isr is None else isr
    min_isr = rules.config.effective_min_insync_replicas(
        len(replicas) - max(len(adding), len(removing))
    )
    # As in P26, with the new min ISR.
    is_enough = len(isr) >= min_isr
    elr = (
        ()
        if is_enough
        else tuple(member for member in partition.elr if member.broker_id in replicas)
    )
    last_known = () if is_enough else tuple(e for e in partition.last_known_elr if e in replicas)
    return partition.successor(
        leader=partition.leader if leader is None else leader,
        isr=isr,
        elr=elr,
        last_known_elr=last_known,
        replicas=replicas,
        adding=adding,
        removing=removing,
    )


def _check_assignment(
    key: TopicPartition,
    partition: PartitionState,
    rules: Rules,
    replicas: tuple[BrokerId, ...],
) -> None:
    if not replicas or len({*replicas}) < len(replicas):
        raise InvalidReplicaAssignmentError(
            "name at least one broker, and each once", topic_partition=key
        )
    for broker_id in replicas:
        broker = rules.brokers.get(broker_id)
        if broker is None:
            raise InvalidReplicaAssignmentError(
                f"there is no broker {broker_id}", topic_partition=key
            )
        is_new = broker_id not in partition.replicas
        if is_new and (broker.is_fenced or broker.is_draining):
            raise InvalidReplicaAssignmentError(
                f"broker {broker_id} cannot take replicas now: it is fenced or drained",
                topic_partition=key,
            )
        if is_new and not (media := rules.config.media).is_among(broker.media):
            raise InvalidReplicaAssignmentError(
                f"its topic has media={media}, and broker {broker_id} has no log directory "
                f"of it that works; it has {', '.join(broker.media) or 'none that it names'}: "
                "choose another broker, or alter the topic",
                topic_partition=key,
            )


def _listed(replicas: tuple[BrokerId, ...]) -> str:
    return ", ".join(map(str, replicas))
