"""How `millrace top` looks: lines for a terminal of some size, or for a pipe.

What is wrong comes first and is never cut off by what is well. The tables share the lines that are
left, and say how many rows they leave out.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.cli.console.output import Row, table_lines
from millrace.cli.groups.group_lag import LAG_COLUMNS, lag_cells
from millrace.cli.top.summary import BrokerRow, Rates, Summary, TopicRow
from millrace.core.words import count, size

if TYPE_CHECKING:
    from rich.text import Text

_ROWS_MIN: Final = 3
"""Lines that each table gets as long as there is any room: its names and two rows."""
_HEALTHY: Final = "healthy: every partition is led, and all its replicas are in sync"
_RATE_COLUMNS: Final = ("RECORDS/S", "IN/S", "OUT/S")
_BROKERS: Final = ("BROKER", "NAME", "ZONE", "STATE", "LEADS", "REPLICAS", *_RATE_COLUMNS, "LOGS")
_TOPICS: Final = ("TOPIC", "PARTITIONS", "REPLICAS", *_RATE_COLUMNS, "SIZE", "PROBLEM")
_GROUPS: Final = ("GROUP", "KIND", "STATE", "MEMBERS", *LAG_COLUMNS)
_LEFT_OUT_FIRST: Final = (
    *("ZONE", "KIND", "REPLICAS", "PARTITIONS", "MEMBERS", "RECORDS/S", "LOGS", "SIZE"),
    *("LEADS", "NAME", "OUT/S", "BYTES"),
)
"""Columns that a narrow terminal does without, in this order."""


@dataclass(slots=True, frozen=True)
class Line:
    """A line, and its style by rich's names; empty: plain."""

    text: str
    style: str = ""


def lines_of(summary: Summary, width: int | None = None, height: int | None = None) -> list[Line]:
    """Return the lines of a summary.

    Args:
        width: characters that a line may have; None: any number.
        height: lines that there may be; None: any number.
    """
    lines = [*_head(summary, width), *_problems(summary, width)]
    tables = [
        _table(_BROKERS, [_broker(broker) for broker in summary.brokers], width),
        _table(_TOPICS, [_topic(topic) for topic in summary.topics], width)
        if summary.topics
        else ["no topics yet: `millrace topic create NAME` makes one"],
        *_groups(summary, width),
    ]
    for table in _fitted(tables, None if height is None else height - len(lines)):
        lines += [Line(""), Line(table[0], "bold"), *map(_row, table[1:])]
    return lines if height is None else lines[:height]


def screen(lines: Sequence[Line], footer: Line, height: int) -> "Text":
    """Return lines as one text for rich, with a last line at the bottom of the terminal."""
    from rich.text import Text

    shown = list(lines[: height - 1])
    shown += [Line("")] * (height - 1 - len(shown))
    text = Text(no_wrap=True, overflow="ellipsis")
    for line in shown:
        text.append(f"{line.text}\n", line.style)
    return text.append(footer.text, footer.style)


def _head(summary: Summary, width: int | None) -> list[Line]:
    alive = sum(broker.state not in ("fenced", "unreachable") for broker in summary.brokers)
    partitions = sum(topic.partitions for topic in summary.topics)
    facts = [
        f"cluster {summary.cluster_id}",
        f"{alive} of {count(len(summary.brokers), 'broker')} up",
        count(len(summary.topics), "topic"),
        count(partitions, "partition"),
    ]
    return [Line(_cut(", ".join(facts), width), "bold")]


def _problems(summary: Summary, width: int | None) -> list[Line]:
    if summary.is_healthy and not summary.problems:
        return [Line(line, "green") for line in _wrapped(_HEALTHY, width)]
    style = "yellow" if summary.is_healthy else "bold red"
    lines = [Line(line, style) for text in summary.problems for line in _wrapped(text, width)]
    return lines + [Line(line) for text in summary.advice for line in _wrapped(text, width, "  ")]


def _wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    if width is None:
        return [indent + text]
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def _groups(summary: Summary, width: int | None) -> list[list[str]]:
    if summary.groups is None:
        return [["groups: unknown, their coordinators do not answer"]]
    if not summary.groups:
        return []
    rows = [
        [group.name, group.kind, group.state or None, group.members, *lag_cells(group.lag)]
        for group in summary.groups
    ]
    lines = _table(_GROUPS, rows, width)
    if summary.groups_left_out:
        left_out = count(summary.groups_left_out, "group was", "groups were")
        lines.append(f"... {left_out} not asked for")
    return [lines]


def _broker(broker: BrokerRow) -> Row:
    return [
        broker.broker_id,
        broker.name,
        broker.zone or None,
        broker.state + (", controller" if broker.is_controller else ""),
        broker.leads,
        broker.replicas,
        *_rate_cells(broker.rates),
        None if broker.size_bytes is None else size(broker.size_bytes),
    ]


def _topic(topic: TopicRow) -> Row:
    return [
        topic.name,
        topic.partitions,
        topic.replication_factor,
        *_rate_cells(topic.rates),
        size(topic.size_bytes),
        topic.problem or None,
    ]


def _rate_cells(rates: Rates) -> list[object]:
    return [
        None if rates.records is None else round(rates.records),
        *(
            None if rate is None else size(rate)
            for rate in (rates.appended_bytes, rates.fetched_bytes)
        ),
    ]


def _row(text: str) -> Line:
    return Line(text, "red" if _is_bad(text) else "")


def _is_bad(row: str) -> bool:
    return any(f" {word}" in row for word in ("unreachable", "fenced", "offline", "under min ISR"))


def _table(columns: Sequence[str], rows: Sequence[Row], width: int | None) -> list[str]:
    """Return the lines of a table, a line for each row: what does not fit is left out."""
    shown = list(range(len(columns)))
    if width is not None:
        shown = [i for i in shown if any(row[i] is not None for row in rows)]
    left_out = [columns.index(name) for name in _LEFT_OUT_FIRST if name in columns]
    while True:
        lines = table_lines(
            [columns[i] for i in shown], [[row[i] for i in shown] for row in rows], None
        )
        if width is None or max(map(len, lines)) <= width:
            return lines
        found = next((i for i in left_out if i in shown), None)
        if found is None:
            return [_cut(line, width) for line in lines]
        shown.remove(found)


def _cut(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else text[: width - 1] + "…"


def _fitted(tables: Sequence[list[str]], room: int | None) -> list[list[str]]:
    """Return tables that fit into so many lines, a blank one before each.

    Each gets a few lines at first; then the upper ones get what they want.
    """
    if room is None:
        return list(tables)
    left = room - len(tables)
    given = []
    for table in tables:
        given.append(max(min(len(table), _ROWS_MIN, left), 0))
        left -= given[-1]
    for i, table in enumerate(tables):
        more = min(len(table) - given[i], left)
        given[i] += more
        left -= more
    return [_shortened(table, lines) for table, lines in zip(tables, given, strict=True) if lines]


def _shortened(table: list[str], lines: int) -> list[str]:
    if len(table) <= lines:
        return table
    return [*table[: lines - 1], f"... {len(table) - lines + 1:,} more"]
