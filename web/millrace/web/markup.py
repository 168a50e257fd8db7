"""HTML, written so that text from strangers stays text.

There are no templates: `element` alone writes tags, and everything that is not `Markup` is escaped.
Characters that are not seen, or that change how others are shown, are made visible: control
characters and terminal escapes, marks of direction ("Trojan Source", CVE-2021-42574), spaces
without a width, halves of pairs. So a name or a record cannot pretend to be another one.
"""

import re
from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias
from urllib.parse import urlencode

_HIDDEN: Final = re.compile(
    # Tabs and line ends are text.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    "\U000e0000-\U000e0fff]"
)
_LONGER: Final = re.compile(f"[&<>\"']|{_HIDDEN.pattern}")
"""Characters that are written with several."""
_VOID: Final = frozenset({"input", "link", "meta"})


class Markup(str):
    """HTML that is complete and safe: only this module makes it."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | int | Iterable[Child] | None"
"""What an element holds; None: nothing."""


def element(tag: str, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """Return an element.

    Args:
        children: texts, which are escaped, and other elements.
        attributes: by their names; `_` stands for `-`, and one at the end is dropped, as in
            `class_`. True: without a value; None or False: not there.
    """
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{escape(visible(str(value)))}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(*children)}</{tag}>")


def joined(*children: Child) -> Markup:
    """Return children one after another."""
    return Markup("".join(map(_written, children)))


def document(head: Markup, body: Markup) -> bytes:
    """Return a whole page."""
    page = element("html", element("head", head), body, lang="en")
    return f"<!DOCTYPE html>\n{page}\n".encode()


def link(text: Child, path: str, /, **query: str | int | None) -> Markup:
    """Return a link to another page of this site."""
    return element("a", text, href=address(path, **query))


def address(path: str, /, **query: str | int | None) -> str:
    """Return the address of a page of this site; None: that name is not in it."""
    assert path.startswith("/")
    given = {name: value for name, value in query.items() if value is not None}
    # Half of a surrogate pair cannot be written in an address, and nothing has such a name.
    encoded = urlencode(given, errors="replace")
    return f"{path}?{encoded}" if encoded else path


def visible(text: str) -> str:
    """Return text with marks in the place of characters that are not seen."""
    return _HIDDEN.sub(lambda found: _mark(found[0]), text)


def begin(text: str, written_max: int) -> str:
    """Return as much of a text as takes so many characters when it is written.

    A character that is not seen takes dozens of them, so the length of a text bounds no page.
    """
    room = written_max  # Where the text has to end, by what its characters so far take.
    for found in _LONGER.finditer(text):
        left = room - len(_written(found[0])) + 1
        if found.end() > left:
            return text[: min(found.start(), room)]
        room = left
    return text[:room]


def _written(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, int):
        return f"{child:,}"
    if isinstance(child, str):
        return _HIDDEN.sub(
            lambda found: f'<span class="mark">{_mark(found[0])}</span>', escape(child)
        )
    return "".join(map(_written, child))


def _mark(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{{{number:x}}}"
