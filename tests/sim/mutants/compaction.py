"""Mutants of compaction: what is removed, and how a copy replaces segments."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_CORE: Final = "millrace.core.compaction"
_CLEANER: Final = "millrace.broker.storage.log.cleaner"
_SWAP: Final = "millrace.broker.storage.segment_swap"

MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant(
        "the latest record of a key is removed",
        "P57",
        f"{_CORE}.batches:BatchCleaner._pieces",
        "offsets >= self._map.latest",
        "offsets > self._map.latest",
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
        "the segment behind the replaced ones is removed with them",
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
        "millrace.core.replication.follower:PartitionFollower._follow_on",
        "batches = [batches[0].cut(self.topic_partition, next_offset), *batches[1:]]",
        "pass",
    ),
)
