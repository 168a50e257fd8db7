"""What callers name: partitions, the ends of their logs, counts; checked where they come in."""

from collections.abc import Mapping
from typing import Final, Literal, TypeVar

import numpy as np

from millrace.core.errors import BrokerIdNotRegisteredError, InvalidRequestError, MillraceError
from millrace.core.ids import Offset
from millrace.core.settings import INT64_MAX
from millrace.core.topics import PartitionName

LogEnd = Literal["beginning", "earliest", "end", "latest"]
"""Names of a log's beginning and end, with Kafka's names."""

Meaning = TypeVar("Meaning")

_WHOLE: Final = (int, np.integer)
"""Made once, as each `send` may check several numbers."""
_COUNT_MAX: Final = 2**31 - 1
_ENDS: Final[dict[object, Literal["beginning", "end"]]] = {
    "beginning": "beginning",
    "earliest": "beginning",
    "end": "end",
    "latest": "end",
}


def log_end(named: object) -> Literal["beginning", "end"] | None:
    """Return the end of a log that is named; None: no end has this name."""
    return _ENDS.get(named) if isinstance(named, str) else None


def whole_number(given: object) -> int | None:
    """Return a whole number of 64 bits, as offsets and times are, numpy's as Python's own.

    Returns:
        None if the value is anything else, also a truth value.
    """
    if isinstance(given, _WHOLE) and not isinstance(given, bool):
        number = int(given)
        return number if -INT64_MAX <= number <= INT64_MAX else None
    return None


def checked_place(given: object) -> PartitionName:
    """Return a partition as it was named.

    Raises:
        InvalidRequestError: it is not a topic's name and a number.
    """
    match given:
        case (str() as topic, named):
            number = whole_number(named)
            if number is not None and number <= _COUNT_MAX:
                return topic, number
    raise InvalidRequestError(
        f'{given!r} is no partition: give the topic and the number, as ("orders", 0)'
    )


def checked_count(given: object, what: str, error: type[MillraceError]) -> int:
    """Return how many of something there are to be; 0: as many as the cluster's default says.

    Args:
        given: a number from 1 on; None: the default.
        what: of which, in the plural.
        error: what to raise if it is no such number.
    """
    if given is None:
        return 0
    number = whole_number(given)
    if number is not None and 1 <= number <= _COUNT_MAX:
        return number
    raise error(f"{given!r} {what}: give a number from 1 to {_COUNT_MAX}, or None for the default")


def checked_offset(given: object, place: object) -> Offset:
    """Return an offset as it was given.

    Raises:
        InvalidRequestError: the value is not an offset.
    """
    number = whole_number(given)
    if number is None or number < 0:
        raise InvalidRequestError(f"{given!r} of {place!r} is no offset: give 0 or more")
    return Offset(number)


def checked_broker(given: object) -> int:
    """Return a broker's number.

    Raises:
        BrokerIdNotRegisteredError: it is none, so no broker has it.
    """
    number = whole_number(given)
    if number is not None and 0 <= number <= _COUNT_MAX:
        return number
    raise BrokerIdNotRegisteredError(f"there is no broker {given!r}")


def checked_word(given: object, meanings: Mapping[str, Meaning], what: str) -> Meaning:
    """Return what a word means.

    Args:
        given: one of the words.
        meanings: the meaning of each word.
        what: the kind of thing that the words name, in the singular, for the message.

    Raises:
        InvalidRequestError: it is none of the words.
    """
    if isinstance(given, str) and given in meanings:
        return meanings[given]
    raise InvalidRequestError(f"{given!r} is no {what}: give {' or '.join(map(repr, meanings))}")
