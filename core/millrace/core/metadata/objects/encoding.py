"""The state of metadata objects as values of JSON, and back.

A partition is a list, as there may be thousands in one object. A later release appends to it:

| index | value                                                          |
|------:|----------------------------------------------------------------|
|     0 | leader: broker id, -1 for none                                 |
|     1 | leader epoch                                                   |
|     2 | partition epoch                                                |
|     3 | replicas: list of broker ids, the preferred leader first       |
|     4 | in-sync replicas: list of [broker id, broker epoch]            |
|     5 | eligible leader replicas: list of [broker id, broker epoch]    |
|     6 | last known eligible leader replicas: list of broker ids        |
|     7 | last known leader: broker id, -1 while there is a leader       |
|     8 | 1 while the leader recovers from an unclean election, else 0   |
|     9 | leader epoch of the last unclean election, -1 for none         |
|    10 | replicas that a reassignment adds: list of broker ids          |
|    11 | replicas that a reassignment removes: list of broker ids       |
|    12 | 1 while what is committed may not be flushed, else 0           |
|    13 | what eligible replicas must have: leader epoch of its last     |
|       | record, -1 where that is not known                             |
|    14 | and the offset after that record; 0: nothing                   |

Values 6 to 14 are left out when all of them are empty, as in an object of the release that did not
know them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import is_
from typing import Any, Final, TypeVar

from millrace.core.errors import InvalidConfigError, InvalidTopicError
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NOTHING_WRITTEN,
    TOPIC_ID_BYTES,
    BrokerEpoch,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    ProducerId,
    TopicId,
    WallMs,
)
from millrace.core.media import Media
from millrace.core.metadata.broker_levels import FIRST_LEVEL
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    SHARD_KEYS,
    BrokerLife,
    BrokerRegistration,
    ClusterState,
    DeletedTopic,
    KafkaAddresses,
    PartitionState,
    Reluctance,
    SideAddresses,
    StateShard,
    Topic,
    shard_of,
)
from millrace.core.metadata.objects.stored_object import (
    CorruptMetadataError,
    StoredObject,
    seal,
    unseal,
)
from millrace.core.metadata.topic_config import parse_overrides
from millrace.core.quotas.quota import Quota, QuotaEntity
from millrace.core.topics import parse_topic_name

_T = TypeVar("_T")

_OLDEST_VALUES: Final = 6  # Of a partition, in the first release.
_NOTHING_UNUSUAL: Final[list[Any]] = [  # From 6 on.
    *([], NO_BROKER, 0, NO_LEADER_EPOCH, [], [], 0),
    *NOTHING_WRITTEN,
]


def encode_cluster(cluster: ClusterState) -> StoredObject:
    """Return the object to store under `CLUSTER_KEY`."""
    state = {
        "brokers": [
            {
                "broker_epoch": broker.broker_epoch,
                "broker_id": broker.broker_id,
                "directory_epoch": broker.directory_epoch,
                "directory_ids": broker.directory_ids,
                "drpc_addresses": broker.drpc_addresses._asdict(),
                "host": broker.host,
                "incarnation_id": broker.incarnation_id,
                "is_drained": broker.is_drained,
                "is_draining": broker.is_draining,
                "is_fenced": broker.is_fenced,
                "level": broker.level,
                "media": broker.media,
                "name": broker.name,
                "outside_address": broker.outside_address,
                "port": broker.port,
                "rack": broker.rack,
                "reluctance": broker.reluctance.value,
                "replica_host": broker.replica_host,
                "replica_port": broker.replica_port,
                # An earlier release keeps what it does not know for one life at most.
                **{
                    name: addresses._asdict()
                    for name, addresses in (
                        ("kafka_addresses", broker.kafka_addresses),
                        ("tls_addresses", broker.tls_addresses),
                    )
                    if any(addresses)
                },
            }
            for _, broker in sorted(cluster.brokers.items())
        ],
        "cluster_id": cluster.cluster_id,
        "has_begun": cluster.has_begun,
        "last_broker_epoch": cluster.last_broker_epoch,
        "next_broker_id": cluster.next_broker_id,
        "next_producer_id": cluster.next_producer_id,
        "quotas": [quota_state(quota) for _, quota in sorted(cluster.quotas.items())],
    }
    return seal(CLUSTER_KEY, cluster.version, cluster.controller_epoch, state)


def decode_cluster(stored: StoredObject) -> ClusterState:
    """Read an object of `CLUSTER_KEY`.

    Raises:
        CorruptMetadataError: it is no such object.
    """
    return _decode(CLUSTER_KEY, stored, _cluster)


def quota_state(quota: Quota) -> dict[str, Any]:
    """Return a quota as values of JSON, without what it does not have."""
    entity = quota.entity
    state = {
        "client_id": entity.client_id,
        "fetch_bytes_per_second": quota.fetch_bytes_per_second,
        "is_per_broker": quota.is_per_broker or None,
        "name": quota.name,
        "namespace": entity.namespace,
        "principal": entity.principal,
        "produce_bytes_per_second": quota.produce_bytes_per_second,
        "request_percent": quota.request_percent,
        "topic": entity.topic,
    }
    return {name: value for name, value in state.items() if value is not None}


def encode_shard(shard: StateShard) -> StoredObject:
    """Return the object to store under the shard's key."""
    state = {
        "deleted": {
            topic_id.hex(): {
                **_topic_state(deleted_topic.topic),
                "deleted_at": deleted_topic.deleted_at,
                "kept_ms": deleted_topic.kept_ms,
            }
            for topic_id, deleted_topic in shard.deleted.items()
        },
        "deletions": {
            topic_id.hex(): sorted(broker_ids) for topic_id, broker_ids in shard.deletions.items()
        },
        "topics": {topic_id.hex(): _topic_state(topic) for topic_id, topic in shard.topics.items()},
    }
    return seal(SHARD_KEYS[shard.number], shard.version, shard.controller_epoch, state)


