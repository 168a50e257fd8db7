"""The controller's metadata with all changes that it has decided on, stored or not yet.

Requests are decided against it and change it at once; others see a change only after it is stored.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from millrace.core.ids import NO_BROKER, BrokerId, TopicId, TopicPartition, WallMs
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    SHARD_KEYS,
    SHARDS,
    ClusterState,
    DeletedTopic,
    PartitionState,
    StateShard,
    Topic,
    shard_of,
)
from millrace.core.metadata.shard_size import (
    EMPTY_BYTES,
    deleted_bytes,
    deletions_bytes,
    topic_bytes,
)
from millrace.core.topics import TopicName


@dataclass(slots=True)
class _DecidedShard:
    topics: dict[TopicId, Topic] = field(default_factory=dict)
    deleted: dict[TopicId, DeletedTopic] = field(default_factory=dict)
    deletions: dict[TopicId, frozenset[BrokerId]] = field(default_factory=dict)
    topics_bytes: int = 0
    deleted_bytes: int = 0

    @property
    def tombstone_bytes(self) -> int:
        """Of topics that are gone for good, and of deleted ones once they are."""
        to_come = {
            topic_id: _holders(deleted_topic.topic)
            for topic_id, deleted_topic in self.deleted.items()
        }
        return deletions_bytes(self.deletions) + deletions_bytes(to_come)


class DecidedMetadata:
    """The decided topics and brokers, with counts and sets that follow from them.

    Attributes:
        cluster: replaced as a whole when it changes.
        replica_counts: replicas of each broker.
        leader_counts: partitions of which each broker is the preferred leader.
        follower_counts: by preferred leader and follower, the partitions that they share.
        heir_counts: by preferred leader and the first one after it, likewise.
        led_counts: partitions that each broker leads.
        leaderless: partitions without a leader.
        unproven: those of them where no replica can lead before it has shown its log (P26, P31).
        misled: partitions that are led by another than their preferred leader.
        reassigning: partitions whose replicas are being changed.
        elected_uncleanly: partitions whose leader may lack records, until that is reported.
        deleted: topics that can be brought back. They are in none of these counts and sets.
        freed: names of deleted topics, until the deletion is known to be stored.
        changed: keys of the objects that differ from what was last taken to be stored.
        changes: how many there were. After a look at everything, the next one is due when it grows.

    The sets of partitions are dicts without values: those have an order.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._shards = [_DecidedShard() for _ in range(SHARDS)]
        # One topic each; an earlier release could leave two of a name behind.
        self._names: dict[TopicName, tuple[TopicId, ...]] = {}
        self.replica_counts: Counter[BrokerId] = Counter()
        self.leader_counts: Counter[BrokerId] = Counter()
        self.follower_counts: Counter[tuple[BrokerId, BrokerId]] = Counter()
        self.heir_counts: Counter[tuple[BrokerId, BrokerId]] = Counter()
        self.led_counts: Counter[BrokerId] = Counter()
        self.leaderless: dict[TopicPartition, None] = {}
        self.unproven: dict[TopicPartition, None] = {}
        self.misled: dict[TopicPartition, None] = {}
        self.reassigning: dict[TopicPartition, None] = {}
        self.elected_uncleanly: dict[TopicPartition, PartitionState] = {}
        self.deleted: dict[TopicId, DeletedTopic] = {}
        self.freed: dict[TopicId, TopicName] = {}
        self.changed: dict[str, None] = {}  # Ordered, unlike a set.
        self.changes = 0

    @property
    def cluster(self) -> ClusterState:
        """Epochs and broker registrations."""
        return self._cluster

    @cluster.setter
    def cluster(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self.changed[CLUSTER_KEY] = None
        self.changes += 1

    def topics(self) -> Iterator[Topic]:
        """Yield all topics; they may be put while this runs."""
        for shard in self._shards:
            yield from list(shard.topics.values())

    def topic(self, topic_id: TopicId) -> Topic | None:
        """Return a topic by its id."""
        return self._shards[shard_of(topic_id)].topics.get(topic_id)

    def topic_named(self, name: TopicName) -> Topic | None:
        """Return a topic by its name."""
        topic_ids = self._names.get(name)
        return None if topic_ids is None else self.topic(topic_ids[0])

    def is_gone(self, topic_id: TopicId) -> bool:
        """Return whether a topic of this id is gone for good, and brokers still have its data."""
        return topic_id in self._shards[shard_of(topic_id)].deletions

    def partition(self, topic_partition: TopicPartition) -> PartitionState | None:
        """Return a partition; None when there is no such topic or number."""
        topic = self.topic(topic_partition.topic_id)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]

    def put(self, topic: Topic) -> None:
        """Add a topic, or replace the one with its id."""
        shard = self._shards[shard_of(topic.topic_id)]
        before = shard.topics.get(topic.topic_id)
        self._recount(topic.topic_id, before, topic)
        shard.topics[topic.topic_id] = topic
        shard.topics_bytes += topic_bytes(topic) - (topic_bytes(before) if before else 0)
        self._name(topic)
        self._touch(topic.topic_id)

    def put_partitions(self, changes: Mapping[TopicPartition, PartitionState]) -> list[str]:
        """Replace partitions, a topic at a time; return the keys of their objects, each once."""
        by_topic: dict[TopicId, dict[int, PartitionState]] = {}
        for (topic_id, number), partition in changes.items():
            by_topic.setdefault(topic_id, {})[number] = partition
        for topic_id, changed in by_topic.items():
            topic = self.topic(topic_id)
            assert topic is not None
            partitions = list(topic.partitions)
            for number, partition in changed.items():
                partitions[number] = partition
            self.put(replace(topic, partitions=tuple(partitions)))
        return list(dict.fromkeys(SHARD_KEYS[shard_of(topic_id)] for topic_id in by_topic))

    def delete(self, topic: Topic, deleted_at: WallMs) -> None:
        """Make a topic a deleted one, as it is from now on: closed everywhere."""
        topic_id = topic.topic_id
        shard = self._shards[shard_of(topic_id)]
        before = shard.topics.pop(topic_id)
        shard.topics_bytes -= topic_bytes(before)
        self._unname(before)
        self.freed[topic_id] = topic.name
        self._recount(topic_id, before, None)
        self.put_deleted(DeletedTopic(topic=topic, deleted_at=deleted_at))

    def put_deleted(self, deleted: DeletedTopic) -> None:
        """Add a deleted topic, or replace the one with its id."""
        topic_id = deleted.topic.topic_id
        self._take_deleted(topic_id)
        shard = self._shards[shard_of(topic_id)]
        shard.deleted[topic_id] = self.deleted[topic_id] = deleted
        shard.deleted_bytes += deleted_bytes(deleted)
        self._touch(topic_id)

    def undelete(self, topic: Topic) -> None:
        """Make a deleted topic one of the topics again."""
        self._take_deleted(topic.topic_id)
        self.put(topic)

    def purge(self, topic_id: TopicId) -> None:
        """Give a deleted topic up, and remember the brokers that have to delete its data."""
        deleted = self._take_deleted(topic_id)
        assert deleted is not None
        self._shards[shard_of(topic_id)].deletions[topic_id] = _holders(deleted.topic)
        self._touch(topic_id)

    def _take_deleted(self, topic_id: TopicId) -> DeletedTopic | None:
        shard = self._shards[shard_of(topic_id)]
        deleted = shard.deleted.pop(topic_id, None)
        if deleted is not None:
            del self.deleted[topic_id]
            shard.deleted_bytes -= deleted_bytes(deleted)
        return deleted

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
        """Replace a shard by the stored one, before anything was decided on it."""
        old = self._shards[shard.number]
        for topic in old.topics.values():
            self._unname(topic)
            self._recount(topic.topic_id, topic, None)
        for topic_id in old.deleted:
            del self.deleted[topic_id]
        self._shards[shard.number] = _DecidedShard(
            dict(shard.topics),
            dict(shard.deleted),
            dict(shard.deletions),
            sum(topic_bytes(topic) for topic in shard.topics.values()),
            sum(deleted_bytes(deleted_topic) for deleted_topic in shard.deleted.values()),
        )
        self.deleted.update(shard.deleted)
        for topic in shard.topics.values():
            self._name(topic)
            self._recount(topic.topic_id, None, topic)
        self.changes += 1

    def shard_content(
        self, number: int
    ) -> tuple[
        dict[TopicId, Topic], dict[TopicId, DeletedTopic], dict[TopicId, frozenset[BrokerId]]
    ]:
        """Return copies of a shard's topics, deleted topics, and deletions."""
        shard = self._shards[number]
        return dict(shard.topics), dict(shard.deleted), dict(shard.deletions)

    def shard_bytes(self, topic_id: TopicId) -> int:
        """Return the largest size that the present shard of this topic may grow to.

        Deleted topics give way: they count as if they were gone for good.
        """
        shard = self._shards[shard_of(topic_id)]
        return EMPTY_BYTES + shard.topics_bytes + shard.tombstone_bytes

    def in_the_way(self, number: int, shard_bytes_max: int) -> DeletedTopic | None:
        """Return the deleted topic that a shard has no room for; None: there is room."""
        shard = self._shards[number]
        size = EMPTY_BYTES + shard.topics_bytes + deletions_bytes(shard.deletions)
        if size + shard.deleted_bytes <= shard_bytes_max:
            return None
        return min(shard.deleted.values(), key=age_of, default=None)

    def _name(self, topic: Topic) -> None:
        topic_ids = self._names.get(topic.name, ())
        if topic.topic_id not in topic_ids:
            self._names[topic.name] = (*topic_ids, topic.topic_id)

    def _unname(self, topic: Topic) -> None:
        others = tuple(name for name in self._names[topic.name] if name != topic.topic_id)
        if others:
            self._names[topic.name] = others
        else:
            del self._names[topic.name]

    def _touch(self, topic_id: TopicId) -> None:
        self.changed[SHARD_KEYS[shard_of(topic_id)]] = None
        self.changes += 1

    def _recount(self, topic_id: TopicId, old: Topic | None, new: Topic | None) -> None:
        pairs = zip_longest(old.partitions if old else (), new.partitions if new else ())
        for number, (before, after) in enumerate(pairs):
            if before is after:
                continue
            if before is not None:
                self._count(before, -1)
            if after is not None:
                self._count(after, 1)
                if before is not None and after.unclean_epoch != before.unclean_epoch:
                    self.elected_uncleanly[TopicPartition(topic_id, number)] = after
            self._classify(TopicPartition(topic_id, number), after)

    def _count(self, partition: PartitionState, sign: int) -> None:
        preferred, *followers = partition.replicas
        self.leader_counts[preferred] += sign
        self.replica_counts[preferred] += sign
        for broker_id in followers:
            self.replica_counts[broker_id] += sign
            self.follower_counts[preferred, broker_id] += sign
        for broker_id in followers[:1]:
            self.heir_counts[preferred, broker_id] += sign
        if partition.leader != NO_BROKER:
            self.led_counts[partition.leader] += sign

    def _classify(self, key: TopicPartition, partition: PartitionState | None) -> None:
        for keys, belongs in (
            (self.leaderless, partition is not None and partition.leader == NO_BROKER),
            (self.unproven, partition is not None and partition.is_unproven),
            (
                self.misled,
                partition is not None
                and partition.leader not in (NO_BROKER, partition.replicas[0]),
            ),
            (
                self.reassigning,
                partition is not None and partition.is_reassigning,
            ),
        ):
            if belongs:
                keys[key] = None
            else:
                keys.pop(key, None)


def age_of(deleted: DeletedTopic) -> tuple[WallMs, TopicId]:
    """Return a key that orders deleted topics: the first to give way is the lowest."""
    return deleted.deleted_at, deleted.topic.topic_id


def _holders(topic: Topic) -> frozenset[BrokerId]:
    return frozenset(topic.replica_holders())
