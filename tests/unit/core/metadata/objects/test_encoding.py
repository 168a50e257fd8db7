import json
from dataclasses import replace

import crc32c
import pytest
from tests.fakes.cluster import Cluster

from millrace.core.ids import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
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
    NOWHERE,
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
)
from millrace.core.metadata.objects.encoding import (
    decode_cluster,
    decode_shard,
    encode_cluster,
    encode_shard,
)
from millrace.core.metadata.objects.stored_object import (
    CorruptMetadataError,
    StoredObject,
    seal,
    unseal,
)
from millrace.core.quotas.quota import Quota, QuotaEntity
from millrace.core.topics import TopicName

LIFE = BrokerLife(BrokerId(0), BrokerEpoch(3))
OTHER_LIFE = BrokerLife(BrokerId(4), BrokerEpoch(9))
TOPIC_ID = TopicId(bytes.fromhex("00000005") + bytes(12))  # Shard 5.

CLUSTER = ClusterState(
    cluster_id="c1",
    version=8,
    controller_epoch=ControllerEpoch(2),
    brokers={
        BrokerId(0): BrokerRegistration(
            broker_id=BrokerId(0),
            name="größer",
            rack="a",
            host="::1",
            port=7092,
            incarnation_id="i",
            directory_ids=("d1", "d2"),
            broker_epoch=BrokerEpoch(3),
            is_fenced=True,
            replica_host="r",
            replica_port=7093,
            is_draining=True,
            is_drained=True,
            reluctance=Reluctance.SLOW_DISK,
            media=(Media.SSD, Media.HDD),
            outside_address="203.0.113.5:9094",
            drpc_addresses=SideAddresses(clients="[::1]:7096", brokers="r:7097"),
            kafka_addresses=KafkaAddresses(clients="[::1]:9092", outside_tls="203.0.113.5:9095"),
            level=2,
        )
    },
    next_broker_id=BrokerId(1),
    last_broker_epoch=BrokerEpoch(3),
    next_producer_id=ProducerId(2000),
    quotas={
        "each": Quota(name="each", entity=QuotaEntity(principal=""), request_percent=7),
        "team/orders": Quota(
            name="team/orders",
            entity=QuotaEntity(topic="shop/orders"),
            fetch_bytes_per_second=7000,
            is_per_broker=True,
        ),
    },
    has_begun=True,
)

DELETED = Topic(
    topic_id=TopicId(bytes.fromhex("00000065") + bytes(12)),
    name=TopicName("default", "gone"),
    partitions=(
        PartitionState(
            replicas=(BrokerId(0), BrokerId(4)),
            leader=NO_BROKER,
            leader_epoch=LeaderEpoch(3),
            partition_epoch=PartitionEpoch(5),
            isr=(),
            elr=(LIFE, OTHER_LIFE),
        ),
    ),
)
DELETED_TOPIC = DeletedTopic(
    topic=DELETED, deleted_at=WallMs(1_795_351_260_289), kept_ms=86_000_000
)
SHARD = StateShard(
    number=5,
    version=7,
    controller_epoch=ControllerEpoch(2),
    topics={
        TOPIC_ID: Topic(
            topic_id=TOPIC_ID,
            name=TopicName("shop", "orders"),
            overrides={"retention.ms": "-1"},
            partitions=(
                PartitionState(
                    replicas=(BrokerId(0), BrokerId(4)),
                    leader=BrokerId(0),
                    leader_epoch=LeaderEpoch(1),
                    partition_epoch=PartitionEpoch(2),
                    isr=(LIFE,),
                    elr=(OTHER_LIFE,),
                ),
                PartitionState(
                    replicas=(BrokerId(4), BrokerId(0), BrokerId(1), BrokerId(2)),
                    leader=NO_BROKER,
                    leader_epoch=LeaderEpoch(4),
                    partition_epoch=PartitionEpoch(9),
                    isr=(),
                    elr=(OTHER_LIFE,),
                    last_known_elr=(BrokerId(1),),
                    committed_end=EpochEnd(LeaderEpoch(2), Offset(1500)),
                    last_known_leader=BrokerId(4),
                    is_recovering=True,
                    is_unflushed=True,
                    unclean_epoch=LeaderEpoch(3),
                    adding=(BrokerId(4), BrokerId(0)),
                    removing=(BrokerId(2),),
                ),
                PartitionState(
                    replicas=(BrokerId(4),),
                    leader=NO_BROKER,
                    leader_epoch=LeaderEpoch(0),
                    partition_epoch=PartitionEpoch(1),
                    isr=(),
                ),
            ),
        )
    },
    deleted={DELETED.topic_id: DELETED_TOPIC},
    deletions={
        TopicId(bytes(3) + b"\x45" + bytes(12)): frozenset({BrokerId(0)}),
        TopicId(bytes(3) + b"\x25" + bytes(12)): frozenset({BrokerId(4), BrokerId(0)}),
    },
)


