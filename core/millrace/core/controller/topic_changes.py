"""The rules of creating, altering and deleting topics.

Pure. A name is free again only once the deletion is *stored*: the two
topics may be in two objects, and a crash between the two writes must not leave two topics of one
name (P37).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from millrace.core.controller.balancing.assignment import Assignment, check_assignment
from millrace.core.controller.balancing.placement import Candidate, place
from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.partitions import elections
from millrace.core.controller.partitions.elections import Rules
from millrace.core.errors import (
    BrokerBusyError,
    DeletionProtectedError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    MalformedRequestError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    TOPIC_ID_BYTES,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
)
from millrace.core.media import TopicMedia
from millrace.core.metadata.broker_levels import check_settings, check_transactions
from millrace.core.metadata.cluster_config import ClusterConfig, may_hold, replicas_by_default
from millrace.core.metadata.model import (
    BrokerRegistration,
    ClusterState,
    PartitionState,
    Reluctance,
    Topic,
)
from millrace.core.metadata.requests import NewTopic, TopicChange, TopicRef
from millrace.core.metadata.shard_size import topic_bytes
from millrace.core.metadata.topic_config import (
    KNOWN_NAMES,
    PROTECTION_SETTING,
    SETTINGS,
    canonical_overrides,
    parse_overrides,
)
from millrace.core.problems import problem_text, told, unknown_names
from millrace.core.settings import INT64_MAX
from millrace.core.topics import (
    INTERNAL_PREFIX,
    POSITIONS_TOPIC,
    TRANSACTIONS_TOPIC,
    TopicName,
    parse_topic_name,
)
from millrace.core.words import count

_BROKERS_NAMED_MAX: Final = 20
_COORDINATORS_CONFIG: Final = {
    # Its leader shortens its log: see `core/coordinator/kept_records.py`.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": "4MiB",
    # Records keep the time at which they were stored, even if a clock was wrong.
    "message.timestamp.after.max.ms": str(INT64_MAX),
    "unclean.leader.election.enable": "false",
}


def created(
    decided: DecidedMetadata, config: ClusterConfig, new: NewTopic, topic_id: TopicId
) -> Topic:
    """Return the topic that a request asks for; the existing one, if it has been created already.

    A client without an answer asks again with the same id.

    Raises:
        InvalidTopicError: the name breaks the rules, or belongs to the cluster itself.
        TopicAlreadyExistsError: the name is taken.
        BrokerBusyError: the deletion of a topic of this name is not stored yet, the cluster's first
            brokers have not registered yet, or none that can hold the topic is there.
        MalformedRequestError: the id is or was another topic's, or is zero.
        InvalidPartitionsError: too many partitions, for the topic, a broker or the store.
        InvalidReplicationFactorError: more replicas than brokers that can hold them.
        InvalidReplicaAssignmentError: brokers that are named cannot hold them.
        InvalidConfigError: unknown or bad settings.
        UnsupportedFeatureError: a broker of an earlier release does not know them.
    """
    assert len(topic_id) == TOPIC_ID_BYTES
    name = _client_topic_name(new.name)
    if not any(topic_id):
        raise MalformedRequestError(
            f"topic {str(name)!r}: the id is of zeros, as one that was never drawn: draw "
            f"{TOPIC_ID_BYTES} random bytes, or name none"
        )
    there = decided.topic(topic_id)
    if there is not None and there.name == name:
        return there
    if there is not None or topic_id in decided.deleted or decided.is_gone(topic_id):
        whose = "a deleted one's" if there is None else f"that of {str(there.name)!r}"
        raise MalformedRequestError(
            f"topic {str(name)!r}: the id {topic_id.hex()} is {whose}: each topic has its own"
        )
    if decided.topic_named(name) is not None:
        raise TopicAlreadyExistsError(
            f"topic {str(name)!r} exists: choose another name, or alter the topic that there is"
        )
    if name in decided.freed.values():  # P37: the change of the other object must be stored.
        raise BrokerBusyError(
            f"topic {str(name)!r} was deleted this moment, and that is not stored yet: try again"
        )
    return _made(decided, config, name, new, topic_id)


def internal_topic(
    decided: DecidedMetadata, config: ClusterConfig, name: TopicName, topic_id: TopicId
) -> Topic:
    """Return a topic of coordinators: the existing one, or a new one.

    Its partitions are as many for ever (T11): a name would have another coordinator.

    Args:
        decided: what there is.
        config: the cluster's settings.
        name: `POSITIONS_TOPIC` or `TRANSACTIONS_TOPIC`.
        topic_id: of the new one.

    Raises:
        InvalidPartitionsError, InvalidReplicationFactorError, BrokerBusyError: as in `created`.
        UnsupportedFeatureError: a broker of an earlier release does not know transactions (T16).
    """
    there = decided.topic_named(name)
    if there is not None:
        return there
    is_of_positions = name == POSITIONS_TOPIC
    durability = config.positions_durability
    if not is_of_positions:
        check_transactions(decided.cluster)
        durability = config.transactions_durability
    new = NewTopic(
        name=str(name),
        partitions=(
            config.positions_partitions if is_of_positions else config.transactions_partitions
        ),
        replication_factor=internal_replication_factor(config, decided.cluster, name),
        config=_COORDINATORS_CONFIG | {"durability": str(durability)},
    )
    _check_has_begun(decided.cluster, config, name)
    return _made(decided, config, name, new, topic_id)


def _made(
    decided: DecidedMetadata,
    config: ClusterConfig,
    name: TopicName,
    new: NewTopic,
    topic_id: TopicId,
) -> Topic:
    partitions = new.partitions or len(new.assignment) or config.default_partitions
    _check_partition_count(name, partitions, config)
    overrides = canonical_overrides(new.config)
    check_settings(decided.cluster, str(name), overrides)
    media = parse_overrides(overrides).media
    replication_factor = new.replication_factor or len(next(iter(new.assignment), ()))
    if not replication_factor and not new.assignment:
        _check_has_begun(decided.cluster, config, name)
        replication_factor = default_replication_factor(config, decided.cluster, media)
    states = _new_partitions(
        decided,
        config,
        name,
        partitions=partitions,
        replication_factor=replication_factor,
        overrides=overrides,
        assignment=new.assignment,
    )
    check_broker_loads(decided, config, name, states)
    topic = Topic(topic_id=topic_id, name=name, partitions=states, overrides=overrides)
    check_shard_size(decided, config, topic, topic_bytes(topic))
    return topic


def altered(decided: DecidedMetadata, config: ClusterConfig, change: TopicChange) -> Topic:
    """Return a topic as it is after a change.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
        InvalidTopicError: the topic belongs to the cluster itself.
        InvalidPartitionsError: fewer partitions than there are, or too many.
        InvalidReplicationFactorError: too few brokers can hold the new partitions, or all
            partitions on the new media.
        InvalidReplicaAssignmentError: brokers that are named cannot hold them.
        InvalidConfigError: unknown or bad settings.
        UnsupportedFeatureError: a broker of an earlier release does not know them.
    """
    topic = found(decided, change.topic)
    overrides = _altered_overrides(topic, change)
    check_settings(decided.cluster, str(topic.name), overrides)
    partitions = _under_new_config(decided, config, topic, overrides)
    media = parse_overrides(overrides).media
    if media not in (topic.config.media, TopicMedia.ANY):
        _brokers_for(decided, config, topic.name, topic.target_replication_factor, media)
    wanted = change.partitions
    if change.assignment and not wanted:
        wanted = len(partitions) + len(change.assignment)
    if wanted:
        more = wanted - len(partitions)
        if more < 0:
            raise InvalidPartitionsError(
                f"topic {str(topic.name)!r} has {count(len(partitions), 'partition')}, and the "
                "number can only grow: create another topic to have fewer"
            )
        _check_partition_count(topic.name, wanted, config)
        if more or change.assignment:
            states = _new_partitions(
                decided,
                config,
                topic.name,
                partitions=more,
                replication_factor=topic.target_replication_factor,
                overrides=overrides,
                assignment=change.assignment,
            )
            check_broker_loads(decided, config, topic.name, states)
            partitions += states
    after = replace(topic, partitions=partitions, overrides=overrides)
    check_shard_size(decided, config, after, topic_bytes(after) - topic_bytes(topic))
    return after


def found(decided: DecidedMetadata, ref: TopicRef) -> Topic:
    """Return the topic that a client means, to change it.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
        InvalidTopicError: no topic can have the name, or it belongs to the cluster itself.
    """
    name = parse_topic_name(ref.name) if ref.name else None
    topic = decided.topic(ref.topic_id) if ref.topic_id is not None else None
    if ref.topic_id is None and name is not None:
        topic = decided.topic_named(name)
    if topic is None or (name is not None and topic.name != name):
        raise UnknownTopicOrPartitionError(f"there is no topic {ref}")
    if topic.name.is_internal:
        raise InvalidTopicError(
            f"topic {str(topic.name)!r} belongs to the cluster itself, which alone changes it"
        )
    return topic


def deletable(decided: DecidedMetadata, ref: TopicRef) -> Topic:
    """Return the topic that a client means to delete.

    Raises:
        UnknownTopicOrPartitionError, InvalidTopicError: as in `found`.
        DeletionProtectedError: its settings forbid it.
    """
    topic = found(decided, ref)
    if topic.config.deletion_protection:
        name = PROTECTION_SETTING
        raise DeletionProtectedError(
            f"topic {str(topic.name)!r} is protected against deletion, and was not deleted: set "
            f"{name} to false first (`millrace topic alter {topic.name} --set {name}=false`)"
        )
    return topic


def check_shard_size(
    decided: DecidedMetadata, config: ClusterConfig, topic: Topic, more_bytes: int
) -> None:
    """Refuse a change that may make the topic's object too large for a store.

    Raises:
        InvalidPartitionsError: there is no room for `more_bytes`.
    """
    size = decided.shard_bytes(topic.topic_id) + more_bytes
    if more_bytes > 0 and size > config.shard_bytes_max:
        raise InvalidPartitionsError(
            f"topic {str(topic.name)!r} with {count(len(topic.partitions), 'partition')} of "
            f"{count(topic.replication_factor, 'replica')}: the metadata object that it falls to "
            f"might come to need {size} bytes, and the setting cluster.shard_bytes_max allows "
            f"{config.shard_bytes_max}: ask for fewer partitions, or delete topics. Another "
            "attempt to make a topic may fall to an object that has room"
        )


def check_broker_loads(
    decided: DecidedMetadata,
    config: ClusterConfig,
    name: TopicName,
    placed: tuple[PartitionState, ...],
) -> None:
    """Refuse partitions that are too many for a broker.

    Raises:
        InvalidPartitionsError: one would hold more than it may.
    """
    loads = decided.replica_counts.copy()
    for partition in placed:
        loads.update(partition.replicas)
    broker_id, load = max(loads.items(), key=lambda item: item[1])
    if load > config.broker_partitions_max:
        raise InvalidPartitionsError(
            f"topic {str(name)!r}: broker {broker_id} would hold {load} partition replicas, and "
            f"the setting cluster.broker_partitions_max allows {config.broker_partitions_max}: ask "
            "for fewer partitions, delete topics, or add brokers"
        )


def _client_topic_name(text: str) -> TopicName:
    name = parse_topic_name(text)
    if name.is_internal:
        raise InvalidTopicError(
            f"topic {str(name)!r}: names that begin with {INTERNAL_PREFIX!r} belong to the cluster "
            "itself: choose another one"
        )
    return name


def internal_replication_factor(
    config: ClusterConfig, cluster: ClusterState, name: TopicName
) -> int:
    """Return how many replicas a topic of coordinators should have."""
    brokers = brokers_for_replicas(cluster, TopicMedia.ANY)
    if name == TRANSACTIONS_TOPIC:
        return replicas_by_default(config.transactions_replication_factor, brokers)
    return replicas_by_default(config.positions_replication_factor, brokers)


def default_replication_factor(
    config: ClusterConfig, cluster: ClusterState, media: TopicMedia
) -> int:
    """Return how many replicas a topic with this media gets, if nobody names a number."""
    return replicas_by_default(
        config.default_replication_factor, brokers_for_replicas(cluster, media)
    )


def brokers_for_replicas(cluster: ClusterState, media: TopicMedia) -> int:
    """Return how many brokers may hold a replica on this media, also those that are away."""
    return sum(
        may_hold(media, broker.media, is_drained=broker.is_drained, is_fenced=broker.is_fenced)
        for broker in cluster.brokers.values()
    )


def has_begun(cluster: ClusterState, config: ClusterConfig) -> bool:
    """Whether the cluster's first brokers have registered, now or at any time before (P77).

    Ids are never given again, so the next one tells how many brokers there ever were.
    """
    return cluster.has_begun or cluster.next_broker_id >= config.initial_brokers


def _check_has_begun(cluster: ClusterState, config: ClusterConfig, name: TopicName) -> None:
    """Refuse defaults before the cluster's first brokers have registered (P77)."""
    if not has_begun(cluster, config):
        raise BrokerBusyError(
            f"topic {str(name)!r}: the cluster is just starting: {cluster.next_broker_id} of its "
            f"first {config.initial_brokers} brokers have registered (the setting "
            "cluster.initial_brokers), so the usual number of replicas is not known: try again, or "
            "name a replication factor"
        )


