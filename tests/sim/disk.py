"""A machine's disk: the one of `tests.fakes.disk`, whose calls take time, with more ways to fail.

A thread that calls it waits, and others run meanwhile; what an event loop asks of it, it gets at
once. A call takes its time first, and is then done at one moment.

A file belongs to one process: using it after the process ended is a mistake of the simulation, and
fails an assertion. What the process wrote stays.
"""

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

from tests.fakes.disk import (
    SECTOR_BYTES,
    Directory,
    Disk,
    DiskFile,
    DiskLock,
    Entry,
    Inode,
    PowerCut,
)
from tests.sim.threads import SimulatedLock, SimulatedThread
from tests.sim.world import MILLISECOND, World

from millrace.core.records.header import Buffer

_STALL_STEP_US: Final = 100 * MILLISECOND
"""How often a call that a slow disk holds up looks whether it still is slow."""


@dataclass(slots=True)
class DiskTimes:
    """What calls cost, in microseconds; the flush times are those of a middling SSD."""

    call_us: int = 10
    us_per_64kib: int = 120
    flush_us_min: int = 300
    flush_us_mean: int = 700  # Above the minimum; exponential.
    stall_us: int = 0
    """Added to every write and flush while the disk is slow, until it is slow no longer."""


def _no_power() -> NoReturn:
    raise PowerCut


class UnorderedDirectory(Directory):
    """After a power cut any of the unflushed changes may be there, not only the first ones."""

    def surviving_changes(self, rng: random.Random) -> list[dict[str, Entry | None]]:
        if rng.random() < 0.5:
            return super().surviving_changes(rng)
        return [change for change in self.changes if rng.random() < 0.5]