def test_what_is_written_is_read_back() -> None:
    assert decode_cluster(encode_cluster(CLUSTER)) == CLUSTER
    assert decode_shard(5, encode_shard(SHARD)) == SHARD


def test_a_shard_of_a_release_that_did_not_know_deleted_topics_has_none() -> None:
    text = json.loads(encode_shard(SHARD).value)["object"]["state"]
    del text["deleted"]
    older = seal(SHARD_KEYS[5], SHARD.version, SHARD.controller_epoch, text)
    assert decode_shard(5, older) == replace(SHARD, deleted={})


def test_a_topic_that_is_deleted_and_brought_back_is_not_read_again() -> None:
    later = replace(
        SHARD,
        version=8,
        topics={DELETED.topic_id: DELETED},
        deleted={
            key: DeletedTopic(topic=topic, deleted_at=WallMs(5))
            for key, topic in SHARD.topics.items()
        },
    )
    read = decode_shard(5, encode_shard(later), SHARD)
    assert read == later
    assert read.topics[DELETED.topic_id] is DELETED
    for key, topic in SHARD.topics.items():
        assert read.deleted[key].topic is topic


def test_the_same_state_is_the_same_bytes() -> None:
    backwards = StateShard(
        number=5,
        version=7,
        controller_epoch=ControllerEpoch(2),
        topics=SHARD.topics,
        deleted=SHARD.deleted,
        deletions=dict(reversed(list(SHARD.deletions.items()))),
    )
    assert encode_shard(backwards) == encode_shard(SHARD)


def test_a_stored_object_is_compact_json_that_people_can_read() -> None:
    text = encode_shard(SHARD).value
    assert b" " not in text
    assert json.loads(text)["object"] == {
        "controller_epoch": 2,
        "format": 1,
        "key": "shards/05",
        "state": {
            "deleted": {
                "00000065" + "00" * 12: {
                    "config": {},
                    "deleted_at": 1_795_351_260_289,
                    "kept_ms": 86_000_000,
                    "name": "default/gone",
                    "partitions": [[-1, 3, 5, [0, 4], [], [[0, 3], [4, 9]]]],
                }
            },
            "deletions": {"00000025" + "00" * 12: [0, 4], "00000045" + "00" * 12: [0]},
            "topics": {
                "00000005" + "00" * 12: {
                    "config": {"retention.ms": "-1"},
                    "name": "shop/orders",
                    "partitions": [
                        [0, 1, 2, [0, 4], [[0, 3]], [[4, 9]]],
                        [
                            *(-1, 4, 9, [4, 0, 1, 2], [], [[4, 9]], [1], 4, 1, 3),
                            *([4, 0], [2], 1, 2, 1500),
                        ],
                        [-1, 0, 1, [4], [], []],
                    ],
                }
            },
        },
        "version": 7,
    }


@pytest.mark.parametrize(
    ("key", "sealed"),
    [(CLUSTER_KEY, encode_cluster(CLUSTER)), (SHARD_KEYS[5], encode_shard(SHARD))],
)
def test_every_flipped_bit_is_found(key: str, sealed: StoredObject) -> None:
    for bit in range(8 * len(sealed.value)):
        flipped = bytearray(sealed.value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMetadataError):
            unseal(key, StoredObject(bytes(flipped), sealed.version, sealed.controller_epoch))


