"""How large the object of a shard may become, which is known when its topics are made.

Stores bound their objects (Kubernetes by 1.5 MB). What elections and changes of in-sync replicas
write cannot be refused, so there must be room for it before: counted are leader and partition
epochs of seven digits, broker epochs of six, broker ids of four, and every replica as one that is
being added. A store may keep the text within another one, where each quote takes two characters.
"""

from collections.abc import Mapping
from typing import Final

from millrace.core.ids import BrokerId, TopicId
from millrace.core.metadata.model import PartitionState, Topic

EMPTY_BYTES: Final = 1024
"""Of a shard without topics, sealed, and with what a store adds."""

_TOPIC_BYTES: Final = 160
_SETTING_BYTES: Final = 12
_PARTITION_BYTES: Final = 58
_REPLICA_BYTES: Final = 24
_DELETION_BYTES: Final = 48
_HOLDER_BYTES: Final = 5


def topic_bytes(topic: Topic) -> int:
    """Return how many bytes a topic may come to take."""
    name = len(topic.name.namespace) + len(topic.name.name)
    settings = sum(len(key) + len(text) for key, text in topic.overrides.items())
    replicas = sum([len(each.replicas) for each in topic.partitions])
    return (
        _TOPIC_BYTES
        + name
        + settings
        + _SETTING_BYTES * len(topic.overrides)
        + _PARTITION_BYTES * len(topic.partitions)
        + _REPLICA_BYTES * replicas
    )


def added_bytes(before: PartitionState, after: PartitionState) -> int:
    """Return how many bytes more a partition takes when it gets replicas."""
    return _REPLICA_BYTES * (len(after.replicas) - len(before.replicas))


def deletions_bytes(deletions: Mapping[TopicId, frozenset[BrokerId]]) -> int:
    """Return how many bytes the topics take that are deleted, and not yet everywhere."""
    return _DELETION_BYTES * len(deletions) + _HOLDER_BYTES * sum(map(len, deletions.values()))
