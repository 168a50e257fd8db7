"""One request to reassign partitions: what it adds is bounded, over all of its partitions.

Bounds: partitions that are being reassigned, replicas of a broker, bytes of a metadata object.
"""

from collections import Counter

from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.partitions import reassignment
from millrace.core.controller.partitions.leadership import Changes, RulesByTopic
from millrace.core.controller.partitions.offline_replicas import OfflineReplicas
from millrace.core.errors import (
    InvalidReplicaAssignmentError,
    ReassignmentReason,
    ReassignmentRefusedError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import SHARD_KEYS, PartitionState, shard_of
from millrace.core.metadata.requests import Reassignment
from millrace.core.metadata.shard_size import added_bytes
from millrace.core.words import count


class Reassigning:
    """Decides on the partitions of one request, one after the other.

    Args:
        offline: learns of the replicas that are added.
        stored_epoch: of the metadata that is stored.

    Attributes:
        changes: the partitions so far, as they are to be.
    """

    def __init__(
        self,
        decided: DecidedMetadata,
        config: ClusterConfig,
        offline: OfflineReplicas,
        stored_epoch: int,
    ) -> None:
        self.changes: Changes = {}
        self._decided = decided
        self._config = config
        self._offline = offline
        self._stored_epoch = stored_epoch
        self._rules = RulesByTopic(decided, config)
        self._loads = Counter(decided.replica_counts)
        self._grown: Counter[str] = Counter()
        self._under_way = len(decided.reassigning)

    def decide(self, asked: Reassignment) -> PartitionState:
        """Return a partition as it is to be.

        Raises:
            UnknownTopicOrPartitionError: it does not exist.
            InvalidReplicaAssignmentError: it is named twice, or a broker cannot hold it.
            ReassignmentRefusedError: another one of it is under way, or a bound is reached.
        """
        key = TopicPartition(asked.topic_id, asked.partition)
        state, rules = self._decided.partition(key), self._rules.find(key.topic_id)
        if state is None or rules is None:
            raise UnknownTopicOrPartitionError("there is no such partition", topic_partition=key)
        if key in self.changes:
            raise InvalidReplicaAssignmentError(
                "it is named twice in one request", topic_partition=key
            )
        if asked.replicas is None:
            after = reassignment.cancelled(key, state, rules)
        else:
            after = reassignment.begun(key, state, rules, asked.replicas)
            if after.is_reassigning and not state.is_reassigning:
                self._check_limits(key, after)
                self._check_room(key, added_bytes(state, after))
                self._offline.on_added(key, after.adding, self._stored_epoch)
                self._loads.update(after.adding)
                self._under_way += 1
        self.changes[key] = after
        return after

    def _check_limits(self, key: TopicPartition, after: PartitionState) -> None:
        if self._under_way >= self._config.reassigning_partitions_max:
            raise ReassignmentRefusedError(
                f"{count(self._under_way, 'partition is', 'partitions are')} being reassigned "
                "already (the setting cluster.reassigning_partitions_max): wait for some to end",
                reason=ReassignmentReason.LIMIT_REACHED,
                topic_partition=key,
            )
        for broker_id in after.adding:
            if self._loads[broker_id] >= self._config.broker_partitions_max:
                raise ReassignmentRefusedError(
                    f"broker {broker_id} holds {self._loads[broker_id]} partition replicas, and "
                    "the setting cluster.broker_partitions_max allows "
                    f"{self._config.broker_partitions_max}: choose another broker, or move some "
                    "away from it first",
                    reason=ReassignmentReason.LIMIT_REACHED,
                    topic_partition=key,
                )

    def _check_room(self, key: TopicPartition, added: int) -> None:
        shard_key = SHARD_KEYS[shard_of(key.topic_id)]
        more = self._grown[shard_key] + added
        if more and self._decided.shard_bytes(key.topic_id) + more > self._config.shard_bytes_max:
            raise ReassignmentRefusedError(
                "the metadata object of the topic has no room for more replicas (the "
                f"setting cluster.shard_bytes_max, {self._config.shard_bytes_max}): reassign "
                "fewer partitions at a time, or delete topics",
                reason=ReassignmentReason.LIMIT_REACHED,
                topic_partition=key,
            )
        self._grown[shard_key] = more
