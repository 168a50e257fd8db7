"""A copy of a partition's log for another log directory, made while the log goes on.

Files are copied unchanged: all of them are bound to the partition and the segment, and none to a
place.

Closed segments never change, so they are copied once, with their index and the producer snapshot of
their end; the active one is copied as far as it is written, again and again. A segment is
identified by its object: a log that was cut, cleaned, or started over, has new objects, and those
are copied from their first byte. Segments that retention deleted meanwhile are removed from the
copy at the end. A `complete` copy has all that the log had, flushed. Until then it must not be
used.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from millrace.broker.storage import producer_snapshots, segment, sparse_index
from millrace.broker.storage.cleaner_point import FILE_NAME as CLEANER_POINT
from millrace.broker.storage.epoch_checkpoint import FILE_NAME as EPOCHS
from millrace.broker.storage.file_system import File, FileSystem
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.sealed_file import read_whole, replace_file
from millrace.broker.storage.segment import ReadPlan, Segment, offset_name
from millrace.core.errors import StorageBusyError, StorageFullError
from millrace.core.ids import Offset

_T = TypeVar("_T")

_BESIDE: Final = (sparse_index.SUFFIX, producer_snapshots.SUFFIX)
_CHUNK_BYTES: Final = 1 << 20


class _Copied:
    """How much of a segment is copied."""

    __slots__ = ("file", "is_closed", "segment", "size")

    def __init__(self, found: Segment, file: File) -> None:
        self.segment = found
        self.file = file
        self.size = 0
        self.is_closed = False

    @property
    def beside(self) -> set[str]:
        """Names of the files that are copied with it once it is closed."""
        return {
            offset_name(self.segment.base_offset) + sparse_index.SUFFIX,
            offset_name(self.segment.next_offset) + producer_snapshots.SUFFIX,
        }


class LogCopy:
    """Makes one copy. One thread at a time calls; others may change the log meanwhile.

    Args:
        files: where the copy is.
        log: what is copied.
        directory: of the copy; it is there, and empty.
    """

    def __init__(self, files: FileSystem, log: PartitionLog, directory: str) -> None:
        self.log = log
        self.directory = directory
        self._files = files
        self._copied: dict[Offset, _Copied] = {}

    @property
    def missing_bytes(self) -> int:
        """Bytes of batches that are written and not copied."""
        return sum(found.size - self._size_of(found) for found in self.log.segments)

    def _size_of(self, found: Segment) -> int:
        copied = self._copied.get(found.base_offset)
        return copied.size if copied is not None and copied.segment is found else 0

    def advance(self) -> int:
        """Copy a little more; return how many bytes; 0 when all that is written is copied.

        Raises:
            CorruptLogError: the log cannot be read; its partition takes nothing more.
            StorageFullError, StorageBusyError, LogDirFailedError: the copy's disk refused, or, with
                a `StorageBusyError`, the log cannot be read now.
        """
        segments = self.log.segments
        for found in segments:
            copied = self._copied.get(found.base_offset)
            if copied is None or copied.segment is not found:
                copied = self._written(self._begin, found)
            if copied.size < found.size:
                size = min(_CHUNK_BYTES, found.size - copied.size)
                data = self.log.reader.read(ReadPlan(found, copied.size, size, found.next_offset))
                if not data:  # There may never be more of it.
                    self.log.state.health.check_not_closed()
                    self.log.reader.await_replacement(found)
                self._written(self._append, copied, data)
                return max(len(data), 1)  # None, when it was deleted meanwhile.
            if found is not segments[-1] and not copied.is_closed:
                self._written(self._close, copied)
        return 0

    def flush(self) -> None:
        """Flush the copied bytes, so that the last flush takes less time.

        Raises:
            LogDirFailedError, StorageBusyError: the copy's disk refused.
        """
        self._written(self._flush)

    def complete(self) -> None:
        """Copy the rest of a log that was checkpointed, and no longer changes.

        Its cleaning is held from here on; the caller ends that if the log stays in use.

        Raises:
            CorruptLogError, StorageFullError, StorageBusyError, LogDirFailedError: as in `advance`.
        """
        self.log.hold_cleaning(is_held=True)
        while self.advance():
            pass
        self._written(self._complete)

    def close(self) -> None:
        """Close the files: a copy that is given up would stay on the disk while they are open."""
        for copied in self._copied.values():
            copied.file.close()

    def _begin(self, found: Segment) -> _Copied:
        if found.base_offset in self._copied:  # Of a segment that was cut or cleaned since.
            self._copied[found.base_offset].file.close()
        path = f"{self.directory}/{offset_name(found.base_offset)}{segment.SUFFIX}"
        file = self._files.open(path, create=True, writable=True)
        file.truncate(0)
        copied = self._copied[found.base_offset] = _Copied(found, file)
        return copied

    def _append(self, copied: _Copied, data: bytes) -> None:
        written = copied.file.append([data]) if data else 0
        copied.size += written
        if written != len(data):
            raise StorageFullError(f"copying to {self.directory}: the disk is full")

    def _close(self, copied: _Copied) -> None:
        copied.file.fdatasync()
        copied.file.close()
        for name in sorted(copied.beside):
            self._copy_whole(name)
        copied.is_closed = True

    def _flush(self) -> None:
        for copied in self._copied.values():
            if not copied.is_closed:
                copied.file.fdatasync()

    def _complete(self) -> None:
        self._flush()
        self.close()
        there = {found.base_offset for found in self.log.segments}
        self._copied = {base: copied for base, copied in self._copied.items() if base in there}
        wanted = {f"{offset_name(base)}{segment.SUFFIX}" for base in there}
        known = {
            name for copied in self._copied.values() if copied.is_closed for name in copied.beside
        }
        for name in self.log.state.files.list(self.log.directory):
            if name in (EPOCHS, CLEANER_POINT) or name.endswith(_BESIDE):
                wanted.add(name)
                if name not in known:
                    self._copy_whole(name)
        for name in self._files.list(self.directory):
            if name not in wanted:
                self._files.unlink(f"{self.directory}/{name}")
        self._files.fsync_directory(self.directory)

    def _copy_whole(self, name: str) -> None:
        """Copy one of the small files beside the batches, if there is one."""
        path = f"{self.log.directory}/{name}"
        try:
            contents = read_whole(self.log.state.files, path)
        except FileNotFoundError:
            return
        except OSError as error:  # The copy's disk is not to be blamed for it.
            raise StorageBusyError(f"copying {path}: it cannot be read: {error}") from error
        replace_file(self._files, f"{self.directory}/{name}", contents, durable=True)

    def _written(self, write: Callable[..., _T], *args: object) -> _T:
        try:
            return write(*args)
        except OSError as error:
            raise refusal(error, f"copying a log to {self.directory}") from error