def test_every_truncation_is_found() -> None:
    sealed = encode_cluster(CLUSTER)
    for length in range(len(sealed.value)):
        shorter = StoredObject(sealed.value[:length], sealed.version, sealed.controller_epoch)
        with pytest.raises(CorruptMetadataError):
            decode_cluster(shorter)


def test_an_object_under_another_key_version_or_epoch_is_found_out() -> None:
    value = encode_shard(SHARD).value
    with pytest.raises(CorruptMetadataError, match="moved"):
        decode_shard(6, StoredObject(value, 7, ControllerEpoch(2)))
    with pytest.raises(CorruptMetadataError, match="moved"):
        decode_shard(5, StoredObject(value, 8, ControllerEpoch(2)))
    with pytest.raises(CorruptMetadataError, match="moved"):
        decode_shard(5, StoredObject(value, 7, ControllerEpoch(3)))


BAD_PARTITIONS = {
    "a leader outside of the ISR": [0, 1, 2, [0, 4], [[4, 9]], []],
    "an ISR outside of the replicas": [-1, 1, 2, [0], [[4, 9]], []],
    "in ISR and ELR": [-1, 1, 2, [0], [[0, 3]], [[0, 3]]],
    "a replica twice": [-1, 1, 2, [0, 0], [], []],
    "no replicas": [-1, 1, 2, [], [], []],
    "a negative epoch": [-1, -1, 2, [0], [], []],
    "too short": [-1, 1, 2, [0], []],
    "last known and eligible": [-1, 1, 2, [0], [], [[0, 3]], [0], -1, 0, -1, [], []],
    "a last known leader beside a leader": [0, 1, 2, [0], [[0, 3]], [], [], 0, 0, -1, [], []],
    "an unclean epoch to come": [0, 1, 2, [0], [[0, 3]], [], [], -1, 0, 2, [], []],
    "added and removed": [0, 1, 2, [0, 4], [[0, 3]], [], [], -1, 0, -1, [4], [4]],
    "no replica that stays": [-1, 1, 2, [0, 4], [], [], [], -1, 0, -1, [], [0, 4]],
    "no list": 7,
}


@pytest.mark.parametrize("partition", BAD_PARTITIONS.values(), ids=BAD_PARTITIONS.keys())
def test_a_state_that_breaks_a_rule_is_refused_although_well_sealed(partition: object) -> None:
    topic = {"config": {}, "name": "default/t", "partitions": [partition]}
    state = {"deletions": {}, "topics": {TOPIC_ID.hex(): topic}}
    with pytest.raises(CorruptMetadataError, match="breaks a rule"):
        decode_shard(5, seal(SHARD_KEYS[5], 1, ControllerEpoch(1), state))


@pytest.mark.parametrize(
    "topics",
    [
        {"00" * 16: {"config": {}, "name": "default/t", "partitions": [[-1, 1, 2, [0], [], []]]}},
        {TOPIC_ID.hex(): {"config": {}, "name": "default/t", "partitions": []}},
        {TOPIC_ID.hex(): {"config": {}, "name": "//", "partitions": [[-1, 1, 2, [0], [], []]]}},
        {
            TOPIC_ID.hex(): {
                "config": {"later.setting": "1"},
                "name": "default/t",
                "partitions": [[-1, 1, 2, [0], [], []]],
            }
        },
        {"05": {}},
        [],
    ],
)
def test_a_topic_that_cannot_be_is_refused_although_well_sealed(topics: object) -> None:
    with pytest.raises(CorruptMetadataError, match="breaks a rule"):
        decode_shard(
            5,
            seal(SHARD_KEYS[5], 1, ControllerEpoch(1), {"deletions": {}, "topics": topics}),
        )


def test_a_later_format_is_named() -> None:
    sealed = encode_cluster(CLUSTER)
    text = sealed.value[len('{"checksum":"00000000","object":') : -1]
    later = text.replace(b'"format":1,', b'"format":2,')
    value = b'{"checksum":"%08x","object":%s}' % (crc32c.crc32c(later), later)
    with pytest.raises(CorruptMetadataError, match="has format 2"):
        decode_cluster(StoredObject(value, sealed.version, sealed.controller_epoch))


