"""A cluster for web pages: it answers as an `Admin` would, from a look, with hostile names."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import cast

from tests.fakes.looks import look

from millrace.client import (
    Admin,
    ClusterDescription,
    ClusterHealth,
    ConfigValue,
    GroupDescription,
    GroupListing,
    HangingTransaction,
    Lag,
    LogDescription,
    MemberDescription,
    MillraceError,
    OffsetAndTimestamp,
    OpenTransaction,
    QuotaDescription,
    QuotaUse,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
    TransactionPart,
)
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import UnknownTopicOrPartitionError
from millrace.core.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    WallMs,
)
from millrace.core.topics import PartitionName
from millrace.runtime.page_messages import Request, Response
from millrace.web.clients import Clients
from millrace.web.clusters import Clusters, Place
from millrace.web.site import PAGE_S_MAX, Site

HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\u202eesrever"


class ShownAdmin:
    """An `Admin` without a cluster.

    Args:
        dead: a broker that is down.
        topics: how many there are beside the hostile one.
        transactions: how many are decided and not over, beside an open one; None: not even that.
        hangs: nothing is ever answered.
        refuses: the answer to everything.
        withheld: the answer to what is about the whole cluster.
    """

    def __init__(
        self,
        *,
        dead: int | None = None,
        topics: int = 1,
        groups: int = 1,
        transactions: int | None = 1,
        hangs: bool = False,
        refuses: MillraceError | None = None,
        withheld: MillraceError | None = None,
    ) -> None:
        records = {f"topic-{number}": number * 10 for number in range(topics)}
        self._look = look(1, {HOSTILE: 3, **records}, dead=dead)
        self._groups = [HOSTILE, *(f"group-{number}" for number in range(groups))]
        self._transactions = transactions
        self._hangs, self._refuses, self._withheld = hangs, refuses, withheld
        self.asked_at_once = self._asked = 0

    async def _answer(self) -> None:
        self._asked += 1
        self.asked_at_once = max(self.asked_at_once, self._asked)
        try:
            await asyncio.sleep(3600 if self._hangs else 0)
        finally:
            self._asked -= 1
        if self._refuses is not None:
            raise self._refuses

    async def _answer_about_all(self) -> None:
        await self._answer()
        if self._withheld is not None:
            raise self._withheld

    async def list_topics(self) -> list[str]:
        await self._answer()
        return [topic.name for topic in self._look.topics]

    async def describe_cluster(self) -> ClusterDescription:
        await self._answer()
        return self._look.cluster

    async def describe_health(self) -> ClusterHealth:
        await self._answer_about_all()
        return self._look.health

    async def describe_topics(
        self, names: Iterable[str] | None = None
    ) -> dict[str, TopicDescription]:
        await self._answer()
        found = {topic.name: topic for topic in self._look.topics}
        for name in names or ():
            if name not in found:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return {name: value for name, value in found.items() if names is None or name in names}

    async def describe_topic(self, name: str) -> TopicDescription:
        found = (await self.describe_topics([name]))[name]
        config = {"retention.ms": ConfigValue(HOSTILE, "topic", f"Meaning {HOSTILE}")}
        return TopicDescription(found.name, found.topic_id, False, found.partitions, config)

    async def describe_logs(self, topic: str | None = None) -> list[LogDescription]:
        await (self._answer_about_all() if topic is None else self._answer())
        return [log for log in self._look.logs if topic in (None, log.topic)]

    async def describe_broker_configs(self) -> dict[BrokerId, dict[str, ConfigValue]]:
        await self._answer_about_all()
        return {
            BrokerId(0): {
                "node.name": ConfigValue(HOSTILE, "file", ""),
                "metrics.port": ConfigValue("1", "default", ""),
            }
        }

    async def list_groups(self) -> list[GroupListing]:
        await self._answer()
        return [GroupListing(name, "consumer", 1) for name in self._groups]

    async def describe_group(self, name: str) -> GroupDescription | None:
        await self._answer()
        if name not in self._groups:
            return None
        member = MemberDescription(
            *(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), HOSTILE),
            *(((HOSTILE, 0),), (), ((HOSTILE, 0),)),
            is_behind=False,
            is_away=False,
        )
        committed = {(HOSTILE, 0): Position(1)}
        return GroupDescription(name, "consumer", 1, "uniform", (member,), committed)

    async def describe_lags(
        self, positions: Mapping[PartitionName, int]
    ) -> dict[PartitionName, Lag | MillraceError]:
        await self._answer()
        return {
            place: Lag(Offset(at), Offset(0), Offset(3), 20, 1_000)
            for place, at in positions.items()
        }

    async def list_offsets(
        self, places: Mapping[PartitionName, str | int]
    ) -> dict[PartitionName, OffsetAndTimestamp]:
        await self._answer()
        return {
            place: OffsetAndTimestamp(Offset(7), -1, LeaderEpoch(0), TopicId(bytes(16)))
            for place in places
        }

    async def describe_quotas(self) -> dict[str, QuotaDescription]:
        await self._answer_about_all()
        use = QuotaUse("produce", HOSTILE, HOSTILE, "", "", BrokerId(0), 10, 20, 1_500, 1)
        return {
            HOSTILE: QuotaDescription(
                HOSTILE, HOSTILE, None, None, None, 2_048, None, 50, False, (use,)
            )
        }

    async def list_transactions(self, states: Collection[str] = ()) -> list[TransactionListing]:
        await self._answer()
        if self._transactions is None:
            return []
        owed = range(self._transactions)
        found = [
            TransactionListing(HOSTILE, "ongoing", 4711, 3, 90_000),
            *(TransactionListing(f"id-{n}", "prepare_commit", 5, 1, 600_000 + n) for n in owed),
            TransactionListing("over", "complete_abort", 6, 1, 0),
        ]
        return [listing for listing in found if not states or listing.state in states]

    async def describe_transaction(self, name: str) -> TransactionDescription | None:
        listings = {listing.transactional_id: listing for listing in await self.list_transactions()}
        if name not in listings:
            return None
        listing = listings[name]
        is_owed = listing.state == "prepare_commit"
        return TransactionDescription(
            transactional_id=name,
            state=listing.state,
            producer_id=listing.producer_id,
            producer_epoch=listing.producer_epoch,
            timeout_ms=60_000,
            open_ms=listing.open_ms,
            parts=(
                TransactionPart(HOSTILE, 1, False, ""),
                TransactionPart(HOSTILE, 2, is_owed, HOSTILE if is_owed else ""),
                TransactionPart("", 3, False, ""),
                TransactionPart("", 4, False, "", is_hidden=True),
                TransactionPart(HOSTILE, None, is_owed, ""),
            ),
            ending="timeout",
            ended_committed=is_owed,
            ended_producer_id=1,
            ended_producer_epoch=1,
        )

    async def find_hanging_transactions(self) -> list[HangingTransaction]:
        await self._answer()
        if self._transactions is None:
            return []
        at = OpenTransaction(
            ProducerId(77), ProducerEpoch(2), Offset(12), WallMs(1_700_000_000_000)
        )
        return [HangingTransaction(HOSTILE, 1, at)]

    async def close(self) -> None:
        pass


BOOTSTRAP = "h:1"


class ShownClusters(Clusters):
    """Clusters that are always the same.

    Args:
        places: by name; empty: it is the only one.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._shown = places

    async def all(self) -> Mapping[str, Place]:
        return self._shown


def ask(site: Site, path: str, /, **query: str) -> Response:
    """Return the response to one request."""
    return asyncio.run(site.respond(Request("GET", path, query)))


def site_of(admin: ShownAdmin, *names: str, page_s_max: float = PAGE_S_MAX) -> Site:
    """Return the site of some clusters; without names, of a single one."""
    places = {name: Place(BOOTSTRAP) for name in names or ("",)}
    clients = Clients(lambda place, token: cast(Admin, admin))
    return Site(ShownClusters(places), clients, page_s_max)
