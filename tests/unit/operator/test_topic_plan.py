"""What a Topic asks for against what the cluster has."""

from typing import Any

import pytest

from millrace.core.errors import InvalidConfigError
from millrace.operator.plan.topics import (
    Alter,
    CannotBeError,
    ChangeReplicas,
    Create,
    FoundTopic,
    actions,
    topic_name,
)
from millrace.operator.reconcile.resources import topic_of


def topic(**spec: Any) -> Any:
    return topic_of(
        {
            "metadata": {"namespace": "shop", "name": "orders", "uid": "u", "generation": 1},
            "spec": {"clusterRef": {"name": "c"}, **spec},
        }
    )


def found(**facts: Any) -> FoundTopic:
    return FoundTopic(
        **{
            "topic_id": "00",
            "partitions": 3,
            "replication_factor": 3,
            "overrides": {},
            **facts,
        }
    )


def test_a_topic_is_called_after_its_namespace_and_resource_or_as_the_resource_says() -> None:
    assert topic_name(topic()) == "shop/orders"
    assert topic_name(topic(topicName="Orders_2")) == "shop/Orders_2"


def test_a_topic_that_is_not_there_is_made_with_canonical_settings() -> None:
    config = {"retention.ms": "7d", "unclean.leader.election.enable": True}
    assert actions(topic(partitions=6, replicas=2, config=config), None) == [
        Create(
            name="shop/orders",
            partitions=6,
            replication_factor=2,
            config={"retention.ms": "604800000", "unclean.leader.election.enable": "true"},
        )
    ]


def test_a_topic_that_is_as_it_should_be_is_let_be() -> None:
    asked = topic(partitions=3, replicas=3, config={"retention.ms": "1h"})
    assert actions(asked, found(overrides={"retention.ms": "3600000"})) == []


def test_what_the_resource_does_not_name_follows_the_cluster_again() -> None:
    assert actions(topic(), found(overrides={"retention.ms": "5"})) == [
        Alter(name="shop/orders", unset_config=("retention.ms",))
    ]


def test_settings_and_partitions_are_changed_in_one_request() -> None:
    assert actions(topic(partitions=5, config={"segment.ms": 60_000}), found()) == [
        Alter(name="shop/orders", set_config={"segment.ms": "60000"}, partitions=5)
    ]


def test_another_number_of_replicas_is_moved_to_once_nothing_else_moves() -> None:
    assert actions(topic(replicas=2), found()) == [
        ChangeReplicas(name="shop/orders", replication_factor=2)
    ]
    assert actions(topic(replicas=2), found(moving=1)) == []


def test_fewer_partitions_cannot_be_and_it_says_what_can() -> None:
    with pytest.raises(CannotBeError, match=r"set spec\.partitions to 3"):
        actions(topic(partitions=2), found())


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(InvalidConfigError, match=r"retention\.ms"):
        actions(topic(config={"retention.ms": "soon"}), None)
