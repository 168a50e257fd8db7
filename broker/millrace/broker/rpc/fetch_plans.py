"""What a response of a fetch session will hold of one partition: found first, read later.

A reader of committed records is told which transactions of the range were aborted (P10). The log is
asked for them before its batches are read: a cleaning takes the batches first (T3).
"""

from collections.abc import Sequence
from typing import NamedTuple

from millrace.broker.replica.partition import Partition
from millrace.broker.replica.reader import LogReader
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.segment import ReadPlan
from millrace.core.ids import Offset
from millrace.core.records.header import Buffer
from millrace.core.records.markers import AbortedTransaction
from millrace.core.replica.fetch.session import FetchPosition
from millrace.core.replica.fetch.session_reader import LookBack, ReadElsewhere, SendBatches
from millrace.proto.v1 import fetch_pb2 as pb


class TellableOffsets(NamedTuple):
    """The offsets of a partition that its readers are told."""

    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset
    compacted_offset: Offset


class Plan:
    """What a response will hold of one partition: batches, or only its offsets.

    Attributes:
        read: where the batches lie; None: there are none.
        ending: why the partition leaves the session: the reader opens another position.
        data: the batches themselves, where they are converted; None: they are not read yet.
        end: the offset after the batches.
        aborted: the aborted transactions in the batches, for a reader of committed records.
        is_empty: whether there is nothing but offsets to send.
        length: bytes of the batches.
    """

    __slots__ = (
        "aborted", "data", "end", "ending", "is_empty", "length", "partition", "position", "read",
    )  # fmt: skip

    def __init__(
        self,
        position: FetchPosition,
        partition: Partition,
        read: ReadPlan | None = None,
        ending: LookBack | ReadElsewhere | None = None,
        *,
        aborted: Sequence[AbortedTransaction] = (),
        converted: tuple[Buffer, Offset] | None = None,
    ) -> None:
        self.data: Buffer | None = None
        self.end = position.fetch_offset if read is None else read.end_offset
        if converted is not None:
            self.data, self.end = converted
        self.position = position
        self.partition = partition
        self.read = read
        self.ending = ending
        self.aborted = aborted
        self.is_empty = read is None and ending is None
        self.length = 0 if read is None else read.length
        if self.data is not None:
            self.length = len(self.data)

    def tell(self) -> TellableOffsets:
        """Return the partition's offsets, and note that the reader is told them."""
        position, log, replica = self.position, self.partition.log, self.partition.replica
        log_start_offset = log.log_start_offset
        high_watermark, last_stable_offset = replica.high_watermark, replica.last_stable_offset
        position.told_high_watermark = high_watermark
        position.told_last_stable_offset = last_stable_offset
        position.told_log_start_offset = log_start_offset
        position.told_compacted_offset = replica.role.compacted_offset
        return TellableOffsets(
            high_watermark, last_stable_offset, log_start_offset, position.told_compacted_offset
        )

    def describe(self) -> pb.FetchedPartition:
        """Return the message about the partition; note what the reader is told by it."""
        position, offsets = self.position, self.tell()
        described = pb.FetchedPartition(
            handle=position.handle,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable_offset,
            log_start_offset=offsets.log_start_offset,
            length=self.length,
            fetch_offset=position.fetch_offset,
            compacted_offset=offsets.compacted_offset,
        )
        match self.ending:
            case LookBack(end):
                described.diverging.leader_epoch = end.epoch
                described.diverging.end_offset = end.end_offset
            case ReadElsewhere(broker_id):
                described.preferred_read_replica = broker_id
        for producer_id, first_offset, last_offset in self.aborted:
            described.aborted_transactions.add(
                producer_id=producer_id, first_offset=first_offset, last_offset=last_offset
            )
        return described


async def find_batches(
    reader: LogReader, log: PartitionLog, offset: Offset, max_bytes: int, wanted: SendBatches
) -> ReadPlan | None:
    """Plan a read of what is wanted, on a thread where the disk has to be asked."""
    try:
        return _plan_read(log, offset, max_bytes, wanted, may_block=False)
    except BlockingIOError:
        log_dir = log.log_dir_of(offset)
        found: ReadPlan | None = await reader.call(
            log_dir, _plan_read, log, offset, max_bytes, wanted
        )
        return found


async def find_aborted(
    reader: LogReader, log: PartitionLog, offset: Offset, read: ReadPlan
) -> Sequence[AbortedTransaction]:
    """Return the aborted transactions in what a reader will be sent from an offset on."""
    end = read.end_offset
    try:
        return log.reader.aborted(offset, end, may_block=False)
    except BlockingIOError:
        found: Sequence[AbortedTransaction] = await reader.call(
            read.segment.log_dir, log.reader.aborted, offset, end
        )
        return found


def _plan_read(
    log: PartitionLog,
    offset: Offset,
    max_bytes: int,
    wanted: SendBatches,
    *,
    may_block: bool = True,
) -> ReadPlan | None:
    """Plan a read of what is wanted.

    The reader's end may lie within a batch, or between two: then the next batch is the last one
    sent.
    """
    if wanted.until_offset < wanted.end_offset:
        plan = log.reader.plan_read(offset, max_bytes, wanted.until_offset, may_block=may_block)
        if plan is not None:
            return plan
        max_bytes = 1
    return log.reader.plan_read(offset, max_bytes, wanted.end_offset, may_block=may_block)
