"""A broker's metadata from pushed objects (P39)."""

from dataclasses import replace

import pytest
from tests.fakes.cluster import Cluster

from millrace.core.errors import InvalidConfigError, StaleControllerEpochError
from millrace.core.ids import BrokerId, ControllerEpoch, LeaderEpoch, WallMs
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.core.metadata.objects.cache import MetadataCache
from millrace.core.metadata.objects.encoding import decode_shard, encode_shard
from millrace.core.metadata.objects.store_versions import StoreVersions
from millrace.core.metadata.objects.stored_object import CorruptMetadataError, StoredObject
from millrace.core.metadata.requests import DeleteTopics, PurgeTopics, TopicRef

KEY = SHARD_KEYS[0]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3)


@pytest.fixture
def cache(cluster: Cluster) -> MetadataCache:
    """One that has the full state."""
    cache = MetadataCache()
    cache.on_full_state(cluster.objects)
    return cache


def image_of(cache: MetadataCache) -> MetadataImage:
    assert cache.image is not None
    return cache.image


def test_a_full_state_makes_the_controller_s_image(cluster: Cluster) -> None:
    topic = cluster.create()
    cache = MetadataCache()
    cache.on_full_state(cluster.objects)
    assert cache.image == cluster.driver.image
    assert cache.seen == StoreVersions.of(cluster.objects)
    assert topic in cluster.driver.image.topics_by_id


def test_each_object_that_is_pushed_makes_the_next_image(
    cluster: Cluster, cache: MetadataCache
) -> None:
    for name in ("t", "u"):
        cluster.create(name)
        cache.on_object(KEY, cluster.objects[KEY])
        assert cache.image == cluster.driver.image


def test_what_the_controller_publishes_is_what_a_broker_needs(cluster: Cluster) -> None:
    assert cluster.driver.machine.objects == cluster.objects


def test_nothing_counts_before_the_full_state(cluster: Cluster) -> None:
    cache = MetadataCache()
    cache.on_object(KEY, cluster.objects[KEY])
    assert (cache.image, cache.has_missed) == (None, False)


def test_an_older_version_changes_nothing(cluster: Cluster, cache: MetadataCache) -> None:
    old = dict(cluster.objects)
    cluster.create()
    cache.on_object(KEY, cluster.objects[KEY])
    before = image_of(cache)
    cache.on_object(KEY, old[KEY])
    assert image_of(cache) is before


def test_a_full_state_that_goes_back_under_one_controller_is_refused(
    cluster: Cluster, cache: MetadataCache
) -> None:
    old = dict(cluster.objects)
    cluster.create()
    cache.on_object(KEY, cluster.objects[KEY])
    before = image_of(cache)
    with pytest.raises(CorruptMetadataError, match=r"set back.*'shards/00' has version 1, and 2"):
        cache.on_full_state(old)
    assert image_of(cache) is before


def test_a_successor_that_went_on_from_an_older_state_is_refused(
    cluster: Cluster, cache: MetadataCache
) -> None:
    old = dict(cluster.objects)
    cluster.create()
    cache.on_object(KEY, cluster.objects[KEY])
    before = image_of(cache)
    cluster.objects.clear()
    cluster.objects.update(old)
    cluster.replace_controller()
    with pytest.raises(CorruptMetadataError, match="set back"):
        cache.on_full_state(cluster.objects)
    assert image_of(cache) is before


def test_what_was_seen_is_kept_over_restarts(cluster: Cluster, cache: MetadataCache) -> None:
    old = dict(cluster.objects)
    cluster.create()
    cache.on_object(KEY, cluster.objects[KEY])
    assert cache.seen == StoreVersions.of(cluster.objects)
    next_cache = MetadataCache(seen=StoreVersions.parse(str(cache.seen)))
    with pytest.raises(CorruptMetadataError, match="set back"):
        next_cache.on_full_state(old)
    assert next_cache.image is None
    next_cache.on_full_state(cluster.objects)
    assert next_cache.image == cluster.driver.image


def test_a_gap_asks_for_the_full_state_and_applies_nothing_until_it_comes(
    cluster: Cluster, cache: MetadataCache
) -> None:
    before = image_of(cache)
    cluster.create("t")
    cluster.create("u")
    cache.on_object(KEY, cluster.objects[KEY])
    assert cache.has_missed
    cluster.create("v")
    cache.on_object(KEY, cluster.objects[KEY])
    assert image_of(cache) is before
    cache.on_full_state(cluster.objects)
    assert (cache.image, cache.has_missed) == (cluster.driver.image, False)
    cluster.create("w")
    cache.on_object(KEY, cluster.objects[KEY])
    assert cache.image == cluster.driver.image


