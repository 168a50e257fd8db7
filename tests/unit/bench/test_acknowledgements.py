"""What the times of single records say about interruptions."""

from pathlib import Path

import numpy
import pytest
from bench import acknowledgements
from bench.acknowledgements import (
    NEVER,
    RECORDS,
    Records,
    longest_stall_ms,
    percentile,
    seconds_until_acknowledged,
)

SECOND = 1_000_000_000


def records(*rows: tuple[int, float, float | None]) -> Records:
    """Make records of partition, sent, acknowledged (s)."""
    return numpy.array(
        [
            (partition, sent * SECOND, NEVER if done is None else done * SECOND)
            for partition, sent, done in rows
        ],
        dtype=RECORDS,
    )


def test_what_was_sent_before_the_kill_does_not_end_the_failover() -> None:
    seen = records((0, 9.0, 10.1), (0, 10.5, 12.0), (0, 10.6, 11.5))
    assert seconds_until_acknowledged(seen, 0, 10.0) == 1.5


def test_other_partitions_do_not_end_the_failover() -> None:
    seen = records((1, 10.2, 10.3), (0, 10.2, 13.0))
    assert seconds_until_acknowledged(seen, 0, 10.0) == 3.0


def test_a_failover_that_never_ends_is_not_a_number() -> None:
    with pytest.raises(ValueError, match="partition 0"):
        seconds_until_acknowledged(records((0, 10.2, None), (0, 9.0, 9.5)), 0, 10.0)


def test_a_stall_counts_for_records_that_wait_when_it_begins_and_that_come_meanwhile() -> None:
    waiting = records((0, 9.875, 10.125), (0, 10.5, 10.625))
    assert longest_stall_ms(waiting, [0], 10.0, 11.0) == 250
    coming = records((0, 9.5, 9.75), (0, 10.5, 11.25))
    assert longest_stall_ms(coming, [0], 10.0, 11.0) == 750


def test_stalls_elsewhere_and_at_other_times_do_not_count() -> None:
    seen = records((0, 1.0, 9.0), (1, 10.0, 11.0), (0, 10.5, 10.625), (0, 11.5, 15.0))
    assert longest_stall_ms(seen, [0], 10.0, 11.0) == 125


def test_a_record_that_was_never_acknowledged_is_no_stall_but_a_failure() -> None:
    with pytest.raises(ValueError, match="not every record"):
        longest_stall_ms(records((0, 10.5, None)), [0], 10.0, 11.0)
    with pytest.raises(ValueError, match="not every record"):
        longest_stall_ms(records((1, 10.5, 11.0)), [0], 10.0, 11.0)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 15), (0.99, 30), (0.9, 27), (1.0, 30), (0.01, 1)]
)
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: int) -> None:
    assert percentile(range(30, 0, -1), share) == expected


def test_what_a_load_saves_is_what_is_loaded(tmp_path: Path) -> None:
    rows = [(0, 1, 2), (11, 5 * 10**18, NEVER)]
    acknowledgements.save(tmp_path / "seen.npy", rows)
    assert [tuple(row) for row in acknowledgements.load(tmp_path / "seen.npy")] == rows
