"""On which log directory a replica lies, and what follows when one fails or is missing."""

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from millrace.core.errors import CorruptLogError, LogDirFailedError
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    PartitionEpoch,
    TopicId,
    TopicPartition,
)
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife, PartitionState, Topic
from millrace.core.replica.replication.placement import Move, ReplicaDirectory, ReplicaPlacement
from millrace.core.topics import parse_topic_name

HERE, OTHER = BrokerLife(BrokerId(1), BrokerEpoch(5)), BrokerLife(BrokerId(2), BrokerEpoch(6))
SSD, HDD = Media.SSD, Media.HDD
GONE = LogDirFailedError("it is gone")
NOW = MonotonicMs(0)


def of(number: int, topic: int = 0) -> TopicPartition:
    return TopicPartition(TopicId(bytes([topic]) * 16), number)


def directory(media: Media, *replicas: TopicPartition) -> ReplicaDirectory:
    return ReplicaDirectory(media=media, replicas=set(replicas))


def placement(
    *directories: ReplicaDirectory, moves_max: int = 1, misses_a_directory: bool = False
) -> ReplicaPlacement[ReplicaDirectory]:
    return ReplicaPlacement(
        HERE, directories, moves_max=moves_max, misses_a_directory=misses_a_directory
    )


def topic(
    media: str = "any",
    replicas: Sequence[BrokerLife] = (HERE,),
    isr: Sequence[BrokerLife] = (),
) -> Topic:
    isr = isr or replicas
    state = PartitionState(
        replicas=tuple(replica.broker_id for replica in replicas),
        leader=isr[0].broker_id,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        isr=tuple(isr),
    )
    return Topic(
        name=parse_topic_name("t"),
        topic_id=of(0).topic_id,
        partitions=(state,) * 4,
        overrides={"media": media},
    )


def place(
    placed: ReplicaPlacement[ReplicaDirectory],
    replica: TopicPartition,
    topic_of_it: Topic | None = None,
    *,
    is_first: bool = False,
) -> ReplicaDirectory:
    return placed.place(replica, topic_of_it or topic(), is_first=is_first)


# --- Where a replica goes ----------------------------------------------------------------------


def test_a_replica_stays_on_the_directory_that_has_it() -> None:
    crowded, empty = directory(HDD, of(0), of(1), of(2)), directory(SSD)
    placed = placement(empty, crowded)
    assert place(placed, of(1), topic("ssd")) is crowded
    assert placed.holder(of(1)) is crowded
    assert placed.media_of(of(1)) is HDD


def test_a_new_one_goes_to_the_directory_of_its_topics_media_with_the_fewest() -> None:
    few, fewer, other = directory(HDD, of(8), of(9)), directory(HDD, of(7)), directory(SSD)
    placed = placement(few, fewer, other)
    assert place(placed, of(0), topic("hdd")) is fewer
    assert place(placed, of(1), topic("hdd")) is few  # The first of two that have as many.
    assert place(placed, of(2)) is other
    assert of(2) in other.replicas


def test_where_no_directory_of_its_media_works_another_takes_it() -> None:
    failed, crowded, empty = directory(HDD), directory(SSD, of(8)), directory(SSD)
    placed = placement(failed, crowded, empty)
    placed.on_failed(failed, GONE)
    assert place(placed, of(0), topic("hdd")) is empty


def test_what_lies_on_a_directory_that_failed_is_not_begun_on_another() -> None:
    failed = directory(SSD, of(0))
    placed = placement(failed, directory(SSD))
    placed.on_failed(failed, GONE)
    for _ in range(2):
        with pytest.raises(LogDirFailedError, match="it is gone"):
            place(placed, of(0))
    assert placed.holder(of(0)) is failed


def test_where_no_directory_works_a_new_one_is_refused() -> None:
    failed = directory(SSD)
    placed = placement(failed)
    placed.on_failed(failed, GONE)
    with pytest.raises(LogDirFailedError):
        place(placed, of(0))


# --- Loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "isr", "is_lost"),
    [((HERE,), (HERE,), True), ((HERE, OTHER), (HERE,), True), ((HERE, OTHER), (OTHER,), False)],
)
def test_a_replica_that_may_have_been_on_a_missing_directory_is_lost_unless_others_have_it(
    replicas: Sequence[BrokerLife], isr: Sequence[BrokerLife], *, is_lost: bool
) -> None:
    its_topic = topic(replicas=replicas, isr=isr)
    placed = placement(directory(SSD, of(1)), misses_a_directory=True)
    if is_lost:
        with pytest.raises(CorruptLogError, match="Bring the old one back"):
            place(placed, of(0), its_topic, is_first=True)
        assert placed.holder(of(0)) is not None, "there its damage can be set aside"
    else:
        place(placed, of(0), its_topic, is_first=True)
    place(placed, of(1), its_topic, is_first=True)  # It is there.
    place(placed, of(2), its_topic)  # It is new: the first image did not name it.


def test_where_no_directory_is_missing_nothing_is_lost() -> None:
    place(placement(directory(SSD)), of(0), is_first=True)


# --- Failed directories, and what is where -----------------------------------------------------


