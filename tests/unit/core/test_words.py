"""Figures as people read them."""

import pytest

from millrace.core.words import count, duration, listed, size


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (12_345, "12.3 s"),
        (61_000, "1 m 1 s"),
        (3_600_000, "1 h 0 m"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_a_length_of_time_is_short(milliseconds: int, shown: str) -> None:
    assert duration(milliseconds) == shown


@pytest.mark.parametrize(
    ("bytes_", "shown"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (2**30, "1.0 GiB"),
        (5 * 2**50, "5,120.0 TiB"),
    ],
)
def test_a_size_has_the_unit_that_fits(bytes_: int, shown: str) -> None:
    assert size(bytes_) == shown


def test_one_of_a_kind_has_no_plural() -> None:
    assert [count(number, "record") for number in (0, 1, 2000)] == [
        *("0 records", "1 record", "2,000 records")
    ]
    assert [count(number, "batch is", "batches are") for number in (0, 1, 2)] == [
        *("0 batches are", "1 batch is", "2 batches are")
    ]


def test_of_many_partitions_some_are_named() -> None:
    places = [("a/b", number) for number in range(4)]
    assert listed(places, 4) == "a/b-0, a/b-1, a/b-2, a/b-3"
    assert listed(places, 2) == "a/b-0, a/b-1 and 2 more"