class SimulatedDisk(Disk):
    """See the module; implements `FileSystem`.

    Args:
        world: gives the dice.
        owner: the machine's name.

    Attributes:
        lose_power: called when the power goes in the middle of a call; it does not return.
    """

    def __init__(self, world: World, owner: str) -> None:
        super().__init__()
        self.rng = world.random(f"disk {owner}")
        self.root = UnorderedDirectory()
        self.times = DiskTimes()
        self.generation = 0
        """Of the process that may use it."""
        self.is_read_only = False
        self.reads_to_fail = 0
        self.writes_to_fail = 0
        self.wipes = 0
        self.set_backs = 0
        """How often it became what it had been earlier, without anything on it that says so."""
        self.is_older_copy = False
        """Whether what is on it was put back, and lacks what it had since."""
        self.damaged: list[str] = []
        """Files that were changed behind the process's back."""
        self.failures = 0
        """Calls that failed on purpose, of all kinds."""
        self.lose_power: Callable[[], NoReturn] = _no_power
        self._is_appending = False
        self._flush_dice = world.random(f"flush times {owner}")

    @property
    def replaced(self) -> int:
        """How often there was something else on it from one moment to the next."""
        return self.wipes + self.set_backs

    @property
    def is_damaged(self) -> bool:
        """Whether bytes were changed behind the process's back."""
        return bool(self.damaged)

    def is_durable(self, path: str) -> bool:
        """Whether a file would survive a power cut as it is: its bytes, its name and directories.

        Not so what a failed flush should have written, though programs read it.
        """
        directory: Entry = self.root
        for name in filter(None, path.split("/")):
            assert isinstance(directory, Directory)
            entry = directory.names.get(name)
            if entry is None or directory.durable.get(name) is not entry:
                return False
            directory = entry
        assert isinstance(directory, Inode)
        return not directory.never_written and directory.flushed_bytes >= len(directory.data)

    def durable_contents(self, path: str) -> bytes:
        """Return what a file surely holds after a power cut; nothing where it may be gone."""
        directory: Entry = self.root
        for name in filter(None, path.split("/")):
            found = directory.durable.get(name) if isinstance(directory, Directory) else None
            if found is None:
                return b""
            directory = found
        return bytes(directory.durable) if isinstance(directory, Inode) else b""

    # --- What faults do to it ----------------------------------------------------------------

    def restart(self) -> None:
        super().restart()
        self.generation += 1

    def fail_next_flush(self) -> None:
        """The next flush says EIO; what it should have written is lost."""
        self.fail_flush_at = self.flushes + 1

    def cut_power_soon(self, calls: int) -> None:
        """Let the power go at the so-many-th call that changes something."""
        self.cut_power_at = self.calls + calls

    def fill(self, spare_bytes: int) -> None:
        """Let no more than so many bytes be written."""
        used = sum(len(self._inode(path).data) for path in self.files())
        self.capacity = used + spare_bytes

    def wipe(self) -> None:
        """Put an empty disk in its place."""
        self.wipes += 1
        self.is_older_copy = False
        self.damaged.clear()
        self.restart()
        self.root = UnorderedDirectory()
        self._found.clear()
        self.unreadable.clear()
        self.capacity = None

    def put_back(self, copy: Disk, *, is_older: bool) -> None:
        """Replace all that is on it by a copy, while no process uses it."""
        self.root = copy.root
        self._found.clear()
        self.is_older_copy = is_older

    def set_back(self, snapshot: Disk) -> None:
        """Replace all that is on it by a snapshot of the same life, while no process uses it."""
        self.put_back(snapshot, is_older=False)
        self.set_backs += 1

    def evict_all(self) -> None:
        """Drop the page cache: what a failed flush never wrote is now seen to be missing."""
        for path in self.files():
            self._inode(path).evict()

    def copy_sector(self, source: str, at: int, target: str, target_at: int) -> None:
        """Let a write have gone astray: the target's sector now has the source's bytes."""
        data = self.contents(source)[at : at + SECTOR_BYTES]
        old = self.contents(target)
        self.write(target, old[:target_at] + data + old[target_at + len(data) :])

    # --- FileSystem --------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> "SimulatedFile":
        super().open(path, create=create, writable=writable)
        return SimulatedFile(self, path)

    def lock(self, path: str) -> DiskLock:
        return GenerationLock(super().lock(path), self)

    def make_directory(self, path: str) -> None:
        if not self.exists(path):
            self.make_directory(path.rpartition("/")[0])
            directory, name = self._parent(path)
            self.call()
            directory.change({name: UnorderedDirectory()})

    def new_mutex(self) -> SimulatedLock:
        return SimulatedLock()

    def call(self) -> None:
        if self._is_appending:  # It has taken its time, and ends by itself when the power goes.
            super().call()
        else:
            self.take(self.times.call_us)
            try:
                super().call()
            except PowerCut:
                self.lose_power()
        if self.is_read_only:
            self.failures += 1
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def count_flush(self, inode: Inode | None = None) -> None:
        if self.flushes + 1 == self.fail_flush_at:
            self.failures += 1
        times = self.times
        mean = max(times.flush_us_mean, 1)
        self.take(times.flush_us_min + int(self._flush_dice.expovariate(1 / mean)))
        super().count_flush(inode)

    def take(self, time_us: int) -> None:
        """Let a call take some time, and more while the disk is slow."""
        thread = SimulatedThread.current
        if thread is None:
            return
        thread.sleep(time_us)
        left_us = self.times.stall_us
        while left_us > 0 and self.times.stall_us:
            thread.sleep(min(left_us, _STALL_STEP_US))
            left_us -= _STALL_STEP_US

    def append_at_once(self, append: Callable[[], int], size: int) -> int:
        """Append so many bytes, some of which may be written when the power goes."""
        self.take(self.times.call_us + size * self.times.us_per_64kib // 65536)
        self._is_appending = True
        try:
            return append()
        except PowerCut:
            self._is_appending = False
            self.lose_power()
        finally:
            self._is_appending = False

    def fail_read(self, path: str) -> None:
        """Raise EIO if a read is to fail."""
        if self.reads_to_fail:
            self.reads_to_fail -= 1
            self.failures += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def fail_write(self, path: str) -> None:
        """Raise EIO if a write is to fail."""
        if self.writes_to_fail:
            self.writes_to_fail -= 1
            self.failures += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def count_full(self) -> None:
        self.failures += 1


class SimulatedFile(DiskFile):
    """Implements `File` for one process."""

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        super().__init__(disk, path)
        self._simulated = disk
        self._generation = disk.generation

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._check()
        self._simulated.fail_write(self._path)
        size = sum(map(len, buffers))
        try:
            written = self._simulated.append_at_once(partial(super().append, buffers), size)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._simulated.count_full()
            raise
        if written < size:
            self._simulated.count_full()
        return written

    def pread(self, size: int, offset: int) -> bytes:
        self._check()
        self._simulated.fail_read(self._path)
        return super().pread(size, offset)

    def truncate(self, size: int) -> None:
        self._check()
        super().truncate(size)

    def rewrite(self, size: int, offset: int) -> None:
        self._check()
        super().rewrite(size, offset)

    def fdatasync(self) -> None:
        self._check()
        super().fdatasync()

    def _check(self) -> None:
        assert self._generation == self._simulated.generation, "its process is dead"


class GenerationLock(DiskLock):
    """Implements `Lock`: one that a dead process releases stays with the next one."""

    def __init__(self, lock: DiskLock, disk: SimulatedDisk) -> None:
        super().__init__(disk, lock._path)
        self._simulated = disk
        self._generation = disk.generation

    def release(self) -> None:
        if self._generation == self._simulated.generation:
            super().release()
