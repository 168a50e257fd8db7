"""The cluster as administrators see it: values, and how they come from the wire."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.client._cluster import wire
from millrace.client._cluster.wire import BrokerInfo
from millrace.core.ids import (
    NO_BROKER,
    NO_TIMESTAMP,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
    WallMs,
)
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.topic_config import TopicConfig
from millrace.core.numbers import parse_whole_number
from millrace.core.settings import INT32_MAX
from millrace.core.topics import parse_topic_name
from millrace.proto.media import media_from_wire
from millrace.proto.v1 import cluster_pb2

_MEDIA: Final = "media"
_MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
_SOURCES: Final[Mapping[int, str]] = {
    cluster_pb2.CONFIG_SOURCE_DEFAULT: "default",
    cluster_pb2.CONFIG_SOURCE_BROKER: "cluster",
    cluster_pb2.CONFIG_SOURCE_TOPIC: "topic",
    cluster_pb2.CONFIG_SOURCE_FILE: "file",
    cluster_pb2.CONFIG_SOURCE_ENVIRONMENT: "environment",
    cluster_pb2.CONFIG_SOURCE_COMMAND: "command",
    cluster_pb2.CONFIG_SOURCE_CONTROLLER: "controller",
}


@dataclass(slots=True, frozen=True)
class ConfigValue:
    """A setting of a topic or of a broker."""

    value: str
    source: str
    """The source of the value: `default`; of a topic `cluster` or `topic`; of a broker `file`,
    `environment`, `command` (the one that started it), or `controller` (its value differs from the
    broker's own)."""
    documentation: str
    """Its meaning; empty for brokers, and if all topics were requested."""


@dataclass(slots=True, frozen=True)
class DeletedTopic:
    """A deleted topic that can be brought back."""

    name: str
    """Another topic may have it by now."""
    topic_id: TopicId
    """It has the same id when it is brought back."""
    partitions: int
    replication_factor: int
    deleted_at_ms: WallMs
    """Time of the deletion."""
    gone_at_ms: WallMs
    """Time at which it will be gone for good, with its records, at the earliest."""


@dataclass(slots=True, frozen=True)
class PartitionDescription:
    """One partition."""

    partition: int
    leader: BrokerId
    """-1: no leader at present."""
    leader_epoch: LeaderEpoch
    """Rises with every new leader."""
    leader_address: str
    partition_epoch: PartitionEpoch
    """Rises with every change of the partition's state."""
    replicas: tuple[BrokerId, ...]
    """The preferred leader first; while a reassignment lasts, old and new ones together."""
    isr: tuple[BrokerId, ...]
    """In-sync replicas: they have everything that was acknowledged."""
    elr: tuple[BrokerId, ...]
    """Eligible leader replicas (KIP-966): not in sync, but they too have all of it."""
    offline_replicas: tuple[BrokerId, ...]
    """Replicas on brokers that are down."""
    adding_replicas: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment adds."""
    removing_replicas: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment removes in the end."""
    is_recovering: bool = False
    """The leader was elected uncleanly and still recovers."""

    @property
    def is_reassigning(self) -> bool:
        """Return whether a reassignment is under way."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def target_replicas(self) -> tuple[BrokerId, ...]:
        """Return the replicas that it has once no reassignment is under way."""
        return tuple(replica for replica in self.replicas if replica not in self.removing_replicas)

    @property
    def preferred_leader(self) -> BrokerId:
        """Return the broker that should lead it; -1: no replicas of it are named."""
        return next(iter(self.target_replicas), NO_BROKER)

    @property
    def replication_factor(self) -> int:
        """Return how many replicas count: while a reassignment lasts, the smaller number."""
        return len(self.replicas) - max(len(self.adding_replicas), len(self.removing_replicas))


@dataclass(slots=True, frozen=True)
class TopicDescription:
    """A topic with its partitions and settings."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, ConfigValue]

    @property
    def replication_factor(self) -> int:
        """Return the number of replicas of each partition."""
        return max((partition.replication_factor for partition in self.partitions), default=0)

    @property
    def media(self) -> TopicMedia:
        """Return the media that its replicas should lie on; any, if another release has other
        media."""
        setting = self.config.get(_MEDIA)
        known = {str(known_media): known_media for known_media in TopicMedia}
        return TopicMedia.ANY if setting is None else known.get(setting.value, TopicMedia.ANY)

    def misplaced(self, logs: Iterable["LogDescription"]) -> list["LogDescription"]:
        """Return its logs that lie on another media than it asks for.

        logs = await admin.describe_logs("orders")
        print(len(topic.misplaced(logs)), "replicas are still to be moved")
        """
        return [
            log
            for log in logs
            if log.topic == self.name
            and log.media is not None
            and not self.media.is_home_on(log.media)
        ]

    def min_insync_replicas(self, partition: PartitionDescription) -> int:
        """Return how many replicas must be in sync for a write with `acks="all"`."""
        config = TopicConfig(min_insync_replicas=number_in(self.config, _MIN_INSYNC_REPLICAS))
        return config.effective_min_insync_replicas(partition.replication_factor)


@dataclass(slots=True, frozen=True)
class ClusterDescription:
    """The cluster as its brokers describe it."""

    cluster_id: str
    controller_id: BrokerId
    """-1: none at present."""
    controller_epoch: ControllerEpoch
    """Rises with every new controller."""
    brokers: tuple[BrokerInfo, ...]
    """Every broker that was ever registered, by id."""
    unreachable: tuple[BrokerId, ...] = ()
    """Brokers that are not fenced, and did not answer this client: they may just have died."""
    controller_problem: str = ""
    """Why no controller can act, and what to do about it; empty: there is no such reason."""

    def broker(self, broker_id: int) -> BrokerInfo | None:
        """Return a broker."""
        return next((broker for broker in self.brokers if broker.broker_id == broker_id), None)


@dataclass(slots=True, frozen=True)
class FollowerDescription:
    """A follower as its leader sees it."""

    broker_id: BrokerId
    log_end_offset: Offset
    """The next offset that it will write; -1: it has not fetched in this leader epoch."""
    flushed_offset: Offset
    """Everything below it is on its disk; -1: as above."""
    behind_ms: int
    """How long, in ms, it has not been at the leader's end; 0: it is there."""
    is_in_sync: bool


@dataclass(slots=True, frozen=True)
class CompactionDescription:
    """How far a log is compacted on one broker."""

    cleaner_point: Offset
    """The head of the log, which is not compacted yet, begins there."""
    dirty_ratio: float
    """The part of what may be compacted that is not, in bytes, 0 to 1."""
    compacted_at: WallMs | None
    """When it was compacted last, in ms since 1970; None: not yet."""
    problem: str
    """Why it could not be compacted; empty: it could, or was not tried yet."""


@dataclass(slots=True, frozen=True)
class TierDescription:
    """The oldest closed segments of a log, which lie on another disk than the rest."""

    log_dir: str
    """The directory on the broker in which they are; empty: there are none."""
    end_offset: Offset
    """The later segments, which begin there, are where the log is."""
    size_bytes: int
    problem: str
    """Why the last move of a segment to that disk, or back, was refused; empty: it was not."""


@dataclass(slots=True, frozen=True)
class LogDescription:
    """One replica's log on one broker."""

    topic: str
    partition: int
    broker_id: BrokerId
    log_start_offset: Offset
    log_end_offset: Offset
    high_watermark: Offset
    flushed_offset: Offset
    size_bytes: int
    segments: int
    log_dir: str
    """The directory on the broker in which it is."""
    leads: bool = False
    """The broker leads the partition."""
    followers: tuple[FollowerDescription, ...] = ()
    """The other replicas, by id; empty unless it leads."""
    media: Media | None = None
    """Its media; None: the broker does not report it."""
    compaction: CompactionDescription | None = None
    """How far it is compacted; None: its topic is not."""
    tier: TierDescription | None = None
    """The part of it on another disk; None: its topic is not tiered, and was not."""
    appended_bytes: int = 0
    """Bytes that producers appended while the broker led; it counts as long as it has the log
    open. The difference of two descriptions is a rate."""
    fetched_bytes: int = 0
    """Bytes that the broker sent to consumers, likewise."""


@dataclass(slots=True, frozen=True)
class DamagedReplica:
    """A damaged replica on a running broker, or one whose damaged log was set aside.

    It is offline; or it lacks committed records, so it cannot lead a partition without a leader.
    """

    topic: str
    partition: int
    broker_id: BrokerId
    error: str
    """What is wrong with the replica; empty: it was copied again and is sound."""
    kept_in: tuple[str, ...]
    """Paths of damaged logs on the broker; they stay until a person removes them."""


def topic_from_wire(topic: cluster_pb2.TopicMetadata) -> TopicDescription:
    """Return a topic with everything about it."""
    info = wire.topic_from_wire(topic)
    return TopicDescription(
        info.name,
        info.topic_id,
        info.is_internal,
        tuple(map(_partition_from_wire, topic.partitions)),
        config_from_wire(topic.config),
    )


def config_from_wire(entries: Iterable[cluster_pb2.ConfigEntry]) -> dict[str, ConfigValue]:
    """Return settings by name."""
    return {
        entry.name: ConfigValue(
            entry.value, _SOURCES.get(entry.source, "unknown"), entry.documentation
        )
        for entry in entries
    }


def number_in(config: Mapping[str, ConfigValue], name: str) -> int:
    """Return a setting that is a number of something, or -1: as many as is usual.

    That is so, too, where the broker names no number, as one of another release may.
    """
    setting = config.get(name)
    number = None if setting is None else parse_whole_number(setting.value, INT32_MAX)
    return -1 if number is None else number


def _partition_from_wire(partition: cluster_pb2.PartitionMetadata) -> PartitionDescription:
    def broker_ids(numbers: Iterable[int]) -> tuple[BrokerId, ...]:
        return tuple(map(BrokerId, numbers))

    leader = partition.leader
    known = partition.HasField("leader") and leader.broker_id >= 0
    return PartitionDescription(
        partition=partition.partition,
        leader=BrokerId(leader.broker_id) if known else NO_BROKER,
        leader_epoch=LeaderEpoch(leader.leader_epoch),
        leader_address=leader.address,
        partition_epoch=PartitionEpoch(partition.partition_epoch),
        replicas=broker_ids(partition.replicas),
        isr=broker_ids(partition.isr),
        elr=broker_ids(partition.elr),
        offline_replicas=broker_ids(partition.offline_replicas),
        adding_replicas=broker_ids(partition.adding_replicas),
        removing_replicas=broker_ids(partition.removing_replicas),
        is_recovering=partition.recovering,
    )


def log_from_wire(
    log: cluster_pb2.LogDescription, topic: str, broker_id: BrokerId
) -> LogDescription:
    """Return a log that a broker has described."""
    return LogDescription(
        topic,
        log.topic_partition.partition,
        broker_id,
        Offset(log.log_start_offset),
        Offset(log.log_end_offset),
        Offset(log.high_watermark),
        Offset(log.flushed_offset),
        log.size_bytes,
        log.segments,
        log.log_dir,
        log.leads,
        tuple(
            FollowerDescription(
                BrokerId(follower.broker_id),
                Offset(follower.log_end_offset),
                Offset(follower.flushed_offset),
                follower.behind_ms,
                follower.in_sync,
            )
            for follower in sorted(log.followers, key=lambda follower: follower.broker_id)
        ),
        media_from_wire(log.media),
        _compaction_from_wire(log.compaction) if log.HasField("compaction") else None,
        _tier_from_wire(log.tier) if log.HasField("tier") else None,
        log.appended_bytes,
        log.fetched_bytes,
    )


def _tier_from_wire(found: cluster_pb2.TierDescription) -> TierDescription:
    return TierDescription(
        found.log_dir, Offset(found.end_offset), found.size_bytes, found.error.message
    )


def _compaction_from_wire(found: cluster_pb2.CompactionDescription) -> CompactionDescription:
    return CompactionDescription(
        Offset(found.cleaner_point),
        found.dirty_ratio,
        None if found.compacted_at == NO_TIMESTAMP else WallMs(found.compacted_at),
        found.error.message,
    )


def deleted_from_wire(topic: cluster_pb2.DeletedTopic) -> DeletedTopic:
    """Return a deleted topic from its message."""
    return DeletedTopic(
        name=str(parse_topic_name(topic.name)),
        topic_id=TopicId(topic.topic_id),
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        deleted_at_ms=WallMs(topic.deleted_at_ms),
        gone_at_ms=WallMs(topic.gone_at_ms),
    )
