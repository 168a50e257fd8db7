"""Disks of brokers: small ext4 file systems on loop devices, which can fail as disks do.

A power cut is the file system's own: `FS_IOC_SHUTDOWN` without a flush of its journal stops every
write at once, so that what was flushed is there afterwards and what was not is gone.
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
    """A place for files that is no disk of its own: nothing can be done to it but emptying it."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path

    def empty(self) -> None:
        """Replace the disk by an empty one; nobody may use it meanwhile."""
        shutil.rmtree(self.path)
        self.path.mkdir()

    def heal(self) -> None:
        """There is nothing to end."""

    def close(self) -> None:
        """There is nothing to let go of."""


class Volume(Folder):
    """See the module.

    Args:
        path: where it is mounted.
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
        """Lose what was not flushed, whoever still writes; return whether anything was lost."""
        sentinel = self.path / _SENTINEL
        sentinel.write_bytes(b"x" * 4096)
        self._shut_down(_FLUSH_NOTHING)
        self.restore()
        is_lost = not sentinel.exists() or sentinel.stat().st_size == 0
        sentinel.unlink(missing_ok=True)
        return is_lost

    def detach(self) -> None:
        """Refuse everything from now on, until `restore`."""
        self._shut_down(_FLUSH_ALL)

    def restore(self) -> None:
        """Mount it anew, which recovers it; nobody may use it meanwhile."""
        run("umount", str(self.path))
        self._mount()
        self._is_shut_down = False

    def fill(self) -> None:
        """Take all space that is free."""
        with (self.path / "filler").open("wb") as filler, suppress(OSError):
            size = 0
            for step in (8 * _MEBIBYTE, 256 << 10, 4096):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(filler.fileno(), size, step)
                        size += step

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
