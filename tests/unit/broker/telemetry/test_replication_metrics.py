"""Changes of leaders and in-sync replicas, counted by the broker that leads."""

from collections import UserDict
from collections.abc import Iterator
from dataclasses import replace

from prometheus_client import CollectorRegistry

from millrace.broker.telemetry.replication import ReplicationMetrics
from millrace.broker.telemetry.topic_labels import TopicLabels
from millrace.core.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicId
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataChanges, MetadataImage
from millrace.core.metadata.model import (
    BrokerLife,
    BrokerRegistration,
    ClusterState,
    PartitionState,
    StateShard,
    Topic,
)
from millrace.core.topics import parse_topic_name

ME = BrokerId(1)
OTHER = BrokerId(2)


def life(broker_id: int) -> BrokerLife:
    return BrokerLife(BrokerId(broker_id), BrokerEpoch(broker_id))


def state(leader: int, *isr: int) -> PartitionState:
    return PartitionState(
        replicas=(BrokerId(0), ME, OTHER),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(3),
        partition_epoch=PartitionEpoch(7),
        isr=tuple(map(life, isr)),
    )


def broker(number: int) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=BrokerId(number),
        name=f"b{number}",
        rack="",
        host="h",
        port=1,
        incarnation_id="i",
        directory_ids=(f"d{number}",),
        broker_epoch=BrokerEpoch(1),
        is_fenced=number == 2,  # It counts, too.
    )


def topic(*partitions: PartitionState) -> Topic:
    return Topic(topic_id=TopicId(b"t" * 16), name=parse_topic_name("t"), partitions=partitions)


class Counted:
    """What one broker counts of one change."""

    def __init__(self, before: PartitionState, after: PartitionState, broker_id: int = ME) -> None:
        self._registry = CollectorRegistry()
        metrics = ReplicationMetrics(self._registry, TopicLabels(10), ClusterConfig())
        changes = MetadataChanges((), ((topic(before), topic(after)),), ())
        metrics.on_changes(changes, BrokerId(broker_id))

    def __getitem__(self, name: str) -> float | None:
        return self._registry.get_sample_value(f"millrace_{name}_total")


def test_a_replica_that_leaves_and_one_that_joins_are_counted_by_the_leader() -> None:
    before = state(1, 0, 1)
    after = before.successor(leader=ME, isr=(life(1), life(2)))
    counted = Counted(before, after)
    assert (counted["isr_shrinks"], counted["isr_expands"]) == (1, 1)
    assert counted["leader_elections"] == 0
    assert Counted(before, after, OTHER)["isr_shrinks"] == 0


def test_an_election_is_counted_by_the_new_leader_with_what_it_did_to_the_isr() -> None:
    before = state(2, 0, 1, 2)
    after = before.successor(leader=ME, isr=(life(0), life(1)))
    counted = Counted(before, after)
    assert (counted["leader_elections"], counted["isr_shrinks"]) == (1, 1)
    assert counted["unclean_leader_elections"] == 0
    assert Counted(before, after, OTHER)["leader_elections"] == 0


def test_another_life_of_the_same_leader_is_another_election() -> None:
    before = state(1, 1)
    after = before.successor(leader=ME, isr=(BrokerLife(ME, BrokerEpoch(9)),))
    assert Counted(before, after)["leader_elections"] == 1


def test_records_that_are_lost_are_counted_by_topic_until_it_is_deleted() -> None:
    registry = CollectorRegistry()
    metrics = ReplicationMetrics(registry, TopicLabels(10), ClusterConfig())

    def counted() -> float | None:
        return registry.get_sample_value("millrace_topic_lost_records_total", {"topic": "t"})

    metrics.on_lost("t", 3)
    metrics.on_lost("t", 4)
    assert counted() == 7
    metrics.on_changes(MetadataChanges((), (), (topic(),)), ME)
    assert counted() is None


def test_an_unclean_election_is_counted_as_one() -> None:
    before = replace(state(-1), isr=(life(0),))
    after = before.successor(leader=ME, isr=(life(1),), is_unclean=True)
    counted = Counted(before, after)
    assert (counted["leader_elections"], counted["unclean_leader_elections"]) == (1, 1)


def test_a_partition_is_offline_without_a_leader_and_where_the_leaders_log_is_damaged() -> None:
    registry = CollectorRegistry()
    metrics = ReplicationMetrics(registry, TopicLabels(10), ClusterConfig())

    def offline() -> float | None:
        return registry.get_sample_value("millrace_offline_partitions")

    here = topic(state(-1), state(1, 1))
    empty = MetadataImage.empty(ClusterState(cluster_id="c"))
    image = empty.with_shard(StateShard(number=0, version=1, topics={here.topic_id: here}))
    metrics.on_image(image, is_controller=True, leaderships_failed=0)
    assert offline() == 1
    metrics.on_image(image, is_controller=True, leaderships_failed=1)
    assert offline() == 2
    metrics.on_image(image, is_controller=False, leaderships_failed=1)
    assert offline() == 1


def test_partitions_with_fewer_replicas_than_by_default_are_counted_by_the_controller() -> None:
    registry = CollectorRegistry()
    metrics = ReplicationMetrics(registry, TopicLabels(10), ClusterConfig())
    here = topic(state(1, 1), replace(state(1, 1), replicas=(ME,)))

    def few(brokers: int, *, is_controller: bool = True) -> float | None:
        registered = {BrokerId(number): broker(number) for number in range(brokers)}
        cluster = ClusterState(cluster_id="c", brokers=registered)
        shard = StateShard(number=0, version=1, topics={here.topic_id: here})
        image = MetadataImage.empty(cluster).with_shard(shard)
        metrics.on_image(image, is_controller=is_controller, leaderships_failed=0)
        return registry.get_sample_value("millrace_few_replicas_partitions")

    assert [few(1), few(2), few(3), few(4)] == [0, 1, 1, 1]
    assert few(3, is_controller=False) == 0


def test_replicas_by_default_are_found_once_and_not_for_each_topic() -> None:
    asked = 0

    class Brokers(UserDict[BrokerId, BrokerRegistration]):
        """Count how often all are looked at."""

        def __iter__(self) -> Iterator[BrokerId]:
            nonlocal asked
            asked += 1
            return super().__iter__()

    cluster = ClusterState(cluster_id="c", brokers=Brokers({BrokerId(1): broker(1)}))
    metrics = ReplicationMetrics(CollectorRegistry(), TopicLabels(10), ClusterConfig())
    named = [replace(topic(state(1, 1)), topic_id=TopicId(bytes([n]) * 16)) for n in range(200)]
    topics = {
        each.topic_id: replace(each, name=parse_topic_name(f"t{number}"))
        for number, each in enumerate(named)
    }
    shard = StateShard(number=0, version=1, topics=topics)
    image = MetadataImage.empty(cluster).with_shard(shard)
    metrics.on_image(image, is_controller=True, leaderships_failed=0)
    assert 0 < asked < 20
