import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.ids import BrokerId
from millrace.core.quotas.quota import Bucket, Quota, QuotaEntity, QuotaKind
from millrace.core.quotas.shares import BucketShare, BucketUse, Demand, QuotaShares, divided

A, B, C = map(BrokerId, range(3))
LIMIT = 30_000_000
BUCKET = Bucket("q", QuotaKind.PRODUCE, client_id="app")
QUOTAS = {"q": Quota(name="q", entity=QuotaEntity(client_id="app"), produce_bytes_per_second=LIMIT)}


def used(rate: int) -> Demand:
    return Demand(rate, is_saturated=False)


def saturated(rate: int = 0) -> Demand:
    return Demand(rate, is_saturated=True)


def test_who_alone_wants_something_gets_everything() -> None:
    assert divided(LIMIT, {A: saturated()}, 3) == {A: LIMIT}
    assert divided(LIMIT, {A: used(5)}, 3) == {A: LIMIT}


def test_those_who_want_more_get_equal_parts() -> None:
    third = LIMIT // 3
    demands = {A: saturated(), B: saturated(9), C: saturated(LIMIT)}
    assert divided(LIMIT, demands, 3) == {A: third, B: third, C: third}


def test_what_one_broker_does_not_use_goes_to_the_others() -> None:
    shares = divided(LIMIT, {A: saturated(), B: used(3_000_000), C: used(0)}, 3)
    assert 3_000_000 < shares[B] < 3_300_000
    assert shares[C] < 100_000
    assert shares[A] > 26_500_000


def test_without_saturation_everybody_has_room_to_grow() -> None:
    shares = divided(LIMIT, {A: used(10_000_000), B: used(1_000_000)}, 3)
    assert shares[A] > 15_000_000
    assert shares[B] > 9_000_000


@given(
    st.integers(1024, 1 << 40),
    st.dictionaries(
        st.integers(0, 30).map(BrokerId),
        st.builds(Demand, st.integers(0, 1 << 41), st.booleans()),
        min_size=1,
    ),
    st.integers(0, 5),
)
def test_the_shares_are_the_limit_and_nobody_is_starved_for_another(
    limit: int, demands: dict[BrokerId, Demand], others: int
) -> None:
    count = len(demands)
    shares = divided(limit, demands, count + others)
    assert limit - 2 * count <= sum(shares.values()) <= limit
    for broker, demand in demands.items():
        wanted = limit if demand.is_saturated else demand.bytes_per_second
        assert shares[broker] >= min(wanted, limit // count) - 2
    assert shares.keys() == demands.keys()


def report(shares: QuotaShares, broker: BrokerId, rate: int, *, is_saturated: bool) -> None:
    shares.on_report(broker, [BucketUse(BUCKET, rate, is_saturated)])


def share(shares: QuotaShares, broker: BrokerId, *living: BrokerId) -> int:
    (found,) = shares.shares_of(broker, QUOTAS, living)
    assert found.bucket == BUCKET
    return found.bytes_per_second


def test_the_part_of_a_broker_that_has_not_reported_yet_is_kept_for_it() -> None:
    shares = QuotaShares()
    report(shares, A, 5, is_saturated=True)
    assert share(shares, A, A, B, C) == LIMIT // 3
    shares.on_report(B, [])
    assert share(shares, A, A, B, C) == LIMIT * 2 // 3
    shares.on_report(C, [])
    assert share(shares, A, A, B, C) == LIMIT


def test_clients_that_begin_at_all_brokers_do_not_exceed_the_limit_before_each_has_reported() -> (
    None
):
    shares = QuotaShares()
    for broker in (A, B, C):
        shares.on_report(broker, [])
    report(shares, A, 0, is_saturated=True)
    assert share(shares, A, A, B, C) == LIMIT // 3, "B and C may be in use by now"
    report(shares, C, 0, is_saturated=True)
    assert share(shares, C, A, B, C) == LIMIT // 3
    shares.on_report(B, [])
    report(shares, A, 0, is_saturated=True)
    assert share(shares, A, A, B, C) == share(shares, C, A, B, C) == LIMIT // 2
    for broker in (A, C):  # It is not used any more, and then again.
        shares.on_report(broker, [])
    report(shares, B, 0, is_saturated=True)
    assert share(shares, B, A, B, C) == LIMIT // 3


def test_demand_moves_the_shares_within_one_report_of_each() -> None:
    shares = QuotaShares()
    report(shares, A, 0, is_saturated=True)
    shares.on_report(B, [])
    assert share(shares, A, A, B) == LIMIT
    report(shares, B, 0, is_saturated=True)
    assert share(shares, B, A, B) == share(shares, A, A, B) == LIMIT // 2
    shares.on_report(A, [])
    assert shares.shares_of(A, QUOTAS, [A, B]) == []
    assert share(shares, B, A, B) == LIMIT


def test_a_limit_is_divided_once_for_all_who_come_in_turn() -> None:
    shares = QuotaShares()
    report(shares, A, 20_000_000, is_saturated=False)
    report(shares, B, 1_000_000, is_saturated=False)
    first = share(shares, A, A, B)
    report(shares, B, 15_000_000, is_saturated=False)
    assert first + share(shares, B, A, B) == pytest.approx(LIMIT, abs=2)
    # The first broker that asks again begins the next round.
    report(shares, A, 1_000_000, is_saturated=False)
    assert share(shares, A, A, B) < first
    # What cannot wait for that: one wants more than it has.
    report(shares, B, 15_000_000, is_saturated=True)
    assert share(shares, B, A, B) > 28_000_000


def test_a_dead_brokers_part_goes_to_the_others() -> None:
    shares = QuotaShares()
    report(shares, A, 0, is_saturated=True)
    report(shares, B, 0, is_saturated=True)
    shares.keep_only([A])
    assert share(shares, A, A) == LIMIT
    shares.keep_only([])
    assert not shares.has_demand


def test_a_quota_that_is_gone_or_for_each_broker_has_no_shares() -> None:
    shares = QuotaShares()
    shares.on_report(
        A,
        [
            BucketUse(Bucket("gone", QuotaKind.PRODUCE), 5, True),
            BucketUse(Bucket("q", QuotaKind.FETCH), 5, True),
            BucketUse(Bucket("own", QuotaKind.PRODUCE), 5, True),
        ],
    )
    own = Quota(
        name="own",
        entity=QuotaEntity(client_id="own"),
        produce_bytes_per_second=5000,
        is_per_broker=True,
    )
    found: list[BucketShare] = shares.shares_of(A, {**QUOTAS, "own": own}, [A])
    assert found == []
