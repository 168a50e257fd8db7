"""Positions on the brokers under a name.

All requests are idempotent: the first initial position stays, and a commit or a deletion can be
repeated. A member of a group numbers its commits, so that an attempt that arrives late changes
nothing.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from millrace.client._cluster import wire
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.coordinators import ANSWER_S, AnswerT, Coordinators
from millrace.core.coordinator.positions.position import (
    REQUEST_POSITIONS_MAX,
    Position,
    check_place,
)
from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, TopicPartition
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.proto.v1 import cluster_pb2
from millrace.proto.v1 import positions_pb2 as pb

_REQUEST_BYTES: Final = 512 << 10
"""Bytes of positions in one request; brokers take twice as many."""
_STABLE_MAX: Final = 5_000
"""Partitions that a look-up names."""
_TOPICS_MAX: Final = 1_000
"""Topics in one request."""
_POSITION_BYTES: Final = 64
"""Bytes of one beside its metadata, at most."""

PlaceT = TypeVar("PlaceT", PartitionName, TopicPartition)


class Within(NamedTuple):
    """The transaction that positions are part of.

    Attributes:
        on_asked: called before a request with positions leaves: the coordinator of the transaction
            may hear of it.
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    on_asked: Callable[[], None]


class KeptPositions:
    """The requests about positions."""

    def __init__(self, cluster: Cluster, coordinators: Coordinators) -> None:
        self._cluster = cluster
        self._coordinators = coordinators

    async def resolve_initial(
        self, name: str, proposals: Mapping[PartitionName, Position]
    ) -> dict[PartitionName, Position]:
        """See `Admin.resolve_initial`."""
        # Positions are kept by topic id: a recreated topic is another one.
        await self._look_up_topics(proposals)
        resolved: dict[PartitionName, Position] = {}
        for some in _chunks(proposals):
            response: pb.ResolveInitialResponse = await self._ask(
                name,
                some,
                lambda connection, sent: connection.positions.ResolveInitial(
                    pb.ResolveInitialRequest(name=name, proposals=sent)
                ),
            )
            for place, position in wire.paired(some, response.positions):
                resolved[place] = _position(position)
        return resolved

    async def commit(self, name: str, positions: Mapping[PartitionName, Position]) -> None:
        """See `Admin.commit_positions`."""
        for some in _chunks(positions):
            await self._ask(
                name,
                some,
                lambda connection, sent: connection.positions.CommitPositions(
                    pb.CommitPositionsRequest(name=name, positions=sent, epoch=-1)
                ),
            )

    async def commit_as_member(
        self,
        group: str,
        positions: Mapping[TopicPartition, Position],
        *,
        member_id: str,
        epoch: int,
        number: int,
        within: Within | None = None,
    ) -> set[TopicPartition]:
        """Commit positions of partitions that a member owns; leave out deleted topics.

        Args:
            group: the group.
            positions: by topic id: another topic may have the name by now.
            member_id: of the member.
            epoch: of its assignment.
            number: of its commit.
            within: the transaction that they are part of; None: they count at once.

        Returns:
            The partitions that are left out.
        """
        gone: set[TopicPartition] = set()

        async def commit(
            some: Mapping[TopicPartition, Position], connection: Connection
        ) -> pb.CommitPositionsResponse:
            left = [
                _position_to_wire(place, position)
                for place, position in some.items()
                if place not in gone
            ]
            if not left:
                return pb.CommitPositionsResponse()
            request = pb.CommitPositionsRequest(
                name=group, member_id=member_id, epoch=epoch, number=number, positions=left
            )
            if within is not None:
                request.transactional_id = within.transactional_id
                request.producer_id = within.producer_id
                request.producer_epoch = within.producer_epoch
                within.on_asked()
            answer: pb.CommitPositionsResponse
            answer = await connection.positions.CommitPositions(request)
            return answer

        async def find_gone(some: Mapping[TopicPartition, Position]) -> None:
            names = await self._cluster.names_of({place.topic_id for place in some})
            gone.update(place for place in some if place.topic_id not in names)

        for some in _chunks(positions):
            await self._coordinators.ask(group, partial(commit, some), partial(find_gone, some))
        return gone

    async def fetch(self, name: str, kind: pb.PositionKind) -> dict[PartitionName, Position]:
        """See `Admin.fetch_positions`."""
        found = await self.fetch_by_id(name, kind)
        names = await self._cluster.names_of({place.topic_id for place in found})
        named = {
            (names[where.topic_id], where.partition): position
            for where, position in found.items()
            if where.topic_id in names
        }
        return dict(sorted(named.items()))

    async def fetch_by_id(
        self,
        name: str,
        kind: pb.PositionKind,
        *,
        require_stable: bool = False,
        stable: Collection[TopicPartition] = (),
    ) -> dict[TopicPartition, Position]:
        """Return the positions of `fetch`, also in topics that a broker does not know by now.

        Args:
            name: whose.
            kind: which of its positions.
            require_stable: wait for transactions that commit some of them.
            stable: with `require_stable`, wait only for transactions that commit a position of one
                of these partitions; empty, or very many: wait for all.

        Raises:
            UnstablePositionsError: a transaction has not ended in the client's time-out.
            MillraceError: as any request.
        """
        request = pb.FetchPositionsRequest(name=name, kind=kind, require_stable=require_stable)
        if len(stable) <= _STABLE_MAX:
            for topic_id, number in stable:
                request.stable_partitions.add(topic_id=topic_id, partition=number)
        found: dict[TopicPartition, Position] = {}
        last: TopicPartition | None = None
        has_more = True
        while has_more:
            response: pb.FetchPositionsResponse = await self._coordinators.ask(
                name, lambda connection: connection.positions.FetchPositions(request)
            )
            page = {_place(position): _position(position) for position in response.positions}
            found |= page
            has_more = response.has_more
            if has_more:
                last = wire.last_of([*page], last)
                request.after.topic_id, request.after.partition = last
        return found

    async def names_before(self) -> dict[TopicId, str]:
        """Return the names that deleted topics had, of those that can be brought back."""
        request = cluster_pb2.ListDeletedTopicsRequest()
        answer: cluster_pb2.ListDeletedTopicsResponse = await self._cluster.call(
            lambda connection: connection.cluster.ListDeletedTopics(request),
            attempt_s=lambda: ANSWER_S,
        )
        return {TopicId(topic.topic_id): topic.name for topic in answer.topics}

    async def delete(self, name: str) -> None:
        """See `Admin.delete_group`."""
        request = pb.DeletePositionsRequest(name=name)
        await self._coordinators.ask(
            name, lambda connection: connection.positions.DeletePositions(request)
        )

    async def forget_topics(self, name: str, topics: Collection[str]) -> None:
        """See `Admin.forget_topics`."""
        names = {str(parse_topic_name(topic)) for topic in topics}
        await self._cluster.refresh(names)
        ids = [(await self._cluster.topic(topic)).topic_id for topic in sorted(names)]
        request = pb.ForgetTopicsRequest(name=name)
        for start in range(0, len(ids), _TOPICS_MAX):
            request.topic_ids[:] = ids[start : start + _TOPICS_MAX]
            await self._coordinators.ask(
                name, lambda connection: connection.positions.ForgetTopics(request)
            )

    async def _ask(
        self,
        name: str,
        about: Mapping[PartitionName, Position],
        method: Callable[[Connection, Sequence[pb.Position]], Awaitable[AnswerT]],
    ) -> AnswerT:
        """Ask about positions, whose topics a broker may not know yet, or any more."""

        async def ask(connection: Connection) -> AnswerT:
            sent = []
            for (topic, partition), position in about.items():
                topic_id = (await self._cluster.topic(topic)).topic_id
                sent.append(_position_to_wire(TopicPartition(topic_id, partition), position))
            return await method(connection, sent)

        return await self._coordinators.ask(name, ask, lambda: self._look_up_topics(about))

    async def _look_up_topics(self, positions: Mapping[PartitionName, Position]) -> None:
        """Look up the topics of positions again.

        Raises:
            UnknownTopicOrPartitionError: one is not there.
        """
        names = {str(parse_topic_name(topic)) for topic, _ in positions}
        await self._cluster.look_for_news(names)
        for name in names:
            await self._cluster.topic(name)


def _position_to_wire(place: TopicPartition, position: Position) -> pb.Position:
    check_place(position)
    return pb.Position(
        topic_partition=wire.partition_to_wire(place),
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        metadata=position.metadata,
    )


def _place(position: pb.Position) -> TopicPartition:
    where = position.topic_partition
    return TopicPartition(TopicId(where.topic_id), where.partition)


def _position(position: pb.Position) -> Position:
    return Position(position.offset, position.leader_epoch, position.metadata)


def _chunks(positions: Mapping[PlaceT, Position]) -> Iterator[dict[PlaceT, Position]]:
    """Yield parts that each fit into one request."""
    some: dict[PlaceT, Position] = {}
    size = 0
    for place, position in positions.items():
        length = _POSITION_BYTES + len(position.metadata.encode())
        if len(some) == REQUEST_POSITIONS_MAX or (some and size + length > _REQUEST_BYTES):
            yield some
            some, size = {}, 0
        some[place] = position
        size += length
    if some:
        yield some
