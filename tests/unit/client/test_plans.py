"""Plans from what the cluster describes: which topic asks for what, and who has it."""

from collections.abc import Sequence

import pytest

from millrace.client import (
    BrokerInfo,
    ConfigValue,
    InvalidReplicaAssignmentError,
    LogDescription,
    Media,
    PartitionDescription,
    TopicDescription,
    TopicMedia,
    plan_reassignment,
)
from millrace.core.ids import BrokerId, LeaderEpoch, Offset, PartitionEpoch, TopicId


def brokers(*media: Sequence[Media]) -> list[BrokerInfo]:
    return [
        BrokerInfo(BrokerId(number), f"b{number}", "h:1", "", False, media=tuple(kinds))
        for number, kinds in enumerate(media)
    ]


def topic(
    name: str, *replicas: Sequence[int], media: str = "any", adding: Sequence[int] = ()
) -> TopicDescription:
    """A topic with a partition for each of `replicas`."""
    return TopicDescription(
        name,
        TopicId(name.encode().ljust(16)),
        False,
        tuple(
            PartitionDescription(
                partition=number,
                leader=BrokerId(held[0]),
                leader_epoch=LeaderEpoch(1),
                leader_address="h:1",
                partition_epoch=PartitionEpoch(1),
                replicas=tuple(map(BrokerId, held)),
                isr=tuple(map(BrokerId, held)),
                elr=(),
                offline_replicas=(),
                adding_replicas=tuple(map(BrokerId, adding)),
            )
            for number, held in enumerate(replicas)
        ),
        {"media": ConfigValue(media, "topic", "")} if media else {},
    )


def log(name: str, broker_id: int, media: Media | None) -> LogDescription:
    at = Offset(0)
    return LogDescription(
        name, 0, BrokerId(broker_id), at, at, at, at, 0, 1, "/log", False, (), media
    )


SSD, HDD = Media.SSD, Media.HDD
MIXED = brokers([SSD], [SSD, HDD], [HDD])


def test_replicas_move_off_brokers_without_their_topics_media() -> None:
    plan = plan_reassignment([topic("t", [0, 1], media="hdd")], MIXED)
    assert {place: set(replicas) for place, replicas in plan.items()} == {("t", 0): {1, 2}}


@pytest.mark.parametrize("media", ["", "any", "what a later release knows"])
def test_a_topic_that_asks_for_nothing_known_may_lie_anywhere(media: str) -> None:
    asks_for_nothing = topic("t", [0, 1], [1, 2], [2, 0], media=media)
    assert asks_for_nothing.media is TopicMedia.ANY
    assert plan_reassignment([asks_for_nothing], MIXED) == {}


def test_too_few_brokers_with_the_media_are_an_error() -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match="on hdd"):
        plan_reassignment([topic("t", [0, 1], media="hdd")], MIXED[:2])


def test_only_what_may_move_does_and_what_brokers_hold_of_others_counts() -> None:
    busy = topic("busy", *[[0]] * 6)
    free = topic("free", [0], [1])
    moving = topic("moving", [2, 1], adding=[1])
    two = brokers([SSD], [SSD])
    plan = plan_reassignment([busy, free], two, partitions=[("free", 0), ("free", 1)])
    assert plan == {("free", 0): (1,)}
    assert ("moving", 0) not in plan_reassignment([moving], two)


def test_logs_on_another_media_are_misplaced_and_those_of_which_nobody_says_it_are_not() -> None:
    wanted = topic("t", [0], media="hdd")
    logs = [log("t", 0, SSD), log("t", 1, HDD), log("t", 2, None), log("other", 0, SSD)]
    assert wanted.misplaced(logs) == logs[:1]
    assert topic("t", [0]).misplaced(logs) == []
