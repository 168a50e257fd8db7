"""Positions on the brokers under a name: finds the keeper of a name, and follows it.

Any broker may be asked; one that does not keep the name names the keeper. All requests are
idempotent: the first initial position stays, and a commit or a deletion can be repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from millrace.client import host
from millrace.client._cluster import wire
from millrace.client._cluster.cluster import Cluster, Connection, as_maybe
from millrace.core.errors import (
    Appended,
    ConnectionFailedError,
    MillraceError,
    RefreshMetadataError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import KnownLeader, TopicId, TopicPartition
from millrace.core.positions.position import REQUEST_POSITIONS_MAX, Position
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.proto.v1 import cluster_pb2, common_pb2
from millrace.proto.v1 import positions_pb2 as pb

_PAUSE_S: Final = 0.1
_KEEPERS_MAX: Final = 1000
_REQUEST_BYTES: Final = 512 << 10
"""Bytes of positions in one request; brokers take twice as many."""
_POSITION_BYTES: Final = 64
"""Bytes of one beside its metadata, at most."""
_ANSWER_S: Final = 5.0
"""Silence of a broker after which others are asked for the name's keeper: it may be paused."""


class _Response(Protocol):
    @property
    def error(self) -> common_pb2.Error: ...


_R = TypeVar("_R", bound=_Response)


