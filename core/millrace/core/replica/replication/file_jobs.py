"""Jobs on the files of replicas: their order and their retries.

A job concerns the files of one partition as a whole, or changes its open log, or deletes topics:

| job             | waits for                                  | where the disk is full or busy |
|-----------------|--------------------------------------------|--------------------------------|
| `OpenFiles`     | the jobs before it on the partition        | again; offline meanwhile (P64) |
| `CloseFiles`    | likewise                                   | over: recovered when opened    |
| `DropFiles`     | likewise                                   | again                          |
| `SetFilesAside` | likewise                                   | `Replicas` wants it again      |
| `MoveFiles`     | likewise                                   | `ReplicaMoves` wants it again  |
| `ChangeLog`     | nothing: the append thread keeps the order | again                          |
| `DeleteTopics`  | openings; moves, closings of these topics  | again, as after any failure    |

A log directory that fails takes its replicas offline by itself (P63). Any other failure to open or
to change a log takes the replica offline: it is damaged (P65). Files that cannot be dropped stay
where they are: nothing reads them.

A replica that is given up needs neither its opening nor its changes: those that wait for a retry
are forgotten, and those under way are void when they end.

Pure: `ready` returns the jobs that should begin; `on_done` or `on_failed` follows for each.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from millrace.core.errors import (
    LogDirFailedError,
    MillraceError,
    StorageBusyError,
    StorageFullError,
)
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition
from millrace.core.metadata.model import Topic
from millrace.core.replica.replication.follower import AdvanceLogStart, StartOver, Truncate
from millrace.core.replica.replication.placement import Move

RETRY_MS: Final = 1000
"""Pause before a retry on a disk that is full or busy."""


@dataclass(slots=True, frozen=True)
class Flush:
    """A change of a log: make all of it durable."""


Change = Truncate | StartOver | AdvanceLogStart | Flush


@dataclass(slots=True, eq=False)
class OpenFiles:
    """Open the log of a replica, or begin one."""

    topic_partition: TopicPartition
    topic: Topic
    is_first: bool
    """Whether the first image after the start names the replica."""


@dataclass(slots=True, eq=False)
class CloseFiles:
    """Close the log of a replica in order: its topic was deleted, and may be brought back (P75)."""

    topic_partition: TopicPartition


@dataclass(slots=True, eq=False)
class DropFiles:
    """Move the files of a replica to the trash: others have the partition (P33, P70)."""

    topic_partition: TopicPartition


@dataclass(slots=True, eq=False)
class SetFilesAside:
    """Free the name of a damaged log for a new one (P65)."""

    topic_partition: TopicPartition


@dataclass(slots=True, eq=False)
class MoveFiles:
    """Move a replica to another log directory."""

    move: Move[Any]

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition whose files move."""
        return self.move.topic_partition


@dataclass(slots=True, eq=False)
class ChangeLog:
    """Change the log of a replica that is open."""

    topic_partition: TopicPartition
    change: Change


@dataclass(slots=True, eq=False)
class DeleteTopics:
    """Move the files of deleted topics to the trash, and confirm that to the controller."""

    topic_ids: Sequence[TopicId]


QueuedJob = OpenFiles | CloseFiles | DropFiles | SetFilesAside | MoveFiles
Job = QueuedJob | ChangeLog | DeleteTopics


class Outcome(Enum):
    """The consequence of a failed job."""

    VOID = auto()
    """Nothing: the replica was given up meanwhile."""
    AGAIN = auto()
    """The job is tried again after a pause; until then nothing changes."""
    OFFLINE = auto()
    """The replica goes offline."""
    OVER = auto()
    """The job is over. The machine that wanted it may want it again."""


