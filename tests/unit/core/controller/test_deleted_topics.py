"""Deleted topics are kept apart, come back as after a restart of all brokers, or are gone."""

import pytest
from tests.fakes.cluster import Cluster, ids, registration
from tests.fakes.controller_driver import ControllerDriver

from millrace.core.errors import (
    BrokerBusyError,
    InvalidPartitionsError,
    MalformedRequestError,
    MillraceError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import NO_BROKER, BrokerId, TopicId, WallMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import DeletedTopic, PartitionState, Topic, shard_of
from millrace.core.metadata.requests import (
    AlterPartitions,
    DeleteTopics,
    PurgeTopics,
    TopicRef,
    UndeleteTopics,
    UnregisterBroker,
)
from millrace.core.metadata.shard_size import EMPTY_BYTES, deletions_bytes, topic_bytes

NOW = WallMs(1_000_000)
DAY = 86_400_000


def delete(cluster: Cluster, topic_id: TopicId, at: int = NOW) -> None:
    request = DeleteTopics(topics=[TopicRef(topic_id=topic_id)], deleted_at=WallMs(at))
    (topic,) = cluster.ask_each(request)
    assert isinstance(topic, Topic), topic


def undelete(cluster: Cluster, name: str = "", topic_id: TopicId | None = None) -> object:
    request = UndeleteTopics(topics=[TopicRef(name=name, topic_id=topic_id)])
    return cluster.ask_each(request)[0]


def back(cluster: Cluster, topic_id: TopicId) -> PartitionState:
    """Bring a topic back; return the state of its first partition."""
    topic = undelete(cluster, topic_id=topic_id)
    assert isinstance(topic, Topic), topic
    assert cluster.driver.image.topics_by_id[topic_id] == topic
    return topic.partitions[0]


def kept(driver: ControllerDriver, topic_id: TopicId) -> DeletedTopic | None:
    return driver.image.shards[shard_of(topic_id)].deleted.get(topic_id)


def kept_state(cluster: Cluster, topic_id: TopicId) -> PartitionState:
    deleted = kept(cluster.driver, topic_id)
    assert deleted is not None
    return deleted.topic.partitions[0]


def test_a_deleted_topic_is_none_for_clients_and_orders_nothing() -> None:
    cluster = Cluster()
    topic_id = cluster.create(partitions=2)
    delete(cluster, topic_id)
    image = cluster.driver.image
    assert (image.topics, image.topics_by_id) == ({}, {})
    assert image.may_return(topic_id)
    assert [deleted_topic.topic.topic_id for deleted_topic in image.deleted_topics()] == [topic_id]
    assert not any(image.deletions_of(BrokerId(number)) for number in range(3))
    cluster.replace_controller()
    assert cluster.driver.image.may_return(topic_id)


def test_all_that_have_everything_are_eligible_meanwhile() -> None:
    cluster = Cluster()
    topic_id = cluster.create()
    before = cluster.state(topic_id)
    cluster.change_isr(
        topic_id, *(replica for replica in before.replicas if replica != before.replicas[2])
    )
    led = cluster.state(topic_id)
    delete(cluster, topic_id)
    state = kept_state(cluster, topic_id)
    assert (state.leader, state.isr) == (NO_BROKER, ())
    assert state.elr == led.isr
    assert state.leader_epoch == led.leader_epoch + 1
    assert state.partition_epoch == led.partition_epoch + 1


def test_it_comes_back_with_a_leader_that_was_in_sync_in_a_new_epoch() -> None:
    cluster = Cluster()
    topic_id = cluster.create(config={"retention.ms": "5000"})
    preferred, second, third = cluster.state(topic_id).replicas
    cluster.change_isr(topic_id, preferred, third)
    led = cluster.state(topic_id)
    cluster.driver.kill(preferred)
    delete(cluster, topic_id)
    state = back(cluster, topic_id)
    assert state.leader == third
    assert ids(state.isr) == [third]
    assert second not in ids(state.elr)
    assert state.leader_epoch > led.leader_epoch + 1
    assert cluster.driver.image.topics_by_id[topic_id].overrides == {"retention.ms": "5000"}
    assert kept(cluster.driver, topic_id) is None


def test_nothing_is_elected_while_it_is_deleted() -> None:
    cluster = Cluster()
    topic_id = cluster.create()
    delete(cluster, topic_id)
    before = kept_state(cluster, topic_id)
    cluster.driver.pass_time(2000)
    cluster.replace_controller()
    cluster.driver.pass_time(2000)
    assert kept_state(cluster, topic_id) == before


def test_a_leader_that_has_not_heard_of_it_changes_nothing() -> None:
    cluster = Cluster()
    topic_id = cluster.create()
    change = cluster.isr_change(topic_id, cluster.state(topic_id).leader)
    delete(cluster, topic_id)
    before = kept_state(cluster, topic_id)
    for is_back in (False, True):
        if is_back:
            before = back(cluster, topic_id)
        (refused,) = cluster.ask_each(AlterPartitions(changes=[change]))
        assert isinstance(refused, MillraceError)
    assert cluster.state(topic_id) == before


@pytest.mark.parametrize(
    ("durability", "is_clean", "has_disk", "stays"),
    [
        ("fsync", False, True, True),
        ("replicated", True, True, True),
        ("replicated", False, True, False),
        ("fsync", False, False, False),
    ],
)
def test_a_broker_that_starts_again_stays_eligible_only_with_its_records(
    durability: str, is_clean: bool, has_disk: bool, stays: bool
) -> None:
    cluster = Cluster()
    topic_id = cluster.create(config={"durability": durability})
    delete(cluster, topic_id)
    old = cluster.life(1)
    cluster.driver.kill(BrokerId(1))
    life = cluster.driver.start_broker(
        registration(
            1,
            "2",
            previous_broker_epoch=old.broker_epoch if is_clean else None,
            directories=None if has_disk else ["another"],
        )
    ).life
    state = kept_state(cluster, topic_id)
    assert old not in state.elr
    assert (life in state.elr) is stays
    assert (1 in state.last_known_elr) is (has_disk and not stays)
    assert state.leader == NO_BROKER
    assert len(state.elr) == 2 + stays


def test_when_all_have_started_again_one_of_them_leads() -> None:
    cluster = Cluster()
    topic_id = cluster.create()
    delete(cluster, topic_id)
    for broker_id in range(3):
        cluster.driver.kill(BrokerId(broker_id))
        cluster.restart(broker_id, "2")
    state = back(cluster, topic_id)
    assert state.leader == state.replicas[0]
    assert state.leader_life == cluster.life(state.leader)


def test_its_name_is_free_and_then_it_cannot_come_back() -> None:
    cluster = Cluster()
    first = cluster.create(shard=1)
    delete(cluster, first)
    second = cluster.create(shard=2)
    assert isinstance(undelete(cluster, "t"), TopicAlreadyExistsError)
    delete(cluster, second, NOW + 1)
    error = undelete(cluster, "t")
    assert isinstance(error, MalformedRequestError)
    assert f"{first.hex()}, {second.hex()}" in error.message
    assert back(cluster, first).leader != NO_BROKER
    assert isinstance(undelete(cluster, "t"), TopicAlreadyExistsError)
    assert isinstance(undelete(cluster, topic_id=second), TopicAlreadyExistsError)


def test_asked_again_it_is_there_and_nothing_changes() -> None:
    cluster = Cluster()
    topic_id = cluster.create()
    delete(cluster, topic_id)
    state = back(cluster, topic_id)
    before = dict(cluster.objects)
    assert back(cluster, topic_id) == state
    assert cluster.objects == before


@pytest.mark.parametrize(
    "ref",
    [
        TopicRef(name="other"),
        TopicRef(),
        TopicRef(name="other", topic_id=TopicId(b"\0\0\0\0t...........")),
        TopicRef(topic_id=TopicId(bytes(15) + b"x")),
    ],
)
def test_what_was_not_deleted_does_not_come_back(ref: TopicRef) -> None:
    cluster = Cluster()
    delete(cluster, cluster.create())
    for request in (UndeleteTopics(topics=[ref]), PurgeTopics(topics=[ref])):
        assert isinstance(cluster.ask_each(request)[0], UnknownTopicOrPartitionError)


def test_it_comes_back_only_once_the_deletion_of_its_namesake_is_stored() -> None:
    """P37: else a crash could leave two topics of one name."""
    cluster = Cluster()
    first = cluster.create(shard=1)
    delete(cluster, first)
    second = cluster.create(shard=2)
    driver = cluster.driver
    driver.send(DeleteTopics(topics=[TopicRef(topic_id=second)], deleted_at=NOW))
    too_soon = driver.send(UndeleteTopics(topics=[TopicRef(topic_id=first)]))
    driver.settle()
    answer = driver.results[too_soon]
    assert isinstance(answer, list)
    assert isinstance(answer[0], BrokerBusyError)
    assert back(cluster, first).leader != NO_BROKER


def test_its_name_is_not_free_while_its_return_may_be_stored_last() -> None:
    cluster = Cluster()
    topic_id = cluster.create(shard=1)
    delete(cluster, topic_id)
    driver = cluster.driver
    ref = TopicRef(topic_id=topic_id)
    driver.send(UndeleteTopics(topics=[ref]))
    driver.send(DeleteTopics(topics=[ref], deleted_at=NOW))
    # Another object is stored meanwhile, and the one before still says that it is deleted.
    driver.send(registration(7))
    write = next(write for write in driver.writes if write.key == "cluster")
    driver.writes.remove(write)
    driver.writes.insert(0, write)
    driver.write()
    with pytest.raises(AssertionError, match="not stored yet"):
        cluster.create(shard=2)
    cluster.create(shard=2)


def test_its_time_is_over_after_the_setting() -> None:
    cluster = Cluster(config=ClusterConfig(deleted_topic_retention_ms=10_000))
    topic_id = cluster.create()
    cluster.driver.pass_time(5000)
    delete(cluster, topic_id)
    cluster.driver.pass_time(9900)
    assert cluster.driver.image.may_return(topic_id)
    cluster.driver.pass_time(2000)  # It is looked at each second.
    assert not cluster.driver.image.may_return(topic_id)
    assert cluster.driver.image.deletions_of(BrokerId(1)) == [topic_id]
    assert isinstance(undelete(cluster, topic_id=topic_id), UnknownTopicOrPartitionError)


def test_its_time_begins_again_with_another_deletion() -> None:
    cluster = Cluster(config=ClusterConfig(deleted_topic_retention_ms=10_000))
    topic_id = cluster.create()
    delete(cluster, topic_id)
    cluster.driver.pass_time(9000)
    back(cluster, topic_id)
    delete(cluster, topic_id)
    cluster.driver.pass_time(9900)
    assert back(cluster, topic_id).leader != NO_BROKER


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("at", [NOW - 2 * DAY, NOW, NOW + 2 * DAY])
def test_a_time_of_day_that_is_wrong_makes_no_difference(at: int, is_replaced: bool) -> None:
    cluster = Cluster(config=ClusterConfig(deleted_topic_retention_ms=10_000))
    topic_id = cluster.create()
    delete(cluster, topic_id, at)
    if is_replaced:
        cluster.replace_controller()
    cluster.driver.pass_time(9900)
    assert cluster.driver.image.may_return(topic_id)
    cluster.driver.pass_time(2000)
    assert not cluster.driver.image.may_return(topic_id)


def test_a_jump_of_the_controllers_clock_does_not_end_its_time() -> None:
    cluster = Cluster()
    topic_id = cluster.create()
    delete(cluster, topic_id)
    for _ in range(3):
        cluster.driver.pass_time(3000)
        cluster.driver.now += 2 * DAY
        cluster.driver.tick()
    assert back(cluster, topic_id).replicas


def test_what_controllers_have_counted_before_is_not_counted_again() -> None:
    retention_ms, term_ms = 150_000, 70_000  # What is counted is stored each minute.
    cluster = Cluster(config=ClusterConfig(deleted_topic_retention_ms=retention_ms))
    topic_id = cluster.create()
    delete(cluster, topic_id)
    for _ in range(2):
        cluster.driver.pass_time(term_ms)
        cluster.replace_controller()
    cluster.driver.pass_time(retention_ms - 2 * term_ms)
    assert cluster.driver.image.may_return(topic_id)
    cluster.driver.pass_time(2 * (term_ms - 60_000) + 5000)
    assert not cluster.driver.image.may_return(topic_id)


def test_what_was_counted_is_stored_now_and_then() -> None:
    cluster = Cluster(config=ClusterConfig(deleted_topic_retention_ms=6_000_000))
    topic_id = cluster.create()
    delete(cluster, topic_id)
    before = cluster.driver.image.epoch
    cluster.driver.pass_time(59_000)  # Of a hundredth.
    assert cluster.driver.image.epoch == before
    cluster.driver.pass_time(3000)
    deleted = kept(cluster.driver, topic_id)
    assert deleted is not None
    assert 58_000 <= deleted.kept_ms <= 62_000


def test_without_a_time_it_is_gone_at_once() -> None:
    cluster = Cluster(config=ClusterConfig(deleted_topic_retention_ms=0))
    topic_id = cluster.create()
    delete(cluster, topic_id)
    assert cluster.driver.image.deletions_of(BrokerId(0)) == [topic_id]
    cluster.create(shard=1)


def test_what_is_purged_is_gone_and_its_name_is_free() -> None:
    cluster = Cluster()
    topic_id = cluster.create()
    delete(cluster, topic_id)
    cluster.ask_each(PurgeTopics(topics=[TopicRef(name="t")]))
    assert cluster.driver.image.deletions_of(BrokerId(2)) == [topic_id]
    cluster.create(shard=1)


def test_of_too_many_the_one_deleted_first_is_gone() -> None:
    cluster = Cluster(config=ClusterConfig(deleted_topics_max=2))
    topic_ids = [cluster.create(name) for name in "abc"]
    for at, topic_id in zip((3, 1, 2), topic_ids, strict=True):
        delete(cluster, topic_id, at)
    image = cluster.driver.image
    assert {deleted_topic.topic.topic_id for deleted_topic in image.deleted_topics()} == {
        topic_ids[0],
        topic_ids[2],
    }
    assert image.deletions_of(BrokerId(0)) == [topic_ids[1]]
    (told,) = cluster.driver.gone
    assert (str(told.topic), told.topic_id) == ("b", topic_ids[1])
    assert "cluster.deleted_topics_max" in told.reason


def test_they_give_way_where_a_new_topic_needs_the_room() -> None:
    probe = Cluster()
    probe.create("a" * 12, partitions=500)
    (topic,) = probe.driver.image.topics_by_id.values()
    holders = {topic.topic_id: frozenset(topic.replica_holders())}
    room = EMPTY_BYTES + 2 * topic_bytes(topic) + 2 * deletions_bytes(holders)
    cluster = Cluster(config=ClusterConfig(shard_bytes_max=room))
    first, second = (cluster.create(each * 12, partitions=500) for each in "ab")
    delete(cluster, first, 1)
    delete(cluster, second, 2)
    cluster.create("c" * 12, partitions=500)
    assert not cluster.driver.image.may_return(first)
    assert cluster.driver.image.may_return(second)


def test_it_needs_room_to_come_back() -> None:
    cluster = Cluster(1, ClusterConfig(broker_partitions_max=4))
    topic_id = cluster.create(partitions=3, replication_factor=1)
    delete(cluster, topic_id)
    cluster.create("u", partitions=2, replication_factor=1, shard=1)
    assert isinstance(undelete(cluster, "t"), InvalidPartitionsError)
    assert cluster.driver.image.may_return(topic_id)


def test_a_broker_that_is_gone_for_good_takes_its_replicas_with_it() -> None:
    cluster = Cluster()
    shared, alone = cluster.create("shared"), cluster.create("alone", replication_factor=1)
    (only,) = cluster.state(alone).replicas
    for topic_id in (shared, alone):
        delete(cluster, topic_id)
    cluster.driver.kill(only)
    cluster.driver.pass_time(10_000)
    cluster.driver.ask(UnregisterBroker(broker_id=only))
    state = back(cluster, shared)
    assert only not in state.replicas
    assert len(state.replicas) == 2
    assert state.leader in state.replicas
    error = undelete(cluster, "alone")
    assert isinstance(error, UnknownTopicOrPartitionError)
    assert f"were unregistered ({only})" in error.message
