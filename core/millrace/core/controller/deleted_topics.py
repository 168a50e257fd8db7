"""Deleted topics that can be brought back (P75). Pure.

A deleted topic stays in the metadata, apart from the topics that clients and brokers see, and its
files stay where they are. Brokers close its logs. It is gone for good when its time is over, when
an operator says so, or when too many other topics were deleted since; only then a tombstone orders
brokers to delete the files (P70).

When the topic comes back, leaders are elected as after a restart of all brokers: only eligible
replicas may lead, in a new leader epoch (`partitions/closing.py`). Replicas of brokers that were
unregistered meanwhile are left out.

No clock that jumps may end the time of a topic, neither in a controller's term nor between two of
them: the time is what controllers have counted by their monotonic clocks (`KeptTimes`). When a
topic was deleted by the time of day is only for people, and for the order of deletions.

The name of a deleted topic is free for another one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from millrace.core.controller.decided.decided_metadata import DecidedMetadata, age_of
from millrace.core.controller.topic_changes import check_broker_loads, check_shard_size
from millrace.core.errors import (
    BrokerBusyError,
    MalformedRequestError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import NO_BROKER, BrokerId, MonotonicMs, TopicId
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import (
    BrokerRegistration,
    DeletedTopic,
    PartitionState,
    Topic,
)
from millrace.core.metadata.requests import TopicRef
from millrace.core.metadata.shard_size import topic_bytes
from millrace.core.topics import parse_topic_name

_NAMED_MAX: Final = 20
"""Ids that a refusal names."""

_LOOK_INTERVAL_MS: Final = 1000
"""Pause between two looks at the time of deleted topics. After a longer one they count twice as
much at the most: the clock has jumped."""

_STORED_PARTS: Final = 100
_STORE_INTERVAL_MS_MIN: Final = 60_000
"""What was counted is stored after this part of the retention, and not more often than this. So
much is lost with the controller."""


def found(decided: DecidedMetadata, ref: TopicRef) -> DeletedTopic:
    """Return the deleted topic that a client means.

    Raises:
        UnknownTopicOrPartitionError: there is no such one.
        InvalidTopicError: no topic can have the name.
        MalformedRequestError: several have the name, and the request names no id.
    """
    name = parse_topic_name(ref.name) if ref.name else None
    if ref.topic_id is not None:
        known = decided.deleted.get(ref.topic_id)
        named = [known] if known is not None and name in (None, known.topic.name) else []
    else:
        named = [
            deleted_topic
            for deleted_topic in decided.deleted.values()
            if deleted_topic.topic.name == name
        ]
    if not named:
        raise UnknownTopicOrPartitionError(
            f"there is no deleted topic {ref}: none was deleted, or it is gone for good"
        )
    if len(named) > 1:
        ids = [
            deleted_topic.topic.topic_id.hex()
            for deleted_topic in sorted(named, key=age_of)[-_NAMED_MAX:]
        ]
        raise MalformedRequestError(
            f"{len(named)} deleted topics had the name {str(name)!r}: name the id of the one that "
            f"is meant. The latest was deleted last: {', '.join(ids)}"
        )
    return named[0]


def undeleted(decided: DecidedMetadata, config: ClusterConfig, ref: TopicRef) -> Topic:
    """Return a topic as it comes back, without leaders; or as it is, if it came back before.

    A client without an answer asks again with the same id.

    Raises:
        UnknownTopicOrPartitionError, InvalidTopicError, MalformedRequestError: as in `found`; or no
            broker is left that had one of the partitions.
        TopicAlreadyExistsError: another topic has the name by now.
        BrokerBusyError: the deletion of another topic of this name is not stored yet.
        InvalidPartitionsError: no room for its partitions, on a broker or in the store.
    """
    name = parse_topic_name(ref.name) if ref.name else None
    there = None if ref.topic_id is None else decided.topic(ref.topic_id)
    if there is not None and name in (None, there.name):
        return there
    topic = found(decided, ref).topic
    other = decided.topic_named(topic.name)
    if other is not None:
        raise TopicAlreadyExistsError(
            f"topic {str(topic.name)!r} was not brought back, as another one has its name by now "
            f"(id {other.topic_id.hex()}): delete that one first, if it is not needed. Both can be "
            "brought back, one at a time"
        )
    # P37: the change of the other object must be stored.
    if any(freed == topic.name for key, freed in decided.freed.items() if key != topic.topic_id):
        raise BrokerBusyError(
            f"another topic {str(topic.name)!r} was deleted this moment, and that is not stored "
            "yet: try again"
        )
    brokers = decided.cluster.brokers
    partitions = tuple(
        _on_brokers(topic, number, state, brokers) for number, state in enumerate(topic.partitions)
    )
    check_broker_loads(decided, config, topic.name, partitions)
    topic = replace(topic, partitions=partitions)
    check_shard_size(decided, config, topic, topic_bytes(topic))
    return topic


class KeptTimes:
    """Counts how long deleted topics have been kept, and which of them are overdue.

    Args:
        decided: has what was counted, now and then.
    """

    def __init__(self, decided: DecidedMetadata) -> None:
        self._decided = decided
        self._looked_at: MonotonicMs | None = None  # In this term.
        self._stored_at: MonotonicMs | None = None
        self._unstored: dict[TopicId, int] = {}  # Counted beyond what `decided` has.

    def restart(self, topic_id: TopicId) -> None:
        """Count from the beginning: the topic is deleted now."""
        self._unstored.pop(topic_id, None)

    def overdue(self, retention_ms: int, now: MonotonicMs) -> list[TopicId]:
        """Count the time since the last look; return the topics whose time is over."""
        if self._looked_at is None or self._stored_at is None:
            self._looked_at = self._stored_at = now
        passed_ms = min(now - self._looked_at, 2 * _LOOK_INTERVAL_MS)
        if 0 < passed_ms < _LOOK_INTERVAL_MS:
            return []
        self._looked_at = now
        deleted = self._decided.deleted
        # Where no count has begun, it begins now.
        self._unstored = {
            topic_id: self._unstored.get(topic_id, -passed_ms) + passed_ms for topic_id in deleted
        }
        overdue = [
            topic_id
            for topic_id, unstored_ms in self._unstored.items()
            if deleted[topic_id].kept_ms + unstored_ms >= retention_ms
        ]
        if now - self._stored_at >= max(retention_ms // _STORED_PARTS, _STORE_INTERVAL_MS_MIN):
            self._stored_at = now
            self._store()
        return overdue

    def _store(self) -> None:
        for topic_id, unstored_ms in self._unstored.items():
            before = self._decided.deleted[topic_id]
            kept = replace(before, kept_ms=before.kept_ms + unstored_ms)
            self._decided.put_deleted(kept)
            self._unstored[topic_id] = 0


def too_many(decided: DecidedMetadata, config: ClusterConfig) -> list[TopicId]:
    """Return the deleted topics that give way to those that were deleted later."""
    excess = len(decided.deleted) - config.deleted_topics_max
    if excess <= 0:
        return []
    by_age = sorted(decided.deleted.values(), key=age_of)
    return [deleted_topic.topic.topic_id for deleted_topic in by_age[:excess]]


def _on_brokers(
    topic: Topic,
    number: int,
    partition: PartitionState,
    brokers: Mapping[BrokerId, BrokerRegistration],
) -> PartitionState:
    """Return a partition without replicas of brokers that were unregistered meanwhile."""
    replicas = tuple(replica for replica in partition.replicas if replica in brokers)
    if replicas == partition.replicas:
        return partition
    if not replicas:
        raise UnknownTopicOrPartitionError(
            f"topic {str(topic.name)!r} cannot be brought back: the brokers that had partition "
            f"{number} were unregistered ({', '.join(map(str, partition.replicas))})"
        )
    return partition.successor(
        leader=NO_BROKER,
        isr=(),
        elr=tuple(life for life in partition.elr if life.broker_id in brokers),
        last_known_elr=tuple(broker for broker in partition.last_known_elr if broker in brokers),
        replicas=replicas,
        adding=(),  # A move that was under way is over.
        removing=(),
    )
