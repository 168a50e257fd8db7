"""Compares a Topic with the cluster's topic: the actions that are left.

A resource decides all that it names. A setting that it does not name follows the cluster's default,
also when a person set it at the command line: so drift is corrected. Topics without a resource are
left alone.

The number of replicas that a resource does not name follows the cluster's default, too, and that
follows from the brokers that the Cluster asks for (P77). A topic that was made when there were
fewer gets more. Each partition counts by itself: those that have more than the default keep them,
and are no reason to give the others more.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace.core import words
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.cluster_config import may_hold, replicas_by_default
from millrace.core.metadata.topic_config import PROTECTION_SETTING, canonical_overrides
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.conditions import Condition, Reason
from millrace.operator.model.topic import MEDIA_SETTING, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic of the cluster.

    Attributes:
        overrides: settings that differ from the default, in canonical form.
        replication_factor: of the partition with the most.
        replicas: broker ids of each partition, without those that are about to go.
        moving: partitions whose replicas are being moved.
        media: on which the replicas should lie, from any source.
    """

    topic_id: str
    partitions: int
    replication_factor: int
    overrides: Mapping[str, str]
    replicas: tuple[tuple[int, ...], ...]
    moving: int = 0
    media: TopicMedia = TopicMedia.ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create the topic; None: by the cluster's default."""

    name: str
    partitions: int | None
    replication_factor: int | None
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alter:
    """Change settings, add partitions."""

    name: str
    set_config: Mapping[str, str] = field(default_factory=dict)
    unset_config: tuple[str, ...] = ()
    partitions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReplicas:
    """Give partitions this many replicas, on brokers that have the media.

    Attributes:
        replication_factor: None: as many as now.
        partitions: None: all of them.
    """

    name: str
    replication_factor: int | None
    media: TopicMedia
    partitions: tuple[int, ...] | None = None


class RefusedMove(NamedTuple):
    """A replica whose last move of a segment between SSD and HDD was refused, and why."""

    partition: int
    broker_id: int
    problem: str


class CannotBeError(Exception):
    """The resource asks for something impossible; says what to do."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def topic_name(topic: Topic) -> str:
    """Return the topic's full name in the cluster."""
    return f"{topic.namespace}/{topic.spec.topic_name or topic.name}"


def wanted_overrides(topic: Topic) -> dict[str, str]:
    """Return the settings that the resource sets, in canonical form.

    Raises:
        InvalidConfigError: a setting is wrong, or two do not go together.
    """
    overrides = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in topic.spec.config.items()
        if value is not None
    }
    if topic.spec.media is not None:
        overrides[MEDIA_SETTING] = topic.spec.media
    return canonical_overrides(overrides)


def default_replicas(cluster: Cluster, media: TopicMedia) -> int:
    """Return how many replicas a topic gets by default on the brokers that a Cluster asks for."""
    setting = cluster.spec.config.get("cluster", {}).get("default_replication_factor", -1)
    brokers = sum(
        pool.replicas
        for pool in cluster.spec.pools
        if may_hold(
            media, {volume.media for volume in pool.volumes}, is_drained=False, is_fenced=False
        )
    )
    is_set = isinstance(setting, int) and setting > 0
    return replicas_by_default(setting if is_set else -1, brokers)


