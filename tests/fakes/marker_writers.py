"""A broker that writes markers as a test wants, and the metadata that name it."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from millrace.core.errors import MillraceError, NotEnoughReplicasError
from millrace.core.ids import BrokerId, TopicId, TopicPartition
from millrace.core.topics import POSITIONS_TOPIC
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import transactions_pb2 as pb

HERE, NOWHERE = BrokerId(1), BrokerId(2)


class MarkersImage:
    """Metadata in which one broker leads everything, unless the test says otherwise."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, BrokerId] = {}
        self.unknown: set[TopicId] = set()
        self.deleted: set[TopicId] = set()
        positions = SimpleNamespace(
            topic_id=TopicId(b"positions".ljust(16)), partitions=[SimpleNamespace(leader=HERE)]
        )
        self.topics: dict[Any, Any] = {POSITIONS_TOPIC: positions}

    def partition(self, place: TopicPartition) -> Any:
        if place.topic_id in self.unknown | self.deleted:
            return None
        return SimpleNamespace(leader=self.leaders.get(place, HERE))

    @property
    def topics_by_id(self) -> Any:
        image = self

        class Topics:
            def __contains__(self, topic_id: TopicId) -> bool:
                return topic_id not in image.unknown | image.deleted

        return Topics()

    def may_return(self, topic_id: TopicId) -> bool:
        return topic_id in self.deleted

    def broker(self, broker_id: BrokerId) -> None:
        return None


class MarkerLeader:
    """Writes what it is told, but for what it cannot.

    Attributes:
        calls: the markers of each call.
        written: all that is written: (place or group, producer id, epoch, is it a commit).
        cannot: places and groups that it refuses.
        slow: places and groups for which an answer waits until `may_answer`.
    """

    def __init__(self) -> None:
        self.calls: list[pb.WriteMarkersRequest] = []
        self.written: list[tuple[object, int, int, bool]] = []
        self.cannot: set[object] = set()
        self.slow: set[object] = set()
        self.may_answer = asyncio.Event()
        self.answers: Callable[[pb.WriteMarkersResponse], pb.WriteMarkersResponse] = lambda x: x

    async def write(self, request: pb.WriteMarkersRequest) -> pb.WriteMarkersResponse:
        self.calls.append(request)
        response = pb.WriteMarkersResponse()
        for marker in request.markers:
            places: list[object] = [
                TopicPartition(TopicId(place.topic_id), place.partition)
                for place in marker.partitions
            ]
            for participant in [*places, *marker.groups]:
                if participant in self.slow:
                    await self.may_answer.wait()
                if participant in self.cannot:
                    error: MillraceError = NotEnoughReplicasError("too few replicas are in sync")
                    response.results.add(error=error_to_wire(error))
                    continue
                response.results.add()
                self.written.append(
                    (participant, marker.producer_id, marker.producer_epoch, marker.committed)
                )
        return self.answers(response)

    def has(self, participant: object) -> bool:
        """Whether a marker is written there."""
        return any(written[0] == participant for written in self.written)
