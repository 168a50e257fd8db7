"""A machine's disk: `tests.fakes.disk` with calls that take time, and with more ways to fail.

A thread that calls the disk waits, while others run; an event loop gets its result at once. A call
first takes its time, and then happens at one moment.

A file belongs to one process. Using it after that process has ended is a mistake of the simulation,
and fails an assertion. The bytes that the process wrote stay.
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
from tests.sim.machines.threads import SimulatedLock, SimulatedThread
from tests.sim.world import MILLISECOND, World

from millrace.core.records.header import Buffer

_STALL_STEP_US: Final = 100 * MILLISECOND
"""How often a call that waits for a slow disk checks whether the disk is still slow."""


@dataclass(slots=True)
class DiskTimes:
    """What calls cost, in microseconds; the flush times are those of a middling SSD."""

    call_us: int = 10
    us_per_64kib: int = 120
    flush_us_min: int = 300
    flush_us_mean: int = 700  # Above the minimum; exponential.
    stall_us: int = 0
    """Added to every write and flush while the disk is slow."""


def _no_power() -> NoReturn:
    raise PowerCut


class UnorderedDirectory(Directory):
    """After a power cut any of the unflushed changes may be there, not only the first ones."""

    def surviving_changes(self, rng: random.Random) -> list[dict[str, Entry | None]]:
        if rng.random() < 0.5:
            return super().surviving_changes(rng)
        return [change for change in self.changes if rng.random() < 0.5]


class SimulatedDisk(Disk):
    """A `FileSystem` whose calls take virtual time.

    Args:
        world: source of randomness.
        owner: the machine's name.

    Attributes:
        lose_power: called when the power fails in the middle of a call; it does not return.
    """

    def __init__(self, world: World, owner: str) -> None:
        super().__init__()
        self.rng = world.random(f"disk {owner}")
        self.root = UnorderedDirectory()
        self.times = DiskTimes()
        self.generation = 0
        """Of the process that may use the disk."""
        self.is_read_only = False
        self.reads_to_fail = 0
        self.writes_to_fail = 0
        self.wipes = 0
        self.set_backs = 0
        """How often it was set back to an earlier state, while no file says so."""
        self.is_older_copy = False
        """Whether its content was replaced by an older copy, so that later writes are missing."""
        self.damaged: list[str] = []
        """Files that a fault changed without telling the process."""
        self.failures = 0
        """Calls that failed on purpose, of all kinds."""
        self.lose_power: Callable[[], NoReturn] = _no_power
        self._cut_after: tuple[str, int] | None = None
        self._is_appending = False
        self._flush_dice = world.random(f"flush times {owner}")
        self.cached_dice = world.random(f"cached appends {owner}")
        if self.cached_dice.random() < 0.5:  # Like XFS; else like ext4.
            self.cached_bytes_max = 1 << 30

    @property
    def replaced(self) -> int:
        """How often the content was replaced as a whole."""
        return self.wipes + self.set_backs

    @property
    def is_damaged(self) -> bool:
        """Whether a fault changed bytes without telling the process."""
        return bool(self.damaged)

    def is_durable(self, path: str) -> bool:
        """Whether a file would survive a power cut unchanged: its bytes, its name, its directories.

        Not if a failed flush should have written a part of it, though programs still read it.
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
        """Return what a file surely holds after a power cut; empty if it may be gone."""
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
        self._cut_after = None
        self.generation += 1

    def fail_next_flush(self) -> None:
        """Let the next flush raise EIO and lose its bytes."""
        self.fail_flush_at = self.flushes + 1

    def cut_power_soon(self, calls: int) -> None:
        """Cut the power at the given one of the next calls that change something."""
        self.cut_power_at = self.calls + calls

    def cut_power_after_rename(self, suffix: str, calls: int) -> None:
        """Cut the power at the given one of the calls that follow a rename to such a name."""
        self._cut_after = suffix, calls

    def fill(self, spare_bytes: int) -> None:
        """Let at most this many more bytes be written."""
        used = sum(len(self._inode(path).data) for path in self.files())
        self.capacity = used + spare_bytes

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.wipes += 1
        self.is_older_copy = False
        self.damaged.clear()
        self.restart()
        self.root = UnorderedDirectory()
        self._found.clear()
        self.unreadable.clear()
        self.capacity = None

    def put_back(self, copy: Disk, *, is_older: bool) -> None:
        """Replace the whole content by a copy, while no process uses it."""
        self.root = copy.root
        self._found.clear()
        self.is_older_copy = is_older

    def set_back(self, snapshot: Disk) -> None:
        """Replace the whole content by a snapshot of the same life, while no process uses it."""
        self.put_back(snapshot, is_older=False)
        self.set_backs += 1

    def copy_sector(self, source: str, at: int, target: str, target_at: int) -> None:
        """Simulate a misdirected write: the target's sector gets the source's bytes."""
        data = self.contents(source)[at : at + SECTOR_BYTES]
        old = self.contents(target)
        self.write(target, old[:target_at] + data + old[target_at + len(data) :])

    # --- FileSystem --------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> "SimulatedFile":
        super().open(path, create=create, writable=writable)
        return SimulatedFile(self, path)

    def lock(self, path: str) -> DiskLock:
        return GenerationLock(super().lock(path), self)

    def new_directory(self) -> UnorderedDirectory:
        return UnorderedDirectory()

    def new_mutex(self) -> SimulatedLock:
        return SimulatedLock()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if self._cut_after is not None and target.endswith(self._cut_after[0]):
            self.cut_power_soon(self._cut_after[1])
            self._cut_after = None

    def call(self) -> None:
        if self._is_appending:  # The call has taken its time; a power cut ends it.
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
        """Append bytes; a power cut may leave a part of them."""
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

    def append_cached(self, buffers: Sequence[Buffer]) -> int:
        """Often write at once, sometimes only a part; a disk with a fault makes writers wait."""
        disk, dice = self._simulated, self._simulated.cached_dice
        if disk.writes_to_fail or disk.is_read_only or disk.times.stall_us or dice.random() < 0.1:
            return -1
        if dice.random() < 0.05:
            data = b"".join(buffers)
            buffers = [data[: dice.randrange(1, len(data))]]
        return super().append_cached(buffers)

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
    """Implements `Lock`; a release by a dead process does not affect the next holder."""

    def __init__(self, lock: DiskLock, disk: SimulatedDisk) -> None:
        super().__init__(disk, lock._path)
        self._simulated = disk
        self._generation = disk.generation

    def release(self) -> None:
        if self._generation == self._simulated.generation:
            super().release()
