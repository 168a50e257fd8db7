"""The thread that writes: one for each log directory.

It works in rounds. A round takes all waiting batches, writes them partition by partition, flushes
the files of topics with `durability=fsync`, each once and several at the same time
(`flush_threads`), and tells the loop. During a flush the next
round's batches gather: that is the group commit, and it needs no timer. Where followers fetch, the
loop is told before the flush, too: they fetch meanwhile, and flush at the same time. A follower
itself has nothing to tell its leader before its flush is done.

Where the file system can write without a wait, the loop itself appends small batches that need no
flush, while the thread has nothing to do: so all appends stay in their order.

Files are changed here (append, roll, retention, truncation come as `call`s), except for the files
of a checkpoint. The log takes its locks itself: `storage/log/state.py`.

Any failure of the disk on these threads fails the directory (P63). Where the oldest segments of a
log lie on another disk, and that one has failed the log, it is the other directory that fails.
Damage takes its partition offline (P65). A flush for which the process lacked a descriptor has not
been tried, and is tried again shortly: until then it is not reported.

The durations of the rounds' flushes, and whether a write found the disk full, are kept until the
loop takes them (`take_reading`), once a second instead of a message for each flush.

Flushes without waiting requests, which advance the recovery point of `replicated` topics, run on a
second thread: they may take long, and appends go on meanwhile.
"""

import asyncio
import logging
import queue
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from math import ceil
from typing import Any, Final, Protocol, TypeVar

from millrace.broker import events
from millrace.broker.replica.flush_threads import FlushThreads
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import MonotonicMs, Offset
from millrace.core.records.header import Attributes
from millrace.core.replica.replication.disk_health import FLUSHES_JUDGED, DiskReading
from millrace.core.replica.replication.events import Corrupt, DiskEvent, Failed, Flushed, Written
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now, wall_now
from millrace.runtime.mailbox import Mailbox, Worker, settle

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_FLUSH_AGAIN_SECONDS: Final = 0.1
_CACHED_BYTES_MAX: Final = 16 << 10
"""A batch that the loop may append: copying it takes less time than waking a thread."""


class Target(Protocol):
    """The target of appends.

    Attributes:
        log: where the batches go.
        is_flushed_before_ack: whether a round ends with a flush of the log.
        is_followed: whether followers wait for what is written, flushed or not.
        generation_written: failed writes so far; the append thread's own count.
    """

    log: PartitionLog
    generation_written: int

    @property
    def is_flushed_before_ack(self) -> bool: ...
    @property
    def is_followed(self) -> bool: ...


_Append = tuple[Target, StampedBatch, int]
_Call = tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any, BaseException | None], None]]


