"""Mutants of compaction: when a log is due, what is removed, and how a copy replaces segments."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_CORE: Final = "millrace.core.replica.compaction"
_CLEANER: Final = "millrace.broker.storage.log.cleaner"
_SWAP: Final = "millrace.broker.storage.segment_swap"

MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant(
        "what is not committed is compacted",
        "P57",
        f"{_CORE}.cleanable:cleanable",
        "segment.next_offset > high_watermark or now",
        "now",
    ),
    mutant(
        "the active segment is compacted",
        "P57",
        f"{_CORE}.cleanable:cleanable",
        "segments[:-1]",
        "segments",
    ),
    mutant(
        "an active segment that is empty counts as closed",
        "P57",
        f"{_CLEANER}:LogCleaner.clean",
        "for each in segments[:-1]",
        "for each in segments",
    ),
    mutant(
        "a segment is compacted within its lag",
        "P57",
        f"{_CORE}.cleanable:cleanable",
        "or now - segment.closed_at < lags.min_lag_ms",
        "",
    ),
    mutant(
        "a head waits however old it is",
        "P57",
        f"{_CORE}.cleanable:cleanable",
        "is_overdue or now - segment.created_at > lags.max_lag_ms",
        "is_overdue",
    ),
    mutant(
        "a log is compacted however little of it is new",
        "P57",
        f"{_CORE}.cleanable:cleanable",
        "and found.dirty_ratio > lags.min_dirty_ratio",
        "",
    ),
    mutant(
        "tombstones whose horizon is over wait for new records",
        "P57",
        f"{_CORE}.cleanable:cleanable",
        "NO_TIMESTAMP < point.next_horizon <= now",
        "False",
    ),
    mutant(
        "segments become one however large it is",
        "P57",
        f"{_CORE}.cleanable:groups",
        "size + segment.size > segment_bytes\n            or",
        "",
    ),
    mutant(
        "a full map counts for all of its last batches",
        "P57",
        f"{_CORE}.batches:KeyCollector.take",
        "self.end_offset = Offset(int(offsets[taken]))",
        "self.end_offset = group[-1].header.next_offset",
    ),
    mutant(
        "a tombstone goes in the pass that finds it",
        "P57",
        f"{_CORE}.batches:BatchCleaner._piece",
        "NO_TIMESTAMP < header.delete_horizon <= rules.now",
        "header.next_offset <= rules.end_offset",
    ),
    mutant(
        "a tombstone gets a later horizon with each pass",
        "P57",
        f"{_CORE}.batches:BatchCleaner._piece",
        "if horizon == NO_TIMESTAMP and header.next_offset <= rules.end_offset:",
        "if header.next_offset <= rules.end_offset:",
    ),
    mutant(
        "a tombstone takes the horizon of the batch before it",
        "P57",
        f"{_CORE}.batches:_Run.takes",
        "(self.horizon == piece.horizon or None in (self.horizon, piece.horizon))",
        "True",
    ),
    mutant(
        "tombstones go while a replica is out of sync",
        "P57",
        "millrace.broker.upkeep.cleaners:Cleaners._choose",
        "are_kept=not each.replica.has_all_in_sync",
        "are_kept=False",
    ),
    mutant(
        "the last batch of a producer goes with its records",
        "P57",
        f"{_CORE}.batches:BatchCleaner._must_stay_apart",
        "or self._is_last_of_producer(header)",
        "",
    ),
    mutant(
        "a cut leaves the cleaner point where it was",
        "P57",
        "millrace.broker.storage.log.truncation:LogTruncation._remove_witnesses",
        "min(state.cleaner_point.offset, offset)",
        "state.cleaner_point.offset",
    ),
    mutant(
        "a read at an offset inside a batch skips that batch",
        "P57",
        "millrace.broker.storage.segment:Segment._first_behind",
        "if header.next_offset > offset:",
        "if header.base_offset >= offset:",
    ),
    mutant(
        "the latest record of a key is removed",
        "P57",
        f"{_CORE}.offset_map:OffsetMap.latest_in",
        "offsets < end",
        "offsets < end - 1",
    ),
    mutant(
        "keys of one slot of the map are taken for one",
        "P57",
        f"{_CORE}.offset_map:OffsetMap.latest",
        "found = (there == high) & (self._low[slots] == low)",
        "found = there != _EMPTY",
    ),
    mutant(
        "batches of several leader epochs become one",
        "P57",
        f"{_CORE}.batches:_Run.takes",
        "header.leader_epoch != self.first.leader_epoch\n        or",
        "",
    ),
    mutant(
        "a cleaned copy replaces segments before it is flushed",
        "P57",
        f"{_CLEANER}:_Copy.run",
        "self._checked(self._file.fdatasync)",
        "pass",
    ),
    mutant(
        "segments are removed before it is durable that their copy counts",
        "P57",
        f"{_SWAP}:decide",
        "files.fsync_directory(directory)",
        "pass",
    ),
    mutant(
        "the segment after the replaced ones is removed with them",
        "P57",
        f"{_SWAP}:Swap.covers",
        "base_offset < self.end_offset",
        "base_offset <= self.end_offset",
    ),
    mutant(
        "a copy that was replacing segments is forgotten",
        "P57",
        "millrace.broker.storage.log_recovery:LogRecovery._finish_swaps",
        "if swap is not None:",
        "if False:",
    ),
    mutant(
        "a follower does not take the end of a batch",
        "P57",
        "millrace.core.replica.replication.follower:PartitionFollower._follow_on",
        "batches = [batches[0].cut(self.topic_partition, next_offset), *batches[1:]]",
        "pass",
    ),
)