def decode_shard(number: int, stored: StoredObject, known: StateShard | None = None) -> StateShard:
    """Read an object of a shard's key.

    Args:
        known: an earlier version. Unchanged topics and partitions are taken from there: most are
            unchanged, and checking them again is the costly part.

    Raises:
        CorruptMetadataError: it is no such object.
    """

    def shard(state: Any, stored: StoredObject) -> StateShard:
        earlier: dict[TopicId, Topic] = {}
        if known is not None:
            earlier = {
                **known.topics,
                **{key: deleted_topic.topic for key, deleted_topic in known.deleted.items()},
            }
        topics = [_topic(key, value, earlier) for key, value in state["topics"].items()]
        deleted = [
            DeletedTopic(
                topic=_topic(key, value, earlier),
                deleted_at=WallMs(int(value["deleted_at"])),
                kept_ms=int(value.get("kept_ms", 0)),
            )
            # Not in objects of an earlier release.
            for key, value in state.get("deleted", {}).items()
        ]
        if any(
            shard_of(topic.topic_id) != number
            for topic in (*topics, *(deleted_topic.topic for deleted_topic in deleted))
        ):
            raise ValueError("a topic of another shard")
        return StateShard(
            number=number,
            version=stored.version,
            controller_epoch=stored.controller_epoch,
            topics={topic.topic_id: topic for topic in topics},
            deleted={deleted_topic.topic.topic_id: deleted_topic for deleted_topic in deleted},
            deletions={
                TopicId(bytes.fromhex(key)): frozenset(map(BrokerId, value))
                for key, value in state["deletions"].items()
            },
        )

    return _decode(SHARD_KEYS[number], stored, shard)


def _decode(key: str, stored: StoredObject, build: Callable[[Any, StoredObject], _T]) -> _T:
    state = unseal(key, stored)
    try:
        return build(state, stored)
    except (
        # Errors of a state that was well sealed, but by another release.
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        TypeError,
        ValueError,
        InvalidConfigError,
        InvalidTopicError,
    ) as error:
        raise CorruptMetadataError(
            f"the metadata object {key!r} is well sealed, but breaks a rule: {error!r}. "
            "A later release may have written it: start that one, or restore a backup"
        ) from error


def _cluster(state: Any, stored: StoredObject) -> ClusterState:
    registrations = [
        BrokerRegistration(
            broker_id=BrokerId(broker["broker_id"]),
            name=broker["name"],
            rack=broker["rack"],
            host=broker["host"],
            port=broker["port"],
            incarnation_id=broker["incarnation_id"],
            directory_ids=tuple(broker["directory_ids"]),
            broker_epoch=BrokerEpoch(broker["broker_epoch"]),
            is_fenced=broker["is_fenced"],
            # Not in objects of the first release.
            replica_host=broker.get("replica_host", ""),
            replica_port=broker.get("replica_port", 0),
            is_draining=broker.get("is_draining", False),
            is_drained=broker.get("is_drained", False),
            reluctance=_reluctance(broker.get("reluctance", "")),
            outside_address=broker.get("outside_address", ""),
            drpc_addresses=_side_addresses(broker.get("drpc_addresses", {})),
            tls_addresses=_side_addresses(broker.get("tls_addresses", {})),
            kafka_addresses=_kafka_addresses(broker.get("kafka_addresses", {})),
            directory_epoch=BrokerEpoch(broker.get("directory_epoch", 0)),
            level=broker.get("level", FIRST_LEVEL),
            # A later release may know more of them.
            media=tuple(media for media in Media if media in broker.get("media", ())),
        )
        for broker in state["brokers"]
    ]
    quotas = [_quota(quota) for quota in state.get("quotas", ())]
    return ClusterState(
        cluster_id=state["cluster_id"],
        version=stored.version,
        controller_epoch=stored.controller_epoch,
        brokers={registration.broker_id: registration for registration in registrations},
        next_broker_id=BrokerId(state["next_broker_id"]),
        last_broker_epoch=BrokerEpoch(state["last_broker_epoch"]),
        next_producer_id=ProducerId(state["next_producer_id"]),
        quotas={quota.name: quota for quota in quotas},
        # Earlier releases did not wait for the first brokers.
        has_begun=state.get("has_begun", bool(registrations)),
    )


