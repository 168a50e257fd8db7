from prometheus_client import CollectorRegistry

from millrace.broker.telemetry.quotas import NAMED_MAX, QuotaMetrics
from millrace.core.quotas.meters import BucketState
from millrace.core.quotas.quota import Bucket, QuotaKind


def state(client_id: str, *, delay_ms: int = 0, throttled_ms: int = 0) -> BucketState:
    bucket = Bucket("q", QuotaKind.PRODUCE, client_id=client_id)
    return BucketState(bucket, 1000, 2000, delay_ms, throttled_ms)


def samples(registry: CollectorRegistry) -> dict[str, dict[str, float]]:
    """Return the values of each metric by client id."""
    found: dict[str, dict[str, float]] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            found.setdefault(sample.name, {})[sample.labels.get("client_id", "")] = sample.value
    return found


def test_the_time_of_all_clients_of_a_quota_adds_up() -> None:
    metrics = QuotaMetrics(registry := CollectorRegistry())
    metrics.on_states([state("a", throttled_ms=1000), state("b", throttled_ms=500)])
    metrics.on_states([state("a", throttled_ms=3000), state("b", throttled_ms=500)])
    assert samples(registry)["millrace_quota_throttled_seconds_total"] == {"": 3.5}
    metrics.on_states([state("a", throttled_ms=200)])  # It was forgotten meanwhile.
    assert samples(registry)["millrace_quota_throttled_seconds_total"] == {"": 3.5}
    metrics.on_states([state("a", throttled_ms=300)])
    assert samples(registry)["millrace_quota_throttled_seconds_total"] == {"": 3.6}


def test_only_the_most_delayed_are_named_and_no_longer_than_they_are() -> None:
    metrics = QuotaMetrics(registry := CollectorRegistry())
    metrics.on_states([state(f"c{number}", delay_ms=number) for number in range(100)])
    named = samples(registry)["millrace_quota_delay_seconds"]
    assert len(named) == NAMED_MAX
    assert named["c99"] == 0.099
    assert samples(registry)["millrace_quota_buckets"] == {"": 100}
    metrics.on_states([state("c99")])
    assert "millrace_quota_delay_seconds" not in samples(registry)


def test_a_quota_that_nobody_uses_any_more_has_no_series() -> None:
    metrics = QuotaMetrics(registry := CollectorRegistry())
    metrics.on_states([state("a", throttled_ms=1000)])
    metrics.on_states([])
    assert "millrace_quota_throttled_seconds_total" not in samples(registry)


def test_a_hostile_name_is_a_label_and_nothing_else() -> None:
    from prometheus_client import generate_latest

    metrics = QuotaMetrics(registry := CollectorRegistry())
    metrics.on_states([state('x"} 1\nmillrace_quota_buckets{a="', delay_ms=5)])
    lines = generate_latest(registry).decode().splitlines()
    assert sum(line.startswith("millrace_quota_buckets") for line in lines) == 1
