"""The ratios of figures that compare more than one thing."""

import pytest
from bench.loads.spec import Moved
from bench.measure import Run
from bench.processes import Usage

_REASON = "needs confluent-kafka: sh requirements/install.sh bench"
cpu_per_gb = pytest.importorskip("bench.figures.cpu_per_gb", reason=_REASON)
latency_10k = pytest.importorskip("bench.figures.latency_10k", reason=_REASON)

NONE = Usage(cpu_seconds=0, peak_rss_bytes=0)


def costing(*cpu_seconds: float) -> list[Run]:
    return [
        Run(
            moved=Moved(records=1, bytes=1_000_000_000, seconds=10),
            client=NONE,
            broker=Usage(cpu_seconds=seconds, peak_rss_bytes=0),
        )
        for seconds in cpu_seconds
    ]


def taking(*p50_and_p99: tuple[float, float]) -> list[Run]:
    return [
        Run(
            moved=Moved(records=1, bytes=1, seconds=10, detail={"p50_ms": p50, "p99_ms": p99}),
            client=NONE,
            broker=NONE,
        )
        for p50, p99 in p50_and_p99
    ]


def test_our_cost_is_held_against_the_cheapest_of_their_ways_in_every_round() -> None:
    runs = {"millrace": costing(1, 1, 1), "each": costing(2, 8, 2), "batch": costing(4, 4, 5)}
    assert cpu_per_gb.over_cheapest(runs, "each", "batch") == 1 / 2
    assert cpu_per_gb.over_cheapest(runs, "batch") == 1 / 4


def test_each_percentile_of_kafka_is_over_ours_of_the_same_round() -> None:
    runs = {"millrace": taking((1, 10), (2, 10)), "confluent": taking((2, 5), (2, 5))}
    assert latency_10k.kafka_over_ours(runs) == {
        "Kafka's p50 over ours": 1.5,
        "Kafka's p99 over ours": 0.5,
    }


def test_the_smallest_ratio_is_the_value_of_the_figure() -> None:
    assert list(latency_10k.smallest_first({"a": 2.0, "b": 0.5, "c": 1.0})) == ["b", "c", "a"]