def _quota(state: Any) -> Quota:
    return Quota(
        name=state["name"],
        entity=QuotaEntity(
            principal=state.get("principal"),
            client_id=state.get("client_id"),
            topic=state.get("topic"),
            namespace=state.get("namespace"),
        ),
        produce_bytes_per_second=state.get("produce_bytes_per_second"),
        fetch_bytes_per_second=state.get("fetch_bytes_per_second"),
        request_percent=state.get("request_percent"),
        is_per_broker=state.get("is_per_broker", False),
    )


def _kafka_addresses(value: Any) -> KafkaAddresses:
    known = KafkaAddresses._fields  # A later release may know more of them.
    return KafkaAddresses(**{name: value[name] for name in known if name in value})


def _side_addresses(value: Any) -> SideAddresses:
    """Return where a broker is reached in one way; a later release may know more sides."""
    return SideAddresses(*(value.get(side, "") for side in SideAddresses._fields))


def _reluctance(value: Any) -> Reluctance:
    """Return why a broker is reluctant to lead; a later release may know more reasons."""
    return Reluctance(value) if value in [*Reluctance] else Reluctance.NONE


def _topic_state(topic: Topic) -> dict[str, Any]:
    return {
        "config": dict(topic.overrides),
        "name": f"{topic.name.namespace}/{topic.name.name}",
        "partitions": [_partition_list(partition) for partition in topic.partitions],
    }


def _topic(key: str, value: Any, known_topics: Mapping[TopicId, Topic]) -> Topic:
    topic_id = TopicId(bytes.fromhex(key))
    known = known_topics.get(topic_id)
    earlier = () if known is None else known.partitions
    partitions = tuple(
        _partition(values, earlier[number] if number < len(earlier) else None)
        for number, values in enumerate(value["partitions"])
    )
    if known is not None and (value["name"], value["config"]) == _named(known):
        is_same = len(partitions) == len(earlier) and all(map(is_, partitions, earlier))
        topic = known if is_same else replace(known, partitions=partitions)
    else:
        topic = Topic(
            topic_id=topic_id,
            name=parse_topic_name(value["name"]),
            overrides=value["config"],
            partitions=partitions,
        )
        parse_overrides(topic.overrides)
    if len(topic_id) != TOPIC_ID_BYTES or not topic.partitions:
        raise ValueError(f"not a topic: {topic_id!r} with {len(topic.partitions)} partitions")
    return topic


def _named(topic: Topic) -> tuple[str, dict[str, str]]:
    return f"{topic.name.namespace}/{topic.name.name}", dict(topic.overrides)


def _partition_list(partition: PartitionState) -> list[Any]:
    values: list[Any] = [
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        list(partition.replicas),
        [list(life) for life in partition.isr],
        [list(life) for life in partition.elr],
    ]
    unusual = [
        list(partition.last_known_elr),
        partition.last_known_leader,
        int(partition.is_recovering),
        partition.unclean_epoch,
        list(partition.adding),
        list(partition.removing),
        int(partition.is_unflushed),
        *partition.committed_end,
    ]
    return values if unusual == _NOTHING_UNUSUAL else values + unusual


def _partition(values: list[Any], known: PartitionState | None) -> PartitionState:
    if known is not None and values == _partition_list(known):
        return known
    leader, leader_epoch, partition_epoch, replicas, isr, elr = values[:_OLDEST_VALUES]
    unusual = values[_OLDEST_VALUES:]
    # An object may lack what its release did not know, and have what this one does not know.
    unusual += _NOTHING_UNUSUAL[len(unusual) :]
    last_known_elr, last_known_leader, is_recovering, unclean_epoch, adding, removing = unusual[:6]
    is_unflushed, committed_epoch, committed_offset = unusual[6:9]
    return PartitionState(
        replicas=tuple(map(BrokerId, replicas)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=PartitionEpoch(partition_epoch),
        isr=tuple(map(_life, isr)),
        elr=tuple(map(_life, elr)),
        last_known_elr=tuple(map(BrokerId, last_known_elr)),
        last_known_leader=BrokerId(last_known_leader),
        is_recovering=bool(is_recovering),
        unclean_epoch=LeaderEpoch(unclean_epoch),
        adding=tuple(map(BrokerId, adding)),
        removing=tuple(map(BrokerId, removing)),
        is_unflushed=bool(is_unflushed),
        committed_end=EpochEnd(LeaderEpoch(committed_epoch), Offset(committed_offset)),
    )


def _life(values: list[Any]) -> BrokerLife:
    broker_id, broker_epoch = values
    return BrokerLife(BrokerId(broker_id), BrokerEpoch(broker_epoch))
