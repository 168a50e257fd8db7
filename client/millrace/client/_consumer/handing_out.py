"""What a poll hands out: the batches that have come, opened, and what the last poll left of them.

Its methods belong to one thread or task at a time.
"""

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from millrace.client._consumer.fetching import Fetching
from millrace.client._consumer.records import (
    FetchedRecords,
    LentRecords,
    Records,
    record_type,
)
from millrace.client._consumer.settings import ConsumerConfig
from millrace.core.client.consumer.sessions import FetchedBatch
from millrace.core.errors import CorruptBatchError, InvalidRequestError, MillraceError
from millrace.core.ids import Offset, TopicPartition
from millrace.core.records.arrow_views import numbers_of
from millrace.core.records.batch import open_batch, open_records
from millrace.core.records.few_records import FewRecords
from millrace.core.settings import BATCH_INFLATED_BYTES_MAX
from millrace.runtime.clock import wall_now

_LENT_MAX: Final = 10_000
"""Records that are decoded at a time for a loop over a consumer."""


class HandingOut:
    """Opens what was fetched, in the order in which it is handed out."""

    def __init__(self, fetching: Fetching, config: ConsumerConfig) -> None:
        self._fetching = fetching
        self._counters = fetching.counters
        self._record_type = record_type(config.key_deserializer, config.value_deserializer)
        self._rest: tuple[FetchedBatch, pa.RecordBatch | FewRecords] | None = None
        """Records of a batch that did not fit into the last `poll`; Python objects are lent."""
        self.undecided: set[TopicPartition] = set()
        """Partitions of which records were handed out since a transaction committed them last."""
        self.staged: set[TopicPartition] = set()
        """Partitions that are committed if the open transaction is, with all that was handed out
        before it got their positions."""
        self._lent: LentRecords | None = None
        """The first records of the rest, for loops over the consumer: the records that they leave
        are handed out next."""
        self._under_way: tuple[TopicPartition, Offset] | None = None
        """The record whose function has not returned, in `process`."""

    @property
    def has_news(self) -> bool:
        """Whether there may be something to hand out, or to tell."""
        return self._rest is not None or self._fetching.fetcher.has_news

    def take_records(self, max_records: int, max_bytes: int) -> Records:
        """Return records that have come, one at least; none if none have."""
        self._take_back()
        records = Records(self._record_type)
        size, left = 0, max_records
        while left:
            try:
                opened = self._next_records(left, max_bytes - size)
            except MillraceError:
                if records:  # The error is for the next call: these records come first.
                    self._raise_again()
                    return records
                raise
            if opened is None:
                break
            batch, rows = opened
            if isinstance(rows, FewRecords):
                records.add(batch.topic, batch.topic_partition.partition, rows)
                size += batch.header.opened_bytes
                left -= batch.header.record_count
                continue
            count = min(left, len(rows))
            taken = batch.header.opened_bytes
            if size + taken > max_bytes:
                # To the record: which costs as much as opening a small batch.
                count = min(count, max(_fitting(rows, max_bytes - size), not records))
                taken = rows.slice(0, count).nbytes
            self._rest = (batch, rows.slice(count)) if len(rows) > count else None
            if self._rest is not None and not count:
                break
            records.add(batch.topic, batch.topic_partition.partition, rows.slice(0, count))
            size += taken
            left -= count
        return records

    def take_batches(self, max_bytes: int) -> list[FetchedRecords]:
        """Return batches that have come, one at least; none if none have.

        Waiting batches are bounded by their compressed size; handed out ones by their size in
        memory.
        """
        self._take_back()
        batches: list[FetchedRecords] = []
        size = 0
        while size < max_bytes or not batches:
            try:
                opened = self._next()
            except MillraceError:
                if batches:
                    self._raise_again()
                    return batches
                raise
            if opened is None:
                break
            batch, rows = opened
            # Not `nbytes`, which costs as much as opening a batch.
            if batches and size + batch.header.opened_bytes > max_bytes:
                self._rest = opened
                break
            self._rest = None
            if not len(rows):  # A cleaner took them all; the position is beyond them.
                continue
            size += batch.header.opened_bytes
            batches.append(
                FetchedRecords(
                    batch.topic,
                    batch.topic_partition.partition,
                    rows,
                    batch.header.leader_epoch,
                    max(
                        self._fetching.fetcher.partition(batch.topic_partition).high_watermark,
                        Offset(0),
                    ),
                    batch.topic_partition.topic_id,
                    batch.header.has_append_time,
                )
            )
        return batches

    def lend_records(self) -> LentRecords | tuple[()]:
        """Return records that have come, for a loop; none if none have.

        Any later call hands out the records that the loop leaves. A seek or a pause of the
        partition, or any other poll, ends the loop over them.
        """
        while not self._lent:
            self._take_back()
            opened = self._next_records(_LENT_MAX, BATCH_INFLATED_BYTES_MAX)
            if opened is None:
                return ()
            batch, rows = opened
            self._rest = opened if len(rows) else None
            if len(rows):
                self._lent = LentRecords(
                    self._record_type,
                    batch.topic,
                    batch.topic_partition.partition,
                    rows if isinstance(rows, FewRecords) else rows.slice(0, _LENT_MAX),
                )
        return self._lent

    def _take_back(self) -> None:
        """Let the rest begin with the first record that no loop has reached."""
        if self._rest is not None and self._lent is not None:
            (batch, rows), handed_out = self._rest, _handed_out(self._lent)
            self.drop()
            if handed_out == len(rows):
                return
            if isinstance(rows, FewRecords):  # A loop was left: what follows may take a part.
                rows = open_batch(
                    batch.topic_partition, batch.header, batch.data, BATCH_INFLATED_BYTES_MAX
                )
            self._rest = batch, rows.slice(handed_out)

    def _raise_again(self) -> None:
        with self._fetching.lock:
            self._fetching.fetcher.untold.raise_again()

    def _next(self) -> tuple[FetchedBatch, pa.RecordBatch] | None:
        """Return the next batch, with its records as Arrow; None: none has come."""
        return self._next_records(0, 0)

    def _next_records(
        self, records_max: int, bytes_max: int
    ) -> tuple[FetchedBatch, pa.RecordBatch | FewRecords] | None:
        """As `_next`, but the records of a small batch come as Python objects.

        Args:
            records_max: a batch with more records may be handed out in part: it comes as Arrow.
            bytes_max: likewise, for the bytes of the opened batch.
        """
        if self._rest is not None:
            self.undecided.add(self._rest[0].topic_partition)
            return self._rest
        while (batch := self._fetching.take()) is not None:
            opened = self._open(batch, records_max, bytes_max)
            if opened is not None:
                self.undecided.add(batch.topic_partition)
                return batch, opened
        return None

    def _open(
        self, batch: FetchedBatch, records_max: int, bytes_max: int
    ) -> pa.RecordBatch | FewRecords | None:
        """Return a batch's records; None: it is damaged, and fetched again."""
        header = batch.header
        is_first_wanted = batch.start_offset <= header.base_offset
        is_whole = header.record_count <= records_max and header.opened_bytes <= bytes_max
        open_as = open_records if is_first_wanted and is_whole else open_batch
        try:
            opened = open_as(batch.topic_partition, header, batch.data, BATCH_INFLATED_BYTES_MAX)
        # Never past an unreadable batch: the position goes back to it.
        except CorruptBatchError:
            if self._fetch_again(batch.topic_partition, batch.start_offset):
                return None
            raise
        except MillraceError:
            self.rewind(batch.topic_partition, batch.start_offset)
            raise
        count = header.record_count
        if not is_first_wanted:
            rows: pa.RecordBatch = opened
            unwanted = int((numbers_of(rows.column("offset")) < batch.start_offset).sum())
            opened = rows.slice(unwanted)
            count -= unwanted
        counters = self._counters
        counters.records += count
        counters.batches += 1
        counters.batch_bytes += header.length
        if header.largest_timestamp >= 0:
            counters.age_seconds.observe(max(0, wall_now() - header.largest_timestamp) / 1000)
        return opened

    def _fetch_again(self, place: TopicPartition, damaged_offset: Offset) -> bool:
        """Go back to a damaged batch; return whether its broker verifies it for the first time."""
        self.drop()
        with self._fetching.changing() as fetcher:
            return fetcher.fetch_again(place, damaged_offset)

    def rewind(self, place: TopicPartition, to: Offset) -> None:
        """Go back to the first record that was not handed out."""
        self.drop()  # If there is a rest it is of this partition.
        with self._fetching.changing() as fetcher:
            fetcher.rewind(place, to)

    # What transactions decide.

    def stage(self, places: Iterable[TopicPartition]) -> None:
        """Note that the open transaction commits all that was handed out of these partitions."""
        covered = self.undecided.intersection(places)
        self.undecided -= covered
        self.staged |= covered

    def is_undecided(self, places: Iterable[TopicPartition]) -> bool:
        """Whether records of these were handed out that no transaction has committed."""
        return any(place in self.undecided or place in self.staged for place in places)

    # What is left of the last poll.

    def drop(self) -> None:
        """Forget the rest; a loop over it ends."""
        self._rest = None
        if self._lent is not None:
            self._lent.take_back()
            self._lent = None

    def has_rest_of(self, places: Container[TopicPartition]) -> bool:
        """Return whether the rest is of one of these partitions."""
        return self._rest is not None and self._rest[0].topic_partition in places

    def drop_rest_of(self, places: Container[TopicPartition]) -> None:
        """Forget the rest if it is of one of these partitions."""
        if self.has_rest_of(places):
            self.drop()

    def rest_offset(self, place: TopicPartition) -> Offset | None:
        """Return where the rest of the last `poll` or loop begins, if it is of this partition."""
        if self._rest is None or self._rest[0].topic_partition != place:
            return None
        rows, handed_out = self._rest[1], _handed_out(self._lent)
        if handed_out >= len(rows):
            return None
        if isinstance(rows, FewRecords):
            return Offset(rows.offsets[handed_out])
        return Offset(rows.column("offset")[handed_out].as_py())

    @contextmanager
    def under_way(self, offset: Offset) -> Iterator[None]:
        """Let no commit include the record that a loop has just reached, until the block ends."""
        if self._rest is not None:  # Else another poll has ended the loop.
            self._under_way = self._rest[0].topic_partition, offset
        try:
            yield
        finally:
            self._under_way = None

    def undone_offset(self, place: TopicPartition) -> Offset | None:
        """Return the first offset that no commit may include, if what was handed out tells it."""
        if self._under_way is not None and self._under_way[0] == place:
            return self._under_way[1]
        return self.rest_offset(place)

    def rest_count(self) -> tuple[str, int]:
        """Return the topic of the rest, and its number of records; from any thread."""
        rest, lent = self._rest, self._lent
        if rest is None:
            return "", 0
        return rest[0].topic, max(0, len(rest[1]) - _handed_out(lent))


def check_max_records(max_records: int) -> None:
    """Refuse a poll that could hand nothing out.

    Raises:
        InvalidRequestError: it may not hand out a single record.
    """
    if max_records < 1:
        raise InvalidRequestError(f"max_records={max_records}: a poll hands out 1 at least")


def _handed_out(lent: LentRecords | None) -> int:
    """Return how many of the lent records a loop has reached."""
    return 0 if lent is None else lent.count - len(lent)


def _fitting(rows: pa.RecordBatch, bytes_max: int) -> int:
    """Return how many of the first rows take no more than so many bytes."""
    counts = range(1, len(rows) + 1)
    return bisect_right(counts, bytes_max, key=lambda count: rows.slice(0, count).nbytes)
