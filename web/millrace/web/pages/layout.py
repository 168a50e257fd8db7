"""What all pages have in common: the frame, tables, facts, and the address that was asked for."""

import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, TypeVar

from millrace.client import AccessDeniedError, AuthenticationFailedError
from millrace.core.numbers import parse_whole_number
from millrace.core.words import duration, size
from millrace.runtime.page_messages import RefusedError
from millrace.web import markup
from millrace.web.clients import Cluster
from millrace.web.markup import Child, Markup, element, joined

PAGES: Final = {
    "/": "Cluster",
    "/brokers": "Brokers",
    "/topics": "Topics",
    "/groups": "Groups",
    "/transactions": "Transactions",
    "/quotas": "Quotas",
}
"""What the navigation shows, by path."""
TOKEN_PATH: Final = "/token"
"""Of the page that takes a visitor's token."""
REFRESH_S: Final = 5
"""How often a page is loaded again, if its reader wants that."""
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
Item = TypeVar("Item")
Answer = TypeVar("Answer")
INT64_MAX: Final = 2**63 - 1


@dataclass(slots=True, frozen=True)
class Visit:
    """A request for a page of a cluster."""

    cluster: Cluster
    path: str
    """Of a page that is there, so that links may lead to it; empty: there is none."""
    query: Mapping[str, str] = field(default_factory=dict)
    has_session: bool = False
    """Whether the page keeps a token of this visitor."""

    @property
    def prefix(self) -> str:
        """The beginning of all paths of this cluster's pages."""
        return f"/clusters/{self.cluster.name}" if self.cluster.name else ""

    def address(self, path: str, /, **query: str | int | None) -> str:
        """Return the address of another page of this cluster."""
        return markup.address(
            f"{self.prefix}{path}" if path != "/" else self.prefix or "/", **query
        )

    def link(self, text: Child, path: str, /, **query: str | int | None) -> Markup:
        """Return a link to another page of this cluster."""
        return element("a", text, href=self.address(path, **query))

    def again(self, /, **changes: str | int | None) -> str:
        """Return the address of this page with other values; None: without one."""
        return self.address(self.path, **(dict(self.query) | changes))

    def text(self, name: str) -> str:
        """Return a value of the address; empty: there is none."""
        return self.query.get(name, "")

    def part(self, items: Sequence[Item], page_size: int) -> tuple[int, Sequence[Item]]:
        """Return the part of a long list that is asked for, and the index of its first item."""
        first = min(self.number("first") or 0, max(len(items) - 1, 0))
        return first, items[first : first + page_size]

    def number(self, name: str, *, most: int = INT64_MAX) -> int | None:
        """Return a number of the address; None: there is none.

        Raises:
            RefusedError: it is no number from 0 to `most`.
        """
        words = self.text(name)
        if not words:
            return None
        number = parse_whole_number(words, most)
        if number is None:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST, f"{name} must be a number from 0 to {most:,}"
            )
        return number


@dataclass(slots=True, frozen=True)
class Page:
    """A page.

    Attributes:
        title: what it shows.
        content: the elements under the title.
        above: the page that leads here, as in the navigation.
        status: of the response.
    """

    title: str
    content: Child
    above: str = ""
    status: HTTPStatus = HTTPStatus.OK


@dataclass(slots=True, frozen=True)
class Column:
    """A column of a table."""

    name: str
    is_numeric: bool = False


def number(name: str) -> Column:
    """Return a column of figures."""
    return Column(name, is_numeric=True)


async def allowed(asked: Awaitable[Answer]) -> Answer | None:
    """Return an answer; None: the visitor may not have it, and the page has other things to show.

    Raises:
        AuthenticationFailedError: brokers do not know the visitor, so may show nothing.
    """
    try:
        return await asked
    except AuthenticationFailedError:
        raise
    except AccessDeniedError:
        return None


def left_out(what: str, needed: str = "the cluster") -> Markup:
    """Return what is said in the place of something that a visitor may not see."""
    return element("p", f"{what}: only for those who may describe {needed}.", class_="quiet")


UNKNOWN: Final = element("span", "–", class_="unknown", title="not known, or none")


