"""Pauses between attempts are spread over time."""

from millrace.client._cluster.pauses import spread


def test_pauses_are_spread_over_two_fifths_and_keep_their_ratio() -> None:
    drawn = [spread(1_000, 10_000) for _ in range(200)]
    assert len({first for first, _ in drawn}) > 50
    assert all(800 <= first <= 1_200 and abs(10 * first - last) <= 5 for first, last in drawn)
    assert spread(1) == (1,)
