"""Times as people write them."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.arguments.read_start import parse_time
from millrace.cli.records.problems import RowError
from millrace.cli.records.times import millisecond_of, milliseconds_of
from millrace.client.times import parse_time_ms
from millrace.spark.options.subscriptions import AtTime, timestamp

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


TEN = 1_359_626_400_000
"""2013-01-31T10:00Z."""
DAY = 1_359_590_400_000


def column_of(text: str, kind: pa.DataType) -> Any:
    """Return the time that a column says, among those of usual spellings; None: it is refused."""
    usual = ["2013-01-31T10:00Z", "2013-01-31", "7"]
    try:
        return milliseconds_of(pa.array([*usual, text], kind), "at").to_pylist()[-1]
    except RowError as error:
        if error.index != len(usual):
            raise
        return None


def json_of(cell: str | bytes) -> int | None:
    """Return the time that a text or a number of JSON says; None: it is refused."""
    try:
        return millisecond_of(cell)
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1359626400000", TEN),
        ("-1", -1),
        ("0", 0),
        ("20130131", 20_130_131),
        ("9223372036854775807", (1 << 63) - 1),
        ("-9223372036854775809", None),
        ("-9223372036854775808", -1 << 63),
        ("9223372036854775808", None),
        ("00000000000000000001", None),
        ("2013-01-31", DAY),
        ("2013-01-31 10:00", TEN),
        ("2013-01-31T10:00:00.5", TEN + 500),
        ("2013-01-31T10:00:00.1239", TEN + 123),
        ("2013-01-31T10:00:00,5", TEN + 500),
        ("2013-01-31T11:00:00+01:00", TEN),
        ("2013-01-31T11+01", TEN),
        ("2013-01-31T11:00+0100", TEN),
        ("2013-01-31T11:00:07+01:00:07", TEN),
        ("20130131T100000Z", TEN),
        ("2013-W05-4", DAY),
        ("0999-01-01", -30_641_760_000_000),
        ("0000-01-01", None),
        ("2013-01-31 11:00:00 +01:00", TEN),
        ("2013-01-31Z", None),
        ("2013-02-30", None),
        ("2013-01-31T10:60", None),
        (" 7", None),
        ("+7", None),
        ("1.5", None),
        ("1e3", None),
        ("", None),
    ],
)
def test_every_format_of_a_file_reads_a_time_alike(text: str, expected: int | None) -> None:
    assert json_of(text) == expected
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert column_of(text, kind) == expected


@pytest.mark.parametrize(
    ("number", "expected"), [(b"20130131", 20_130_131), (b"-1", -1), (b"1.5", None), (b"1e3", None)]
)
def test_a_number_of_json_is_a_whole_number_of_milliseconds(
    number: bytes, expected: int | None
) -> None:
    assert json_of(number) == expected


@given(st.from_regex(r"[0-9]{4}-?[01][0-9]-?[0-3][0-9]([T ][0-9:.,Z+-]{0,20})?", fullmatch=True))
def test_no_spelling_is_read_in_two_ways(text: str) -> None:
    assert column_of(text, pa.string()) == json_of(text)
