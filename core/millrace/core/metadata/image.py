"""The confirmed metadata as one immutable value, with the look-ups that requests need.

A broker holds the latest image and swaps it for the next. Its epoch is the number of writes that
made it: the same state has the same epoch on every broker, and the epoch never goes back.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from millrace.core.errors import MillraceError
from millrace.core.ids import NO_BROKER, BrokerId, TopicId, TopicPartition
from millrace.core.metadata.model import (
    SHARDS,
    BrokerRegistration,
    ClusterState,
    DeletedTopic,
    Listener,
    PartitionState,
    StateShard,
    Topic,
    shard_of,
)
from millrace.core.topics import TopicName


@dataclass(frozen=True, slots=True)
class MetadataChanges:
    """The differences between two images. Topics are identified by id."""

    created: tuple[Topic, ...]
    altered: tuple[tuple[Topic, Topic], ...]  # Old and new: settings or partitions.
    deleted: tuple[Topic, ...]


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """Immutable metadata of one epoch, with look-ups.

    Attributes:
        epoch: grows with every change.
        topics: by name, in no order.
        topics_by_id: the same.
    """

    epoch: int
    cluster: ClusterState
    shards: tuple[StateShard, ...]
    topics: Mapping[TopicName, Topic]
    topics_by_id: Mapping[TopicId, Topic]

    @staticmethod
    def empty(cluster: ClusterState) -> "MetadataImage":
        """Return the image of a cluster without topics."""
        shards = tuple(StateShard(number=number) for number in range(SHARDS))
        return MetadataImage(cluster.version, cluster, shards, {}, {})

    def with_cluster(self, cluster: ClusterState) -> "MetadataImage":
        """Return the image after a write of the cluster state."""
        return replace(
            self, epoch=self.epoch + cluster.version - self.cluster.version, cluster=cluster
        )

    def with_shard(self, shard: StateShard) -> "MetadataImage":
        """Return the image after a write of a shard."""
        old = self.shards[shard.number]
        shards = (*self.shards[: shard.number], shard, *self.shards[shard.number + 1 :])
        topics, topics_by_id = self.topics, self.topics_by_id
        if shard.topics != old.topics:
            topics, topics_by_id = dict(topics), dict(topics_by_id)
            for topic_id, topic in old.topics.items():
                if topic_id not in shard.topics:
                    del topics_by_id[topic_id]
                    named = topics.get(topic.name)
                    if named is not None and named.topic_id == topic_id:
                        del topics[topic.name]
            for topic_id, topic in shard.topics.items():
                topics_by_id[topic_id] = topics[topic.name] = topic
        return MetadataImage(
            self.epoch + shard.version - old.version, self.cluster, shards, topics, topics_by_id
        )

    def partition(self, topic_partition: TopicPartition) -> PartitionState | None:
        """Return the state of a partition; None when there is no such topic or number."""
        topic = self.topics_by_id.get(topic_partition.topic_id)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def broker(self, broker_id: BrokerId) -> BrokerRegistration | None:
        """Return a broker's registration."""
        return self.cluster.brokers.get(broker_id)

    def name_of(self, topic_partition: TopicPartition) -> str:
        """Return a partition's name for people; the topic's id if the topic is gone."""
        topic = self.topics_by_id.get(topic_partition.topic_id)
        return (
            str(topic_partition) if topic is None else f"{topic.name}-{topic_partition.partition}"
        )

    def in_words(self, error: MillraceError) -> MillraceError:
        """Return an error about a partition with its topic's name, for people.

        Machines and logs know topics only by their ids.
        """
        place = error.topic_partition
        if place is None or place.topic_id not in self.topics_by_id:
            return error
        return error.naming(self.name_of(place))

    def leader_address(self, partition: PartitionState, listener: Listener) -> str:
        """Return `host:port` of a partition's leader; empty when there is none, or no address."""
        if partition.leader == NO_BROKER:
            return ""
        leader = self.cluster.brokers.get(partition.leader)
        return "" if leader is None else leader.address_at(listener)

    def replicas_of(self, broker_id: BrokerId) -> Iterator[tuple[TopicPartition, Topic]]:
        """Yield the partitions of which a broker holds a replica."""
        for topic_id, topic in self.topics_by_id.items():
            for number, partition in enumerate(topic.partitions):
                if broker_id in partition.replicas:
                    yield TopicPartition(topic_id, number), topic

    def deleted_topics(self) -> Iterator[DeletedTopic]:
        """Yield the deleted topics that can be brought back."""
        for shard in self.shards:
            yield from shard.deleted.values()

    def deleted_topic(self, topic_id: TopicId) -> DeletedTopic | None:
        """Return a deleted topic that can be brought back; None: there is none of that id."""
        return self.shards[shard_of(topic_id)].deleted.get(topic_id)

    def may_return(self, topic_id: TopicId) -> bool:
        """Whether a topic is deleted, and can be brought back."""
        return topic_id in self.shards[shard_of(topic_id)].deleted

    def deletions_of(self, broker_id: BrokerId) -> list[TopicId]:
        """Return the topics gone for good whose data a broker has yet to delete (P39)."""
        return [
            topic_id
            for shard in self.shards
            for topic_id, broker_ids in shard.deletions.items()
            if broker_id in broker_ids
        ]

    def changes_since(self, old: "MetadataImage") -> MetadataChanges:
        """Return the differences from an older image. Unchanged shards cost nothing."""
        created: list[Topic] = []
        altered: list[tuple[Topic, Topic]] = []
        deleted: list[Topic] = []
        for before, after in zip(old.shards, self.shards, strict=True):
            if before is after:
                continue
            for topic_id, topic in after.topics.items():
                previous = before.topics.get(topic_id)
                if previous is None:
                    created.append(topic)
                elif previous is not topic and previous != topic:
                    altered.append((previous, topic))
            deleted += [
                topic for topic_id, topic in before.topics.items() if topic_id not in after.topics
            ]
        return MetadataChanges(tuple(created), tuple(altered), tuple(deleted))
