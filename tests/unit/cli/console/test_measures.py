import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.console.measures import Latencies, Transfer

MILLISECONDS = st.lists(st.floats(0.001, 1e6), min_size=1)


@given(MILLISECONDS, st.sampled_from([0.5, 0.95, 0.99, 0.999, 1.0]))
def test_a_percentile_is_within_one_per_cent_of_the_exact_one(
    values: list[float], share: float
) -> None:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert latencies.percentile(share) == pytest.approx(exact, rel=0.01)


def test_records_that_share_a_batch_count_each() -> None:
    latencies = Latencies()
    latencies.add(1.0, records=98)
    latencies.add(100.0, records=2)
    assert latencies.percentile(0.98) == pytest.approx(1.0, rel=0.01)
    assert latencies.percentile(0.99) == 100.0
    assert latencies.mean_ms == pytest.approx(2.98)
    assert latencies.max_ms == 100.0


def test_nothing_counted_is_zero() -> None:
    assert Latencies().percentile(0.99) == Latencies().mean_ms == 0.0


def test_an_interval_is_the_difference_of_two_states() -> None:
    later, earlier = Transfer(300, 3_000_000, 3.0), Transfer(100, 1_000_000, 1.0)
    assert str(later.minus(earlier)) == "200 records in 2.0 s: 100 records/s, 1.0 MB/s"


def test_no_time_is_no_rate() -> None:
    assert Transfer(5, 5, 0.0).as_json()["records_per_second"] == 0.0
