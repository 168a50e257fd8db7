"""Options of Spark, in addition to other settings: names in any case, each for batches or for
streams, and some names are refused with a reason.

Spark passes names in lower case. An unknown option is refused with the nearest known one; one that
is not supported here, with the reason. All problems are reported at once.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

from millrace.core import settings, settings_table
from millrace.core.errors import InvalidConfigError
from millrace.core.problems import nearest, unknown_names
from millrace.core.settings import NamedSetting
from millrace.spark.errors import InvalidOptionError
from millrace.spark.options.option import Use

_Table = TypeVar("_Table")
Why: TypeAlias = str | Mapping[Use, str]
"""Why an option is refused, and what to do: one text, or one for each kind of query."""
Said: TypeAlias = Callable[[str], str]
"""Returns an option as text, by its attribute in the table."""

_SECRET: Final = re.compile(r"password|passwd|secret|token|jaas|credential|private.?key", re.I)

NO_BROKERS: Final = (
    "bootstrap.servers is missing: give host:port of a broker. With a table, Spark hands over what "
    "the query gives alone: SELECT * FROM t WITH ('bootstrap.servers'='...', 'subscribe'='...')"
)
"""The error when no brokers are named."""


def parse_table(
    table: type[_Table],
    given: Mapping[str, str],
    use: Use,
    refused: Mapping[str, Why],
    contradictions: Callable[[_Table, Said], Iterable[str]],
) -> _Table:
    """Return the options of a query.

    Args:
        given: names, in any case, and texts.
        refused: options that are not supported here, and why; a query is told the advice of its
            kind alone.
        contradictions: returns the problems of options together. Its second argument says an
            option in the words of the query: under the name that it was given, or as a default.

    Raises:
        InvalidOptionError: one is unknown, malformed, or contradicts another. Lists all problems.
    """
    names = {
        name.lower(): (name, setting)
        for setting in settings.settings_of(table).values()
        for name in (setting.name, *setting.description.aliases)
    }
    problems: list[str] = []
    values: dict[str, str] = {}
    said: dict[str, str] = {}
    for name, text in given.items():
        found = names.get(name.lower())
        if found is None:
            problems.append(_refusal(name, names, refused, use))
        elif not _use(found[1]) & use:
            problems.append(_meaningless(found[1], use))
        else:
            values[found[0]] = text
            said[found[1].attribute] = f"{found[0]}={text}"
    try:
        options = settings.parse(table, values)
    except InvalidConfigError as error:
        problems += error.message.splitlines()
    else:
        for setting in settings.settings_of(table).values():
            said.setdefault(
                setting.attribute, f"{setting.name}, by default {settings.default_text(setting)},"
            )
        problems = problems or list(contradictions(options, said.__getitem__))
    if problems:
        raise InvalidOptionError("; ".join(problems))
    return options


def _use(setting: NamedSetting) -> Use:
    use = setting.description.scope or Use.READ
    assert isinstance(use, Use)
    return use


def _refusal(
    name: str,
    known: Mapping[str, tuple[str, NamedSetting]],
    refused: Mapping[str, Why],
    use: Use,
) -> str:
    bare = re.sub(r"^kafka\.", "", name, flags=re.I).lower()
    for option, why in refused.items():
        if option.lower() == bare:
            return f"{option} is not an option: {why if isinstance(why, str) else why[use]}"
    if _SECRET.search(name):  # Its value is never shown.
        return (
            f"{name} is refused: options are shown in plans and logs, so secrets must not be in "
            "them"
        )
    (problem,) = unknown_names(
        [name.lower()],
        {key: setting.name for key, (_, setting) in known.items()},
        docs="docs/spark-options.md",
    )
    near = nearest(name.lower(), known)
    if near is not None and not _use(known[near][1]) & use:
        return f"{name.lower()}: there is no such setting, and {_meaningless(known[near][1], use)}"
    return problem


def _meaningless(setting: NamedSetting, use: Use) -> str:
    return f"{setting.name} has no meaning in a {_KINDS[use]}: leave it out"


_KINDS: Final = {Use.READ: "batch, stream", Use.BATCH: "batch", Use.STREAM: "stream"}
_COLUMNS: Final[Mapping[str, Callable[[NamedSetting], str]]] = {
    "option": settings_table.COLUMNS["name"],
    "default": settings_table.COLUMNS["default"],
    "allowed": settings_table.COLUMNS["allowed"],
    "for": lambda setting: _KINDS[_use(setting)],
    "meaning": settings_table.COLUMNS["meaning"],
}


def markdown_table(table: type) -> str:
    """Return the options as a table."""
    return settings_table.markdown_table(table, _COLUMNS)


def markdown_refused(refused: Mapping[str, Why]) -> str:
    """Return the options that are refused as a table."""
    return "\n".join(
        [
            "| option | why |",
            "|---|---|",
            *(f"| `{name}` | {_why_text(why)} |" for name, why in refused.items()),
        ]
    )


def _why_text(why: Why) -> str:
    if isinstance(why, str):
        return why
    return "; ".join(f"in a {_KINDS[use]}: {text}" for use, text in why.items())
