"""The settings of a partition's machines: the topic's and the broker's."""

from dataclasses import dataclass
from typing import Self

from millrace.core.metadata.topic_config import Durability, TimestampType, TopicConfig
from millrace.core.settings import Unit, Visibility, constant, setting


@dataclass(slots=True, frozen=True, kw_only=True)
class AppendRules:
    """The topic's settings that decide over an append and its acknowledgement."""

    durability: Durability = Durability.FSYNC
    min_insync_replicas: int = 1
    """As the topic asks; the machines never ask for more replicas than the partition has."""
    stamps_append_time: bool = False
    timestamp_after_max_ms: int = 3_600_000
    timestamp_before_max_ms: int = 2**63 - 1

    @classmethod
    def of(cls, config: TopicConfig, replication_factor: int) -> Self:
        """Return a topic's rules for a partition of so many replicas."""
        return cls(
            durability=config.durability,
            min_insync_replicas=config.effective_min_insync_replicas(replication_factor),
            stamps_append_time=config.message_timestamp_type is TimestampType.LOG_APPEND_TIME,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        )


@dataclass(frozen=True, kw_only=True)
class ReplicationConfig:
    """The broker's settings for leaders and followers."""

    replica_lag_time_max_ms: int = setting(
        30_000,
        "A follower that has not caught up with its leader for this long leaves the in-sync "
        "replicas.",
        kafka="replica.lag.time.max.ms",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    replica_fetch_window_bytes: int = setting(
        16 << 20,
        "Bytes of batches in flight from one leader to a follower: sent, and not yet written, or "
        "with durability=fsync flushed, there. Not less than the largest batch that a topic "
        "allows.",
        unit=Unit.BYTES,
        minimum=1 << 20,
        visibility=Visibility.TUNING,
    )
    catch_up_bytes_per_second: int = setting(
        100 << 20,
        "Bytes a second that a leader's broker sends each follower, of partitions in which it is "
        "not in sync, plus the bytes appended to them meanwhile. So a returning broker catches up, "
        "without slowing producers down too much. In-sync followers are never held back. Likewise "
        "for a replica that moves to another log directory of its broker.",
        unit=Unit.BYTES,
        minimum=1 << 10,
        minus_one="as fast as it goes",
    )
    replica_moves_max: int = setting(
        1,
        "Replicas that a broker moves at the same time because they lie on another media than "
        "their topic asks for, and it has a log directory of that media; 0: they stay where they "
        "are.",
    )
    isr_rejoin_pause_ms: int = setting(
        30_000,
        "A follower that falls behind again within four times this after it joined the in-sync "
        "replicas waits this long before it may join again; each further time twice as long, up to "
        "ten times this. It does not wait while there are fewer in-sync replicas than "
        "`min.insync.replicas`.",
        unit=Unit.MILLISECONDS,
        visibility=Visibility.TUNING,
    )

    replica_fetch_backoff_ms: int = constant(1000)
    """Pause of a follower before it asks again after its own disk refused, or its leader did
    several times."""
    replica_fetch_backoff_min_ms: int = constant(20)
    """Pause after the leader refused for the first time, for example when the follower heard of the
    leader before the leader itself; each further time twice as long, up to
    `replica_fetch_backoff_ms`."""
    isr_retry_ms: int = constant(500)
    """Pause of a leader before it proposes in-sync replicas again after the controller refused or
    did not answer."""
