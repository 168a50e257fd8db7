"""What a cleaning knows of transactions: all of them have ended in the part that it cleans (T3).

A cleaning ends at the last stable offset, so each transactional batch before it is committed or
aborted. Records of aborted ones are never read by anybody who counts them, must not enter the map
of keys (they would delete the committed record of their key, redpanda#4824), and go. Batches of
committed ones become plain batches: nothing in the log refers to their transaction any more, so
that its marker can go, too.

A marker goes when the transaction's records are gone or plain on this replica, and no earlier than
its *delete horizon*, as a tombstone: a replica that has copied a transaction's records gets its
marker (KAFKA-9144). The last marker of each producer that is remembered stays: it fences what is
late.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable

from millrace.core.ids import ProducerId
from millrace.core.records.header import Attributes, BatchHeader
from millrace.core.records.markers import AbortedTransaction


class AbortedBatches:
    """Tells which batches belong to aborted transactions.

    Args:
        aborted: of one log; those of one producer in their order.
    """

    __slots__ = ("_of",)

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._of: dict[ProducerId, tuple[array[int], array[int]]] = {}
        for producer_id, first_offset, last_offset in aborted:
            firsts, lasts = self._of.setdefault(producer_id, (array("q"), array("q")))
            firsts.append(first_offset)
            lasts.append(last_offset)

    def __contains__(self, header: BatchHeader) -> bool:
        """Whether a batch is of an aborted transaction."""
        if not header.attributes & Attributes.TRANSACTIONAL or header.producer_id not in self._of:
            return False
        firsts, lasts = self._of[header.producer_id]
        at = bisect_right(firsts, header.base_offset) - 1
        return at >= 0 and header.base_offset <= lasts[at]
