"""Splits a produce request, and checks its header and every batch.

A thread beside the loop does that, unless the sizes in the message and in its batches' headers say
that it takes no longer than a way to the thread and back: then the loop does it.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from time import thread_time_ns
from typing import Final, TypeVar

from millrace.broker.replica.partitions import Partitions
from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.errors import (
    InvalidTransactionStateError,
    MalformedRequestError,
    MillraceError,
)
from millrace.core.ids import (
    TOPIC_ID_BYTES,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from millrace.core.records import batch as record_batch
from millrace.core.records.header import HEADER_BYTES, BatchHeader, Buffer, parse_header
from millrace.proto.codec import (
    decode_produce_parts,
    decode_produce_request,
    split_message,
)
from millrace.proto.v1 import produce_pb2 as pb
from millrace.runtime.mailbox import at_once

_T = TypeVar("_T")

_SHORT_CHECK_US: Final = 100
"""A check that surely takes no longer is done on the loop."""
_SHORT_MESSAGE_BYTES: Final = 64 << 10
_SHORT_HEADER_BYTES: Final = 512
"""A request's header that is decoded in 20 us, whatever it holds."""
_MALFORMED_US: Final = 20
"""Refusing a batch whose header is malformed."""


@dataclass(slots=True)
class CheckedBatch:
    """One batch of a request after the checking thread has seen it.

    Attributes:
        head: its header, not stamped yet.
        body: what follows it.
    """

    topic_partition: TopicPartition
    expected_epoch: LeaderEpoch
    is_successor: bool
    head: Buffer
    body: memoryview
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

    def check(self, message: Buffer) -> Generator[None, None, CheckedRequest]:
        """Split a message and check its batches, one a turn: each may take milliseconds.

        Raises:
            MalformedRequestError: the message cannot be split.
        """
        return (yield from self._check(*decode_produce_request(message)))

    def check_if_short(self, message: Buffer) -> CheckedRequest | None:
        """As `check`, if that surely takes less than 100 us; None: it may take longer.

        Raises:
            MalformedRequestError: as in `check`.
        """
        if len(message) > _SHORT_MESSAGE_BYTES:
            return None
        data, batches = split_message(message)
        if len(data) > _SHORT_HEADER_BYTES:
            return None
        header, views = decode_produce_parts(data, batches)
        parsed: list[BatchHeader | None] = []
        cost_us = 0.0
        for view in views:
            try:
                found = parse_header(view)
            except MillraceError:  # As the check will say.
                parsed.append(None)
                cost_us += _MALFORMED_US
            else:
                parsed.append(found)
                cost_us += record_batch.check_cost_us(found)
        if cost_us > _SHORT_CHECK_US:
            return None
        return at_once(self._check(header, views, parsed))

    def _check(
        self,
        header: pb.ProduceHeader,
        views: Sequence[memoryview],
        parsed: Iterable[BatchHeader | None] = repeat(None),
    ) -> Generator[None, None, CheckedRequest]:
        """Check a request; of a batch without a parsed header that is parsed."""
        try:
            self._check_header(header)
        except MillraceError as error:
            return header, without_trace(error)
        checked: list[CheckedBatch] = []
        for partition, view, batch_header in zip(header.partitions, views, parsed, strict=False):
            if checked:
                yield
            topic_id = TopicId(partition.topic_id)
            topic_partition = TopicPartition(topic_id, partition.partition)
            outcome: BatchHeader | MillraceError
            try:
                if len(topic_id) != TOPIC_ID_BYTES:
                    raise MalformedRequestError(
                        f"a topic id is {TOPIC_ID_BYTES} bytes, but {len(topic_id)} came"
                    )
                limits = self._partitions.get(topic_partition).limits
                outcome = record_batch.check(topic_partition, view, limits, batch_header)
                check_transactional(outcome, header.transactional_id)
            except MillraceError as error:
                outcome = without_trace(error)
            checked.append(
                CheckedBatch(
                    topic_partition,
                    LeaderEpoch(partition.leader_epoch),
                    partition.is_successor,
                    view[:HEADER_BYTES],
                    view[HEADER_BYTES:],
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
        if len(partitions) > 1 and len(
            {(partition.topic_id, partition.partition) for partition in partitions}
        ) < len(partitions):
            raise MalformedRequestError(
                "the request names a partition twice: send one batch of each in a request"
            )
        if header.acks not in (-1, 0, 1):
            raise MalformedRequestError(f"acks is {header.acks}; it must be -1, 0 or 1")
        if header.transactional_id:
            header.transactional_id = full_id(header.transactional_id)
            if header.acks != -1:
                raise MalformedRequestError(
                    f"acks is {header.acks}, and the batches are transactional: ask for all (-1)"
                )


def check_transactional(batch: BatchHeader, transactional_id: str) -> None:
    """Check that a batch is transactional if its request is (P51)."""
    if batch.is_transactional != bool(transactional_id):
        raise InvalidTransactionStateError(
            "the batch is transactional, and its request has no transactional id"
            if batch.is_transactional
            else "the request has a transactional id, and the batch is not transactional"
        )


def without_trace(error: MillraceError) -> MillraceError:
    """Return an error that is kept, without its frames.

    They hold the message, and in a cycle the error itself, so that only the garbage collector would
    free it.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def timed(
    job: Generator[None, None, _T], *, is_timed: bool
) -> Generator[None, None, tuple[_T, int]]:
    """Return what a job returns, and the nanoseconds of the thread's time that it took.

    Args:
        job: runs here, in its turns.
        is_timed: whether it is measured; else they are 0.
    """
    taken = 0
    while True:
        begun = thread_time_ns() if is_timed else 0
        try:
            next(job)
        except StopIteration as end:
            return end.value, taken + thread_time_ns() - begun if is_timed else 0
        taken += thread_time_ns() - begun if is_timed else 0
        yield
