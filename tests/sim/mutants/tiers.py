"""Mutants of tiers: when a segment counts on another disk."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_TIERING: Final = "millrace.broker.storage.log.tiering"

# fmt: off
MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant("a segment counts on another disk before its copy is flushed", "P76",
           f"{_TIERING}:_Move.run",
           "self._written(file.fdatasync)", "pass"),
    mutant("a segment counts on another disk before the name of its copy is durable", "P76",
           f"{_TIERING}:_Move._name_copy",
           "files.fsync_directory(self._folder)", "pass"),
    mutant("a segment is removed before it is durable that its copy counts", "P76",
           "millrace.broker.storage.tier:write_tier",
           "payload.encode())", "payload.encode(), durable=False)"),
    mutant("a segment is removed although its copy does not count", "P76",
           f"{_TIERING}:LogTiering.move_out",
           "end_offset=found.next_offset", "end_offset=found.base_offset"),
    mutant("a segment moves before it is committed", "P76", "millrace.core.replica.tiers:movable",
           " or at_home[0].next_offset > high_watermark", "",
           also=mutant(
               "the same, where it moves",
               "P76",
               f"{_TIERING}:LogTiering.move_out",
               " or closed[0].next_offset > state.high_watermark",
               "",
           )),
    mutant("the other disk is forgotten when the first segment has come back", "P76",
           f"{_TIERING}:LogTiering.bring_back",
           "is_last = found is segments[0]", "is_last = True"),
    mutant("a segment that comes back counts before it has its name", "P76",
           f"{_TIERING}:LogTiering.switch",
           "name_copy()", "pass"),
    mutant("segments that were cut off still count on the other disk", "P76",
           "millrace.broker.storage.log.truncation:LogTruncation._lower_tier",
           "state.tier is not None", "False"),
    mutant("a log forgets on which disk its oldest segments lie", "P76",
           "millrace.broker.storage.tier:read_tier",
           "return Tier(log_dirs[directory_id], directory_id, end)", "return None"),
)
# fmt: on