def test_a_controller_that_was_replaced_is_refused(cluster: Cluster, cache: MetadataCache) -> None:
    old = dict(cluster.objects)
    cluster.replace_controller()
    cache.on_full_state(cluster.objects)
    assert cache.seen == StoreVersions.of(cluster.objects)
    late = StoredObject(old[KEY].value, old[KEY].version + 9, old[KEY].controller_epoch)
    with pytest.raises(StaleControllerEpochError):
        cache.on_object(KEY, late)
    with pytest.raises(StaleControllerEpochError):
        cache.on_full_state(old)


def test_the_highest_controller_epoch_is_kept_over_restarts(cluster: Cluster) -> None:
    """A store that was set back is found out, and nothing is done (P39)."""
    with pytest.raises(StaleControllerEpochError, match="set back"):
        MetadataCache(seen=StoreVersions(ControllerEpoch(5))).on_full_state(cluster.objects)


def test_another_cluster_is_refused(cluster: Cluster) -> None:
    cache = MetadataCache("mine")
    with pytest.raises(InvalidConfigError, match="belong to mine"):
        cache.on_full_state(cluster.objects)
    assert cache.image is None


def test_a_damaged_object_is_refused_and_its_epoch_is_not_believed(
    cluster: Cluster, cache: MetadataCache
) -> None:
    cluster.create()
    whole = cluster.objects[KEY]
    damaged = StoredObject(whole.value[:-3], whole.version, ControllerEpoch(1 << 40))
    with pytest.raises(CorruptMetadataError):
        cache.on_object(KEY, damaged)
    cache.on_object(KEY, whole)
    assert cache.image == cluster.driver.image


def test_a_full_state_must_be_full(cluster: Cluster) -> None:
    for key in (CLUSTER_KEY, SHARD_KEYS[31]):
        objects = {name: stored for name, stored in cluster.objects.items() if name != key}
        with pytest.raises(CorruptMetadataError, match=key):
            MetadataCache().on_full_state(objects)


def test_epochs_that_go_back_under_a_higher_version_are_refused(cluster: Cluster) -> None:
    topic = cluster.create()
    cluster.driver.kill(cluster.state(topic).leader)
    cache = MetadataCache()
    cache.on_full_state(cluster.objects)
    before = image_of(cache)
    shard = decode_shard(0, cluster.objects[KEY])
    state = shard.topics[topic].partitions[0]
    older = replace(state, leader_epoch=LeaderEpoch(state.leader_epoch - 1))
    rolled_back = replace(
        shard,
        version=shard.version + 1,
        topics={topic: replace(shard.topics[topic], partitions=(older,))},
    )
    with pytest.raises(CorruptMetadataError, match="set back"):
        cache.on_object(KEY, encode_shard(rolled_back))
    assert image_of(cache) is before


def test_what_a_write_left_as_it_was_is_the_very_same_in_the_next_image(
    cluster: Cluster, cache: MetadataCache
) -> None:
    changed, beside = cluster.create("changed", partitions=3), cluster.create("beside")
    cache.on_full_state(cluster.objects)
    before = image_of(cache)
    leader, follower, _ = cluster.state(changed, 1).replicas
    cluster.change_isr(changed, leader, follower, partition=1)
    cache.on_object(KEY, cluster.objects[KEY])
    after = image_of(cache)
    assert after == cluster.driver.image
    assert after.topics_by_id[beside] is before.topics_by_id[beside]
    old, new = (each.topics_by_id[changed].partitions for each in (before, after))
    assert [state is known for state, known in zip(new, old, strict=True)] == [True, False, True]


def test_a_topic_that_is_not_there_is_no_order_to_delete_it(
    cluster: Cluster, cache: MetadataCache
) -> None:
    topic = cluster.create(replication_factor=2)
    cache.on_object(KEY, cluster.objects[KEY])
    shard = decode_shard(0, cluster.objects[KEY])
    lost = encode_shard(replace(shard, version=shard.version + 1, topics={}))
    cache.on_object(KEY, lost)
    assert cache.image is not None
    assert cache.image.topics_by_id == {}
    assert cache.image.deletions_of(BrokerId(0)) == []
    other = MetadataCache()
    cluster.driver.ask(DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(name="t")]))
    other.on_full_state(cluster.objects)
    assert other.image is not None
    assert other.image.deletions_of(BrokerId(0)) == []
    cluster.driver.ask(PurgeTopics(topics=[TopicRef(name="t")]))
    other.on_full_state(cluster.objects)
    assert other.image.deletions_of(BrokerId(0)) == [topic]
