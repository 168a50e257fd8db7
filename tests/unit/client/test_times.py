"""Times as people write them."""

import pyarrow as pa
import pytest

from millrace.cli.read_start import parse_time
from millrace.cli.records.times import millisecond_of, milliseconds_of
from millrace.client.times import parse_time_ms
from millrace.spark.subscriptions import AtTime, timestamp

TIMES = [
    ("1970-01-02", 86_400_000),
    ("1970-01-01T01:00+01:00", 0),
    ("1970-01-01T00:00:01.0019Z", 1001),
    ("2013-07-04T12:00:00.999999", 1_372_939_200_999),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *TIMES,
        ("1969-12-31T23:59:59.9999", -1),
        ("0001-01-01T00:00+14:00", -62_135_647_200_000),
        ("9999-12-31T23:59:59.9999-14:00", 253_402_351_199_999),
    ],
)
def test_a_time_is_utc_unless_it_names_a_zone_and_is_cut_to_the_millisecond(
    text: str, expected: int
) -> None:
    assert parse_time_ms(text) == expected


@pytest.mark.parametrize("text", ["", "1", "2013-31-01", "10000-01-01", "2013-01-31é10:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_time_ms(text)


@pytest.mark.parametrize(("text", "expected"), TIMES)
def test_options_files_and_spark_read_a_time_alike(text: str, expected: int) -> None:
    assert parse_time(text, now_ms=0) == expected
    assert millisecond_of(text) == expected
    assert milliseconds_of(pa.array([text]), "at").to_pylist() == [expected]
    assert timestamp(text).everywhere == AtTime(expected)
