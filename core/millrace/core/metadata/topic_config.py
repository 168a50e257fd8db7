"""Settings of one topic, by Kafka's names (`retention.ms` is `TopicConfig.retention_ms`).

`durability`, `media`, `retention.records` and `deletion.protection` are our own.
The texts that the user set are stored; all other settings follow the defaults here, also when a
later release changes one. Defaults are Kafka's, except `durability` and `min.insync.replicas`:
records are on disk, and on all replicas but one, before they are acknowledged unless a topic asks
for less.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from millrace.core import settings
from millrace.core.errors import InvalidConfigError
from millrace.core.media import TopicMedia
from millrace.core.settings import INT64_MAX, NO_LIMIT, Unit, Visibility, setting

SEPARATOR: Final = "."
PROTECTION_SETTING: Final = "deletion.protection"
SEGMENT_MS_MIN: Final = 1_000
"""Segments do not end more often: each costs some files and flushes."""
_PARSED_MAX: Final = 1024
"""Size of the cache of parsed settings: every change of a shard decodes all of its topics."""


class Durability(StrEnum):
    """When a record counts as written."""

    FSYNC = "fsync"
    REPLICATED = "replicated"


class CleanupPolicy(StrEnum):
    """How old records of a topic are removed."""

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"


class TimestampType(StrEnum):
    """The clock of a record's timestamp: the producer's or the leader's."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


def _cleanup_policy(value: object) -> CleanupPolicy:
    """Read a cleanup policy; the order of two does not matter.

    Raises:
        ValueError: it is another.
    """
    words = str(value).replace(" ", "").lower().split(",")
    try:
        return CleanupPolicy(",".join(sorted(words)))
    except ValueError:
        raise ValueError("must be delete, compact or compact,delete") from None


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """The settings of a topic."""

    durability: Durability = setting(
        Durability.FSYNC,
        "`fsync`: a record is acknowledged once it is on disk; many appends share one flush. "
        "`replicated`: once it is in the page cache, as in Kafka; a power cut may then lose "
        "records that no other replica has.",
        needs_restart=False,
    )
    media: TopicMedia = setting(
        TopicMedia.ANY,
        "Media of the replicas: only brokers that have a log directory of this media get new ones, "
        "and put them there. After a change, replicas on another media stay and work until they "
        "are moved, see [clusters.md](clusters.md). `tiered`: on an SSD, and closed segments move "
        "to an HDD of the same broker later, see `local.retention.*` and [tiers.md](tiers.md).",
        needs_restart=False,
    )
    retention_ms: int = setting(
        604_800_000,
        "Segments whose newest record is older than this are deleted.",
        unit=Unit.MILLISECONDS,
        maximum=INT64_MAX,
        minus_one=NO_LIMIT,
        needs_restart=False,
    )
    retention_bytes: int = setting(
        -1,
        "The oldest segments of a partition are deleted while it is larger than this.",
        unit=Unit.BYTES,
        maximum=INT64_MAX,
        minus_one=NO_LIMIT,
        needs_restart=False,
    )
    retention_records: int = setting(
        -1,
        "The oldest segments of a partition are deleted while the others have at least this many "
        "records. Segments go whole, and never the one that is written to: a partition keeps up to "
        "`segment.bytes`, or `segment.ms`, more.",
        maximum=INT64_MAX,
        minus_one=NO_LIMIT,
        needs_restart=False,
    )
    local_retention_ms: int = setting(
        86_400_000,
        "With `media=tiered`, closed segments whose newest record is older than this move from the "
        "SSD to the HDD. They move earlier when the SSD fills, see "
        "`storage.tier_free_bytes_min`.",
        unit=Unit.MILLISECONDS,
        maximum=INT64_MAX,
        minus_one=NO_LIMIT,
        needs_restart=False,
    )
    local_retention_bytes: int = setting(
        -1,
        "With `media=tiered`, the oldest closed segments of a partition move to the HDD while the "
        "others on the SSD still have this many bytes.",
        unit=Unit.BYTES,
        maximum=INT64_MAX,
        minus_one=NO_LIMIT,
        needs_restart=False,
    )
    cleanup_policy: CleanupPolicy = setting(
        CleanupPolicy.DELETE,
        "`delete`: old segments are deleted, by `retention.*`. `compact`: at least the latest "
        "record of each key is kept; the records that it replaces are removed some time later, and "
        "every record needs a key. `compact,delete`: both. See [compaction.md](compaction.md).",
        parse=_cleanup_policy,
        allowed="delete, compact or compact,delete",
        needs_restart=False,
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "A log is compacted once more than this part of it, in bytes, was written since it was "
        "compacted last. Less wastes less space, and copies the log more often.",
        maximum=1,
        needs_restart=False,
    )
    min_compaction_lag_ms: int = setting(
        0,
        "A record is not removed by compaction for this long after it was written: a reader that "
        "is no further behind sees every record.",
        unit=Unit.MILLISECONDS,
        maximum=INT64_MAX,
        needs_restart=False,
    )
    max_compaction_lag_ms: int = setting(
        INT64_MAX,
        "A log is compacted this long after a record was written, however little of it is new. "
        "Segments end no later either.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        maximum=INT64_MAX,
        needs_restart=False,
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "A compacted log keeps a record without a value, which deletes its key, for this long "
        "after what it deletes was removed. A reader that takes no longer from the log's start to "
        "its end sees every deletion.",
        unit=Unit.MILLISECONDS,
        maximum=INT64_MAX,
        needs_restart=False,
    )
    deletion_protection: bool = setting(
        False,
        "`true`: the topic cannot be deleted before this is `false` again. Its records can, by "
        "retention and by `millrace topic trim`.",
        needs_restart=False,
    )
    segment_bytes: int = setting(
        1 << 30,
        "A segment file ends before it would grow larger. Deletion works by whole segments.",
        unit=Unit.BYTES,
        minimum=1 << 20,
        needs_restart=False,
    )
    segment_ms: int = setting(
        604_800_000,
        "A segment file ends when its first record is older than this, "
        "so that a quiet partition's records can be deleted too. A topic's own is at least "
        f"{SEGMENT_MS_MIN} ms: each segment costs files and flushes.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        maximum=INT64_MAX,
        needs_restart=False,
    )
    index_interval_bytes: int = setting(
        4096,
        "Bytes of records between two entries of a segment's offset and time indexes.",
        unit=Unit.BYTES,
        needs_restart=False,
        visibility=Visibility.TUNING,
    )
    max_message_bytes: int = setting(
        1_048_588,
        "The largest record batch, header included and as compressed by the producer. "
        "A batch must also fit into the broker's `limits.message_bytes_max`.",
        unit=Unit.BYTES,
        minimum=1024,
        needs_restart=False,
    )
    min_insync_replicas: int = setting(
        -1,
        "With `acks=all`, writes are refused while fewer replicas than this are in sync, and "
        "nothing counts as committed. Never asks for more replicas than the partition has.",
        minimum=1,
        maximum=32_767,
        minus_one="one less than the partition's replicas, at least 1",
        needs_restart=False,
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Whether a replica that may lack acknowledged records becomes the leader when no other "
        "can: the partition can be used again, and records that only others had are lost. When it "
        "is not set, the cluster's `unclean_leader_election_enable` counts.",
        needs_restart=False,
    )
    message_timestamp_type: TimestampType = setting(
        TimestampType.CREATE_TIME,
        "`CreateTime` keeps the producer's timestamps; `LogAppendTime` puts the leader's.",
        needs_restart=False,
    )
    message_timestamp_before_max_ms: int = setting(
        INT64_MAX,
        "With `CreateTime`, how far a timestamp may lie before the broker's clock.",
        unit=Unit.MILLISECONDS,
        maximum=INT64_MAX,
        needs_restart=False,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        "With `CreateTime`, how far a timestamp may lie after the broker's clock: "
        "one from the far future would keep its segment for ever.",
        unit=Unit.MILLISECONDS,
        maximum=INT64_MAX,
        needs_restart=False,
    )

    def effective_min_insync_replicas(self, replication_factor: int) -> int:
        """Return how many replicas must be in sync for a write (P9, P14, P15, P26)."""
        if self.min_insync_replicas == -1:
            return max(1, replication_factor - 1)
        return min(self.min_insync_replicas, replication_factor)


