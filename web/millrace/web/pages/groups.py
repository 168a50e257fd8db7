"""Consumer groups, Spark queries and other readers, with how far they are behind."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from millrace.client import Admin, GroupDescription, GroupListing, Lag, MillraceError
from millrace.core.coordinator.groups.lags import LagSums, added_up, asked_about
from millrace.core.topics import PartitionName
from millrace.runtime.page_messages import RefusedError
from millrace.web.markup import Child, element
from millrace.web.pages.layout import (
    Page,
    Visit,
    age_of,
    allowed,
    bytes_of,
    facts,
    number,
    pager,
    table,
)

GROUPS_MAX: Final = 50
"""Groups on a page: each takes several requests."""
ROWS_MAX: Final = 500
"""Partitions, or members, of a group on its page."""
_AT_ONCE: Final = 8


@dataclass(slots=True, frozen=True)
class _GroupLag:
    """A group with the partitions that it reads, and its lag in each, where it is known."""

    group: GroupDescription
    places: list[PartitionName] | None
    """None: the visitor may not see its topics."""
    lags: Mapping[PartitionName, Lag | MillraceError]

    def total(self) -> LagSums:
        """Return the sums over its partitions."""
        found = (self.lags.get(place) for place in self.places or ())
        return added_up([lag if isinstance(lag, Lag) else None for lag in found])


async def page(visit: Visit) -> Page:
    """Return the page of all groups."""
    admin = visit.cluster.admin
    listed = await admin.list_groups()
    first, shown = visit.part(listed, GROUPS_MAX)
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(listing: GroupListing) -> _GroupLag | None:
        async with room:
            return await _lag_of(admin, listing.name)

    found = [reader for reader in await asyncio.gather(*map(look, shown)) if reader is not None]
    return Page(
        "Groups",
        [
            table(
                "Groups and other readers",
                [
                    *("Group", "Kind", "State", number("Members"), number("Partitions")),
                    *map(number, ("Records behind", "Bytes", "Time", "Unknown")),
                ],
                [_row(visit, reader) for reader in found],
                "No group has read anything yet.",
                is_titled=False,
            ),
            pager(visit, first, len(shown), len(listed), GROUPS_MAX),
        ],
    )


def _row(visit: Visit, reader: _GroupLag) -> list[Child]:
    group, total = reader.group, reader.total()
    is_consumer = group.kind == "consumer"
    return [
        visit.link(group.name, "/group", name=group.name),
        group.kind,
        group.state if is_consumer else None,
        len(group.members) if is_consumer else None,
        *(
            (None, None, None, None)
            if reader.places is None
            else (
                len(reader.places),
                total.records,
                bytes_of(total.bytes),
                age_of(total.milliseconds),
            )
        ),
        total.unknown or "",
    ]


async def group(visit: Visit) -> Page:
    """Return the page of one group.

    Raises:
        RefusedError: there is no such group.
    """
    name = visit.text("name")
    found = await _lag_of(visit.cluster.admin, name)
    if found is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no group {name!r}")
    described, total = found.group, found.total()
    owners = described.owners
    rows: list[list[Child]] = []
    for place in (found.places or ())[:ROWS_MAX]:
        lag = found.lags.get(place)
        owner = owners.get(place)
        known = lag if isinstance(lag, Lag) else None
        rows.append(
            [
                visit.link(place[0], "/topic", name=place[0]),
                _position(visit, place, described.positions.get(place)),
                described.positions.get(place),
                *(
                    (None, None, None, None)
                    if known is None
                    else (
                        known.end_offset,
                        known.records,
                        bytes_of(known.bytes),
                        age_of(known.milliseconds),
                    )
                ),
                None if owner is None else owner.instance_id or owner.member_id[:8],
                lag.message if isinstance(lag, MillraceError) else "",
            ]
        )
    return Page(
        described.name,
        [
            facts(
                ("Kind", described.kind),
                ("State", described.state if described.kind == "consumer" else None),
                ("Members", len(described.members) if described.kind == "consumer" else None),
                ("Assignor", described.assignor or None),
                ("Records behind", total.records),
                ("Bytes", bytes_of(total.bytes)),
                ("Time", age_of(total.milliseconds)),
            ),
            table(
                "Partitions",
                [
                    *("Topic", number("Partition"), number("Position"), number("End")),
                    *map(number, ("Records behind", "Bytes", "Time")),
                    *("Member", "Problem"),
                ],
                rows,
                "Your token may not see its topics."
                if found.places is None
                else "It has no positions.",
            ),
            _left_out(len(found.places or ())),
            table(
                "Members",
                ["Member", "Instance", "Client", "Address", "Zone", number("Partitions")],
                [
                    [
                        element("code", member.member_id),
                        member.instance_id or None,
                        *(member.client_id, element("code", member.address), member.zone or None),
                        len(member.assigned),
                    ]
                    for member in described.members[:ROWS_MAX]
                ],
                "It has no members at present.",
            ),
            _left_out(len(described.members)),
        ],
        above="/groups",
    )


def _left_out(total: int) -> Child:
    if total <= ROWS_MAX:
        return None
    return element(
        "p",
        f"{total - ROWS_MAX:,} more are left out: ",
        element("code", "millrace group describe"),
        " has all.",
    )


def _position(visit: Visit, place: PartitionName, position: int | None) -> Child:
    """Return a link to what the group reads next."""
    topic, partition = place
    return visit.link(partition, "/records", topic=topic, partition=partition, offset=position)


async def _lag_of(admin: Admin, name: str) -> _GroupLag | None:
    found = await admin.describe_group(name)
    if found is None:
        return None
    topics = await allowed(admin.describe_topics(found.topics))
    if topics is None:
        return _GroupLag(found, None, {})
    places = found.partitions(topics)
    answers = await admin.describe_lags(asked_about(places, found.positions))
    return _GroupLag(found, places, answers)
