"""Writes `docs/events.md`: every event that a part of Millrace logs."""

import inspect
from types import ModuleType
from typing import Final

from millrace.broker import events as broker
from millrace.client import events as client
from millrace.core.events import FIELDS, Event
from millrace.operator import events as operator
from millrace.spark import events as spark
from millrace.web import events as web

PARTS: Final = {
    "Brokers": broker,
    "The operator": operator,
    "The Python client": client,
    "The web page": web,
    "Spark's source and sink": spark,
}

_INTRODUCTION: Final = """\
# Events

This page is generated from the code by `make docs`.

Everything that Millrace logs is an event with a name that does not change. Search and alert by the
name: the text may be improved.

On a terminal the name is after the text. Elsewhere brokers and operator write a JSON object a
line ([`[logging]`](configuration.md#logging)):

| key | what |
|---|---|
| `event` | the event's name; lines of libraries have none |
| `message` | its text |
| `level` | `debug`, `info`, `warning`, `error` or `critical` |
| `timestamp` | in UTC |
| `logger` | the module; `millrace.audit` in [the audit log](clusters.md#the-audit-log) |
| `cluster` | in the operator: the Cluster it is about |
| `exception` | a trace, if there is one |
| `left_out` | lines of the same event that were left out before this one: `logging.repeats_max` |

The other keys are the event's [fields](#fields). The Python client and Spark's source and sink log
by Python's `logging`, under `millrace.client` and `millrace.spark`: there the name is the
attribute `event_name` of the `LogRecord`, and the fields are attributes, too.

    grep '"event": "unclean_election"' broker.log
"""
_COLUMNS: Final = """\
| name | level | text | what it means | what to do | fields |
|---|---|---|---|---|---|
"""
_FIELDS: Final = """\
## Fields

A field means the same in all events.

| name | meaning |
|---|---|
"""


def declared(part: ModuleType) -> dict[str, Event]:
    """Return the events of a part, by the names of the constants."""
    return {
        name: member
        for name, member in inspect.getmembers_static(part)
        if isinstance(member, Event)
    }


def explained() -> list[tuple[str, str]]:
    """Return each field with its meaning: those of several parts, and those of one part only."""
    of_parts = (getattr(part, "FIELDS", {}) for part in PARTS.values())
    return [row for fields in (FIELDS, *of_parts) for row in fields.items()]


def events() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for title, part in PARTS.items():
        rows = sorted(map(_row, declared(part).values()))
        parts.append(f"## {title}\n\n{_COLUMNS}{''.join(rows)}")
    fields = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in sorted(explained()))
    return "\n".join(parts) + "\n" + _FIELDS + fields


def _row(event: Event) -> str:
    fields = ", ".join(f"`{field}`" for field in event.fields)
    text = event.text.replace("%(", "{").replace(")s", "}").replace(")d", "}").replace(")r", "}")
    return (
        f"| `{event.name}` | {event.level.name.lower()} | {text} | {event.meaning} | "
        f"{event.action} | {fields} |\n"
    )
