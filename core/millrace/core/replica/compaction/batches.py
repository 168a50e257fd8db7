"""Takes batches of a log, and gives them back without the records that are replaced.

`KeyCollector` reads the head of a log into an offset map. `BatchCleaner` then goes through all
batches from the log's start to the map's end:

- a record stays if the map knows no later one of its key; one without a key always stays;
- a tombstone, a record with a key and without a value, stays longer than what it deletes: the
  cleaning that first passes it gives its batch a *delete horizon*, `delete.retention.ms` later, and
  the first cleaning after that takes it out. A tombstone at or after the map's end is left as it
  is: older records of its key may still be there. It stays, too, until every replica has compacted
  its log beyond it: one that has not may have a record that it deletes, and might lose the
  tombstone, or copy the record and not the tombstone. Nobody would ever tell it of the deletion;
- the last batch of each producer keeps its header, even without records, so that a replica which
  copies this log still recognises the producer's next batch (P57);
- records of aborted transactions go, and batches of committed ones become plain; a marker stays
  until its horizon, and the last one of each producer longer (`ended_transactions`, T3);
- leader epochs stay: every offset remains in a batch of the epoch that wrote it.

Small batches in a row become one, up to a size, with the offsets that lie between and around their
records. So a log whose records are mostly replaced does not end as a chain of headers, and there is
no hole. Batches of different epochs, formats, codecs, append times or horizons are not put
together. A batch that keeps all records and is not small is given back unchanged, with its
producer's checksum.

Batches are opened in groups of bounded size; a group's keys are hashed and looked up at once. There
is no Python for each record. The records of the head were hashed to fill the map, and are not
hashed again: the map's offsets tell which of them stay.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.ids import (
    NO_TIMESTAMP,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.arrow_views import Bools, bools_of, numbers_of, validity_of
from millrace.core.records.batch import NO_RECORDS, open_batch, walk
from millrace.core.records.columns import RECORDS_MAX
from millrace.core.records.header import (
    COLUMNS_FORMAT,
    HEADER_BYTES,
    Attributes,
    BatchHeader,
    Buffer,
)
from millrace.core.records.markers import markers_of
from millrace.core.records.rewriting import RewrittenBatch, Stamp, empty_time, write
from millrace.core.replica.compaction.ended_transactions import AbortedBatches
from millrace.core.replica.compaction.key_hashes import KeyHasher, KeyHashes
from millrace.core.replica.compaction.offset_map import OffsetMap

_IN_TRANSACTION: Final = Attributes.TRANSACTIONAL | Attributes.CONTROL
_NONE_ABORTED: Final = AbortedBatches()
_NOWHERE: Final = Offset(0)

_GROUP_BYTES: Final = 1 << 20
"""Bytes of opened batches that are looked up together; one batch may be larger. Numpy keeps the
interpreter during some calls, and the event loop waits meanwhile: larger groups were no faster."""
_RUN_BYTES: Final = 4 << 20
"""Bytes of opened batches that one new batch is made from."""
_SPARSE: Final = 4
"""A batch that keeps less than this part of its records is reduced at once: otherwise the few
records that stay would keep the memory of all the others."""
_BATCH_BYTES: Final = 64 << 10
"""Small batches become one of about this size, or half of `max.message.bytes` if that is less.
Larger ones would be no better to read, and a reader must grant as much at once."""
_SMALL: Final = 4
"""A batch is small below this part of that size."""
_SPAN_MAX: Final = 2**31 - 2
_HEAD_OFFSETS_MAX: Final = 1 << 24
"""A head of more offsets is hashed again: a flag for each would take too much memory."""
_FULL_PART: Final = 1000
"""A map counts as full when less than this part of it is free: filling the last few slots one
record at a time would take long."""


class OpenedBatch(NamedTuple):
    """A batch of the log with its records."""

    header: BatchHeader
    data: memoryview
    records: pa.RecordBatch


def open_groups(
    topic_partition: TopicPartition, data: Buffer, inflated_bytes_max: int
) -> Iterator[list[OpenedBatch]]:
    """Open the whole batches in `data`, verified, in groups of bounded size.

    Raises:
        CorruptBatchError, UnsupportedFormatError, InvalidRecordError, MessageTooLargeError: a
            batch is not what its leader accepted.
    """
    group: list[OpenedBatch] = []
    size = 0
    for header, batch in walk(data):
        if group and size + header.opened_bytes > _GROUP_BYTES:
            yield group
            group, size = [], 0
        records = open_batch(topic_partition, header, batch, inflated_bytes_max)
        group.append(OpenedBatch(header, batch, records))
        size += header.opened_bytes
    if group:
        yield group


class KeyCollector:
    """Fills an offset map with the keys of a log's head, in the order of the log.

    Args:
        offset_map: empty.
        hasher: of keys.
        start_offset: where the head begins.
        aborted: the batches that do not count.

    Attributes:
        end_offset: the map has the keys of all records before it.
        is_full: whether it can take no more.
    """

    __slots__ = ("_aborted", "_hasher", "_map", "end_offset", "is_full")

    def __init__(
        self,
        offset_map: OffsetMap,
        hasher: KeyHasher,
        start_offset: Offset,
        aborted: AbortedBatches = _NONE_ABORTED,
    ) -> None:
        self._aborted = aborted
        self._map = offset_map
        self._hasher = hasher
        self.end_offset = start_offset
        self.is_full = False

    def take(self, group: Sequence[OpenedBatch]) -> None:
        """Take the keys of the next batches, as many as fit."""
        keyed = [
            batch
            for batch in group
            if not batch.header.attributes & _IN_TRANSACTION
            or not (batch.header.is_control or batch.header in self._aborted)
        ]
        if keyed:
            keys, offsets = _keys(keyed), _offsets(keyed)
            wanted = offsets >= self.end_offset
            if keys.null_count:
                wanted &= validity_of(keys)
            hashes = self._hasher.hash(keys)
            if not wanted.all():
                hashes = KeyHashes(hashes.high[wanted], hashes.low[wanted])
                offsets = offsets[wanted]
            taken = self._put(hashes, offsets)
            if taken < len(offsets):
                self.end_offset = Offset(int(offsets[taken]))
                self.is_full = True
                return
        self.end_offset = max(self.end_offset, group[-1].header.next_offset)

    def _put(self, hashes: KeyHashes, offsets: npt.NDArray[np.int64]) -> int:
        """Put the first records that fit; return how many."""
        taken = 0
        spare = self._map.keys_max // _FULL_PART
        while taken < len(offsets) and self._map.room > spare:
            part = slice(taken, taken + self._map.room)
            self._map.put(KeyHashes(hashes.high[part], hashes.low[part]), offsets[part])
            taken = min(part.stop, len(offsets))
        return taken


@dataclass(slots=True, frozen=True, kw_only=True)
class CleaningRules:
    """What one cleaning keeps to.

    Attributes:
        topic_partition: of the log.
        start_offset, end_offset: of the records that the map has taken.
        now: the time at the start.
        delete_retention_ms: how long tombstones stay after their first cleaning.
        tombstones_end: those before it may go: no replica has what they delete.
        last_batches: the last offset that each known producer wrote.
        last_epochs: of each known producer that a marker has ended: its epoch.
        aborted: the batches of aborted transactions; no transaction is open before the end.
        batch_bytes_max: of a batch that is put together.
    """

    topic_partition: TopicPartition
    start_offset: Offset
    end_offset: Offset
    now: WallMs
    delete_retention_ms: int
    tombstones_end: Offset
    last_batches: Mapping[ProducerId, Offset]
    batch_bytes_max: int
    last_epochs: Mapping[ProducerId, ProducerEpoch] = field(default_factory=dict)
    aborted: AbortedBatches = _NONE_ABORTED


@dataclass(slots=True)
class CleaningCounts:
    """What a cleaning has done so far."""

    kept: int = 0
    """Records that stay."""
    next_horizon: WallMs = NO_TIMESTAMP
    """The earliest horizon of a tombstone or marker that waits for it; `NO_TIMESTAMP`: none
    does."""
    next_end: Offset = _NOWHERE
    """The end of the batch with that horizon."""


@dataclass(slots=True)
class _Piece:
    """One batch and what stays of it."""

    opened: OpenedBatch
    keep: Bools
    kept: int
    horizon: WallMs | None
    """Of the tombstones that stay; `NO_TIMESTAMP`: they have none yet; None: none stays."""
    waits: bool = True
    """Whether something goes at the horizon."""

    @property
    def is_whole(self) -> bool:
        """Whether the batch stays as it is."""
        header = self.opened.header
        return (
            self.kept == header.record_count
            and self.horizon in (None, header.delete_horizon)
            and not header.attributes & Attributes.TRANSACTIONAL
        )

    @property
    def kept_bytes(self) -> int:
        """About how large the records that stay are."""
        header = self.opened.header
        return header.inflated_length * self.kept // max(header.record_count, 1)

    def reduce(self) -> None:
        """Forget the records that do not stay, if that is most of them."""
        header, _, records = self.opened
        if self.kept * _SPARSE < header.record_count:
            kept = records.filter(bools_of(self.keep))
            self.opened = OpenedBatch(header, memoryview(b""), kept)
            self.keep = np.ones(self.kept, np.bool_)

    def unchanged(self) -> RewrittenBatch:
        header, data, _ = self.opened
        stamped, body = bytes(data[:HEADER_BYTES]), data[HEADER_BYTES:]
        return RewrittenBatch(header, stamped, body, is_rewritten=False)


class _Kind(NamedTuple):
    """What batches with records have in common if they are put together."""

    format: int
    codec: int
    append_timestamp: WallMs


class _Run:
    """Batches in a row that become one."""

    __slots__ = (
        "_kept_records",
        "_kind",
        "_source_bytes",
        "first",
        "horizon",
        "kept",
        "kept_bytes",
        "last",
        "only",
    )

    def __init__(self) -> None:
        self.first: BatchHeader | None = None
        self.last: BatchHeader | None = None
        self.only: _Piece | None = None  # While there is one.
        self.kept: list[_Piece] = []  # Those with records.
        self.kept_bytes = 0
        self.horizon: WallMs | None = None  # As of a piece.
        self._kind = _Kind(COLUMNS_FORMAT, 0, NO_TIMESTAMP)
        self._kept_records = 0
        self._source_bytes = 0

    def takes(self, piece: _Piece) -> bool:
        """Whether the next batch may be put together with these."""
        header = piece.opened.header
        if self.first is None:
            return True
        if (
            header.leader_epoch != self.first.leader_epoch
            or header.next_offset - self.first.base_offset > _SPAN_MAX
        ):
            return False
        if not (self.kept and piece.kept):
            return True
        return (
            self._kind == _kind(header)
            and (self.horizon == piece.horizon or None in (self.horizon, piece.horizon))
            and self._kept_records + piece.kept <= RECORDS_MAX
            and self._source_bytes + header.opened_bytes <= _RUN_BYTES
        )

    def add(self, piece: _Piece) -> None:
        header = piece.opened.header
        self.only = piece if self.first is None else None
        self.first = self.first or header
        self.last = header
        if piece.kept:
            self._kind = _kind(header)
            self.horizon = piece.horizon if self.horizon is None else self.horizon
            self.kept.append(piece)
            self.kept_bytes += piece.kept_bytes
            self._kept_records += piece.kept
            piece.reduce()
            self._source_bytes += piece.opened.records.nbytes

    def stamp(self) -> Stamp:
        """Return what the batch says besides its records."""
        assert self.first is not None
        assert self.last is not None
        return Stamp(
            base_offset=self.first.base_offset,
            next_offset=self.last.next_offset,
            leader_epoch=self.first.leader_epoch,
            codec=self._kind.codec,
            append_timestamp=self._kind.append_timestamp,
            delete_horizon=NO_TIMESTAMP if self.horizon is None else self.horizon,
            empty_timestamp=empty_time(self.last),
            format=self._kind.format,
        )


class BatchCleaner:
    """Cleans batches by an offset map. They go in and come out in the order of the log.

    Args:
        rules: of this cleaning.
        offset_map: of the head's keys.
        hasher: the one that filled the map.

    Attributes:
        counts: of what was taken so far.
    """

    __slots__ = ("_hasher", "_latest", "_map", "_rules", "_run", "_wanted_bytes", "counts")

    def __init__(self, rules: CleaningRules, offset_map: OffsetMap, hasher: KeyHasher) -> None:
        self._rules = rules
        self._map = offset_map
        self._hasher = hasher
        self._latest = (  # Of each offset of the head, whether it is its key's latest.
            offset_map.latest_in(rules.start_offset, rules.end_offset)
            if rules.end_offset - rules.start_offset <= _HEAD_OFFSETS_MAX
            else None
        )
        self._wanted_bytes = min(_BATCH_BYTES, rules.batch_bytes_max // 2)
        self._run = _Run()
        self.counts = CleaningCounts()

    def take(self, group: Sequence[OpenedBatch]) -> Iterator[RewrittenBatch]:
        """Clean the next batches; yield those that are complete."""
        for piece in self._pieces(group):
            self.counts.kept += piece.kept
            if piece.horizon not in (None, NO_TIMESTAMP) and piece.waits:
                known = self.counts.next_horizon
                if known == NO_TIMESTAMP or piece.horizon < known:
                    self.counts.next_horizon = piece.horizon
                    self.counts.next_end = piece.opened.header.next_offset
            if self._must_stay_apart(piece):
                yield from self.finish()
                yield self._apart(piece)
                continue
            if not self._run.takes(piece):
                yield from self.finish()
            self._run.add(piece)
            if self._run.kept_bytes >= self._wanted_bytes:
                yield from self.finish()

    def finish(self) -> Iterator[RewrittenBatch]:
        """Yield the last batch; the next offset begins a new one."""
        run, self._run = self._run, _Run()
        if run.first is None:
            return
        if run.only is not None and run.only.is_whole:
            yield run.only.unchanged()
        else:
            yield from self._written(_records(run.kept), run.stamp())

    def _must_stay_apart(self, piece: _Piece) -> bool:
        header = piece.opened.header
        return bool(
            (header.attributes & Attributes.CONTROL and piece.kept)
            or self._is_last_of_producer(header)
            or (piece.is_whole and piece.kept_bytes * _SMALL >= self._wanted_bytes)
        )

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._rules.last_batches.get(header.producer_id)
        return last is not None and last == header.last_offset

    def _apart(self, piece: _Piece) -> RewrittenBatch:
        """Return a batch that keeps its header, with the records that stay."""
        if piece.is_whole:
            return piece.unchanged()
        header = piece.opened.header
        horizon = NO_TIMESTAMP if piece.horizon is None else piece.horizon
        wanted = replace(
            Stamp.of(header),
            delete_horizon=horizon,
            kind=header.attributes & Attributes.CONTROL if piece.kept else 0,
        )
        return write(self._rules.topic_partition, _records([piece]), wanted)

    def _written(self, records: pa.RecordBatch, wanted: Stamp) -> Iterator[RewrittenBatch]:
        """Yield records as one batch, or as halves where that would be too large."""
        made = write(self._rules.topic_partition, records, wanted)
        if made.length <= self._rules.batch_bytes_max or records.num_rows < 2:
            yield made
            return
        half = records.num_rows // 2
        middle = Offset(int(numbers_of(records.column("offset"))[half]))
        for part, base, end in (
            (records.slice(0, half), wanted.base_offset, middle),
            (records.slice(half), middle, wanted.next_offset),
        ):
            yield from self._written(part, replace(wanted, base_offset=base, next_offset=end))

    def _pieces(self, group: Sequence[OpenedBatch]) -> Iterator[_Piece]:
        """Decide about each record of the batches."""
        offsets = _offsets(group)
        keep = self._stay(group, offsets)
        start = 0
        for opened in group:
            end = start + opened.header.record_count
            yield self._piece(opened, keep[start:end], offsets[start:end])
            start = end

    def _stay(self, group: Sequence[OpenedBatch], offsets: npt.NDArray[np.int64]) -> Bools:
        """Return which records have no later one of their key in the map, or no key."""
        keys, rules = _keys(group), self._rules
        keep: Bools
        if (
            self._latest is not None
            and group[0].header.base_offset >= rules.start_offset
            and group[-1].header.next_offset <= rules.end_offset
        ):
            keep = self._latest[offsets - rules.start_offset]
        else:
            keep = offsets >= self._map.latest(self._hasher.hash(keys))
        if keys.null_count:
            keep |= ~validity_of(keys)
        return keep

    def _piece(self, opened: OpenedBatch, keep: Bools, offsets: npt.NDArray[np.int64]) -> _Piece:
        header = opened.header
        rules = self._rules
        if header.attributes & _IN_TRANSACTION:
            if header.is_control:
                return self._markers(opened)
            if header in rules.aborted:
                return _Piece(opened, np.zeros_like(keep), 0, None)
        horizon: WallMs | None = None
        deletes = _tombstones(opened.records)
        if deletes is not None and (deletes & keep).any():
            if NO_TIMESTAMP < header.delete_horizon <= rules.now:
                keep = keep & ~(deletes & (offsets < rules.tombstones_end))
            horizon = header.delete_horizon
            if horizon == NO_TIMESTAMP and header.next_offset <= rules.end_offset:
                horizon = WallMs(rules.now + rules.delete_retention_ms)
            if not (deletes & keep).any():
                horizon = None
        return _Piece(opened, keep, int(np.count_nonzero(keep)), horizon)

    def _markers(self, opened: OpenedBatch) -> _Piece:
        """Decide about the markers of a control batch."""
        header, rules = opened.header, self._rules
        markers = [written.marker for written in markers_of(opened.records.column("value"))]
        is_last = np.array(
            [
                rules.last_epochs.get(marker.producer_id) == marker.producer_epoch
                for marker in markers
            ],
            np.bool_,
        )
        keep: Bools = np.ones(len(markers), np.bool_)
        horizon = header.delete_horizon
        if header.next_offset <= rules.end_offset:  # Else records before it are not cleaned yet.
            may_go = header.next_offset <= rules.tombstones_end
            if may_go and NO_TIMESTAMP < horizon <= rules.now:
                keep = is_last
            if horizon == NO_TIMESTAMP and not is_last.all():
                horizon = WallMs(rules.now + rules.delete_retention_ms)
        waits = bool((keep & ~is_last).any())
        return _Piece(opened, keep, int(np.count_nonzero(keep)), horizon, waits)


def _kind(header: BatchHeader) -> _Kind:
    return _Kind(header.format, header.codec, header.append_timestamp)


def _keys(group: Iterable[OpenedBatch]) -> pa.Array:
    return pa.concat_arrays([batch.records.column("key") for batch in group])


def _offsets(group: Iterable[OpenedBatch]) -> npt.NDArray[np.int64]:
    return np.concatenate([numbers_of(batch.records.column("offset")) for batch in group])


def _tombstones(records: pa.RecordBatch) -> Bools | None:
    """Return which records delete their key; None: none does."""
    values = records.column("value")
    if not values.null_count:
        return None
    deletes = ~validity_of(values)
    keys = records.column("key")
    if keys.null_count:
        deletes &= validity_of(keys)
    return deletes


def _records(pieces: Sequence[_Piece]) -> pa.RecordBatch:
    """Return the records that stay, as one batch."""
    if not pieces:
        return NO_RECORDS
    whole = pa.concat_batches([piece.opened.records for piece in pieces])
    keep = np.concatenate([piece.keep for piece in pieces])
    return whole if keep.all() else whole.filter(bools_of(keep))
