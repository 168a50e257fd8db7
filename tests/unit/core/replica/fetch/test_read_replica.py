"""Where a reader of a zone is sent (KIP-392, P12)."""

from dataclasses import replace

import pytest

from millrace.core.ids import BrokerEpoch, BrokerId, LeaderEpoch, MonotonicMs, Offset
from millrace.core.metadata.model import BrokerLife, BrokerRegistration
from millrace.core.replica.fetch.read_replica import preferred_read_replica
from millrace.core.replica.replication.progress import Follower, FollowerProgress

LEADER = BrokerId(0)
ZONES = ("a", "b", "b")


def life(broker_id: int) -> BrokerLife:
    return BrokerLife(BrokerId(broker_id), BrokerEpoch(10 + broker_id))


def registered(broker_id: int, zone: str) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=BrokerId(broker_id),
        name=f"b{broker_id}",
        rack=zone,
        host="h",
        port=1,
        incarnation_id="i",
        directory_ids=("d",),
        broker_epoch=life(broker_id).broker_epoch,
        is_fenced=False,
    )


def follower(broker_id: int, end: int = 10, start: int = 0) -> Follower:
    progress = FollowerProgress(Offset(end), Offset(end), Offset(start), LeaderEpoch(1))
    return Follower(BrokerId(broker_id), MonotonicMs(0), life(broker_id), progress)


class Case:
    """A leader in zone a, and two followers in zone b that have the offsets 0 to 10."""

    def __init__(self) -> None:
        self.brokers = {BrokerId(n): registered(n, zone) for n, zone in enumerate(ZONES)}
        self.followers = [follower(1), follower(2)]
        self.isr = [life(0), life(1), life(2)]

    def change(self, broker_id: int, **changes: object) -> None:
        broker = self.brokers[BrokerId(broker_id)]
        self.brokers[BrokerId(broker_id)] = replace(broker, **changes)  # type: ignore[arg-type]

    def choose(self, zone: str = "b", offset: int = 5) -> BrokerId | None:
        return preferred_read_replica(
            zone,
            Offset(offset),
            leader=LEADER,
            isr=self.isr,
            followers=self.followers,
            brokers=self.brokers,
        )


def test_a_reader_is_sent_to_the_follower_of_its_zone_that_is_furthest() -> None:
    case = Case()
    assert case.choose() == 1
    case.followers = [follower(1, end=9), follower(2, end=10)]
    assert case.choose() == 2


@pytest.mark.parametrize("zone", ["", "a", "c"])
def test_a_reader_of_no_zone_of_the_leaders_or_of_an_empty_one_stays(zone: str) -> None:
    assert Case().choose(zone) is None


def test_only_followers_that_have_the_position_qualify() -> None:
    case = Case()
    case.followers = [follower(1, end=4), follower(2, start=6)]
    assert case.choose(offset=5) is None
    assert case.choose(offset=4) == 1


def test_only_in_sync_lives_qualify() -> None:
    case = Case()
    case.isr = [life(0), life(2)]
    assert case.choose() == 2
    case.isr = [life(0), BrokerLife(BrokerId(2), BrokerEpoch(99))]
    assert case.choose() is None


@pytest.mark.parametrize("change", ["is_fenced", "is_draining"])
def test_a_follower_that_is_fenced_or_about_to_stop_does_not_qualify(change: str) -> None:
    case = Case()
    case.change(1, **{change: True})
    assert case.choose() == 2


def test_a_follower_that_has_restarted_does_not_qualify_until_it_is_heard_of_again() -> None:
    case = Case()
    case.change(1, broker_epoch=BrokerEpoch(50))
    assert case.choose() == 2
