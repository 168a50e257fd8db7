"""Splits a produce request, and checks its header and every batch, on a thread beside the loop."""

from dataclasses import dataclass

from millrace.broker.replica.partitions import Partitions
from millrace.core.errors import (
    MalformedRequestError,
    MillraceError,
    UnsupportedFeatureError,
)
from millrace.core.ids import (
    TOPIC_ID_BYTES,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from millrace.core.records import batch as record_batch
from millrace.core.records.header import BatchHeader
from millrace.proto.codec import decode_produce_request
from millrace.proto.v1 import produce_pb2 as pb


@dataclass(slots=True)
class CheckedBatch:
    """One batch of a request after the checking thread has seen it."""

    topic_partition: TopicPartition
    expected_epoch: LeaderEpoch
    is_successor: bool
    batch: memoryview
    checked: BatchHeader | MillraceError


CheckedRequest = tuple[pb.ProduceHeader, list[CheckedBatch] | MillraceError]


class RequestChecks:
    """What a request is held against.

    Args:
        partitions: any thread may look for one.
        entries_max: most partitions of a request.
    """

    def __init__(self, partitions: Partitions, entries_max: int) -> None:
        self._partitions = partitions
        self._entries_max = entries_max

    def check(self, message: bytes) -> CheckedRequest:
        """Split a message and check its batches.

        Raises:
            MalformedRequestError: the message cannot be split.
        """
        header, views = decode_produce_request(message)
        try:
            self._check_header(header)
        except MillraceError as error:
            return header, without_trace(error)
        checked = []
        for partition, view in zip(header.partitions, views, strict=True):
            topic_partition = TopicPartition(TopicId(partition.topic_id), partition.partition)
            outcome: BatchHeader | MillraceError
            try:
                if len(partition.topic_id) != TOPIC_ID_BYTES:
                    raise MalformedRequestError(
                        f"a topic id is {TOPIC_ID_BYTES} bytes, but {len(partition.topic_id)} came"
                    )
                limits = self._partitions.get(topic_partition).limits
                outcome = record_batch.check(topic_partition, view, limits)
            except MillraceError as error:
                outcome = without_trace(error)
            checked.append(
                CheckedBatch(
                    topic_partition,
                    LeaderEpoch(partition.leader_epoch),
                    partition.is_successor,
                    view,
                    outcome,
                )
            )
        return header, checked

    def _check_header(self, header: pb.ProduceHeader) -> None:
        partitions = header.partitions
        entries_max = self._entries_max
        if len(partitions) > entries_max:
            raise MalformedRequestError(
                f"the request names {len(partitions)} partitions; at most {entries_max} may be"
            )
        if len({(partition.topic_id, partition.partition) for partition in partitions}) < len(
            partitions
        ):
            raise MalformedRequestError(
                "the request names a partition twice: send one batch of each in a request"
            )
        if header.acks not in (-1, 0, 1):
            raise MalformedRequestError(f"acks is {header.acks}; it must be -1, 0 or 1")
        if header.transactional_id:
            raise UnsupportedFeatureError("transactions are not supported by this broker")


def without_trace(error: MillraceError) -> MillraceError:
    """Return an error that is kept, without its frames.

    They hold the message, and in a cycle the error itself, so that only the garbage collector would
    free it.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