class Submissions:
    """Where the loop submits work on a log: to its appender, or held back while the log moves."""

    def append(self, target: Target, batch: StampedBatch, generation: int) -> None:
        """Write a batch after all that were submitted before."""
        raise NotImplementedError

    def call_then(
        self,
        done: Callable[[Any, BaseException | None], None],
        job: Callable[..., Any],
        *args: Any,
    ) -> None:
        """Run `job(*args)` on the append thread, between two rounds, then `done(result, error)` on
        the loop.

        A round takes all waiting appends, also later ones: these may be written and reported first.
        """
        raise NotImplementedError

    def call(self, job: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """As `call_then`; return the outcome."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.call_then(partial(settle, future), job, *args)
        return future


class Appender(Submissions):
    """Writes and flushes the logs of one directory.

    Args:
        log_dir: its path, by which its threads are named.
        mailbox: where outcomes go.
        checkpoint: advances the recovery points that are due; run beside the appends.
        on_disk: called on the loop with what became of a target's log.
        on_failed: called on the loop when the directory's disk failed (P63), once; or when another
            one's did, which the error names.
        check_room: called before appends; raises if there is no room for them.
        give_room: gives up what is kept for small files.
        may_append_cached: whether the loop may append, by the file system and the room there.

    Attributes:
        observe_flush: called with the seconds of each flush of a round, on the thread that flushes.
    """

    def __init__(
        self,
        log_dir: str,
        mailbox: Mailbox,
        checkpoint: Callable[[MonotonicMs], object],
        *,
        on_disk: Callable[[Any, DiskEvent], None],
        on_failed: Callable[[LogDirFailedError], None],
        check_room: Callable[[], None] = lambda: None,
        give_room: Callable[[], None] = lambda: None,
        may_append_cached: Callable[[], bool] = lambda: False,
    ) -> None:
        self._log_dir = log_dir
        self._mailbox = mailbox
        self._may_append_cached = may_append_cached
        self._check_room = check_room
        self._give_room = give_room
        self._checkpoint = checkpoint
        self._is_checkpointing = False
        self._on_disk = on_disk
        self._on_failed = on_failed
        self._failure: LogDirFailedError | None = None
        self._work: host.Queue = host.current.new_queue()
        self._submitted = 0  # Counted by the loop.
        self._finished = 0  # Of these; counted by the thread.
        # Their flush could not be tried. A replica that moves meanwhile leaves its log behind.
        self._unflushed: dict[Target, PartitionLog] = {}
        self._flush_again_at = 0.0
        self._busy_since: MonotonicMs | None = None
        self._flushes_ms: deque[int] = deque(maxlen=FLUSHES_JUDGED)
        self._was_full = False
        self.observe_flush: Callable[[float], object] = lambda _: None
        self._flushing: FlushThreads[tuple[Target, PartitionLog], Offset] = FlushThreads(
            log_dir, self._flush_one
        )
        self._flusher = Worker(f"{log_dir}-flush", mailbox)
        self._thread = host.current.start_thread(f"{log_dir}-append", self._run)

    def append(self, target: Target, batch: StampedBatch, generation: int) -> None:
        if not self._append_cached(target, batch, generation):
            self._submit((target, batch, generation))

    def call_then(
        self,
        done: Callable[[Any, BaseException | None], None],
        job: Callable[..., Any],
        *args: Any,
    ) -> None:
        self._submit((job, args, done))

    def _submit(self, work: _Append | _Call) -> None:
        self._submitted += 1
        self._work.put(work)

    def _append_cached(self, target: Target, batch: StampedBatch, generation: int) -> bool:
        """Append a batch here, on the loop, if that waits for nothing; return whether it was."""
        if (
            self._finished != self._submitted
            or target.is_flushed_before_ack
            or batch.length > _CACHED_BYTES_MAX
            or generation != target.generation_written
            or self._failure is not None
            or not self._may_append_cached()
            or not target.log.writer.append_cached(batch, wall_now())
        ):
            return False
        self._begin_due_checkpoint(target.log)
        self._report(target, Written(target.log.log_end_offset))
        return True

    def call_beside(self, job: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a job that may flush for long, beside the appends; from the loop."""
        return self._flusher.call(self._do, job, args)

    def fail(self, error: LogDirFailedError) -> None:
        """Take no more appends, unless the error names another directory; from any thread."""
        if error.is_about(self._log_dir):
            if self._failure is not None:
                return
            self._failure = error
        self._mailbox.post(self._on_failed, error)

    def take_reading(self) -> DiskReading:
        """Return the disk's reading since the last call; from the loop."""
        since, was_full, self._was_full = self._busy_since, self._was_full, False
        flushes_ms = [self._flushes_ms.popleft() for _ in range(len(self._flushes_ms))]
        return DiskReading(
            flushes_ms=flushes_ms,
            under_way_ms=0 if since is None else monotonic_now() - since,
            was_full=was_full,
        )

    def close(self) -> None:
        """Finish the submitted work and end the threads; blocks meanwhile."""
        self._work.put(None)
        self._thread.join()
        self._flushing.close()
        self._flusher.close()

    def _run(self) -> None:
        try:
            self._work_until_closed()
        except BaseException as error:
            self._mailbox.post(_raise, error)  # On the loop it ends the process.

    def _work_until_closed(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=_FLUSH_AGAIN_SECONDS if self._unflushed else None)
            except queue.Empty:
                self._flush()
                continue
            appends: dict[Target, tuple[int, list[StampedBatch]]] = {}
            calls: list[_Call] = []
            is_last = False
            taken = 0
            while True:
                taken += 1
                if work is None:
                    is_last = True
                elif isinstance(work[1], tuple):
                    calls.append(work)
                else:
                    target, batch, generation = work
                    known = appends.get(target)
                    if known is None or known[0] != generation:
                        appends[target] = (generation, [batch])
                    else:
                        known[1].append(batch)
                if is_last:
                    break
                try:
                    work = self._work.get_nowait()
                except queue.Empty:
                    break
            if appends:
                self._round(appends)
            # While this waits for work it must not keep the last request's bytes alive.
            work = target = batch = known = None
            appends.clear()
            for job, args, done in calls:
                self._call(job, args, done)
            if self._unflushed and host.monotonic_s() >= self._flush_again_at:
                self._flush()  # Calls may come for ever without a pause.
            self._finished += taken
            if is_last:
                return

    def _call(
        self,
        job: Callable[..., Any],
        args: tuple[Any, ...],
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        try:
            result, error = self._do(job, args), None
        except BaseException as raised:
            result, error = None, raised
        self._mailbox.post(done, result, error)

    def _do(self, job: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return job(*args)
        except LogDirFailedError as error:
            self.fail(error)
            raise

    def _begin_due_checkpoint(self, log: PartitionLog) -> None:
        """Advance recovery points now: at full speed, once a second would be too late."""
        if self._is_checkpointing or not log.flusher.is_due(monotonic_now()):
            return
        self._is_checkpointing = True

        def done(_: Any, error: BaseException | None) -> None:
            self._is_checkpointing = False
            if error is not None and not isinstance(error, StorageError):
                raise error

        self._flusher.submit(done, self._do, self._checkpoint, (monotonic_now(),))

    def _round(self, appends: dict[Target, tuple[int, list[StampedBatch]]]) -> None:
        written_now: list[Target] = []
        for target, (generation, batches) in appends.items():
            if generation != target.generation_written:
                continue  # Their offsets were taken back when an earlier write failed.
            written, error = self._write(target, batches)
            if written:
                self._begin_due_checkpoint(target.log)
                is_flush_next = target.is_flushed_before_ack  # The loop may change it meanwhile.
                if is_flush_next:
                    written_now.append(target)
                if not is_flush_next or target.is_followed:
                    self._report(target, Written(target.log.log_end_offset))
            if error is not None:
                target.generation_written += 1
                self._report(target, Failed(batches[written].base_offset, error))
                self._on_refused(target, error)
        if written_now or self._unflushed:
            self._flush(written_now)

    def _write(
        self, target: Target, batches: list[StampedBatch]
    ) -> tuple[int, StorageError | None]:
        """Write batches, as many at once as go into one segment.

        On a full disk the ends of transactions take the room that is kept for small files (T7):
        without them readers of committed records would stand still.

        Returns:
            How many of them were written, and why not the rest.
        """
        written = 0
        while written < len(batches):
            try:
                if self._failure is not None:
                    raise self._failure
                rest = batches[written:] if written else batches
                part = rest[: target.log.writer.count_fitting(rest)]
                try:
                    self._check_room()
                    self._measured(target.log.writer.append, part, wall_now())
                except StorageFullError:
                    part = [*takewhile(_ends_transactions, part)]
                    if not part:
                        raise
                    self._give_room()
                    self._measured(target.log.writer.append, part, wall_now())
            except StorageError as error:
                return written, error
            written += len(part)
        return written, None

    def _flush(self, written_now: Sequence[Target] = ()) -> None:
        """Flush what a round has written, and what could not be flushed before."""
        owed, self._unflushed = self._unflushed, {}
        logs = owed | {target: target.log for target in written_now}
        open_logs = [(target, log) for target, log in logs.items() if not log.is_closed]
        self._busy_since = monotonic_now()
        try:
            for (target, log), outcome in self._flushing.flush_all(open_logs):
                self._on_flushed(target, log, outcome, was_owed=target in owed)
        finally:
            self._busy_since = None

    def _flush_one(self, one: tuple[Target, PartitionLog]) -> Offset:
        _, log = one
        if self._failure is not None:
            raise self._failure
        begun = host.monotonic_s()
        flushed_offset = log.flusher.flush()
        seconds = host.monotonic_s() - begun
        self._flushes_ms.append(ceil(seconds * 1000))
        self.observe_flush(seconds)
        return flushed_offset

    def _on_flushed(
        self, target: Target, log: PartitionLog, outcome: Offset | BaseException, *, was_owed: bool
    ) -> None:
        if isinstance(outcome, StorageBusyError):
            self._unflushed[target] = log
            self._flush_again_at = host.monotonic_s() + _FLUSH_AGAIN_SECONDS
            if not was_owed:
                events.FLUSH_NOT_DONE.log(_log, error=outcome.message)
        elif isinstance(outcome, StorageError):
            self._on_refused(target, outcome)  # The log is dead, and so are all its appends.
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            self._report(target, Flushed(outcome))

    def _measured(self, job: Callable[..., _T], *args: Any) -> _T:
        self._busy_since = monotonic_now()
        try:
            return job(*args)
        finally:
            self._busy_since = None

    def _report(self, target: Target, event: DiskEvent) -> None:
        self._mailbox.post(self._on_disk, target, event)

    def _on_refused(self, target: Target, error: StorageError) -> None:
        if isinstance(error, LogDirFailedError):
            self.fail(error)
        elif isinstance(error, StorageFullError):
            self._was_full = True
        elif isinstance(error, CorruptLogError):
            self._report(target, Corrupt(error))


class HeldAppends(Submissions):
    """Replaces a partition's appender while its log moves: submitted work waits here."""

    def __init__(self) -> None:
        self._appends: list[_Append] = []
        self._calls: list[_Call] = []
        self._failure: StorageError | None = None

    def append(self, target: Target, batch: StampedBatch, generation: int) -> None:
        self._appends.append((target, batch, generation))

    def call_then(
        self,
        done: Callable[[Any, BaseException | None], None],
        job: Callable[..., Any],
        *args: Any,
    ) -> None:
        if self._failure is not None:
            done(None, self._failure)
        else:
            self._calls.append((job, args, done))

    def release(self, appender: Appender) -> None:
        """Submit everything to an appender, which takes all later work directly."""
        for target, batch, generation in self._appends:
            appender.append(target, batch, generation)
        for job, args, done in self._calls:
            appender.call_then(done, job, *args)

    def fail(self, error: StorageError) -> None:
        """Drop the held work: the replica is offline, and the waiters have the error."""
        self._failure = error
        calls, self._calls = self._calls, []
        for _, _, done in calls:
            done(None, error)


def _ends_transactions(batch: StampedBatch) -> bool:
    return bool(batch.attributes & Attributes.CONTROL)


def _raise(error: BaseException) -> None:
    raise error
