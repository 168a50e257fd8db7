"""How far groups are behind, for people and programs. What is unknown is never shown as 0."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace.core.coordinator.groups.lags import added_up, asked_about
from millrace.core.topics import PartitionName
from millrace.core.words import duration, size

if TYPE_CHECKING:
    from millrace.client import GroupDescription, Lag, MillraceError, SyncAdmin

GROUPS_AT_ONCE: Final = 16
"""Groups that are looked at together: each takes a few requests."""


@dataclass(slots=True, frozen=True)
class PartitionLag:
    """The lag of a group in one partition.

    Attributes:
        place: topic and number.
        position: of the next record that the group reads; None: it has stored none.
        found: the lag, from the log's start where there is no position; or why it is not known.
    """

    place: PartitionName
    position: int | None
    found: "Lag | MillraceError"

    @property
    def lag(self) -> "Lag | None":
        """The lag; None: it is not known."""
        from millrace.client import Lag

        return self.found if isinstance(self.found, Lag) else None

    @property
    def lost(self) -> int | None:
        """Records after the position that retention has deleted; None: it is not known."""
        lag = self.lag
        return None if lag is None else 0 if self.position is None else lag.lost


def lags_of(admin: "SyncAdmin", group: "GroupDescription") -> list[PartitionLag]:
    """Return the lag in each partition that the group reads."""
    positions = group.positions
    places = group.partitions(admin.describe_topics(group.topics))
    found = admin.describe_lags(asked_about(places, positions))
    return [PartitionLag(place, positions.get(place), found[place]) for place in places]


@dataclass(slots=True, frozen=True)
class TotalLag:
    """The lag of a group as a whole.

    Attributes:
        partitions: of which it is.
        unknown: partitions whose lag is not known.
        records, bytes, lost: sums over the partitions; None: one of them is not known, or there
            are none.
        milliseconds: the largest one; None: likewise.
    """

    partitions: int
    unknown: int
    records: int | None
    bytes: int | None
    milliseconds: int | None
    lost: int | None


def total_of(lags: Sequence[PartitionLag]) -> TotalLag:
    """Add up the lags of a group."""
    sums = added_up([row.lag for row in lags])
    lost = sum(row.lost or 0 for row in lags)
    return TotalLag(
        partitions=len(lags),
        unknown=sums.unknown,
        records=sums.records,
        bytes=sums.bytes,
        milliseconds=sums.milliseconds,
        lost=None if sums.records is None else lost,
    )


def lags_of_groups(
    admin: "SyncAdmin",
    names: Sequence[str],
    find: "Callable[[str], GroupDescription | None] | None" = None,
) -> "list[tuple[GroupDescription, TotalLag]]":
    """Return groups with their lags, in this order.

    Args:
        admin: a client for administration; several threads use it.
        find: looks a group up. None: those that are not there any more are left out.
    """
    find = find or admin.describe_group

    def look(name: str) -> "tuple[GroupDescription, TotalLag] | None":
        group = find(name)
        return None if group is None else (group, total_of(lags_of(admin, group)))

    threads = ThreadPoolExecutor(GROUPS_AT_ONCE)
    try:
        return [found for found in threads.map(look, names) if found is not None]
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # After Ctrl-C nothing is waited for.


LAG_COLUMNS = ("RECORDS", "BYTES", "TIME")


def lag_cells(lag: "Lag | TotalLag | None") -> list[object]:
    """Return the cells of `LAG_COLUMNS` for a person."""
    if lag is None:
        return [None, None, None]
    return [
        lag.records,
        None if lag.bytes is None else size(lag.bytes),
        None if lag.milliseconds is None else duration(lag.milliseconds),
    ]


def lag_document(lag: "Lag | TotalLag | None", lost: int | None) -> dict[str, Any]:
    """Return a lag for a program, with the records that retention has deleted; null: unknown."""
    return {
        "lag": None if lag is None else lag.records,
        "lag_bytes": None if lag is None else lag.bytes,
        "lag_ms": None if lag is None else lag.milliseconds,
        "lost": lost,
    }