SETTINGS: Final = settings.settings_of(TopicConfig, separator=SEPARATOR)
KNOWN_NAMES: Final = settings.known_names(TopicConfig, separator=SEPARATOR)


def parse_overrides(overrides: Mapping[str, str]) -> TopicConfig:
    """Return the settings of a topic with these overrides, by Kafka's names.

    Raises:
        InvalidConfigError: lists unknown names and bad values.
    """
    return _parsed(tuple(overrides.items()))


@lru_cache(maxsize=_PARSED_MAX)
def _parsed(overrides: tuple[tuple[str, str], ...]) -> TopicConfig:
    return settings.parse(TopicConfig, dict(overrides), separator=SEPARATOR)


def canonical_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the same settings in the form in which they are stored: `7d` becomes `604800000`.

    Raises:
        InvalidConfigError: lists unknown names and bad values; or segments would end more often
            than a broker can bear, or lags contradict each other.
    """
    if len(overrides) > len(SETTINGS):
        raise InvalidConfigError(
            f"{len(overrides)} settings are set, and a topic has {len(SETTINGS)}: "
            "docs/configuration.md lists them"
        )
    config = parse_overrides(overrides)
    # Both end segments. Stored settings may be older than this bound.
    for name, end_ms in (
        ("segment.ms", config.segment_ms),
        ("max.compaction.lag.ms", config.max_compaction_lag_ms),
    ):
        if end_ms < SEGMENT_MS_MIN:
            raise InvalidConfigError(
                f"{name}: {end_ms} ms is too short; it must be at least {SEGMENT_MS_MIN}: each "
                "segment costs files and flushes"
            )
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfigError(
            f"min.compaction.lag.ms: {config.min_compaction_lag_ms} ms must not be more than "
            f"max.compaction.lag.ms, which is {config.max_compaction_lag_ms}"
        )
    return {
        name: settings.to_text(getattr(config, SETTINGS[name].attribute))
        for name in sorted(overrides)
    }
