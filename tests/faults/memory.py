"""A bound on the memory of one process, beyond which the kernel kills it."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

_FIRST: Final = Path("/sys/fs/cgroup/memory")
_SECOND: Final = Path("/sys/fs/cgroup")


class MemoryLimit:
    """A control group of the first or second version, made for one process.

    Raises:
        RuntimeError: this machine has no such controller.
        OSError: it may not be used.
    """

    def __init__(self, name: str, limit_bytes: int) -> None:
        if (_FIRST / "memory.limit_in_bytes").exists():
            self._path, limit, self._events = _FIRST / name, "memory.limit_in_bytes", "oom_control"
        elif "memory" in _controllers():
            self._path, limit, self._events = _SECOND / name, "memory.max", "events"
        else:
            raise RuntimeError("no memory controller is mounted")
        self._path.mkdir()
        try:
            (self._path / limit).write_text(str(limit_bytes))
        except OSError:
            self._path.rmdir()
            raise

    def take(self, pid: int) -> None:
        """Put a process into the group: its memory counts from now on."""
        (self._path / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        """Return how many processes the kernel has killed for exceeding the bound."""
        for line in (self._path / f"memory.{self._events}").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for _ in range(100):  # A dead process leaves the group a moment later.
            with suppress(OSError):
                os.rmdir(self._path)
                return
            time.sleep(0.05)


def _controllers() -> list[str]:
    with suppress(OSError):
        return (_SECOND / "cgroup.subtree_control").read_text().split()
    return []