def _replicas_need(number: int, which: str = "") -> str:
    return count(number, f"replica{which} needs", f"replicas{which} need")


def _check_partition_count(name: TopicName, partitions: int, config: ClusterConfig) -> None:
    if not 1 <= partitions <= config.topic_partitions_max:
        raise InvalidPartitionsError(
            f"topic {str(name)!r}: {partitions} partitions; a topic has 1 to "
            f"{config.topic_partitions_max} (the setting cluster.topic_partitions_max)"
        )


def _brokers_for(
    decided: DecidedMetadata,
    config: ClusterConfig,
    name: TopicName,
    replication_factor: int,
    media: TopicMedia,
) -> list[BrokerRegistration]:
    """Return the brokers that can take partitions of a topic, enough of them, one of them there."""
    cluster = decided.cluster
    brokers = cluster.members(media)
    if 1 <= replication_factor <= len(brokers):
        if not any(broker.is_there for broker in brokers):
            raise BrokerBusyError(
                f"topic {str(name)!r}: none of the brokers that can hold it is there now: "
                f"{_media_of_brokers(cluster)}. Start one, or try again"
            )
        return brokers
    if media is TopicMedia.ANY:
        if 1 <= replication_factor <= config.initial_brokers:
            _check_has_begun(decided.cluster, config, name)
        raise InvalidReplicationFactorError(
            f"topic {str(name)!r}: {_replicas_need(replication_factor)} as many brokers, and the "
            f"cluster has {count(len(brokers), 'broker that is', 'brokers that are')} not drained: "
            "ask for fewer replicas or add brokers"
        )
    if 1 <= replication_factor <= brokers_for_replicas(cluster, media):
        raise BrokerBusyError(
            f"topic {str(name)!r}: {_replicas_need(replication_factor)} as many brokers that have "
            f"{media}, and a broker that has just registered has not told its media yet: "
            f"{_media_of_brokers(cluster)}. Try again"
        )
    is_tiered = media is TopicMedia.TIERED
    it = "both ssd and hdd" if is_tiered else "it"
    with_media = f" with media={media}"
    wanted = "ssd:PATH and one hdd:PATH" if is_tiered else f"{media}:PATH"
    raise InvalidReplicationFactorError(
        f"topic {str(name)!r}: {_replicas_need(replication_factor, with_media)} as many "
        f"brokers that have {it}, and the cluster has {len(brokers)} of those that are not "
        f"drained: {_media_of_brokers(cluster)}. Ask for fewer replicas or another media, or give "
        f"brokers a log directory {wanted} (the setting log_dirs)"
    )


