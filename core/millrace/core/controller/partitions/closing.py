"""Partitions of deleted topics, which can be brought back (P75). Pure.

Nothing is committed while a topic is deleted. So every replica that was in sync or eligible still
has everything that was acknowledged, and all of these are eligible: no partition has a leader or an
ISR. The change begins another leader epoch, so a leader that does not know yet cannot have an ISR
changed (P19); what it commits meanwhile, all of these replicas have.

A broker that starts again gets another life in these partitions as in all others, and stays
eligible only if it surely still has its records (P26, P27).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from millrace.core.controller.partitions import elections
from millrace.core.controller.partitions.elections import Restart, Rules
from millrace.core.ids import NO_BROKER, BrokerId
from millrace.core.metadata.model import (
    BrokerLife,
    BrokerRegistration,
    DeletedTopic,
    PartitionState,
    Topic,
)


def closed(topic: Topic) -> Topic:
    """Return a topic as it is while it is deleted."""
    return replace(topic, partitions=tuple(map(_without_leader, topic.partitions)))


def _without_leader(partition: PartitionState) -> PartitionState:
    members = {life.broker_id: life for life in (*partition.isr, *partition.elr)}
    return partition.successor(
        leader=NO_BROKER,
        isr=(),
        elr=tuple(members[replica] for replica in partition.replicas if replica in members),
        last_known_elr=partition.last_known_elr,
    )


def restarted(
    deleted: Iterable[DeletedTopic],
    brokers: Mapping[BrokerId, BrokerRegistration],
    life: BrokerLife,
    restart: Restart,
) -> list[DeletedTopic]:
    """Take a broker's earlier life out of deleted topics, before it gets the new one (P37)."""
    nobody = {key: replace(broker, is_fenced=True) for key, broker in brokers.items()}
    changed = []
    for deleted_topic in deleted:
        rules = Rules(brokers=nobody, config=deleted_topic.topic.config, may_elect_unclean=False)
        partitions = tuple(
            elections.restarted(state, rules, life, restart)
            if life.broker_id in state.replicas
            else state
            for state in deleted_topic.topic.partitions
        )
        if partitions != deleted_topic.topic.partitions:
            changed.append(
                replace(deleted_topic, topic=replace(deleted_topic.topic, partitions=partitions))
            )
    return changed
