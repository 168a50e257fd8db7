"""A partition with two replicas, one here and one there: its states, and the one that is here."""

from millrace.core.ids import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicPartition,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.replica.replication.effects import Complete, Effect
from millrace.core.replica.replication.in_sync import BrokerStanding
from millrace.core.replica.replication.replica import Replica
from millrace.core.replica.replication.role import ReplicaLog
from millrace.core.replica.replication.rules import AppendRules, ReplicationConfig

HERE, THERE = BrokerLife(BrokerId(0), BrokerEpoch(10)), BrokerLife(BrokerId(1), BrokerEpoch(11))
STANDINGS = {life.broker_id: BrokerStanding(life.broker_epoch, True) for life in (HERE, THERE)}


def state_of(
    leader: BrokerLife | None,
    epoch: int,
    *,
    here: BrokerLife = HERE,
    unclean_epoch: int = -1,
) -> PartitionState:
    """Return the state of a leader epoch; both are in sync."""
    return PartitionState(
        replicas=(HERE.broker_id, THERE.broker_id),
        leader=NO_BROKER if leader is None else leader.broker_id,
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch),
        isr=(here, THERE),
        unclean_epoch=LeaderEpoch(unclean_epoch),
    )


def replica_of(
    log: ReplicaLog, topic_partition: TopicPartition, high_watermark: int = 0
) -> Replica:
    """Return the replica that is here; it has no role yet."""
    return Replica(
        topic_partition,
        HERE,
        log,
        AppendRules(),
        high_watermark=Offset(high_watermark),
        config=ReplicationConfig(),
    )


def complete(effects: list[Effect]) -> None:
    """Tell the owners of appends how they ended."""
    for effect in effects:
        if isinstance(effect, Complete):
            for waiter in effect.waiters:
                waiter.owner.on_append_done(waiter)  # type: ignore[attr-defined]


def raise_it(error: BaseException) -> None:
    """Fail the test: for what must not fail."""
    raise error