def table(
    caption: str,
    columns: Sequence[Column | str],
    rows: Iterable[Sequence[Child]],
    empty: str,
    *,
    is_titled: bool = True,
) -> Markup:
    """Return a table that scrolls by itself where the screen is narrow.

    Args:
        columns: their names. One without any text in it is left out.
        rows: a cell for each column; None: unknown.
        empty: what to say where there are no rows.
        is_titled: its caption stands above it; else the title of the page says what it shows.
    """
    cells = [list(row) for row in rows]
    title = element("h2", caption) if is_titled else None
    if not cells:
        return joined(title, element("p", empty, class_="quiet"))
    filled = [i for i in range(len(columns)) if any(row[i] != "" for row in cells)]
    kinds = [column if isinstance(column, Column) else Column(column) for column in columns]
    head = [element("th", kinds[i].name, scope="col", class_=_class(kinds[i])) for i in filled]
    body = [
        element("tr", [element("td", _cell(row[i]), class_=_class(kinds[i])) for i in filled])
        for row in cells
    ]
    return joined(
        title,
        element(
            "div",
            element("table", element("thead", element("tr", head)), element("tbody", body)),
            class_="scroll",
            role="region",
            aria_label=caption,
            tabindex=0,
        ),
    )


def facts(*pairs: tuple[str, Child]) -> Markup:
    """Return a list of names with their values; None: unknown."""
    return element(
        "dl",
        [
            element("div", element("dt", name), element("dd", UNKNOWN if value is None else value))
            for name, value in pairs
        ],
    )


def pager(visit: Visit, first: int, shown: int, total: int, page_size: int) -> Markup | None:
    """Return links to other parts of a long list; None: all of it is shown."""
    if total <= page_size:
        return None
    links = []
    if first:
        before = max(first - page_size, 0)
        links.append(element("a", "previous", href=visit.again(first=before), rel="prev"))
    if first + shown < total:
        links.append(element("a", "next", href=visit.again(first=first + shown), rel="next"))
    where = f"{first + 1:,} to {first + shown:,} of {total:,} "
    return element("p", where, [[anchor, " "] for anchor in links], class_="pager")


def bytes_of(count: int | None) -> str | None:
    """Return a size for a person."""
    return None if count is None else size(count)


def time_of(timestamp_ms: int | None) -> str | None:
    """Return ms UTC as ISO 8601; a time that no calendar has stays a number."""
    if timestamp_ms is None or timestamp_ms < 0:
        return None
    try:
        time = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return time.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def age_of(milliseconds: int | None) -> str | None:
    """Return a length of time for a person."""
    return None if milliseconds is None else duration(milliseconds)


def write(page: Page, visit: Visit | None, now: datetime) -> bytes:
    """Return a page as bytes.

    Args:
        visit: how it was asked for; None: it is of no cluster.
    """
    refresh = visit is not None and visit.text("refresh") == str(REFRESH_S)
    head = joined(
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", http_equiv="refresh", content=REFRESH_S) if refresh else None,
        element("title", markup.visible(f"{page.title} · Millrace")),
        element("link", rel="stylesheet", href="/style.css"),
        element("link", rel="icon", href="/icon.svg", type="image/svg+xml"),
    )
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        element(
            "header",
            element("a", "Millrace", href="/", class_="brand"),
            element("span", visit.cluster.name, class_="cluster") if visit is not None else None,
            _navigation(page, visit) if visit is not None else None,
        ),
        element("main", element("h1", page.title), page.content, id="content"),
        element("footer", _footer(visit, now, is_refreshed=refresh), _forgetting(visit)),
    )
    return markup.document(head, body)


def _navigation(page: Page, visit: Visit) -> Markup:
    def item(path: str, name: str) -> Markup:
        current = "page" if path == visit.path else "true" if path == page.above else None
        return element("li", element("a", name, href=visit.address(path), aria_current=current))

    return element(
        "nav", element("ul", [item(path, name) for path, name in PAGES.items()]), aria_label="Pages"
    )


def _footer(visit: Visit | None, now: datetime, *, is_refreshed: bool) -> Markup:
    seen = now.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    switch: Child = None
    if visit is not None and visit.path:
        switch = (
            element("a", "Stop loading it again", href=visit.again(refresh=None))
            if is_refreshed
            else element(
                "a", f"Load it again every {REFRESH_S} s", href=visit.again(refresh=REFRESH_S)
            )
        )
    return element("p", f"Seen at {seen}. This page only shows; it changes nothing. ", switch)


def _forgetting(visit: Visit | None) -> Markup | None:
    """Return the button that ends a visit; None: no token is kept."""
    if visit is None or not visit.has_session:
        return None
    return element(
        "form",
        "It shows what your token may see.",
        element("button", "Forget my token", name="forget", value="yes"),
        action=visit.address(TOKEN_PATH),
        method="post",
    )


def prose(text: str) -> Markup:
    """Return a text of the documents, which are Markdown: code as code, links as their words."""
    words = _LINK.sub(r"\1", text)
    pieces = words.split("`")
    return joined(*(element("code", piece) if i % 2 else piece for i, piece in enumerate(pieces)))


def _cell(value: Child) -> Child:
    return UNKNOWN if value is None else value


def _class(column: Column) -> str | None:
    return "number" if column.is_numeric else None
