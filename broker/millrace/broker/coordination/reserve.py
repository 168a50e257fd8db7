"""Space that is taken from the disk in advance, so that a store can be used when it is full (P64).

A database that is opened needs room for its log of writes, and for the log's index, before it can
be read. Where there is none, the reserve is given up, and the call is tried again. The reserve is
taken again when there is plenty of room.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from millrace.broker.storage.file_system import is_full
from millrace.broker.storage.posix_file_system import PosixFileSystem

RESERVE_BYTES: Final = 8 << 20
"""Holds SQLite's log at its usual size, which is half of it, and small clusters' metadata twice."""
_PROBE_BYTES: Final = 64 << 10
"""More than SQLite takes from the disk in one step."""


class Reserve:
    """The file that takes the space.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = PosixFileSystem()

    @property
    def is_there(self) -> bool:
        """Whether there is something to give up."""
        return self._path.exists()

    def take(self) -> None:
        """Take the space unless it is taken, or scarce. A disk that refuses is no matter here."""
        with contextlib.suppress(OSError):
            if self.is_there or self._files.free_space(str(self._path.parent)) < 2 * RESERVE_BYTES:
                return
            try:
                self._files.allocate(str(self._path), RESERVE_BYTES)
            except OSError:
                self.give_up()

    def give_up(self) -> None:
        """Free the space."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def is_disk_full(beside: Path, offset: int) -> bool:
    """Return whether the disk, a quota, or the limit of a file's size has no room.

    Args:
        beside: a file; another one is written in its directory.
        offset: where in a file there must be room.
    """
    probe = beside.with_name(beside.name + ".probe")
    try:
        descriptor = os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            written = 0
            while written < _PROBE_BYTES:
                written += os.pwrite(descriptor, bytes(_PROBE_BYTES - written), offset + written)
        finally:
            os.close(descriptor)
    except OSError as error:
        return is_full(error)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return False
