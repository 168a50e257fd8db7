"""What a partition remembers of idempotent producers, so that a retry never doubles.

For each producer id: its epoch and its last five batches, because a client keeps at most five in
flight (P44). A batch that equals one of them is a repetition and gets the original's offset. Any
other must continue exactly where the last one ended; sequences wrap from 2^31 - 1 to 0 (P42, P43).
An unknown producer may begin with any sequence, but not with the successor of a batch that may
still arrive: that batch would then be refused.

The states are a function of the log's prefix (P45): they are rebuilt by replaying batches in order,
on leaders, followers and after a crash alike. Only `seen_at`, which expires idle producers, comes
from each replica's own clock; a forgotten producer may start with any sequence.

There are at most `PRODUCERS_MAX` of them, some 700 bytes each: a new one replaces the one that was
silent longest. Only a retry that comes after that many other producers is not recognised.

Entries are immutable, so a leader may hold on to one and `put` it back when a write failed.

Snapshot, little-endian: `u32 producers`, then for each
`i64 producer_id, i16 epoch, u16 batches, i64 seen_at`, then for each of its batches, oldest first,
`i32 base_sequence, i32 last_sequence, i64 base_offset, i64 last_offset`. The shell seals it.

Source: KIP-98, KIP-360.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from millrace.core.errors import (
    Appended,
    CorruptBatchError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
)
from millrace.core.ids import NO_PRODUCER_ID, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.header import SEQUENCE_MAX

BATCHES_KEPT: Final = 5
PRODUCERS_MAX: Final = 20_000

_COUNT: Final = struct.Struct("<I")
_PRODUCER: Final = struct.Struct("<qhHq")
_BATCH: Final = struct.Struct("<iiqq")


class SequencedBatch(Protocol):
    """What a batch's header says about its producer."""

    @property
    def producer_id(self) -> ProducerId: ...
    @property
    def producer_epoch(self) -> ProducerEpoch: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...


