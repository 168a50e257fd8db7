"""A partition's log with transactions, in memory: what a leader writes, and what it tells readers.

It is the simplest thing that can be right: the whole log is looked through for each answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.fakes.kafka_batches import Record
from tests.fakes.stamped_batches import bytes_of, kafka_batch_of

from millrace.core.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.compression import Compressor
from millrace.core.records.header import HEADER_BYTES, stamp
from millrace.core.records.markers import (
    NO_OFFSET,
    AbortedTransaction,
    Marker,
    WrittenMarker,
    seal_markers,
)


@dataclass(slots=True)
class _Stored:
    data: bytes
    base_offset: Offset
    next_offset: Offset


@dataclass(slots=True)
class _Transaction:
    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    marker_offset: Offset | None = None
    is_committed: bool = False


class TransactionLog:
    """A log of one partition, of which everything is replicated.

    Attributes:
        records: each record of the log, as offset and value, and its transaction; None: it is in
            none.
        leader_epoch: of what is appended next.
        place: which partition it is.
    """

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self._batches: list[_Stored] = []
        self._open: dict[ProducerId, _Transaction] = {}
        self._epochs: dict[ProducerId, int] = {}
        self._sequences: dict[ProducerId, int] = {}
        self._transactions: list[_Transaction] = []
        self.records: list[tuple[int, bytes, _Transaction | None]] = []
        self.leader_epoch = LeaderEpoch(3)
        self.end_offset = Offset(0)

    # What is written.

    def append(
        self,
        values: list[bytes],
        producer_id: int | None = None,
        *,
        is_transactional: bool = True,
        codec: str = "none",
        as_kafka: bool = False,
    ) -> None:
        """Append a batch of a producer, in its transaction, which it may begin; None: of nobody.

        `as_kafka`: as a Kafka client sends it.
        """
        producer, epoch, sequence, transaction = (
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            None,
        )
        if producer_id is None:
            is_transactional = False
        else:
            producer = ProducerId(producer_id)
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + len(values)
            epoch = ProducerEpoch(self._epochs.get(producer, 0))
            if is_transactional:
                transaction = self._open.get(producer)
                if transaction is None:
                    transaction = _Transaction(producer, self.end_offset, self.end_offset)
                    self._open[producer] = transaction
                    self._transactions.append(transaction)
                transaction.last_offset = Offset(self.end_offset + len(values) - 1)
        self.records += [
            (self.end_offset + number, value, transaction) for number, value in enumerate(values)
        ]
        if as_kafka:
            stamped = kafka_batch_of(
                self.end_offset,
                [Record(value, None, 5) for value in values],
                codec=codec,
                epoch=self.leader_epoch,
                producer_id=producer,
                producer_epoch=epoch,
                sequence=sequence,
                in_transaction=is_transactional,
                topic_partition=self.place,
            )
            self._keep(bytes_of(stamped), len(values))
            return
        prepared = prepare(
            self.place, Columns(len(values), WallMs(5), values=[*values]), Compressor(codec)
        )
        header = prepared.finish(producer, epoch, sequence, is_transactional=is_transactional)
        self._store(header + bytes(prepared.body), len(values))

    def end(self, producer_ids: Iterable[int], *, is_committed: bool) -> None:
        """Append a control batch that ends transactions; some producers may have none."""
        markers = []
        for number in producer_ids:
            producer = ProducerId(number)
            epoch = self._epochs[producer] = self._epochs.get(producer, 0) + 1
            self._sequences[producer] = 0
            marker = Marker(producer, ProducerEpoch(epoch), is_committed, LeaderEpoch(1))
            transaction = self._open.pop(producer, None)
            if transaction is None:
                markers.append(WrittenMarker(marker, NO_OFFSET, NO_OFFSET))
                continue
            transaction.marker_offset = self.end_offset
            transaction.is_committed = is_committed
            markers.append(WrittenMarker(marker, transaction.first_offset, transaction.last_offset))
        self._store(seal_markers(self.place, markers, WallMs(5)), len(markers))

    def _store(self, data: bytes, count: int) -> None:
        header = stamp(
            data[:HEADER_BYTES], base_offset=self.end_offset, leader_epoch=self.leader_epoch
        )
        self._keep(header + data[HEADER_BYTES:], count)

    def _keep(self, data: bytes, count: int) -> None:
        next_offset = Offset(self.end_offset + count)
        self._batches.append(_Stored(data, self.end_offset, next_offset))
        self.end_offset = next_offset

    # What readers are told.

    def stored(self) -> list[tuple[int, int, bytes]]:
        """Return the batches: base offset, next offset, and their bytes."""
        return [(batch.base_offset, batch.next_offset, batch.data) for batch in self._batches]

    @property
    def last_stable_offset(self) -> Offset:
        """The first offset of an open transaction; else the end."""
        return min((found.first_offset for found in self._open.values()), default=self.end_offset)

    def read(self, offset: int, end_offset: int, batches_max: int) -> tuple[bytes, Offset]:
        """Return whole batches from an offset on, one at least, and where they end.

        Args:
            offset: the first batch may begin before it.
            end_offset: none ends beyond it.
            batches_max: no more than so many.
        """
        found = [
            batch
            for batch in self._batches
            if offset < batch.next_offset and batch.next_offset <= end_offset
        ][:batches_max]
        return b"".join(batch.data for batch in found), found[-1].next_offset

    def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that concern a range, as `log.reader.aborted` does."""
        found = [
            transaction
            for transaction in self._transactions
            if transaction.marker_offset is not None
            and not transaction.is_committed
            and transaction.marker_offset >= start
            and transaction.first_offset < end
        ]
        found.sort(key=lambda transaction: transaction.marker_offset or 0)
        return [
            AbortedTransaction(found.producer_id, found.first_offset, found.last_offset)
            for found in found
        ]

    def seen(self, start: int, *, read_committed: bool = True) -> list[tuple[int, bytes]]:
        """Return what a reader from an offset on must see: offsets and values, in their order."""
        end = self.last_stable_offset if read_committed else self.end_offset
        return [
            (offset, value)
            for offset, value, transaction in self.records
            if start <= offset < end
            and (not read_committed or transaction is None or transaction.is_committed)
        ]
