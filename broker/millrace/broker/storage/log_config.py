"""The settings of a log's files: the topic's and the broker's."""

from dataclasses import dataclass
from typing import Final, Self

from millrace.core.broker_config import StorageConfig
from millrace.core.metadata.topic_config import TopicConfig

UNLIMITED: Final = -1


@dataclass(slots=True, frozen=True, kw_only=True)
class LogConfig:
    """A topic's settings for its files, by Kafka's names. Replaced at run time as a whole."""

    segment_bytes: int = 1_073_741_824
    """A segment is closed before an append that would make it larger; at most 2^31 - 1."""
    segment_ms: int = 604_800_000
    """A segment is closed by the first append this long after its first one."""
    index_interval_bytes: int = 4096
    """Distance of index entries: halving it doubles the index and halves what a search walks."""
    retention_ms: int = 604_800_000
    """Closed segments whose newest record is older are deleted; -1 keeps them."""
    retention_bytes: int = UNLIMITED
    """The oldest segments are deleted while the others still have this many bytes; -1 keeps
    them."""
    retention_records: int = UNLIMITED
    """Likewise while the others still have this many records; -1 keeps them."""
    checkpoint_bytes: int = 64 * 2**20
    """The recovery point advances after this many appended bytes; at twice that an append waits for
    it."""
    checkpoint_ms: int = 10_000
    """The recovery point advances when anything was appended this long ago."""

    @classmethod
    def of(cls, topic: TopicConfig, storage: StorageConfig) -> Self:
        """Return the settings of a topic's logs on a broker."""
        return cls(
            segment_bytes=min(topic.segment_bytes, storage.segment_bytes_max),
            segment_ms=topic.segment_ms,
            index_interval_bytes=min(topic.index_interval_bytes, storage.index_interval_bytes_max),
            retention_ms=topic.retention_ms,
            retention_bytes=topic.retention_bytes,
            retention_records=topic.retention_records,
            checkpoint_bytes=storage.recovery_point_bytes,
            checkpoint_ms=storage.recovery_point_interval_ms,
        )
