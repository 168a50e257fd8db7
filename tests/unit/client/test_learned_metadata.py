"""What a client knows is never replaced by what is older."""

import pytest

from millrace.client._cluster.metadata import Metadata
from millrace.core.errors import UnknownTopicOrPartitionError
from millrace.core.ids import BrokerId, KnownLeader, Leader, LeaderEpoch, TopicId, TopicPartition
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import cluster_pb2 as pb
from millrace.proto.v1.common_pb2 import PartitionLeader

TOPIC_ID = TopicId(b"t" * 16)


@pytest.fixture
def known() -> Metadata:
    return Metadata()


def said(
    epoch: int,
    *topics: str,
    absent: tuple[str, ...] = (),
    leader: tuple[int, int] = (0, 1),
    brokers: tuple[int, ...] = (0, 1, 2),
) -> pb.GetMetadataResponse:
    """What a broker says of the state of this epoch; `leader`: who, and since which epoch."""
    led = PartitionLeader(broker_id=leader[0], leader_epoch=leader[1], address=f"b{leader[0]}:1")
    response = pb.GetMetadataResponse(
        cluster_id="c",
        metadata_epoch=epoch,
        brokers=[
            pb.BrokerMetadata(
                broker_id=number, name=f"b{number}", address=f"b{number}:{epoch or 1}"
            )
            for number in brokers
        ],
    )
    for name in topics:
        response.topics.add(
            name=name, topic_id=TOPIC_ID, partitions=[pb.PartitionMetadata(leader=led)]
        )
    for name in absent:
        error = UnknownTopicOrPartitionError("there is none")
        response.topics.add(name=name, error=error_to_wire(error))
    return response


def leader(known: Metadata) -> int:
    found = known.leader_of(TopicPartition(TOPIC_ID, 0))
    assert found is not None
    return found.broker_id


def test_an_older_answer_changes_neither_brokers_nor_what_is_known_of_a_topic(
    known: Metadata,
) -> None:
    known.learn(said(8, "orders", leader=(-1, 1), brokers=(0, 1)), is_full=False)
    known.learn(said(7, "orders", leader=(2, 1)), is_full=False)
    assert leader(known) == -1
    assert {broker.address for broker in known.brokers.values()} == {"b0:8", "b1:8"}
    known.learn(said(8, "orders", leader=(2, 1)), is_full=False)
    assert leader(known) == 2


def test_a_topic_that_is_gone_does_not_come_back_with_an_older_answer(known: Metadata) -> None:
    known.learn(said(7, "orders"), is_full=False)
    known.learn(said(8, absent=("orders",)), is_full=False)
    for is_full in (False, True):
        known.learn(said(7, "orders"), is_full=is_full)
        assert known.topics == {}
    known.learn(said(9, "orders"), is_full=False)
    assert known.topics.keys() == {"orders"}
    known.learn(said(8, absent=("orders",)), is_full=False)
    assert known.topics.keys() == {"orders"}


def test_an_older_answer_tells_of_topics_of_which_nothing_newer_is_known(known: Metadata) -> None:
    known.learn(said(8, "orders"), is_full=False)
    known.learn(said(7, "payments"), is_full=False)
    assert known.topics.keys() == {"orders", "payments"}


def test_an_answer_about_all_topics_says_which_there_are_not(known: Metadata) -> None:
    known.learn(said(7, "orders"), is_full=True)
    known.learn(said(6), is_full=True)
    assert known.topics.keys() == {"orders"}
    known.learn(said(8), is_full=True)
    known.learn(said(7, "orders"), is_full=False)
    assert known.topics == {}


def test_of_an_answer_about_all_topics_only_the_wanted_and_the_known_ones_are_stored(
    known: Metadata,
) -> None:
    known.learn(said(7, "orders"), is_full=False)
    known.learn(
        said(8, "orders", "metrics", "other", leader=(1, 2)), is_full=True, wanted=["metrics"]
    )
    assert known.topics.keys() == {"orders", "metrics"}
    assert leader(known) == 1
    known.learn(said(8, "other"), is_full=False)
    assert "other" in known.topics
    known.learn(said(9, "other"), is_full=True, wanted=[])
    known.learn(said(8, "orders"), is_full=False)
    assert known.topics.keys() == {"other"}


def test_a_broker_that_was_unregistered_is_forgotten(known: Metadata) -> None:
    known.learn(said(7), is_full=False)
    known.learn(said(8, brokers=(0, 1)), is_full=False)
    assert known.brokers.keys() == {0, 1}


def test_a_leader_that_a_refusal_named_stays_until_an_answer_knows_of_its_epoch(
    known: Metadata,
) -> None:
    known.learn(said(7, "orders", leader=(0, 1)), is_full=False)
    named = KnownLeader(Leader(BrokerId(9), LeaderEpoch(2)), "b9:1")
    assert known.learn_leader(TopicPartition(TOPIC_ID, 0), named)
    known.learn(said(8, "orders", leader=(0, 1)), is_full=False)
    assert leader(known) == 9
    assert 9 in known.brokers
    known.learn(said(9, "orders", leader=(1, 3)), is_full=False)
    assert leader(known) == 1


def test_brokers_that_do_not_say_of_which_state_they_tell_are_believed_as_before(
    known: Metadata,
) -> None:
    known.learn(said(0, "orders"), is_full=False)
    known.learn(said(0, absent=("orders",), brokers=(0,)), is_full=False)
    assert known.topics == {}
    assert known.brokers.keys() == {0, 1, 2}


def test_an_answer_without_news_leaves_what_is_known_as_it_is(known: Metadata) -> None:
    """Each who waits for news compares: that must not cost a look at every partition."""
    known.learn(said(7, "orders"), is_full=False)
    before = known.topics["orders"]
    known.learn(said(8, "orders"), is_full=False)
    assert known.topics["orders"] is before
    known.learn(said(9, "orders", leader=(2, 5)), is_full=False)
    assert known.topics["orders"] is not before
