"""The controller's metadata with all changes that it has decided on, stored or not yet.

Requests are decided against it and change it at once; nobody else sees it before it is stored.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from millrace.core.ids import BrokerId, TopicId
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    SHARD_KEYS,
    SHARDS,
    ClusterState,
    StateShard,
    Topic,
    shard_of,
)
from millrace.core.topics import TopicName


@dataclass(slots=True)
class _DraftShard:
    topics: dict[TopicId, Topic] = field(default_factory=dict)
    deletions: dict[TopicId, frozenset[BrokerId]] = field(default_factory=dict)


class Draft:
    """See the module.

    Attributes:
        cluster: replaced as a whole when it changes.
        replica_counts: replicas of each broker.
        leader_counts: partitions of which each broker is the preferred leader.
        changed: keys of the objects that differ from what was last taken to be stored.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._shards = [_DraftShard() for _ in range(SHARDS)]
        self._names: dict[TopicName, TopicId] = {}
        self.replica_counts: Counter[BrokerId] = Counter()
        self.leader_counts: Counter[BrokerId] = Counter()
        self.changed: dict[str, None] = {}  # Ordered, unlike a set.

    @property
    def cluster(self) -> ClusterState:
        """Epochs and broker registrations."""
        return self._cluster

    @cluster.setter
    def cluster(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self.changed[CLUSTER_KEY] = None

    def topics(self) -> Iterator[Topic]:
        """Yield all topics; they may be put while this runs."""
        for shard in self._shards:
            yield from list(shard.topics.values())

    def topic(self, topic_id: TopicId) -> Topic | None:
        """Return a topic by its id."""
        return self._shards[shard_of(topic_id)].topics.get(topic_id)

    def topic_named(self, name: TopicName) -> Topic | None:
        """Return a topic by its name."""
        topic_id = self._names.get(name)
        return None if topic_id is None else self.topic(topic_id)

    def put(self, topic: Topic) -> None:
        """Add a topic, or replace the one with its id."""
        shard = self._shards[shard_of(topic.topic_id)]
        self._count(shard.topics.get(topic.topic_id), -1)
        shard.topics[topic.topic_id] = topic
        self._names[topic.name] = topic.topic_id
        self._count(topic, 1)
        self._touch(topic.topic_id)

    def delete(self, topic: Topic) -> None:
        """Remove a topic, and remember who has to delete its data."""
        shard = self._shards[shard_of(topic.topic_id)]
        del shard.topics[topic.topic_id]
        del self._names[topic.name]
        shard.deletions[topic.topic_id] = frozenset(topic.replica_holders())
        self._count(topic, -1)
        self._touch(topic.topic_id)

    def confirm_deletion(self, topic_id: TopicId, broker_id: BrokerId) -> None:
        """Note that a broker has no data of a deleted topic any more; forget it with the last."""
        deletions = self._shards[shard_of(topic_id)].deletions
        holders = deletions.get(topic_id, frozenset())
        if broker_id in holders:
            if len(holders) > 1:
                deletions[topic_id] = holders - {broker_id}
            else:
                del deletions[topic_id]
            self._touch(topic_id)

    def take_shard(self, shard: StateShard) -> None:
        """Replace a shard by what was read from the store, before anything was decided on it."""
        old = self._shards[shard.number]
        for topic in old.topics.values():
            del self._names[topic.name]
            self._count(topic, -1)
        self._shards[shard.number] = _DraftShard(dict(shard.topics), dict(shard.deletions))
        for topic in shard.topics.values():
            self._names[topic.name] = topic.topic_id
            self._count(topic, 1)

    def shard_content(
        self, number: int
    ) -> tuple[dict[TopicId, Topic], dict[TopicId, frozenset[BrokerId]]]:
        """Return copies of a shard's topics and deletions."""
        shard = self._shards[number]
        return dict(shard.topics), dict(shard.deletions)

    def _touch(self, topic_id: TopicId) -> None:
        self.changed[SHARD_KEYS[shard_of(topic_id)]] = None

    def _count(self, topic: Topic | None, sign: int) -> None:
        for partition in topic.partitions if topic else ():
            self.leader_counts[partition.replicas[0]] += sign
            for broker_id in partition.replicas:
                self.replica_counts[broker_id] += sign
