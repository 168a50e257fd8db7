"""A limit of the whole cluster over time: brokers that report, a controller that divides."""

from collections.abc import Callable

import pytest

from millrace.core.ids import BrokerId, MonotonicMs
from millrace.core.quotas.config import QuotasConfig
from millrace.core.quotas.meters import Meter, Meters
from millrace.core.quotas.quota import Quota, QuotaEntity, QuotaKind
from millrace.core.quotas.shares import QuotaShares

LIMIT = 10_000_000
REQUEST = 20_000
BROKERS = [BrokerId(number) for number in range(3)]
HEARTBEAT_MS = 250
QUOTAS = {"q": Quota(name="q", entity=QuotaEntity(client_id="app"), produce_bytes_per_second=LIMIT)}

Wants = Callable[[int, BrokerId], int | None]
"""Bytes a second that clients want at a time and a broker; None: as much as there is."""


def bytes_sent(wants: Wants, seconds: int) -> list[list[int]]:
    """Return what each broker takes, by second."""
    shares = QuotaShares()
    meters: list[Meters] = []
    for _ in BROKERS:
        meters.append(Meters(QuotasConfig()))
        meters[-1].on_quotas(QUOTAS, len(BROKERS), MonotonicMs(0))
    free_at = [0.0] * len(BROKERS)
    sent = [[0] * len(BROKERS) for _ in range(seconds)]
    for ms in range(seconds * 1000):
        now = MonotonicMs(ms)
        for broker in BROKERS:
            if ms % HEARTBEAT_MS == 80 * broker:
                shares.on_report(broker, meters[broker].uses(now))
                meters[broker].on_shares(shares.shares_of(broker, QUOTAS, BROKERS), now)
            wanted = wants(ms, broker)
            for meter in meters[broker].caller(QuotaKind.PRODUCE, "p", "app", now):
                free_at[broker] = min(free_at[broker], _free_at(meter, wanted, now))
                while free_at[broker] <= ms and wanted != 0:
                    sent[ms // 1000][broker] += REQUEST
                    paid_at = meters[broker].charge(meter, REQUEST, now)
                    pace_ms = 0.0 if wanted is None else REQUEST * 1000 / wanted
                    free_at[broker] = max(paid_at, free_at[broker] + pace_ms)
    return sent


def _free_at(meter: Meter, wanted: int | None, now: MonotonicMs) -> float:
    """Return when a client goes on at the latest; a share that has grown shortens its delay."""
    if wanted is None:
        return max(meter.paid_until, now - 200)
    return now + REQUEST * 1000 / wanted if wanted else now + 1


def rate(sent: list[list[int]]) -> float:
    return sum(map(sum, sent)) / len(sent)


@pytest.mark.parametrize("busy", [1, 2, 3])
def test_the_limit_is_used_and_kept_however_many_brokers_are_busy(busy: int) -> None:
    sent = bytes_sent(lambda _, broker: None if broker < busy else 0, 20)
    assert rate(sent[:10]) == pytest.approx(LIMIT, rel=0.05)
    assert rate(sent[10:]) == pytest.approx(LIMIT, rel=0.01)


def test_what_little_demand_leaves_goes_to_the_others() -> None:
    demand: dict[BrokerId, int | None] = dict(zip(BROKERS, (None, 2_000_000, 500_000), strict=True))
    sent = bytes_sent(lambda _, broker: demand[broker], 20)
    assert rate(sent[10:]) == pytest.approx(LIMIT, rel=0.05)
    *_, (first, second, third) = sent
    assert second == pytest.approx(2_000_000, rel=0.05)
    assert third == pytest.approx(500_000, rel=0.05)
    assert first > 6_900_000


def test_demand_that_moves_to_another_broker_has_the_limit_there_within_a_second() -> None:
    sent = bytes_sent(lambda ms, broker: None if ms // 5000 % 3 == broker else 0, 30)
    assert rate(sent) < LIMIT * 1.01
    for begin in range(0, 30, 5):
        assert rate(sent[begin + 1 : begin + 5]) > LIMIT * 0.95
