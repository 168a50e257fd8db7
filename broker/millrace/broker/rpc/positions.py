"""The Positions service: readers' positions under a name, at the leader of the name's partition.

Any broker may be asked: one that does not lead names the leader. `__positions` is created for the
first position.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import grpc

from millrace.broker.peers.controller_channel import ControllerChannel
from millrace.broker.rpc.calls import Calls
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_partition
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.positions import PositionsRuntime
from millrace.broker.runtime.turns import Turns
from millrace.client import host
from millrace.core.callers import Caller
from millrace.core.coordinators import Result
from millrace.core.errors import (
    MalformedRequestError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import TOPIC_ID_BYTES, TopicId, TopicPartition
from millrace.core.metadata.model import Topic
from millrace.core.metadata.requests import CreatePositionsTopic
from millrace.core.positions.position import (
    REQUEST_POSITIONS_MAX,
    Kind,
    Position,
    check_name,
)
from millrace.core.producer.murmur2 import partition_of
from millrace.core.topics import POSITIONS_TOPIC
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import common_pb2
from millrace.proto.v1 import positions_pb2 as pb

NAMES_AT_ONCE: Final = 10_000
_KINDS: Final = {
    pb.POSITION_KIND_INITIAL: Kind.INITIAL,
    pb.POSITION_KIND_COMMITTED: Kind.COMMITTED,
}


class PositionsService:
    """Serves `millrace.proto.v1.Positions`."""

    NAME = pb.DESCRIPTOR.services_by_name["Positions"].full_name

    def __init__(
        self,
        *,
        positions: PositionsRuntime,
        partitions: Partitions,
        channel: ControllerChannel,
        turns: Turns,
        calls: Calls,
    ) -> None:
        self._positions = positions
        self._partitions = partitions
        self._channel = channel
        self._calls = calls
        self._listener = calls.listener
        self._turns = turns

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers to register."""
        return self._calls.handlers(
            self.NAME,
            unary={
                "ResolveInitial": (self._resolve_initial, pb.ResolveInitialRequest),
                "CommitPositions": (self._commit, pb.CommitPositionsRequest),
                "FetchPositions": (self._fetch, pb.FetchPositionsRequest),
                "ListNames": (self._list_names, pb.ListNamesRequest),
                "DeletePositions": (self._delete, pb.DeletePositionsRequest),
            },
        )

    async def _resolve_initial(
        self, request: pb.ResolveInitialRequest, caller: Caller
    ) -> pb.ResolveInitialResponse:
        name = request.name
        try:
            place = await self._place_to_write(name, caller)
            proposals = await self._positions_of(request.proposals)
            found = await self._positions.ask(
                place, lambda machine, now: machine.handle_resolve_initial(name, proposals, now)
            )
        except MillraceError as error:
            return pb.ResolveInitialResponse(error=self._error(name, error))
        return pb.ResolveInitialResponse(positions=_to_wire(found))

    async def _commit(
        self, request: pb.CommitPositionsRequest, caller: Caller
    ) -> pb.CommitPositionsResponse:
        name = request.name
        try:
            place = await self._place_to_write(name, caller)
            positions = await self._positions_of(request.positions)
            await self._positions.ask(
                place, lambda machine, now: machine.handle_commit(name, positions, now)
            )
        except MillraceError as error:
            return pb.CommitPositionsResponse(error=self._error(name, error))
        return pb.CommitPositionsResponse()

    async def _fetch(
        self, request: pb.FetchPositionsRequest, _: object
    ) -> pb.FetchPositionsResponse:
        name = request.name
        try:
            kind = _KINDS.get(request.kind)
            if kind is None:
                raise MalformedRequestError("name a kind of positions: initial or committed ones")
            check_name(name)
            place = self._place(name)
            if place is None:
                return pb.FetchPositionsResponse()
            found = await self._positions.ask(
                place, lambda machine, _: Result([], machine.positions(name, kind))
            )
        except MillraceError as error:
            return pb.FetchPositionsResponse(error=self._error(name, error))
        if request.HasField("after"):
            after = TopicPartition(TopicId(request.after.topic_id), request.after.partition)
            found = {each: position for each, position in found.items() if each > after}
        page = dict(islice(found.items(), REQUEST_POSITIONS_MAX))
        return pb.FetchPositionsResponse(positions=_to_wire(page), has_more=len(page) < len(found))

    async def _list_names(self, request: pb.ListNamesRequest, _: object) -> pb.ListNamesResponse:
        topic = self._topic()
        if topic is None:
            return pb.ListNamesResponse()
        partitions = len(topic.partitions)
        place = TopicPartition(topic.topic_id, request.partition)
        try:
            if request.partition >= partitions:
                raise MalformedRequestError(
                    f"the names are in the parts 0 to {partitions - 1}, not in {request.partition}"
                )
            names = await self._positions.ask(place, lambda machine, _: Result([], machine.names()))
        except MillraceError as error:
            wire = wire_error(self._partitions, error, place, self._listener)
            return pb.ListNamesResponse(error=wire, partitions=partitions)
        names = [each for each in names if each > request.after]
        return pb.ListNamesResponse(
            names=names[:NAMES_AT_ONCE],
            has_more=len(names) > NAMES_AT_ONCE,
            partitions=partitions,
        )

    async def _delete(
        self, request: pb.DeletePositionsRequest, _: object
    ) -> pb.DeletePositionsResponse:
        name = request.name
        try:
            check_name(name)
            place = self._place(name)
            if place is not None:
                await self._positions.ask(
                    place, lambda machine, now: machine.handle_delete(name, now)
                )
        except MillraceError as error:
            return pb.DeletePositionsResponse(error=self._error(name, error))
        return pb.DeletePositionsResponse()

    # --- The partition of a name --------------------------------------------------------------

    def _topic(self) -> Topic | None:
        image = self._partitions.image
        return None if image is None else image.topics.get(POSITIONS_TOPIC)

    def _place(self, name: str) -> TopicPartition | None:
        """Return the partition of a name; None: there are no positions at all."""
        topic = self._topic()
        if topic is None:
            return None
        return TopicPartition(topic.topic_id, partition_of(name.encode(), len(topic.partitions)))

    async def _place_to_write(self, name: str, caller: Caller) -> TopicPartition:
        """Return the partition of a name; create the topic if necessary.

        Raises:
            MillraceError: the name is invalid, or the topic cannot be created.
        """
        check_name(name)
        place = self._place(name)
        if place is None:
            topic_id = TopicId(host.current.random_bytes(TOPIC_ID_BYTES))
            await self._channel.request_for_client(CreatePositionsTopic(topic_id=topic_id), caller)
            await self._partitions.settled()
            place = self._place(name)
            assert place is not None  # An answer comes after the metadata that it rests on.
        return place

    async def _positions_of(
        self, named: Iterable[pb.Position]
    ) -> Mapping[TopicPartition, Position]:
        """Return the positions of a request.

        Raises:
            MalformedRequestError: no topic id, or a partition twice.
            UnknownTopicOrPartitionError: of a topic that is not there.
        """
        image = self._partitions.image
        work = self._turns.work()
        positions: dict[TopicPartition, Position] = {}
        for each in named:
            await work.give_way()
            where = each.topic_partition
            topic_partition = checked_topic_partition(where.topic_id, where.partition)
            if topic_partition in positions:
                raise MalformedRequestError(
                    "it is named twice in one request", topic_partition=topic_partition
                )
            if image is None or image.partition(topic_partition) is None:
                raise UnknownTopicOrPartitionError(
                    "there is no such partition: refresh the metadata",
                    topic_partition=topic_partition,
                )
            positions[topic_partition] = Position(each.offset, each.leader_epoch, each.metadata)
        return positions

    def _error(self, name: str, error: MillraceError) -> common_pb2.Error:
        place = self._place(name)
        if place is None:
            return error_to_wire(error, is_write=True)
        return wire_error(self._partitions, error, place, self._listener, is_write=True)


def _to_wire(positions: Mapping[TopicPartition, Position]) -> list[pb.Position]:
    return [
        pb.Position(
            topic_partition=common_pb2.TopicPartition(
                topic_id=where.topic_id, partition=where.partition
            ),
            offset=position.offset,
            leader_epoch=position.leader_epoch,
            metadata=position.metadata,
        )
        for where, position in positions.items()
    ]
