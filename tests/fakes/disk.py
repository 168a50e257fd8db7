"""A disk in memory that fails like real disks, reproducibly from a seed.

- A *power cut* keeps flushed bytes. Each unflushed 512-byte sector is kept or lost independently.
  Of the unflushed names in a directory a first part of the changes is kept, as by a journal.
- A *full* disk writes what fits, and then refuses.
- A process may *lack* descriptors or memory: calls that need one fail without any effect.
- A *failed flush* raises EIO once. The bytes are never written, but later flushes succeed, as on
  ext4, XFS and Btrfs (Rebello et al., USENIX ATC 2020).
- Bits flip, files vanish, and the power fails at a chosen call.

The next process finds everything that a process left, unless the power was cut: see `restart`.
"""

import errno
import os
import posixpath
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from millrace.broker.storage.file_system import Mutex
from millrace.core.records.header import Buffer

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine loses its power in the middle of a call; only tests catch this."""


@dataclass(eq=False)
class Inode:
    """A file's bytes as programs see them, and as they are on the platter."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    never_written: set[int] = field(default_factory=set)
    """Sectors that a failed flush has marked clean."""
    flushed_bytes: int = 0
    """Up to here both are equal, except for `never_written`, so a flush need not copy them."""

    def append(self, data: bytes) -> None:
        self._touch(len(self.data))
        self.data += data

    def truncate(self, size: int) -> None:
        self._touch(min(size, len(self.data)))
        self.flushed_bytes = min(self.flushed_bytes, size, len(self.data))
        del self.data[size:]
        self.data += bytes(size - len(self.data))

    def sectors(self) -> range:
        return range(-(-max(len(self.data), len(self.durable)) // SECTOR_BYTES))

    def is_dirty(self, sector: int) -> bool:
        part = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
        return self.data[part] != self.durable[part]

    def flush(self) -> None:
        stale = {sector: self._durable_sector(sector) for sector in self.never_written}
        self.durable[self.flushed_bytes :] = self.data[self.flushed_bytes :]
        self.flushed_bytes = len(self.data)
        for sector, old in stale.items():
            at = sector * SECTOR_BYTES
            self.durable[at : at + SECTOR_BYTES] = old[: max(len(self.data) - at, 0)]

    def lose_dirty(self) -> None:
        self.never_written |= {sector for sector in self.sectors() if self.is_dirty(sector)}

    def evict(self) -> None:
        """Forget clean sectors; the next read shows what a failed flush never wrote."""
        for sector in sorted(self.never_written):
            at = sector * SECTOR_BYTES
            size = len(self.data[at : at + SECTOR_BYTES])
            self.data[at : at + size] = self._durable_sector(sector)[:size]
        self.never_written.clear()

    def cut_power(self, rng: random.Random) -> None:
        kept = bytearray(self.durable)
        dirty = [
            sector
            for sector in self.sectors()
            if self.is_dirty(sector) and sector not in self.never_written
        ]
        if len(self.data) != len(self.durable) and rng.random() < 0.7:
            sizes = sorted((len(self.data), len(self.durable)))
            size = len(self.data) if rng.random() < 0.6 else rng.randint(*sizes)
            kept = kept[:size] + bytes(max(size - len(kept), 0))
        chance = rng.choice((0.0, 0.5, 0.9, 1.0))
        for sector in dirty:
            if rng.random() < chance:
                at = sector * SECTOR_BYTES
                new = self.data[at : at + SECTOR_BYTES]
                kept[at : at + len(new)] = new[: max(len(kept) - at, 0)]
        self.data, self.durable = kept, bytearray(kept)
        self.never_written = set()
        self.flushed_bytes = len(kept)

    def rewrite(self, size: int, offset: int) -> None:
        self._touch(offset, offset + size)

    def _touch(self, begin: int, end: int | None = None) -> None:
        """Mark sectors that are written again as dirty, so that the next flush writes them."""
        if self.never_written:
            first = begin // SECTOR_BYTES
            last = first if end is None else (end - 1) // SECTOR_BYTES
            self.never_written = {
                sector
                for sector in self.never_written
                if sector < first or (end is not None and sector > last)
            }
            self.flushed_bytes = min(self.flushed_bytes, first * SECTOR_BYTES)

    def _durable_sector(self, sector: int) -> bytes:
        at = sector * SECTOR_BYTES
        return bytes(self.durable[at : at + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")


class Directory:
    """The names in a directory as programs see them, as on the platter, and the changes."""

    def __init__(self) -> None:
        self.names: dict[str, Entry] = {}
        self.durable: dict[str, Entry] = {}
        self.changes: list[dict[str, Entry | None]] = []

    def change(self, change: dict[str, "Entry | None"]) -> None:
        """Apply a change atomically: names and their new entries, None to remove."""
        self.changes.append(change)
        _apply(self.names, change)

    def flush(self) -> None:
        self.durable, self.changes = dict(self.names), []

    def cut_power(self, rng: random.Random) -> None:
        kept = dict(self.durable)
        for change in self.surviving_changes(rng):
            _apply(kept, change)
        self.names = kept
        self.flush()
        for name in sorted(kept):
            kept[name].cut_power(rng)

    def surviving_changes(self, rng: random.Random) -> list[dict[str, "Entry | None"]]:
        return self.changes[: rng.randint(0, len(self.changes))]


Entry = Inode | Directory


def _apply(names: dict[str, Entry], change: dict[str, Entry | None]) -> None:
    for name, entry in change.items():
        if entry is None:
            names.pop(name, None)
        else:
            names[name] = entry


class Disk:
    """A `FileSystem` in memory, with its faults.

    Args:
        seed: for every choice that a power cut makes.
        capacity: bytes of all files together; None is no limit.
    """

    def __init__(self, seed: int = 0, capacity: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.capacity = capacity
        self.root = Directory()
        self.locks: set[str] = set()
        self.is_cold = False
        """Whether the page cache is empty, so that cached reads find nothing."""
        self.calls = 0
        """Number of calls so far that change something."""
        self.cut_power_at: int | None = None
        self.flushes = 0
        self.bytes_read = 0
        self.fail_flush_at: int | None = None
        self.unreadable: set[str] = set()
        """Files whose reads raise EIO."""
        self._found: dict[str, Entry] = {}
        """Paths that were looked up since a name was last removed."""
        self.cached_bytes_max: int | None = None
        """Bytes that one `append_cached` writes, at the most; 0: it would wait; None: the file
        system cannot tell."""
        self.lack: int | None = None
        """The errno of calls that need a descriptor, such as EMFILE; None: they succeed."""

    # --- What tests do to it -----------------------------------------------------------------

    def restart(self) -> None:
        """End the process that used the disk; the page cache survives it."""
        self.locks.clear()
        self.cut_power_at = None
        self.fail_flush_at = None
        self.lack = None

    def cut_power(self) -> None:
        """Lose unflushed bytes and names, or a part of them, and restart."""
        self.root.cut_power(self.rng)
        self._found.clear()
        self.restart()

    def evict_all(self) -> None:
        """Drop the page cache, so that reads show what a failed flush never wrote."""
        for path in self.files():
            self._inode(path).evict()

    def flip_bit(self, path: str, byte: int, bit: int = 0) -> None:
        """Change one bit of a file, on the platter and in memory."""
        inode = self._inode(path)
        inode.data[byte] ^= 1 << bit
        inode.durable = bytearray(inode.data)
        inode.flushed_bytes = len(inode.data)

    def mount(self, path: str) -> None:
        """Have a directory, with its parents, as who prepared the machine left them: flushed."""
        directory = self.root
        for name in filter(None, path.split("/")):
            entry = directory.names.get(name) or self.new_directory()
            assert isinstance(entry, Directory)
            directory.names[name] = directory.durable[name] = entry
            directory = entry

    def new_directory(self) -> Directory:
        """Return an empty directory, as this disk has them."""
        return Directory()

    def contents(self, path: str) -> bytes:
        return bytes(self._inode(path).data)

    def write(self, path: str, contents: bytes) -> None:
        """Put bytes into a file, flushed."""
        directory, name = self._parent(path)
        directory.names[name] = directory.durable[name] = _flushed(contents)
        self._found.clear()

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its content, as operators do."""
        directory, name = self._parent(path)
        del directory.names[name]
        self._found.clear()

    def copy(self, seed: int = 0) -> "Disk":
        """Return a disk with equal content, all of it flushed, that no process uses."""
        twin = Disk(seed, self.capacity)
        twin.root = _copy(self.root)
        return twin

    def files(self) -> list[str]:
        """Return the paths of all files."""
        return sorted(_walk("", self.root))

    # --- FileSystem --------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> "DiskFile":
        if create:
            self.take_descriptor(path)
        if create and not self.exists(path):
            directory, name = self._parent(path)
            self.call()
            directory.change({name: Inode()})
        return DiskFile(self, path)

    def size(self, path: str) -> int:
        return len(self._inode(path).data)

    def exists(self, path: str) -> bool:
        try:
            return self._entry(path) is not None
        except FileNotFoundError:
            return False

    def list(self, path: str) -> list[str]:
        self.take_descriptor(path)
        return sorted(self._directory(path).names)

    def make_directory(self, path: str) -> None:
        if not self.exists(path):
            directory, name = self._parent(path)
            self.call()
            directory.change({name: self.new_directory()})

    def remove_directory(self, path: str) -> None:
        if self._directory(path).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._remove(path)

    def rename(self, source: str, target: str) -> None:
        entry = self._entry(source)
        directory, old = self._parent(source)
        new_directory, new = self._parent(target)
        assert directory is new_directory
        self.call()
        directory.change({old: None, new: entry})
        self._forget(source, entry)
        self._forget(target, entry)

    def unlink(self, path: str) -> None:
        self._inode(path)
        self._remove(path)

    def _remove(self, path: str) -> None:
        directory, name = self._parent(path)
        entry = directory.names[name]
        self.call()
        directory.change({name: None})
        self._forget(path, entry)

    def fsync_directory(self, path: str) -> None:
        self.take_descriptor(path)
        directory = self._directory(path)
        self.call()
        self.count_flush()
        directory.flush()

    def allocate(self, path: str, size: int) -> None:
        file = self.open(path, create=True)
        if self.room() < size - file.size():
            raise OSError(errno.ENOSPC, "full", path)
        file.truncate(size)

    def free_space(self, path: str) -> int:
        return self.room()

    def total_space(self, path: str) -> int:
        return 2**62 if self.capacity is None else self.capacity

    def can_append_cached(self, path: str) -> bool:
        return self.cached_bytes_max is not None

    def new_mutex(self) -> Mutex:
        return threading.Lock()

    def lock(self, path: str) -> "DiskLock":
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.open(path, create=True)
        self.locks.add(path)
        return DiskLock(self, path)

    # --- Faults ------------------------------------------------------------------------------

    def call(self) -> None:
        """Count a call that changes something; the power may go before it."""
        self.calls += 1
        if self.calls == self.cut_power_at:
            raise PowerCut

    def count_flush(self, inode: Inode | None = None) -> None:
        self.flushes += 1
        if self.flushes == self.fail_flush_at:
            if inode is not None:
                inode.lose_dirty()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def room(self) -> int:
        if self.capacity is None:
            return 2**62
        used = sum(len(self._inode(path).data) for path in self.files())
        return max(self.capacity - used, 0)

    def _entry(self, path: str) -> Entry:
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = self._look_up(path)
        return found

    def _forget(self, path: str, entry: Entry) -> None:
        """Forget a path whose entry was renamed, removed or replaced."""
        if isinstance(entry, Directory):
            self._found.clear()
        else:
            self._found.pop(path, None)

    def _look_up(self, path: str) -> Entry:
        entry: Entry = self.root
        for name in filter(None, path.split("/")):
            found = entry.names.get(name) if isinstance(entry, Directory) else None
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            entry = found
        return entry

    def _directory(self, path: str) -> Directory:
        entry = self._entry(path)
        if not isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return entry

    def _inode(self, path: str) -> Inode:
        entry = self._entry(path)
        if not isinstance(entry, Inode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return entry

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, name = posixpath.split(path)
        return self._directory(parent), name

    def take_descriptor(self, path: str) -> None:
        """Fail a call that needs a descriptor while the process lacks one."""
        if self.lack is not None:
            raise OSError(self.lack, os.strerror(self.lack), path)

    def inode_of(self, path: str) -> Inode:
        self.take_descriptor(path)
        if path in self.unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return self._inode(path)


class DiskFile:
    """Implements `File`; like a real one it is found by its name at every use."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._is_retired = False

    def append(self, buffers: Sequence[Buffer]) -> int:
        inode = self._disk.inode_of(self._path)
        data = b"".join(buffers)
        try:
            self._disk.call()
        except PowerCut:
            inode.append(data[: self._disk.rng.randint(0, len(data))])
            raise
        fitting = data[: self._disk.room()]
        if data and not fitting:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        inode.append(fitting)
        return len(fitting)

    def append_cached(self, buffers: Sequence[Buffer]) -> int:
        cached_bytes_max = self._disk.cached_bytes_max
        if not cached_bytes_max or self._disk.lack is not None:
            return -1
        data = b"".join(buffers)[:cached_bytes_max]
        try:
            return self.append([data])
        except OSError:
            return -1

    def pread(self, size: int, offset: int) -> bytes:
        if self._is_retired:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        found = bytes(self._disk.inode_of(self._path).data[offset : offset + size])
        self._disk.bytes_read += len(found)
        return found

    def pread_into_cached(self, buffer: memoryview, offset: int) -> int:
        if self._disk.is_cold or self._is_retired or not self._disk.exists(self._path):
            return -1
        found = self.pread(len(buffer), offset)
        buffer[: len(found)] = found
        return len(found)

    def truncate(self, size: int) -> None:
        inode = self._disk.inode_of(self._path)
        self._disk.call()
        inode.truncate(size)

    def rewrite(self, size: int, offset: int) -> None:
        inode = self._disk.inode_of(self._path)
        self._disk.call()
        inode.rewrite(size, offset)

    def fdatasync(self) -> None:
        inode = self._disk.inode_of(self._path)
        self._disk.call()
        self._disk.count_flush(inode)
        inode.flush()

    def size(self) -> int:
        return self._disk.size(self._path)

    def close(self) -> None:
        pass

    def remove(self) -> None:
        self._disk.unlink(self._path)
        self.retire()

    def retire(self) -> None:
        self._is_retired = True


class DiskLock:
    """Implements `Lock`."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


def _flushed(contents: Buffer) -> Inode:
    return Inode(bytearray(contents), bytearray(contents), flushed_bytes=len(contents))


def _copy(directory: Directory) -> Directory:
    twin = Directory()
    for name, entry in directory.names.items():
        twin.names[name] = _copy(entry) if isinstance(entry, Directory) else _flushed(entry.data)
    twin.flush()
    return twin


def _walk(path: str, directory: Directory) -> Iterator[str]:
    for name, entry in directory.names.items():
        if isinstance(entry, Directory):
            yield from _walk(f"{path}/{name}", entry)
        else:
            yield f"{path}/{name}"


class DiskThatHangs(Disk):
    """A disk whose flushes wait while `may_go_on` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def count_flush(self, inode: object = None) -> None:
        assert self.may_go_on.wait(10)
        super().count_flush(inode)  # type: ignore[arg-type]
