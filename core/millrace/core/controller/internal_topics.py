"""The replicas of topics that belong to the cluster itself: they grow with the cluster (P77).

A cluster may begin with one broker, and its first position makes `__positions` with one replica.
The same goes for `__transactions`. Clients cannot alter these topics, and nobody should have to
reassign them whenever the cluster grows. So after each change of the metadata, the controller
compares the replicas of each partition with the number that the topic should have, and begins a
reassignment that adds the missing ones.

The controller never removes replicas. A client may reassign the topic's partitions, too: more
replicas than the number stay, and fewer are raised again. Drained brokers do not count. So a
cluster becomes smaller by draining a broker first, and then reassigning what it holds.

Zones count as for new topics. If the broker that should get a replica is away, the partition waits
for it; but among brokers of one zone, the controller takes one that is there.

Source: Redpanda raises the replication of its internal topics likewise.
"""

from collections import Counter

from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.topic_changes import candidate, internal_replication_factor
from millrace.core.ids import BrokerId
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import Topic
from millrace.core.metadata.requests import Reassignment
from millrace.core.topics import POSITIONS_TOPIC, TRANSACTIONS_TOPIC


def raised(decided: DecidedMetadata, config: ClusterConfig) -> list[Reassignment]:
    """Return the partitions that get more replicas now, the preferred leader first."""
    topics = map(decided.topic_named, (POSITIONS_TOPIC, TRANSACTIONS_TOPIC))
    loads = Counter(decided.replica_counts)
    return [
        reassignment
        for topic in topics
        if topic is not None
        for reassignment in _raised(decided, config, topic, loads)
    ]


def _raised(
    decided: DecidedMetadata, config: ClusterConfig, topic: Topic, loads: Counter[BrokerId]
) -> list[Reassignment]:
    wanted = internal_replication_factor(config, decided.cluster, topic.name)
    candidates = [candidate(member) for member in decided.cluster.members()]
    zones_of = {broker.broker_id: broker.rack for broker in decided.cluster.brokers.values()}
    found = []
    for number, partition in enumerate(topic.partitions):
        if partition.is_reassigning:
            continue
        replicas = list(partition.replicas)
        while len(replicas) < wanted:
            zones = Counter(zones_of.get(replica, "") for replica in replicas)
            chosen = min(
                (broker for broker in candidates if broker.broker_id not in replicas),
                key=lambda broker: (
                    zones[broker.zone],
                    not broker.is_there,
                    broker.has_bad_disk,
                    loads[broker.broker_id],
                    broker.broker_id,
                ),
                default=None,
            )
            if chosen is None or not chosen.is_there:
                break
            replicas.append(chosen.broker_id)
            loads[chosen.broker_id] += 1
        if len(replicas) > len(partition.replicas):
            found.append(
                Reassignment(topic_id=topic.topic_id, partition=number, replicas=tuple(replicas))
            )
    return found
