"""Where replicas should go: plans for `Admin.reassign_partitions`."""

from collections import Counter
from collections.abc import Collection, Iterable

from millrace.client._descriptions import TopicDescription
from millrace.client._wire import BrokerInfo, Place
from millrace.core.ids import BrokerId
from millrace.core.media import TopicMedia
from millrace.core.metadata.placement import Candidate
from millrace.core.metadata.reassignment_plan import planned


def plan_reassignment(
    topics: Iterable[TopicDescription],
    brokers: Iterable[BrokerInfo],
    *,
    partitions: Collection[Place] | None = None,
    nothing_new: Collection[BrokerId] = (),
    replication_factor: int | None = None,
    replication_factor_max: int | None = None,
) -> dict[Place, tuple[BrokerId, ...]]:
    """Return the new replicas of the partitions that should change, the preferred leader first.

    As little moves as can be: off brokers that are not to hold any, or lack the topic's media, over
    zones, then until each broker has its share. What is being reassigned already stays on its way.

        cluster = await admin.describe_cluster()
        topics = await admin.describe_topics()
        plan = plan_reassignment(topics.values(), cluster.brokers, partitions=[("orders", 0)])
        refused = await admin.reassign_partitions(plan)

    Args:
        topics: all of the cluster, since what brokers hold of others counts.
        brokers: those that are to hold replicas.
        partitions: what may move, by topic and number; None: all.
        nothing_new: ids of brokers that may keep what they have, and get no more.
        replication_factor: how many replicas each is to have; None: as many as it has.
        replication_factor_max: how many that is at the most; those that have fewer get no more.

    Raises:
        InvalidReplicaAssignmentError: a partition has more replicas than brokers can hold it.
    """
    before: dict[Place, tuple[BrokerId, ...]] = {}
    media: dict[Place, TopicMedia] = {}
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
        [Candidate(each.broker_id, each.rack, each.media) for each in brokers],
        replication_factor=replication_factor,
        replication_factor_max=replication_factor_max,
        media=media,
        nothing_new=nothing_new,
        other_replicas=other_replicas,
        other_leaders=other_leaders,
    )
