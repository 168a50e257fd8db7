import pytest

from millrace.core.ids import MonotonicMs
from millrace.core.quotas.config import QuotasConfig
from millrace.core.quotas.meters import IDLE_MS, REPORTED_MAX, Meters
from millrace.core.quotas.quota import EACH, Bucket, Quota, QuotaEntity, QuotaKind
from millrace.core.quotas.shares import BucketShare

PRODUCE = QuotaKind.PRODUCE
CONFIG = QuotasConfig(burst_ms=1, buckets_max=10)


def at(ms: int) -> MonotonicMs:
    return MonotonicMs(ms)


def quota(limit: int = 3000, *, name: str = "q", per_broker: bool = False, **whom: str) -> Quota:
    return Quota(
        name=name,
        entity=QuotaEntity(**(whom or {"client_id": EACH})),
        produce_bytes_per_second=limit,
        is_per_broker=per_broker,
    )


def meters_of(*quotas: Quota, brokers: int = 3, config: QuotasConfig = CONFIG) -> Meters:
    meters = Meters(config)
    follow(meters, *quotas, brokers=brokers)
    return meters


def follow(meters: Meters, *quotas: Quota, brokers: int = 3, now: int = 0) -> None:
    meters.on_quotas({each.name: each for each in quotas}, brokers, at(now))


def test_a_limit_for_the_cluster_begins_with_an_equal_part() -> None:
    (meter,) = meters_of(quota(), brokers=3).caller(PRODUCE, "p", "app", at(0))
    assert meter.rate == 1000


def test_a_limit_for_each_broker_is_no_part() -> None:
    (meter,) = meters_of(quota(per_broker=True)).caller(PRODUCE, "p", "app", at(0))
    assert meter.rate == 3000


def test_a_share_counts_and_outlasts_the_controller_and_the_number_of_brokers() -> None:
    meters = meters_of(quota())
    (meter,) = meters.caller(PRODUCE, "p", "app", at(0))
    assert meters.on_shares([BucketShare(meter.bucket, 2500)], at(0))
    assert not meters.on_shares([BucketShare(meter.bucket, 2500)], at(1))
    follow(meters, quota(), brokers=2, now=10_000)
    assert meter.rate == 2500
    assert meters.caller(PRODUCE, "p", "app", at(10_000)) == (meter,)


def test_a_changed_limit_counts_at_once_with_the_same_parts() -> None:
    meters = meters_of(quota())
    (meter,) = meters.caller(PRODUCE, "p", "app", at(0))
    meters.on_shares([BucketShare(meter.bucket, 1500)], at(0))
    assert meters.charge(meter, 3000, at(0)) == pytest.approx(2000, abs=1)
    follow(meters, quota(6000), now=1000)
    assert meter.rate == 3000
    assert meter.delay_ms(1000) == pytest.approx(500, abs=1)


def test_a_share_of_another_release_of_the_quota_does_no_harm() -> None:
    meters = meters_of(quota(), quota(name="own", client_id="mine", per_broker=True))
    (mine,) = meters.caller(PRODUCE, "p", "mine", at(0))
    shares = [
        BucketShare(Bucket("gone", PRODUCE, client_id="x"), 7),
        BucketShare(Bucket("q", PRODUCE, client_id="unknown here"), 7),
        BucketShare(mine.bucket, 7),
    ]
    assert not meters.on_shares(shares, at(0))
    assert mine.rate == 3000


def test_a_deleted_quota_lets_its_clients_go() -> None:
    meters = meters_of(quota())
    (meter,) = meters.caller(PRODUCE, "p", "app", at(0))
    meters.charge(meter, 100_000, at(0))
    generation = meters.generation
    follow(meters)
    assert meter.is_dropped
    assert meter.delay_ms(0) == 0
    assert meters.generation > generation
    assert meters.caller(PRODUCE, "p", "app", at(0)) == ()


def test_a_quota_that_is_for_others_now_drops_what_it_counted() -> None:
    meters = meters_of(quota())
    (meter,) = meters.caller(PRODUCE, "p", "app", at(0))
    follow(meters, quota(principal="alice"))
    assert meter.is_dropped


def test_an_idle_bucket_is_dropped_but_not_one_in_debt() -> None:
    meters = meters_of(quota(), config=QuotasConfig(buckets_max=10))
    (idle,) = meters.caller(PRODUCE, "p", "idle", at(0))
    (owing,) = meters.caller(PRODUCE, "p", "owing", at(0))
    meters.charge(owing, 100_000, at(0))
    meters.expire(at(IDLE_MS + 1))
    assert (idle.is_dropped, owing.is_dropped) == (True, False)
    assert meters.caller(PRODUCE, "p", "idle", at(IDLE_MS + 1)) != (idle,)