class KeptPositions:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._keepers: dict[str | int, KnownLeader] = {}  # By name, or by part of all names.

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
                request = pb.CommitPositionsRequest(name=name, positions=await self._to_wire(some))
                answer: pb.CommitPositionsResponse = await connection.positions.CommitPositions(
                    request
                )
                return answer

            await self._ask(name, commit, some)

    async def fetch(self, name: str, kind: pb.PositionKind) -> dict[PartitionName, Position]:
        """See `Admin.fetch_positions`."""
        request = pb.FetchPositionsRequest(name=name, kind=kind)
        found: dict[TopicPartition, Position] = {}
        has_more = True
        while has_more:
            response: pb.FetchPositionsResponse = await self._ask(
                name, lambda connection: connection.positions.FetchPositions(request)
            )
            for each in response.positions:
                where = each.topic_partition
                found[TopicPartition(TopicId(where.topic_id), where.partition)] = _position(each)
                request.after.CopyFrom(where)
            has_more = response.has_more
        names = await self._names_of({each.topic_id for each in found})
        return dict(
            sorted(
                ((names[where.topic_id], where.partition), position)
                for where, position in found.items()
                if where.topic_id in names
            )
        )

    async def names(self) -> list[str]:
        """See `Admin.position_names`."""
        first, parts = await self._names_in(0)
        rest = await asyncio.gather(*map(self._names_in, range(1, parts)))
        return sorted([*first, *(name for names, _ in rest for name in names)])

    async def _names_in(self, part: int) -> tuple[list[str], int]:
        """Return the names of one part, and how many parts there are."""
        request = pb.ListNamesRequest(partition=part)
        names: list[str] = []
        while True:
            response: pb.ListNamesResponse = await self._ask(
                part, lambda connection: connection.positions.ListNames(request)
            )
            names += response.names
            if not response.has_more:
                return names, response.partitions
            request.after = names[-1]

    async def delete(self, name: str) -> None:
        """See `Admin.delete_positions`."""
        request = pb.DeletePositionsRequest(name=name)
        await self._ask(name, lambda connection: connection.positions.DeletePositions(request))

    # --- Private -----------------------------------------------------------------------------

    async def _look_up_topics(self, positions: Mapping[PartitionName, Position]) -> None:
        """Look up the topics of positions again.

        Raises:
            UnknownTopicOrPartitionError: one is not there.
        """
        names = {str(parse_topic_name(topic)) for topic, _ in positions}
        await self._cluster.refresh(names)
        for name in names:
            await self._cluster.topic(name)

    async def _to_wire(self, positions: Mapping[PartitionName, Position]) -> Sequence[pb.Position]:
        named = []
        for (topic, partition), position in positions.items():
            info = await self._cluster.topic(topic)
            named.append(
                pb.Position(
                    topic_partition=wire.partition_to_wire(
                        TopicPartition(info.topic_id, partition)
                    ),
                    offset=position.offset,
                    leader_epoch=position.leader_epoch,
                    metadata=position.metadata,
                )
            )
        return named

    async def _names_of(self, topic_ids: set[TopicId]) -> dict[TopicId, str]:
        """Return the names of those topics that are still there."""
        if not topic_ids:
            return {}
        request = cluster_pb2.GetMetadataRequest(topic_ids=sorted(topic_ids))
        response = await self._cluster.look_up(request)
        return {
            TopicId(topic.topic_id): str(parse_topic_name(topic.name))
            for topic in response.topics
            if not topic.error.code
        }

    async def _ask(
        self,
        key: str | int,
        method: Callable[[Connection], Awaitable[_R]],
        about: Mapping[PartitionName, Position] | None = None,
    ) -> _R:
        """Ask the keeper of a name, for as long as the client's time-out allows.

        Args:
            key: the name, or the part of all names.
            method: what to call.
            about: of the positions, whose topics a broker may not know yet, or any more.

        Raises:
            MillraceError: the last refusal when the time is over, or one that a retry cannot solve;
                with `appended` MAYBE, an attempt may have done it.
        """
        deadline = host.monotonic_s() + self._cluster.timeout_s
        in_doubt = False
        while True:
            keeper = self._keepers.get(key)
            try:
                response = await self._call(keeper, method)
                wire.raise_if_error(response.error, is_set=bool(response.error.code))
            except MillraceError as error:
                if not error.retriable:
                    raise
                in_doubt = in_doubt or error.appended is Appended.MAYBE
                if host.monotonic_s() + _PAUSE_S >= deadline:
                    raise (as_maybe(error) if in_doubt else error) from error.__cause__
                if self._learn(key, error):
                    continue
                if isinstance(error, UnknownTopicOrPartitionError) and about is not None:
                    await self._look_up_topics(about)
            else:
                return response
            await asyncio.sleep(_PAUSE_S)

    async def _call(
        self, keeper: KnownLeader | None, method: Callable[[Connection], Awaitable[_R]]
    ) -> _R:
        """Ask one broker, or any that answers.

        Raises:
            ConnectionFailedError: there is no answer, or not soon; with `appended` MAYBE where one
                was asked.
        """
        if keeper is None:
            return await self._cluster.call(method, attempt_s=_ANSWER_S)
        is_asked = False
        try:
            async with asyncio.timeout(_ANSWER_S):
                connection = await self._cluster.connection(keeper.address)
                is_asked = True
                return await self._cluster.on(connection, method)
        except TimeoutError:
            problem = ConnectionFailedError(
                f"the broker at {keeper.address} did not answer in {_ANSWER_S:g} s"
            )
        except ConnectionFailedError as error:
            problem = error
        raise (as_maybe(problem) if is_asked else problem) from problem.__cause__

    def _learn(self, key: str | int, error: MillraceError) -> bool:
        """Take the keeper that a refusal names; return whether it is a new one."""
        if isinstance(error, UnknownTopicOrPartitionError):
            return False  # It is about a topic.
        before = self._keepers.pop(key, None)
        named = error.leader if isinstance(error, RefreshMetadataError) else None
        if named is None or not named.address or named == before:
            return False
        if len(self._keepers) >= _KEEPERS_MAX:
            self._keepers.clear()
        self._keepers[key] = named
        return True


def _position(position: pb.Position) -> Position:
    return Position(position.offset, position.leader_epoch, position.metadata)


def _chunks(positions: Mapping[PartitionName, Position]) -> Iterator[dict[PartitionName, Position]]:
    """Yield parts that each fit into one request."""
    some: dict[PartitionName, Position] = {}
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
