"""Jobs on the files of replicas: their order and their retries.

A job is an effect of the replicas (`effects`), a move (`placement`), or the deletion of topics. It
concerns the files of one partition as a whole, or changes its open log, or deletes topics:

| job            | waits for                                  | where the disk is full or busy |
|----------------|--------------------------------------------|--------------------------------|
| `OpenLog`      | the jobs before it on the partition        | again; offline meanwhile (P64) |
| `CloseReplica` | likewise                                   | over: recovered when opened    |
| `DropReplica`  | likewise                                   | again                          |
| `SetAside`     | likewise                                   | `Replicas` wants it again      |
| `Move`         | likewise                                   | `ReplicaMoves` wants it again  |
| `ChangeLog`    | nothing: the append thread keeps the order | again                          |
| `DeleteTopics` | openings; moves, closings of these topics  | again, as after any failure    |

A log directory that fails takes its replicas offline by itself (P63). Any other failure to open or
to change a log takes the replica offline: it is damaged (P65). Files that cannot be dropped stay
where they are: nothing reads them.

`CloseReplica` keeps the files of a deleted topic, which may be brought back (P75).

A replica that is given up needs neither its opening nor its changes: those that wait for a retry
are forgotten, and those under way are void when they end.

A job is known by identity: two of equal content are two jobs.

Pure: `ready` returns the jobs that should begin; `on_done` or `on_failed` follows for each.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, TypeVar

from millrace.core.errors import (
    LogDirFailedError,
    MillraceError,
    StorageBusyError,
    StorageFullError,
)
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition
from millrace.core.replica.replication.effects import (
    Change,
    ChangeLog,
    CloseReplica,
    DropReplica,
    OpenLog,
    SetAside,
)
from millrace.core.replica.replication.placement import Move

RETRY_MS: Final = 1000
"""Pause before a retry on a disk that is full or busy."""


@dataclass(slots=True)
class DeleteTopics:
    """Move the files of deleted topics to the trash, and confirm that to the controller."""

    topic_ids: Sequence[TopicId]


QueuedJob = OpenLog | CloseReplica | DropReplica | SetAside | Move[Any]
Job = QueuedJob | ChangeLog | DeleteTopics
_J = TypeVar("_J", bound=Job)


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


@dataclass(slots=True)
class _Files:
    """The jobs on the files of one partition."""

    queue: deque[QueuedJob] = field(default_factory=deque)
    """The first one has begun."""
    changes: list[ChangeLog] = field(default_factory=list)
    """Those that have an effect, under way or to be tried again."""
    retries: list[Job] = field(default_factory=list)
    """Those of both that wait to be tried again."""
    is_void: bool = False
    """Whether the first in the queue, an opening, has no effect any more."""


class FileJobs:
    """The queues of one broker, by partition.

    Args:
        retry_ms: pause before a job is tried again.
    """

    def __init__(self, retry_ms: int = RETRY_MS) -> None:
        self._retry_ms = retry_ms
        self._ready: list[Job] = []
        self._files: dict[TopicPartition, _Files] = {}
        # When, in this order; only those count that are also `retries` of their files.
        self._again: deque[tuple[MonotonicMs, QueuedJob | ChangeLog]] = deque()
        self._opening: set[TopicPartition] = set()  # Under way.
        self._leaving: set[TopicPartition] = set()
        self._deleting: DeleteTopics | None = None
        self._to_delete: Sequence[TopicId] | None = None  # None: no image since the start.
        self._deletes_at = MonotonicMs(0)

    def leads_to_opening(self, job: Job) -> bool:
        """Return whether this job, or a queued job of the same partition, opens files."""
        if isinstance(job, ChangeLog | DeleteTopics):
            return False
        files = self._files.get(job.topic_partition)
        return files is not None and any(isinstance(queued, OpenLog) for queued in files.queue)

    def is_void(self, job: OpenLog | ChangeLog) -> bool:
        """Return whether a job that is under way has no effect any more."""
        files = self._files.get(job.topic_partition)
        if isinstance(job, ChangeLog):
            return files is None or not _holds(files.changes, job)
        return files is not None and files.is_void

    # --- Requests ----------------------------------------------------------------------------

    def want(self, job: QueuedJob) -> None:
        """Begin a job when those before it on its partition are over."""
        queue = self._files.setdefault(job.topic_partition, _Files()).queue
        queue.append(job)
        if len(queue) == 1:
            self._begin(job)

    def change(self, job: ChangeLog) -> None:
        """Begin to change the log of a replica that is open.

        While the disk refuses to advance the log's start, one job is tried again: the latest start.
        """
        changes = self._files.setdefault(job.topic_partition, _Files()).changes
        if not any(_covers(change, job) for change in changes):
            changes.append(job)
            self._begin(job)

    def delete(self, topic_ids: Sequence[TopicId]) -> None:
        """Delete topics; each image names them, until it shows that they were confirmed."""
        self._to_delete = topic_ids
        self._deletes_at = MonotonicMs(0)

    def on_closed(self, topic_partition: TopicPartition) -> None:
        """A replica is given up or offline: it needs neither its opening nor its changes."""
        files = self._files.get(topic_partition)
        if files is None:
            return
        files.retries = [waiting for waiting in files.retries if not isinstance(waiting, ChangeLog)]
        files.changes.clear()
        if files.queue:
            first, *others = files.queue
            waiting = (queued for queued in others if not isinstance(queued, OpenLog))
            files.queue = deque([first, *waiting])
            if isinstance(first, OpenLog):
                if files.retries:
                    self._end(first)
                else:
                    files.is_void = True
        self._forget_idle(topic_partition)

    # --- Events ------------------------------------------------------------------------------

    def ready(self, now: MonotonicMs) -> list[Job]:
        """Return the jobs to begin now; to be called after each event and as time passes."""
        while self._again and now >= self._again[0][0]:
            _, job = self._again.popleft()
            files = self._files.get(job.topic_partition)
            if files is not None and _holds(files.retries, job):
                files.retries = _without(files.retries, job)
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
        again_at = MonotonicMs(now + self._retry_ms)
        if outcome is not Outcome.AGAIN:
            self._end(job)
        elif isinstance(job, DeleteTopics):
            self._end(job)
            self._to_delete = job.topic_ids if self._to_delete is None else self._to_delete
            self._deletes_at = again_at
        else:
            files = self._files[job.topic_partition]
            if isinstance(job, ChangeLog):
                _forget_covered(files, job)
            else:
                self._opening.discard(job.topic_partition)
            files.retries.append(job)
            self._again.append((again_at, job))
        return outcome

    def _outcome(self, job: Job, error: MillraceError) -> Outcome:
        may_pass = isinstance(error, StorageFullError | StorageBusyError)
        match job:
            case OpenLog() | ChangeLog() if self.is_void(job):
                return Outcome.VOID
            case DeleteTopics():
                return Outcome.AGAIN
            case OpenLog():
                return Outcome.AGAIN if may_pass else Outcome.OFFLINE
            case ChangeLog() if not isinstance(error, LogDirFailedError):
                return Outcome.AGAIN if may_pass else Outcome.OFFLINE
            case DropReplica() if may_pass:
                return Outcome.AGAIN
            case _:
                return Outcome.OVER

    def _begin(self, job: Job) -> None:
        self._ready.append(job)
        match job:
            case OpenLog(topic_partition):
                self._opening.add(topic_partition)
            case Move(topic_partition) | CloseReplica(topic_partition):
                self._leaving.add(topic_partition)

    def _end(self, job: Job) -> None:
        if isinstance(job, DeleteTopics):
            self._deleting = None
            return
        files = self._files.get(job.topic_partition)
        if isinstance(job, ChangeLog):
            if files is None:
                return  # It was void.
            files.changes = _without(files.changes, job)
        else:
            assert files is not None
            assert files.queue[0] is job
            files.queue.popleft()
            files.retries = _without(files.retries, job)
            files.is_void = False
            self._opening.discard(job.topic_partition)
            self._leaving.discard(job.topic_partition)
            if files.queue:
                self._begin(files.queue[0])
        self._forget_idle(job.topic_partition)

    def _forget_idle(self, topic_partition: TopicPartition) -> None:
        files = self._files.get(topic_partition)
        if files is not None and not files.queue and not files.changes:
            del self._files[topic_partition]

    def _may_delete(self, topic_ids: Sequence[TopicId]) -> bool:
        """Whether no log is being opened, and none of the topics moves or is closed or deleted."""
        is_leaving = any(leaving.topic_id in topic_ids for leaving in self._leaving)
        return self._deleting is None and not self._opening and not is_leaving


def _holds(jobs: Iterable[Job], job: Job) -> bool:
    return any(known is job for known in jobs)


def _without(jobs: Iterable[_J], job: Job) -> list[_J]:
    return [kept for kept in jobs if kept is not job]


def _forget_covered(files: _Files, job: ChangeLog) -> None:
    """Forget the changes that wait to be tried again, and that this one makes needless."""
    for waiting in files.retries:
        if isinstance(waiting, ChangeLog) and _covers(job, waiting):
            files.retries = _without(files.retries, waiting)
            files.changes = _without(files.changes, waiting)


def _covers(change: ChangeLog, other: ChangeLog) -> bool:
    """Return whether a change of a log makes another one of it needless."""
    is_start = change.change is other.change is Change.ADVANCE_START
    return is_start and change.offset >= other.offset
