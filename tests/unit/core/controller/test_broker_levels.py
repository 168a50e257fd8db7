"""Settings that brokers of an earlier release do not know wait until all brokers are upgraded."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.fakes.cluster import Cluster, registration

from millrace.core.errors import UnsupportedFeatureError
from millrace.core.ids import BrokerId, TopicId, WallMs
from millrace.core.metadata.broker_levels import (
    BROKER_LEVEL,
    COMPACTION,
    FIRST_LEVEL,
    check_kafka_batches,
)
from millrace.core.metadata.broker_levels import TRANSACTIONS as TRANSACTIONS_LEVEL
from millrace.core.metadata.model import BrokerRegistration, KafkaAddresses, Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    CreateTopics,
    CreateTransactionsTopic,
    DeleteTopics,
    Heartbeat,
    NewTopic,
    PurgeTopics,
    RegisterBroker,
    TopicChange,
    TopicRef,
    UnregisterBroker,
)

COMPACTED = {"cleanup.policy": "compact"}
TRANSACTIONS = CreateTransactionsTopic(topic_id=TopicId(b"transactions".ljust(16)))
B = BrokerId(1)


def earlier(broker_id: int, incarnation: str) -> RegisterBroker:
    """Return the start of a broker of the first release."""
    return replace(registration(broker_id, incarnation), level=FIRST_LEVEL)


def with_an_earlier_broker() -> Cluster:
    """Return a cluster of three, of which the second one has the first release."""
    cluster = Cluster()
    cluster.driver.kill(B)
    cluster.driver.levels[B] = FIRST_LEVEL
    cluster.driver.start_broker(earlier(1, "2"))
    return cluster


def create(cluster: Cluster, name: str, config: Mapping[str, str]) -> object:
    topic_id = TopicId(name.encode().ljust(16, b"."))
    new = NewTopic(name=name, partitions=1, config=config)
    return cluster.ask_each(CreateTopics(topics=[new], topic_ids=[topic_id]))[0]


def alter(cluster: Cluster, name: str, **changes: object) -> object:
    change = TopicChange(topic=TopicRef(name=name), **changes)  # type: ignore[arg-type]
    return cluster.ask_each(AlterTopics(changes=[change]))[0]


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_topic_is_not_compacted_before_the_last_broker_is_upgraded(is_alive: bool) -> None:
    cluster = with_an_earlier_broker()
    assert isinstance(create(cluster, "t", {"retention.ms": "5000"}), Topic)
    if not is_alive:
        cluster.driver.kill(B)
    for refused in (create(cluster, "new", COMPACTED), alter(cluster, "t", set_config=COMPACTED)):
        assert isinstance(refused, UnsupportedFeatureError)
        assert "cleanup.policy" in refused.message
        assert "upgrade 'b1' first" in refused.message
    assert [str(name) for name in cluster.driver.image.topics] == ["t"]
    if is_alive:
        cluster.driver.kill(B)
    del cluster.driver.levels[B]
    cluster.restart(1, "3")
    assert isinstance(create(cluster, "new", COMPACTED), Topic)
    assert isinstance(alter(cluster, "t", set_config=COMPACTED), Topic)


def test_an_earlier_broker_that_is_unregistered_is_in_no_way() -> None:
    cluster = with_an_earlier_broker()
    cluster.driver.kill(B)
    cluster.driver.ask(UnregisterBroker(broker_id=B))
    assert isinstance(create(cluster, "t", COMPACTED), Topic)


def test_a_broker_of_an_earlier_release_does_not_come_back_to_compacted_topics() -> None:
    cluster = Cluster()
    topic = create(cluster, "t", COMPACTED)
    assert isinstance(topic, Topic)
    before = cluster.life(1)
    cluster.driver.kill(B)
    refused = cluster.driver.ask(earlier(1, "2"))
    assert isinstance(refused, UnsupportedFeatureError)
    assert "'t': upgrade it" in refused.message
    assert cluster.life(1) == before
    # A deleted topic may be brought back: it counts until it is gone for good.
    named = TopicRef(topic_id=topic.topic_id)
    cluster.ask_each(DeleteTopics(topics=[named], deleted_at=WallMs(1)))
    assert isinstance(cluster.driver.ask(earlier(1, "3")), UnsupportedFeatureError)
    cluster.ask_each(PurgeTopics(topics=[named]))
    assert isinstance(cluster.driver.ask(earlier(1, "4")), BrokerRegistration)


def test_no_topic_is_compacted_while_an_earlier_broker_is_being_registered() -> None:
    cluster = Cluster()
    cluster.driver.kill(B)
    registering = cluster.driver.send(earlier(1, "2"))
    assert registering not in cluster.driver.results
    assert isinstance(create(cluster, "t", COMPACTED), UnsupportedFeatureError)
    cluster.driver.settle()
    assert isinstance(cluster.driver.results[registering], BrokerRegistration)


def test_heartbeats_tell_the_level_that_an_earlier_controller_did_not_keep() -> None:
    cluster = with_an_earlier_broker()
    assert isinstance(create(cluster, "t", COMPACTED), UnsupportedFeatureError)
    cluster.driver.ask(
        Heartbeat(
            life=cluster.life(1), metadata_epoch=cluster.driver.image.epoch, level=BROKER_LEVEL
        )
    )
    assert isinstance(create(cluster, "t", COMPACTED), Topic)


def test_transactions_wait_for_the_last_upgrade_and_no_earlier_broker_comes_back() -> None:
    """T16."""
    cluster = Cluster()
    cluster.driver.kill(B)
    cluster.driver.levels[B] = COMPACTION
    compacting = replace(registration(1, "2"), level=COMPACTION)
    cluster.driver.start_broker(compacting)
    refused = cluster.driver.ask(TRANSACTIONS)
    assert isinstance(refused, UnsupportedFeatureError)
    assert "upgrade 'b1' first" in refused.message
    assert not cluster.driver.image.topics
    cluster.driver.kill(B)
    del cluster.driver.levels[B]
    cluster.restart(1, "3")
    topic = cluster.driver.ask(TRANSACTIONS)
    assert isinstance(topic, Topic)
    cluster.driver.kill(B)
    refused = cluster.driver.ask(replace(compacting, incarnation_id="4"))
    assert isinstance(refused, UnsupportedFeatureError)
    assert "'__transactions': upgrade it" in refused.message
    cluster.restart(1, "5")


def test_kafka_batches_wait_for_the_last_upgrade() -> None:
    """K4."""
    cluster = with_an_earlier_broker()
    cluster.driver.kill(B)  # It is registered, alive or not.
    with pytest.raises(UnsupportedFeatureError, match="Kafka's clients: upgrade 'b1' first"):
        check_kafka_batches(cluster.driver.image.cluster)
    del cluster.driver.levels[B]
    cluster.restart(1, "3")
    check_kafka_batches(cluster.driver.image.cluster)


def test_no_earlier_broker_comes_back_to_where_kafkas_clients_may_have_written() -> None:
    """K4: logs may have their batches once all brokers knew them, and somebody listened."""
    cluster = Cluster()
    cluster.driver.kill(B)
    transacting = replace(registration(1, "2"), level=TRANSACTIONS_LEVEL)
    cluster.driver.levels[B] = TRANSACTIONS_LEVEL
    cluster.driver.start_broker(transacting)  # Nobody listens.
    cluster.give_kafka_addresses(0, KafkaAddresses(clients="a:1"))
    # It was of that release before, so nothing can have been written: it may start again.
    cluster.driver.kill(B)
    cluster.driver.start_broker(replace(transacting, incarnation_id="3"))
    cluster.driver.kill(B)
    del cluster.driver.levels[B]
    cluster.restart(1, "4")
    cluster.driver.kill(B)
    refused = cluster.driver.ask(replace(transacting, incarnation_id="5"))
    assert isinstance(refused, UnsupportedFeatureError)
    assert "batches of Kafka's clients, for whom 'b0' may be reached" in refused.message
    cluster.restart(1, "6")


def test_settings_can_be_taken_away_whatever_the_brokers_are() -> None:
    cluster = Cluster()
    assert isinstance(create(cluster, "t", COMPACTED), Topic)
    altered = alter(cluster, "t", unset_config=["cleanup.policy"])
    assert isinstance(altered, Topic)
    assert altered.overrides == {}
