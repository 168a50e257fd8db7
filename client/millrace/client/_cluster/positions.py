"""Positions on the brokers under a name.

All requests are idempotent: the first initial position stays, and a commit or a deletion can be
repeated. A member of a group numbers its commits, so that an attempt that arrives late changes
nothing.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from millrace.client._cluster import wire
from millrace.client._cluster.cluster import Cluster, Connection
from millrace.client._cluster.coordinators import ANSWER_S, AnswerT, Coordinators
from millrace.core.coordinator.positions.position import (
    REQUEST_POSITIONS_MAX,
    Position,
    check_place,
)
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.proto.v1 import cluster_pb2
from millrace.proto.v1 import positions_pb2 as pb

_REQUEST_BYTES: Final = 512 << 10
"""Bytes of positions in one request; brokers take twice as many."""
_TOPICS_MAX: Final = 1_000
"""Topics in one request."""
_POSITION_BYTES: Final = 64
"""Bytes of one beside its metadata, at most."""

PlaceT = TypeVar("PlaceT", PartitionName, TopicPartition)


class KeptPositions:
    """See the module."""

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

            async def resolve(
                connection: Connection, some: Mapping[PartitionName, Position] = some
            ) -> pb.ResolveInitialResponse:
                request = pb.ResolveInitialRequest(name=name, proposals=await self._to_wire(some))
                answer: pb.ResolveInitialResponse = await connection.positions.ResolveInitial(
                    request
                )
                return answer

            response = await self._ask(name, resolve, some)
            for place, position in zip(some, response.positions, strict=True):
                resolved[place] = _position(position)
        return resolved

    async def commit(self, name: str, positions: Mapping[PartitionName, Position]) -> None:
        """See `Admin.commit_positions`."""
        for some in _chunks(positions):

            async def commit(
                connection: Connection, some: Mapping[PartitionName, Position] = some
            ) -> pb.CommitPositionsResponse:
                request = pb.CommitPositionsRequest(
                    name=name, positions=await self._to_wire(some), epoch=-1
                )
                answer: pb.CommitPositionsResponse = await connection.positions.CommitPositions(
                    request
                )
                return answer

            await self._ask(name, commit, some)

    async def commit_as_member(
        self,
        group: str,
        positions: Mapping[TopicPartition, Position],
        *,
        member_id: str,
        epoch: int,
        number: int,
    ) -> set[TopicPartition]:
        """Commit positions of partitions that a member owns; leave out deleted topics.

        Args:
            group: the group.
            positions: by topic id: another topic may have the name by now.
            member_id: of the member.
            epoch: of its assignment.
            number: of its commit.

        Returns:
            The partitions that are left out.
        """
        gone: set[TopicPartition] = set()
        for some in _chunks(positions):

            async def commit(
                connection: Connection, some: Mapping[TopicPartition, Position] = some
            ) -> pb.CommitPositionsResponse:
                request = pb.CommitPositionsRequest(
                    name=group, member_id=member_id, epoch=epoch, number=number
                )
                for place, position in some.items():
                    if place not in gone:
                        request.positions.append(_position_to_wire(place, position))
                if not request.positions:
                    return pb.CommitPositionsResponse()
                answer: pb.CommitPositionsResponse = await connection.positions.CommitPositions(
                    request
                )
                return answer

            async def find_gone(some: Mapping[TopicPartition, Position] = some) -> None:
                names = await self._cluster.names_of({each.topic_id for each in some})
                gone.update(each for each in some if each.topic_id not in names)

            await self._coordinators.ask(group, commit, find_gone)
        return gone

    async def fetch(self, name: str, kind: pb.PositionKind) -> dict[PartitionName, Position]:
        """See `Admin.fetch_positions`."""
        found = await self.fetch_by_id(name, kind)
        names = await self._cluster.names_of({each.topic_id for each in found})
        return dict(
            sorted(
                ((names[where.topic_id], where.partition), position)
                for where, position in found.items()
                if where.topic_id in names
            )
        )

    async def fetch_by_id(self, name: str, kind: pb.PositionKind) -> dict[TopicPartition, Position]:
        """Likewise, also of topics that a broker does not know yet, or any more."""
        request = pb.FetchPositionsRequest(name=name, kind=kind)
        found: dict[TopicPartition, Position] = {}
        has_more = True
        while has_more:
            response: pb.FetchPositionsResponse = await self._coordinators.ask(
                name, lambda connection: connection.positions.FetchPositions(request)
            )
            for each in response.positions:
                where = each.topic_partition
                found[TopicPartition(TopicId(where.topic_id), where.partition)] = _position(each)
                request.after.CopyFrom(where)
            has_more = response.has_more
        return found

    async def names_before(self) -> dict[TopicId, str]:
        """Return the names that deleted topics had, of those that can be brought back."""

        async def ask(connection: Connection) -> cluster_pb2.ListDeletedTopicsResponse:
            answer: cluster_pb2.ListDeletedTopicsResponse
            answer = await connection.cluster.ListDeletedTopics(
                cluster_pb2.ListDeletedTopicsRequest()
            )
            return answer

        answer = await self._cluster.call(ask, attempt_s=lambda: ANSWER_S)
        return {TopicId(each.topic_id): each.name for each in answer.topics}

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
        ids = [(await self._cluster.topic(each)).topic_id for each in sorted(names)]
        for start in range(0, len(ids), _TOPICS_MAX):
            request = pb.ForgetTopicsRequest(name=name, topic_ids=ids[start : start + _TOPICS_MAX])

            async def forget(
                connection: Connection, request: pb.ForgetTopicsRequest = request
            ) -> pb.ForgetTopicsResponse:
                answer: pb.ForgetTopicsResponse = await connection.positions.ForgetTopics(request)
                return answer

            await self._coordinators.ask(name, forget)

    # --- Private -----------------------------------------------------------------------------

    async def _ask(
        self,
        name: str,
        method: Callable[[Connection], Awaitable[AnswerT]],
        about: Mapping[PartitionName, Position],
    ) -> AnswerT:
        """Ask about partitions, whose topics a broker may not know yet, or any more."""
        return await self._coordinators.ask(name, method, lambda: self._look_up_topics(about))

    async def _look_up_topics(self, positions: Mapping[PartitionName, Position]) -> None:
        """Look up the topics of positions again.

        Raises:
            UnknownTopicOrPartitionError: one is not there.
        """
        names = {str(parse_topic_name(topic)) for topic, _ in positions}
        await self._cluster.look_for_news(names)
        for name in names:
            await self._cluster.topic(name)

    async def _to_wire(self, positions: Mapping[PartitionName, Position]) -> Sequence[pb.Position]:
        named = []
        for (topic, partition), position in positions.items():
            info = await self._cluster.topic(topic)
            named.append(_position_to_wire(TopicPartition(info.topic_id, partition), position))
        return named


def _position_to_wire(place: TopicPartition, position: Position) -> pb.Position:
    check_place(position)
    return pb.Position(
        topic_partition=wire.partition_to_wire(place),
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        metadata=position.metadata,
    )


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
