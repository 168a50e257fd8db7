"""Look-ups of offsets, by position or time and by leader epoch: short calls of the Fetch service.

A look-up of ends may wait until one has moved: a planner of other readers needs no fetch session.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from millrace.broker.guard.callers import GuardedCaller, TopicAccess, check_topic
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.reader import LogReader
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_partition
from millrace.broker.rpc.resources import TopicResources
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.time_search import TimestampedOffset
from millrace.core.errors import CorruptLogError, MalformedRequestError, MillraceError
from millrace.core.guard.access import Operation
from millrace.core.ids import (
    NO_TIMESTAMP,
    UNKNOWN_OFFSET,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.model import Listener
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1.common_pb2 import Error
from millrace.proto.v1.common_pb2 import TopicPartition as NamedPartition
from millrace.runtime.turns import Turns


class OffsetLookups:
    """Answers look-ups from the partitions that this broker leads.

    Args:
        partitions: of this broker.
        reader: of their logs.
        turns: of the loop.
        wait_ms_max: for how long a look-up may wait.
        listener: that the callers come through.
    """

    def __init__(
        self,
        partitions: Partitions,
        reader: LogReader,
        turns: Turns,
        *,
        wait_ms_max: int,
        listener: Listener,
    ) -> None:
        self._partitions = partitions
        self._reader = reader
        self._turns = turns
        self._wait_ms_max = wait_ms_max
        self._listener = listener
        self._topics = TopicResources(lambda: partitions.image)
        self._waits: set[_Wait] = set()
        self._is_ending = False

    def end_waits(self) -> None:
        """Answer at once from now on, because the broker stops."""
        self._is_ending = True
        for wait in self._waits:
            wait.is_over.set()

    async def list_offsets(
        self, request: pb.ListOffsetsRequest, caller: GuardedCaller
    ) -> pb.ListOffsetsResponse:
        allowed = caller.on_topics(Operation.DESCRIBE, self._topics.of)
        if request.max_wait_ms and not self._is_ending and _all_seen(allowed, request.partitions):
            await self._wait(request)
        offsets = []
        read_committed = _reads_committed(request)
        reader = self._reader.of(caller.owner)
        work = self._turns.work()
        for query in request.partitions:
            await work.give_way()
            try:
                check_topic(allowed, TopicId(query.topic_partition.topic_id))
                found = await self._list_offset(query, reader, read_committed=read_committed)
                offsets.append(found)
            except MillraceError as error:
                self._note_damage(query.topic_partition, error)
                refused = self._error(query.topic_partition, error)
                offsets.append(pb.ListedOffset(error=refused, offset=-1, timestamp=-1))
        return pb.ListOffsetsResponse(offsets=offsets)

    async def _wait(self, request: pb.ListOffsetsRequest) -> None:
        """Wait until an end moves, a partition fails, or the time is over."""
        wait = _Wait(request)
        self._waits.add(wait)
        work = self._turns.work()
        try:
            for number, query in enumerate(request.partitions):
                await work.give_way()
                partition = self._partitions.find(_checked(query.topic_partition))
                if partition is None:
                    return
                wait.follow(partition, number)
                wait.on_advanced(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(request.max_wait_ms, self._wait_ms_max) / 1000):
                    await wait.is_over.wait()
        finally:
            wait.close()
            self._waits.remove(wait)

    def _note_damage(self, named: NamedPartition, error: MillraceError) -> None:
        """Take a damaged log offline for all readers (P65)."""
        if isinstance(error, CorruptLogError):
            self._partitions.take_offline(_checked(named), error)

    def _error(self, named: NamedPartition, error: MillraceError) -> Error:
        topic_partition = TopicPartition(TopicId(named.topic_id), named.partition)
        return wire_error(self._partitions, error, topic_partition, self._listener)

    async def _list_offset(
        self, query: pb.ListOffsetsPartition, reader: LogReader, *, read_committed: bool
    ) -> pb.ListedOffset:
        partition = self._partitions.get(_checked(query.topic_partition))
        leader, log = partition.leader, partition.log
        leader.check_epoch(LeaderEpoch(query.current_leader_epoch))
        position = query.WhichOneof("position")
        if position != "earliest":
            leader.check_end_offset()
        end = leader.last_stable_offset if read_committed else leader.high_watermark
        timestamp = NO_TIMESTAMP
        match position:
            case "earliest":
                offset = log.log_start_offset
            case "latest" | "latest_after":
                offset = end
            case "max_timestamp":
                offset, timestamp = await _look_up(
                    reader, log, log.reader.offset_of_largest_timestamp, end
                )
            case "timestamp":
                offset, timestamp = await _look_up(
                    reader, log, log.reader.offset_for_timestamp, WallMs(query.timestamp), end
                )
            case "bytes_after":
                start = Offset(query.bytes_after.offset)
                offset = await reader.call(
                    log.log_dir_of(start),
                    log.reader.offset_after_bytes,
                    start,
                    query.bytes_after.size,
                    end,
                )
            case _:
                raise MalformedRequestError(
                    "name a position: earliest, latest, a timestamp, or bytes after an offset"
                )
        return pb.ListedOffset(
            offset=offset,
            timestamp=timestamp,
            leader_epoch=log.leader_epochs.epoch_of(offset),
        )

    async def offsets_for_leader_epoch(
        self, request: pb.OffsetsForLeaderEpochRequest, caller: GuardedCaller
    ) -> pb.OffsetsForLeaderEpochResponse:
        allowed = caller.on_topics(Operation.DESCRIBE, self._topics.of)
        results = []
        work = self._turns.work()
        for query in request.partitions:
            await work.give_way()
            try:
                check_topic(allowed, TopicId(query.topic_partition.topic_id))
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


class _Wait:
    """A look-up that waits; a `Reader` of the partitions that it asks about."""

    def __init__(self, request: pb.ListOffsetsRequest) -> None:
        self._queries = list(request.partitions)
        self._read_committed = _reads_committed(request)
        self._followed: dict[int, Partition] = {}
        self.is_over = asyncio.Event()

    def follow(self, partition: Partition, number: int) -> None:
        self._followed[number] = partition
        partition.follow(self, number)

    def on_advanced(self, handle: int) -> None:
        """Check whether the end of this query's partition has moved."""
        query = self._queries[handle]
        try:
            leader = self._followed[handle].leader
            leader.check_epoch(LeaderEpoch(query.current_leader_epoch))
        except MillraceError:
            self.is_over.set()
            return
        if query.WhichOneof("position") == "latest_after":
            end = leader.last_stable_offset if self._read_committed else leader.high_watermark
            if end != query.latest_after:
                self.is_over.set()

    def close(self) -> None:
        for number, partition in self._followed.items():
            partition.leave(self, number)


def _all_seen(allowed: TopicAccess | None, queries: Iterable[pb.ListOffsetsPartition]) -> bool:
    """Return whether a caller may see all topics: what is refused is told at once."""
    return allowed is None or not any(
        allowed.refusal(TopicId(query.topic_partition.topic_id)) for query in queries
    )


async def _look_up(
    reader: LogReader,
    log: PartitionLog,
    search: Callable[..., TimestampedOffset | None],
    *args: int,
) -> TimestampedOffset:
    # On a thread of the disk with the oldest segments, which may all be read.
    log_dir = log.log_dir_of(log.log_start_offset)
    found = await reader.call(log_dir, search, *args)
    return found or TimestampedOffset(UNKNOWN_OFFSET, NO_TIMESTAMP)


def _reads_committed(request: pb.ListOffsetsRequest) -> bool:
    return request.isolation_level == pb.ISOLATION_LEVEL_READ_COMMITTED


def _checked(named: NamedPartition) -> TopicPartition:
    return checked_topic_partition(named.topic_id, named.partition)
