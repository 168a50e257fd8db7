"""Replicas go to brokers that have a log directory of the topic's media, and to no others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.cluster import Cluster, registration

from millrace.core.errors import (
    BrokerBusyError,
    InvalidConfigError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    MillraceError,
)
from millrace.core.ids import BrokerId, TopicId
from millrace.core.media import Media
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import PartitionState, Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    CreateTopics,
    DrainBroker,
    NewTopic,
    Reassignment,
    ReassignPartitions,
    TopicChange,
    TopicRef,
)

SSD, HDD = Media.SSD, Media.HDD
MEDIA = {0: (SSD,), 1: (SSD, HDD), 2: (HDD,), 3: (SSD,), 4: (HDD,)}


@pytest.fixture
def cluster() -> Cluster:
    """Brokers 0 and 3 have SSDs, 2 and 4 HDDs, 1 both, and 5 does not say."""
    cluster = Cluster(6)
    for broker_id, media in MEDIA.items():
        cluster.give_media(broker_id, *media)
    return cluster


def holders(cluster: Cluster, topic: TopicId) -> set[int]:
    states = cluster.driver.image.topics_by_id[topic].partitions
    return {int(broker_id) for state in states for broker_id in state.replicas}


def refusal(cluster: Cluster, **new: object) -> MillraceError:
    request = CreateTopics(
        topics=[NewTopic(name="refused", **new)],  # type: ignore[arg-type]
        topic_ids=[TopicId(bytes(15) + b"r")],
    )
    (answer,) = cluster.ask_each(request)
    assert isinstance(answer, MillraceError), answer
    return answer


def alter(
    cluster: Cluster, name: str, *, partitions: int = 0, **config: str
) -> Topic | MillraceError:
    change = TopicChange(topic=TopicRef(name=name), set_config=config, partitions=partitions)
    (answer,) = cluster.ask_each(AlterTopics(changes=[change]))
    assert isinstance(answer, Topic | MillraceError)
    return answer


def reassign(cluster: Cluster, topic: TopicId, *replicas: int) -> PartitionState | MillraceError:
    asked = Reassignment(topic_id=topic, partition=0, replicas=tuple(map(BrokerId, replicas)))
    (answer,) = cluster.ask_each(ReassignPartitions(reassignments=[asked]))
    assert isinstance(answer, PartitionState | MillraceError)
    return answer


@pytest.mark.parametrize(("media", "expected"), [("ssd", {0, 1, 3}), ("hdd", {1, 2, 4})])
def test_new_replicas_lie_only_on_brokers_with_the_media(
    cluster: Cluster, media: str, expected: set[int]
) -> None:
    topic = cluster.create(partitions=6, replication_factor=2, config={"media": media})
    assert holders(cluster, topic) == expected


def test_a_topic_on_any_media_lies_also_on_brokers_that_do_not_say_theirs(cluster: Cluster) -> None:
    for name, config in (("set", {"media": "any"}), ("default", {})):
        topic = cluster.create(name, partitions=6, replication_factor=2, config=config)
        assert holders(cluster, topic) == {0, 1, 2, 3, 4, 5}


def test_the_default_replication_factor_counts_the_brokers_with_the_media(cluster: Cluster) -> None:
    cluster.give_media(4, SSD)
    topic = cluster.create(replication_factor=0, config={"media": "hdd"})
    assert set(cluster.state(topic).replicas) == {1, 2}


def test_a_broker_that_has_not_told_its_media_yet_counts_for_the_default_factor(
    cluster: Cluster,
) -> None:
    cluster.give_media(4, SSD)
    cluster.driver.ask(registration(6))
    error = refusal(cluster, replication_factor=0, config={"media": "hdd"})
    assert isinstance(error, BrokerBusyError), "it may have the media"
    assert "3 replicas need as many brokers that have hdd" in error.message
    assert "broker 6 has none (fenced). Try again" in error.message


def test_too_few_brokers_with_the_media_are_refused_with_what_each_has(cluster: Cluster) -> None:
    cluster.driver.ask(DrainBroker(broker_id=BrokerId(2), is_drained=True))
    error = refusal(cluster, replication_factor=3, config={"media": "hdd"})
    assert isinstance(error, InvalidReplicationFactorError)
    assert "need as many brokers that have it, and the cluster has 2 of those" in error.message
    assert "broker 0 has ssd; broker 1 has ssd, hdd; broker 2 has hdd (drained)" in error.message
    assert "broker 5 has none" in error.message
    assert "hdd:PATH" in error.message


def test_a_media_that_nobody_has_is_refused_also_with_the_default_factor() -> None:
    error = refusal(Cluster(1), config={"media": "ssd"})
    assert isinstance(error, InvalidReplicationFactorError)


def test_of_very_many_brokers_a_refusal_names_only_some() -> None:
    error = refusal(Cluster(25), replication_factor=1, config={"media": "ssd"})
    assert error.message.count("has none") == 20
    assert "and 5 more" in error.message


def test_another_media_is_refused(cluster: Cluster) -> None:
    error = refusal(cluster, config={"media": "tape"})
    assert isinstance(error, InvalidConfigError)
    assert "media = 'tape': must be any or ssd or hdd" in error.message


def test_more_partitions_lie_only_on_brokers_with_the_media(cluster: Cluster) -> None:
    topic = cluster.create("t", replication_factor=2, config={"media": "hdd"})
    assert isinstance(alter(cluster, "t", partitions=9), Topic)
    assert holders(cluster, topic) == {1, 2, 4}
    cluster.give_media(2, SSD)
    cluster.give_media(4, SSD)
    assert isinstance(alter(cluster, "t", partitions=10), InvalidReplicationFactorError)


def test_an_altered_media_leaves_replicas_where_they_are_and_counts_for_new_ones(
    cluster: Cluster,
) -> None:
    topic = cluster.create("t", replication_factor=2, config={"media": "ssd"})
    before = cluster.state(topic).replicas
    altered = alter(cluster, "t", media="hdd", partitions=4)
    assert isinstance(altered, Topic)
    assert cluster.state(topic).replicas == before
    assert {*altered.partitions[1].replicas, *altered.partitions[2].replicas} <= {1, 2, 4}


def test_a_media_that_too_few_brokers_have_is_no_change(cluster: Cluster) -> None:
    topic = cluster.create("t", replication_factor=3, config={"media": "ssd"})
    cluster.give_media(4, SSD)
    refused = alter(cluster, "t", media="hdd")
    assert isinstance(refused, InvalidReplicationFactorError)
    assert cluster.driver.image.topics_by_id[topic].overrides == {"media": "ssd"}


def test_any_media_is_a_change_that_needs_nobody(cluster: Cluster) -> None:
    cluster.create("t", replication_factor=3, config={"media": "ssd"})
    for broker_id in (0, 1, 3, 4, 5):
        cluster.driver.kill(BrokerId(broker_id))
    assert isinstance(alter(cluster, "t", media="any"), Topic)


def test_a_replica_is_not_moved_to_a_broker_without_the_media(cluster: Cluster) -> None:
    topic = cluster.create(replication_factor=2, config={"media": "hdd"})
    refused = reassign(cluster, topic, 0, 1)
    assert isinstance(refused, InvalidReplicaAssignmentError)
    assert "media=hdd, and broker 0 has no log directory of it that works; it has ssd" in (
        refused.message
    )
    assert isinstance(reassign(cluster, topic, 5, 1), InvalidReplicaAssignmentError)
    assert isinstance(reassign(cluster, topic, 4, 1), PartitionState)


def test_a_replica_on_another_media_may_stay_while_others_move(cluster: Cluster) -> None:
    topic = cluster.create("t", replication_factor=2, config={"media": "ssd"})
    first, second = cluster.state(topic).replicas
    alter(cluster, "t", media="hdd")
    target = next(number for number in (2, 4) if number not in (first, second))
    assert isinstance(reassign(cluster, topic, first, target), PartitionState)


def test_a_directory_that_fails_gets_its_broker_no_more_replicas(cluster: Cluster) -> None:
    cluster.give_media(1, SSD)
    topic = cluster.create(partitions=6, replication_factor=2, config={"media": "hdd"})
    assert holders(cluster, topic) == {2, 4}


def test_media_are_stored_once_and_not_with_every_heartbeat(cluster: Cluster) -> None:
    before = cluster.driver.image.epoch
    for broker_id in MEDIA:
        cluster.driver.beat(cluster.life(broker_id))
    assert cluster.driver.image.epoch == before
    media = cluster.driver.media
    cluster.replace_controller()
    cluster.driver.media = media
    cluster.driver.pass_time(1000)
    brokers = cluster.driver.image.cluster.brokers
    assert {number: brokers[BrokerId(number)].media for number in MEDIA} == MEDIA


def test_a_broker_that_starts_again_has_what_it_had_until_it_says_something_else(
    cluster: Cluster,
) -> None:
    cluster.driver.kill(BrokerId(1))
    assert cluster.driver.image.cluster.brokers[BrokerId(1)].media == (SSD, HDD)
    cluster.driver.media[BrokerId(1)] = (HDD,)
    cluster.restart(1, "2")
    assert cluster.driver.image.cluster.brokers[BrokerId(1)].media == (HDD,)
    brokers = [image.cluster.brokers.get(BrokerId(1)) for image in cluster.driver.images]
    shown = [broker.media for broker in brokers if broker is not None]
    assert () not in shown[shown.index((SSD, HDD)) :]


@settings(max_examples=40)
@given(st.data())
def test_whatever_brokers_have_no_replica_is_placed_where_it_cannot_lie(
    data: st.DataObject,
) -> None:
    media = data.draw(st.lists(st.sets(st.sampled_from(Media)), min_size=1, max_size=6))
    cluster = Cluster(len(media), ClusterConfig(default_partitions=2))
    for broker_id, there in enumerate(media):
        cluster.give_media(broker_id, *sorted(there))
    for wanted in Media:
        able = {number for number, there in enumerate(media) if wanted in there}
        factor = data.draw(st.integers(1, 3))
        config = {"media": str(wanted)}
        if factor > len(able):
            error = refusal(cluster, replication_factor=factor, config=config)
            assert isinstance(error, InvalidReplicationFactorError)
        else:
            topic = cluster.create(
                str(wanted), partitions=3, replication_factor=factor, config=config
            )
            assert holders(cluster, topic) <= able
