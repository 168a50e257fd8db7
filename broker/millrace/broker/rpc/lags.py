"""Lags, measured by the leaders of partitions: how much follows a position.

Readers ask on the listeners of clients, and coordinators of groups on the one of brokers.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from millrace.broker import events
from millrace.broker.guard.callers import GuardedCaller, check_topic
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.reader import LogReader
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_id
from millrace.broker.rpc.resources import TopicResources
from millrace.broker.storage.log import PartitionLog, Unread
from millrace.core.errors import (
    CorruptLogError,
    MalformedRequestError,
    MillraceError,
    OffsetOutOfRangeError,
    UnknownServerError,
)
from millrace.core.guard.access import Operation
from millrace.core.ids import LeaderEpoch, Offset, TopicPartition, WallMs
from millrace.core.metadata.model import Listener
from millrace.proto.lags import LagQuery, MeasuredLag, lags_to_wire
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1.common_pb2 import Error
from millrace.runtime.clock import wall_now
from millrace.runtime.turns import Turns

_log = logging.getLogger(__name__)

_QUERIES_A_TURN: Final = 16
"""So many are looked at in a row: less than a millisecond."""


class Lags:
    """Measures lags in the partitions that this broker leads.

    Args:
        partitions: of this broker.
        reader: of their logs.
        turns: of the loop.
        listener: that the callers come through.
    """

    def __init__(
        self, partitions: Partitions, reader: LogReader, turns: Turns, listener: Listener
    ) -> None:
        self._partitions = partitions
        self._reader = reader
        self._turns = turns
        self._listener = listener
        self._topics = TopicResources(lambda: partitions.image)

    async def describe(
        self, request: pb.DescribeLagsRequest, caller: GuardedCaller | None = None
    ) -> pb.DescribeLagsResponse:
        """Answer a request, of a client or, without a caller, of this broker itself.

        Raises:
            MalformedRequestError: columns do not fit together, or an id is none.
        """
        answers: list[MeasuredLag | Error] = []
        asked: dict[str, list[_Unread]] = {}
        told: dict[object, Error] = {}
        read_committed = request.isolation_level == pb.ISOLATION_LEVEL_READ_COMMITTED
        work = self._turns.work()
        allowed = None
        if caller is not None:
            allowed = caller.on_topics(Operation.DESCRIBE, self._topics.of)
        for number, query in enumerate(_queries(request)):
            if number % _QUERIES_A_TURN == 0:
                await work.give_way(_QUERIES_A_TURN)
            try:
                check_topic(allowed, query.topic_partition.topic_id)
                partition = self._partitions.get(query.topic_partition)
                leader, log = partition.leader, partition.log
                leader.check_epoch(query.leader_epoch)
                leader.check_end_offset()
                offset, high_watermark = Offset(query.offset), leader.high_watermark
                if not 0 <= offset <= high_watermark:
                    raise OffsetOutOfRangeError(
                        f"the log ends at {high_watermark}, before the position {offset}: records "
                        "that were read are lost, or it is a position of another topic"
                    )
                end = leader.last_stable_offset if read_committed else high_watermark
            except MillraceError as error:
                answers.append(self._refusal(query.topic_partition, error, told))
                continue
            start = log.log_start_offset
            answers.append(MeasuredLag(start, end, 0, 0))
            if offset < end:
                unread = _Unread(number, query.topic_partition, log, start, offset, end)
                asked.setdefault(log.log_dir_of(offset), []).append(unread)
        reads = (self._reader.call(log_dir, _measure, some) for log_dir, some in asked.items())
        await asyncio.gather(*reads)
        now = wall_now()
        for question in chain.from_iterable(asked.values()):
            match question.found:
                case Unread() as measured:
                    answers[question.number] = MeasuredLag(
                        question.log_start_offset,
                        question.end,
                        measured.size,
                        _age_ms(measured, now),
                    )
                case MillraceError() as damage:
                    answers[question.number] = self._refusal(question.topic_partition, damage, told)
        return lags_to_wire(answers)

    def _refusal(
        self, topic_partition: TopicPartition, error: MillraceError, told: dict[object, Error]
    ) -> Error:
        """Return the message for an error: the same one for all partitions that have it.

        Args:
            topic_partition: which partition.
            error: its own.
            told: the messages of this request.
        """
        if isinstance(error, CorruptLogError):  # Damaged for all readers (P65).
            self._partitions.take_offline(topic_partition, error)
        image = self._partitions.image
        state = None if image is None else image.partition(topic_partition)
        leader = None if state is None else (state.leader, state.leader_epoch)
        key = (type(error), error.statement, leader)
        if key not in told:
            nameless = error.nameless()
            told[key] = wire_error(self._partitions, nameless, topic_partition, self._listener)
        return told[key]


def _queries(request: pb.DescribeLagsRequest) -> Iterator[LagQuery]:
    """Return the queries of a request; its faults are found at once."""
    topics, partitions = request.topics, request.partitions
    epochs, offsets = request.current_leader_epochs, request.offsets
    if not len(topics) == len(partitions) == len(epochs) == len(offsets):
        raise MalformedRequestError(
            f"the columns have values for {len(topics)} (topics), {len(partitions)} (partitions), "
            f"{len(epochs)} (leader epochs) and {len(offsets)} (offsets): each needs one for each "
            "partition"
        )
    ids = [checked_topic_id(topic_id) for topic_id in request.topic_ids]
    if topics and max(topics) >= len(ids):
        raise MalformedRequestError(
            f"the request names topic number {max(topics)}, counted from 0, of {len(ids)}"
        )
    places = map(TopicPartition, (ids[number] for number in topics), partitions)
    return map(LagQuery, places, map(LeaderEpoch, epochs), offsets)


@dataclass(slots=True)
class _Unread:
    """What a look-up of a lag asks about one log, and the answer, in the thread that reads it."""

    number: int
    """Of the query."""
    topic_partition: TopicPartition
    log: PartitionLog
    log_start_offset: Offset
    offset: Offset
    end: Offset
    found: Unread | MillraceError | None = None


def _measure(asked: list[_Unread]) -> None:
    for question in asked:
        try:
            question.found = question.log.reader.unread(question.offset, question.end)
        except MillraceError as error:
            question.found = error
        except Exception as error:  # It concerns one log, and the answer has those of others.
            events.LAG_FAILED.log(_log, log=question.log.directory, cause=error)
            question.found = UnknownServerError(
                "the lag could not be measured, by a bug: the broker's log has the trace"
            )


def _age_ms(unread: Unread, now: WallMs) -> int | None:
    """Return `unread_ms` of an answer; None: unknown."""
    if unread.size == 0:  # All of it was deleted or cut.
        return 0
    if unread.timestamp < 0:
        return None
    return max(1, now - unread.timestamp)  # 0 would be: all is read.
