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
        "what is not committed is cleaned",
        "P57",
        f"{_CORE}.cleanable:cleanable",
        "segment.next_offset > high_watermark or",
        "",
    ),
    mutant(
        "batches of several leader epochs become one",
        "P57",
        f"{_CORE}.batches:_Run.takes",
        "header.leader_epoch != self.first.leader_epoch\n        or",
        "",
    ),
    mutant(
        "the last batch of a producer is removed with its records",
        "P57",
        f"{_CORE}.batches:BatchCleaner._is_last_of_producer",
        "last is not None and last == header.last_offset",
        "False",
    ),
    mutant(
        "a cleaned copy replaces segments before it is flushed",
        "P57",
        f"{_CLEANER}:_Copy.run",
        "self._checked(file.fdatasync)",
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
    mutant(
        "a reader goes on in the file that took the name of its segment",
        "P57",
        "millrace.broker.storage.segment:Segment.retire",
        "self.is_retired = True",
        "self.is_retired = False",
        "self.file.retire()",
        "pass",
    ),
    mutant(
        "a tombstone goes with the next cleaning",
        "P57",
        f"{_CORE}.batches:BatchCleaner._piece",
        "if NO_TIMESTAMP < header.delete_horizon <= rules.now:",
        "if True:",
        "& (offsets < rules.end_offset)",
        "",
    ),
)
