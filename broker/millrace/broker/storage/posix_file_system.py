"""Real files, with a bound on how many are open at a time.

A broker has far more segments than the process may have file descriptors. A `PosixFile` is
therefore a name that gets a descriptor when it is used; the descriptor that was idle longest is
closed when there are more than `open_files_max`. A file with unflushed bytes is flushed before
that: a write error that the kernel finds later is reported to open descriptors only, and would be
missed (P63).

The room of a removed file is free when its last descriptor is closed, which takes ext4 0.3 s for a
GB. So `PosixFile.remove` keeps one, and leaves it to a thread to close that.

A failed flush is permanent: the kernel marks the pages clean, and a second try would succeed
without writing anything. The file remembers, and refuses all further writes and flushes.
"""

import errno
import fcntl
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from millrace.broker.storage.file_system import Mutex, is_passing
from millrace.core.records.header import Buffer

OPEN_FILES_MAX: Final = 4096

_REMOVED_MAX: Final = 100
"""Removed files that wait for the thread; the room of another one is freed at once."""
_REWRITE_BYTES: Final = 1 << 20
_UNSUPPORTED: Final = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


class PosixFileSystem:
    """Opens files, and closes the descriptors that were idle longest.

    Args:
        open_files_max: descriptors that are kept; those in use at one moment may exceed it.
    """

    __slots__ = ("_descriptors",)

    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._descriptors = _Descriptors(open_files_max)

    @property
    def open_files(self) -> int:
        """Descriptors that are open now."""
        return len(self._descriptors)

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> "PosixFile":
        """Implement `FileSystem`."""
        file = PosixFile(self._descriptors, path, writable)
        if create:
            os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC | os.O_WRONLY, 0o600))
        return file

    def size(self, path: str) -> int:
        """Implement `FileSystem`."""
        return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        """Implement `FileSystem`."""
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        """Implement `FileSystem`."""
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        """Implement `FileSystem`."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def remove_directory(self, path: str) -> None:
        """Implement `FileSystem`."""
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        """Implement `FileSystem`."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Implement `FileSystem`."""
        os.unlink(path)

    def fsync_directory(self, path: str) -> None:
        """Implement `FileSystem`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise _failed_flush(error, path) from error
        finally:
            os.close(fd)

    def allocate(self, path: str, size: int) -> None:
        """Implement `FileSystem`."""
        fd = os.open(path, os.O_CREAT | os.O_CLOEXEC | os.O_WRONLY, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)

    def free_space(self, path: str) -> int:
        """Implement `FileSystem`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def total_space(self, path: str) -> int:
        """Implement `FileSystem`."""
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize

    def can_append_cached(self, path: str) -> bool:
        """Implement `FileSystem`: XFS can, ext4 and tmpfs cannot (Linux 6.18)."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o600)
        except OSError:  # The next write here gets the error, too.
            return False
        try:
            os.pwritev(fd, [b"probe"], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True  # But not at the moment.
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(fd)
            os.unlink(path)

    def new_mutex(self) -> Mutex:
        """Implement `FileSystem`."""
        return threading.Lock()

    def lock(self, path: str) -> "PosixLock":
        """Implement `FileSystem`."""
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return PosixLock(fd)


class PosixLock:
    """A lock that is held by an open descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Implement `Lock`."""
        os.close(self._fd)


class PosixFile:
    """The name of a file, which gets a descriptor when it is used."""

    __slots__ = (
        "_descriptors",
        "_failure",
        "fd",
        "is_closing",
        "is_dirty",
        "is_retired",
        "path",
        "users",
        "writable",
    )

    def __init__(self, descriptors: "_Descriptors", path: str, writable: bool) -> None:
        self._descriptors = descriptors
        self._failure: OSError | None = None
        self.path = path
        self.writable = writable
        self.fd = -1
        self.users = 0
        """Calls that use `fd` at the moment: it is not closed under them."""
        self.is_dirty = False
        self.is_closing = False
        self.is_retired = False

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Implement `File`."""
        self._check()
        fd = self._descriptors.acquire(self)
        try:
            self.is_dirty = True
            return os.writev(fd, buffers)
        finally:
            self._descriptors.release(self)

    def append_cached(self, buffers: Sequence[Buffer]) -> int:
        """Implement `File`."""
        fd = -1 if self._failure is not None else self._descriptors.acquire_open(self)
        if fd < 0:
            return -1
        try:
            self.is_dirty = True
            # The descriptor appends, whatever the offset is.
            return os.pwritev(fd, buffers, 0, os.RWF_NOWAIT)
        except OSError:  # `append` finds out whether it would wait or fail.
            return -1
        finally:
            self._descriptors.release(self)

    def pread(self, size: int, offset: int) -> bytes:
        """Implement `File`."""
        fd = self._descriptors.acquire(self)
        try:
            return os.pread(fd, size, offset)
        except OSError as error:
            error.filename = self.path
            raise
        finally:
            self._descriptors.release(self)

    def pread_into_cached(self, buffer: memoryview, offset: int) -> int:
        """Implement `File`."""
        fd = self._descriptors.acquire_open(self)
        if fd < 0:
            return -1
        try:
            done = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
            while 0 < done < len(buffer):
                more = os.preadv(fd, [buffer[done:]], offset + done, os.RWF_NOWAIT)
                if more == 0:
                    break
                done += more
        except BlockingIOError:
            return -1
        except OSError as error:
            if error.errno in _UNSUPPORTED:  # Some file systems cannot tell: a thread will read.
                return -1
            raise
        else:
            return done
        finally:
            self._descriptors.release(self)

    def truncate(self, size: int) -> None:
        """Implement `File`."""
        self._check()
        fd = self._descriptors.acquire(self)
        try:
            self.is_dirty = True
            os.ftruncate(fd, size)
        except OSError as error:
            error.filename = self.path
            raise
        finally:
            self._descriptors.release(self)

    def rewrite(self, size: int, offset: int) -> None:
        """Implement `File`."""
        self._check()
        self.is_dirty = True
        # Not through the file's own descriptor, which always appends.
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            end = offset + size
            while offset < end:
                data = os.pread(fd, min(end - offset, _REWRITE_BYTES), offset)
                if not data:
                    break
                offset += os.pwrite(fd, data, offset)
        finally:
            os.close(fd)

    def fdatasync(self) -> None:
        """Implement `File`."""
        self._check()
        fd = self._descriptors.acquire(self)
        try:
            self.sync_descriptor(fd)
        finally:
            self._descriptors.release(self)
        self._check()

    def sync_descriptor(self, fd: int) -> None:
        """Flush the bytes behind `fd`; a failure shows at this file's next use."""
        self.is_dirty = False
        try:
            os.fdatasync(fd)
        except OSError as error:
            self._failure = error

    def size(self) -> int:
        """Implement `File`."""
        return os.stat(self.path).st_size

    def close(self) -> None:
        """Implement `File`."""
        self._descriptors.discard(self)

    def remove(self) -> None:
        """Implement `File`."""
        self._descriptors.remove(self)

    def retire(self) -> None:
        """Implement `File`."""
        self._descriptors.retire(self)

    def _check(self) -> None:
        if self._failure is not None:
            raise _failed_flush(self._failure, self.path)


