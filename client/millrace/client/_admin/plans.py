"""Where replicas should go: plans for `Admin.reassign_partitions`."""

from collections import Counter
from collections.abc import Collection, Iterable

from millrace.client._admin.descriptions import TopicDescription
from millrace.client._cluster.wire import BrokerInfo
from millrace.core.controller.balancing.placement import Candidate
from millrace.core.controller.balancing.reassignment_plan import planned
from millrace.core.ids import BrokerId
from millrace.core.media import TopicMedia
from millrace.core.topics import PartitionName


def plan_reassignment(
    topics: Iterable[TopicDescription],
    brokers: Iterable[BrokerInfo],
    *,
    partitions: Collection[PartitionName] | None = None,
    nothing_new: Collection[BrokerId] = (),
    replication_factor: int | None = None,
    replication_factor_max: int | None = None,
) -> dict[PartitionName, tuple[BrokerId, ...]]:
    """Return the new replicas of the partitions that should change, the preferred leader first.

    It moves as little as possible: away from brokers that should hold none, or lack the topic's
    media, over zones, then until each broker has its share. Reassignments under way stay unchanged.

        cluster = await admin.describe_cluster()
        topics = await admin.describe_topics()
        plan = plan_reassignment(topics.values(), cluster.brokers, partitions=[("orders", 0)])
        refused = await admin.reassign_partitions(plan)

    Args:
        topics: all of the cluster, as the other replicas of brokers count, too.
        brokers: those that should hold replicas.
        partitions: those that may move, by topic and number; None: all.
        nothing_new: ids of brokers that may keep their replicas, and get no more.
        replication_factor: replicas that each partition shall have; None: as many as it has.
        replication_factor_max: upper bound of that; partitions that have fewer get no more.

    Raises:
        InvalidReplicaAssignmentError: a partition has more replicas than brokers can hold it.
    """
    before: dict[PartitionName, tuple[BrokerId, ...]] = {}
    media: dict[PartitionName, TopicMedia] = {}
    other_replicas: Counter[BrokerId] = Counter()
    other_leaders: Counter[BrokerId] = Counter()
    for topic in topics:
        for partition in topic.partitions:
            place = topic.name, partition.partition
            if partition.is_reassigning or not (partitions is None or place in partitions):
                other_replicas.update(partition.target_replicas)
                other_leaders[partition.preferred_leader] += 1
            else:
                before[place] = partition.target_replicas
                media[place] = topic.media
    return planned(
        before,
        [Candidate(broker.broker_id, broker.rack, broker.media) for broker in brokers],
        replication_factor=replication_factor,
        replication_factor_max=replication_factor_max,
        media=media,
        nothing_new=nothing_new,
        other_replicas=other_replicas,
        other_leaders=other_leaders,
    )
