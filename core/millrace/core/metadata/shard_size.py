"""The largest size of a shard's object, which is known when its topics are created.

Stores bound their objects (Kubernetes by 1.5 MB). Writes of elections and changes of in-sync
replicas cannot be refused, so room is reserved for them: leader and partition epochs of seven
digits, broker epochs of six, broker ids of four, and offsets of fifteen. Room for a reassignment is
checked when it begins. A store may keep the text within another one, where each quote takes two
characters.
"""

from collections.abc import Mapping
from typing import Final

from millrace.core.ids import BrokerId, TopicId
from millrace.core.metadata.model import DeletedTopic, PartitionState, Topic

EMPTY_BYTES: Final = 1024
"""Of a sealed shard without topics, and of the store's own additions."""

_TOPIC_BYTES: Final = 160
_SETTING_BYTES: Final = 12
_PARTITION_BYTES: Final = 78
_REPLICA_BYTES: Final = 19
_MOVED_BYTES: Final = 5
_DELETION_BYTES: Final = 48
_TIME_BYTES: Final = 56
_HOLDER_BYTES: Final = 5


def topic_bytes(topic: Topic) -> int:
    """Return the largest number of bytes that a topic may take."""
    name = len(topic.name.namespace) + len(topic.name.name)
    settings = sum(len(key) + len(text) for key, text in topic.overrides.items())
    partitions = sum([_partition_bytes(partition) for partition in topic.partitions])
    return _TOPIC_BYTES + name + settings + _SETTING_BYTES * len(topic.overrides) + partitions


def deleted_bytes(deleted: DeletedTopic) -> int:
    """Return the largest number of bytes that a topic may take that can be brought back."""
    return topic_bytes(deleted.topic) + _TIME_BYTES


def added_bytes(before: PartitionState, after: PartitionState) -> int:
    """Return by how many bytes a change may increase the largest size of a partition."""
    return _partition_bytes(after) - _partition_bytes(before)


def _partition_bytes(partition: PartitionState) -> int:
    moved = len(partition.adding) + len(partition.removing)
    return _PARTITION_BYTES + _REPLICA_BYTES * len(partition.replicas) + _MOVED_BYTES * moved


def deletions_bytes(deletions: Mapping[TopicId, frozenset[BrokerId]]) -> int:
    """Return the bytes of deleted topics whose data some brokers still have."""
    return _DELETION_BYTES * len(deletions) + _HOLDER_BYTES * sum(map(len, deletions.values()))