def _media_of_brokers(cluster: ClusterState) -> str:
    said = []
    for broker_id, broker in sorted(cluster.brokers.items())[:_BROKERS_NAMED_MAX]:
        state = (
            " (drained)"
            if broker.is_drained
            else " (fenced)"
            if broker.is_fenced
            else " (draining)"
            if broker.is_draining
            else ""
        )
        said.append(f"broker {broker_id} has {', '.join(broker.media) or 'none'}{state}")
    more = len(cluster.brokers) - len(said)
    return "; ".join([*said, f"and {more} more"] if more else said)


def _altered_overrides(topic: Topic, change: TopicChange) -> dict[str, str]:
    unknown = [name for name in change.unset_config if name not in SETTINGS]
    problems = unknown_names(unknown, KNOWN_NAMES)
    problems += [
        f"{told(name)}: cannot be set and unset at once"
        for name in change.unset_config
        if name in change.set_config
    ]
    try:
        overrides = canonical_overrides({**topic.overrides, **change.set_config})
    except InvalidConfigError as error:
        problems.append(error.message)
    if problems:
        raise InvalidConfigError(problem_text(problems))
    return {name: text for name, text in overrides.items() if name not in change.unset_config}


def _under_new_config(
    decided: DecidedMetadata, config: ClusterConfig, topic: Topic, overrides: dict[str, str]
) -> tuple[PartitionState, ...]:
    """Return the partitions, with a new state if the settings concern them (P26)."""
    before = Rules.of(topic, decided.cluster.brokers, config)
    after = Rules.of(replace(topic, overrides=overrides), decided.cluster.brokers, config)
    return tuple(elections.with_config(partition, before, after) for partition in topic.partitions)