def test_a_later_release_may_append_to_a_partition() -> None:
    later = {
        "deletions": {},
        "topics": {
            TOPIC_ID.hex(): {
                "config": {},
                "name": "default/t",
                "partitions": [
                    [0, 1, 2, [0], [[0, 3]], [], [], -1, 0, -1, [], [], ["what", "ever"]]
                ],
            }
        },
    }
    shard = decode_shard(5, seal(SHARD_KEYS[5], 1, ControllerEpoch(1), later))
    assert shard.topics[TOPIC_ID].partitions[0].leader == 0


def test_a_broker_of_the_first_release_is_read_with_what_it_did_not_know() -> None:
    state = unseal(CLUSTER_KEY, encode_cluster(CLUSTER))
    later = (
        *("replica_host", "replica_port", "is_draining", "is_drained", "reluctance", "media"),
        *("outside_address", "level", "drpc_addresses"),
    )
    for name in later:
        del state["brokers"][0][name]
    broker = decode_cluster(seal(CLUSTER_KEY, 1, ControllerEpoch(1), state)).brokers[BrokerId(0)]
    assert (broker.replica_host, broker.replica_port) == ("", 0)
    assert (broker.is_draining, broker.is_drained) == (False, False)
    assert broker.reluctance is Reluctance.NONE
    assert broker.media == ()
    assert broker.outside_address == ""
    assert broker.drpc_addresses == NOWHERE
    assert broker.level == FIRST_LEVEL


def test_a_cluster_of_a_release_without_quotas_has_none() -> None:
    state = unseal(CLUSTER_KEY, encode_cluster(CLUSTER))
    del state["quotas"]
    assert decode_cluster(seal(CLUSTER_KEY, 1, ControllerEpoch(1), state)).quotas == {}


@pytest.mark.parametrize("brokers", [0, 1])
def test_a_cluster_of_a_release_that_waited_for_no_brokers_has_begun_if_it_has_one(
    brokers: int,
) -> None:
    state = unseal(CLUSTER_KEY, encode_cluster(CLUSTER))
    del state["has_begun"]
    state["brokers"] = state["brokers"][:brokers]
    cluster = decode_cluster(seal(CLUSTER_KEY, 1, ControllerEpoch(1), state))
    assert cluster.has_begun is bool(brokers)


def test_media_of_a_later_release_are_left_out() -> None:
    state = unseal(CLUSTER_KEY, encode_cluster(CLUSTER))
    state["brokers"][0]["media"] = ["hdd", "glass"]
    broker = decode_cluster(seal(CLUSTER_KEY, 1, ControllerEpoch(1), state)).brokers[BrokerId(0)]
    assert broker.media == (Media.HDD,)


def test_a_reason_of_a_later_release_not_to_lead_is_none() -> None:
    state = unseal(CLUSTER_KEY, encode_cluster(CLUSTER))
    state["brokers"][0]["reluctance"] = "no mood"
    broker = decode_cluster(seal(CLUSTER_KEY, 1, ControllerEpoch(1), state)).brokers[BrokerId(0)]
    assert broker.reluctance is Reluctance.NONE


def test_beside_an_earlier_version_a_damaged_one_is_found_out_all_the_same() -> None:
    cluster = Cluster(3)
    cluster.create(partitions=3)
    stored = cluster.objects[SHARD_KEYS[0]]
    known = decode_shard(0, stored)
    state = unseal(SHARD_KEYS[0], stored)
    ((topic_id, topic),) = state["topics"].items()
    for partitions in (
        [topic["partitions"][0], None],
        [],
        [[*topic["partitions"][0][:3], [], [], []]],
    ):
        broken = {"topics": {topic_id: {**topic, "partitions": partitions}}, "deletions": {}}
        with pytest.raises(CorruptMetadataError):
            decode_shard(0, seal(SHARD_KEYS[0], 9, stored.controller_epoch, broken), known)
