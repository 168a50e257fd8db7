"""The states of a partition's producers as bytes. The shell seals them (CRC, offset in the name).

Version 1, little-endian: `u32 producers`, then for each
`i64 producer_id, i16 epoch, u16 batches, i64 seen_at`, then for each of its batches, oldest first,
`i32 base_sequence, i32 last_sequence, i64 base_offset, i64 last_offset`.

Version 2 is written where a transaction or a marker is remembered (T4): it begins with
`u32 0xFFFFFFFF, u32 2, u32 producers, u32 ended`. Each producer has after `seen_at`
`i64 first_offset` of its open transaction, -1: none, `i64 began_at`, -1: none is open,
`i32 coordinator_epoch`, -1: no marker, and `u32 flags`, bit 0: a marker began the epoch, so its
sequences begin with 0. A producer may have no batches. After the producers come the transactions
that have ended, and whose markers were perhaps not committed, each
`i64 marker_offset, i64 first_offset`, ascending by marker.

Version 3 is written where a producer of Kafka is remembered. It is version 2 with an `i32 unbroken`
after each producer's `flags`: how many records up to its last one are in the log without a gap,
-1: not counted.

A log without transactions has version 1, which earlier releases read. Once there may be batches of
Kafka's no broker of these releases comes back (K4), so none meets version 3.

Source: KIP-98; redpanda#30003 (a snapshot without producers that had no batches).
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from millrace.core.errors import CorruptBatchError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    UNKNOWN_OFFSET,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    WallMs,
)
from millrace.core.records.header import SEQUENCE_MAX
from millrace.core.replica.log.open_transactions import Ended

BATCHES_KEPT: Final = 5
UNBROKEN_MAX: Final = SEQUENCE_MAX // 2 + 1
"""What lies further back than half of all sequences lies ahead."""
NOT_COUNTED: Final = -1

_COUNT: Final = struct.Struct("<I")
_PRODUCER: Final = struct.Struct("<qhHq")
_BATCH: Final = struct.Struct("<iiqq")

_LATER_VERSION: Final = 0xFFFF_FFFF
_TRANSACTIONS_VERSION: Final = 2
_KAFKA_VERSION: Final = 3
_HEAD: Final = struct.Struct("<IIII")
_TRANSACTION: Final = struct.Struct("<qqiI")
_UNBROKEN: Final = struct.Struct("<i")
_ENDED: Final = struct.Struct("<qq")
_BEGINS_WITH_0: Final = 1


class KeptBatch(NamedTuple):
    """A remembered batch, to recognise its repetition."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset


class ProducerEntry(NamedTuple):
    """One producer.

    Attributes:
        epoch: of its last batch, or of the marker after it.
        batches: of the epoch: at most 5, oldest first; none after a marker that began the epoch.
        seen_at: when the last batch or marker came.
        first_offset: of its open transaction; -1: none is open.
        coordinator_epoch: of its last marker; -1: there was none.
        begins_with_0: whether a marker began the epoch, and so its sequences begin with 0.
        began_at: when the first batch of its open transaction came; -1: none is open.
        unbroken: of a producer of Kafka, how many records of the epoch up to its last one are in
            the log without a gap, at most `UNBROKEN_MAX`; -1: not counted.
    """

    epoch: ProducerEpoch
    batches: tuple[KeptBatch, ...]
    seen_at: WallMs
    first_offset: Offset = UNKNOWN_OFFSET
    coordinator_epoch: LeaderEpoch = NO_LEADER_EPOCH
    begins_with_0: bool = False
    began_at: WallMs = NO_TIMESTAMP
    unbroken: int = NOT_COUNTED

    @property
    def next_sequence(self) -> int:
        """Where its next batch begins; it has some."""
        return (self.batches[-1].last_sequence + 1) & SEQUENCE_MAX

    @property
    def in_log(self) -> int:
        """How many records before the next sequence are surely in the log; it has batches.

        Of a producer that is not counted, as it sends in order (P44), fewer than five batches are
        all since it began.
        """
        if self.unbroken != NOT_COUNTED:
            return self.unbroken
        if len(self.batches) == BATCHES_KEPT:
            return UNBROKEN_MAX
        return (self.next_sequence - self.batches[0].base_sequence) & SEQUENCE_MAX

    def end_of(self, sequence: int) -> Offset:
        """Return an offset before which a sequence lies that is in the log, as of the batches."""
        for kept in self.batches:
            if (sequence - kept.base_sequence) & SEQUENCE_MAX >= UNBROKEN_MAX:
                return kept.base_offset
        return Offset(self.batches[-1].last_offset + 1)

    @property
    def is_plain(self) -> bool:
        """Whether version 1 can say it: no transaction, and no client of Kafka."""
        return (
            self.unbroken == NOT_COUNTED
            and self.first_offset == UNKNOWN_OFFSET
            and self.coordinator_epoch == NO_LEADER_EPOCH
            and bool(self.batches)
        )


