"""The settings that a partition's machines go by: the topic's, and the broker's."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from millrace.core.metadata.topic_config import Durability, TimestampType, TopicConfig
from millrace.core.settings import Unit, Visibility, setting


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
    """How a broker's partitions judge and follow their replicas."""

    replica_lag_time_max_ms: int = setting(
        30_000,
        "A follower that has not caught up with its leader for this long leaves the in-sync "
        "replicas. Kafka's `replica.lag.time.max.ms`.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    replica_fetch_backoff_ms: int = setting(
        1000,
        "Pause of a follower before it asks again after its own disk refused, or its leader did "
        "several times. Kafka's `replica.fetch.backoff.ms`.",
        unit=Unit.MILLISECONDS,
        visibility=Visibility.TUNING,
    )
    replica_fetch_backoff_min_ms: int = setting(
        20,
        "Pause after the leader refused for the first time, as when the follower has heard of it "
        "before it has itself; each further time twice as long, up to `replica_fetch_backoff_ms`.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        visibility=Visibility.TUNING,
    )
    replica_fetch_window_bytes: int = setting(
        16 << 20,
        "Bytes of batches that may be on their way from one leader to a follower: sent, and not "
        "yet written there. Not less than the largest batch that a topic allows.",
        unit=Unit.BYTES,
        minimum=1 << 20,
        visibility=Visibility.TUNING,
    )
    catch_up_bytes_per_second: int = setting(
        100 << 20,
        "Bytes a second that a leader's broker sends each follower, of partitions in which it is "
        "not in sync, on top of what is appended to them meanwhile: so a broker that comes back "
        "leaves something for producers, and does catch up. In-sync followers are never held back. "
        "Likewise for a replica that moves to another log directory of its broker.",
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
    isr_retry_ms: int = setting(
        500,
        "Pause of a leader before it proposes in-sync replicas again after the controller refused "
        "or did not answer.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        visibility=Visibility.TUNING,
    )
    isr_flap_window_ms: int = setting(
        120_000,
        "A follower that falls behind again so soon after it joined the in-sync replicas has to "
        "wait before it may join once more.",
        unit=Unit.MILLISECONDS,
        visibility=Visibility.TUNING,
    )
    isr_rejoin_pause_ms: int = setting(
        30_000,
        "How long it waits the first time; each further time twice as long. It does not wait while "
        "there are fewer in-sync replicas than `min.insync.replicas`.",
        unit=Unit.MILLISECONDS,
        visibility=Visibility.TUNING,
    )
    isr_rejoin_pause_max_ms: int = setting(
        300_000,
        "The longest such wait.",
        unit=Unit.MILLISECONDS,
        visibility=Visibility.TUNING,
    )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.isr_rejoin_pause_max_ms < self.isr_rejoin_pause_ms:
            yield (
                f"isr_rejoin_pause_max_ms = {self.isr_rejoin_pause_max_ms}: must not be less than "
                f"isr_rejoin_pause_ms = {self.isr_rejoin_pause_ms}"
            )
