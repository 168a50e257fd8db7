"""Disks of brokers: small ext4 file systems on loop devices, which can fail like disks.

A power cut uses the file system itself: `FS_IOC_SHUTDOWN` without a flush of its journal stops
every write at once; flushed bytes survive, and unflushed ones are lost.
"""

import fcntl
import os
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.faults.network import run

_SHUTDOWN: Final = 0x8004587D
_FLUSH_ALL, _FLUSH_NOTHING = 0, 2
_MEBIBYTE: Final = 1 << 20
_SENTINEL: Final = "written-and-never-flushed"


class Folder:
    """A folder that is no disk of its own: tests can only empty it."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path

    def empty(self) -> None:
        """Replace the disk by an empty one; no process may use it."""
        shutil.rmtree(self.path)
        self.path.mkdir()

    def heal(self) -> None:
        """Do nothing: there is no fault to end."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class Volume(Folder):
    """One disk of one broker.

    Args:
        path: its mount point.
        mebibytes: its size.
    """

    def __init__(self, path: Path, mebibytes: int) -> None:
        super().__init__(path)
        self._image = path.with_name(path.name + ".image")
        self._mebibytes = mebibytes
        self._is_shut_down = False
        self._make()

    def _make(self) -> None:
        self._image.unlink(missing_ok=True)
        with self._image.open("wb") as image:
            image.truncate(self._mebibytes * _MEBIBYTE)
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", str(self._image))
        self._mount()

    def _mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.path))

    def empty(self) -> None:
        run("umount", str(self.path))
        self._make()

    def cut_power(self) -> bool:
        """Lose unflushed bytes, even under a writer; return whether any were lost."""
        sentinel = self.path / _SENTINEL
        sentinel.write_bytes(b"x" * 4096)
        self._shut_down(_FLUSH_NOTHING)
        self.restore()
        is_lost = not sentinel.exists() or sentinel.stat().st_size == 0
        sentinel.unlink(missing_ok=True)
        return is_lost

    def detach(self) -> None:
        """Refuse every operation until `restore`."""
        self._shut_down(_FLUSH_ALL)

    def restore(self) -> None:
        """Mount it again, which recovers it; no process may use it meanwhile."""
        run("umount", str(self.path))
        self._mount()
        self._is_shut_down = False

    def fill(self) -> None:
        """Take all free space, also what became free since it was taken."""
        with (self.path / "filler").open("ab") as filler, suppress(OSError):
            size = filler.tell()
            for step in (8 * _MEBIBYTE, 256 << 10, 4096):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(filler.fileno(), size, step)
                        size += step

    def take(self, size: int) -> None:
        """Take space until so many bytes are taken."""
        with (self.path / "filler").open("ab") as filler:
            os.posix_fallocate(filler.fileno(), 0, size)

    def heal(self) -> None:
        if self._is_shut_down:
            self.restore()
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        with suppress(RuntimeError):
            run("umount", str(self.path))
        self._image.unlink(missing_ok=True)

    def _shut_down(self, how: int) -> None:
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory, _SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(directory)
        self._is_shut_down = True
