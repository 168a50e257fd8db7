"""One look at a cluster: everything that `millrace top` shows, asked for at one time.

All of it comes from the administration API, so it needs no other way to the brokers than any other
command. Rates come from counters that brokers report with their logs: the metrics of brokers have
rates, too, but clients do not know the addresses of these pages.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.cli.groups.group_lag import TotalLag, lags_of_groups

if TYPE_CHECKING:
    from millrace.client import (
        ClusterDescription,
        ClusterHealth,
        GroupDescription,
        LogDescription,
        SyncAdmin,
        TopicDescription,
    )

GROUPS_MAX: Final = 200
"""Groups whose lags are measured in one look, the first by name: each takes several requests."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Look:
    """The answers of a cluster to everything that `millrace top` asks at one time.

    Attributes:
        at_s: when the brokers were asked for their logs, on a clock that only counts forward.
        groups: with their lags; None: unknown, as their coordinators do not answer.
        groups_left_out: how many there are beside these.
    """

    at_s: float
    cluster: "ClusterDescription"
    topics: "Sequence[TopicDescription]"
    health: "ClusterHealth"
    logs: "Sequence[LogDescription]"
    groups: "Sequence[tuple[GroupDescription, TotalLag]] | None"
    groups_left_out: int = 0


def look_at(admin: "SyncAdmin") -> Look:
    """Ask for everything at once.

    Raises:
        MillraceError: no broker answers.
    """
    threads = ThreadPoolExecutor(5)
    try:
        health = threads.submit(admin.describe_health)
        cluster = threads.submit(admin.describe_cluster)
        topics = threads.submit(admin.describe_topics)
        groups = threads.submit(_groups, admin)
        logs, at_s = admin.describe_logs(), time.monotonic()
        found, left_out = groups.result()
        return Look(
            at_s=at_s,
            cluster=cluster.result(),
            topics=list(topics.result().values()),
            health=health.result(),
            logs=logs,
            groups=found,
            groups_left_out=left_out,
        )
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _groups(
    admin: "SyncAdmin",
) -> "tuple[Sequence[tuple[GroupDescription, TotalLag]] | None, int]":
    """Return groups with their lags, and how many there are beside them.

    Groups are a part of the picture: where their coordinators do not answer, the rest is shown.
    """
    from millrace.core.errors import MillraceError

    try:
        names = [group.name for group in admin.list_groups()]
        return lags_of_groups(admin, names[:GROUPS_MAX]), max(len(names) - GROUPS_MAX, 0)
    except MillraceError:
        return None, 0
