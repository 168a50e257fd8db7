"""Figures, names and partitions in the words that people read, on a terminal and on a web page."""

from collections.abc import Iterable, Sequence

from millrace.core.topics import PartitionName


def size(count: float) -> str:
    """Write a number of bytes for a person."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def duration(milliseconds: int) -> str:
    """Write a length of time for a person."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    if minutes < 60:
        return f"{minutes} m {seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} m"
    days, hours = divmod(hours, 24)
    return f"{days:,} d {hours} h"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return `1 partition`, `2 partitions`.

    Args:
        number: how many there are.
        noun: the words after a 1.
        plural: those after any other number, as `batches`, or `files are` beside `file is`; empty:
            the noun with an `s`.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def shown(place: PartitionName) -> str:
    """Return `topic-partition`."""
    return f"{place[0]}-{place[1]}"


def listed(places: Iterable[PartitionName], most: int = 10) -> str:
    """Return places for a person, not more than `most` of them."""
    return some([shown(place) for place in places], most)


def some(names: Sequence[str], most: int = 5) -> str:
    """Return the first `most` names for a person, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
