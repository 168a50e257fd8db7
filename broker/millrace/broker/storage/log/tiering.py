"""Moves closed segments of a log to its tier on another disk, and back.

One segment at a time, in steps of a few MiB, while appends and reads go on:

1. the segment is copied to the other disk, under a name of its own, and flushed;
2. the copy is read again, and every batch in it verified;
3. the copy gets the name of the segment, durably;
4. the file `tier` says, durably, that the segment counts there: see `tier.py`;
5. readers get the copy; the old file is *retired*, so that a reader that holds it asks again, and
   at home it loses its name;
6. the old file is removed.

After a crash before step 4 the old file counts, afterwards the copy; opening the log removes the
other one. The oldest segment at home goes first, and the newest one of the tier comes back first,
so one offset says where each lies.

A segment that is cut, cleaned or deleted during the copy is another object afterwards, or gone:
then the copy is dropped. By then another segment at home may have the same name, where a log was
cut and written again: so a copy gets its name there only under `lock`, when its original still
counts. A caller that does not go on with a move calls `abandon`, so that its copy is removed, also
where the log is deleted. An error of the other disk concerns only the move, and the log goes on
(P76).

Files of the tier that do not count any more are left to `remove_leftovers`, which needs no lock: so
appends to one disk do not wait for another one.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from millrace.broker.storage import scan
from millrace.broker.storage.file_system import File
from millrace.broker.storage.log.state import LogState
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.sealed_file import TEMPORARY_SUFFIX
from millrace.broker.storage.segment import SUFFIX, Segment, offset_name
from millrace.broker.storage.tier import Tier, says, write_tier
from millrace.core.errors import (
    MillraceError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import NO_LEADER_EPOCH, Offset, WallMs
from millrace.core.replica.tiers import Movable, last_in_tier, movable

_T = TypeVar("_T")

Moving = Generator[int, None, None]
"""A move under way: the bytes of each step."""

_COPY: Final = ".copy" + TEMPORARY_SUFFIX
"""End of the name of a copy; what a crash leaves is removed like any temporary file."""
_STEP_BYTES: Final = 1 << 20
_FLUSH_BYTES: Final = 32 << 20
"""Written bytes after which the copy is flushed, so that other users of the disk wait less."""


class LogTiering:
    """The moves of one log's segments. One thread at a time calls the methods that move or remove
    something.

    Attributes:
        is_held: whether no segment may move now, as the files are being copied.
    """

    __slots__ = ("_checkpoints", "_state", "is_held")

    def __init__(self, state: LogState, checkpoints: RecoveryCheckpoint) -> None:
        self._state = state
        self._checkpoints = checkpoints
        self.is_held = False

    @property
    def end_offset(self) -> Offset:
        """Segments that begin before it lie in the tier."""
        tier = self._state.tier
        return Offset(0) if tier is None else tier.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of the segments in the tier."""
        state = self._state
        return sum(segment.size for segment in state.segments if not state.is_at_home(segment))

    def movable(self, now: WallMs) -> Movable | None:
        """Return the segment that may move to the tier next; None: there is none."""
        state = self._state
        found = movable(
            state.segments,
            self.end_offset,
            state.config.local_retention,
            state.high_watermark,
            now,
        )
        if found is not None and found.base_offset in {
            segment.base_offset for segment in state.held
        }:
            return None
        return found

    def move_out(self, log_dir: str, directory_id: str) -> Moving:
        """Move the oldest closed segment at home to the tier; yield the bytes of each step.

        Appends and reads go on meanwhile.

        Args:
            log_dir: path of the log directory on the other disk; if the log has a tier, that one's.
            directory_id: its id.

        Raises:
            CorruptLogError: the segment is damaged; this partition takes nothing more.
            StorageFullError, StorageBusyError: not now; the segment stays where it is.
            LogDirFailedError: the other disk failed; or the log's own, then the log takes no more
                calls.
        """
        state = self._state
        state.health.check_open()
        segments, before = state.segments, state.tier
        tier = before or Tier(log_dir, directory_id)
        assert tier.directory_id == directory_id
        closed = [segment for segment in segments[:-1] if segment.base_offset >= tier.end_offset]
        if not closed or closed[0].next_offset > state.high_watermark or closed[0] in state.held:
            return
        found = closed[0]
        after = tier._replace(end_offset=found.next_offset)
        yield from _Move(self, found, tier.folder(state.topic_partition), before, after).run()

    def bring_back(self) -> Moving:
        """Move the newest closed segment of the tier home; yield the bytes of each step.

        A tier that retention has emptied ends.

        Raises:
            As `move_out`.
        """
        state = self._state
        state.health.check_open()
        segments, before = state.segments, state.tier
        if before is None or not state.is_at_home(segments[-1]):
            return  # The active segment of a log that was cut: it ends first.
        found = last_in_tier(segments, before.end_offset)
        if found is None:
            self._end(before)
        elif found not in state.held:
            is_last = found is segments[0]
            after = None if is_last else before._replace(end_offset=found.base_offset)
            yield from _Move(self, found, state.directory, before, after).run()

    def _end(self, before: Tier) -> None:
        """End a tier without segments: the log does not need its disk any more.

        If the home refuses, both places are right after a crash.
        """
        state = self._state
        with state.lock:
            if state.health.is_closed or state.tier != before:
                return
            self._check_free()
            try:
                self._write(None)
            except OSError as error:
                raise state.health.refusal(error, "ending the tier of") from error
            state.tier = None

    def remove_leftovers(self) -> None:
        """Remove the files of the tier that retention has left.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the other disk refused.
        """
        state = self._state
        with state.lock:
            if state.health.is_closed:
                return
            counting = {segment.path for segment in state.segments}  # It may have moved once more.
            paths, state.tier_leftovers = state.tier_leftovers, []
        for at, path in enumerate(paths):
            if path in counting:
                continue
            try:
                with suppress(FileNotFoundError):
                    state.files.unlink(path)
            except OSError as error:
                with state.lock:
                    state.tier_leftovers += paths[at:]
                raise refusal(error, f"removing {path}", state.topic_partition) from error

    def switch(
        self,
        found: Segment,
        before: Tier | None,
        after: Tier | None,
        name_copy: Callable[[], None] | None = None,
    ) -> bool:
        """Let the copy of a segment count; return whether the segment is not cut or cleaned.

        Args:
            found: the segment.
            before: where the oldest segments lay when its copy was begun.
            after: where they lie from now on.
            name_copy: gives the copy its name; None: it has it.
        """
        state = self._state
        with state.lock:
            is_whole = found in state.segments and found not in state.held
            if state.health.is_closed or not is_whole or state.tier != before:
                return False
            self._check_free()
            try:
                if name_copy is not None:
                    name_copy()
                self._write(after)
            except OSError as error:
                self._take_back(before)
                if name_copy is not None:
                    self._take_name(f"{state.directory}/{offset_name(found.base_offset)}{SUFFIX}")
                raise state.health.refusal(error, "moving a segment of") from error
            state.tier = after
            made = found.moved_to(
                state.files, state.directory, state.cache, state.folder_of(found.base_offset)
            )
            state.segments = tuple(
                made if segment is found else segment for segment in state.segments
            )
            found.move_away()
            if not state.is_at_home(made):
                self._take_name(found.path)
        return True

    def _check_free(self) -> None:
        self._state.health.check()
        if self.is_held:
            raise StorageBusyError(
                "the log is being moved: its segments move afterwards",
                topic_partition=self._state.topic_partition,
            )

    def _take_name(self, path: str) -> None:
        """Give a file at home that does not count the name of a copy: another segment may get its.

        If the disk refuses, the file stays until the log is opened, or a segment gets its name,
        which begins with an empty file: see `roll_held`. The caller holds `lock`.
        """
        with suppress(OSError):
            self._state.files.rename(path, path + _COPY)

    def give_up(self, path: str) -> None:
        """Remove a file of the tier that does not count, or leave it to `remove_leftovers`."""
        with self._state.lock:
            self._state.tier_leftovers.append(path)
        with suppress(StorageError):
            self.remove_leftovers()

    def remove_at_home(self, path: str) -> None:
        """Remove a copy that does not count, or leave it to the next opening of the log."""
        if not self._state.health.is_closed:  # Else the directory may be another log's.
            with suppress(OSError):
                self._state.files.unlink(path)

    def _write(self, tier: Tier | None) -> None:
        state = self._state
        write = partial(write_tier, state.files, state.directory, state.topic_partition, tier)
        self._checkpoints.with_room(write)  # When the disk is full, a move makes room.

    def _take_back(self, before: Tier | None) -> None:
        """Let the original count for certain, after the file that says so was not written."""
        state = self._state
        try:
            if not says(state.files, state.directory, state.topic_partition, before):
                self._write(before)
        except OSError as error:  # Either may count after a crash, so both have to stay.
            raise state.health.fail(error, "moving a segment of") from error

    @property
    def state(self) -> LogState:
        """The log's."""
        return self._state