def write_snapshot(entries: Mapping[ProducerId, ProducerEntry], ended: Sequence[Ended]) -> bytes:
    """Return the bytes of a snapshot.

    Args:
        entries: the producers, the longest silent first.
        ended: transactions whose markers may not be committed, ascending by marker.
    """
    is_plain = not ended and all(entry.is_plain for entry in entries.values())
    is_counted = any(entry.unbroken != NOT_COUNTED for entry in entries.values())
    if is_plain:
        parts = [_COUNT.pack(len(entries))]
    else:
        version = _KAFKA_VERSION if is_counted else _TRANSACTIONS_VERSION
        parts = [_HEAD.pack(_LATER_VERSION, version, len(entries), len(ended))]
    for producer_id, entry in entries.items():
        parts.append(_PRODUCER.pack(producer_id, entry.epoch, len(entry.batches), entry.seen_at))
        if not is_plain:
            flags = _BEGINS_WITH_0 if entry.begins_with_0 else 0
            parts.append(
                _TRANSACTION.pack(
                    entry.first_offset, entry.began_at, entry.coordinator_epoch, flags
                )
            )
        if is_counted:
            parts.append(_UNBROKEN.pack(entry.unbroken))
        parts.extend(_BATCH.pack(*kept) for kept in entry.batches)
    parts.extend(_ENDED.pack(*found) for found in ended)
    return b"".join(parts)


def parse_snapshot(snapshot: bytes) -> tuple[dict[ProducerId, ProducerEntry], list[Ended]]:
    """Return the producers of a snapshot, and the transactions that have ended.

    Raises:
        CorruptBatchError: the bytes are not a snapshot that this release knows.
    """
    try:
        entries, ended, end = _parse(snapshot)
    except struct.error as error:
        raise CorruptBatchError(f"a producer snapshot ends too early: {error}") from None
    if end != len(snapshot) or not (
        all(map(_is_possible, entries.values()))
        and all(0 <= found.first_offset < found.marker_offset for found in ended)
        and all(one.marker_offset <= other.marker_offset for one, other in pairwise(ended))
    ):
        raise CorruptBatchError("a producer snapshot holds impossible numbers")
    return entries, ended


def _parse(snapshot: bytes) -> tuple[dict[ProducerId, ProducerEntry], list[Ended], int]:
    (count,) = _COUNT.unpack_from(snapshot)
    at, ends = _COUNT.size, 0
    is_plain, version = count != _LATER_VERSION, 1
    if not is_plain:
        _, version, count, ends = _HEAD.unpack_from(snapshot)
        at = _HEAD.size
        if version not in (_TRANSACTIONS_VERSION, _KAFKA_VERSION):
            raise CorruptBatchError(f"a producer snapshot of version {version}")
    entries: dict[ProducerId, ProducerEntry] = {}
    for _ in range(count):
        producer_id, epoch, kept, seen_at = _PRODUCER.unpack_from(snapshot, at)
        at += _PRODUCER.size
        first_offset, began_at = UNKNOWN_OFFSET, NO_TIMESTAMP
        coordinator_epoch, flags, unbroken = NO_LEADER_EPOCH, 0, NOT_COUNTED
        if not is_plain:
            first_offset, began_at, coordinator_epoch, flags = _TRANSACTION.unpack_from(
                snapshot, at
            )
            at += _TRANSACTION.size
        if version == _KAFKA_VERSION:
            (unbroken,) = _UNBROKEN.unpack_from(snapshot, at)
            at += _UNBROKEN.size
        batches = tuple(
            KeptBatch(*_BATCH.unpack_from(snapshot, at + i * _BATCH.size)) for i in range(kept)
        )
        at += kept * _BATCH.size
        if (is_plain and not batches) or flags & ~_BEGINS_WITH_0:
            raise CorruptBatchError("a producer snapshot holds impossible numbers")
        entries[producer_id] = ProducerEntry(
            epoch,
            batches,
            seen_at,
            first_offset,
            coordinator_epoch,
            bool(flags),
            began_at,
            unbroken,
        )
    ended = [Ended(*_ENDED.unpack_from(snapshot, at + i * _ENDED.size)) for i in range(ends)]
    return entries, ended, at + ends * _ENDED.size


def _is_possible(entry: ProducerEntry) -> bool:
    is_open = entry.first_offset != UNKNOWN_OFFSET
    return (
        len(entry.batches) <= BATCHES_KEPT
        and entry.first_offset >= UNKNOWN_OFFSET
        and entry.coordinator_epoch >= NO_LEADER_EPOCH
        and (bool(entry.batches) or not is_open)
        and (entry.began_at != NO_TIMESTAMP) is is_open
        and NOT_COUNTED <= entry.unbroken <= UNBROKEN_MAX
    )
