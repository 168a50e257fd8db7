from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest

from millrace.broker.telemetry.group_lags import GroupLagMetrics
from millrace.core.coordinator.groups.lags import GroupLag, LagSums


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Return the values by the name without its prefix."""
    return {
        sample.name.removeprefix("millrace_group_lag_"): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


def test_a_lag_is_shown_until_the_next_round() -> None:
    metrics = GroupLagMetrics(registry := CollectorRegistry())
    metrics.show([GroupLag("g", "orders", LagSums(8, 6, 24, 600, 0))], 2)
    assert samples(registry) == {
        "records": 8, "records_max": 6, "bytes": 24, "seconds_max": 0.6, "unknown_partitions": 0,
        "left_out_groups": 2,
    }  # fmt: skip
    metrics.show([], 0)
    assert samples(registry) == {"left_out_groups": 0}


def test_a_group_that_another_broker_coordinates_now_is_not_shown() -> None:
    metrics = GroupLagMetrics(registry := CollectorRegistry())
    asked: list[str] = []

    def kept(groups: Iterable[str]) -> set[str]:
        asked.extend(groups)
        return {"kept"}

    metrics.kept = kept
    lags = [(group, topic) for group in ("gone", "kept") for topic in ("t", "u")]
    metrics.show([GroupLag(*lag, LagSums(8, 6, 24, 600, 0)) for lag in lags], 0)
    (records,) = (each for each in registry.collect() if each.name.endswith("lag_records"))
    assert {sample.labels["group"] for sample in records.samples} == {"kept"}
    assert sorted({*asked}) == ["gone", "kept"]
    assert len(asked) == asked.count("gone") * 2, "once for all topics of a group"


def test_what_is_unknown_has_no_sample() -> None:
    metrics = GroupLagMetrics(registry := CollectorRegistry())
    metrics.show([GroupLag("g", "orders", LagSums(None, None, None, None, 3))], 0)
    assert samples(registry) == {"unknown_partitions": 3, "left_out_groups": 0}
    metrics.show([GroupLag("g", "orders", LagSums(8, 6, 24, None, 0))], 0)
    assert "seconds_max" not in samples(registry)
    metrics.show([GroupLag("g", "orders", LagSums(0, 0, 0, 0, 0))], 0)
    assert samples(registry)["seconds_max"] == 0


def test_a_hostile_name_is_a_label_and_nothing_else() -> None:
    metrics = GroupLagMetrics(registry := CollectorRegistry())
    metrics.show([GroupLag('x"} 1\nmillrace_group_lag_bytes{a="', "t", LagSums(1, 1, 1, 1, 0))], 0)
    lines = generate_latest(registry).decode().splitlines()
    assert sum(line.startswith("millrace_group_lag_bytes") for line in lines) == 1
