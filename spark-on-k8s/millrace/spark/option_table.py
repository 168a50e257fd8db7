"""A table of options: from it they are parsed, checked and documented.

Spark hands names over in lower case. An option that does not exist is refused with the nearest one
that does; one that has no place here, with the reason. All that is wrong is told at once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from millrace.spark.errors import InvalidOptionError
from millrace.spark.option import METADATA, Option, Use

_Table = TypeVar("_Table")

_SECRET: Final = re.compile(r"password|passwd|secret|token|jaas|credential|private.?key", re.I)

NO_BROKERS: Final = (
    "bootstrap.servers is missing: give host:port of a broker. With a table, Spark hands over what "
    "the query gives alone: SELECT * FROM t WITH ('bootstrap.servers'='...', 'subscribe'='...')"
)
"""What is wrong where no brokers are named."""


def options_of(table: type) -> Iterator[tuple[str, Option]]:
    """Return the options of a table, by the names of their fields."""
    for each in fields(table):
        known: Option = each.metadata[METADATA]
        yield each.name, known


def parse_table(
    table: type[_Table],
    given: Mapping[str, str],
    use: Use,
    refused: Mapping[str, str],
    contradictions: Callable[[_Table], Iterable[str]],
) -> _Table:
    """Return the options of a query.

    Args:
        table: a dataclass whose fields are declared with `option`.
        given: names, in any case, and texts.
        use: for what they are given.
        refused: options that have no place here, and why.
        contradictions: says what is wrong with them together.

    Raises:
        InvalidOptionError: one is unknown, malformed, or contradicts another. Says all that is
            wrong.
    """
    names = {
        name.lower(): (attribute, known)
        for attribute, known in options_of(table)
        for name in (known.name, *known.aliases)
    }
    problems: list[str] = []
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for name, text in given.items():
        found = names.get(name.lower())
        if found is None:
            problems.append(_refusal(name, names, refused))
            continue
        attribute, known = found
        if not known.use & use:
            kind = "stream" if use is Use.STREAM else "batch"
            problems.append(f"{known.name} has no meaning in a {kind}: leave it out")
        elif attribute in spelled:
            problems.append(f"{name} and {spelled[attribute]} are the same: give one of them")
        else:
            spelled[attribute] = name
            try:
                values[attribute] = known.parse(text)
            except ValueError as error:
                problems.append(f"{known.name}={text!r}: {error}")
    if not problems:
        problems = list(contradictions(table(**values)))
    if problems:
        raise InvalidOptionError("; ".join(problems))
    return table(**values)


def _refusal(name: str, names: Mapping[str, tuple[str, Option]], refused: Mapping[str, str]) -> str:
    bare = re.sub(r"^kafka\.", "", name, flags=re.I).lower()
    for each, why in refused.items():
        if each.lower() == bare:
            return f"{each} is not an option: {why}"
    if _SECRET.search(name):  # Its value is never shown.
        return (
            f"{name} is refused: options are shown in plans and logs, so secrets must not be in "
            "them"
        )
    spelled = {key: each.name for key, (_, each) in names.items()}
    near = get_close_matches(name.lower(), spelled, n=1, cutoff=0.6)
    meant = f": did you mean {spelled[near[0]]}?" if near else ": see docs/spark-options.md"
    return f"there is no option {name}{meant}"


def markdown_table(table: type) -> str:
    """Return the options as a table."""
    rows = ["| option | default | for | meaning |", "|---|---|---|---|"]
    kinds = {Use.READ: "batch, stream", Use.BATCH: "batch", Use.STREAM: "stream"}
    for _, each in options_of(table):
        aliases = "".join(f" (`{alias}`)" for alias in each.aliases)
        rows.append(
            f"| `{each.name}`{aliases} | {each.default} | {kinds[each.use]} | {each.meaning} |"
        )
    return "\n".join(rows)


def markdown_refused(refused: Mapping[str, str]) -> str:
    """Return the options that are refused as a table."""
    return "\n".join(
        [
            "| option | why |",
            "|---|---|",
            *(f"| `{name}` | {why} |" for name, why in refused.items()),
        ]
    )
