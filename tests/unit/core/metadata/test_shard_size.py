"""What a shard is counted as is never less than what is stored of it."""

import json
from dataclasses import replace

import pytest

from millrace.core.ids import (
    NOTHING_WRITTEN,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EpochEnd,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
    WallMs,
)
from millrace.core.metadata.model import (
    BrokerLife,
    DeletedTopic,
    PartitionState,
    StateShard,
    Topic,
)
from millrace.core.metadata.objects.encoding import encode_shard
from millrace.core.metadata.shard_size import (
    EMPTY_BYTES,
    added_bytes,
    deleted_bytes,
    deletions_bytes,
    topic_bytes,
)
from millrace.core.topics import TopicName

EPOCH = 9_999_999
IDS = [BrokerId(9990 + number) for number in range(8)]


def stored_bytes(shard: StateShard) -> int:
    """As a text within another one."""
    return len(json.dumps(encode_shard(shard).value.decode("ascii")))


def partition(replicas: int, *, is_led: bool) -> PartitionState:
    """One whose entry is as long as one can be with so many replicas."""
    lives = tuple(BrokerLife(each, BrokerEpoch(999_999)) for each in IDS[:replicas])
    return PartitionState(
        replicas=tuple(IDS[:replicas]),
        leader=IDS[0] if is_led else BrokerId(-1),
        leader_epoch=LeaderEpoch(EPOCH),
        partition_epoch=PartitionEpoch(EPOCH),
        isr=lives if is_led else (),
        elr=() if is_led else lives,
        last_known_leader=BrokerId(-1) if is_led else IDS[0],
        committed_end=EpochEnd(LeaderEpoch(EPOCH), Offset(10**15 - 1))
        if not is_led
        else NOTHING_WRITTEN,
        is_recovering=True,
        is_unflushed=True,
        unclean_epoch=LeaderEpoch(EPOCH),
        adding=tuple(IDS[1:replicas]),
    )


def topic(number: int, partitions: int, replicas: int, *, is_led: bool) -> Topic:
    return Topic(
        topic_id=TopicId(bytes(12) + number.to_bytes(4, "big")),
        name=TopicName("namespace", f"topic-{number}"),
        partitions=(partition(replicas, is_led=is_led),) * partitions,
        overrides={"retention.ms": "9" * 19, "cleanup.policy": "delete"},
    )


@pytest.mark.parametrize("is_led", [True, False])
@pytest.mark.parametrize(
    ("topics", "partitions", "replicas"), [(0, 0, 0), (1, 1, 1), (40, 1, 3), (2, 500, 3), (1, 9, 8)]
)
def test_no_shard_takes_more_than_it_is_counted_as(
    topics: int, partitions: int, replicas: int, is_led: bool
) -> None:
    every = [topic(number, partitions, replicas, is_led=is_led) for number in range(topics)]
    shard = StateShard(
        number=0,
        version=EPOCH,
        controller_epoch=ControllerEpoch(EPOCH),
        topics={each.topic_id: each for each in every},
    )
    assert stored_bytes(shard) <= EMPTY_BYTES + sum(map(topic_bytes, every))


def test_what_is_deleted_and_not_yet_everywhere_is_counted_too() -> None:
    deletions = {TopicId(bytes(15) + bytes([number])): frozenset(IDS) for number in range(100)}
    shard = StateShard(number=0, deletions=deletions)
    assert stored_bytes(shard) <= EMPTY_BYTES + deletions_bytes(deletions)


@pytest.mark.parametrize("partitions", [1, 100])
def test_a_topic_that_can_be_brought_back_is_counted_with_its_times(partitions: int) -> None:
    every = [
        DeletedTopic(
            topic=topic(number, partitions, 3, is_led=False),
            deleted_at=WallMs(10**13 - 1),
            kept_ms=2**31 - 1,
        )
        for number in range(50)
    ]
    shard = StateShard(
        number=0,
        version=EPOCH,
        controller_epoch=ControllerEpoch(EPOCH),
        deleted={each.topic.topic_id: each for each in every},
    )
    assert stored_bytes(shard) <= EMPTY_BYTES + sum(map(deleted_bytes, every))


def test_a_deleted_topic_counts_for_less_than_one_that_is_there() -> None:
    there = topic(0, 1, 8, is_led=True)
    assert deletions_bytes({there.topic_id: frozenset(IDS)}) < topic_bytes(there)


def test_a_replica_more_counts_as_much_as_in_the_whole() -> None:
    small = topic(0, 3, 2, is_led=True)
    large = replace(small, partitions=(*small.partitions[:2], partition(3, is_led=True)))
    more = added_bytes(small.partitions[2], large.partitions[2])
    assert more == topic_bytes(large) - topic_bytes(small) > 0
