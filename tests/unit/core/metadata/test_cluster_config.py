"""The cluster's settings as brokers tell them to each other."""

from collections.abc import Collection

import pytest

from millrace.core.errors import InvalidConfigError
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.cluster_config import (
    ClusterConfig,
    may_hold,
    replicas_by_default,
)

OTHER = ClusterConfig(
    unclean_leader_election_enable=True, broker_session_timeout_ms=9000, default_partitions=6
)


def test_what_is_told_is_what_was_set() -> None:
    assert ClusterConfig().overruled_by(OTHER.texts()) == OTHER
    assert OTHER.overruled_by(ClusterConfig().texts()) == ClusterConfig()


def test_settings_that_only_one_of_two_releases_knows_stay_as_they_are() -> None:
    told = {"default_partitions": "6", "heard_of_later": "1"}
    assert ClusterConfig().overruled_by(told) == ClusterConfig(default_partitions=6)


def test_a_value_that_this_release_does_not_take_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="default_partitions"):
        ClusterConfig().overruled_by({"default_partitions": "many"})


def test_differences_are_named_with_both_values() -> None:
    assert ClusterConfig().differences(ClusterConfig()) == {}
    assert ClusterConfig().differences(OTHER) == {
        "default_partitions": ("1", "6"),
        "unclean_leader_election_enable": ("false", "true"),
        "broker_session_timeout_ms": ("4000", "9000"),
    }


def test_what_is_no_setting_stays_as_it_was() -> None:
    quick = ClusterConfig(controller_tick_ms=7)
    assert quick.overruled_by(OTHER.texts()).controller_tick_ms == 7
    assert "controller_tick_ms" not in quick.texts()


@pytest.mark.parametrize(
    ("media", "there", "is_drained", "is_fenced", "counts"),
    [
        (TopicMedia.ANY, (Media.SSD,), False, False, True),
        (TopicMedia.ANY, (), False, True, True),
        (TopicMedia.ANY, (Media.SSD,), True, False, False),
        (TopicMedia.HDD, (Media.SSD,), False, True, False),
        (TopicMedia.HDD, (), False, True, True),
        (TopicMedia.HDD, (), False, False, False),
        (TopicMedia.HDD, (), True, True, False),
    ],
)
def test_a_broker_that_is_away_or_has_not_told_its_media_counts_and_a_drained_one_does_not(
    media: TopicMedia, there: Collection[Media], is_drained: bool, is_fenced: bool, counts: bool
) -> None:
    assert may_hold(media, there, is_drained=is_drained, is_fenced=is_fenced) is counts


def test_a_set_number_of_replicas_is_taken_and_the_usual_one_is_three_at_most() -> None:
    assert [replicas_by_default(-1, brokers) for brokers in range(5)] == [1, 1, 2, 3, 3]
    assert replicas_by_default(5, 2) == 5
