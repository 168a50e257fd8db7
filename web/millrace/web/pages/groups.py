"""Consumer groups, Spark queries and other readers, with how far they are behind."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from millrace.client import Admin, GroupDescription, GroupListing, Lag, MillraceError
from millrace.core.topics import PartitionName
from millrace.web.markup import Child, element
from millrace.web.messages import RefusedError
from millrace.web.pages.layout import Page, Visit, age_of, bytes_of, facts, number, pager, table

GROUPS_MAX: Final = 50
"""Groups on a page: each takes several requests."""
ROWS_MAX: Final = 500
"""Partitions, or members, of a group on its page."""
_AT_ONCE: Final = 8


@dataclass(slots=True, frozen=True)
class _Behind:
    """A group with its lag in each partition, where it is known."""

    group: GroupDescription
    lags: Mapping[PartitionName, Lag | MillraceError]

    @property
    def places(self) -> list[PartitionName]:
        return sorted({*self.group.positions, *self.group.owners})

    @property
    def unknown(self) -> int:
        return sum(not isinstance(self.lags.get(each), Lag) for each in self.places)

    def total(self) -> tuple[int | None, int | None, int | None]:
        """Return records, bytes and the largest age; None: it is unknown in a partition."""
        if self.unknown:
            return None, None, None
        lags = [each for each in self.lags.values() if isinstance(each, Lag)]
        ages = [each.milliseconds for each in lags if each.milliseconds is not None]
        return (
            sum(each.records for each in lags),
            sum(each.bytes for each in lags),
            max(ages, default=0) if len(ages) == len(lags) else None,
        )


async def page(visit: Visit) -> Page:
    """Return the page of all groups."""
    admin = visit.cluster.admin
    listed = await admin.list_groups()
    first, shown = visit.part(listed, GROUPS_MAX)
    room = asyncio.Semaphore(_AT_ONCE)

    async def look(each: GroupListing) -> _Behind | None:
        async with room:
            return await _behind(admin, each.name)

    found = [each for each in await asyncio.gather(*map(look, shown)) if each is not None]
    return Page(
        "Groups",
        [
            table(
                "Groups and other readers",
                [
                    *("Group", "Kind", "State", number("Members"), number("Partitions")),
                    *map(number, ("Records behind", "Bytes", "Time", "Unknown")),
                ],
                [_row(visit, each) for each in found],
                "No group has read anything yet.",
                is_titled=False,
            ),
            pager(visit, first, len(shown), len(listed), GROUPS_MAX),
        ],
    )


def _row(visit: Visit, each: _Behind) -> list[Child]:
    group, (records, size, age) = each.group, each.total()
    is_consumer = group.kind == "consumer"
    return [
        visit.link(group.name, "/group", name=group.name),
        group.kind,
        group.state if is_consumer else None,
        len(group.members) if is_consumer else None,
        len(each.places),
        *(records, bytes_of(size), age_of(age)),
        each.unknown or "",
    ]


async def group(visit: Visit) -> Page:
    """Return the page of one group.

    Raises:
        RefusedError: there is no such group.
    """
    name = visit.text("name")
    found = await _behind(visit.cluster.admin, name)
    if found is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no group {name!r}")
    each, owners = found.group, found.group.owners
    records, size, age = found.total()
    rows: list[list[Child]] = []
    for place in found.places[:ROWS_MAX]:
        lag = found.lags.get(place)
        owner = owners.get(place)
        known = lag if isinstance(lag, Lag) else None
        rows.append(
            [
                visit.link(place[0], "/topic", name=place[0]),
                _position(visit, place, each.positions.get(place)),
                each.positions.get(place),
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
        each.name,
        [
            facts(
                ("Kind", each.kind),
                ("State", each.state if each.kind == "consumer" else None),
                ("Members", len(each.members) if each.kind == "consumer" else None),
                ("Assignor", each.assignor or None),
                ("Records behind", records),
                ("Bytes", bytes_of(size)),
                ("Time", age_of(age)),
            ),
            table(
                "Partitions",
                [
                    *("Topic", number("Partition"), number("Position"), number("End")),
                    *map(number, ("Records behind", "Bytes", "Time")),
                    *("Member", "Problem"),
                ],
                rows,
                "It has no positions.",
            ),
            _left_out(len(found.places)),
            table(
                "Members",
                ["Member", "Instance", "Client", "Address", "Zone", number("Partitions")],
                [
                    [
                        element("code", one.member_id),
                        one.instance_id or None,
                        *(one.client_id, element("code", one.address), one.zone or None),
                        len(one.assigned),
                    ]
                    for one in each.members[:ROWS_MAX]
                ],
                "It has no members at present.",
            ),
            _left_out(len(each.members)),
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


async def _behind(admin: Admin, name: str) -> _Behind | None:
    found = await admin.describe_group(name)
    return None if found is None else _Behind(found, await admin.describe_lags(found.positions))