def test_a_directory_fails_once() -> None:
    first, second = directory(SSD), directory(HDD)
    placed = placement(first, second)
    assert placed.on_failed(first, GONE)
    assert not placed.on_failed(first, LogDirFailedError("again"))
    with pytest.raises(LogDirFailedError, match="it is gone"):
        first.check()
    second.check()
    assert placed.working == [second]
    assert placed.working_media() == (HDD,)
    assert placed.has_failed is False
    placed.on_failed(second, GONE)
    assert (placed.has_failed, placed.working_media()) == (True, ())


def test_files_of_topics_are_looked_for_on_directories_that_work() -> None:
    first = directory(SSD, of(0, topic=1), of(1, topic=2))
    second, failed = directory(SSD, of(2, topic=1)), directory(SSD, of(3, topic=1))
    placed = placement(first, second, failed, directory(SSD, of(4, topic=2)))
    placed.on_failed(failed, GONE)
    found = list(placed.of_topics([of(0, topic=1).topic_id]))
    assert found == [(first, [of(0, topic=1)]), (second, [of(2, topic=1)])]
    placed.on_deleted(first, [of(0, topic=1)])
    assert first.replicas == {of(1, topic=2)}


class Image:
    """Metadata that names some replicas."""

    def __init__(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        self.partition = states.get


def test_what_the_metadata_gives_to_others_or_does_not_know_is_unassigned() -> None:
    placed = placement(directory(SSD, of(0), of(1)), directory(SSD, of(2)))
    (ours, *_), (theirs, *_) = topic().partitions, topic(replicas=[OTHER]).partitions
    image = cast(MetadataImage, Image({of(0): ours, of(2): theirs}))
    assert sorted(placed.unassigned(image)) == [of(1), of(2)]


# --- Moves -------------------------------------------------------------------------------------


def test_a_misplaced_replica_moves_to_the_directory_of_its_media_with_the_fewest() -> None:
    source, few, many = directory(SSD, of(0)), directory(HDD), directory(HDD, of(7))
    placed = placement(source, many, few)
    placed.on_opened(of(0), TopicMedia.HDD)
    (move,) = placed.begin_moves(NOW)
    assert move == Move(of(0), source, few)
    assert placed.begin_moves(NOW) == []  # It moves.
    assert placed.is_to_move(of(0), few)
    placed.on_moved(move)
    assert (source.replicas, few.replicas) == (set(), {of(0)})
    placed.on_opened(of(0), TopicMedia.HDD)
    placed.moves.on_ended(of(0), NOW)
    assert not placed.moves


def test_a_move_is_not_wanted_any_more_when_its_target_fails_or_the_media_is_another() -> None:
    target = directory(HDD)
    placed = placement(directory(SSD, of(0), of(1)), target, moves_max=2)
    for each in (of(0), of(1)):
        placed.on_opened(each, TopicMedia.HDD)
    assert len(placed.begin_moves(NOW)) == 2
    placed.on_opened(of(0), TopicMedia.SSD)
    assert [placed.is_to_move(of(number), target) for number in (0, 1)] == [False, True]
    placed.on_failed(target, GONE)
    assert not placed.is_to_move(of(1), target)


# --- Tiers -------------------------------------------------------------------------------------


def test_a_tiered_replica_lies_on_an_ssd_and_its_old_segments_on_the_hdd_with_the_fewest() -> None:
    hdd, other, ssd = directory(HDD), directory(HDD), directory(SSD, of(8))
    placed = placement(hdd, other, ssd)
    assert place(placed, of(0), topic("tiered")) is ssd
    assert placed.tier_for(of(0)) is hdd
    placed.on_tier(of(0), hdd)
    assert placed.tier_for(of(0)) is hdd
    assert placed.tier_for(of(8)) is other
    placed.on_tier(of(0), None)
    assert (hdd.tiers, placed.tier_for(of(8))) == (set(), hdd)


def test_segments_go_to_no_other_disk_than_the_one_that_has_the_others() -> None:
    hdd, other, ssd = directory(HDD), directory(HDD), directory(SSD, of(0), of(1))
    placed = placement(hdd, other, ssd)
    placed.on_tier(of(0), hdd)
    placed.on_failed(hdd, GONE)
    assert placed.tier_for(of(0)) is None
    assert placed.tier_for(of(1)) is other
    placed.on_failed(other, GONE)
    assert placed.tier_for(of(1)) is None


def test_a_replica_on_an_hdd_has_no_tier_and_moves_to_an_ssd_when_its_topic_becomes_tiered() -> (
    None
):
    hdd, ssd = directory(HDD, of(0)), directory(SSD)
    placed = placement(hdd, ssd)
    assert placed.tier_for(of(0)) is None
    placed.on_opened(of(0), TopicMedia.TIERED)
    (move,) = placed.begin_moves(NOW)
    assert move == Move(of(0), hdd, ssd)
    placed.on_tier(of(0), hdd)
    placed.on_moved(move)
    assert (ssd.replicas, hdd.tiers) == ({of(0)}, set())
    placed.on_opened(of(0), TopicMedia.TIERED)
    assert len(placed.moves) == 0
