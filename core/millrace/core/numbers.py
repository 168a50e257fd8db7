"""Whole numbers in texts from outside.

Python's `int` also takes digits of other scripts, signs, spaces and underscores, and a text of
millions of digits takes it minutes.
"""

from typing import Final

_DIGITS_MAX: Final = 30


def parse_whole_number(text: str, most: int) -> int | None:
    """Return the number from 0 to `most` that the digits 0 to 9 name; None: the text is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        return None
    number = int(text)
    return number if number <= most else None
