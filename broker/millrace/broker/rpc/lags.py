"""Lags, measured by the leaders of partitions: how much lies behind a position.

Readers ask on the listeners of clients, and coordinators of groups on the one of brokers.
"""

import asyncio
import logging
from dataclasses import dataclass
from itertools import chain

from millrace.broker import events
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_partition
from millrace.broker.runtime.clock import wall_now
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.runtime.turns import Turns
from millrace.broker.storage.log import PartitionLog, Unread
from millrace.core.errors import (
    CorruptLogError,
    MillraceError,
    OffsetOutOfRangeError,
    UnknownServerError,
)
from millrace.core.ids import LeaderEpoch, Offset, TopicId, TopicPartition, WallMs
from millrace.core.metadata.model import Listener
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1.common_pb2 import TopicPartition as NamedPartition

_log = logging.getLogger(__name__)


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

    async def describe(
        self, request: pb.DescribeLagsRequest, _: object = None
    ) -> pb.DescribeLagsResponse:
        """Answer a request."""
        lags = [pb.Lag() for _ in request.partitions]
        asked: dict[str, list[_Unread]] = {}
        work = self._turns.work()
        for query, lag in zip(request.partitions, lags, strict=True):
            await work.give_way()
            try:
                partition = self._partitions.get(_checked(query.topic_partition))
                leader, log = partition.leader, partition.log
                leader.check_epoch(LeaderEpoch(query.current_leader_epoch))
                leader.check_end_offset()
                end = leader.last_stable_offset
                if not 0 <= query.offset <= end:
                    raise OffsetOutOfRangeError(
                        f"the log ends at {end}, before the position {query.offset}: records that "
                        "were read are lost, or it is a position of another topic"
                    )
            except MillraceError as error:
                self._refuse(lag, query.topic_partition, error)
                continue
            lag.log_start_offset, lag.end_offset = log.log_start_offset, end
            if query.offset < end:
                unread = _Unread(query.topic_partition, lag, log, Offset(query.offset), end)
                asked.setdefault(log.log_dir_of(unread.offset), []).append(unread)
        reads = (self._reader.call(log_dir, _measure, some) for log_dir, some in asked.items())
        await asyncio.gather(*reads)
        now = wall_now()
        for each in chain.from_iterable(asked.values()):
            match each.found:
                case Unread() as measured:
                    each.lag.unread_bytes = measured.size
                    each.lag.unread_ms = _age_ms(measured, now)
                case MillraceError() as damage:
                    each.lag.Clear()
                    self._refuse(each.lag, each.named, damage)
        return pb.DescribeLagsResponse(lags=lags)

    def _refuse(self, lag: pb.Lag, named: NamedPartition, error: MillraceError) -> None:
        if isinstance(error, CorruptLogError):  # Damaged for all readers (P65).
            self._partitions.take_offline(_checked(named), error)
        place = TopicPartition(TopicId(named.topic_id), named.partition)
        lag.error.CopyFrom(wire_error(self._partitions, error, place, self._listener))


@dataclass(slots=True)
class _Unread:
    """What a look-up of a lag asks about one log, and the answer, in the thread that reads it."""

    named: NamedPartition
    lag: pb.Lag
    log: PartitionLog
    offset: Offset
    end: Offset
    found: Unread | MillraceError | None = None


def _measure(asked: list[_Unread]) -> None:
    for each in asked:
        try:
            each.found = each.log.unread(each.offset, each.end)
        except MillraceError as error:
            each.found = error
        except Exception as error:  # It concerns one log, and the answer has those of others.
            events.LAG_FAILED.log(_log, log=each.log.directory, cause=error)
            each.found = UnknownServerError(
                "the lag could not be measured, by a bug: the broker's log has the trace"
            )


def _age_ms(unread: Unread, now: WallMs) -> int:
    """Return `unread_ms` of an answer."""
    if unread.size == 0:  # All of it was deleted or cut.
        return 0
    if unread.timestamp < 0:
        return -1
    return max(1, now - unread.timestamp)  # 0 would be: all is read.


def _checked(named: NamedPartition) -> TopicPartition:
    return checked_topic_partition(named.topic_id, named.partition)
