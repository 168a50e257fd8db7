"""What all parts of a log share: its segments, its offsets, and its two locks.

    log_start_offset <= recovery_point <= flushed_offset <= log_end_offset

- `recovery_point`: flushed, and known to be so after a crash. A damaged batch below it is
  corruption: the partition is kept as it is and refused, never truncated (P65).
- `flushed_offset`: flushed. Never runs ahead of what the disk confirmed.
- `log_end_offset`: written.

A segment is flushed before the next one begins, so all unflushed batches are in the active one,
which is the last: recovery reads nothing else.

Locks. A change of the log holds `lock`; a wait for a flush of the disk holds `flush_lock`. A thread
that needs both takes `lock` first. So a checkpoint in one thread flushes while another thread
appends.

| what                                                                       | changes under |
|----------------------------------------------------------------------------|---------------|
| `segments`, `tail`, `log_start_offset`, `recovery_point`                   | `lock`        |
| `epochs`, `producer_states`, `undecided`, `has_aborts`                     | `lock`        |
| `uncheckpointed_bytes`; what a truncation has still to cut off the files   | `lock`        |
| `flushed_offset`, `snapshots`                                              | `flush_lock`  |
| `cleaner_point`, also when the log is cleaned; `tier`, `tier_leftovers`    | `lock`        |
| `held`, by the thread that cleans; `replacement`                           | `lock`        |
| all of these, when the log is truncated or emptied; `health.is_closed`     | both          |
| `high_watermark`, unless the log is truncated or emptied                   | neither       |
| `config`                                                                   | neither       |

A cleaned segment takes the place of others under `lock`, and the others are *retired* before. So
does one that has moved to the tier, or back.

Reads take no lock. They use `segments`, which is replaced as a whole, and `tail`, which holds the
active segment together with its end. A read of a segment that is deleted or truncated meanwhile
returns fewer bytes than planned, or none.
"""

from typing import NamedTuple

from millrace.broker.storage.aborted_index import NEVER
from millrace.broker.storage.epoch_checkpoint import EpochCheckpoint
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.log.health import LogHealth
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_recovery import RecoveredLog
from millrace.broker.storage.recovery_checkpoint import RecoveryPoint
from millrace.broker.storage.segment import Segment
from millrace.broker.storage.segment_swap import Swap
from millrace.broker.storage.sparse_index import IndexCache, Place
from millrace.core.errors import OffsetOutOfRangeError
from millrace.core.ids import Offset, TopicPartition
from millrace.core.replica.log.leader_epochs import LeaderEpochs


class Tail(NamedTuple):
    """The end of the log at one moment."""

    active: Segment
    end: Place


class Replacement(NamedTuple):
    """A cleaned segment that is about to take the place of others; see `replacement.py`.

    Attributes:
        swap: the files.
        made: the segment; it counts as retired until its file has its name.
        is_decided: whether the name of the swap is durable.
    """

    swap: Swap
    made: Segment
    is_decided: bool


