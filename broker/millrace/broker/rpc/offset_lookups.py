"""Look-ups of offsets, by position or time and by leader epoch: the Fetch service's short calls."""

from collections.abc import Callable

from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_partition
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.storage.time_search import TimestampedOffset
from millrace.core.errors import CorruptLogError, MalformedRequestError, MillraceError
from millrace.core.ids import (
    NO_TIMESTAMP,
    UNKNOWN_OFFSET,
    LeaderEpoch,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1.common_pb2 import Error
from millrace.proto.v1.common_pb2 import TopicPartition as NamedPartition


class OffsetLookups:
    """Answers them from the partitions that this broker leads."""

    def __init__(self, partitions: Partitions, reader: LogReader) -> None:
        self._partitions = partitions
        self._reader = reader

    async def list_offsets(
        self, request: pb.ListOffsetsRequest, _: object
    ) -> pb.ListOffsetsResponse:
        offsets = []
        for query in request.partitions:
            try:
                offsets.append(await self._list_offset(query))
            except MillraceError as error:
                self._note_damage(query.topic_partition, error)
                found = self._error(query.topic_partition, error)
                offsets.append(pb.ListedOffset(error=found, offset=-1, timestamp=-1))
        return pb.ListOffsetsResponse(offsets=offsets)

    def _note_damage(self, named: NamedPartition, error: MillraceError) -> None:
        """A log that was found damaged is damaged for everybody (P65)."""
        if isinstance(error, CorruptLogError):
            self._partitions.take_offline(_checked(named), error)

    def _error(self, named: NamedPartition, error: MillraceError) -> Error:
        topic_partition = TopicPartition(TopicId(named.topic_id), named.partition)
        return wire_error(self._partitions, error, topic_partition)

    async def _list_offset(self, query: pb.ListOffsetsPartition) -> pb.ListedOffset:
        partition = self._partitions.get(_checked(query.topic_partition))
        leader = partition.leader
        leader.check_epoch(LeaderEpoch(query.current_leader_epoch))
        position = query.WhichOneof("position")
        if position != "earliest":
            leader.check_end_offset()
        end = leader.last_stable_offset
        timestamp = NO_TIMESTAMP
        match position:
            case "earliest":
                offset = partition.log.log_start_offset
            case "latest":
                offset = end
            case "max_timestamp":
                offset, timestamp = await self._look_up(
                    partition.log.offset_of_largest_timestamp, end
                )
            case "timestamp":
                offset, timestamp = await self._look_up(
                    partition.log.offset_for_timestamp, WallMs(query.timestamp), end
                )
            case _:
                raise MalformedRequestError("name a position: earliest, latest or a timestamp")
        return pb.ListedOffset(
            offset=offset,
            timestamp=timestamp,
            leader_epoch=partition.log.leader_epochs.epoch_of(offset),
        )

    async def _look_up(
        self, search: Callable[..., TimestampedOffset | None], *args: int
    ) -> TimestampedOffset:
        found = await self._reader.call(search, *args)
        return found or TimestampedOffset(UNKNOWN_OFFSET, NO_TIMESTAMP)

    async def offsets_for_leader_epoch(
        self, request: pb.OffsetsForLeaderEpochRequest, _: object
    ) -> pb.OffsetsForLeaderEpochResponse:
        results = []
        for query in request.partitions:
            try:
                partition = self._partitions.get(_checked(query.topic_partition))
                leader = partition.leader
                leader.check_epoch(LeaderEpoch(query.current_leader_epoch))
                end = leader.end_offset_for(
                    LeaderEpoch(query.leader_epoch), partition.log.leader_epochs
                )
                found = pb.EpochEndOffset(leader_epoch=end.epoch, end_offset=end.end_offset)
                results.append(pb.LeaderEpochResult(end=found))
            except MillraceError as error:
                results.append(
                    pb.LeaderEpochResult(error=self._error(query.topic_partition, error))
                )
        return pb.OffsetsForLeaderEpochResponse(results=results)


def _checked(named: NamedPartition) -> TopicPartition:
    return checked_topic_partition(named.topic_id, named.partition)
