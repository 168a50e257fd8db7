"""Holds transactional batches until their partition has joined their transaction (P49).

A transaction's first batch in a partition waits until the coordinator agrees. Later batches of the
same producer wait behind it. Then the leader judges them in the order of their arrival. The first
one opens the transaction here, and the others belong to it.

While the producer's transaction of an earlier epoch is still open here (T2), the coordinator is
asked, too. It agrees when that one is over in all its partitions, so its marker is written here.
If it is still open, no coordinator knows of it: it hangs. Then the leader refuses the batch, and
its producer tries again after its pause.

What makes the guard void meanwhile, or another leader, says nothing about the transaction: all
batches are judged again, and the first one asks again.

The bounds are those of all requests: a waiting batch is unanswered, and holds its part of the
request memory, until its request's time is up.
"""

from collections.abc import Callable
from functools import partial

from millrace.broker.coordinator.transaction_joins import TransactionJoins, Writer
from millrace.broker.replica.partition import Partition
from millrace.core.errors import MillraceError
from millrace.core.ids import ProducerId
from millrace.core.records.header import BatchHeader
from millrace.core.records.markers import BUMPING
from millrace.core.replica.replication.leader_transactions import JoinGuard

Judge = Callable[[JoinGuard | MillraceError | None], None]
"""Takes what an append needs, or why the partition cannot join; None: look again."""


class Joining:
    """The transactional batches of all streams that wait. It belongs to the event loop."""

    def __init__(self, joins: TransactionJoins) -> None:
        self._joins = joins
        self._waiting: dict[tuple[Partition, ProducerId], list[Judge]] = {}

    def waits(
        self,
        partition: Partition,
        header: BatchHeader,
        transactional_id: str,
        judge: Judge,
        protocol: int = BUMPING,
    ) -> bool:
        """Return whether a batch waits; if so, `judge` is called later.

        Args:
            partition: that this broker leads.
            header: of the batch.
            transactional_id: of its producer.
            judge: called with what `Partition.append` needs, with why the batch is refused, or
                with None: then `waits` is to be asked again.
            protocol: of the transaction (T14).

        Raises:
            MillraceError: the batch is to be refused.
        """
        key = partition, header.producer_id
        queue = self._waiting.get(key)
        if queue is not None:
            queue.append(judge)
            return True
        guard = partition.leader.begin_joining(header, protocol)
        if guard is None:
            return False
        self._waiting[key] = [judge]
        writer = Writer(transactional_id, header.producer_id, header.producer_epoch, protocol)
        answered = partial(self._on_answer, partition, header, guard)
        self._joins.ask(writer, partition.topic_partition, answered)
        return True

    def _on_answer(
        self,
        partition: Partition,
        header: BatchHeader,
        guard: JoinGuard,
        error: MillraceError | None,
    ) -> None:
        first, *others = self._waiting.pop((partition, header.producer_id))
        if error is not None:
            first(error)
        else:
            first(guard if _is_valid(partition, guard) else None)
        for judge in others:
            judge(None)


def _is_valid(partition: Partition, guard: JoinGuard) -> bool:
    try:
        return partition.leader.is_valid(guard)
    except MillraceError:  # It does not lead any more, as the batch will be told.
        return False
