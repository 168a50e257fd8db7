"""Where to begin reading: `beginning`, `end`, an offset, the last records, or a time."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first record that is still there."""


@dataclass(frozen=True, slots=True)
class End:
    """Behind the last record: only what comes from now on."""


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
    "2013-01-31T10:00, 2013-01-31T10:00Z), or how long ago (30s, 15m, 2h, 7d)"
)


def parse_position(words: str, now_ms: int) -> Position:
    """Read a position.

    Args:
        words: what the user wrote.
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
    """Read a time as ms UTC: ISO 8601 (local time unless it says otherwise), or how long ago.

    Raises:
        ValueError: neither.
    """
    if ago := _AGO.fullmatch(words):
        return now_ms - int(ago[1]) * _AGO_MS[ago[2]]
    time = datetime.fromisoformat(words)
    # `timestamp()` takes a time without zone as the user's own, which is what a person means.
    return round(time.timestamp() * 1000)


def show_time(timestamp_ms: int | None) -> str | None:
    """Write ms UTC as ISO 8601, or None for a record without a time."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError):  # A producer may write any int64.
        return str(timestamp_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class PositionType(click.ParamType):
    """A position on the command line."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        if not isinstance(value, str):
            position: Position = value
            return position
        try:
            return parse_position(value, _now_ms())
        except ValueError:
            self.fail(f"{value!r} is not a position: use {FORMS}", param, ctx)


class TimeType(click.ParamType):
    """A time on the command line, as ms UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_time(value, _now_ms())
        except ValueError:
            self.fail(
                f"{value!r} is not a time: use 2013-01-31, 2013-01-31T10:00Z, or how long ago: 2h",
                param,
                ctx,
            )


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
