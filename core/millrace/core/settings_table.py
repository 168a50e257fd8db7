"""Tables of settings, for documents."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from millrace.core.settings import (
    NamedSetting,
    Visibility,
    allowed_text,
    default_text,
    settings_of,
)


def markdown_table(
    cls: type,
    columns: Mapping[str, Callable[[NamedSetting], str]] | None = None,
    *,
    separator: str = "_",
) -> str:
    """Return the settings of one class, sections left out, as a Markdown table.

    Args:
        cls: the class.
        columns: the content of each column, by its title; default: `COLUMNS`.
        separator: joins the words of a name.
    """
    columns = columns or COLUMNS
    rows = [list(columns), ["---"] * len(columns)]
    for named in settings_of(cls, separator=separator).values():
        rows.append([show(named) for show in columns.values()])
    return "\n".join(_row(row) for row in rows)


def _row(cells: Sequence[str]) -> str:
    return f"|{'|'.join(cells)}|" if set(cells) == {"---"} else f"| {' | '.join(cells)} |"


def _name_text(named: NamedSetting) -> str:
    return f"`{named.name}`" + "".join(f" (`{alias}`)" for alias in named.description.aliases)


def _change_text(named: NamedSetting) -> str:
    return "restart" if named.description.needs_restart else "at once"


def _meaning_text(named: NamedSetting) -> str:
    note = " *Tuning.*" if named.description.visibility is Visibility.TUNING else ""
    return named.description.documentation + note


COLUMNS: Final[Mapping[str, Callable[[NamedSetting], str]]] = {
    "name": _name_text,
    "default": default_text,
    "allowed": partial(allowed_text, brief=True),
    "change": _change_text,
    "meaning": _meaning_text,
}
"""The columns of a table of settings."""
