"""The interface of storage to an operating system, for real and simulated files.

Every method raises `OSError` as the operating system would. Durability is explicit: bytes survive a
power cut after `fdatasync`, names after `fsync_directory` of the directory they are in.
"""

import errno
import os
from collections.abc import Sequence
from typing import Any, Final, Protocol

from millrace.core.records.header import Buffer

BUFFERS_MAX: Final = 1024
"""Buffers in one `append`: IOV_MAX of Linux."""

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PASSING: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}


class File(Protocol):
    """One file. Reads may come from any thread, also while one thread changes the file."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write at most `BUFFERS_MAX` buffers at the end; return how many bytes went."""

    def append_cached(self, buffers: Sequence[Buffer]) -> int:
        """As `append`, but only if that waits for nothing: not for the disk, room or memory.

        Returns:
            How many bytes went, perhaps not all; -1: none, as it would wait, or would fail.
        """

    def pread(self, size: int, offset: int) -> bytes:
        """Return `size` bytes from `offset` on, fewer only where the file ends."""

    def pread_into_cached(self, buffer: memoryview, offset: int) -> int:
        """Read only from memory.

        Returns:
            How many bytes were there, from `offset` on without a gap; -1 when the first of them
            would have to come from the disk.
        """

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes."""

    def rewrite(self, size: int, offset: int) -> None:
        """Write `size` bytes from `offset` on again, so that the next flush writes them.

        After a failed flush the operating system may show bytes that no flush will ever write.
        """

    def fdatasync(self) -> None:
        """Return once all bytes and the size survive a power cut.

        Repeat it only after an error that `is_passing`: then no flush was tried.
        """

    def size(self) -> int:
        """Return the file's bytes."""

    def close(self) -> None:
        """Give the file back; it can still be read if its name is still there."""

    def remove(self) -> None:
        """Remove the file, and give it back for good; its room is free a moment later.

        Nobody waits for that: a large file may take long. Calls under way go on with the file.
        Later ones raise `FileNotFoundError`.
        """

    def retire(self) -> None:
        """Give the file back for good, before another file takes its name.

        Calls under way go on with this file. Later ones raise `FileNotFoundError`.
        """


class Mutex(Protocol):
    """A lock between threads, as `threading.Lock`."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock; return False if it is held and `blocking` is not set."""

    def release(self) -> None:
        """Let others take it."""

    def __enter__(self) -> object: ...
    def __exit__(self, *args: Any) -> object: ...


class Lock(Protocol):
    """A lock that ends with its process."""

    def release(self) -> None:
        """Let others take it."""


class FileSystem(Protocol):
    """Files and directories by their paths."""

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        """Return a file; `create` makes an empty one where none is."""

    def size(self, path: str) -> int:
        """Return a file's bytes."""

    def exists(self, path: str) -> bool:
        """Return whether a file or directory is there."""

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def make_directory(self, path: str) -> None:
        """Make a directory; one that is there already is fine.

        Its parent must be there: what was mounted at a log directory and is gone, is not replaced
        by files below the mount point.
        """

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name, replacing a file of that name."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def fsync_directory(self, path: str) -> None:
        """Return once the names in a directory survive a power cut."""

    def allocate(self, path: str, size: int) -> None:
        """Take the space of a file's first `size` bytes from the disk now; make it if need be.

        A shorter file is extended, and holes of a sparse one are filled.
        """

    def free_space(self, path: str) -> int:
        """Return the bytes that may still be written below `path`."""

    def total_space(self, path: str) -> int:
        """Return the size of the file system of `path`."""

    def lock(self, path: str) -> Lock:
        """Take a lock on a file, which is made if need be; BlockingIOError when another has it."""

    def can_append_cached(self, path: str) -> bool:
        """Return whether the file system of `path` does `append_cached`.

        Makes the file, tries it, and removes the file.
        """

    def new_mutex(self) -> Mutex:
        """Return a lock between threads that may be held while this file system is called."""


def is_passing(error: OSError) -> bool:
    """Return whether the disk is sound, and only the process or the machine lacks something.

    That is, descriptors or memory. A failed flush never counts as passing (P63): `File.fdatasync`
    and `fsync_directory` raise another error then.
    """
    return error.errno in _PASSING


def is_full(error: OSError) -> bool:
    """Return whether the disk or a quota is full, which may pass, rather than broken."""
    return error.errno in _FULL


def make_durable_directory(files: FileSystem, path: str) -> None:
    """Make a directory, and those above it, so that their names survive a power cut (P69)."""
    parent = os.path.dirname(path) or "."
    if not files.exists(parent):
        make_durable_directory(files, parent)
    files.make_directory(path)
    files.fsync_directory(parent)