def _new_partitions(
    decided: DecidedMetadata,
    config: ClusterConfig,
    name: TopicName,
    *,
    partitions: int,
    replication_factor: int,
    overrides: Mapping[str, str],
    assignment: Assignment,
) -> tuple[PartitionState, ...]:
    """Return new partitions; the replicas on brokers that are there are in sync.

    The first of them leads, which is the preferred leader if it is there.
    """
    settings = parse_overrides(overrides)
    replicas: Iterable[tuple[BrokerId, ...]]
    if assignment:
        brokers = decided.cluster.members(settings.media)
        check_assignment(
            name,
            assignment,
            {broker.broker_id: broker for broker in brokers},
            partitions=partitions,
            replication_factor=replication_factor,
        )
        replicas = map(tuple, assignment)
    else:
        brokers = _brokers_for(decided, config, name, replication_factor, settings.media)
        replicas = place(
            partitions,
            replication_factor,
            [candidate(broker) for broker in brokers],
            replica_counts=decided.replica_counts,
            leader_counts=decided.leader_counts,
            follower_counts=decided.follower_counts,
            heir_counts=decided.heir_counts,
            in_sync_min=settings.effective_min_insync_replicas(replication_factor),
        )
    there = {broker.broker_id: broker for broker in brokers if broker.is_there}
    return tuple(_new_partition(replica, there) for replica in replicas)


def candidate(broker: BrokerRegistration) -> Candidate:
    """Return a broker as a place for replicas."""
    return Candidate(
        broker.broker_id,
        broker.rack,
        broker.media,
        is_there=broker.is_there,
        has_bad_disk=broker.reluctance in (Reluctance.SLOW_DISK, Reluctance.FULL_DISK),
    )


def _new_partition(
    replicas: tuple[BrokerId, ...], there: Mapping[BrokerId, BrokerRegistration]
) -> PartitionState:
    in_sync = [there[replica] for replica in replicas if replica in there]
    leader = next((broker for broker in in_sync if broker.is_willing), in_sync[0])
    return PartitionState(
        replicas=replicas,
        leader=leader.broker_id,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        isr=tuple(broker.life for broker in in_sync),
    )