def actions(
    topic: Topic,
    found: FoundTopic | None,
    brokers: Mapping[int, Collection[Media]],
    cluster: Cluster,
) -> list[Create | Alter | MoveReplicas]:
    """Return the actions, in this order.

    Args:
        brokers: media of the volumes of each broker that may hold replicas; empty: unknown.

    Raises:
        CannotBeError: the topic has more partitions already; too few brokers have its media.
        InvalidConfigError: as `wanted_overrides`.
    """
    spec, name = topic.spec, topic_name(topic)
    wanted = wanted_overrides(topic)
    _check_media(topic, found, brokers, cluster)
    if found is None:
        return [
            Create(
                name=name,
                partitions=spec.partitions,
                replication_factor=spec.replicas,
                config=wanted,
            )
        ]
    if spec.partitions is not None and spec.partitions < found.partitions:
        raise CannotBeError(
            Reason.TOO_MANY_PARTITIONS,
            f"the topic has {words.count(found.partitions, 'partition')}, and gets no fewer: set "
            f"spec.partitions to {found.partitions}, or make another Topic and copy the records",
        )
    steps: list[Create | Alter | MoveReplicas] = []
    changed = {key: value for key, value in wanted.items() if found.overrides.get(key) != value}
    gone = tuple(sorted(set(found.overrides) - set(wanted)))
    more = spec.partitions if (spec.partitions or 0) > found.partitions else None
    if changed or gone or more:
        steps.append(Alter(name=name, set_config=changed, unset_config=gone, partitions=more))
    media = TopicMedia(wanted.get(MEDIA_SETTING, found.media))
    if found.moving:
        return steps
    usual = min(default_replicas(cluster, media), _able(brokers, media))
    few = tuple(number for number, holders in enumerate(found.replicas) if len(holders) < usual)
    if spec.replicas is not None and any(
        len(holders) != spec.replicas for holders in found.replicas
    ):
        steps.append(MoveReplicas(name=name, replication_factor=spec.replicas, media=media))
    elif spec.replicas is None and few:  # Others on a wrong media move at a later look.
        steps.append(MoveReplicas(name=name, replication_factor=usual, media=media, partitions=few))
    elif MEDIA_SETTING not in gone and misplaced(found.replicas, media, brokers):
        steps.append(MoveReplicas(name=name, replication_factor=None, media=media))
    return steps


def _able(brokers: Mapping[int, Collection[Media]], media: TopicMedia) -> int:
    """Return how many brokers can hold replicas on a media; one of unknown media counts."""
    return sum(not there or media.is_among(there) for there in brokers.values())


def protects(config: Mapping[str, object]) -> bool:
    """Return whether a resource with these settings asks that its topic is not deleted.

    A wrong setting elsewhere in the resource does not lift the protection.
    """
    return str(config.get(PROTECTION_SETTING)).lower() == "true"


def misplaced(
    replicas: Collection[Collection[int]],
    media: TopicMedia,
    brokers: Mapping[int, Collection[Media]],
) -> int:
    """Return how many partitions have a replica on a broker that lacks the media.

    A broker of unknown media, as of an earlier release, does not count.
    """
    lacking = {broker for broker, there in brokers.items() if there and not media.is_among(there)}
    return sum(not lacking.isdisjoint(holders) for holders in replicas)


def silent(
    replicas: Sequence[Collection[int]], told: Collection[tuple[int, int]]
) -> dict[int, int]:
    """Return the brokers that have not told of all their replicas, with how many are missing.

    Args:
        replicas: broker ids of each partition.
        told: partition and broker of each replica that a broker told of.
    """
    missing = {(number, broker) for number, holders in enumerate(replicas) for broker in holders}
    return dict(sorted(Counter(broker for _, broker in missing.difference(told)).items()))


def tiered(refused: Sequence[RefusedMove]) -> Condition:
    """Return the condition of a tiered topic: whether its closed segments can move."""
    if not refused:
        return Condition("Tiered", True, Reason.SEGMENTS_MOVE, "closed segments move to the HDDs")
    first = min(refused)
    return Condition(
        "Tiered",
        False,
        Reason.CANNOT_MOVE,
        f"closed segments of {words.count(len(refused), 'replica')} do not move to their HDD; of "
        f"partition {first.partition} on broker {first.broker_id}: {first.problem}. Appends go on "
        "while the SSD has room: make the HDD's volume larger, or keep fewer records "
        "(retention.ms)",
    )


def _check_media(
    topic: Topic,
    found: FoundTopic | None,
    brokers: Mapping[int, Collection[Media]],
    cluster: Cluster,
) -> None:
    media = topic.spec.media
    if media is None or media is TopicMedia.ANY:
        return
    there = _able(brokers, media)
    count = topic.spec.replicas or (1 if found is None else found.replication_factor)
    if there < count:
        if topic.spec.replicas is None and found is None:
            count = default_replicas(cluster, TopicMedia.ANY)
        reference = topic.spec.cluster_ref
        is_tiered = media is TopicMedia.TIERED
        volume = "volumes of media ssd and of hdd" if is_tiered else f"a volume of media {media}"
        raise CannotBeError(
            Reason.NO_MEDIA,
            f"for {words.count(count, 'replica')} on {media} the cluster needs "
            f"{words.count(count, 'broker')} with such volumes, and has {there}: add a pool with "
            f"{volume} to the Cluster {reference.namespace or topic.namespace}/{reference.name}, "
            "or set spec.media to another one, or take it away",
        )
