from collections import Counter

import pytest

from millrace.core.controller.balancing.placement import Candidate, place
from millrace.core.ids import BrokerId


def brokers(*zones: str) -> list[Candidate]:
    return [Candidate(BrokerId(number), zone) for number, zone in enumerate(zones)]


def placed(
    partitions: int,
    replication_factor: int,
    candidates: list[Candidate],
    replica_counts: dict[int, int] | None = None,
    leader_counts: dict[int, int] | None = None,
    *,
    in_sync_min: int = 1,
) -> list[tuple[BrokerId, ...]]:
    return place(
        partitions,
        replication_factor,
        candidates,
        replica_counts=Counter({BrokerId(k): v for k, v in (replica_counts or {}).items()}),
        leader_counts=Counter({BrokerId(k): v for k, v in (leader_counts or {}).items()}),
        follower_counts=Counter(),
        heir_counts=Counter(),
        in_sync_min=in_sync_min,
    )


def spread(counts: Counter[BrokerId]) -> int:
    return max(counts.values()) - min(counts.values())


@pytest.mark.parametrize(
    ("number", "replication_factor"),
    [(number, factor) for number in (1, 2, 3, 4, 5, 7) for factor in (1, 2, 3) if factor <= number],
)
def test_leaders_and_replicas_are_spread_evenly(number: int, replication_factor: int) -> None:
    candidates = brokers(*[""] * number)
    replicas = placed(120, replication_factor, candidates)
    assert all(len(set(replica)) == replication_factor for replica in replicas)
    leaders = Counter(replica[0] for replica in replicas)
    assert set(leaders) == {candidate.broker_id for candidate in candidates}
    assert spread(leaders) <= 1
    # Leaders come first: their turn may not be the turn of the broker with the fewest replicas.
    assert spread(Counter(broker for replica in replicas for broker in replica)) <= 2


def test_new_partitions_go_where_there_are_fewest() -> None:
    replicas = placed(6, 1, brokers("", "", ""), {0: 4, 1: 0, 2: 2}, {0: 4, 1: 0, 2: 2})
    assert Counter(replica[0] for replica in replicas) == {1: 4, 2: 2}


@pytest.mark.parametrize("zones", [("a", "a", "b", "b", "c", "c"), ("a", "b", "c", "a", "b", "c")])
def test_replicas_lie_in_different_zones(zones: tuple[str, ...]) -> None:
    replicas = placed(60, 3, brokers(*zones))
    for replica in replicas:
        assert {zones[broker] for broker in replica} == {"a", "b", "c"}


def test_more_replicas_than_zones_share_them_evenly() -> None:
    zones = ("a", "a", "a", "b", "b", "b")
    for replicas in placed(30, 4, brokers(*zones)):
        assert Counter(zones[broker] for broker in replicas) == {"a": 2, "b": 2}


def test_the_leaderships_of_a_dead_broker_would_fall_to_all_the_others() -> None:
    replicas = placed(48, 3, brokers("", "", "", ""))
    for dead in range(4):
        heirs = Counter(replica[1] for replica in replicas if replica[0] == dead)
        assert len(heirs) == 3
        assert spread(heirs) <= 1


def away(candidates: list[Candidate], *broker_ids: int) -> list[Candidate]:
    return [
        candidate._replace(is_there=candidate.broker_id not in broker_ids)
        for candidate in candidates
    ]


def test_a_broker_that_is_away_gets_its_part() -> None:
    replicas = placed(100, 3, away(brokers("", "", "", "", ""), 4), in_sync_min=2)
    assert spread(Counter(broker for replica in replicas for broker in replica)) <= 2
    assert spread(Counter(replica[0] for replica in replicas)) <= 1


@pytest.mark.parametrize("gone", [(2,), (2, 5), (4, 5), (1, 2)])
def test_a_zone_that_is_away_gets_its_replica(gone: tuple[int, ...]) -> None:
    zones = ("a", "b", "c", "a", "b", "c")
    for each in placed(60, 3, away(brokers(*zones), *gone), in_sync_min=2):
        assert {zones[broker] for broker in each} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("factor", "in_sync_min", "gone"),
    [(3, 2, (0, 1)), (3, 2, (3, 4)), (3, 3, (0, 1)), (1, 1, (0, 1, 2, 3)), (2, 1, (1, 2, 3, 4))],
)
def test_as_many_replicas_are_there_as_a_write_needs(
    factor: int, in_sync_min: int, gone: tuple[int, ...]
) -> None:
    for each in placed(50, factor, away(brokers(*[""] * 5), *gone), in_sync_min=in_sync_min):
        assert len({*each}.difference(gone)) >= in_sync_min


def test_a_partition_has_a_replica_that_can_lead_even_if_its_zone_has_another_one() -> None:
    zones = ("a", "a", "b", "c")
    for each in placed(20, 2, away(brokers(*zones), 1, 2, 3)):
        assert 0 in each


def test_a_bad_disk_is_avoided_within_its_zone_and_counts_less_than_the_zones() -> None:
    zones = ("a", "a", "b", "c")
    bad = [broker._replace(has_bad_disk=broker.broker_id in (1, 3)) for broker in brokers(*zones)]
    assert {frozenset(each) for each in placed(20, 3, bad)} == {frozenset({0, 2, 3})}


def test_the_same_input_gives_the_same_places() -> None:
    candidates = brokers("a", "b", "", "a")
    assert placed(17, 2, candidates) == placed(17, 2, candidates)
