"""Which batches of a partition belong to aborted transactions.

A broker names the aborted transactions of the range that it sends. Their batches are skipped whole
(P10): a transaction's batches in one partition lie between its first and its last offset, and its
producer has no other transaction there meanwhile. So no record is looked at.

Batches come in the order of their offsets, as long as the partition stays in one session. So a
transaction is forgotten once the session is past it. One that reaches beyond what has come is kept,
as it counts for the next response, too.

Source: KIP-98, where readers need the end marker of each aborted transaction instead.
"""

from collections import deque
from collections.abc import Iterable

from millrace.core.ids import Offset, ProducerId
from millrace.core.records.markers import AbortedTransaction


class AbortedTransactions:
    """The aborted transactions of one partition, ahead of what was received."""

    __slots__ = ("_of_producer",)

    def __init__(self) -> None:
        self._of_producer: dict[ProducerId, deque[AbortedTransaction]] = {}
        """Each producer's, ascending."""

    def learn(self, told: Iterable[AbortedTransaction]) -> None:
        """Take what a response says; it may repeat what an earlier one has said.

        Args:
            told: each producer's in the order of their offsets.
        """
        for transaction in told:
            known = self._of_producer.setdefault(transaction.producer_id, deque())
            if not known or known[-1].first_offset < transaction.first_offset:
                known.append(transaction)

    def has(self, producer_id: ProducerId, base_offset: Offset) -> bool:
        """Return whether a transactional batch belongs to one of them.

        Args:
            producer_id: whose batch.
            base_offset: of the batch; no batch before it follows.
        """
        known = self._of_producer.get(producer_id)
        while known:
            if base_offset <= known[0].last_offset:
                return known[0].first_offset <= base_offset
            known.popleft()
        return False

    def forget(self, end_offset: Offset) -> None:
        """Forget those that lie wholly before an offset."""
        for producer_id, known in list(self._of_producer.items()):
            while known and known[0].last_offset < end_offset:
                known.popleft()
            if not known:
                del self._of_producer[producer_id]

    def __len__(self) -> int:
        return sum(map(len, self._of_producer.values()))