class FileJobs:
    """See the module.

    Args:
        retry_ms: pause before a job is tried again.
    """

    def __init__(self, retry_ms: int = RETRY_MS) -> None:
        self._retry_ms = retry_ms
        self._ready: list[Job] = []
        self._queues: dict[TopicPartition, deque[QueuedJob]] = {}  # The first one has begun.
        self._changes: dict[TopicPartition, set[ChangeLog]] = {}  # Those that have an effect.
        self._void: set[Job] = set()  # Openings under way that have none any more.
        self._again_at: dict[Job, MonotonicMs] = {}
        self._opening: set[OpenFiles] = set()  # Under way.
        self._leaving: set[MoveFiles | CloseFiles] = set()
        self._deleting: DeleteTopics | None = None
        self._to_delete: Sequence[TopicId] | None = None  # None: no image since the start.
        self._deletes_at = MonotonicMs(0)

    def leads_to_opening(self, job: Job) -> bool:
        """Return whether this job, or a queued job of the same partition, opens files."""
        match job:
            case ChangeLog() | DeleteTopics():
                return False
            case _:
                queue = self._queues.get(job.topic_partition, ())
                return any(isinstance(each, OpenFiles) for each in queue)

    def is_void(self, job: OpenFiles | ChangeLog) -> bool:
        """Return whether a job that is under way has no effect any more."""
        if isinstance(job, ChangeLog):
            return job not in self._changes.get(job.topic_partition, ())
        return job in self._void

    # --- Requests ----------------------------------------------------------------------------

    def want(self, job: QueuedJob) -> None:
        """Begin a job when those before it on its partition are over."""
        queue = self._queues.setdefault(job.topic_partition, deque())
        queue.append(job)
        if len(queue) == 1:
            self._begin(job)

    def change(self, job: ChangeLog) -> None:
        """Begin to change the log of a replica that is open.

        While the disk refuses to advance the log's start, one job is tried again: the latest start.
        """
        changes = self._changes.setdefault(job.topic_partition, set())
        if any(_covers(each.change, job.change) for each in changes):
            return
        changes.add(job)
        self._begin(job)

    def delete(self, topic_ids: Sequence[TopicId]) -> None:
        """Delete topics; each image names them, until it shows that they were confirmed."""
        self._to_delete = topic_ids
        self._deletes_at = MonotonicMs(0)

    def on_closed(self, topic_partition: TopicPartition) -> None:
        """A replica is given up or offline: it needs neither its opening nor its changes."""
        for change in self._changes.pop(topic_partition, ()):
            self._again_at.pop(change, None)
        queue = self._queues.get(topic_partition)
        if queue is None:
            return
        first, *others = queue
        waiting = (each for each in others if not isinstance(each, OpenFiles))
        self._queues[topic_partition] = deque([first, *waiting])
        if isinstance(first, OpenFiles):
            if first in self._again_at:
                self._end(first)
            else:
                self._void.add(first)

    # --- Events ------------------------------------------------------------------------------

    def ready(self, now: MonotonicMs) -> list[Job]:
        """Return the jobs to begin now; to be called after each event and as time passes."""
        for job in [job for job, at in self._again_at.items() if now >= at]:
            del self._again_at[job]
            self._begin(job)
        if self._to_delete and now >= self._deletes_at and self._may_delete(self._to_delete):
            self._deleting, self._to_delete = DeleteTopics(self._to_delete), None
            self._ready.append(self._deleting)
        ready, self._ready = self._ready, []
        return ready

    def on_done(self, job: Job) -> None:
        """A job has succeeded."""
        self._end(job)

    def on_failed(
        self, job: Job, error: MillraceError, now: MonotonicMs, *, is_log_lost: bool = False
    ) -> Outcome:
        """A job has failed; return what follows.

        Args:
            job: that has begun.
            error: why.
            now: the time.
            is_log_lost: whether a move has left no log that can be used.
        """
        outcome = Outcome.OFFLINE if is_log_lost else self._outcome(job, error)
        if outcome is not Outcome.AGAIN:
            self._end(job)
        elif isinstance(job, DeleteTopics):
            self._end(job)
            self._to_delete = job.topic_ids if self._to_delete is None else self._to_delete
            self._deletes_at = MonotonicMs(now + self._retry_ms)
        else:
            self._opening.discard(job)
            if isinstance(job, ChangeLog):
                self._forget_covered(job)
            self._again_at[job] = MonotonicMs(now + self._retry_ms)
        return outcome

    def _outcome(self, job: Job, error: MillraceError) -> Outcome:
        may_pass = isinstance(error, StorageFullError | StorageBusyError)
        match job:
            case OpenFiles() | ChangeLog() if self.is_void(job):
                return Outcome.VOID
            case DeleteTopics():
                return Outcome.AGAIN
            case OpenFiles():
                return Outcome.AGAIN if may_pass else Outcome.OFFLINE
            case ChangeLog() if not isinstance(error, LogDirFailedError):
                return Outcome.AGAIN if may_pass else Outcome.OFFLINE
            case DropFiles() if may_pass:
                return Outcome.AGAIN
            case _:
                return Outcome.OVER

    def _begin(self, job: Job) -> None:
        self._ready.append(job)
        match job:
            case OpenFiles():
                self._opening.add(job)
            case MoveFiles() | CloseFiles():
                self._leaving.add(job)

    def _end(self, job: Job) -> None:
        match job:
            case DeleteTopics():
                self._deleting = None
            case ChangeLog():
                changes = self._changes.get(job.topic_partition, set())
                changes.discard(job)
                if not changes:
                    self._changes.pop(job.topic_partition, None)
            case _:
                self._leave_queue(job)

    def _forget_covered(self, job: ChangeLog) -> None:
        """Forget the changes that wait to be tried again, and that this one makes needless."""
        waiting = [each for each in self._changes[job.topic_partition] if each in self._again_at]
        for each in waiting:
            if _covers(job.change, each.change):
                del self._again_at[each]
                self._end(each)

    def _leave_queue(self, job: QueuedJob) -> None:
        self._again_at.pop(job, None)
        self._void.discard(job)
        self._opening.discard(job)
        self._leaving.discard(job)
        queue = self._queues[job.topic_partition]
        assert queue[0] is job
        queue.popleft()
        if queue:
            self._begin(queue[0])
        else:
            del self._queues[job.topic_partition]

    def _may_delete(self, topic_ids: Sequence[TopicId]) -> bool:
        """Whether no log is being opened, and none of the topics moves or is closed or deleted."""
        is_leaving = any(each.topic_partition.topic_id in topic_ids for each in self._leaving)
        return self._deleting is None and not self._opening and not is_leaving


def _covers(change: Change, other: Change) -> bool:
    """Return whether a change of a log makes another one needless."""
    match change, other:
        case AdvanceLogStart(start_offset), AdvanceLogStart(others_start_offset):
            return start_offset >= others_start_offset
    return False
