"""Faults of disks and clocks inside one broker's process: the preloaded library and its control.

The library (`preload.c`) stands between the process and the C library. A file that both sides map
controls it and counts its faults, so that a fault can begin and end while the process runs.
"""

import mmap
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("preload.c")
_FIELDS: Final = (
    "sequence", "wall_shift", "steady_shift", "rate", "rate_since", "sync_error", "sync_delay",
    "read_error", "write_room", "stall", "hog", "syncs_hit", "reads_hit", "writes_hit",
    "stalls_hit",
)  # fmt: skip
_PLACES: Final[Mapping[str, int]] = {name: 8 * at for at, name in enumerate(_FIELDS)}
_BYTES: Final = 8 * len(_FIELDS)
_NO_BOUND: Final = -1
TRUE_RATE: Final = 1000


def compile_library(folder: Path) -> Path:
    """Compile the library.

    Raises:
        subprocess.CalledProcessError: the compiler failed; `stderr` says why.
        FileNotFoundError: there is no compiler.
    """
    library = folder / "preload.so"
    command = [
        "cc",
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


class Control:
    """Controls the library of one process.

    Args:
        path: of the file, which is created.
        library: None: no library is preloaded, and no fault is possible.
    """

    def __init__(self, path: Path, library: Path | None) -> None:
        path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)
        self.environment: list[str] = (
            [] if library is None else [f"LD_PRELOAD={library}", f"FAULTS_CONTROL={path}"]
        )
        """Settings of the environment, `NAME=value`."""
        self["write_room"] = _NO_BOUND
        self["rate"] = TRUE_RATE

    def __getitem__(self, name: str) -> int:
        (value,) = struct.unpack_from("<q", self._memory, _PLACES[name])
        return int(value)

    def __setitem__(self, name: str, value: int) -> None:
        struct.pack_into("<q", self._memory, _PLACES[name], value)

    def set_clock(
        self, *, wall_shift_s: float = 0, steady_jump_s: float = 0, rate: int = TRUE_RATE
    ) -> None:
        """Change the clocks.

        Args:
            wall_shift_s: how much the wall clock is ahead of the true one.
            steady_jump_s: how far the monotonic clocks jump now; they never go back.
            rate: of all clocks from now on, in thousandths of the true one.
        """
        now = time.monotonic_ns()
        gained = (now - self["rate_since"]) // 1000 * (self["rate"] - TRUE_RATE)
        self["sequence"] += 1
        self["steady_shift"] += gained + round(steady_jump_s * 1e9)
        self["wall_shift"] = round(wall_shift_s * 1e9)
        self["rate"] = rate
        self["rate_since"] = now
        self["sequence"] += 1

    def heal(self) -> None:
        """End every fault; the monotonic clocks stay as far ahead as they are."""
        for name in ("sync_error", "sync_delay", "read_error", "stall", "hog"):
            self[name] = 0
        self["write_room"] = _NO_BOUND
        if self["rate"] != TRUE_RATE or self["wall_shift"]:
            self.set_clock()