class LogState:
    """The fields that the parts of a log share.

    Attributes:
        files, directory: where the files are.
        topic_partition: the partition of the batches.
        config: the settings; may be replaced at any time.
        cache: the indexes that are loaded.
        health: whether the log may be used.
        lock, flush_lock: held as the table above says.
        segments: ascending by offset; the last one is active.
        tail: the active segment, and where it ends.
        log_start_offset: records before it are deleted.
        recovery_point, flushed_offset: up to where the log is durable.
        uncheckpointed_bytes: appended since the last checkpoint.
        high_watermark: everything before it is committed, by the replica's last report; before the
            first report the stored one, which may be far behind (P68). Set on the event loop.
        epochs: the leader epochs and their file.
        producer_states: as of the end of the log; belongs to the thread that appends.
        undecided: of their transactions; replaced as a whole, and any thread may read it.
        has_aborts: whether there may be aborted transactions.
        snapshots: of producer states, as files.
        cleaner_point: how far the log is compacted; another object after each cut of the log.
        tier: where its oldest segments lie; None while all of them are at home.
        tier_leftovers: files that count no more, and are still to be removed.
        held: segments that are being cleaned, and do not move to another disk meanwhile.
        replacement: of segments, which the disk refused to complete; None: there is none.
    """

    __slots__ = (
        "cache",
        "cleaner_point",
        "config",
        "directory",
        "epochs",
        "files",
        "flush_lock",
        "flushed_offset",
        "has_aborts",
        "health",
        "held",
        "high_watermark",
        "lock",
        "log_start_offset",
        "producer_states",
        "recovery_point",
        "replacement",
        "segments",
        "snapshots",
        "tail",
        "tier",
        "tier_leftovers",
        "topic_partition",
        "uncheckpointed_bytes",
        "undecided",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        cache: IndexCache,
        recovered: RecoveredLog,
        known: RecoveryPoint | None,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.cache = cache
        self.health = LogHealth(files, directory, topic_partition)
        self.lock = files.new_mutex()
        self.flush_lock = files.new_mutex()
        self.segments = recovered.segments
        active = self.segments[-1]
        self.tail = Tail(active, Place(active.next_offset, active.size))
        self.log_start_offset = recovered.log_start_offset
        self.flushed_offset = self.recovery_point = recovered.recovery_point
        self.uncheckpointed_bytes = recovered.scanned_bytes - recovered.truncated_bytes
        committed = Offset(0) if known is None else min(known.high_watermark, active.next_offset)
        self.high_watermark = max(committed, self.log_start_offset)
        self.epochs = EpochCheckpoint(files, directory, topic_partition, recovered.leader_epochs)
        self.producer_states = recovered.producer_states
        self.undecided = recovered.producer_states.transactions.undecided()
        self.has_aborts = any(found.index.smallest_first < NEVER for found in self.segments)
        self.snapshots = recovered.snapshots
        self.cleaner_point = recovered.cleaner_point
        self.tier = recovered.tier
        self.tier_leftovers: list[str] = []
        self.held: tuple[Segment, ...] = ()
        self.replacement: Replacement | None = None

    @property
    def log_end_offset(self) -> Offset:
        """Offset after the last batch that is written."""
        return self.tail.end.offset

    @property
    def last_stable_offset(self) -> Offset:
        """Everything before it is committed, and no transaction can change its meaning."""
        return self.undecided.last_stable_offset(self.high_watermark)

    @property
    def log_dir(self) -> str:
        """The path of the log directory that it is in."""
        return self.directory.rpartition("/")[0]

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The leader epochs of its batches; any thread may read them."""
        return self.epochs.current

    def open_segment(self, base_offset: Offset) -> Segment:
        """Return a segment of this log with an existing file; it counts as empty until it is
        read."""
        return Segment(
            self.files,
            self.directory,
            self.topic_partition,
            base_offset,
            self.cache,
            folder=self.folder_of(base_offset),
        )

    def folder_of(self, base_offset: Offset) -> str:
        """Return where the file of a segment lies."""
        if self.tier is None or base_offset >= self.tier.end_offset:
            return self.directory
        return self.tier.folder(self.topic_partition)

    def is_missing(self, found: Segment) -> bool:
        """Whether a segment whose file is not there should be: it lies in the tier, and counts.

        A file of the tier is removed after its segment has left the log; one at home before.
        """
        return (
            found in self.segments
            and not self.is_at_home(found)
            and not found.is_retired
            and not self.health.is_closed
        )

    def has(self, found: Segment) -> bool:
        """Whether a segment is one of the log's: it was not deleted, cut or replaced.

        While it is cut, it is still one of them; so this waits for the lock.
        """
        with self.lock:
            return found in self.segments and not found.is_retired

    def is_at_home(self, found: Segment) -> bool:
        """Whether a segment lies in the log's own directory, and not in its tier."""
        return found.folder == self.directory

    def out_of_range(self, offset: Offset) -> OffsetOutOfRangeError:
        """Return the error of an offset that the log does not have."""
        return OffsetOutOfRangeError(
            f"the log has the offsets {self.log_start_offset} to {self.log_end_offset}, not "
            f"{offset}: seek to one of them",
            topic_partition=self.topic_partition,
        )