class KeptBatch(NamedTuple):
    """A remembered batch, to recognise its repetition."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset


class ProducerEntry(NamedTuple):
    """One producer. `batches`: 1 to 5, oldest first."""

    epoch: ProducerEpoch
    batches: tuple[KeptBatch, ...]
    seen_at: WallMs


class ProducerStates:
    """The producers of one partition, as of one offset.

    Args:
        producers_max: how many producers are remembered; beyond it the one that was silent longest
            is forgotten.
    """

    __slots__ = ("_entries", "_producers_max")

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        # In the order of their last batches, the longest silent first.
        self._entries: dict[ProducerId, ProducerEntry] = {}
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerId]:
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStates) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def entry(self, producer_id: ProducerId) -> ProducerEntry | None:
        """Return what is known of a producer, as an immutable value."""
        return self._entries.get(producer_id)

    def put(self, producer_id: ProducerId, entry: ProducerEntry | None) -> None:
        """Reset a producer to an earlier entry; None forgets it."""
        if entry is None:
            self._entries.pop(producer_id, None)
        else:
            self._entries[producer_id] = entry

    def check(self, batch: SequencedBatch, *, is_successor: bool = False) -> Offset | None:
        """Decide about a producer's next batch before it is given offsets.

        Args:
            batch: the batch.
            is_successor: whether batches that the producer sent before are not acknowledged.

        Returns:
            None when it is to be appended, the original's base offset when it is a repetition.

        Raises:
            InvalidProducerEpochError: a newer incarnation of the producer has written.
            OutOfOrderSequenceError: batches are missing before this one, or only a part of it was
                appended before.
            DuplicateSequenceError: it was appended before, but too long ago to know where.
        """
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            if is_successor:
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} sent sequence {batch.base_sequence}, and is not "
                    "known here: the batches before are missing, send them first"
                )
            return None
        if batch.producer_epoch != entry.epoch:
            self._check_other_epoch(batch, entry)
            return None
        for kept in entry.batches:
            if (
                kept.base_sequence == batch.base_sequence
                and kept.last_sequence == batch.last_sequence
            ):
                return kept.base_offset
        expected = (entry.batches[-1].last_sequence + 1) & SEQUENCE_MAX
        ahead = (batch.base_sequence - expected) & SEQUENCE_MAX
        if ahead == 0:
            return None
        if ahead > SEQUENCE_MAX // 2:
            if (batch.last_sequence - expected) & SEQUENCE_MAX <= SEQUENCE_MAX // 2:
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} sent sequences {batch.base_sequence} to "
                    f"{batch.last_sequence}; those up to {entry.batches[-1].last_sequence} are in "
                    "the log, and the others are not: repeat a batch only as it was first sent",
                    appended=Appended.MAYBE,
                )
            raise DuplicateSequenceError(
                f"producer {batch.producer_id} sent sequence {batch.base_sequence} again, but only "
                f"its last {BATCHES_KEPT} batches are remembered: it is in the log already"
            )
        raise OutOfOrderSequenceError(
            f"producer {batch.producer_id} sent sequence {batch.base_sequence}, expected is "
            f"{expected}: the batches between are missing, send them first"
        )

    def _check_other_epoch(self, batch: SequencedBatch, entry: ProducerEntry) -> None:
        if batch.producer_epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"producer {batch.producer_id} wrote with epoch {entry.epoch} already, this batch "
                f"is of epoch {batch.producer_epoch}: a newer incarnation took its place"
            )
        if batch.base_sequence != 0:
            raise OutOfOrderSequenceError(
                f"producer {batch.producer_id} begins epoch {batch.producer_epoch} with sequence "
                f"{batch.base_sequence}: a new epoch begins with 0"
            )

    def update(self, batch: SequencedBatch, base_offset: Offset, now: WallMs) -> None:
        """Remember a batch that got its offsets; ignore one without a producer id.

        Batches in the log are not checked again: a state that contradicts the batch is replaced.
        """
        producer_id = batch.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        kept = KeptBatch(
            batch.base_sequence,
            batch.last_sequence,
            base_offset,
            Offset(base_offset + batch.last_offset_delta),
        )
        entry = self._entries.pop(producer_id, None)
        batches: tuple[KeptBatch, ...] = (kept,)
        if entry is not None and entry.epoch == batch.producer_epoch:
            batches = (*entry.batches[1 - BATCHES_KEPT :], kept)
        elif entry is None and len(self._entries) >= self._producers_max:
            del self._entries[next(iter(self._entries))]
        self._entries[producer_id] = ProducerEntry(batch.producer_epoch, batches, now)

    def expire(self, seen_before: WallMs) -> int:
        """Forget producers that were last seen before `seen_before`; return how many."""
        idle = [key for key, entry in self._entries.items() if entry.seen_at < seen_before]
        for key in idle:
            del self._entries[key]
        return len(idle)

    def copy(self) -> "ProducerStates":
        """Return states that change independently from now on."""
        twin = ProducerStates(self._producers_max)
        twin._entries = dict(self._entries)
        return twin

    def snapshot(self) -> bytes:
        """Return all states as the bytes of a snapshot."""
        parts = [_COUNT.pack(len(self._entries))]
        for producer_id, entry in self._entries.items():
            parts.append(
                _PRODUCER.pack(producer_id, entry.epoch, len(entry.batches), entry.seen_at)
            )
            parts.extend(_BATCH.pack(*kept) for kept in entry.batches)
        return b"".join(parts)

    def restore(self, snapshot: bytes) -> None:
        """Replace all states by those of a snapshot.

        Raises:
            CorruptBatchError: the bytes are not a snapshot.
        """
        entries: dict[ProducerId, ProducerEntry] = {}
        try:
            (count,) = _COUNT.unpack_from(snapshot)
            at = _COUNT.size
            for _ in range(count):
                producer_id, epoch, kept, seen_at = _PRODUCER.unpack_from(snapshot, at)
                at += _PRODUCER.size
                batches = tuple(
                    KeptBatch(*_BATCH.unpack_from(snapshot, at + i * _BATCH.size))
                    for i in range(kept)
                )
                at += kept * _BATCH.size
                entries[producer_id] = ProducerEntry(epoch, batches, seen_at)
        except struct.error as error:
            raise CorruptBatchError(f"a producer snapshot ends too early: {error}") from None
        if at != len(snapshot) or not all(
            1 <= len(entry.batches) <= BATCHES_KEPT for entry in entries.values()
        ):
            raise CorruptBatchError("a producer snapshot holds impossible numbers")
        self._entries = entries
