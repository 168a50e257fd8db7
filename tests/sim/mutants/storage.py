"""Mutants of the storage code: flushes, full disks, damage, small files, producer states."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_LOG: Final = "millrace.broker.storage.log"
_EPOCHS: Final = "millrace.broker.storage.epoch_checkpoint:EpochCheckpoint"
_RECOVERY: Final = "millrace.broker.storage.log_recovery:LogRecovery"
_DIRECTORY: Final = "millrace.broker.storage.log_directory"
_SEALED: Final = "millrace.broker.storage.sealed_file"
_SNAPSHOTS: Final = "millrace.broker.storage.producer_snapshots:ProducerSnapshots"

# fmt: off
MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant("where an epoch began is not on the disk before its batches are", "P2",
           f"{_EPOCHS}.begin",
           "self._save(epochs)", "self.current, self.is_saved = epochs, True"),
    mutant("the clean-shutdown marker stays when the directory is used again", "P27",
           f"{_DIRECTORY}.directory:LogDirectory._prepare",
           "if clean_shutdown.FILE_NAME in names:", "if False:"),
    mutant("any clean-shutdown marker counts", "P27", f"{_DIRECTORY}.clean_shutdown:read_marker",
           "if marker == _payload(directory_id, checkpoint, said) else None", ""),
    mutant("producer states are those of before the log was cut", "P45",
           f"{_LOG}.truncation:LogTruncation._truncate_to",
           "state.producer_states = states", "pass"),
    mutant("producer states are not kept while following", "P45", f"{_LOG}.writer:LogWriter._note",
           "states.update(batch, batch.base_offset, came_at)", "pass"),
    mutant("producer states of what was cut stay on the disk", "P45", f"{_SNAPSHOTS}.remove_after",
           "if later > offset:", "if False:"),
    mutant("producer states end with the newest snapshot", "P45", f"{_RECOVERY}._scan",
           "if header.base_offset >= replay_from:", "if False:"),
    mutant("a failed flush is repeated", "P63", f"{_LOG}.flusher:LogFlusher.flush_held",
           'raise state.health.fail(error, "flushing") from error', "active.file.fdatasync()"),
    mutant("what a failed flush left behind is believed after a restart", "P63", f"{_RECOVERY}.run",
           "active.file.rewrite(active.size - scan_from, scan_from)", "pass"),
    mutant("a flush only tells", "P13", f"{_LOG}.flusher:LogFlusher.flush_held",
           "active.file.fdatasync()", "pass"),
    mutant("what was half written stays in the file", "P64", f"{_LOG}.writer:LogWriter._write",
           "active.file.truncate(active.size)", "pass", "if active.file.size() != active.size:",
           "if False:"),
    mutant("what the loop has half written stays in the file", "P64",
           f"{_LOG}.writer:LogWriter.append_cached", "self._truncation.cut_later()", "pass"),
    mutant("a log that lost flushed batches is cut to what is left", "P65", f"{_RECOVERY}.run",
           "if active.next_offset < recovery_point or (damage and self._is_clean):", "if False:"),
    mutant("the recovery point is the checkpoint's alone, not the highest of its witnesses", "P65",
           f"{_RECOVERY}.run",
           "snapshot_offset or Offset(0),", "", "self._orphans(names, bases),", "",
           "active.next_offset,\n", "Offset(0),\n"),
    mutant("what came damaged is sent again without a look at it", "P65",
           "millrace.broker.rpc.fetch_sessions:FetchStream._plan_partition",
           "if position.must_verify:", "if False:"),
    mutant("batches of another partition, and changed ones, pass recovery", "P66",
           "millrace.broker.storage.scan:verified_batches",
           "verify_body(topic_partition, header, memoryview(chunk)[at : at + length])", "pass"),
    mutant("a closed segment is what its index says, whatever the file is", "P68",
           f"{_RECOVERY}._open_closed",
           "and coverage.end_position == size", ""),
    mutant("small files are renamed before they are flushed", "P69", f"{_SEALED}:replace_file",
           "file.fdatasync()", "pass"),
    mutant("a renamed file's directory is not flushed", "P69", f"{_SEALED}:replace_file",
           "files.fsync_directory(os.path.dirname(path))", "pass"),
    mutant("a new segment's name is not flushed", "P69", f"{_LOG}.writer:LogWriter._begin_file",
           "files.fsync_directory(new.folder)", "pass"),
    mutant("small files are believed whatever their checksum", "P68", f"{_SEALED}:read_sealed",
           "if head != expected:", "if False:"),
)
# fmt: on
