"""Consumer groups and other readers under a name, as administrators see them: values and requests.

A name belongs to a consumer group, a Spark query or a reader that commits on its own. The
coordinator of the name knows its members and positions; the leaders of the partitions know how much
follows a position.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from millrace.client._admin.administration import Administration
from millrace.client._admin.descriptions import TopicDescription
from millrace.client._cluster import wire
from millrace.client._cluster.arguments import checked_word
from millrace.client._cluster.coordinators import Coordinators
from millrace.client._cluster.offsets import describe_lags
from millrace.client._cluster.positions import KeptPositions
from millrace.client._threads.tasks import parts_of_a_call
from millrace.core.coordinator.groups.lags import unread_records
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.core.ids import Offset, TopicId, TopicPartition
from millrace.core.isolation import READ_COMMITTED, Isolation
from millrace.core.topics import PartitionName
from millrace.proto.v1 import groups_pb2, positions_pb2

GroupKind = Literal["consumer", "spark", "standalone"]
"""A group that consumers joined; a Spark query, or another reader that stores where it began; a
reader that commits on its own."""
GroupState = Literal["empty", "reconciling", "stable"]
"""It has no members; members give up or wait for partitions; each has what it should have."""

_KINDS: Final[Mapping[int, GroupKind]] = {
    positions_pb2.NAME_KIND_CONSUMER: "consumer",
    positions_pb2.NAME_KIND_SPARK: "spark",
    positions_pb2.NAME_KIND_STANDALONE: "standalone",
}
_POSITION_KINDS: Final = {
    "committed": positions_pb2.POSITION_KIND_COMMITTED,
    "initial": positions_pb2.POSITION_KIND_INITIAL,
    "pending": positions_pb2.POSITION_KIND_PENDING,
}


@dataclass(slots=True, frozen=True)
class GroupListing:
    """A name in the list of groups."""

    name: str
    kind: GroupKind
    members: int
    """How many there are now; readers that are no consumer group have none."""


@dataclass(slots=True, frozen=True)
class MemberDescription:
    """A member of a consumer group."""

    member_id: str
    instance_id: str
    """The name that a static member keeps over restarts; empty: it is dynamic."""
    client_id: str
    address: str
    """The address of its process, as the broker sees it."""
    zone: str
    topics: tuple[str, ...]
    """The topics that it subscribed to, by name."""
    pattern: str
    """A regular expression of the names of more topics; empty: none."""
    assigned: tuple[PartitionName, ...]
    """The partitions that it reads."""
    revoking: tuple[PartitionName, ...]
    """Partitions that it has to give up, and still has."""
    target: tuple[PartitionName, ...]
    """The partitions that it should read."""
    is_behind: bool
    """It has not confirmed its assignment yet."""
    is_away: bool
    """It is static and has closed; it may return within its session."""

    @property
    def is_stable(self) -> bool:
        """Whether it has what it should have."""
        return not self.is_behind and not self.revoking and self.assigned == self.target


@dataclass(slots=True, frozen=True)
class GroupDescription:
    """A consumer group, or another reader under a name."""

    name: str
    kind: GroupKind
    epoch: int = 0
    """Rises with each change of its members or topics; 0: no consumer ever joined it."""
    assignor: str = ""
    """The assignor that computes its assignments; empty: it needs none now."""
    members: tuple[MemberDescription, ...] = ()
    committed: dict[PartitionName, Position] = field(default_factory=dict)
    """How far it has read."""
    initial: dict[PartitionName, Position] = field(default_factory=dict)
    """Where it began, if it stored that."""
    pending: dict[PartitionName, Position] = field(default_factory=dict)
    """What transactions commit for it that have not ended: until then members wait for them."""

    @property
    def state(self) -> GroupState:
        """Whether it has members, and whether each of them has what it should have."""
        if not self.members:
            return "empty"
        return "stable" if all(member.is_stable for member in self.members) else "reconciling"

    @property
    def positions(self) -> dict[PartitionName, int]:
        """The offset of the next record that it reads: committed, or else where it began."""
        return {
            place: position.offset for place, position in (self.initial | self.committed).items()
        }

    @property
    def owners(self) -> dict[PartitionName, MemberDescription]:
        """The member that reads each partition, or has not given it up yet."""
        return {
            place: member
            for member in self.members
            for place in (*member.assigned, *member.revoking)
        }

    @property
    def topics(self) -> set[str]:
        """The topics that it has read, or of which it owns partitions."""
        return {topic for topic, _ in (*self.positions, *self.owners, *self.pending)}

    def partitions(self, topics: Mapping[str, TopicDescription]) -> list[PartitionName]:
        """Return the partitions that it reads, also those in which it has stored no position.

        A consumer group reads all partitions of its topics, and another reader those in which it
        has a position.

            topics = await admin.describe_topics(group.topics)
            partitions = group.partitions(topics)

        Args:
            topics: its topics.
        """
        places = {*self.positions, *self.owners, *self.pending}
        if self.kind == "consumer":
            described = (topics[name] for name in self.topics)
            places |= {(topic.name, at.partition) for topic in described for at in topic.partitions}
        return sorted(places)


@dataclass(slots=True, frozen=True)
class Lag:
    """How much of a partition follows a position, as its leader has measured it."""

    position: Offset
    """Offset of the record that is read next."""
    log_start_offset: Offset
    end_offset: Offset
    bytes: int
    """Stored bytes of the batches that hold the unread records."""
    milliseconds: int | None
    """Age of the first of these batches by its timestamp; 0: all is read; None: unknown."""

    @property
    def records(self) -> int:
        """Records to read: those that are there from the position on."""
        return unread_records(self.position, self.log_start_offset, self.end_offset, self.bytes)

    @property
    def lost(self) -> int:
        """Records from the position on that retention has deleted."""
        return max(0, self.log_start_offset - self.position)


class GroupAdministration(Administration):
    """The part of `Admin` that is about groups, and the positions of other readers."""

    _coordinators: Coordinators
    _positions: KeptPositions

    async def resolve_initial(
        self, name: str, proposals: Mapping[PartitionName, Position]
    ) -> dict[PartitionName, Position]:
        """Return where a reader of this name began; a partition without a position gets the
        proposal.

        The brokers keep the first proposal for a partition, and return it to all callers from then
        on. A topic that is deleted and created again is another one.

            start = await admin.resolve_initial("report", {("orders", 0): Position(120, 3)})

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            InvalidPositionError: the name or a position breaks a bound.
            PositionsFullError: no more can be kept.
        """
        return await self._positions.resolve_initial(name, proposals)

    async def commit_positions(
        self, name: str, positions: Mapping[PartitionName, Position]
    ) -> None:
        """Store on the brokers how far a reader of this name has read; the last commit counts.

        Each position is stored independently: after an error some may be stored, and a repetition
        is safe.

        Raises:
            UnknownTopicOrPartitionError, InvalidPositionError, PositionsFullError: as in
                `resolve_initial`.
        """
        await self._positions.commit(name, positions)

    async def fetch_positions(
        self, name: str, *, kind: Literal["committed", "initial", "pending"] = "committed"
    ) -> dict[PartitionName, Position]:
        """Return how far a reader of this name has read, or where it began; without deleted topics.

        `pending` are positions that transactions commit which have not ended.

        Raises:
            InvalidPositionError: that is no name.
            InvalidRequestError: that is no kind.
        """
        wanted = checked_word(kind, _POSITION_KINDS, "kind of positions")
        return await self._positions.fetch(name, wanted)

    async def list_groups(self) -> list[GroupListing]:
        """Return all consumer groups and all other readers that keep positions, by name."""
        listings, parts = await self._list_part(0)
        for part in range(1, parts):
            listings += (await self._list_part(part))[0]
        return sorted(listings, key=lambda listing: listing.name)

    async def _list_part(self, part: int) -> tuple[list[GroupListing], int]:
        """Return the groups of one part, and how many parts there are."""
        request = positions_pb2.ListNamesRequest(partition=part)
        listings: list[GroupListing] = []
        while True:
            response: positions_pb2.ListNamesResponse = await self._coordinators.ask(
                part, lambda connection: connection.positions.ListNames(request)
            )
            listings += [
                GroupListing(name, _KINDS.get(kind, "standalone"), members)
                for name, (kind, members) in wire.paired(
                    response.names, list(wire.paired(response.kinds, response.members))
                )
            ]
            if not response.has_more:
                return listings, wire.parts_of(response.partitions)
            request.after = wire.last_of(response.names, request.after)

    async def describe_group(self, name: str) -> GroupDescription | None:
        """Return the members and the positions of a group, or of another reader; None: there is
        none of this name.

        Raises:
            InvalidPositionError: that is no name.
        """
        async with parts_of_a_call():
            (epoch, assignor, members), committed, initial, pending = await asyncio.gather(
                self._describe_members(name),
                self.fetch_positions(name),
                self.fetch_positions(name, kind="initial"),
                self._fetch_pending(name),
            )
        if not (epoch or committed or initial or pending):
            return None
        return GroupDescription(
            name=name,
            kind="consumer" if epoch else "spark" if initial else "standalone",
            epoch=epoch,
            assignor=assignor if members else "",
            members=members,
            committed=committed,
            initial=initial,
            pending=pending,
        )

    async def _fetch_pending(self, name: str) -> dict[PartitionName, Position]:
        try:
            return await self.fetch_positions(name, kind="pending")
        except MalformedRequestError:  # A broker of an earlier release has no transactions.
            return {}

    async def _describe_members(self, name: str) -> tuple[int, str, tuple[MemberDescription, ...]]:
        """Return a group's epoch, its assignor and its members."""
        request = groups_pb2.DescribeGroupRequest(group=name)
        described: list[groups_pb2.DescribedMember] = []
        has_more = True
        while has_more:
            response: groups_pb2.DescribeGroupResponse = await self._coordinators.ask(
                name, lambda connection: connection.groups.DescribeGroup(request)
            )
            described += response.members
            has_more = response.has_more
            if has_more:
                member_ids = [member.member_id for member in response.members]
                request.after = wire.last_of(member_ids, request.after)
        topic_ids = {
            TopicId(topic.topic_id)
            for member in described
            for topic in (*member.assigned, *member.revoking, *member.target)
        }
        names = await self._cluster.names_of(topic_ids)
        members = [_member_from_wire(member, names) for member in described]
        return response.epoch, response.assignor, tuple(members)

    async def describe_lags(
        self, positions: Mapping[PartitionName, int], *, isolation: Isolation = READ_COMMITTED
    ) -> dict[PartitionName, Lag | MillraceError]:
        """Return how much of each partition follows a position.

        The leaders measure it, in records, bytes and time. A partition whose lag is not known has
        the error in its place.

            group = await admin.describe_group("report")
            lags = await admin.describe_lags(group.positions)

        Args:
            positions: the offset of the next record to read, by topic and number.
            isolation: of the reader, which says where a log ends: see `list_offsets`.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        places = await self._places(positions)
        errors: dict[TopicPartition, MillraceError] = {}
        found = await describe_lags(
            self._cluster,
            {places[place]: at for place, at in positions.items()},
            errors,
            isolation=isolation,
        )
        lags: dict[PartitionName, Lag | MillraceError] = {}
        for place, at in positions.items():
            if (measured := found.get(places[place])) is None:
                lags[place] = errors[places[place]]
            else:
                start, end, unread_bytes, unread_ms = measured
                lags[place] = Lag(Offset(at), Offset(start), Offset(end), unread_bytes, unread_ms)
        return lags

    async def forget_topics(self, name: str, topics: Collection[str]) -> None:
        """Forget the positions of a group or another reader in some topics.

        For topics that it reads no more: its lag there would count until the positions expire. If
        it reads one of them again, it begins by its settings.

            await admin.forget_topics("billing", ["orders-of-last-year"])

        Args:
            name: of the group or reader.
            topics: the topics; one without a position changes nothing.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            GroupSubscribedToTopicError: members of the group read one of them.
            InvalidPositionError: that is no name.
        """
        await self._positions.forget_topics(name, topics)

    async def delete_group(self, name: str) -> None:
        """Forget a group or another reader, with all its positions, if there is one.

        Raises:
            InvalidPositionError: that is no name.
            GroupNotEmptyError: the group has members.
        """
        await self._positions.delete(name)


def _member_from_wire(
    described: groups_pb2.DescribedMember, names: Mapping[TopicId, str]
) -> MemberDescription:
    said = described.member
    return MemberDescription(
        member_id=described.member_id,
        instance_id=said.instance_id,
        client_id=described.client_id,
        address=described.address,
        zone=said.zone,
        topics=tuple(said.topics),
        pattern=said.pattern,
        assigned=_places(described.assigned, names),
        revoking=_places(described.revoking, names),
        target=_places(described.target, names),
        is_behind=described.is_behind,
        is_away=described.is_away,
    )


def _places(
    topics: Iterable[groups_pb2.TopicPartitions], names: Mapping[TopicId, str]
) -> tuple[PartitionName, ...]:
    return tuple(
        sorted(
            (names[TopicId(topic.topic_id)], partition)
            for topic in topics
            if TopicId(topic.topic_id) in names
            for partition in topic.partitions
        )
    )
