"""The metadata as one value, and what it says to people."""

import pytest
from tests.fakes.cluster import Cluster

from millrace.core.errors import Appended, CorruptLogError, NotLeaderError
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import ClusterState, StateShard, Topic
from millrace.core.topics import TopicName


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(1)


@pytest.fixture
def named(cluster: Cluster) -> TopicPartition:
    """A partition of the topic `flights`."""
    return TopicPartition(cluster.create("flights", partitions=2, replication_factor=1), 1)


def test_an_error_about_a_partition_names_its_topic(
    cluster: Cluster, named: TopicPartition
) -> None:
    error = NotLeaderError("ask another", appended=Appended.MAYBE, topic_partition=named)
    assert error.message == f"{named}: ask another"
    said = cluster.driver.image.in_words(error)
    assert isinstance(said, NotLeaderError)
    assert said.message == str(said) == "flights-1: ask another"
    assert said.appended is Appended.MAYBE
    assert error.message == f"{named}: ask another"


def test_directories_and_what_else_an_error_says_keep_their_names(
    cluster: Cluster, named: TopicPartition
) -> None:
    other = TopicPartition(named.topic_id, named.partition * 10)
    error = CorruptLogError(f"/data/{named} is not {other}", topic_partition=named)
    said = cluster.driver.image.in_words(error)
    assert said.message == f"flights-1: /data/{named} is not {other}"


def test_an_error_that_is_about_no_partition_stays_as_it_is(cluster: Cluster) -> None:
    error = NotLeaderError("gone")
    assert cluster.driver.image.in_words(error) is error


def test_an_error_about_a_topic_that_is_gone_stays_as_it_is(cluster: Cluster) -> None:
    gone = TopicPartition(TopicId(b"gone" * 4), 0)
    error = NotLeaderError("it was deleted", topic_partition=gone)
    assert cluster.driver.image.in_words(error) is error


def test_a_name_goes_with_its_topic_and_not_with_a_namesake_of_it() -> None:
    """As an earlier release could leave two of a name."""
    image = MetadataImage.empty(ClusterState(cluster_id="c"))
    name = TopicName("default", "t")
    topics = [
        Topic(topic_id=TopicId(bytes([0, 0, 0, number, *12 * [0]])), name=name, partitions=())
        for number in (1, 2)
    ]
    for version, number in ((1, 1), (1, 2), (2, 2), (2, 1)):
        held = {topics[number - 1].topic_id: topics[number - 1]} if version == 1 else {}
        image = image.with_shard(StateShard(number=number, version=version, topics=held))
    assert (image.topics, image.topics_by_id) == ({}, {})
