import time

import pytest

from millrace.cli.arguments.read_start import (
    AtOffset,
    AtTime,
    Beginning,
    End,
    Last,
    Position,
    parse_start,
    show_time,
)

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("words", "position"),
    [
        ("beginning", Beginning()),
        ("end", End()),
        ("0", AtOffset(0)),
        ("1200", AtOffset(1200)),
        ("-10", Last(10)),
        ("-0", Last(0)),
        ("1970-01-01T00:00:01Z", AtTime(1000)),
        ("1970-01-02", AtTime(86_400_000)),
        ("1970-01-01T00:00:01", AtTime(1000)),
        ("1970-01-01T01:00:00.5+01:00", AtTime(500)),
        ("30s", AtTime(NOW_MS - 30_000)),
        ("2h", AtTime(NOW_MS - 7_200_000)),
        ("7d", AtTime(NOW_MS - 7 * 86_400_000)),
    ],
)
def test_a_position_is_read_as_a_person_means_it(words: str, position: Position) -> None:
    assert parse_start(words, NOW_MS) == position


def test_a_time_without_a_zone_is_the_same_on_every_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert parse_start("1970-01-01T00:00:01", NOW_MS) == AtTime(1000)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "words",
    ["", "start", "1.5", "2w", "٣", "2013-31-01", str(2**63), "9" * 20 + "d", "10000-01-01"],
)
def test_what_is_no_position_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_start(words, NOW_MS)


def test_times_are_shown_in_utc_and_a_missing_time_is_none() -> None:
    assert show_time(1000) == "1970-01-01T00:00:01.000Z"
    assert show_time(-1) is None
    assert show_time(2**62) == str(2**62)
