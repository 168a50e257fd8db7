"""The records of a partition: from an offset or a time on, or those with a key; and one of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

from millrace.client import Admin, OffsetAndTimestamp
from millrace.client.times import parse_time_ms
from millrace.core.ids import PARTITION_MAX
from millrace.core.topics import PartitionName
from millrace.core.words import count
from millrace.runtime.page_messages import RefusedError
from millrace.web import markup, values
from millrace.web.markup import Child, Markup, element, joined
from millrace.web.pages.layout import Page, Visit, bytes_of, facts, number, table, time_of
from millrace.web.reading import RECORDS_MAX, Found, Part, Row, read

_KEY_FORMS: Final = ("text", "hex")
_HEADER_WRITTEN_MAX: Final = 1_000
"""Characters that the name or the value of a header may take in a page."""


@dataclass(slots=True, frozen=True)
class _Place:
    """A partition, with the offsets that it has now."""

    topic: str
    partition: int
    partitions: int
    start: int
    end: int

    @property
    def name(self) -> PartitionName:
        return self.topic, self.partition


async def page(visit: Visit) -> Page:
    """Return the page of some records of a partition."""
    key, form = _key(visit), _form(visit)
    place = await _place(visit, key)
    wanted = await _start(visit, place)
    if wanted is None:
        wanted = place.start if key is not None else place.end - RECORDS_MAX
    start = min(max(wanted, place.start), place.end)
    if start < place.end:
        found = await read(visit.cluster, place.name, start, place.end, key=key)
    else:
        found = Found((), place.end, 0)
    pager = _pager(visit, place, found, start, is_search=key is not None)
    return Page(
        f"Records of {place.topic}",
        [
            _controls(visit, place),
            _explained(place, found, wanted, start, is_search=key is not None),
            pager,
            _table(visit, place, found, form),
            pager if found.rows else None,
        ],
        above="/topics",
    )


async def record(visit: Visit) -> Page:
    """Return the page of one record.

    Raises:
        RefusedError: there is no such record.
    """
    form, offset = _form(visit), visit.number("offset")
    place = await _place(visit, None)
    if offset is None or not place.start <= offset < place.end:
        raise RefusedError(
            HTTPStatus.NOT_FOUND,
            f"{place.topic}-{place.partition} has the offsets {place.start:,} to {place.end - 1:,}"
            if place.start < place.end
            else f"{place.topic}-{place.partition} has no records",
        )
    found = await read(
        visit.cluster,
        place.name,
        offset,
        place.end,
        records_max=1,
        part_bytes=values.JSON_BYTES_MAX,
    )
    at: dict[str, str | int | None] = {"topic": place.topic, "partition": place.partition}
    if not found.rows or found.rows[0].offset != offset:
        return _missing(visit, at, offset, found)
    (row,) = found.rows
    return Page(
        f"Record {offset} of {place.topic}-{place.partition}",
        [
            element(
                "p",
                visit.link("Records from here on", "/records", **at, offset=offset),
                " ",
                visit.link("previous", "/record", **at, offset=offset - 1)
                if offset > place.start
                else None,
                " ",
                visit.link("next", "/record", **at, offset=offset + 1)
                if offset + 1 < place.end
                else None,
                class_="pager",
            ),
            facts(
                ("Topic", visit.link(place.topic, "/topic", name=place.topic)),
                ("Partition", place.partition),
                ("Offset", row.offset),
                ("Time (UTC)", time_of(row.timestamp)),
                ("Key", _size(row.key)),
                ("Value", _size(row.value)),
            ),
            element("p", "Show it as ", _forms(visit, form), class_="pager"),
            _part("Key", row.key, form),
            _part("Value", row.value, form),
            _headers(row),
        ],
        above="/topics",
    )


def _missing(visit: Visit, at: Mapping[str, str | int | None], offset: int, found: Found) -> Page:
    """Return the page of an offset without a record, with the way to the next one."""
    why = f"There is no record with the offset {offset:,}: compaction has removed it."
    following = [
        [" ", visit.link(f"The next one is {row.offset:,}", "/record", **at, offset=row.offset)]
        for row in found.rows
    ]
    return Page(
        "Not found",
        [
            element("p", why, following, class_="warning"),
            element(
                "p",
                visit.link(
                    "Records before it", "/records", **at, offset=max(offset - RECORDS_MAX, 0)
                ),
            ),
        ],
        above="/topics",
        status=HTTPStatus.NOT_FOUND,
    )


def _key(visit: Visit) -> bytes | None:
    """Return the key to look for; None: no certain one.

    Raises:
        RefusedError: it is not in hexadecimal, though it says so.
    """
    words = visit.text("key")
    if not words:
        return None
    if _choice(visit, "keyform", _KEY_FORMS) != "hex":
        return words.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(words)
    except ValueError as error:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, f"{words!r} is no key in hexadecimal: write 00 ff 17"
        ) from error


def _form(visit: Visit) -> values.Form | None:
    return cast("values.Form | None", _choice(visit, "form", values.FORMS) or None)


def _choice(visit: Visit, name: str, choices: tuple[str, ...]) -> str:
    chosen = visit.text(name)
    if chosen and chosen not in choices:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name} must be one of: {', '.join(choices)}")
    return chosen


async def _place(visit: Visit, key: bytes | None) -> _Place:
    """Return the partition that is meant: the one of the key, if only that is given.

    Raises:
        RefusedError: there is no such partition, or it has no leader.
        UnknownTopicOrPartitionError: there is no such topic.
    """
    admin, topic = visit.cluster.admin, visit.text("topic")
    (found,) = (await admin.describe_topics([topic])).values()
    partitions = len(found.partitions)
    partition = visit.number("partition", most=PARTITION_MAX)
    if partition is None:
        partition = 0 if key is None else _partition_of(key, partitions)
    if partition >= partitions:
        raise RefusedError(
            HTTPStatus.NOT_FOUND,
            f"{found.name} has {count(partitions, 'partition')}, counted from 0",
        )
    if found.partitions[partition].leader < 0:
        raise RefusedError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{found.name}-{partition} has no leader, so it cannot be read at present: `millrace "
            "cluster health` says what to do",
        )
    name = (found.name, partition)
    start = await _offset(admin, name, "beginning")
    end = await _offset(admin, name, "end")
    return _Place(found.name, partition, partitions, start, end)


def _partition_of(key: bytes, partitions: int) -> int:
    """Return the partition to which producers send a key by default."""
    from millrace.core.client.producer.murmur2 import partition_of

    return partition_of(key, partitions)


async def _offset(admin: Admin, place: PartitionName, at: str | int) -> int:
    found: Mapping[PartitionName, OffsetAndTimestamp] = await admin.list_offsets({place: at})
    return found[place].offset


async def _start(visit: Visit, place: _Place) -> int | None:
    """Return the offset that was asked for; None: none was.

    Raises:
        RefusedError: it is none, or a time that is none.
    """
    words = visit.text("time")
    offset = visit.number("offset")
    if not words:
        return offset
    if offset is not None:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "give an offset or a time, and not both")
    try:
        timestamp_ms = parse_time_ms(words)
    except ValueError as error:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, f"{words!r} is no time: write 2013-01-31T10:00:00"
        ) from error
    found = await _offset(visit.cluster.admin, place.name, timestamp_ms)
    return place.end if found < 0 else found


def _controls(visit: Visit, place: _Place) -> Markup:
    def choices(name: str, options: tuple[str, ...], first: str) -> Markup:
        chosen = visit.text(name)
        return element(
            "select",
            element("option", first, value=""),
            [
                element("option", option, value=option, selected=option == chosen)
                for option in options
            ],
            name=name,
        )

    return element(
        "form",
        element("input", type="hidden", name="topic", value=place.topic),
        element(
            "label",
            "Partition",
            element(
                "input",
                type="number",
                name="partition",
                min=0,
                max=place.partitions - 1,
                value=place.partition if visit.text("partition") else None,
                placeholder=place.partition,
            ),
        ),
        element(
            "label",
            "From offset",
            element("input", type="number", name="offset", min=0, value=visit.text("offset")),
        ),
        element(
            "label",
            "or time (UTC)",
            element("input", type="datetime-local", name="time", step=1, value=visit.text("time")),
        ),
        element(
            "label", "With key", element("input", type="text", name="key", value=visit.text("key"))
        ),
        element("label", "written as", choices("keyform", ("hex",), "text")),
        element("label", "Show values as", choices("form", values.FORMS, "what fits")),
        element("button", "Show"),
        action=visit.address("/records"),
        role="search",
    )


def _explained(place: _Place, found: Found, wanted: int, start: int, *, is_search: bool) -> Markup:
    """Say what is shown, and why it may be less than what was asked for."""
    parts = [f"Partition {place.partition} has the offsets {place.start:,} to {place.end - 1:,}."]
    if place.start == place.end:
        parts = [f"Partition {place.partition} is empty; its next offset is {place.end:,}."]
    elif wanted > place.end or (wanted == place.end and not is_search and not found.rows):
        parts.append("What was asked for is not written yet, or its transaction is not over.")
    elif 0 <= wanted < place.start:
        parts.append("Older records were deleted.")
    if is_search:
        parts.append(
            f"Looked at {count(found.searched, 'record')}, from offset {start:,} to "
            f"{max(found.next_offset - 1, start):,}: {len(found.rows):,} with this key."
        )
        if found.next_offset < place.end:
            parts.append("There are more to look at.")
    return element("p", " ".join(parts), role="status")


def _table(visit: Visit, place: _Place, found: Found, form: values.Form | None) -> Markup:
    return table(
        f"Records of partition {place.partition}",
        [number("Offset"), "Time (UTC)", "Key", "Value", number("Size"), number("Headers")],
        [
            [
                visit.link(
                    row.offset,
                    "/record",
                    topic=place.topic,
                    partition=place.partition,
                    offset=row.offset,
                    form=form,
                ),
                element("time", time_of(row.timestamp) or "–"),
                _preview(row.key, form),
                _preview(row.value, form),
                None if row.value is None else bytes_of(row.value.size),
                len(row.headers) + row.headers_left_out or "",
            ]
            for row in found.rows
        ],
        "No record here.",
    )


def _preview(part: Part | None, form: values.Form | None) -> Child:
    if part is None:
        return element("span", "null", class_="unknown")
    if not part.size:
        return element("span", "empty", class_="unknown")
    shown = values.preview(part.begin, is_cut=part.is_cut, form=form)
    return element("bdi", shown, class_="value")


def _pager(
    visit: Visit, place: _Place, found: Found, start: int, *, is_search: bool
) -> Markup | None:
    at = {"partition": place.partition, "time": None}
    links = []
    if is_search:
        if found.next_offset < place.end:
            links.append(("look further", visit.again(**at, offset=found.next_offset)))
    else:
        if start > place.start:
            links.append(("oldest", visit.again(**at, offset=place.start)))
            older = max(start - RECORDS_MAX, place.start)
            links.append(("older", visit.again(**at, offset=older)))
        if found.next_offset < place.end:
            links.append(("newer", visit.again(**at, offset=found.next_offset)))
        if found.next_offset < place.end or not found.rows:
            links.append(("newest", visit.again(**at, offset=None)))
    if not links:
        return None
    return element(
        "p", [[element("a", words, href=target), " "] for words, target in links], class_="pager"
    )


def _forms(visit: Visit, form: values.Form | None) -> list[Child]:
    choices: list[tuple[str, str | None]] = [("what fits", None)]
    choices += [(name, name) for name in values.FORMS]
    return [
        [
            element(
                "a",
                words,
                href=visit.again(form=choice),
                aria_current="true" if choice == form else None,
            ),
            " ",
        ]
        for words, choice in choices
    ]


def _size(part: Part | None) -> Child:
    return None if part is None else bytes_of(part.size)


def _part(title: str, part: Part | None, form: values.Form | None) -> Markup:
    if part is None or not part.size:
        what = "null" if part is None else "empty"
        return joined(element("h2", title), element("p", what, class_="quiet"))
    shown = values.show(part.begin, form)
    notes = [f"as {shown.form}" if form is None else ""]
    if form is not None and shown.form != form:
        notes = [f"It is no {form}, so it is shown as {shown.form}."]
    if shown.is_cut or part.is_cut:
        notes.append(f"Only the beginning is shown: it has {bytes_of(part.size)}.")
    return joined(
        element("h2", title),
        element("p", " ".join(notes).strip(), class_="quiet"),
        element("pre", element("bdi", shown.text), tabindex=0, aria_label=title),
    )


def _headers(row: Row) -> Markup | None:
    if not row.headers:
        return None
    cells: list[list[Child]] = [
        [
            _header_text(name),
            element("span", "null", class_="unknown")
            if part is None
            else element(
                "bdi",
                _header_text(values.preview(part.begin, is_cut=part.is_cut)),
                class_="value",
            ),
            None if part is None else bytes_of(part.size),
        ]
        for name, part in row.headers
    ]
    left_out = row.headers_left_out
    return joined(
        table("Headers", ["Name", "Value", number("Size")], cells, ""),
        element("p", f"{count(left_out, 'more header is', 'more headers are')} left out.")
        if left_out
        else None,
    )


def _header_text(text: str) -> str:
    begin = markup.begin(text, _HEADER_WRITTEN_MAX)
    return text if begin == text else f"{begin}…"
