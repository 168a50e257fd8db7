"""What a Topic asks for against what the cluster has."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from millrace.core.errors import InvalidConfigError
from millrace.core.media import Media, TopicMedia
from millrace.operator.model.cluster import Cluster
from millrace.operator.plan import topics as plan
from millrace.operator.plan.topics import (
    Alter,
    CannotBeError,
    Create,
    FoundTopic,
    MoveReplicas,
    RefusedMove,
    misplaced,
    silent,
    tiered,
    topic_name,
)
from millrace.operator.reconcile.resources import cluster_of, topic_of

SSD, HDD = (Media.SSD,), (Media.HDD,)
BOTH = SSD + HDD
ALL_HAVE_SSD: dict[int, tuple[Media, ...]] = {0: SSD, 1: SSD, 2: BOTH}


def actions(
    topic: Any,
    found: FoundTopic | None,
    brokers: Mapping[int, tuple[Media, ...]] = ALL_HAVE_SSD,
    *,
    cluster: Cluster | None = None,
) -> Any:
    return plan.actions(topic, found, brokers, cluster or asks_for(3))


def asks_for(ssd: int, hdd: int = 0, **config: Any) -> Cluster:
    """Return a Cluster that asks for so many brokers with these media."""

    def pool(name: str, replicas: int, media: str) -> dict[str, Any]:
        volume = {"name": "data", "media": media, "size": "1Gi"}
        return {"name": name, "replicas": replicas, "volumes": [volume]}

    return cluster_of(
        {
            "metadata": {"namespace": "shop", "name": "c", "uid": "u", "generation": 1},
            "spec": {
                "pools": [pool("fast", ssd, "ssd"), pool("large", hdd, "hdd")],
                "config": {"cluster": config},
            },
        }
    )


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
            "replicas": ((0, 1, 2),) * 3,
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
        MoveReplicas(name="shop/orders", replication_factor=2, media=TopicMedia.ANY)
    ]
    assert actions(topic(replicas=2), found(moving=1)) == []


def moves_to(count: int, *partitions: int) -> list[MoveReplicas]:
    """Return a move of these partitions, or of all."""
    return [
        MoveReplicas(
            name="shop/orders",
            replication_factor=count,
            media=TopicMedia.ANY,
            partitions=partitions or None,
        )
    ]


@pytest.mark.parametrize(
    ("cluster", "replicas", "wanted"),
    [
        (asks_for(3), ((0,), (1,)), 3),
        (asks_for(5), ((0, 1), (1, 2)), 3),
        (asks_for(2), ((0,),), 2),
        (asks_for(1), ((0,),), None),
        (asks_for(3), ((0, 1, 2), (1,)), 3),  # Partitions that were added in an outage.
        (asks_for(5), ((0, 1, 2, 3), (1,), (0, 1, 2)), 3),  # A person gave one more.
        (asks_for(3, default_replication_factor=2), ((0,),), 2),
        (asks_for(3, default_replication_factor=1), ((0, 1),), None),
        (asks_for(3), ((0, 1, 2),), None),
    ],
)
def test_a_number_of_replicas_that_is_not_named_is_raised_to_the_default(
    cluster: Cluster, replicas: tuple[tuple[int, ...], ...], wanted: int | None
) -> None:
    there = found(replication_factor=max(map(len, replicas)), replicas=replicas)
    few = [number for number, holders in enumerate(replicas) if len(holders) < (wanted or 0)]
    expected = [] if wanted is None else moves_to(wanted, *few)
    assert actions(topic(), there, cluster=cluster) == expected
    assert actions(topic(), replace(there, moving=1), cluster=cluster) == []


def test_the_default_waits_for_brokers_that_can_hold_replicas() -> None:
    there = found(replicas=((0,),))
    assert actions(topic(), there, {0: SSD}) == []
    assert actions(topic(), there, {0: SSD, 1: SSD}) == moves_to(2, 0)


def test_the_default_counts_the_brokers_with_the_media_of_the_topic() -> None:
    there = found(
        replication_factor=1, replicas=((3,),), overrides={"media": "hdd"}, media=TopicMedia.HDD
    )
    brokers = {0: SSD, 1: SSD, 2: SSD, 3: HDD, 4: HDD}
    (move,) = actions(topic(media="hdd"), there, brokers, cluster=asks_for(3, hdd=2))
    assert move.replication_factor == 2


def test_each_partition_has_the_number_of_replicas_that_is_named() -> None:
    there = found(replication_factor=3, replicas=((0, 1, 2), (1,)))
    assert actions(topic(replicas=3), there) == moves_to(3)
    assert actions(topic(replicas=3), replace(there, replicas=((0, 1, 2),))) == []


def test_fewer_partitions_cannot_be_and_it_says_what_can() -> None:
    with pytest.raises(CannotBeError, match=r"set spec\.partitions to 3"):
        actions(topic(partitions=2), found())


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(InvalidConfigError, match=r"retention\.ms"):
        actions(topic(config={"retention.ms": "soon"}), None)


def test_another_media_moves_the_replicas_that_lie_on_brokers_without_it() -> None:
    brokers = {0: SSD, 1: HDD, 2: BOTH}
    there = found(replication_factor=1, replicas=((0,), (2,)))
    move = MoveReplicas(name="shop/orders", replication_factor=None, media=TopicMedia.HDD)
    asked = topic(media="hdd")
    alter = Alter(name="shop/orders", set_config={"media": "hdd"})
    assert actions(asked, there, brokers) == [alter, move]
    altered = found(
        replication_factor=1,
        replicas=((0,), (2,)),
        overrides={"media": "hdd"},
        media=TopicMedia.HDD,
    )
    assert actions(asked, altered, brokers) == [move]
    assert actions(asked, replace(altered, moving=1), brokers) == []
    assert actions(asked, replace(altered, replicas=((1,), (2,))), brokers) == []


def test_partitions_with_few_replicas_get_more_before_others_move_to_another_media() -> None:
    there = found(replicas=((0,), (1, 2, 3)), overrides={"media": "ssd"})
    brokers = {0: SSD, 1: SSD, 2: SSD, 3: HDD}
    (raised,) = actions(topic(media="ssd"), there, brokers)
    assert (raised.replication_factor, raised.partitions) == (3, (0,))
    (moved,) = actions(topic(media="ssd"), replace(there, replicas=((0, 1, 2), (1, 2, 3))), brokers)
    assert (moved.replication_factor, moved.partitions) == (None, None)


def test_a_broker_that_does_not_say_what_it_has_gives_nothing_up() -> None:
    assert misplaced([(0, 1)], TopicMedia.HDD, {0: (), 1: HDD}) == 0
    assert misplaced([(0, 1), (1, 2)], TopicMedia.HDD, {0: (), 1: HDD, 2: SSD}) == 1


def test_a_media_that_too_few_brokers_have_cannot_be_and_it_says_what_can() -> None:
    for there in (None, found()):
        with pytest.raises(CannotBeError, match=r"add a pool with a volume of media hdd") as info:
            actions(topic(media="hdd", replicas=3), there)
        assert info.value.reason == "NoMedia"


def test_what_cannot_be_names_the_default_where_no_number_is_named() -> None:
    with pytest.raises(CannotBeError, match=r"for 3 replicas on hdd the cluster needs 3 brokers"):
        actions(topic(media="hdd"), None, {0: SSD, 1: SSD, 2: SSD})
    with pytest.raises(CannotBeError, match=r"for 1 replica on hdd the cluster needs 1 broker "):
        actions(topic(media="hdd", replicas=1), None, {0: SSD})


def test_a_tiered_topic_takes_brokers_with_volumes_of_both_media() -> None:
    (made,) = actions(topic(media="tiered", replicas=1), None, {0: SSD, 1: BOTH})
    assert isinstance(made, Create)
    assert made.config["media"] == "tiered"
    with pytest.raises(CannotBeError, match=r"volumes of media ssd and of hdd") as info:
        actions(topic(media="tiered", replicas=2), None, {0: SSD, 1: BOTH, 2: HDD})
    assert info.value.reason == "NoMedia"
    assert misplaced([(0, 1), (1,)], TopicMedia.TIERED, {0: SSD, 1: BOTH}) == 1


def test_segments_that_cannot_move_are_told_with_the_broker_and_what_to_do() -> None:
    assert (tiered([]).is_true, tiered([]).reason) == (True, "SegmentsMove")
    said = tiered([RefusedMove(2, 7, "the disk is full"), RefusedMove(1, 4, "it is gone")])
    assert (said.type, said.is_true, said.reason) == ("Tiered", False, "CannotMove")
    assert "segments of 2 replicas" in said.message
    assert "partition 1 on broker 4: it is gone" in said.message
    assert "make the HDD's volume larger" in said.message


def test_brokers_that_have_not_told_of_each_replica_are_found() -> None:
    replicas = [(0, 1, 2), (1, 2), (2, 0)]
    told = {(number, broker) for number, holders in enumerate(replicas) for broker in holders}
    assert silent(replicas, told) == {}
    assert silent(replicas, told - {(0, 1), (2, 0), (1, 1)}) == {0: 1, 1: 2}
    assert silent(replicas, []) == {0: 2, 1: 2, 2: 3}
