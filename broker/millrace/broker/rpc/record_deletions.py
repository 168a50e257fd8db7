"""Deletes the oldest records of partitions, on request: an answer means that they do not come back.

The leader advances the start of its log, durably, and its followers follow. The answer waits until
all replicas that may lead have done so (P71). Each request that changes something is logged with
its client, as the controller does it (`audit`).
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from millrace.broker.replica.partitions import Partitions
from millrace.broker.rpc.audit import AuditLine, AuditLog
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_partition
from millrace.core.callers import Caller
from millrace.core.errors import (
    Appended,
    InvalidTopicError,
    MillraceError,
    RequestTimedOutError,
)
from millrace.core.ids import LeaderEpoch, MonotonicMs, Offset, TopicId, TopicPartition
from millrace.core.metadata.model import Listener
from millrace.core.replica.replication.leader import PartitionLeader
from millrace.proto.v1 import cluster_pb2 as pb
from millrace.runtime.clock import monotonic_now
from millrace.runtime.turns import Turns

_LOOK_SECONDS: Final = 0.01
"""Pause between looks at the followers: deletions are rare, and followers take milliseconds."""


class RecordDeletions:
    """Serves the requests of clients that delete records.

    Args:
        partitions: of this broker.
        turns: of the loop.
        wait_ms_max: for how long a request may wait for replicas.
        listener: that the callers come through.
        audit: has a line of each request.
    """

    def __init__(
        self,
        partitions: Partitions,
        turns: Turns,
        *,
        wait_ms_max: int,
        listener: Listener,
        audit: AuditLog,
    ) -> None:
        self._partitions = partitions
        self._turns = turns
        self._wait_ms_max = wait_ms_max
        self._listener = listener
        self._audit = audit

    async def delete_records(
        self, request: pb.DeleteRecordsRequest, caller: Caller
    ) -> pb.DeleteRecordsResponse:
        deadline = MonotonicMs(monotonic_now() + min(request.request_timeout_ms, self._wait_ms_max))
        work = self._turns.work()
        begun: list[_Deletion | MillraceError] = []
        for wanted in request.partitions:
            await work.give_way()
            try:
                begun.append(self._begin(wanted))
            except MillraceError as error:
                begun.append(error.with_traceback(None))  # It refers to this frame.
        outcomes: list[Offset | MillraceError] = []
        for deletion in begun:
            await work.give_way()
            outcomes.append(
                deletion
                if isinstance(deletion, MillraceError)
                else await _outcome(deletion, deadline)
            )
        self._log(request, outcomes, caller)
        return pb.DeleteRecordsResponse(
            partitions=[
                self._result(wanted, outcome)
                for wanted, outcome in zip(request.partitions, outcomes, strict=True)
            ]
        )

    def _begin(self, wanted: pb.RecordsToDelete) -> "_Deletion":
        named = wanted.topic_partition
        partition = self._partitions.get(checked_topic_partition(named.topic_id, named.partition))
        leader, before_offset = partition.leader, Offset(wanted.before_offset)
        leader.check_epoch(LeaderEpoch(wanted.current_leader_epoch))
        if partition.is_internal:
            raise InvalidTopicError(
                f"topic {partition.topic!r} belongs to the cluster itself, which alone deletes its "
                "records"
            )
        leader.check_deletable(before_offset)
        if before_offset > leader.log_start_offset:
            self._partitions.advance_log_start(partition, before_offset)
        return _Deletion(leader, leader.leader_epoch, before_offset)

    def _result(
        self, wanted: pb.RecordsToDelete, outcome: Offset | MillraceError
    ) -> pb.DeletedRecords:
        named = wanted.topic_partition
        if not isinstance(outcome, MillraceError):
            return pb.DeletedRecords(topic_partition=named, low_watermark=outcome)
        topic_partition = TopicPartition(TopicId(named.topic_id), named.partition)
        error = wire_error(
            self._partitions, outcome, topic_partition, self._listener, is_write=True
        )
        return pb.DeletedRecords(topic_partition=named, error=error)

    def _log(
        self,
        request: pb.DeleteRecordsRequest,
        outcomes: list[Offset | MillraceError],
        caller: Caller,
    ) -> None:
        line = AuditLine(self._audit, caller, "delete_records")
        line.name(
            f"{self._partitions.named(TopicPartition(TopicId(named.topic_id), named.partition))} "
            f"before {wanted.before_offset}"
            for wanted in request.partitions
            for named in [wanted.topic_partition]
        )
        line.on_answered(outcomes)


@dataclass(slots=True)
class _Deletion:
    """A deletion that has begun, in this epoch of its leader."""

    leader: PartitionLeader
    leader_epoch: LeaderEpoch
    before_offset: Offset


async def _outcome(deletion: _Deletion, deadline: MonotonicMs) -> Offset | MillraceError:
    """Wait for a deletion; return the low watermark, or why it is not known."""
    leader = deletion.leader
    while True:
        try:
            leader.check_epoch(deletion.leader_epoch)  # Else its followers report to another one.
        except MillraceError as error:
            return error.again(Appended.MAYBE)
        if (low_watermark := leader.low_watermark) >= deletion.before_offset:
            return low_watermark
        if monotonic_now() >= deadline:
            return RequestTimedOutError(
                f"the records before {deletion.before_offset} are being deleted, and not all "
                "replicas that may lead have done so yet: ask again; `millrace cluster health` "
                "shows brokers that are down and disks that are full",
                topic_partition=leader.topic_partition,
            )
        await asyncio.sleep(_LOOK_SECONDS)
