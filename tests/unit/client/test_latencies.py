"""Latencies fall into the buckets that they belong to, and examples stay beside them."""

import pytest

from millrace.client._cluster.latencies import BOUNDS_S, Latencies


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.001, 0), (0.0011, 1), (0.5, BOUNDS_S.index(0.5)), (31, len(BOUNDS_S))],
)
def test_a_bound_belongs_to_its_bucket(seconds: float, bucket: int) -> None:
    latencies = Latencies()
    latencies.observe(seconds)
    assert [place for place, count in enumerate(latencies.counts) if count] == [bucket]
    assert latencies.sum_s == seconds


def test_an_example_is_not_counted_and_the_latest_of_a_bucket_stays() -> None:
    latencies = Latencies()
    for seconds, trace_id in ((0.003, "a"), (0.004, "b"), (2, "c")):
        latencies.mark(seconds, trace_id)
    assert sum(latencies.counts) == latencies.sum_s == 0
    kept = [example and example.trace_id for example in latencies.examples]
    assert [trace_id for trace_id in kept if trace_id] == ["b", "c"]
    assert kept[2] == "b"
