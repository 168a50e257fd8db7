"""Times as people write them: ISO 8601, and UTC unless they name a zone.

The command line, the web page and Spark's options read times alike. Python's `datetime` is not for
the core, as it has a clock.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> datetime:
    """Read a time.

    Raises:
        ValueError: the text is not a time.
    """
    if not text.isascii():  # Python takes any character between the day and the hour.
        raise ValueError(f"{text!r} is no time of ISO 8601")
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def parse_time_ms(text: str) -> int:
    """Read a time as ms UTC; a fraction of a millisecond is cut off.

    Raises:
        ValueError: the text is not a time.
    """
    return (parse_time(text) - _EPOCH) // timedelta(milliseconds=1)
