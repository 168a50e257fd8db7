"""Kafka's requests about offsets: ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

Each becomes Millrace's own request of the same kind, which knows topics by id and is answered in
this process, with the same rights, quotas and lines of the audit log. What names no topic of this
listener is refused here.

Kafka names places in a log by times before 1970: the latest, the earliest, that of the largest
timestamp. For logs with a part elsewhere there are further ones: here the whole log is on brokers,
so the earliest one here is the earliest one, and there is none that is elsewhere.

Source: KIP-79, 107, 207, 320, 405, 734, 1005, 1023.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kafka.protocol.admin import DeleteRecordsResponse
from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse

from millrace.broker.kafka.known_topics import has_partition
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Request, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code, code_of, code_of_wire
from millrace.core.errors import MillraceError
from millrace.core.guard.access import Operation
from millrace.core.ids import NO_LEADER_EPOCH, TopicId, TopicPartition
from millrace.core.metadata.model import Topic
from millrace.proto.v1 import cluster_pb2
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1.common_pb2 import TopicPartition as NamedPartition

_LATEST: Final = -1
_EARLIEST: Final = -2
_LARGEST_TIMESTAMP: Final = -3
_EARLIEST_HERE: Final = -4
_LATEST_ELSEWHERE: Final = -5
_EARLIEST_TO_MOVE: Final = -6
_SINCE: Final = {
    _LATEST: 1,
    _EARLIEST: 1,
    _LARGEST_TIMESTAMP: 7,
    _EARLIEST_HERE: 8,
    _LATEST_ELSEWHERE: 9,
    _EARLIEST_TO_MOVE: 11,
}
"""The version of ListOffsets from which on a place can be asked for."""
_HIGH_WATERMARK: Final = -1
"""As the offset of a deletion."""

_OFFSET_NOT_AVAILABLE_SINCE: Final = 5
_RESULTS: Final = {
    "ListOffsets": "offsets",
    "OffsetsForLeaderEpoch": "results",
    "DeleteRecords": "partitions",
}
"""The results of each response."""

_ListedTopic: Final = ListOffsetsResponse.ListOffsetsTopicResponse
_ListedPartition: Final = _ListedTopic.ListOffsetsPartitionResponse
_EpochTopic: Final = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_EpochPartition: Final = _EpochTopic.EpochEndOffset
_OWN_PART_MS: Final = 1000
"""For how long a deletion is waited for at least. Kafka's leaders do their own part before they
look at the time, so clients may ask for 0; here that part is done on another thread."""
_DeletedTopic: Final = DeleteRecordsResponse.DeleteRecordsTopicResult
_DeletedPartition: Final = _DeletedTopic.DeleteRecordsPartitionResult


class OffsetRequests:
    """Serves them.

    Args:
        parts: of the listener.
    """

    def __init__(self, parts: KafkaParts) -> None:
        self._topics = parts.topics
        self._partitions = parts.broker.partitions
        self._local = parts.local

    def served(self) -> Mapping[int, Served]:
        """Return what it serves."""
        return {
            ApiKey.LIST_OFFSETS: Served(range(1, 12), self.list_offsets),
            ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(range(2, 5), self.offsets_for_leader_epoch),
            ApiKey.DELETE_RECORDS: Served(range(3), self.delete_records),
        }

    # --- ListOffsets -------------------------------------------------------------------------

    async def list_offsets(self, request: Request) -> ListOffsetsResponse:
        """Answer where the records of a time are, or the ends of logs."""
        message, version = request.message, request.version
        found = pb.ListOffsetsRequest()
        if message.isolation_level:
            found.isolation_level = pb.ISOLATION_LEVEL_READ_COMMITTED
        known = await self._known((topic.name for topic in message.topics), request)
        topics, asked = [], []
        for wanted in message.topics:
            topic = known[wanted.name]
            answers = []
            for each in wanted.partitions:
                answer = _ListedPartition(partition_index=each.partition_index)
                answers.append(answer)
                answer.error_code = _missing(topic, each.partition_index)
                if isinstance(topic, int) or answer.error_code:
                    continue
                if each.timestamp < 0 and version < _SINCE.get(each.timestamp, version + 1):
                    answer.error_code = Code.UNSUPPORTED_VERSION
                elif each.timestamp not in (_LATEST_ELSEWHERE, _EARLIEST_TO_MOVE):
                    _add_query(found, topic, each)
                    asked.append(answer)
            topics.append(_ListedTopic(name=wanted.name, partitions=answers))
        for answer, result in await self._answered("ListOffsets", asked, found, request):
            answer.offset, answer.timestamp = result.offset, result.timestamp
            answer.leader_epoch = result.leader_epoch
        if version < _OFFSET_NOT_AVAILABLE_SINCE:
            for answer in asked:
                if answer.error_code == Code.OFFSET_NOT_AVAILABLE:
                    answer.error_code = Code.LEADER_NOT_AVAILABLE
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    # --- OffsetForLeaderEpoch ----------------------------------------------------------------

    async def offsets_for_leader_epoch(self, request: Request) -> OffsetForLeaderEpochResponse:
        """Answer where leader epochs end."""
        found = pb.OffsetsForLeaderEpochRequest()
        known = await self._known((topic.topic for topic in request.message.topics), request)
        topics, asked = [], []
        for wanted in request.message.topics:
            topic = known[wanted.topic]
            answers = []
            for each in wanted.partitions:
                code = _missing(topic, each.partition)
                answer = _EpochPartition(
                    partition=each.partition, error_code=code, leader_epoch=-1, end_offset=-1
                )
                answers.append(answer)
                if not isinstance(topic, int) and not code:
                    found.partitions.add(
                        topic_partition=_named(topic, each.partition),
                        current_leader_epoch=each.current_leader_epoch,
                        leader_epoch=each.leader_epoch,
                    )
                    asked.append(answer)
            topics.append(_EpochTopic(topic=wanted.topic, partitions=answers))
        for answer, result in await self._answered("OffsetsForLeaderEpoch", asked, found, request):
            answer.leader_epoch, answer.end_offset = result.end.leader_epoch, result.end.end_offset
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)

    # --- DeleteRecords -----------------------------------------------------------------------

    async def delete_records(self, request: Request) -> DeleteRecordsResponse:
        """Delete the oldest records of partitions.

        A call for each topic: who may not delete the records of one may delete those of others.
        """
        deletions = (self._delete_from(wanted, request) for wanted in request.message.topics)
        topics = await asyncio.gather(*deletions)
        return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)

    async def _delete_from(self, wanted: Any, request: Request) -> Any:
        """Delete the oldest records of one topic's partitions."""
        known = await self._topics.found([wanted.name], Operation.DELETE, request.caller)
        allowed, topic = known[wanted.name], self._topics.find(wanted.name)
        found = cluster_pb2.DeleteRecordsRequest(
            request_timeout_ms=max(request.message.timeout_ms, _OWN_PART_MS)
        )
        answers, asked = [], []
        for each in wanted.partitions:
            code = _missing(allowed, each.partition_index)
            answer = _DeletedPartition(
                partition_index=each.partition_index, low_watermark=-1, error_code=code
            )
            answers.append(answer)
            if topic is None or not has_partition(topic, each.partition_index):
                continue
            try:
                # Also of a caller that may not: so that is in the audit log.
                found.partitions.add(
                    topic_partition=_named(topic, each.partition_index),
                    current_leader_epoch=NO_LEADER_EPOCH,
                    before_offset=self._end_of(topic, each),
                )
                asked.append(answer)
            except MillraceError as error:
                answer.error_code = code or _code(code_of(error))
        for answer, result in await self._answered("DeleteRecords", asked, found, request):
            answer.low_watermark = result.low_watermark
        return _DeletedTopic(name=wanted.name, partitions=answers)

    def _end_of(self, topic: Topic, wanted: Any) -> int:
        """Return before which offset a request deletes.

        Raises:
            MillraceError: the end of the log is not known here.
        """
        if wanted.offset != _HIGH_WATERMARK:
            return int(wanted.offset)
        place = TopicPartition(topic.topic_id, wanted.partition_index)
        leader = self._partitions.get(place).leader
        leader.check_end_offset()
        return leader.high_watermark

    # --- All of them -------------------------------------------------------------------------

    async def _known(
        self, names: Iterable[str], request: Request
    ) -> dict[str | TopicId, Topic | int]:
        return await self._topics.found(names, Operation.DESCRIBE, request.caller)

    async def _answered(
        self, method: str, asked: Sequence[Any], found: Any, request: Request
    ) -> list[tuple[Any, Any]]:
        """Call a service; return each answer with its result. Errors are in the others already.

        Args:
            method: of the service; a result of its response for each partition of its request.
            asked: the answers to fill in.
            found: the request.
            request: what it is for.
        """
        if not asked:
            return []
        try:
            response = await self._local.call(method, found, request.caller)
        except MillraceError as error:
            for answer in asked:
                answer.error_code = _code(code_of(error))
            return []
        results = getattr(response, _RESULTS[method])
        answered = []
        for answer, result in zip(asked, results, strict=True):
            answer.error_code = _code(code_of_wire(result.error))
            if answer.error_code == NO_ERROR:
                answered.append((answer, result))
        return answered


def _missing(topic: Topic | int, partition: int) -> int:
    """Return the code for a partition that there is not; 0: there is."""
    if isinstance(topic, int):
        return topic
    return NO_ERROR if has_partition(topic, partition) else Code.UNKNOWN_TOPIC_OR_PARTITION


def _code(code: int) -> int:
    """Return the code of an error of a partition that there is: it may be at another broker."""
    return Code.NOT_LEADER_OR_FOLLOWER if code == Code.UNKNOWN_TOPIC_OR_PARTITION else code


def _named(topic: Topic, partition: int) -> NamedPartition:
    return NamedPartition(topic_id=topic.topic_id, partition=partition)


def _add_query(found: pb.ListOffsetsRequest, topic: Topic, wanted: Any) -> None:
    query = found.partitions.add(
        topic_partition=_named(topic, wanted.partition_index),
        current_leader_epoch=wanted.current_leader_epoch,
    )
    match wanted.timestamp:
        case -1:
            query.latest = True
        case -2 | -4:
            query.earliest = True
        case -3:
            query.max_timestamp = True
        case timestamp:
            query.timestamp = timestamp
