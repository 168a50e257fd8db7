"""Whole numbers in texts."""

import pytest

from millrace.core.numbers import parse_whole_number


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("65535", 65_535), ("0" * 20 + "7", 7)])
def test_digits_are_a_number(text: str, number: int) -> None:
    assert parse_whole_number(text, 65_535) == number


@pytest.mark.parametrize(
    "text",
    ["", "65536", "-1", "+1", " 1", "1_0", "1.0", "\N{ARABIC-INDIC DIGIT THREE}", "²", "1" * 5000],
)
def test_anything_else_is_none(text: str) -> None:
    assert parse_whole_number(text, 65_535) is None
