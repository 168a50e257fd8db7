"""Gives the records of closed intakes their partitions and gathers them into batches.

A batch is sealed when it has `batch_size` bytes or when its oldest record has waited long enough.
Records of one topic keep their order within each partition, whether they came one by one or in
columns: intakes are distributed in the order in which they were sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from millrace.core.client.producer.batch import Piece, ProducerBatch
from millrace.core.client.producer.intake import Intake
from millrace.core.client.producer.partitioners import (
    FAILED,
    STICKY,
    Partitioner,
    assign,
    assign_few,
)
from millrace.core.client.producer.sent_columns import (
    RECORD_OVERHEAD,
    SentColumns,
    taken,
)
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition
from millrace.core.records.arrow_views import int64s_of
from millrace.core.records.cells import FEW_MAX, ByteCells, array_of, cells_of
from millrace.core.records.columns import RECORDS_MAX

_NARROW_MAX: Final = 2**15 - 1


class Rng(Protocol):
    """Source of random choices: `random.Random`, seeded or not."""

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to `stop` - 1."""
        ...


@dataclass(slots=True)
class TopicLayout:
    """The properties of a topic that distributing needs."""

    topic_id: TopicId
    partition_count: int
    batch_bytes_max: int = 2**31
    """Bytes of records that surely fit into a batch of the topic."""