class _Overtaken(Exception):
    """The segment was cut, cleaned or deleted while it was copied, or the log is closed.

    Or the move is abandoned.
    """


def abandon(move: Moving) -> None:
    """End a move that its caller does not go on with; the copy is removed."""
    with suppress(StopIteration, _Overtaken):  # It may have ended, or not begun.
        move.throw(_Overtaken())


class _Move:
    """The move of one segment."""

    def __init__(
        self,
        tiering: LogTiering,
        found: Segment,
        folder: str,
        before: Tier | None,
        after: Tier | None,
    ) -> None:
        self._tiering = tiering
        self._state = tiering.state
        self._found = found
        self._folder = folder
        self._is_out = folder != tiering.state.directory
        self._path = f"{folder}/{offset_name(found.base_offset)}{SUFFIX}"
        self._copy_path = self._path + _COPY
        self._before = before
        self._after = after

    def run(self) -> Moving:
        """Copy, verify and switch; drop the copy if the segment is not the log's any more."""
        file: File | None = None
        try:
            file = self._written(self._begin)
            yield from self._copy(file)
            self._written(file.fdatasync)
            yield from self._verify(file)
            if self._is_out:
                self._written(self._name_copy)
            name_copy = None if self._is_out else self._name_copy
            is_done = self._tiering.switch(self._found, self._before, self._after, name_copy)
        except MillraceError:
            self._drop()
            raise
        except _Overtaken:
            is_done = False
        finally:
            if file is not None:
                file.close()
        if not is_done:
            self._drop()
        elif self._is_out:
            self._tiering.remove_at_home(self._found.path + _COPY)
        else:
            self._tiering.give_up(self._found.path)

    def _name_copy(self) -> None:
        files = self._state.files
        files.rename(self._copy_path, self._path)
        files.fsync_directory(self._folder)

    def _begin(self) -> File:
        self._check_whole()
        files = self._state.files
        if self._is_out and (self._before is None or not files.exists(self._folder)):
            files.make_directory(self._folder)
            self._empty_folder()
            # Also if it was there: a try before this one may not have come so far (P69).
            files.fsync_directory(self._folder.rpartition("/")[0])
        if (free := files.free_space(self._folder)) < self._found.size:
            raise StorageFullError(
                f"{self._folder} has {free} bytes left, and the segment {self._found.path} takes "
                f"{self._found.size}: it is not moved. Free some space",
                topic_partition=self._state.topic_partition,
            )
        file = files.open(self._copy_path, create=True, writable=True)
        file.truncate(0)
        return file

    def _empty_folder(self) -> None:
        """Remove what an earlier tier left, such as that of a log that started over since.

        The end offset of the new one may let it count. A cleaning that ends may still write a
        temporary file, which never counts.
        """
        for name in self._state.files.list(self._folder):
            if not name.endswith(TEMPORARY_SUFFIX):
                with suppress(FileNotFoundError):
                    self._state.files.unlink(f"{self._folder}/{name}")

    def _copy(self, file: File) -> Iterator[int]:
        found, position, unflushed = self._found, 0, 0
        while position < found.size:
            data = self._read(position)
            if self._written(file.append, [data]) != len(data):
                raise StorageFullError(
                    f"moving {found.path} to {self._folder}: the disk is full",
                    topic_partition=self._state.topic_partition,
                )
            position += len(data)
            unflushed += len(data)
            if unflushed >= _FLUSH_BYTES:
                self._written(file.fdatasync)
                unflushed = 0
            yield len(data)

    def _read(self, position: int) -> bytes:
        found = self._found
        try:
            data = found.file.pread(min(_STEP_BYTES, found.size - position), position)
        except OSError as error:
            self._check_whole()
            raise self._state.health.unread(error, found.path) from error
        if not data:
            self._check_whole()
            end = scan.ScanStop("the file ends", position, found.base_offset)
            raise self._state.health.unread(end, found.path)
        return data

    def _check_whole(self) -> None:
        """Raise `_Overtaken` if the segment is not the log's any more."""
        state = self._state
        if not state.has(self._found) or state.health.is_closed:
            raise _Overtaken

    def _verify(self, file: File) -> Iterator[int]:
        """Verify every batch of the copy; if it is damaged, find out whether the segment is."""
        try:
            yield from self._verified(file)
        except OSError as error:
            raise self._refusal(error) from error
        except (*scan.DAMAGE, scan.ScanStop) as damage:
            try:
                for _ in self._verified(self._found.file):
                    pass
            except (*scan.DAMAGE, scan.ScanStop, OSError) as error:
                self._check_whole()
                raise self._state.health.unread(error, self._found.path) from error
            raise StorageBusyError(
                f"{self._copy_path} is not what was written, and its original is sound: it "
                f"is not moved now ({damage}). If this goes on, replace the disk of {self._folder}",
                topic_partition=self._state.topic_partition,
            ) from damage

    def _verified(self, file: File) -> Iterator[int]:
        found, reported, end = self._found, 0, self._found.base_offset
        for position, header in scan.verified_batches(
            file,
            self._state.topic_partition,
            position=0,
            end_position=found.size,
            next_offset=found.base_offset,
            leader_epoch=NO_LEADER_EPOCH,
        ):
            end = header.next_offset
            if position - reported >= _STEP_BYTES:
                yield position - reported
                reported = position
        if end != found.next_offset:
            raise scan.ScanStop("a batch is missing", found.size, end)

    def _drop(self) -> None:
        """Remove the copy, which does not count; opening the log would do so, too."""
        files, health = self._state.files, self._state.health
        if not self._is_out:
            self._tiering.remove_at_home(self._copy_path)
            return
        with suppress(OSError):
            files.unlink(self._copy_path)
        if health.is_closed:  # Its folder may have been renamed before this move made it again.
            with suppress(OSError):
                files.remove_directory(self._folder)
        elif not health.failed_log_dir:  # Else the copy may count, if it has its name.
            self._tiering.give_up(self._path)

    def _written(self, write: Callable[..., _T], *args: object) -> _T:
        """Write to the target; the log's own disk fails the log."""
        try:
            return write(*args)
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> Exception:
        """Return what to raise for an error of the target.

        Raises:
            _Overtaken: the copy was removed together with the log.
        """
        state, doing = self._state, f"moving {self._found.path} to"
        self._check_whole()
        if self._folder == state.directory:
            return state.health.refusal(error, doing)
        return refusal(error, f"{doing} {self._folder}", state.topic_partition)