def test_clients_beyond_the_bound_share_one_bucket_and_others_are_not_slowed() -> None:
    meters = meters_of(quota(), quota(name="known", client_id="known"))
    for number in range(100):
        for meter in meters.caller(PRODUCE, "p", f"random-{number}", at(0)):
            meters.charge(meter, 1000, at(0))
    states = meters.states(at(0))
    assert len(states) == 11
    shared = next(state for state in states if state.bucket == Bucket("q", PRODUCE))
    assert shared.delay_ms > 80_000  # 90 of them, at 1000 bytes a second.
    (known,) = meters.caller(PRODUCE, "p", "known", at(0))
    assert known.bucket.quota == "known"
    assert known.delay_ms(0) == 0


def test_what_is_used_of_shared_quotas_is_reported_while_it_is_used() -> None:
    meters = meters_of(
        quota(1_000_000), quota(1_000_000, name="own", client_id="mine", per_broker=True)
    )
    (meter,) = meters.caller(PRODUCE, "p", "app", at(0))
    (mine,) = meters.caller(PRODUCE, "p", "mine", at(0))
    for now in range(0, 3000, 10):
        meters.charge(meter, 1000, at(now))
        meters.charge(mine, 1000, at(now))
        if now % 250 == 0:
            uses = meters.uses(at(now))
    (use,) = uses
    assert use.bucket == meter.bucket
    assert use.bytes_per_second == pytest.approx(100_000, rel=0.05)
    assert not use.is_saturated
    meters.on_shares([BucketShare(meter.bucket, 1000)], at(3000))
    assert len(meters.uses(at(3900))) == 1
    assert meters.uses(at(4100)) == []
    assert [state.used for state in meters.states(at(4100))] == [0, 0]
    # Who comes now does not begin with the small share of an idle broker.
    assert meter.rate == pytest.approx(1_000_000 / 3)


def test_a_bucket_in_debt_most_of_the_time_is_saturated_whatever_it_uses() -> None:
    meters = meters_of(quota(30_000))
    (meter,) = meters.caller(PRODUCE, "p", "app", at(0))
    for now in range(0, 2000, 100):
        meters.charge(meter, 1100, at(now))
    (use,) = meters.uses(at(2000))
    assert use.is_saturated
    (use,) = meters.uses(at(2100))  # The debt goes on for a while.
    assert use.is_saturated


def test_a_debt_that_lies_ahead_is_not_time_that_has_passed() -> None:
    meters = meters_of(quota(30_000))
    (meter,) = meters.caller(PRODUCE, "p", "app", at(0))
    meters.charge(meter, 1, at(0))
    meters.charge(meter, 100_000, at(999))
    (use,) = meters.uses(at(1000))
    assert not use.is_saturated


def test_what_is_too_much_for_a_report_wants_no_more_and_has_an_equal_part() -> None:
    meters = meters_of(quota(3_000_000), config=QuotasConfig())
    slow, small, *large = (
        meters.caller(PRODUCE, "p", f"app-{number}", at(0))[0] for number in range(REPORTED_MAX + 1)
    )
    meters.on_shares([BucketShare(slow.bucket, 10_000), BucketShare(small.bucket, 900_000)], at(0))
    for now in range(0, 1000, 100):
        meters.charge(slow, 2000, at(now))
        for meter in [small, *large]:
            meters.charge(meter, 1000 if meter is small else 50_000, at(now))
    uses = meters.uses(at(1000))
    assert len(uses) == REPORTED_MAX
    assert uses[0].bucket == slow.bucket
    assert uses[0].is_saturated
    assert small.bucket not in {use.bucket for use in uses}
    assert small.rate == 1_000_000
    assert slow.rate == 10_000


def test_a_bucket_that_was_idle_is_measured_from_its_first_use_on() -> None:
    meters = meters_of(quota(300_000), config=QuotasConfig())
    (meter,) = meters.caller(PRODUCE, "p", "app", at(0))
    meters.charge(meter, 1000, at(0))
    assert meters.uses(at(2000)) == []
    for now in range(30_000, 30_250, 10):
        meters.charge(meter, 2000, at(now))
    (use,) = meters.uses(at(30_250))
    assert use.is_saturated
    assert use.bytes_per_second == pytest.approx(100_000, rel=0.1)  # Half of it so far.


def test_a_topics_idle_bucket_is_not_dropped_to_make_room_for_that_of_its_namespace() -> None:
    each_topic, each_namespace = quota(name="t", topic=EACH), quota(name="n", namespace=EACH)
    meters = meters_of(each_topic, config=QuotasConfig(buckets_max=10))
    for number in range(10):
        meters.topic(PRODUCE, f"shop/orders-{number}", at(0))
    follow(meters, each_topic, each_namespace)
    later = at(IDLE_MS + 1)
    found = meters.topic(PRODUCE, "shop/orders-0", later)
    assert not any(meter.is_dropped for meter in found)
    for meter in found:
        meters.charge(meter, 1000, later)
    follow(meters, now=later)
    assert meters.uses(later) == []