class Distributor:
    """Turns intakes into sealed batches.

    Args:
        batch_size: bytes of records at which a batch is sealed; 0 seals each record alone.
        partitioner: decides about records whose partition was not named.
        queue_length: batches that wait for a partition, infinite if it has no leader; records
            without keys avoid long queues.
        rng: breaks ties.
    """

    def __init__(
        self,
        batch_size: int,
        partitioner: Partitioner,
        queue_length: Callable[[TopicPartition], float],
        rng: Rng,
    ) -> None:
        self.sealed: list[ProducerBatch] = []
        """Batches that are ready to be encoded; the shell takes them."""
        self.open: dict[TopicPartition, ProducerBatch] = {}
        """Batches that still take records."""
        self._batch_size = batch_size
        self._partitioner = partitioner
        self._queue_length = queue_length
        self._rng = rng
        self._sticky: dict[TopicId, int] = {}

    def distribute(self, intake: Intake, layout: TopicLayout) -> None:
        """Move the records of a closed intake into batches.

        Records that cannot get a partition are in `intake.failures` afterwards.
        """
        is_plain = intake.headers is None and intake.timestamps is None
        if is_plain and isinstance(intake.values, list) and intake.record_count <= FEW_MAX:
            self._distribute_few(intake, layout)
        else:
            self._distribute(intake, layout)
        intake.values = intake.keys = intake.headers = intake.partitions = None
        intake.timestamps = intake.sizes = None
        intake.is_distributed = True

    def first_opened_at(self) -> MonotonicMs | None:
        """Return when the oldest waiting record of an open batch was sent."""
        first = None
        for batch in self.open.values():
            if first is None or batch.opened_at < first:
                first = batch.opened_at
        return first

    def take_sealed(self, bytes_max: int) -> list[ProducerBatch]:
        """Take sealed batches, in their order, until they have so many bytes; at least one."""
        count = 0
        while count < len(self.sealed) and bytes_max > 0:
            bytes_max -= self.sealed[count].size
            count += 1
        taken, self.sealed = self.sealed[:count], self.sealed[count:]
        return taken

    def seal_opened_until(self, opened_at: MonotonicMs) -> None:
        """Seal every batch whose oldest record was sent at `opened_at` or before."""
        for topic_partition, batch in list(self.open.items()):
            if batch.opened_at <= opened_at:
                self._seal(topic_partition)

    def _distribute_few(self, intake: Intake, layout: TopicLayout) -> None:
        """Distribute records that came one by one, without headers and times: see `FEW_MAX`."""
        columns = SentColumns(intake.values, intake.keys, None, None, None, intake.record_count)
        chosen = assign_few(intake, self._partitioner, layout.partition_count)
        if chosen is None:
            self._append(intake, layout, STICKY, columns, intake.size)
            return
        if STICKY in chosen:
            sticky = self._sticky_partition(layout)
            chosen = [sticky if partition == STICKY else partition for partition in chosen]
        first = chosen[0]
        if first != FAILED and chosen.count(first) == len(chosen):
            self._append(intake, layout, first, columns, intake.size)
            return
        rows: dict[int, list[int]] = {}
        for row, partition in enumerate(chosen):
            rows.setdefault(partition, []).append(row)
        rows.pop(FAILED, None)
        intake.order = []
        for partition, its_rows in sorted(rows.items()):
            intake.order += its_rows
            values, keys = taken(columns.values, its_rows), taken(columns.keys, its_rows)
            part = SentColumns(values, keys, None, None, None, len(its_rows))
            size = RECORD_OVERHEAD * len(its_rows) + _few_bytes(values) + _few_bytes(keys)
            self._append(intake, layout, partition, part, size)

    def _distribute(self, intake: Intake, layout: TopicLayout) -> None:
        if isinstance(intake.values, list):
            intake.values = cells_of(intake.values)
        if isinstance(intake.keys, list):  # Keys are hashed as a column.
            intake.keys = array_of(intake.keys)
        elif isinstance(intake.keys, ByteCells):
            intake.keys = intake.keys.as_array()
        chosen = assign(intake, self._partitioner, layout.partition_count)
        columns = SentColumns(
            intake.values,
            intake.keys,
            intake.headers,
            intake.timestamps,
            None,
            intake.record_count,
            intake.sizes,
        )
        if isinstance(columns.timestamps, list):
            columns.timestamps = np.asarray(columns.timestamps, np.int64)
        if chosen is None:
            # Columns that only some records need take room for all of them.
            is_plain = columns.headers is None and columns.timestamps is None
            size = intake.size if is_plain else int(columns.sizes().sum())
            self._append(intake, layout, STICKY, columns, size)
        else:
            self._append_sorted(intake, layout, columns, chosen)

    def _append_sorted(
        self, intake: Intake, layout: TopicLayout, columns: SentColumns, chosen: Any
    ) -> None:
        is_sticky = chosen == STICKY
        if is_sticky.any():
            # One partition for all of them: so they keep their order among the others.
            chosen = np.where(is_sticky, self._sticky_partition(layout), chosen)
        first = int(chosen[0])
        if first != FAILED and (chosen == first).all():
            self._append(intake, layout, first, columns, int(columns.sizes().sum()))
            return
        if layout.partition_count <= _NARROW_MAX:
            chosen = chosen.astype(np.int16)  # numpy sorts these by their digits: 5 times as fast.
        order = np.argsort(chosen, kind="stable")
        ranked = chosen[order]
        starts = [0, *(np.flatnonzero(ranked[1:] != ranked[:-1]) + 1).tolist()]
        if isinstance(columns.values, ByteCells) and columns.values.are_short():
            columns.values = columns.values.as_array()  # Joined in their order: it is in the cache.
        sizes = columns.sizes()[order]
        totals = np.add.reduceat(sizes, starts).tolist()
        partitions = ranked[starts].tolist()
        ranked_columns = _ranked(columns, order)
        if intake.failures:
            order = order[int(np.searchsorted(ranked, FAILED, "right")) :]
        intake.order = order
        ends = [*starts[1:], len(ranked)]
        for start, end, partition, size in zip(starts, ends, partitions, totals, strict=True):
            if partition != FAILED:
                part = ranked_columns.slice(start, end - start)
                self._append(intake, layout, partition, part, size, sizes[start:end])

    def _append(  # noqa: PLR0917  # Called once per piece.
        self,
        intake: Intake,
        layout: TopicLayout,
        partition: int,
        columns: SentColumns,
        size: int,
        sizes: Any = None,
    ) -> None:
        """Add records to a partition's open batch, sealing batches as they fill."""
        batch_size = min(self._batch_size, layout.batch_bytes_max)
        # A column that only some records need would cost the others its room.
        shape = (columns.headers is not None, columns.timestamps is not None)
        start, count = 0, columns.record_count
        ends: Any = None  # Bytes up to and with each record; only when a cut is needed.
        while start < count:
            number = self._sticky_partition(layout) if partition == STICKY else partition
            topic_partition = TopicPartition(layout.topic_id, number)
            batch = self.open.get(topic_partition)
            if batch is not None and batch.shape != shape:
                self._seal(topic_partition)
                continue
            if batch is None:
                batch = ProducerBatch(intake.topic, topic_partition, intake.opened_at)
                batch.shape, batch.sent_at = shape, intake.timestamp
                self.open[topic_partition] = batch
            room = batch_size - batch.size
            if size <= room and batch.record_count + count - start <= RECORDS_MAX:
                part = columns if start == 0 else columns.slice(start, count - start)
                batch.add(_piece(part, batch), size, intake)
                start = count
            else:
                if ends is None:
                    ends = np.cumsum(columns.sizes() if sizes is None else sizes)
                before = int(ends[start - 1]) if start else 0
                fitting = int(np.searchsorted(ends, before + room, "right")) - start
                fitting = min(fitting, RECORDS_MAX - batch.record_count)
                if fitting <= 0 and not batch.record_count:
                    fitting = 1  # A record larger than a batch has one of its own.
                if fitting > 0:
                    used = int(ends[start + fitting - 1]) - before
                    batch.add(_piece(columns.slice(start, fitting), batch), used, intake)
                    start += fitting
                    size -= used
            if start < count or batch.size >= batch_size:
                self._seal(topic_partition)

    def _seal(self, topic_partition: TopicPartition) -> None:
        self.sealed.append(self.open.pop(topic_partition))
        if self._sticky.get(topic_partition.topic_id) == topic_partition.partition:
            del self._sticky[topic_partition.topic_id]

    def _sticky_partition(self, layout: TopicLayout) -> int:
        """Return where records without a key go until that partition's batch is sealed.

        It is the one with the shorter queue of two partitions drawn at random: nearly as good as
        looking at all, at a constant cost. If neither has a leader, it looks at all of them:
        records of a partition without a leader take memory until they fail.
        """
        partition = self._sticky.get(layout.topic_id)
        if partition is None:
            count = layout.partition_count

            def queue_length(number: int) -> float:
                return self._queue_length(TopicPartition(layout.topic_id, number))

            partition = self._rng.randrange(count)
            if count > 1:
                other = (partition + 1 + self._rng.randrange(count - 1)) % count
                partition = min(partition, other, key=queue_length)
                if queue_length(partition) == inf:
                    led = [number for number in range(count) if queue_length(number) < inf]
                    partition = led[self._rng.randrange(len(led))] if led else partition
            self._sticky[layout.topic_id] = partition
        return partition


def _piece(columns: SentColumns, batch: ProducerBatch) -> Piece:
    # Records without a time of their own share that of the batch's first: one time needs no column.
    timestamps = batch.sent_at if columns.timestamps is None else columns.timestamps
    return Piece(columns.record_count, timestamps, columns.values, columns.keys, columns.headers)


def _few_bytes(cells: Any) -> int:
    return 0 if cells is None else sum(map(len, filter(None, cells)))


def _ranked(columns: SentColumns, order: Any) -> SentColumns:
    """Return the records in another order."""
    headers = columns.headers
    if isinstance(headers, pa.Array):
        headers = headers.take(int64s_of(order))
    elif headers is not None:
        headers = [headers[row] for row in order.tolist()]
    timestamps = None if columns.timestamps is None else columns.timestamps[order]
    return SentColumns(
        taken(columns.values, order),
        taken(columns.keys, order),
        headers,
        timestamps,
        None,
        len(order),
    )
