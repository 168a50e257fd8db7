"""A coordinator of transactions in memory, whose answers can be lost.

It keeps the rules of KIP-890's second version on which producers rely, and tells what became of
each transaction.
"""

from collections import deque
from dataclasses import dataclass, field

from millrace.core.errors import (
    Appended,
    InvalidTransactionStateError,
    MillraceError,
    NotLeaderError,
    ProducerFencedError,
    TransactionAbortedError,
)
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import common_pb2, positions_pb2, produce_pb2, transactions_pb2


def _on_wire(error: MillraceError) -> common_pb2.Error:
    sent = error_to_wire(error)
    if isinstance(error, NotLeaderError) and error.leader is not None:
        sent.leader.broker_id, sent.leader.leader_epoch = error.leader.leader
        sent.leader.address = error.leader.address
    return sent


Written = tuple[int, int]
"""The producer id and the epoch with which a transaction is written."""
EPOCH_MAX = 2
"""So few, that epochs run out in tests."""


@dataclass
class FakeId:
    """One transactional id."""

    current: Written
    is_open: bool = False
    ended: Written | None = None
    ended_committed: bool = False
    was_forced: bool = False
    """The last transaction was aborted by its time-out."""
    is_replaced: bool = False
    """Another producer has begun since the last transaction was decided."""

    @property
    def last(self) -> Written | None:
        """The last transaction, of the present producer."""
        return None if self.is_replaced else self.ended


@dataclass
class FakeTransactions:
    """All transactional ids.

    Attributes:
        outcomes: whether each transaction was committed, of those that are decided.
        calls: the requests that came, in their order.
        refusals: errors for the next requests, which then do nothing.
        lost_answers: number of ends to decide without an answer.
        lost_requests: number of ends to lose before they are decided.
        late: the ends that were lost before they were decided: they may still arrive.
        staged: the positions that came within each transaction: group, offsets by partition.
        position_refusals: errors for the next positions.
    """

    ids: dict[str, FakeId] = field(default_factory=dict)
    outcomes: dict[Written, bool] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    refusals: deque[MillraceError] = field(default_factory=deque)
    lost_answers: int = 0
    lost_requests: int = 0
    late: list[transactions_pb2.EndTransactionRequest] = field(default_factory=list)
    staged: dict[Written, list[tuple[str, dict[int, int]]]] = field(default_factory=dict)
    position_refusals: deque[MillraceError] = field(default_factory=deque)
    next_producer_id: int = 500

    def _bump(self, known: FakeId) -> None:
        producer_id, epoch = known.current
        if epoch < EPOCH_MAX:
            known.current = producer_id, epoch + 1
        else:
            known.current = self._new_producer_id(), 0

    def _new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def _decide(self, known: FakeId, *, committed: bool, forced: bool) -> None:
        self.outcomes[known.current] = committed
        known.ended, known.ended_committed = known.current, committed
        known.is_open, known.was_forced, known.is_replaced = False, forced, False
        self._bump(known)

    def time_out(self, name: str) -> None:
        """Abort the open transaction of an id."""
        self._decide(self.ids[name], committed=False, forced=True)

    def join(self, name: str, written: Written) -> None:
        """Take a partition, or a group, into a transaction.

        Raises:
            MillraceError: it is not open.
        """
        known = self.ids.get(name)
        if known is not None and written == known.current:
            known.is_open = True
        elif known is not None and written == known.last and known.was_forced:
            raise TransactionAbortedError("it was open for too long")
        else:
            raise ProducerFencedError("another producer began with the id")

    def init(
        self, request: produce_pb2.InitProducerIdRequest
    ) -> produce_pb2.InitProducerIdResponse:
        """Answer a producer that begins."""
        self.calls.append("init")
        if self.refusals:
            return produce_pb2.InitProducerIdResponse(error=_on_wire(self.refusals.popleft()))
        known = self.ids.get(request.transactional_id)
        named = (request.producer_id, request.producer_epoch)
        if known is None:
            known = FakeId((self._new_producer_id(), 0))
            self.ids[request.transactional_id] = known
        elif request.HasField("producer_id") and named not in {known.current, known.last}:
            fenced = ProducerFencedError("another producer began with the id")
            return produce_pb2.InitProducerIdResponse(error=_on_wire(fenced))
        elif known.is_open:
            self._decide(known, committed=False, forced=True)
        else:
            self._bump(known)
        known.is_replaced = not request.HasField("producer_id")
        producer_id, epoch = known.current
        return produce_pb2.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)

    def end(
        self, request: transactions_pb2.EndTransactionRequest
    ) -> transactions_pb2.EndTransactionResponse | None:
        """Answer an end; None: the answer is lost."""
        self.calls.append("commit" if request.committed else "abort")
        if self.refusals:
            return transactions_pb2.EndTransactionResponse(error=_on_wire(self.refusals.popleft()))
        if self.lost_requests:
            self.lost_requests -= 1
            self.late.append(request)
            return None
        answer = self.decide(request)
        if self.lost_answers:
            self.lost_answers -= 1
            return None
        return answer

    def decide(
        self, request: transactions_pb2.EndTransactionRequest
    ) -> transactions_pb2.EndTransactionResponse:
        """Decide an end."""
        try:
            producer_id, epoch = self._end(request)
        except MillraceError as error:
            return transactions_pb2.EndTransactionResponse(error=_on_wire(error))
        return transactions_pb2.EndTransactionResponse(
            producer_id=producer_id, producer_epoch=epoch
        )

    def _end(self, request: transactions_pb2.EndTransactionRequest) -> Written:
        known = self.ids.get(request.transactional_id)
        written = (request.producer_id, request.producer_epoch)
        if known is not None and written == known.current:
            if not known.is_open and request.committed:
                raise InvalidTransactionStateError("none is open", appended=Appended.NO)
            self._decide(known, committed=request.committed, forced=False)
        elif known is None or written != known.last:
            raise ProducerFencedError("another producer began with the id")
        elif known.was_forced:
            raise TransactionAbortedError("it was open for too long")
        elif request.committed != known.ended_committed:
            raise InvalidTransactionStateError("it was decided otherwise", appended=Appended.NO)
        return known.current

    def describe(self, name: str) -> transactions_pb2.DescribeTransactionResponse:
        """Answer what is known of an id."""
        self.calls.append("describe")
        known = self.ids[name]
        producer_id, epoch = known.current
        ended_id, ended_epoch = known.ended or (-1, -1)
        return transactions_pb2.DescribeTransactionResponse(
            producer_id=producer_id,
            producer_epoch=epoch,
            ended_producer_id=ended_id,
            ended_producer_epoch=ended_epoch,
            ended_committed=known.ended_committed,
        )

    def commit_positions(
        self, request: positions_pb2.CommitPositionsRequest
    ) -> positions_pb2.CommitPositionsResponse:
        """Answer positions that are part of a transaction."""
        self.calls.append("positions")
        written = (request.producer_id, request.producer_epoch)
        try:
            if self.position_refusals:
                raise self.position_refusals.popleft()
            self.join(request.transactional_id, written)
        except MillraceError as error:
            return positions_pb2.CommitPositionsResponse(error=_on_wire(error))
        offsets = {place.topic_partition.partition: place.offset for place in request.positions}
        self.staged.setdefault(written, []).append((request.name, offsets))
        return positions_pb2.CommitPositionsResponse()
