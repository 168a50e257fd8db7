"""The settings of a log's files: the topic's and the broker's."""

from dataclasses import dataclass
from typing import Final, Self

from millrace.core.broker_config import StorageConfig
from millrace.core.metadata.topic_config import CleanupPolicy, TopicConfig
from millrace.core.replica.compaction.cleanable import CompactionLags
from millrace.core.replica.tiers import LocalRetention

UNLIMITED: Final = -1
_LAGS: Final = CompactionLags()
_LOCAL: Final = LocalRetention()


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
    is_compacted: bool = False
    """Whether the log is cleaned: records that later ones of their key replace are removed."""
    lags: CompactionLags = _LAGS
    """When it is cleaned."""
    delete_retention_ms: int = 86_400_000
    """How long a cleaned log keeps tombstones."""
    max_message_bytes: int = 1_048_588
    """A batch that a cleaning puts together is no larger."""
    local_retention: LocalRetention = _LOCAL
    """How much of a tiered log stays on the SSD."""
    checkpoint_bytes: int = 64 * 2**20
    """The recovery point advances after this many appended bytes; at twice that an append waits for
    it."""
    checkpoint_ms: int = 10_000
    """The recovery point advances when anything was appended this long ago."""

    @classmethod
    def of(cls, topic: TopicConfig, storage: StorageConfig) -> Self:
        """Return the settings of a topic's logs on a broker."""
        is_deleted = topic.cleanup_policy is not CleanupPolicy.COMPACT
        is_compacted = topic.cleanup_policy is not CleanupPolicy.DELETE
        segment_ms = topic.segment_ms
        if is_compacted:  # The active segment is never cleaned.
            segment_ms = min(segment_ms, topic.max_compaction_lag_ms)
        return cls(
            segment_bytes=min(topic.segment_bytes, storage.segment_bytes_max),
            segment_ms=segment_ms,
            index_interval_bytes=min(topic.index_interval_bytes, storage.index_interval_bytes_max),
            retention_ms=topic.retention_ms if is_deleted else UNLIMITED,
            retention_bytes=topic.retention_bytes if is_deleted else UNLIMITED,
            retention_records=topic.retention_records if is_deleted else UNLIMITED,
            is_compacted=is_compacted,
            lags=CompactionLags(
                min_dirty_ratio=topic.min_cleanable_dirty_ratio,
                min_lag_ms=topic.min_compaction_lag_ms,
                max_lag_ms=topic.max_compaction_lag_ms,
            ),
            delete_retention_ms=topic.delete_retention_ms,
            max_message_bytes=topic.max_message_bytes,
            local_retention=LocalRetention(topic.local_retention_ms, topic.local_retention_bytes),
            checkpoint_bytes=storage.recovery_point_bytes,
            checkpoint_ms=storage.recovery_point_interval_ms,
        )
