"""Where to begin and to end reading: `beginning`, `end`, an offset, the last records, or a time."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from millrace.core.isolation import ISOLATIONS, READ_COMMITTED


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first record that is still there."""


@dataclass(frozen=True, slots=True)
class End:
    """After the last record: only records from now on."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The record with this offset, in every partition that is read."""

    offset: int


@dataclass(frozen=True, slots=True)
class Last:
    """So many records before the end of each partition."""

    records: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of this time or later."""

    timestamp_ms: int


Position = Beginning | End | AtOffset | Last | AtTime

_AGO_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"(\d+)([smhd])", re.ASCII)
_NUMBER = re.compile(r"-?\d+", re.ASCII)
OFFSET_MAX = 2**63 - 1

FORMS = (
    "'beginning', 'end', an offset (1200), the last records (-10), a time (2013-01-31, "
    "2013-01-31T10:00, 2013-01-31T10:00+02:00; UTC without a zone), or how long ago (30s, 15m, "
    "2h, 7d)"
)

END_FORMS = "an offset, before the last records (-10), a time, or how long ago"


def parse_start(words: str, now_ms: int) -> Position:
    """Read a position.

    Args:
        now_ms: the time that `2h` counts back from, ms UTC.

    Raises:
        ValueError: none of the forms.
    """
    if words == "beginning":
        return Beginning()
    if words == "end":
        return End()
    if _NUMBER.fullmatch(words):
        number = int(words)
        if abs(number) > OFFSET_MAX:
            raise ValueError(f"{words} is larger than any offset")
        return AtOffset(number) if number >= 0 and words != "-0" else Last(-number)
    return AtTime(parse_time(words, now_ms))


def parse_time(words: str, now_ms: int) -> int:
    """Read a time as ms UTC: ISO 8601, UTC unless it names a zone, or how long ago.

    Raises:
        ValueError: neither.
    """
    from millrace.client.times import parse_time_ms

    if ago := _AGO.fullmatch(words):
        timestamp_ms = now_ms - int(ago[1]) * _AGO_MS[ago[2]]
        if timestamp_ms < -OFFSET_MAX:
            raise ValueError(f"{words} is longer ago than any record")
        return timestamp_ms
    return parse_time_ms(words)


def show_time(timestamp_ms: int | None) -> str | None:
    """Write ms UTC as ISO 8601, or None for a record without a time."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError):  # A producer may write any int64.
        return str(timestamp_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def position_value(
    context: click.Context, parameter: click.Parameter, words: str | None
) -> Position | None:
    """Read an option's position; click's callback."""
    if words is None:
        return None
    try:
        return parse_start(words, _now_ms())
    except ValueError as error:
        raise click.BadParameter(f"{words!r} is not a position: use {FORMS}") from error


def from_option(
    description: str = f"Where to begin: {FORMS}.",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--from` to a command that reads, as its argument `start`."""
    return click.option(
        "--from",
        "start",
        callback=position_value,
        default="beginning",
        show_default=True,
        metavar="POSITION",
        help=description,
    )


to_option = click.option(
    "--to",
    "until",
    callback=position_value,
    metavar="POSITION",
    help=f"Where to end, before that record: {END_FORMS}.  [default: what is there now]",
)
records_max_option = click.option(
    "--max", "records_max", type=click.IntRange(1), help="End after so many records."
)
isolation_option = click.option(
    "--isolation",
    type=click.Choice(ISOLATIONS),
    default=READ_COMMITTED,
    show_default=True,
    help="Which records count: those of committed transactions and of none, as far as no "
    "transaction is open; or also those of open and aborted ones.",
)
keys_option = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="TEXT",
    callback=lambda _, __, keys: [key.encode(errors="surrogateescape") for key in keys],
    help="Only records with this key; may be repeated.",
)


def time_value(context: click.Context, parameter: click.Parameter, words: str | None) -> int | None:
    """Read an option's time as ms UTC; click's callback."""
    if words is None:
        return None
    try:
        return parse_time(words, _now_ms())
    except ValueError as error:
        raise click.BadParameter(
            f"{words!r} is not a time: use 2013-01-31, 2013-01-31T10:00 (UTC without a zone), or "
            "how long ago: 2h"
        ) from error


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
