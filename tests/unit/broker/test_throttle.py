"""A stream waits for what its client owes, and for no quota that does not count any more."""

from dataclasses import replace

import pytest
from tests.fakes.call_context import CALLER
from tests.fakes.quotas import follow, limit, no_quotas

from millrace.broker.quotas import Throttle
from millrace.core.quotas.quota import EACH, QuotaEntity, QuotaKind

EACH_CLIENT = QuotaEntity(client_id=EACH)


@pytest.mark.parametrize(
    ("general", "own"),
    [
        (EACH_CLIENT, QuotaEntity(client_id="app")),
        (QuotaEntity(topic=EACH), QuotaEntity(topic="orders")),
    ],
    ids=["client", "topic"],
)
def test_a_quota_of_its_own_frees_a_stream_from_the_general_one(
    general: QuotaEntity, own: QuotaEntity
) -> None:
    quotas = no_quotas()
    follow(quotas, limit("general", produce=1000, entity=general))
    heard: list[int] = []
    throttle: Throttle
    throttle = quotas.throttle(
        QuotaKind.PRODUCE,
        replace(CALLER, client_id="app"),
        lambda: heard.append(throttle.delay_ms()),
    )
    throttle.charge(100_000)
    throttle.charge_topic("orders", 100_000)
    assert throttle.delay_ms() > 10_000
    follow(
        quotas,
        limit("general", produce=1000, entity=general),
        limit("own", produce=100_000_000, entity=own),
    )
    assert heard == [0]
    throttle.charge(100_000)
    throttle.charge_topic("orders", 100_000)
    assert throttle.delay_ms() <= 1


def test_a_quota_that_still_counts_delays_a_stream_when_another_one_changes() -> None:
    quotas = no_quotas()
    follow(quotas, limit("general", produce=1000, entity=EACH_CLIENT))
    throttle = quotas.throttle(QuotaKind.PRODUCE, replace(CALLER, client_id="app"), lambda: None)
    throttle.charge(100_000)
    other = limit("other", produce=7, entity=QuotaEntity(client_id="other"))
    follow(quotas, limit("general", produce=1000, entity=EACH_CLIENT), other)
    assert throttle.delay_ms() > 10_000
