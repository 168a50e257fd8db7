"""Whole numbers in texts from outside.

Python's `int` also takes digits of other scripts, signs, spaces and underscores, and a text of
millions of digits takes it minutes.
"""

from typing import Final

_DIGITS_MAX: Final = 30


def parse_whole_number(text: str, most: int) -> int | None:
    """Return a number from 0 to `most` that is written in the digits 0 to 9.

    None: the text is not such a number.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        return None
    number = int(text)
    return number if number <= most else None
