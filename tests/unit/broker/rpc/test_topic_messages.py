"""Topics as clients see them: made once for each state that they have."""

import pytest
from tests.fakes.cluster import Cluster

from millrace.broker.rpc.topic_messages import TopicDescriptions, describe_topic
from millrace.core.ids import BrokerId, TopicId, WallMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import Listener
from millrace.core.metadata.requests import DeleteTopics, TopicRef
from millrace.proto.v1 import cluster_pb2 as pb

OTHER_SHARD = 1


class Described:
    """Two topics in one shard and one in another, on three brokers, all described once."""

    def __init__(self) -> None:
        self.cluster = Cluster(3)
        self.changed = self.cluster.create("changed", partitions=2)
        self.beside = self.cluster.create("beside")
        self.elsewhere = self.cluster.create("elsewhere", shard=OTHER_SHARD)
        self.topics = (self.changed, self.beside, self.elsewhere)
        self.config = ClusterConfig()
        self.descriptions = TopicDescriptions(Listener.OUTSIDE)
        self.before = [self.of(topic) for topic in self.topics]

    def of(self, topic_id: TopicId) -> pb.TopicMetadata:
        image = self.cluster.driver.image
        return self.descriptions.of(image, image.topics_by_id[topic_id], self.config)

    def kept(self) -> list[bool]:
        """Of each topic, whether it was not described anew; it is right in any case."""
        image = self.cluster.driver.image
        for topic in self.topics:
            assert self.of(topic) == describe_topic(
                image, image.topics_by_id[topic], self.config, Listener.OUTSIDE
            )
        return [
            self.of(topic) is known for topic, known in zip(self.topics, self.before, strict=True)
        ]


@pytest.fixture
def described() -> Described:
    return Described()


def test_what_has_not_changed_is_not_described_again(described: Described) -> None:
    assert described.kept() == [True, True, True]


def test_only_a_topic_that_has_changed_is_described_anew(described: Described) -> None:
    described.cluster.change_isr(described.changed, 0, 1)
    assert described.kept() == [False, True, True]


def test_all_are_described_anew_when_a_broker_has_another_outside_address(
    described: Described,
) -> None:
    described.cluster.give_outside_address(0, "203.0.113.5:9094")
    assert described.kept() == [False, False, False]
    leaders = [
        partition.leader
        for topic in described.topics
        for partition in described.of(topic).partitions
        if partition.leader.broker_id == 0
    ]
    assert {leader.address for leader in leaders} == {"203.0.113.5:9094"}


def test_all_are_described_anew_when_a_broker_is_gone(described: Described) -> None:
    described.cluster.driver.kill(BrokerId(2))
    assert described.kept() == [False, False, False]


def test_a_topic_that_is_made_or_deleted_changes_no_other(described: Described) -> None:
    made = described.cluster.create("made")
    assert described.of(made).name == "made"
    described.cluster.ask_each(DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(topic_id=made)]))
    assert made not in described.cluster.driver.image.topics_by_id
    assert described.kept() == [True, True, True]


def test_what_a_topic_does_not_set_is_told_as_the_cluster_has_it(described: Described) -> None:
    described.config = ClusterConfig(unclean_leader_election_enable=True)
    told = {each.name: each for each in described.of(described.beside).config}
    unclean = told["unclean.leader.election.enable"]
    assert (unclean.value, unclean.source) == ("true", pb.CONFIG_SOURCE_BROKER)
    assert told["durability"].source == pb.CONFIG_SOURCE_DEFAULT
    assert described.kept() == [False, False, False]
