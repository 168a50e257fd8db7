"""Requests about topics: each one changes the metadata, or is refused by itself.

The rules stand in `topic_changes` and `deleted_topics`, as functions on the metadata. Here they
become changes, and reports of what is gone for ever.
"""

from typing import Final

from millrace.core.controller import deleted_topics, topic_changes
from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.decided.decision import Decision, decide_each
from millrace.core.controller.effects import TopicGone
from millrace.core.controller.partitions import closing, leadership
from millrace.core.errors import MillraceError
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import SHARD_KEYS, Topic, shard_of
from millrace.core.metadata.requests import (
    AlterTopics,
    ConfirmDeletions,
    CreatePositionsTopic,
    CreateTopics,
    CreateTransactionsTopic,
    DeleteTopics,
    NewTopic,
    PurgeTopics,
    TopicChange,
    TopicRef,
    UndeleteTopics,
)
from millrace.core.topics import POSITIONS_TOPIC, TRANSACTIONS_TOPIC

_SHARD_NUMBERS: Final = {key: number for number, key in enumerate(SHARD_KEYS)}


class TopicRequests:
    """Decides on topics.

    Args:
        decided: changed by every request.

    Attributes:
        config: the cluster's settings; replaced when they change.
        gone: topics that were purged since the last look, for a report.
    """

    def __init__(self, config: ClusterConfig, decided: DecidedMetadata) -> None:
        self.config = config
        self.gone: list[TopicGone] = []
        self._decided = decided
        self._kept_times = deleted_topics.KeptTimes(decided)

    def create(self, request: CreateTopics) -> Decision:
        def create(asked: tuple[NewTopic, TopicId]) -> Topic:
            topic = topic_changes.created(self._decided, self.config, *asked)
            if not request.validate_only and self._decided.topic(topic.topic_id) is None:
                self._decided.put(topic)
            return topic

        return decide_each(create, zip(request.topics, request.topic_ids, strict=True), key_of)

    def create_internal_topic(
        self, request: CreatePositionsTopic | CreateTransactionsTopic
    ) -> Decision:
        is_of_positions = isinstance(request, CreatePositionsTopic)
        name = POSITIONS_TOPIC if is_of_positions else TRANSACTIONS_TOPIC
        try:
            topic = topic_changes.internal_topic(self._decided, self.config, name, request.topic_id)
        except MillraceError as error:
            return Decision(error, is_refusal=True)
        if self._decided.topic(topic.topic_id) is None:
            self._decided.put(topic)
        return Decision(topic, [key_of(topic)])

    def alter(self, request: AlterTopics) -> Decision:
        def alter(asked: TopicChange) -> Topic:
            topic = topic_changes.altered(self._decided, self.config, asked)
            if not request.validate_only:
                self._decided.put(topic)
            return topic

        return decide_each(alter, request.changes, key_of)

    def delete(self, request: DeleteTopics) -> Decision:
        def delete(asked: TopicRef) -> Topic:
            topic = topic_changes.deletable(self._decided, asked)
            if not request.validate_only:
                self._decided.delete(closing.closed(topic), request.deleted_at)
                self._kept_times.restart(topic.topic_id)
                if not self.config.deleted_topic_retention_ms:
                    self._purge(topic.topic_id, "cluster.deleted_topic_retention_ms is 0")
            return topic

        return decide_each(delete, request.topics, key_of)

    def undelete(self, request: UndeleteTopics) -> Decision:
        def undelete(asked: TopicRef) -> Topic:
            topic = deleted_topics.undeleted(self._decided, self.config, asked)
            topic_id = topic.topic_id
            if topic_id not in self._decided.deleted:
                return topic  # It is back already.
            self._decided.undelete(topic)
            keys = [TopicPartition(topic_id, number) for number in range(len(topic.partitions))]
            changes = leadership.elected(self._decided, self.config, keys)
            self._decided.put_partitions(changes)
            led = self._decided.topic(topic_id)
            assert led is not None
            return led

        return decide_each(undelete, request.topics, key_of)

    def purge(self, request: PurgeTopics) -> Decision:
        def purge(asked: TopicRef) -> Topic:
            topic = deleted_topics.found(self._decided, asked).topic
            self._purge(topic.topic_id, "it was purged")
            return topic

        return decide_each(purge, request.topics, key_of)

    def confirm_deletions(self, request: ConfirmDeletions) -> Decision:
        for topic_id in request.topic_ids:
            self._decided.confirm_deletion(topic_id, request.broker_id)
        return Decision(None, [SHARD_KEYS[shard_of(topic_id)] for topic_id in request.topic_ids])

    def tick(self, now: MonotonicMs) -> None:
        """Let deleted topics be gone for good whose time is over."""
        retention_ms = self.config.deleted_topic_retention_ms
        for topic_id in self._kept_times.overdue(retention_ms, now):
            self._purge(topic_id, "its time is over")

    def let_deleted_topics_give_way(self) -> None:
        """Keep the bounds of deleted topics: their number, and the room in changed objects."""
        for topic_id in deleted_topics.too_many(self._decided, self.config):
            self._purge(topic_id, "more than cluster.deleted_topics_max were deleted")
        for key in list(self._decided.changed):
            while key in _SHARD_NUMBERS and (
                deleted := self._decided.in_the_way(
                    _SHARD_NUMBERS[key], self.config.shard_bytes_max
                )
            ):
                self._purge(deleted.topic.topic_id, "its metadata object has no room for it")

    def _purge(self, topic_id: TopicId, reason: str) -> None:
        name = self._decided.deleted[topic_id].topic.name
        self.gone.append(TopicGone(name, topic_id, reason))
        self._decided.purge(topic_id)


def key_of(topic: Topic) -> str:
    """Return the key of the object that keeps a topic."""
    return SHARD_KEYS[shard_of(topic.topic_id)]