def _not_found(path: str) -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _failed_flush(error: OSError, path: str) -> OSError:
    """Return the error of a flush, which never passes (P63)."""
    code = errno.EIO if is_passing(error) else error.errno
    return OSError(code, f"a flush failed: {error.strerror}", path)


class _Descriptors:
    """The open descriptors, least recently used first."""

    __slots__ = ("_files", "_is_freeing", "_lock", "_open_files_max", "_removed")

    def __init__(self, open_files_max: int) -> None:
        self._open_files_max = open_files_max
        self._lock = threading.Lock()
        self._files: OrderedDict[PosixFile, None] = OrderedDict()
        self._removed: deque[PosixFile] = deque()
        self._is_freeing = False

    def __len__(self) -> int:
        return len(self._files)

    def acquire(self, file: PosixFile) -> int:
        """Return a descriptor that stays open until `release`."""
        fd = self.acquire_open(file)
        if fd >= 0:
            return fd
        flags = os.O_RDWR | os.O_APPEND if file.writable else os.O_RDONLY
        fd = os.open(file.path, flags | os.O_CLOEXEC)
        idle: list[tuple[PosixFile, int]] = []
        with self._lock:
            is_retired = file.is_retired  # Then `fd` may be of the file that took its name.
            if not is_retired:
                file.users += 1
                if file.fd < 0:
                    file.fd = fd
                    self._files[file] = None
                    idle = self._take_idle()
                    fd = -1
            acquired = file.fd
        if fd >= 0:  # Or another thread was quicker.
            os.close(fd)
        if is_retired:
            raise _not_found(file.path)
        for other, other_fd in idle:
            if other.is_dirty:
                other.sync_descriptor(other_fd)
            os.close(other_fd)
        return acquired

    def acquire_open(self, file: PosixFile) -> int:
        """Return the descriptor if there is one, else -1."""
        with self._lock:
            if file.fd < 0 or file.is_retired:
                return -1
            file.users += 1
            self._files.move_to_end(file)
            return file.fd

    def release(self, file: PosixFile) -> None:
        """End one use."""
        with self._lock:
            file.users -= 1
            if file.users or not file.is_closing:
                return
        self.discard(file)

    def discard(self, file: PosixFile) -> None:
        """Close a file's descriptor, now or when its last user is done."""
        with self._lock:
            file.is_closing = file.users > 0
            if file.is_closing or file.fd < 0:
                return
            fd, file.fd = file.fd, -1
            del self._files[file]
        os.close(fd)

    def retire(self, file: PosixFile) -> None:
        """Close a file's descriptor, now or when its last user is done, and open no other."""
        with self._lock:
            file.is_retired = True
        self.discard(file)

    def remove(self, file: PosixFile) -> None:
        """Remove a file; a thread closes its last descriptor."""
        try:
            self.acquire(file)
        except OSError:  # There is none to be had: then this waits.
            os.unlink(file.path)
            self.retire(file)
            return
        try:
            os.unlink(file.path)
        except OSError:
            self.release(file)
            raise
        with self._lock:
            file.is_retired = file.is_closing = True
            is_full = len(self._removed) >= _REMOVED_MAX
            if not is_full:
                self._removed.append(file)
                if self._is_freeing:
                    return
                self._is_freeing = True
        if is_full:
            self._free(file)
        else:
            threading.Thread(target=self._free_removed, name="free-removed", daemon=True).start()

    def _free_removed(self) -> None:
        while True:
            with self._lock:
                if not self._removed:
                    self._is_freeing = False
                    return
                file = self._removed.popleft()
            self._free(file)

    def _free(self, file: PosixFile) -> None:
        with suppress(OSError):  # The file is gone, whatever becomes of its bytes.
            self.release(file)

    def _take_idle(self) -> list[tuple[PosixFile, int]]:
        taken = []
        excess = len(self._files) - self._open_files_max
        if excess > 0:
            for file in self._files:
                if file.users == 0:
                    taken.append((file, file.fd))
                    if len(taken) == excess:
                        break
            for file, _ in taken:
                file.fd = -1
                del self._files[file]
        return taken
