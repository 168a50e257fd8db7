"""What callers name: partitions, and the ends of their logs; checked where they come in."""

from typing import Final, Literal

from millrace.client._wire import Place
from millrace.core.errors import InvalidRequestError

LogEnd = Literal["beginning", "earliest", "end", "latest"]
"""Where a log begins or ends; each has Kafka's name as well."""

_ENDS: Final[dict[object, Literal["beginning", "end"]]] = {
    "beginning": "beginning",
    "earliest": "beginning",
    "end": "end",
    "latest": "end",
}


def log_end(named: object) -> Literal["beginning", "end"] | None:
    """Return which end of a log is meant; None: it is none of their names."""
    return _ENDS.get(named) if isinstance(named, str) else None


def is_number(given: object) -> bool:
    """Return whether it is a whole number, as offsets and times are; a truth value is none."""
    return isinstance(given, int) and not isinstance(given, bool)


def checked_place(given: object) -> Place:
    """Return a partition as it was named.

    Raises:
        InvalidRequestError: it is not a topic's name and a number.
    """
    match given:
        case (str() as topic, int() as number) if is_number(number):
            return topic, number
    raise InvalidRequestError(
        f'{given!r} is no partition: give the topic and the number, as ("orders", 0)'
    )
