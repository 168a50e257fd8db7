"""A machine's disk: the one of `tests.fakes.disk`, with a price on calls and more ways to fail.

Storage code is synchronous. It runs to completion at one moment of virtual time and leaves what it
would have cost in `take_cost`; who called it is busy for so long.

A file belongs to one process: using it after the process ended is a mistake of the simulation, and
fails an assertion. What the process wrote stays.
"""

import errno
import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.fakes.disk import SECTOR_BYTES, Directory, Disk, DiskFile, DiskLock, Entry, Inode
from tests.sim.world import World

from millrace.core.records.header import Buffer


@dataclass(slots=True)
class DiskTimes:
    """What calls cost, in microseconds; the flush times are those of a middling SSD."""

    call_us: int = 10
    us_per_64kib: int = 120
    flush_us_min: int = 300
    flush_us_mean: int = 700  # Above the minimum; exponential.
    stall_us: int = 0
    """Added to every write and flush while the disk is slow."""
    stall_ends_at: float = math.inf
    """By the world's clock; then the rest of a long job is quick, too."""


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
    """

    def __init__(self, world: World, owner: str) -> None:
        super().__init__()
        self._world = world
        self.rng = world.random(f"disk {owner}")
        self.root = UnorderedDirectory()
        self.times = DiskTimes()
        self.generation = 0
        """Of the process that may use it."""
        self.is_read_only = False
        self.reads_to_fail = 0
        self.writes_to_fail = 0
        self.wipes = 0
        self.is_older_copy = False
        """Whether what is on it was put back, and lacks what it had since."""
        self.damaged: list[str] = []
        """Files that were changed behind the process's back."""
        self.failures = 0
        """Calls that failed on purpose, of all kinds."""
        self._cost = 0.0
        self._flush_dice = world.random(f"flush times {owner}")

    @property
    def is_damaged(self) -> bool:
        """Whether bytes were changed behind the process's back."""
        return bool(self.damaged)

    def take_cost(self) -> int:
        """Return what calls cost since this was asked last, in microseconds."""
        cost, self._cost = int(self._cost), 0.0
        return cost

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

    # --- What faults do to it ----------------------------------------------------------------

    def restart(self) -> None:
        super().restart()
        self.generation += 1
        self._cost = 0.0

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

    def fsync_directory(self, path: str) -> None:
        super().fsync_directory(path)
        self.charge_flush()

    def call(self) -> None:
        super().call()
        self._cost += self.times.call_us + self._stall_us()
        if self.is_read_only:
            self.failures += 1
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def count_flush(self, inode: Inode | None = None) -> None:
        if self.flushes + 1 == self.fail_flush_at:
            self.failures += 1
        super().count_flush(inode)

    def charge_flush(self) -> None:
        times = self.times
        mean = max(times.flush_us_mean, 1)
        self._cost += times.flush_us_min + self._flush_dice.expovariate(1 / mean)
        self._cost += self._stall_us()

    def _stall_us(self) -> int:
        """What a call costs more that comes after all that were made in this job so far."""
        is_over = self._world.now + self._cost >= self.times.stall_ends_at
        return 0 if is_over else self.times.stall_us

    def charge_bytes(self, size: int) -> None:
        self._cost += size * self.times.us_per_64kib / 65536

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
            written = super().append(buffers)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._simulated.count_full()
            raise
        if written < size:
            self._simulated.count_full()
        self._simulated.charge_bytes(written)
        return written

    def pread(self, size: int, offset: int) -> bytes:
        self._check()
        self._simulated.fail_read(self._path)
        data = super().pread(size, offset)
        self._simulated.charge_bytes(len(data))
        return data

    def truncate(self, size: int) -> None:
        self._check()
        super().truncate(size)

    def rewrite(self, size: int, offset: int) -> None:
        self._check()
        super().rewrite(size, offset)
        self._simulated.charge_bytes(2 * size)

    def fdatasync(self) -> None:
        self._check()
        super().fdatasync()
        self._simulated.charge_flush()

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
